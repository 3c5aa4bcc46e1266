"""Targets: how small the model must become, and the search for the level of compression that reaches it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from sparsefw.compression import units
from sparsefw.compression.amounts import Amounts
from sparsefw.compression.artifact.plan import Untouched
from sparsefw.compression.bisection import bisect
from sparsefw.compression.cost import costs
from sparsefw.compression.latency import LatencyTable, estimate
from sparsefw.compression.metric import Metric
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.recovery.batches import batch_size
from sparsefw.compression.recovery.calibration import NotFiniteError, device_of, mean_over_ranks
from sparsefw.compression.target_gaps import MUCH, Weights, largest_parts, step_note, weights_for
from sparsefw.kinds import Kind
from sparsefw.text import did_you_mean

COSTS = {"params": "parameters", "macs": "macs", "bytes": "bytes"}  # the word in a target -> the field of Costs
LATENCY = "latency"
DROP = "drop"
METRICS = (*COSTS, LATENCY, DROP)
MOST = 1 - 2**-20  # the largest fraction of units that a search removes
SEARCH_STEPS = 20


class UnreachableError(ValueError):
    """No level of compression meets the target; the message gives the best value that can be reached."""


@dataclass(frozen=True)
class Target:
    """params, macs, bytes, latency: at most this of the dense model's; drop: the metric falls by at most this.

    value   without a unit, a fraction of the dense model's; of a drop, in the metric's own units
    unit    of the value, such as "k", "kB", "ms", "%" or "pt" (units.py)
    whole   what the dense model has, and words: the target as it was written, once it is a fraction of that
    """

    metric: str
    value: float
    unit: str = ""
    whole: float | None = field(default=None, compare=False)
    words: str = field(default="", compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the target in a text; ValueError, in one line, if it is not one.

        >>> Target.parse("macs=0.3")
        Target(metric='macs', value=0.3, unit='', whole=None)
        >>> str(Target.parse("params=30k"))
        'params=30k'
        """
        metric, equals, value = str(text).partition("=")
        metric = metric.strip()
        if metric not in METRICS or not equals:
            hint = did_you_mean(metric, METRICS) if equals else ""
            forms = ", ".join(f"{m}=0.3" for m in METRICS[:4])
            raise ValueError(f"target {text!r}: write one of {forms}, drop=0.01, or {units.EXAMPLES['params']}{hint}")
        try:
            number, unit = units.parse_quantity(metric, value)
        except ValueError as error:
            raise ValueError(f"target {text!r}: {error}") from None
        if metric == DROP and not number >= 0:
            raise ValueError(f"target {text!r}: the drop must be at least 0")
        if metric != DROP and unit == units.PERCENT and not 0 < number <= 100:
            raise ValueError(f"target {text!r}: a share of the dense model's {metric} must be in (0, 100] %")
        if metric != DROP and unit == "" and not 0 < number <= 1:
            raise ValueError(
                f"target {text!r}: a fraction of the dense model's {metric} must be in (0, 1]; "
                f"other numbers have a unit: {units.EXAMPLES[metric]}"
            )
        if not 0 <= number < math.inf or (metric != DROP and not number):
            raise ValueError(f"target {text!r}: must be above 0, and finite")
        return cls(metric, number, unit)

    def of_dense(self, dense: float) -> Target:
        """Return the same target with a value that can be compared: a fraction of `dense`, which is the dense model's cost.

        Of a drop, `dense` is the metric, and the value how far it may fall.
        """
        return replace(self, value=self._comparable(dense), whole=dense, words=str(self))

    def _comparable(self, dense: float) -> float:
        if self.metric != DROP:
            if self.unit == units.PERCENT:
                return self.value / 100
            return self.value * units.ABSOLUTE[self.metric][self.unit] / dense if self.unit else self.value
        if self.unit and not 0 < dense <= 100:
            raise ValueError(
                f"target {self}: the dense model's metric is {dense:g}, of which there is no percentage; "
                "give a drop in the metric's own units, without % or pt"
            )
        if self.unit == units.POINT:  # a metric of at most 1 is a fraction
            return self.value if dense > 1 else self.value / 100
        return self.value / 100 * dense if self.unit else self.value

    def reached(self, share: float) -> str:
        """Return a share of the dense model in words, also in the unit of the target."""
        words = f"{share:.4g} of the dense model"
        if self.unit not in units.ABSOLUTE.get(self.metric, ()) or self.whole is None:
            return words
        return f"{words}, {self.metric}={units.in_unit(self.metric, share * self.whole, self.unit)}"

    def __str__(self) -> str:
        return self.words or f"{self.metric}={self.value:.10g}{self.unit}"


def is_drop(target: str | None) -> bool:
    """Return whether a target holds a metric, so that it needs labels; a text that is no target is refused."""
    return target is not None and Target.parse(target).metric == DROP


@dataclass(frozen=True)
class Level:
    """The fraction to remove that meets a target, with measurements of the dense and of the chosen model, and notes."""

    value: float
    measured: dict[str, Any] = field(default_factory=dict)
    notes: tuple[Untouched, ...] = ()


def find_level(
    pipeline: Pipeline,
    target: Target,
    amounts: Amounts,
    driven: Sequence[Kind],
    evaluate: Callable[[nn.Module], float] | None,
) -> Level:
    """Find the level that meets the target.

    Args:
        pipeline: Compresses to any level.
        target: What must be reached.
        amounts: Fractions of other kinds to remove, fixed beforehand.
        driven: The kinds of which the level is removed.
        evaluate: The metric, for a target of a drop.
    """

    def compressed(level: float, recovering: bool) -> nn.Module:
        return pipeline.compress({**amounts, **dict.fromkeys(driven, level)}, recovering)[0]

    weights = weights_for(target.metric, pipeline.example)

    def largest() -> str:
        small, plan = pipeline.compress({**amounts, **dict.fromkeys(driven, MOST)}, recovering=False)
        return largest_parts(pipeline.dense, small, plan.untouched, weights)

    if target.metric == DROP:
        assert evaluate is not None
        return _level_for_drop(pipeline, target, Metric(evaluate), lambda level: compressed(level, True))
    if target.metric == LATENCY:
        return _level_for_latency(pipeline, target, lambda level: compressed(level, False), largest)
    cost = COSTS[target.metric]
    dense_cost = getattr(costs(pipeline.dense, pipeline.example), cost)
    target = target.of_dense(dense_cost)

    def share(level: float, recovering: bool = False) -> float:
        return float(getattr(costs(compressed(level, recovering), pipeline.example), cost) / dense_cost)

    level = least_compression(share, target, largest)
    # Recovery after an earlier kind may change what a later one, allocated by its weights, takes from which layer.
    kinds = {*amounts, *driven}
    counts_zeros = cost == "bytes" and not all(kind.shrinks for kind in kinds)
    by_weights = pipeline.settings.allocation not in (None, "uniform") or counts_zeros
    if len(kinds) > 1 and by_weights and share(level, recovering=True) > target.value:
        level = least_compression(lambda level: share(level, recovering=True), target, largest)
        return Level(level)
    return Level(level, notes=_notes(target, level, share, lambda level: compressed(level, False), weights))


def _level_for_drop(
    pipeline: Pipeline, target: Target, metric: Metric, compressed: Callable[[float], nn.Module]
) -> Level:
    measured = {0.0: mean_over_ranks(metric.of_dense(copy.deepcopy(pipeline.dense)))}

    def drop(level: float) -> float:
        try:
            measured[level] = mean_over_ranks(metric(compressed(level)))
        except NotFiniteError:  # too few units are left to compute finite outputs
            return math.inf
        return measured[0.0] - measured[level]

    level = most_compression(drop, target.of_dense(measured[0.0]))
    return Level(level, {"metric": [measured[0.0], measured[level]]})


def _notes(
    target: Target,
    level: float,
    share: Callable[[float], float],
    compressed: Callable[[float], nn.Module],
    weights: Weights,
) -> tuple[Untouched, ...]:
    """Return a note where much of the target is left over: networks come in steps."""
    reached = share(level)
    if not level or reached >= (1 - MUCH) * target.value:
        return ()
    next_level = level - MOST / 2**SEARCH_STEPS  # the last one that the search has found to be too large
    return (step_note(str(target), reached, share(next_level), compressed(level), compressed(next_level), weights),)


def _level_for_latency(
    pipeline: Pipeline, target: Target, compressed: Callable[[float], nn.Module], largest: Callable[[], str]
) -> Level:
    table = LatencyTable(device_of(pipeline.dense))
    dense = mean_over_ranks(estimate(pipeline.dense, pipeline.example, table))

    def milliseconds(level: float) -> float:
        return mean_over_ranks(estimate(compressed(level), pipeline.example, table))

    level = least_compression(lambda level: milliseconds(level) / dense, target.of_dense(dense), largest)
    measured = {"milliseconds": [dense, milliseconds(level)], "batch": batch_size(pipeline.example)}
    return Level(level, measured)


def least_compression(
    share: Callable[[float], float], target: Target, largest: Callable[[], str] = lambda: ""
) -> float:
    """Return the smallest level at which `share` of the dense cost, which never rises with the level, meets the target.

    Args:
        share: From a level to the share of the dense cost.
        target: What must be reached.
        largest: Returns the largest parts of the smallest network, for the message where it is too large.
    """
    if share(0.0) <= target.value:
        return 0.0
    best = share(MOST)
    if best > target.value:
        parts = largest()
        raise UnreachableError(
            f"target {target} cannot be reached: with these settings the smallest is {target.reached(best)}"
            + (f"; the largest parts of it: {parts}" if parts else "")
        )
    return bisect(lambda level: share(level) <= target.value, 0.0, MOST, SEARCH_STEPS)[1]


def most_compression(drop: Callable[[float], float], target: Target, steps: int = 7) -> float:
    """Return the largest level, of those tried by bisection, at which the drop of the metric meets the target."""
    if drop(MOST) <= target.value:
        return MOST
    return bisect(lambda level: not drop(level) <= target.value, 0.0, MOST, steps)[0]
