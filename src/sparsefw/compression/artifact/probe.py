"""The probe: what a network computes on random inputs, stored beside its weights, so that a loaded network can be checked.

Weights are not all of a network. A constructor that is called with other arguments, an attribute that was set after construction
or another version of a library may give one that takes the same weights and computes something else.

The inputs are made from their shapes, by numbers that are the same on every machine, and are not stored. Of the outputs, at
most 4,096 entries per tensor are. Both sides run on the CPU, in the network's own precision, and may differ by the square root
of its rounding: half of the digits are the same.

What a network decides on the way, such as which boxes a detector keeps, is stored too, and the loaded network decides the same:
another machine rounds differently, and would choose differently among candidates that are equally good.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefw.compression.artifact.files import ArtifactError
from sparsefw.compression.artifact.packing import OWN
from sparsefw.compression.artifact.plan import Untouched
from sparsefw.compression.artifact.shapes import DTYPES, from_shapes, shapes_of
from sparsefw.compression.in_place.restriction import unchanged_buffers
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.recovery.batches import first_items
from sparsefw.compression.structure.channels import tensors_of
from sparsefw.compression.structure.decisions import Decisions, decided, number_of
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import call, evaluating
from sparsefw.limits import PROBE_NUMBERS
from sparsefw.scalars import is_int
from sparsefw.text import first_line

PREFIX = f"{OWN}probe."
ENTRIES = 4096  # of an output, if it has more
CHOICE = f"{PREFIX}choice."
MOST_CHOSEN = (
    1 << 16
)  # entries of a choice, and choices, that are stored; where there are more, the loaded network decides


@dataclass(frozen=True)
class Probe:
    """Random inputs of a network.

    input    their shapes
    torch    the version that the outputs were computed by
    """

    input: Any
    torch: str

    def outputs(self, model: nn.Module) -> dict[str, Tensor]:
        """Return what a model computes, as it is stored; nothing if there is nothing that could be compared."""
        decisions = Decisions()
        outputs = _outputs(model, self.input, decisions=decisions)
        if not math.isfinite(relative_gap(outputs, outputs, whole_numbers=True)):
            return {}
        return _named(outputs) | _named_choices(decisions)

    def to_json(self) -> dict[str, Any]:
        return {"input": self.input, "torch": self.torch}


def probe_of(model: nn.Module, example: Any) -> Probe | Reason:
    """Return a probe with inputs like one item of the example, or like all of it; or the reason why there is none."""
    reason = because(Cause.NOT_CHECKED_INPUT, type=type(example).__name__)
    for inputs in (first_items(example, 1), example):
        try:
            shapes = shapes_of(inputs)
        except ValueError:
            return reason
        try:
            first, second = (_outputs(model, shapes, seed) for seed in (0, 1))
        except Exception as error:  # code of the model's own on inputs that it was not made for
            reason = because(Cause.NOT_CHECKED_FAILS, error=type(error).__name__)
            continue
        gap = relative_gap(first, second, whole_numbers=True)
        if gap == 0:
            return Probe(shapes, torch.__version__)
        return because(Cause.NOT_CHECKED_RANDOM if math.isfinite(gap) else Cause.NOT_CHECKED_OUTPUT)
    return reason


def note_of(probe: Probe | Reason) -> tuple[Untouched, ...]:
    """Return the note of a plan whose network is not checked when it is loaded; none of one that is."""
    return () if isinstance(probe, Probe) else (Untouched.because("load", probe),)


def check(folder: Path, model: nn.Module, header: Any, tensors: Mapping[str, Tensor]) -> None:
    """Raise ArtifactError unless the model computes the outputs of a probe that are among the tensors.

    Args:
        folder: The artifact, for messages.
        model: The loaded network.
        header: Of the probe, as in plan.json; None if there is none.
        tensors: The stored outputs, by the names that `Probe.outputs` gives.
    """
    expected = [t for name, t in sorted(tensors.items()) if name.startswith(PREFIX) and not name.startswith(CHOICE)]
    if header is None or not expected:
        return
    try:
        got = _outputs(model, header["input"], decisions=Decisions(decided(_choices(tensors))))
        gap = relative_gap(expected, got, whole_numbers=True) if len(got) == len(expected) else math.inf
        if gap <= tolerance(model, got):
            return
        differ = f"outputs differ by {gap:.2g} of their spread"
    except Exception as error:  # of the model's own code, or of a plan that was edited
        differ = f"{type(error).__name__}: {first_line(error)}"
    saved_by = header.get("torch") if isinstance(header, dict) else None
    raise ArtifactError(
        f"{folder}: the loaded network does not compute what was saved ({differ}): its constructor may be given other "
        "arguments or leave out what was set after construction, or libraries may be others; "
        f"this is torch {torch.__version__}, and {saved_by} saved it"
    )


def _outputs(model: nn.Module, shapes: Any, seed: int = 0, decisions: Decisions | None = None) -> list[Tensor]:
    """Return the outputs on the CPU, a random choice of the entries of large ones; the seed is for networks that draw numbers."""
    is_on_cpu = all(t.device.type == "cpu" for t in (*model.parameters(), *model.buffers()))
    model = model if is_on_cpu else copy.deepcopy(model).cpu()
    deciding = contextlib.nullcontext() if decisions is None else decisions
    with unchanged_buffers(model), evaluating(model), torch.random.fork_rng(devices=[]), deciding:
        torch.default_generator.manual_seed(seed)
        outputs = tensors_of(call(model, _inputs(shapes)))
    return [_chosen(torch.view_as_real(t) if t.is_complex() else t) for t in outputs]


def _inputs(shapes: Any) -> Any:
    """Return random inputs of these shapes, the same on every machine; ValueError if these are no shapes, or too large ones."""
    generator = np.random.RandomState(0)  # NumPy never changes what this one gives
    left = PROBE_NUMBERS

    def tensor(data: Mapping[str, Any]) -> Tensor:
        nonlocal left
        shape = data["shape"]
        if not isinstance(shape, list) or not all(is_int(length) and length >= 0 for length in shape):
            raise ValueError(f"not a shape: {shape!r}")
        left -= math.prod(shape)
        if left < 0:
            raise ValueError(f"inputs of more than {PROBE_NUMBERS:,} numbers")
        dtype = DTYPES[data["dtype"]]
        if dtype.is_floating_point or dtype.is_complex:
            return torch.from_numpy(2 * generator.random_sample(shape) - 1).to(dtype)
        smallest, largest = (0, 1) if dtype == torch.bool else data.get("range", (0, 0))
        return torch.from_numpy(generator.randint(smallest, largest + 1, shape, dtype=np.int64)).to(dtype)

    return from_shapes(shapes, tensor)


def _chosen(output: Tensor) -> Tensor:
    entries = output.detach().flatten()
    if len(entries) <= ENTRIES:
        return entries
    return entries[torch.from_numpy(np.random.RandomState(0).randint(len(entries), size=ENTRIES))]


def _named(outputs: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{PREFIX}{i:04}": output for i, output in enumerate(outputs)}


def _named_choices(decisions: Decisions) -> dict[str, Tensor]:
    """Return the choices by names that `_choices` reads; a number becomes a tensor without axes."""
    named = {}
    for i, decision in enumerate(decisions.made[:MOST_CHOSEN]):
        choice = [torch.as_tensor(chosen) for chosen in decision.choice]
        named[f"{CHOICE}{i:05}"] = torch.tensor(int(number_of(decision.operation)))
        if sum(chosen.numel() for chosen in choice) <= MOST_CHOSEN:
            named |= {f"{CHOICE}{i:05}.{j}": chosen.contiguous() for j, chosen in enumerate(choice)}
    return named


def _choices(tensors: Mapping[str, Tensor]) -> list[tuple[int, tuple[Tensor, ...]]]:
    """Return the stored choices in order, each behind the number of its operation."""
    by_place: dict[str, list[Tensor]] = {}
    for name, chosen in sorted(tensors.items()):
        if name.startswith(CHOICE):
            by_place.setdefault(name.removeprefix(CHOICE).partition(".")[0], []).append(chosen)
    return [(int(number), tuple(choice)) for number, *choice in by_place.values()]


def tolerance(model: nn.Module, outputs: Sequence[Tensor]) -> float:
    """Return the square root of the coarsest rounding that takes part, of float32 at least."""
    types = {t.dtype for t in (*model.parameters(), *model.buffers(), *outputs) if t.is_floating_point()}
    return math.sqrt(max(torch.finfo(dtype).eps for dtype in {*types, torch.float32}))
