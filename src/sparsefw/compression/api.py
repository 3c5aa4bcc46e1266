"""compress: a trained model in, a new and smaller one out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from sparsefw.compression.cost import Costs, costs
from sparsefw.compression.filters import parity_of_plan
from sparsefw.compression.plan import Plan, in_words
from sparsefw.compression.progress import Progress
from sparsefw.compression.settings import KINDS, one_of, settings_of
from sparsefw.compression.target import Target
from sparsefw.compression.workshop import Workshop


@dataclass(frozen=True, repr=False)
class Compressed:
    """A compressed model, what was done to it, and what it costs beside the dense one."""

    model: nn.Module
    plan: Plan
    dense: Costs
    costs: Costs
    source: nn.Module = field(repr=False)
    example: Any = field(repr=False)

    def __repr__(self) -> str:
        return self.summary()

    def summary(self, metric: str = "metric") -> str:
        """What was done, what it costs, what was left; `metric` is what a target drop= was measured by."""
        request = self.plan.request
        rows = [f"removed: {', '.join(_amount_in_words(request, kind) for kind in request['removed'])}"]
        if "metric" in request:
            rows.append(f"{metric:11} {request['metric'][0]:>14.6g} -> {request['metric'][1]:>14.6g}")
        if "milliseconds" in request:
            dense, small = request["milliseconds"]
            layers = f"sum of the layers at batch {request['batch']}"
            rows.append(f"ms          {dense:>14.3f} -> {small:>14.3f}  ({_percent(small / dense)}, {layers})")
        rows += [
            f"{name:11} {before:>14,} -> {after:>14,}  ({_percent(after / max(before, 1))})"
            for name, before, after in (
                ("parameters", self.dense.parameters, self.costs.parameters),
                ("MACs", self.dense.macs, self.costs.macs),
                ("bytes", self.dense.bytes, self.costs.bytes),
            )
        ]
        return "\n".join([*rows, *in_words(self.plan.untouched)])


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 or not share else f"{share:.2g} of 1"


def _amount_in_words(request: Mapping[str, Any], kind: str) -> str:
    amount = request["removed"][kind]
    share = amount if isinstance(amount, str) else f"{100 * amount:.3g} %"
    return f"{share} of the {kind}" + (f", for {request['target']}" if kind in request["by"] else "")


def compress(
    model: nn.Module,
    *,
    filters: float | None = None,
    rank: float | None = None,
    weights: float | str | None = None,
    target: str | None = None,
    by: str | Sequence[str] | None = None,
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
    progress: Progress | bool | None = None,
) -> Compressed:
    """A new, smaller model. The given one is not changed.

    filters       fraction of channels to remove; form="masked" zeroes filters in place instead, each convolution for itself
    rank          fraction of singular values to remove from every layer but the last: layers become two plain layers
    weights       fraction of weights to set to 0, or "N:M" such as "2:4"
    target        instead of a fraction: "params=0.3", "macs=0.3", "bytes=0.3", "latency=0.5" of the dense model, or "drop=0.01":
                  the largest compression at which evaluate(model), larger is better, falls by at most that, in its own
                  units, from what the dense model with recomputed statistics has. latency= is of the example's batch.
    by            what is compressed for a target: "filters" (default), "rank", "weights", or several
    example       an input with a batch axis (a tensor, a tuple of positional or a dict of keyword arguments); default: two
                  items cut from calibration
    calibration   any iterable of batches, without labels needed: BatchNorm statistics are recomputed on it and, with
                  refit=True, what is kept is fitted in closed form to what the dense network computes
    score         which channels go first: "l1" (the paper's), "l2", "bn", "activation"
    allocation    how much from which layer: "uniform" (default; for weights "global"), "global", "energy", "worst", "sensitivity"
    include       globs of layer names; `exclude` likewise. The layer that writes the model's output keeps its outputs
    round_to      channel counts and ranks are rounded to multiples of this
    progress      while layers are fitted: a bar where standard error is a terminal; True or False to have one or none; or a
                  function of (done, total, layer name)

    Several kinds together are applied in the order filters, rank, weights.
    """
    settings = settings_of(form, score, allocation, include, exclude, round_to, refit)
    amounts = _amounts(filters, rank, weights)
    goal = None if target is None else Target.parse(target)
    if goal is None and by is not None:
        raise ValueError(f"by={by!r} says what a target= is met by, and there is none")
    driven = _driven("filters" if by is None else by, amounts) if goal is not None else ()
    if form == "masked" and "filters" not in (*amounts, *driven):
        raise ValueError("form='masked' is a way to remove filters, and none are asked for")
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
    if (
        goal is not None
        and goal.metric in ("params", "macs", "latency")
        and (driven == ("weights",) or form == "masked")
    ):
        instead = "form='removed'" if form == "masked" else "by='filters'"
        raise ValueError(
            f"target {target!r}: zeros stay in place, so {goal.metric} cannot fall; use bytes=, or {instead}"
        )
    work = Workshop(model, example, calibration, settings, progress)
    if goal is not None:
        found = work.level_for(goal, amounts, driven, evaluate)
        amounts = {**amounts, **dict.fromkeys(driven, found.level)}
        request |= {"level": found.level, **found.measured}
    done = work.carry_out(amounts)
    request["removed"] = {kind: weights if isinstance(amounts[kind], tuple) else s for kind, s in done.removed.items()}
    if "filters" in amounts and form == "removed":
        gap = parity_of_plan(work.source, done.edits, work.example)
        if not gap < 1e-4:
            raise ValueError(
                f"removing these channels is not the same as silencing them (outputs differ by {gap:.2g}): "
                "the model computes with their number; exclude the layers that do"
            )
    plan = Plan((*work.unfused, *done.edits), tuple(done.untouched), request)
    before, after = costs(work.dense, work.example), costs(done.model, work.example)
    return Compressed(done.model, plan, before, after, work.source, work.example)


def _amounts(filters: Any, rank: Any, weights: Any) -> dict[str, float | tuple[int, int]]:
    amounts: dict[str, float | tuple[int, int]] = {}
    for kind, value in (("filters", filters), ("rank", rank), ("weights", weights)):
        if value is None:
            continue
        if kind == "weights" and isinstance(value, str):
            n, _, m = value.partition(":")
            if not (n.isdigit() and m.isdigit() and 0 < int(n) < int(m)):
                raise ValueError(f"weights={value!r}: a pattern is N:M with 0 < N < M, such as '2:4'")
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
            raise ValueError(f"{kind}= and target= both say how much of the {kind} goes: give one, or another by=")
    return kinds
