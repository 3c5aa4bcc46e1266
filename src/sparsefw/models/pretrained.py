"""load_weights: the weights of a file in a network, or in a part of it, with nothing skipped that is not listed.

load_weights(build("resnet50"), "resnet50.safetensors")
load_weights(build("resnet50", classes=10), "resnet50.safetensors", leave_out=["fc.*"])    # trained on other classes
load_weights(build("pspnet_resnet50"), "resnet50.safetensors", into="backbone")            # trained as a classifier
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.text import first_line

# What a classifier has on top of what others build on, in torchvision's names and ours.
CLASSIFIER = "fc.*"
# How many batches a norm has seen: no weight, and older files of torchvision lack it.
COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class LeftOut:
    """A tensor of the file that was not loaded."""

    name: str
    shape: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class LoadReport:
    """What became of every tensor of the file and of the model.

    loaded         the model's names of what comes from the file
    left_out       what of the file was not loaded, and why
    initialised    the model's names of what stays as it was
    """

    source: str
    loaded: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    initialised: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{self.source}: loaded {len(self.loaded)} of {len(self.loaded) + len(self.left_out)} tensors"]
        lines += [f"left out: {item.name} {item.shape}: {item.reason}" for item in self.left_out]
        if self.initialised:
            lines.append(f"as initialised: {', '.join(self.initialised)}")
        return "\n".join(lines)


def load_weights(
    model: nn.Module,
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    into: str | None = None,
    leave_out: Sequence[str] = (),
) -> LoadReport:
    """Copy weights into the model, in place, by name. What does not fit is an error, and then nothing is changed.

    source       a .safetensors file; a .pt or .pth file, of which nothing but tensors is read; or a state dict
    into         the part of the model that the weights are of, such as "backbone". A classifier's last layer, fc, is then left
                 out if the part has none
    leave_out    names of weights that are not taken, such as "fc.*", * standing for anything; as they are in the file. The
                 model's weights of these names stay as they are
    """
    label, weights = _read(source)
    part = model if into is None else _part(model, into)
    target = {name: value for name, value in part.state_dict().items() if isinstance(value, Tensor)}
    patterns = _checked_patterns(leave_out, [*weights, *target])
    left = [LeftOut(n, tuple(w.shape), "as asked by leave_out") for n, w in weights.items() if _matches(n, patterns)]
    if into is not None and not any(fnmatchcase(name, CLASSIFIER) for name in target):
        reason = f"the classifier's last layer, which {into} does not have"
        taken = {item.name for item in left}
        left += [
            LeftOut(name, tuple(weight.shape), reason)
            for name, weight in weights.items()
            if fnmatchcase(name, CLASSIFIER) and name not in taken
        ]
    gone = {item.name for item in left}
    offered = {name: weight for name, weight in weights.items() if name not in gone}
    wanted = {name: own for name, own in target.items() if not _matches(name, patterns)}
    _check_fit(label, model, into, wanted, offered)
    with torch.no_grad():
        for name, weight in offered.items():
            target[name].copy_(weight)
    prefix = "" if into is None else f"{into}."
    loaded = {prefix + name for name in offered}
    every = [name for name, value in model.state_dict().items() if isinstance(value, Tensor)]
    return LoadReport(
        label, tuple(n for n in every if n in loaded), tuple(left), tuple(n for n in every if n not in loaded)
    )


def _check_fit(
    label: str, model: nn.Module, into: str | None, wanted: Mapping[str, Tensor], offered: Mapping[str, Tensor]
) -> None:
    """ValueError that names the first misfit and counts the others, unless both have the same names, shapes and kinds."""
    misfits: dict[str, str] = {}
    for name, own in wanted.items():
        if name in offered:
            problem = _misfit(own, offered[name])
        else:
            optional = name.rpartition(".")[2] == COUNTER
            problem = "" if optional else f"is missing; the model has it with the shape {tuple(own.shape)}"
        if problem:
            misfits[name] = problem
    for name, weight in offered.items():
        if name not in wanted:
            misfits[name] = f"has the shape {tuple(weight.shape)}; the model has no such parameter"
    if not misfits:
        if not offered:
            raise ValueError(f"{label}: there is nothing to load")
        return
    (name, problem), others = next(iter(misfits.items())), len(misfits) - 1
    more = f" ({others} more do not fit)" if others else ""
    raise ValueError(f"{label}: {name} {problem}{more}{_advice(model, into, misfits, offered)}")


def _misfit(own: Tensor, weight: Tensor) -> str:
    if own.shape != weight.shape:
        return f"has the shape {tuple(weight.shape)}, in the model {tuple(own.shape)}"
    if own.is_floating_point() != weight.is_floating_point():
        return f"has the type {weight.dtype}, in the model {own.dtype}"
    if own.is_meta or weight.is_meta:
        return f"has no values: it is on the meta device {'of the model' if own.is_meta else 'where it comes from'}"
    return ""


def _advice(model: nn.Module, into: str | None, misfits: Mapping[str, str], offered: Mapping[str, Tensor]) -> str:
    """What would help, where all that does not fit is one layer of the file, or where the weights are of a part."""
    patterns = {f"{name.rpartition('.')[0]}.*" if "." in name else name for name in misfits}
    if len(patterns) == 1 and all(name in offered for name in misfits) and len(offered) > len(misfits):
        return f"; leave_out=['{patterns.pop()}'] would leave it out"
    for name, child in model.named_children():
        if into is None and any(key in offered for key in child.state_dict()):
            return f"; into={name!r} would load the weights there"
    return ""


def _part(model: nn.Module, into: str) -> nn.Module:
    try:
        if not into:
            raise AttributeError
        return model.get_submodule(into)
    except AttributeError:
        known = ", ".join(name for name, _ in model.named_children())
        raise ValueError(f"into must be a part of the model, such as {known}, got {into!r}") from None


def _checked_patterns(leave_out: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    if isinstance(leave_out, str) or not all(isinstance(pattern, str) for pattern in leave_out):
        raise ValueError(f"leave_out must be a list of names such as ['fc.*'], got {leave_out!r}")
    for pattern in leave_out:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(f"leave_out: nothing is named {pattern!r}; the names begin with {names[0]}")
    return tuple(leave_out)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _read(source: str | os.PathLike[str] | Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """What to call the weights in messages, and the weights."""
    label, content = "the state dict", source
    if not isinstance(source, Mapping):
        path = Path(source)
        label, content = str(path), _read_file(path)
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{label}: must be a dictionary of names and tensors, got {_kind(content)}")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(
                f"{label}: must hold names and tensors only, got {_kind(value)} as {name!r}; "
                "of a checkpoint, give the state dict in it"
            )
    return label, dict(content)


def _kind(value: Any) -> str:
    return f"an empty {type(value).__name__}" if isinstance(value, Mapping) and not value else type(value).__name__


def _read_file(path: Path) -> Any:
    if path.suffix not in (".safetensors", ".pt", ".pth"):
        raise ValueError(f"{path}: weights must be in a .safetensors, .pt or .pth file")
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(f"{path}: is damaged, or no safetensors file: {first_line(error)}") from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes end in many kinds of errors, and refused code in one of them
        reason = f"is damaged, or holds more than tensors, which is never read: {first_line(error)}"
        raise ValueError(f"{path}: {reason}") from None
