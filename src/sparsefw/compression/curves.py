"""Accuracy against size from one trained model: every ratio, plain and refit, without retraining."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.cost import Costs, costs
from sparsefw.compression.latency import measure
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.progress import Progress
from sparsefw.compression.recovery.calibration import NotFiniteError
from sparsefw.compression.settings import Metric, ratios_of, settings_of
from sparsefw.compression.structure.layers import as_matrices, is_layer, weight_of
from sparsefw.kinds import Kind, kind_of


@dataclass(frozen=True)
class CurvePoint:
    """One size. plain: BatchNorm statistics recomputed only; refit: fitted in closed form; distance: ||W - C(W)|| / ||W||."""

    ratio: float
    plain: float
    refit: float | None
    distance: float
    costs: Costs | None = None
    milliseconds: float | None = None


@dataclass(frozen=True)
class Curve:
    """The metric of the dense model (statistics recomputed) and at every ratio removed. Masked curves have no sizes."""

    kind: str
    form: str
    dense: float
    dense_costs: Costs
    dense_milliseconds: float | None
    points: tuple[CurvePoint, ...]

    def __str__(self) -> str:
        sized, timed = self.form == "removed", self.dense_milliseconds is not None
        header = f"{self.kind + ' removed':>16}  {'plain':>7}  {'refit':>7}  {'distance':>8}"
        header += "  parameters        MACs       bytes" * sized + "        ms" * timed
        whole = _sizes(self.dense_costs, self.dense_milliseconds, sized)
        lines = [header, f"{'dense':>16}  {self.dense:7.2f}" + " " * 19 + whole]
        for p in self.points:
            refit = f"{p.refit:7.2f}" if p.refit is not None else "      -"
            sizes = _sizes(p.costs, p.milliseconds, sized)
            share = f"{100 * p.ratio:.3g}%"
            lines.append(f"{share:>16}  {p.plain:7.2f}  {refit}  {p.distance:8.3f}{sizes}")
        return "\n".join(line.rstrip() for line in lines)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _sizes(size: Costs | None, milliseconds: float | None, sized: bool) -> str:
    text = f"  {size.parameters:>10,}  {size.macs:>10,}  {size.bytes:>10,}" if size is not None and sized else ""
    return text + (f"  {milliseconds:8.3f}" if milliseconds is not None else "")


def curve(
    model: nn.Module,
    kind: Kind | str,
    at: Sequence[float],
    *,
    calibration: Iterable[Any],
    evaluate: Callable[[nn.Module], float],
    form: str = "masked",
    example: Any = None,
    refit: bool = True,
    score: str = "l1",
    allocation: str | None = None,
    include: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    round_to: int = 1,
    latency: bool = False,
    progress: Progress | bool | None = None,
) -> Curve:
    """Compress one model to every ratio in `at` by a kind such as "filters", and evaluate each. Arguments as in compress.

    form="masked" is the paper's protocol and tells accuracies only; "removed" also tells sizes, and with latency=True measured
    milliseconds of the example's batch. The dense network's forward passes for refit are shared between all points.
    """
    kind = kind_of(kind)
    ratios = ratios_of(at, kind)
    metric = Metric(evaluate)
    if latency and form != "removed":
        raise ValueError("latency=True needs form='removed': a masked model is as slow as the dense one")
    settings = settings_of(form, score, allocation, include, exclude, round_to, refit)
    work = Pipeline(model, example, calibration, settings, progress)
    dense, stage = metric.of_dense(copy.deepcopy(work.dense)), work.stage(kind, work.dense)
    counts = [work.counts(stage, ratio) for ratio in ratios]

    def timed(net: nn.Module) -> float | None:
        return measure(net, work.example).median if latency and form == "removed" else None

    plain = []
    for kept in counts:  # one at a time: a plain point is evaluated and let go
        cut = stage.cut(kept)
        lost = distance(work.dense, cut.model)
        try:
            work.recover(work.dense, [cut], refit=False)
            value = metric(cut.model)
        except NotFiniteError:
            value = math.nan  # so much is gone that nothing can be computed any more
        size = costs(cut.model, work.example) if form == "removed" else None
        plain.append((value, lost, size, timed(cut.model)))
    fitted: list[float | None] = [None] * len(ratios)
    if refit:
        cuts = [stage.cut(kept) for kept in counts]
        work.recover(work.dense, cuts, refit=True)
        fitted = [metric(cut.model) for cut in cuts]
    points = tuple(
        CurvePoint(ratio, value, better, lost, size, ms)
        for ratio, (value, lost, size, ms), better in zip(ratios, plain, fitted, strict=True)
    )
    return Curve(kind.name, form, dense, costs(work.dense, work.example), timed(work.dense), points)


def distance(dense: nn.Module, small: nn.Module) -> float:
    """||W - C(W)|| / ||W|| over all convolutions and linear layers, what is removed counted as zero."""
    lost, total = 0.0, 0.0
    for name, layer in dense.named_modules():
        if not is_layer(layer) or not isinstance(layer.weight, nn.Parameter):
            continue
        before = as_matrices(layer).detach().double()
        own = float(before.square().sum())
        total += own
        now = _weight(small.get_submodule(name))
        lost += float((before - now).square().sum()) if now.shape == before.shape else own - float(now.square().sum())
    return math.sqrt(max(lost, 0.0) / total) if total else 0.0


def _weight(layer: nn.Module) -> Tensor:
    with torch.no_grad():
        if isinstance(layer, nn.Sequential):
            return as_matrices(layer[1]).double() @ as_matrices(layer[0]).double()
        return as_matrices(layer, weight_of(layer)).double()
