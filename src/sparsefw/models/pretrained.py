"""Load weights from a file into a network, or into a part of it, and list every tensor that was not loaded.

load_weights(build("resnet50"), "resnet50.safetensors")
load_weights(build("resnet50", classes=10), "resnet50.safetensors", leave_out=["fc.*"])    # trained on other classes
load_weights(build("pspnet_resnet50"), "resnet50.safetensors", into="backbone")            # trained as a classifier
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.limits import require_regular
from sparsefw.text import first_line, one_line

CLASSIFIER = "fc.*"  # the last layer of a classifier, in the names of torchvision and of this package
CHECKPOINT_KEYS = ("state_dict", "model_state_dict", "model")  # where checkpoints of others keep the network
BATCH_COUNTER = "num_batches_tracked"  # of a norm: not a weight, and missing in older files of torchvision


@dataclass(frozen=True)
class LeftOut:
    """A tensor of the file that was not loaded."""

    name: str
    shape: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class LoadReport:
    """The outcome of load_weights, tensor by tensor.

    source         the file, or "the state dict"
    loaded         tensors of the model that were loaded
    left_out       tensors of the file that were not loaded
    initialised    tensors of the model that were not changed
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
    """Copy weights into the model, in place, by name. Where any weight does not fit, raise ValueError and change nothing.

    Args:
        model: the network.
        source: a .safetensors file; a .pt or .pth file, of which only plain values and tensors are read; or a state dict. Of a
            checkpoint in a file, the weights under "state_dict", "model_state_dict" or "model" are taken.
        into: the part of the model that the weights belong to, such as "backbone". If that part has no classifier, the
            weights `fc.*` are left out.
        leave_out: names in the file of weights that are not loaded, such as "fc.*", where * stands for anything. The model
            keeps its weights of these names.

    Returns:
        The tensors that were loaded, left out and kept.

    >>> layer = nn.Linear(2, 1)
    >>> print(load_weights(layer, {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}))
    the state dict: loaded 2 of 2 tensors
    """
    label, weights = read_weights(source)
    part = model if into is None else _part(model, into)
    target = _tensors(part)
    patterns = _checked_patterns(leave_out, [*weights, *target])
    reasons = {name: "as asked by leave_out" for name in weights if _matches(name, patterns)}
    if into is not None and not any(fnmatchcase(name, CLASSIFIER) for name in target):
        for name in weights:
            if fnmatchcase(name, CLASSIFIER):
                reasons.setdefault(name, f"the classifier's last layer, which {into} does not have")
    left_out = tuple(LeftOut(name, tuple(weights[name].shape), reason) for name, reason in reasons.items())
    offered = {name: weight for name, weight in weights.items() if name not in reasons}
    wanted = {name: value for name, value in target.items() if not _matches(name, patterns)}
    _check_fit(label, model, into, wanted, offered)
    with torch.no_grad():
        for name, weight in offered.items():
            target[name].copy_(weight)
    prefix = "" if into is None else f"{into}."
    names = list(_tensors(model))
    loaded = {prefix + name for name in offered}
    return LoadReport(
        source=label,
        loaded=tuple(name for name in names if name in loaded),
        left_out=left_out,
        initialised=tuple(name for name in names if name not in loaded),
    )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}


def _check_fit(
    label: str, model: nn.Module, into: str | None, wanted: Mapping[str, Tensor], offered: Mapping[str, Tensor]
) -> None:
    """Raise ValueError, naming the first misfit and counting the others, unless all names, shapes and types agree."""
    misfits: dict[str, str] = {}
    loaded = {value.data_ptr() for name, value in wanted.items() if name in offered and not value.is_meta}
    for name, value in wanted.items():
        if name in offered:
            problem = _misfit(value, offered[name])
        else:
            is_tied = (
                value.numel() > 0 and value.data_ptr() in loaded
            )  # files keep one name of a tensor that has several
            is_optional = is_tied or name.rpartition(".")[2] == BATCH_COUNTER
            problem = "" if is_optional else f"is missing; the model has it with the shape {tuple(value.shape)}"
        if problem:
            misfits[name] = problem
    for name, weight in offered.items():
        if name not in wanted:
            misfits[name] = f"has the shape {tuple(weight.shape)}; the model has no such parameter"
    if not misfits:
        if not offered:
            raise ValueError(f"{label}: there is nothing to load")
        return
    name, problem = next(iter(misfits.items()))
    others = len(misfits) - 1
    more = f" ({others} more do not fit)" if others else ""
    raise ValueError(f"{label}: {name} {problem}{more}{_advice(model, into, misfits, offered)}")


def _misfit(value: Tensor, weight: Tensor) -> str:
    """Return why a weight cannot be copied into a tensor of the model; empty where it can."""
    if value.shape != weight.shape:
        return f"has the shape {tuple(weight.shape)}, in the model {tuple(value.shape)}"
    if value.is_floating_point() != weight.is_floating_point():
        return f"has the type {weight.dtype}, in the model {value.dtype}"
    if value.is_meta or weight.is_meta:
        return f"has no values: it is on the meta device {'of the model' if value.is_meta else 'where it comes from'}"
    return ""


def _advice(model: nn.Module, into: str | None, misfits: Mapping[str, str], offered: Mapping[str, Tensor]) -> str:
    """Return the argument that would help: leave_out where one layer of the file does not fit, into for weights of a part."""
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


def read_weights(source: str | os.PathLike[str] | Mapping[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    """Return the name of the weights for messages, and the weights; of a checkpoint in a file, those of its network."""
    label = "the state dict" if isinstance(source, Mapping) else str(Path(source))
    content = source if isinstance(source, Mapping) else _read_file(Path(source))
    if not isinstance(source, Mapping) and isinstance(content, Mapping):
        inner = [key for key in CHECKPOINT_KEYS if isinstance(content.get(key), Mapping)]
        if len(inner) == 1:
            label, content = f"{label}, its {inner[0]}", content[inner[0]]
    if not isinstance(content, Mapping) or not content:
        raise ValueError(f"{label}: must be a dictionary of names and tensors, got {_type_name(content)}")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise ValueError(
                f"{label}: must hold names and tensors only, got {_type_name(value)} as {name!r}; "
                "of a checkpoint, give the state dict in it"
            )
    return label, dict(content)


def _type_name(value: Any) -> str:
    return f"an empty {type(value).__name__}" if isinstance(value, Mapping) and not value else type(value).__name__


def _is_packed(path: Path) -> bool:
    """Return whether anything in a zip file takes less space than what it unpacks to."""
    with zipfile.ZipFile(path) as file:
        return any(entry.compress_type != zipfile.ZIP_STORED for entry in file.infolist())


def _read_file(path: Path) -> Any:
    if path.suffix not in (".safetensors", ".pt", ".pth"):
        raise ValueError(f"{path}: weights must be in a .safetensors, .pt or .pth file")
    if not path.exists():
        raise ValueError(f"{path}: there is no such file")
    try:
        require_regular(path)
        is_packed = zipfile.is_zipfile(path) and _is_packed(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except (zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {one_line(error)}") from None
    if is_packed:  # a thousand bytes could become a million
        raise ValueError(
            f"{path}: is compressed, which torch.save does not do; unpack it, and zip it without compression"
        )
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(f"{path}: is damaged, or no safetensors file: {first_line(error)}") from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes raise many types of errors, and refused code one of them
        # Of torch's message only the first sentence: the others advise to run what the file holds.
        reason = f"is damaged, or holds more than tensors, which is never read: {first_line(error).split('. ')[0]}"
        raise ValueError(f"{path}: {reason}") from None
