"""compress: a trained model in, a new and smaller one out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sparsefw.compression.cost import Costs, costs
from sparsefw.compression.filters import parity_of_plan
from sparsefw.compression.plan import Plan
from sparsefw.compression.refit import Progress
from sparsefw.compression.stages import Selection
from sparsefw.compression.target import Target
from sparsefw.compression.workshop import KINDS, Settings, Workshop, globs, one_of, positive


@dataclass(frozen=True)
class Compressed:
    """A compressed model, what was done to it, and what it costs beside the dense one."""

    model: nn.Module
    plan: Plan
    dense: Costs
    costs: Costs
    source: nn.Module = field(repr=False)
    example: Any = field(repr=False)

    def __str__(self) -> str:
        rows = [
            f"{name:11} {before:>14,} -> {after:>14,}  ({after / max(before, 1):.1%})"
            for name, before, after in (
                ("parameters", self.dense.parameters, self.costs.parameters),
                ("MACs", self.dense.macs, self.costs.macs),
                ("bytes", self.dense.bytes, self.costs.bytes),
            )
        ]
        return "\n".join([*rows, *(f"left as it is: {u.layer}: {u.reason}" for u in self.plan.untouched)])


def compress(
    model: nn.Module,
    *,
    filters: float | None = None,
    rank: float | None = None,
    weights: float | str | None = None,
    target: str | None = None,
    by: str | Sequence[str] = "filters",
    example: Any = None,
    calibration: Iterable[Any] | None = None,
    refit: bool = True,
    form: str = "removed",
    score: str = "l1",
    allocation: str | None = None,
    include: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    round_to: int = 1,
    evaluate: Callable[[nn.Module], float] | None = None,
    progress: Progress | None = None,
) -> Compressed:
    """A new, smaller model. The given one is not changed.

    filters       fraction of channels to remove; form="masked" zeroes filters in place instead, each convolution for itself
    rank          fraction of singular values to remove from every layer but the last: layers become two plain layers
    weights       fraction of weights to set to 0, or "N:M" such as "2:4"
    target        instead of a fraction: "params=0.3", "macs=0.3", "bytes=0.3", "latency=0.5" of the dense model, or "drop=0.01":
                  the largest compression at which evaluate(model) falls by at most that, in its own units, from what the
                  dense model with recomputed statistics has; `by` says what is compressed for it
    example       one input (a tensor, a tuple of positional or a dict of keyword arguments); default: cut from calibration
    calibration   any iterable of batches, without labels needed: BatchNorm statistics are recomputed on it and, with
                  refit=True, what is kept is fitted in closed form to what the dense network computes
    score         which channels go first: "l1" (the paper's), "l2", "bn", "activation"
    allocation    how much from which layer: "uniform" (default; for weights "global"), "global", "energy", "worst", "sensitivity"
    include       globs of layer names; `exclude` likewise. The layer that writes the model's output keeps its outputs
    round_to      channel counts and ranks are rounded to multiples of this
    progress      a function of (done, total, layer name), called while layers are refitted

    Several kinds together are applied in the order filters, rank, weights.
    """
    settings = Settings(form, score, allocation, Selection(globs(include), globs(exclude), positive(round_to)), refit)
    amounts = _amounts(filters, rank, weights)
    goal = None if target is None else Target.parse(target)
    driven = _driven(by, amounts) if goal is not None else ()
    if not amounts and goal is None:
        raise ValueError(
            "how much? give filters=, rank= or weights= as the fraction to remove, or a target such as 'params=0.3'"
        )
    if goal is not None and goal.metric == "drop" and evaluate is None:
        raise ValueError("target drop= needs evaluate=, a function from a model to the metric that may fall")
    request: dict[str, Any] = {
        "filters": filters,
        "rank": rank,
        "weights": weights,
        "target": target,
        "by": list(driven),
        "form": form,
        "score": score,
        "allocation": allocation,
        "round_to": round_to,
        "refit": bool(refit and calibration is not None),
    }
    if evaluate is not None and (goal is None or goal.metric != "drop"):
        raise ValueError("evaluate= is used by target='drop=...' only")
    if goal is not None and goal.metric in ("params", "macs") and (driven == ("weights",) or form == "masked"):
        raise ValueError(
            f"target {target!r}: zeros stay in place, so {goal.metric} cannot fall; use bytes=, or by='filters'"
        )
    work = Workshop(model, example, calibration, settings, progress)
    if goal is not None:
        level = work.level_for(goal, amounts, driven, evaluate)
        amounts = {**amounts, **dict.fromkeys(driven, level)}
        request["level"] = level
    small, edits, untouched = work.carry_out(amounts)
    if "filters" in amounts and form == "removed":
        gap = parity_of_plan(model, edits, work.example)
        if not gap < 1e-4:
            raise ValueError(
                f"removing these channels is not the same as silencing them (outputs differ by {gap:.2g}): "
                "the model computes with their number; exclude the layers that do"
            )
    plan = Plan((*work.unfused, *edits), tuple(untouched), request)
    return Compressed(small, plan, costs(work.dense, work.example), costs(small, work.example), model, work.example)


def _amounts(filters: Any, rank: Any, weights: Any) -> dict[str, float | tuple[int, int]]:
    amounts: dict[str, float | tuple[int, int]] = {}
    for kind, value in (("filters", filters), ("rank", rank), ("weights", weights)):
        if value is None:
            continue
        if kind == "weights" and isinstance(value, str):
            n, _, m = value.partition(":")
            if not (n.isdigit() and m.isdigit() and 0 < int(n) <= int(m)):
                raise ValueError(f"weights={value!r}: a pattern is N:M with 0 < N <= M, such as '2:4'")
            amounts[kind] = (int(n), int(m))
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise ValueError(f"{kind}={value!r}: the fraction to remove must be in [0, 1)")
        amounts[kind] = float(value)
    return amounts


def _driven(by: str | Sequence[str], amounts: Mapping[str, Any]) -> tuple[str, ...]:
    kinds = (by,) if isinstance(by, str) else tuple(by)
    for kind in kinds:
        one_of("by", kind, KINDS)
        if kind in amounts:
            raise ValueError(f"{kind}= and by={kind!r} both say how much; give one")
    return kinds
