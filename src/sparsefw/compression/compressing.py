"""compress: a trained model in, a new and smaller one out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from sparsefw.compression.artifact.plan import Plan, in_words
from sparsefw.compression.cost import Costs, costs
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.progress import Progress
from sparsefw.compression.settings import amounts_of, settings_of
from sparsefw.compression.structure.removal import parity_of_plan
from sparsefw.compression.target import Target
from sparsefw.kinds import FILTERS, KINDS, Kind, kind_of


@dataclass(frozen=True, repr=False)
class Compressed:
    """A compressed model, what was done to it, and what it costs beside the dense one.

    source, example   the dense model and an input, where it was just made; None where it was loaded
    certificate       what was written beside it, where it was loaded
    """

    model: nn.Module
    plan: Plan
    dense: Costs
    costs: Costs
    source: nn.Module | None = None
    example: Any = None
    certificate: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def parity(self) -> float:
        """How far removing the channels is from silencing them: the largest difference of the outputs, relative to them."""
        assert self.source is not None
        return parity_of_plan(self.source, self.plan.edits, self.example)

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
    **removed: float | str | None,
) -> Compressed:
    """A new, smaller model. The given one is not changed. How much of which kind goes is said by the kind's name:

    filters=      fraction of channels to remove; form="masked" zeroes filters in place instead, each convolution for itself
    neurons=      fraction of the outputs of linear layers to remove (filters= removes these, too)
    rank=         fraction of singular values to remove from every layer but the last: layers become two plain layers
    weights=      fraction of weights to set to 0, or "N:M" such as "2:4"
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

    Several kinds together are applied in this order.
    """
    settings = settings_of(form, score, allocation, include, exclude, round_to, refit)
    amounts = amounts_of(removed, list(inspect.signature(compress).parameters))
    goal = None if target is None else Target.parse(target)
    if goal is None and by is not None:
        raise ValueError(f"by={by!r} says what a target= is met by, and there is none")
    driven = _driven(FILTERS.name if by is None else by, amounts) if goal is not None else ()
    if form == "masked" and not any(kind.of_channels for kind in (*amounts, *driven)):
        raise ValueError("form='masked' is a way to remove filters, and none are asked for")
    if not amounts and goal is None:
        words = ", ".join(f"{name}=" for name in KINDS)
        raise ValueError(f"how much? give one of {words} as the fraction to remove, or a target such as 'params=0.3'")
    if goal is not None and goal.metric == "drop" and evaluate is None:
        raise ValueError("target drop= needs evaluate=, a function from a model to the metric that may fall")
    request: dict[str, Any] = {
        **{name: removed.get(name) for name in KINDS},
        "target": target,
        "by": [kind.name for kind in driven],
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
        and (not any(kind.shrinks for kind in driven) or form == "masked")
    ):
        instead = "form='removed'" if form == "masked" else "by='filters'"
        raise ValueError(
            f"target {target!r}: zeros stay in place, so {goal.metric} cannot fall; use bytes=, or {instead}"
        )
    work = Pipeline(model, example, calibration, settings, progress)
    if goal is not None:
        found = work.level_for(goal, amounts, driven, evaluate)
        amounts = {**amounts, **dict.fromkeys(driven, found.level)}
        request |= {"level": found.level, **found.measured}
    smaller, plan = work.carry_out(amounts)
    plan = replace(plan, request={**request, **plan.request})
    sizes = costs(work.dense, work.example), costs(smaller, work.example)
    small = Compressed(smaller, plan, *sizes, work.source, work.example)
    if form == "removed" and any(kind.of_channels for kind in amounts) and not small.parity < 1e-4:
        raise ValueError(
            f"removing these channels is not the same as silencing them (outputs differ by {small.parity:.2g}): "
            "the model computes with their number; exclude the layers that do"
        )
    return small


def _driven(by: str | Sequence[str], amounts: Mapping[Kind, float]) -> tuple[Kind, ...]:
    kinds = tuple(map(kind_of, (by,) if isinstance(by, str) else by))
    for kind in kinds:
        if kind.only_ratio is not None:
            raise ValueError(f"by={kind.name!r}: it has one size only, so it meets no target")
        if kind in amounts:
            raise ValueError(
                f"{kind.name}= and target= both say how much of the {kind.name} goes: give one, or another by="
            )
    return kinds
