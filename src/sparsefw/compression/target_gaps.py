"""Why a target is not met, or is met with much to spare: the parts of a network that weigh most, and what keeps them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from sparsefw.compression.artifact.plan import Untouched
from sparsefw.compression.cost import macs_by_module, parameters_by_module
from sparsefw.compression.reasons import Cause, because

MUCH = 0.05  # of a target that is left over, from which the steps between networks are explained
_SHOWN = 3
_LEAST_SHARE = 0.1  # of the smallest network, from which a part of it is named
Weights = Callable[[nn.Module], Mapping[str, float]]


def weights_for(metric: str, example: Any) -> Weights:
    """Return what measures the parts of a network, by their names: their parameters, or their MACs."""
    if metric in ("params", "bytes"):
        return parameters_by_module
    return lambda model: macs_by_module(model, example)


def largest_parts(dense: nn.Module, small: nn.Module, untouched: Sequence[Untouched], weights: Weights) -> str:
    """Return the largest parts of the smallest network that can be reached, as shares of the dense one, with what keeps them."""
    before, after = weights(dense), weights(small)
    total, left = sum(before.values()) or 1.0, sum(after.values()) or 1.0
    reasons = {name: entry.reason for entry in untouched if not entry.note for name in entry.layer.split(" + ")}
    largest = sorted((name for name in after if after[name] >= _LEAST_SHARE * left), key=lambda name: -after[name])
    parts = []
    for name in largest[:_SHOWN]:
        kept = "stays whole" if after[name] == before.get(name) else ""
        reason = reasons.get(name, kept)
        parts.append(f"{name or 'the model itself'} {after[name] / total:.3g}" + (f" ({reason})" if reason else ""))
    return ", ".join(parts)


def step_note(
    target: str, reached: float, larger: float, small: nn.Module, next_: nn.Module, weights: Weights
) -> Untouched:
    """Return a note on a target that is met with much to spare: the next larger network, and the layer that makes the step."""
    below, above = weights(small), weights(next_)
    total = sum(above.values()) - sum(below.values())
    layer = max(above, key=lambda name: above[name] - below.get(name, 0.0))
    share = (above[layer] - below.get(layer, 0.0)) / (total or 1.0)
    made_by = f"{share:.0%} of this step is {layer or 'the model itself'}"
    return Untouched.because(
        f"target {target}",
        because(Cause.TARGET_STEP, reached=f"{reached:.3g}", larger=f"{larger:.3g}", made_by=made_by),
    )
