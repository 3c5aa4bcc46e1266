"""compress: a trained model in, a new and smaller one out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Unpack, cast

from torch import nn

from sparsefw.compression.amounts import Amounts, KindAmounts, amounts_of
from sparsefw.compression.artifact.plan import Keep, Plan, Split, Untouched, in_words
from sparsefw.compression.cost import Costs, costs
from sparsefw.compression.latency import Latency, measure
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.recovery.batches import repeated
from sparsefw.compression.recovery.calibration import run
from sparsefw.compression.recovery.choice import recovery_in_words
from sparsefw.compression.settings import (
    MASKED,
    REMOVED,
    Settings,
    SettingsKeywords,
    is_setting,
    settings_from,
    takes_settings,
)
from sparsefw.compression.structure.copies import copy_sharing_weights, private_copy
from sparsefw.compression.structure.factorisation import Factors
from sparsefw.compression.structure.layers import evaluating
from sparsefw.compression.structure.removal import cut, is_clearly_silencing, parity
from sparsefw.compression.structure.splitting import can_compare, gap_of_split
from sparsefw.compression.target import DROP, Target, find_level
from sparsefw.kinds import FILTERS, KINDS, Kind, kind_of

LARGEST_PARITY_GAP = 1e-4  # of the outputs: rounding of float32 stays below


class Latencies(NamedTuple):
    """Of one item, before and after compression."""

    dense: Latency
    compressed: Latency


@dataclass(frozen=True, repr=False)
class Compressed:
    """A compressed model, its plan, and its costs beside those of the dense one.

    source, example   the dense model and an input, after compress; None after load
    certificate       the content of certificate.json, after load
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
        """How far the smaller network is from what it stands for: the largest difference of the outputs, relative to them.

        Removed channels stand for silent ones, two layers for one with the product of their weights.
        """
        dense = self._prepared("parity")
        edits = self.plan.edits
        split = [edit.layer for edit in edits if isinstance(edit, Split)]
        if not split:
            return parity(dense, edits, self.example)
        pairs = {name: cast(Factors, self.model.get_submodule(name)) for name in split}
        gap = gap_of_split(cut(dense, edits), pairs, self.example)[0]
        return max(gap, parity(dense, edits, self.example)) if any(isinstance(edit, Keep) for edit in edits) else gap

    @functools.cached_property
    def latency(self) -> Latencies:
        """Milliseconds of one item before and after compression, measured on this machine."""
        dense = private_copy(self._dense_model("latency"))
        item = _one_item(self.model, self.example)
        return Latencies(measure(dense, item, seconds=0.3), measure(self.model, item, seconds=0.3))

    def is_clearly_equal(self) -> bool:
        """Return whether the network's own precision shows that removed channels are as good as silent; else parity does."""
        edits = self.plan.edits
        is_split = any(isinstance(edit, Split) for edit in edits)
        return not is_split and is_clearly_silencing(self._prepared("parity"), edits, self.example)

    def _prepared(self, measured: str) -> nn.Module:
        return self.plan.prepare(copy_sharing_weights(self._dense_model(measured)))

    def _dense_model(self, measured: str) -> nn.Module:
        if self.source is None:
            raise ValueError(
                f"{measured} compares with the dense model, which a loaded artifact does not hold; `certificate` has the figures "
                "of the machine that saved it"
            )
        return self.source

    def __repr__(self) -> str:
        return self.summary()

    def summary(self, metric: str = "metric") -> str:
        """Describe the removed shares, the costs and the layers left as they are.

        Args:
            metric: The name of the metric that a target drop= was measured by.
        """
        request = self.plan.request
        removed = request.get("removed") or {name: request[name] for name in KINDS if request.get(name) is not None}
        lines = [f"removed: {', '.join(_amount_in_words(request, kind, removed[kind]) for kind in removed)}"]
        if "metric" in request:
            before, after = request["metric"]
            lines.append(f"{metric:11} {before:>14.6g} -> {after:>14.6g}")
        if "milliseconds" in request:
            before, after = request["milliseconds"]
            layers = f"sum of the layers at batch {request['batch']}"
            lines.append(f"ms          {before:>14.3f} -> {after:>14.3f}  ({_percent(after / before)}, {layers})")
        for name, before, after in (
            ("parameters", self.dense.parameters, self.costs.parameters),
            ("MACs", self.dense.macs, self.costs.macs),
            ("bytes", self.dense.bytes, self.costs.bytes),
        ):
            lines.append(f"{name:11} {before:>14,} -> {after:>14,}  ({_percent(after / max(before, 1))})")
        lines += recovery_in_words(request.get("recovery", {}))
        return "\n".join([*lines, *in_words(self.plan.untouched)])


def _one_item(model: nn.Module, example: Any) -> Any:
    """Return one item of the example; the whole example if the model refuses one because the first axis is not a batch."""
    item = repeated(example, 1)
    try:
        with evaluating(model):
            run(model, item)
    except ValueError:
        return example
    return item


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.001 or not share else f"{share:.2g} of 1"


def _amount_in_words(request: Mapping[str, Any], kind: str, amount: float | str) -> str:
    share = amount if isinstance(amount, str) else f"{100 * amount:.3g} %"
    return f"{share} of the {kind}" + (f", for {request['target']}" if kind in request.get("by", ()) else "")


class CompressKeywords(SettingsKeywords, KindAmounts, total=False):
    """The keyword arguments of compress that are not spelled out in its signature."""


DEFAULTS = Settings()


@takes_settings(DEFAULTS, *KINDS)
def compress(
    model: nn.Module,
    *,
    target: str | None = None,
    by: str | Sequence[str] | None = None,
    evaluate: Callable[[nn.Module], float] | None = None,
    calibration: Iterable[Any] | None = None,
    **keywords: Unpack[CompressKeywords],
) -> Compressed:
    """Return a new, smaller model; the given one is not changed.

    Args:
        model: The trained network.
        filters: Fraction of channels to remove. With form="masked", filters are zeroed in place, each convolution for itself.
        neurons: Fraction of the outputs of linear layers to remove (filters= removes these, too).
        heads: Fraction of attention heads to remove.
        rank: Fraction of singular values to remove from every layer but the last: layers become two plain layers.
        weights: Fraction of weights to set to 0, or "N:M" such as "2:4".
        target: Instead of a fraction: "params=0.3", "macs=0.3", "bytes=0.3" or "latency=0.5" of the dense model (latency with
            the example's batch); or "drop=0.01": the largest compression at which evaluate(model) falls by at most that, in
            its own units, from the dense model's with recomputed statistics.
        by: The kinds to remove for a target: "filters" (default), "rank", "weights", or several.
        evaluate: The metric for a target drop=, a function from a model to a number; larger is better.
        calibration: Any iterable of batches, labels not needed: BatchNorm statistics are recomputed on it and, if refit is
            chosen, the remaining weights are fitted in closed form to what the dense network computes. "synthetic", for
            networks with batch norms of which no data are at hand, makes inputs from the statistics that these hold.
        example: An input with a batch axis: a tensor, a tuple of positional or a dict of keyword arguments, or both, as
            ((x,), {"mask": mask}); of a detector, a list of images. Default: two items of the calibration.
        refit: Fit the remaining weights to the dense network: True, False, or "auto", which tries both and takes the one whose
            outputs follow the dense network's better on a quarter of the calibration inputs, held out from the fit. Fitting
            helps networks that were not trained to be cut, and harms many that were.
        form: "removed": physically smaller; "masked": zeroed in place.
        score: Which channels go first, those with the smallest: "l1" (default, the paper's), "l2", "bn", "activation".
        allocation: How much each layer loses: "uniform" (default; for weights "global"), "global", "energy", "worst",
            "sensitivity".
        include: Glob patterns of layer names. The layer that writes the model's output always keeps its outputs.
        exclude: Glob patterns of layer names to leave as they are.
        round_to: Channel counts and ranks become multiples of this, rounded up: never more is removed than asked.
        progress: A bar while layers are fitted: True, False, None (if standard error is a terminal), or a function of
            (done, total, layer name) to call instead.

    Returns:
        The new model, its plan and its costs. Several kinds together are removed in the order in which they are listed here.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> compress(model, neurons=0.5, example=torch.zeros(1, 4)).model[0]
    Linear(in_features=4, out_features=4, bias=True)
    """
    chosen = {name: value for name, value in keywords.items() if is_setting(name)}
    removed = {name: value for name, value in keywords.items() if not is_setting(name)}
    settings = settings_from(compress, DEFAULTS, calibration, chosen)
    amounts = amounts_of(removed, list(inspect.signature(compress).parameters))
    goal = None if target is None else Target.parse(target)
    if goal is None and by is not None:
        raise ValueError(f"by={by!r} names the kinds to remove for a target=; give target= too")
    driven = () if goal is None else _driven(FILTERS.name if by is None else by, amounts)
    _check_request(settings, amounts, goal, driven, evaluate)
    pipeline = Pipeline(model, settings, driven)
    request: dict[str, Any] = {
        **{name: removed.get(name) for name in KINDS},
        "target": target,
        "by": [kind.name for kind in driven],
        "form": settings.form,
        "score": settings.score or FILTERS.score,
        "allocation": settings.allocation,
        "round_to": settings.round_to,
        "refit": bool(settings.refit and calibration is not None),  # "auto" is replaced by what was chosen
    }
    notes: tuple[Untouched, ...] = ()
    if goal is not None:
        level = find_level(pipeline, goal, amounts, driven, evaluate)
        amounts |= dict.fromkeys(driven, level.value)
        request |= {"level": level.value, **level.measured}
        notes = level.notes
    new, plan = pipeline.compress(amounts)
    plan = replace(plan, untouched=(*notes, *plan.untouched), request={**request, **plan.request})
    dense_costs = costs(pipeline.dense, pipeline.example)
    small = Compressed(new, plan, dense_costs, costs(new, pipeline.example), pipeline.source, pipeline.example)
    del pipeline  # its copy of the model would take memory beside those that are compared
    _check_parity(small, settings, amounts)
    return small


def _check_parity(small: Compressed, settings: Settings, amounts: Amounts) -> None:
    """Refuse a network that computes something else than what it stands for."""
    removes_channels = settings.form == REMOVED and any(kind.of_channels for kind in amounts)
    if removes_channels and small.is_clearly_equal():
        return
    if removes_channels and not small.parity < LARGEST_PARITY_GAP:
        raise ValueError(
            f"removing these channels is not the same as silencing them (outputs differ by {small.parity:.2g}): "
            "the model depends on the number of channels; exclude the layers that cause this"
        )
    splits = any(isinstance(edit, Split) for edit in small.plan.edits)
    if splits and not small.parity < LARGEST_PARITY_GAP and can_compare(small.model, small.example):
        raise ValueError(
            f"two layers in place of one do not compute the same (outputs differ by {small.parity:.2g}): "
            "exclude the layers that cause this"
        )


def _driven(by: str | Sequence[str], amounts: Amounts) -> tuple[Kind, ...]:
    """Return the kinds that a target is met by."""
    kinds = tuple(map(kind_of, (by,) if isinstance(by, str) else by))
    if not kinds:
        raise ValueError(f"by={by!r} names no kind; leave it out for filters, or give one of {', '.join(KINDS)}")
    for kind in kinds:
        if kind.only_ratio is not None:
            raise ValueError(f"by={kind.name!r}: it removes a fixed share, so no target can be met by it")
        if kind in amounts:
            raise ValueError(
                f"{kind.name}= and target= both set how much of the {kind.name} is removed: give one, or another by="
            )
    return kinds


def _check_request(
    settings: Settings,
    amounts: Amounts,
    goal: Target | None,
    driven: Sequence[Kind],
    evaluate: Callable[[nn.Module], float] | None,
) -> None:
    """Refuse requests that contradict themselves, before any work is done."""
    if settings.form == MASKED and not any(kind.of_channels for kind in (*amounts, *driven)):
        raise ValueError("form='masked' removes filters, neurons or heads; give one of them")
    if not amounts and goal is None:
        words = ", ".join(f"{name}=" for name in KINDS)
        raise ValueError(f"give the fraction to remove, with one of {words}, or a target such as 'params=0.3'")
    is_drop = goal is not None and goal.metric == DROP
    if is_drop and evaluate is None:
        raise ValueError("target drop= needs evaluate=, a function from a model to the metric that may fall")
    if evaluate is not None and not is_drop:
        raise ValueError("evaluate= is used by target='drop=...' only")
    if goal is None or goal.metric in (DROP, "bytes"):
        return
    if settings.form == MASKED or not any(kind.shrinks for kind in driven):
        instead = "form='removed'" if settings.form == MASKED else "by='filters'"
        raise ValueError(
            f"target '{goal}': zeros stay in place, so {goal.metric} cannot fall; use bytes=, or {instead}"
        )
