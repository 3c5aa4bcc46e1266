"""curve: a metric against size, from one trained model: every ratio, plain and refit, without retraining."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from sparsefw.compression.amounts import ratios_of
from sparsefw.compression.artifact.plan import in_words
from sparsefw.compression.cost import Costs, costs
from sparsefw.compression.latency import measure
from sparsefw.compression.metric import Metric
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.recovery.agreement import WORST
from sparsefw.compression.recovery.calibration import NotFiniteError
from sparsefw.compression.recovery.choice import Choice, Judge
from sparsefw.compression.settings import (
    MASKED,
    REMOVED,
    Settings,
    SettingsKeywords,
    settings_from,
    takes_settings,
)
from sparsefw.compression.structure.layers import as_matrices, is_layer, weight_of
from sparsefw.kinds import Kind, kind_of
from sparsefw.recovery_words import PLAIN, REFIT


@dataclass(frozen=True)
class CurvePoint:
    """One size.

    ratio        the fraction removed
    plain        the metric with recomputed BatchNorm statistics only
    refit        the metric with weights fitted in closed form; None if that was not asked for
    distance     ||W - C(W)|| / ||W||
    agreements   with refit="auto": how well both follow the dense network on held-out inputs; None if that was not measured
    """

    ratio: float
    plain: float
    refit: float | None
    distance: float
    costs: Costs | None = None
    milliseconds: float | None = None
    agreements: Choice | None = None

    @property
    def chosen(self) -> str:
        """The recovery that compress would return: "plain" or "refit"."""
        if self.agreements is not None:
            return self.agreements.chosen
        return PLAIN if self.refit is None else REFIT

    @property
    def metric(self) -> float:
        """The metric with the chosen recovery."""
        return self.refit if self.chosen == REFIT and self.refit is not None else self.plain


@dataclass(frozen=True)
class Curve:
    """The metric of the dense model, with recomputed statistics, and at every ratio. Masked curves have no sizes.

    notes   say which computed weights were stored, and why no recovery could be chosen
    """

    kind: str
    form: str
    dense: float
    dense_costs: Costs
    dense_milliseconds: float | None
    points: tuple[CurvePoint, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        sized = self.form == REMOVED
        timed = self.dense_milliseconds is not None
        chooses = any(point.agreements is not None for point in self.points)
        header = f"{self.kind + ' removed':>16}  {'plain':>7}  {'refit':>7}{'  chosen' * chooses}  {'distance':>8}"
        header += "  parameters        MACs       bytes" * sized + "        ms" * timed
        dense_sizes = _sizes(self.dense_costs, self.dense_milliseconds, sized)
        lines = [header, f"{'dense':>16}  {self.dense:7.2f}" + " " * (19 + 8 * chooses) + dense_sizes]
        for point in self.points:
            refit = f"{point.refit:7.2f}" if point.refit is not None else "      -"
            sizes = _sizes(point.costs, point.milliseconds, sized)
            share = f"{100 * point.ratio:.3g}%"
            chosen = f"  {point.chosen:>6}" * chooses
            lines.append(f"{share:>16}  {point.plain:7.2f}  {refit}{chosen}  {point.distance:8.3f}{sizes}")
        return "\n".join(line.rstrip() for line in (*lines, *self.notes))

    def to_json(self) -> dict[str, Any]:
        points = [{**asdict(point), "chosen": point.chosen} for point in self.points]
        return {**asdict(self), "points": points}


def _sizes(size: Costs | None, milliseconds: float | None, sized: bool) -> str:
    text = f"  {size.parameters:>10,}  {size.macs:>10,}  {size.bytes:>10,}" if size is not None and sized else ""
    return text + (f"  {milliseconds:8.3f}" if milliseconds is not None else "")


DEFAULTS = Settings(form=MASKED)


@takes_settings(DEFAULTS)
def curve(
    model: nn.Module,
    kind: Kind | str,
    at: Sequence[float],
    *,
    calibration: Iterable[Any],
    evaluate: Callable[[nn.Module], float],
    latency: bool = False,
    **keywords: Unpack[SettingsKeywords],
) -> Curve:
    """Compress one model to several sizes, and evaluate each.

    Args:
        model: The trained network, which is not changed.
        kind: What to remove, such as "filters".
        at: The fractions to remove.
        calibration: Batches, as in compress. The dense network's forward passes for refit are shared between all sizes.
        evaluate: A function from a model to a number; larger is better.
        latency: With form="removed", also measure the milliseconds of the example's batch.
        keywords: Settings, as in compress. form="masked" (the default) is the paper's protocol and gives metrics only;
            "removed" also gives sizes.

    Returns:
        The metric of the dense model and at every fraction: plain, refit, and which of them compress would choose. str() of it
        is a table.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sizes = curve(
    ...     model, "neurons", at=[0.5, 0.75], form="removed", calibration=[torch.randn(64, 4)], evaluate=lambda net: 1.0
    ... )
    >>> [point.costs.parameters for point in sizes.points]
    [30, 16]
    """
    kind = kind_of(kind)
    ratios = ratios_of(at, kind)
    metric = Metric(evaluate)
    settings = settings_from(curve, DEFAULTS, calibration, keywords)
    sized = settings.form == REMOVED
    if latency and not sized:
        raise ValueError("latency=True needs form='removed': a masked model is as slow as the dense one")
    pipeline = Pipeline(model, settings)
    dense = pipeline.dense
    example = pipeline.example
    dense_metric = metric.of_dense(copy.deepcopy(dense))
    stage = pipeline.stage(kind, dense)
    counts = [stage.counts_for(ratio) for ratio in ratios]
    judge = pipeline.judge if isinstance(pipeline.judge, Judge) else None
    points = []
    agreements = []  # of plain
    for ratio, kept in zip(ratios, counts, strict=True):  # one at a time: a plain model is evaluated and dropped
        cut = stage.cut(kept)
        lost = distance(dense, cut.model)
        agreements.append(WORST)
        try:
            pipeline.recover(dense, [cut], refit=False)
            if judge is not None:
                agreements[-1] = judge.agreement(cut.model)
            value = metric(cut.model)
        except NotFiniteError:
            value = math.nan  # too few units are left to compute finite outputs
        size = costs(cut.model, example) if sized else None
        milliseconds = measure(cut.model, example).median if latency else None
        points.append(CurvePoint(ratio, value, None, lost, size, milliseconds))
    if settings.refit:
        cuts = [stage.cut(kept) for kept in counts]
        pipeline.recover(dense, cuts, refit=True, fitting=None if judge is None else judge.fitting)
        for i, cut in enumerate(cuts):
            choice = None if judge is None else judge.choice(agreements[i], judge.agreement(cut.model))
            points[i] = replace(points[i], refit=metric(cut.model), agreements=choice)
    dense_milliseconds = measure(dense, example).median if latency else None
    notes = in_words(pipeline.preparation.untouched)
    if pipeline.is_synthetic:
        notes.append(f"note: {because(Cause.SYNTHETIC)}")
    if isinstance(pipeline.judge, Reason):
        notes.append(f"note: {pipeline.judge}")
    return Curve(
        kind.name, settings.form, dense_metric, costs(dense, example), dense_milliseconds, tuple(points), tuple(notes)
    )


def distance(dense: nn.Module, small: nn.Module) -> float:
    """Return ||W - C(W)|| / ||W|| over all convolutions and linear layers; removed weights count as zero."""
    lost = 0.0
    total = 0.0
    for name, layer in dense.named_modules():
        if not is_layer(layer) or not isinstance(layer.weight, nn.Parameter):
            continue
        before = as_matrices(layer).detach().double()
        now = _weight(small.get_submodule(name))
        energy = float(before.square().sum())
        total += energy
        same_shape = now.shape == before.shape
        lost += float((before - now).square().sum()) if same_shape else energy - float(now.square().sum())
    return math.sqrt(max(lost, 0.0) / total) if total else 0.0


def _weight(layer: nn.Module) -> Tensor:
    """Return the weight as matrices in float64; of two layers for one, their product."""
    with torch.no_grad():
        if isinstance(layer, nn.Sequential):
            return as_matrices(layer[1]).double() @ as_matrices(layer[0]).double()
        return as_matrices(layer, weight_of(layer)).double()
