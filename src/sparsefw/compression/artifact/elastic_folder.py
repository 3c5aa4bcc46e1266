"""An open elastic folder: the dense network with its weights, from which one network of any size is cut."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.artifact import stage_record
from sparsefw.compression.artifact.elastic import SIZE, STATISTICS, WEIGHTS_FILE
from sparsefw.compression.artifact.files import ArtifactError, check_hashes, read_packed, read_tensors
from sparsefw.compression.artifact.folder import (
    Constructor,
    fill,
    fitting,
    loaded,
    read_plan,
    rebuilt,
)
from sparsefw.compression.artifact.packing import packed_bytes
from sparsefw.compression.artifact.plan import Plan, Untouched
from sparsefw.compression.artifact.probe import check
from sparsefw.compression.artifact.shapes import macs_by_shapes, without_data
from sparsefw.compression.artifact.statistics import Statistics, interpolated
from sparsefw.compression.compressed import Compressed
from sparsefw.compression.cost import Costs, parameters
from sparsefw.compression.kinds import Stage, StageRecord, restored_stage
from sparsefw.compression.kinds.stage import kept_rows
from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.settings import MASKED
from sparsefw.compression.structure.surgery import size
from sparsefw.compression.target import COSTS, Target, UnreachableError, least_compression
from sparsefw.kinds import Kind
from sparsefw.text import first_line

Point = Mapping[str, Any]  # a stored size, as it is in plan.json


@dataclass(frozen=True)
class ElasticFolder:
    """An open folder. It gives one network: the dense one is cut in place.

    points     the stored sizes
    model      the dense network; its weights are mapped into memory, and what is cut off is never copied
    stage      how many units stay, and which
    dense      the statistics of the dense network
    tensors    all that model.safetensors holds
    """

    path: Path
    header: Mapping[str, Any]
    kind: Kind
    points: Sequence[Point]
    model: nn.Module
    stage: Stage
    dense: Statistics
    tensors: Mapping[str, Tensor]

    @property
    def is_masked(self) -> bool:
        """Whether channels are zeroed in place: between statistics of a channel and of zeros, nothing can be interpolated."""
        return bool(self.header["order"]["form"] == MASKED)

    @staticmethod
    def _ratios(points: Sequence[Point]) -> str:
        return ", ".join(f"{point['ratio']:g}" for point in points)

    def plain(self, point: Point, target: str | None) -> Compressed:
        """Return a stored size with the dense weights and its own statistics."""
        plan = self._plan(point["kept"])
        small = self._cut(plan, self._statistics(point), point["ratio"], target, point["plain"])
        self._check(f"{SIZE}{list(self.points).index(point)}")
        return small

    def between(self, ratio: float, kept: Sequence[int], target: str | None) -> Compressed:
        """Return a size that is not stored, with the dense weights and statistics from the stored sizes around it."""
        plan = self._plan(kept)
        if self.is_masked:
            raise ArtifactError(
                f"{self.path} has masked networks, at {self.kind.name} = {self._ratios(self.points)} only"
            )
        self._check()
        if kept == self.stage.counts(0.0):
            return self._cut(plan, self.dense, ratio, target, {"costs": self.header["dense"], "metric": None})
        larger = max((p for p in self.points if p["ratio"] < ratio), key=_ratio, default=None)
        smaller = min((p for p in self.points if p["ratio"] > ratio), key=_ratio, default=None)
        start = 0.0 if larger is None else larger["ratio"]
        start_statistics = self.dense if larger is None else self._statistics(larger)
        rows = kept_rows(self.model, plan.edits)
        if smaller is None:
            statistics = interpolated(self.dense, start_statistics, start_statistics, 0.0, rows)
            reason = because(Cause.STATISTICS_OF_LARGER, ratio=f"{start:g}")
        else:
            share = (ratio - start) / (smaller["ratio"] - start)
            statistics = interpolated(self.dense, start_statistics, self._statistics(smaller), share, rows)
            reason = because(Cause.STATISTICS_BETWEEN, larger=f"{start:g}", smaller=f"{smaller['ratio']:g}")
        notes = [Untouched.because("statistics", reason)]
        if self.header["input"] is None:
            notes.append(Untouched.because("MACs", because(Cause.MACS_OF_LARGER, ratio=f"{start:g}")))
        plan = replace(plan, untouched=(*plan.untouched, *notes))
        of_larger = self.header["dense"] if larger is None else larger["plain"]["costs"]
        small = self._cut(plan, statistics, ratio, target, {"costs": of_larger, "metric": None}, count_costs=True)
        self._warn(ratio, notes[0].reason)
        return small

    def refit(self, point: Point, target: str | None) -> Compressed:
        """Return a stored size with the weights that were fitted for it."""
        entry = point["refit"]
        check_hashes(self.path, self.header.get("sha256"), [entry["file"]])
        plan = self._plan(point["kept"])
        with fitting(self.path):
            plan.reshape(self.model)
        tensors = read_packed(self.path / entry["file"])
        fill(self.path, self.model, tensors, entry["state"])
        check(self.path, self.model, self.header["probe"], tensors)
        return self._loaded(plan, point["ratio"], target, entry, refit=True)

    def refit_point(self, ratio: float | None, target: Target | None) -> Point:
        """Return the stored refit size of this ratio, or the largest that meets a target."""
        points = [point for point in self.points if point["refit"] is not None]
        if not points:
            raise ArtifactError(f"{self.path} has no refit points; refit=False cuts to any ratio")
        if target is not None:
            return self._largest_stored(target, points, "refit")
        assert ratio is not None
        kept = self.stage.counts_for(ratio)
        for point in points:
            if point["kept"] == kept:
                return point
        raise ArtifactError(
            f"{self.path} has refit points at {self.kind.name} = {self._ratios(points)} only; refit=False cuts to any ratio"
        )

    def ratio_for(self, target: Target) -> float:
        """Return the smallest ratio to remove that meets a target; no data is needed for it."""
        share = self._shares(target)
        if share is None:
            return float(self._largest_stored(target, self.points, "plain")["ratio"])
        try:
            return least_compression(share, target)
        except UnreachableError as error:
            raise ArtifactError(f"{self.path}: {error}") from None

    def _shares(self, target: Target) -> Callable[[float], float] | None:
        """Return the function from a ratio to its share of the dense costs; None if only stored sizes are known."""
        uncountable = target.metric == "macs" and self.header["input"] is None
        if self.kind.only_ratio is not None or self.is_masked or uncountable:
            return None
        cost = COSTS[target.metric]
        skeleton = without_data(self.model)

        def count(ratio: float) -> float:
            plan = self._plan(self.stage.counts_for(ratio))
            if cost == "bytes":  # zeros among the weights count
                small = copy.deepcopy(self.model)
                plan.apply(small)
                return packed_bytes(small)
            small = copy.deepcopy(skeleton)
            plan.reshape(small)
            return parameters(small) if cost == "parameters" else self._macs(small)

        return lambda ratio: count(ratio) / self.header["dense"][cost]

    def _largest_stored(self, target: Target, points: Sequence[Point], form: str) -> Point:
        cost = COSTS[target.metric]
        allowed = target.value * self.header["dense"][cost]
        small_enough = [point for point in points if point[form]["costs"][cost] <= allowed]
        if not small_enough:
            least = min(point[form]["costs"][cost] for point in points) / self.header["dense"][cost]
            raise ArtifactError(
                f"{self.path}: target {target} cannot be reached: the smallest stored {form} size is {target.reached(least)}"
            )
        return max(small_enough, key=lambda point: int(point[form]["costs"][cost]))

    def _check(self, prefix: str = "") -> None:
        """Check what the network computes: as a stored size, by the prefix of what is stored of it, or as the dense one."""
        stored = {name.removeprefix(prefix): t for name, t in self.tensors.items() if name.startswith(prefix)}
        check(self.path, self.model, self.header["probe"], stored)

    def _plan(self, kept: Sequence[int]) -> Plan:
        with fitting(self.path):
            return self.stage.plan(kept)

    def _macs(self, small: nn.Module) -> int:
        try:
            return macs_by_shapes(small, self.header["input"])
        except (ValueError, RuntimeError, TypeError, ZeroDivisionError) as error:
            raise ArtifactError(f"{self.path / 'plan.json'}: its input does not fit: {first_line(error)}") from None

    def _statistics(self, point: Point) -> Statistics:
        """Return the statistics of a stored size."""
        start = f"{STATISTICS}{list(self.points).index(point)}."
        joined = {name.removeprefix(start): t for name, t in self.tensors.items() if name.startswith(start)}
        with fitting(self.path):
            rows = kept_rows(self.model, self.stage.edits(point["kept"]))
            return Statistics.from_file(joined, self.dense, rows)

    def _cut(
        self,
        plan: Plan,
        statistics: Statistics,
        ratio: float,
        target: str | None,
        entry: Mapping[str, Any],
        count_costs: bool = False,
    ) -> Compressed:
        with fitting(self.path):
            plan.apply(self.model)
            statistics.write(self.model)
        if self.header["state"].get("channels_last"):
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if count_costs:
            macs = entry["costs"]["macs"] if self.header["input"] is None else self._macs(self.model)
            counted = Costs(parameters(self.model), macs, packed_bytes(self.model))
            entry = {**entry, "costs": asdict(counted)}
        return self._loaded(plan, ratio, target, entry)

    def _loaded(
        self, plan: Plan, ratio: float, target: str | None, entry: Mapping[str, Any], refit: bool = False
    ) -> Compressed:
        arguments = self.kind.compress_arguments(ratio)
        by = [] if target is None else list(arguments)
        request = {**arguments, "removed": arguments, "target": target, "by": by, "refit": refit}
        before = read_plan(self.path, self.header["prepared"])
        plan = Plan((*before.edits, *plan.edits), (*plan.untouched, *before.untouched), request)
        certificate = {
            "costs": {"dense": self.header["dense"], "compressed": entry["costs"]},
            "metrics": {"compressed": entry["metric"]},
        }
        return loaded(self.path, self.model, plan, certificate)

    def _warn(self, ratio: float, what: str) -> None:
        fitted = [point for point in self.points if point["refit"] is not None]
        more = f"; weights were fitted at {self._ratios(fitted)}" if fitted else ""
        warnings.warn(f"{self.kind.name}={ratio:.4g} is not stored: its statistics are {what}{more}", stacklevel=5)


def open_elastic(
    path: Path, header: Mapping[str, Any], constructor: Constructor | None, kind: Kind, points: Sequence[Point]
) -> ElasticFolder:
    """Return the open folder, checked."""
    check_hashes(path, header.get("sha256"), [WEIGHTS_FILE])
    tensors = read_tensors(path / WEIGHTS_FILE)
    # The memory format is set last: setting it copies the weights, and by then they are fewer.
    state = {**header["state"], "channels_last": False}
    model = rebuilt(path, header.get("model"), constructor, read_plan(path, header.get("prepared")), tensors, state)
    try:
        record = stage_record.from_file(header.get("order"), tensors)
    except ValueError as error:
        raise ArtifactError(f"{path / 'plan.json'}: {error}") from None
    with fitting(path):
        _check_positions(model, record)
        stage = restored_stage(kind, model, record)
        dense = Statistics.of_dense(model, header["statistics"])
        if any(len(point["kept"]) != len(stage.unit_sets) for point in points):
            raise ValueError("a size does not count the units of every set")
    return ElasticFolder(path, header, kind, points, model, stage, dense, tensors)


def _check_positions(model: nn.Module, record: StageRecord) -> None:
    """Raise IndexError if channels are said to be where a layer has none."""
    for channels in record.channels:
        for site in channels.sites:
            largest = max((position for slot in site.slots for position in slot), default=-1)
            if largest >= size(model, site.layer, site.side):
                raise IndexError(f"{site.layer} has no channel {largest}")


def _ratio(point: Point) -> float:
    return float(point["ratio"])
