"""The elastic artifact: one folder from which a network is loaded at any size, in about a second and without data.

plan.json               the dense architecture, what belongs together, and for every stored size its costs; small
model.safetensors       the dense weights, once, and under names that begin with a dot
                          .order.*           the magnitudes that order the units: any count is a prefix of that order
                          .probe.*           what the dense network computes on random inputs, which is checked when it is loaded
                          .size.I.probe.*    what stored size I computes
                          .statistics.I.*    of stored size I: BatchNorm statistics of the channels that stay; in networks
                                             without batch norms, a factor and a bias per channel that stays
refit-0.7.safetensors   the weights of a size whose remaining weights were fitted, if that was asked for
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

from torch import nn

from sparsefw.compression.amounts import ratios_of
from sparsefw.compression.artifact import stage_record
from sparsefw.compression.artifact.files import digest_of, replaced_folder, sha256, write_json, write_tensors
from sparsefw.compression.artifact.folder import built_from, is_artifact, state_of
from sparsefw.compression.artifact.packing import OWN, pack, unique_tensors
from sparsefw.compression.artifact.plan import Plan
from sparsefw.compression.artifact.probe import Probe, note_of, probe_of
from sparsefw.compression.artifact.shapes import countable_shapes
from sparsefw.compression.artifact.statistics import Statistics
from sparsefw.compression.cost import costs
from sparsefw.compression.kinds import Stage
from sparsefw.compression.metric import Metric
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.reasons import Reason
from sparsefw.compression.recovery.choice import Judge
from sparsefw.compression.recovery.cut_network import CutNetwork
from sparsefw.compression.settings import Settings, SettingsKeywords, settings_from, takes_settings
from sparsefw.environment import environment
from sparsefw.kinds import FILTERS, Kind, kind_of
from sparsefw.recovery_words import REFIT

ELASTIC_FORMAT = "sparsefw-elastic"
SCHEMA = 4
WEIGHTS_FILE = "model.safetensors"
STATISTICS = f"{OWN}statistics."
SIZE = f"{OWN}size."
HEADER_KEYS = {
    "kind",
    "model",
    "state",
    "prepared",
    "input",
    "probe",
    "dense",
    "order",
    "statistics",
    "points",
    "sha256",
}
FORM_KEYS = {"costs", "metric"}
POINT_KEYS = {"ratio", "kept", "plain", "refit"}
DEFAULTS = Settings()


@takes_settings(DEFAULTS)
def save_elastic(
    model: nn.Module,
    folder: str | os.PathLike[str],
    kind: Kind | str = FILTERS.name,
    at: Sequence[float] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    *,
    calibration: Iterable[Any],
    evaluate: Callable[[nn.Module], float] | None = None,
    **keywords: Unpack[SettingsKeywords],
) -> None:
    """Write a folder from which `load` cuts the network to any size: the dense weights, and statistics at several ratios.

    Sizes with the dense weights and statistics of their own take hardly any space. Refit sizes store weights of their own: by
    default only where refit is the better recovery, which it seldom is for networks that were trained over sizes.

    Args:
        model: The trained network, which is not changed.
        folder: Where to write. An artifact that is already there is replaced as a whole.
        kind: What to remove, such as "filters".
        at: The fractions to remove at which statistics, and refit weights, are stored.
        calibration: Batches, as in compress.
        evaluate: A function from a model to a number, which is recorded for every stored size.
        keywords: Settings, as in compress.
    """
    kind = kind_of(kind)
    ratios = sorted(set(ratios_of(at, kind)))
    metric = None if evaluate is None else Metric(evaluate)
    settings = settings_from(save_elastic, DEFAULTS, calibration, keywords)
    pipeline = Pipeline(model, settings)
    dense = pipeline.dense
    state = state_of(dense)
    probe = probe_of(dense, pipeline.example)
    stage = pipeline.stage(kind, dense)
    counts = [stage.counts_for(ratio) for ratio in ratios]
    points: list[dict[str, Any]] = []
    layers: dict[str, list[str]] = {}
    judge = pipeline.judge if isinstance(pipeline.judge, Judge) else None
    agreements: list[float] = []  # of plain
    order, tensors = stage_record.to_file(stage.record(settings.form))
    if isinstance(probe, Probe):
        tensors |= probe.outputs(dense)
    for i, (ratio, kept) in enumerate(zip(ratios, counts, strict=True)):
        cut = stage.cut(kept)
        pipeline.recover(dense, [cut], refit=False)
        if judge is not None:
            agreements.append(judge.agreement(cut.model))
        statistics = Statistics.of_cut(cut)
        layers = statistics.layers
        tensors |= {f"{STATISTICS}{i}.{field}": tensor for field, tensor in statistics.to_file().items()}
        if isinstance(probe, Probe):
            tensors |= {f"{SIZE}{i}{name}": output for name, output in probe.outputs(cut.model).items()}
        points.append({"ratio": ratio, "kept": kept, "plain": _measured(pipeline, cut, metric), "refit": None})
    with replaced_folder(Path(folder).resolve(), is_artifact) as aside:
        for point, fitted in zip(points, _refitted(pipeline, stage, counts, agreements), strict=True):
            if fitted is not None:
                name = f"refit-{point['ratio']!r}.safetensors"
                outputs = probe.outputs(fitted.model) if isinstance(probe, Probe) else {}
                write_tensors(aside / name, {**pack(unique_tensors(fitted.model)), **outputs})
                own_state = state_of(fitted.model)  # before the metric, which may change the mode
                point["refit"] = {"file": name, "state": own_state, **_measured(pipeline, fitted, metric)}
        write_tensors(aside / WEIGHTS_FILE, {**unique_tensors(dense), **tensors})
        header = {
            **_header(pipeline, kind, state, probe),
            "order": order,
            "statistics": layers,
            "points": points,
            "sha256": {path.name: sha256(path) for path in sorted(aside.iterdir())},
        }
        write_json(aside / "plan.json", {**header, "digest": digest_of(header)})


def _header(pipeline: Pipeline, kind: Kind, state: dict[str, Any], probe: Probe | Reason) -> dict[str, Any]:
    """Return what plan.json says of the dense network."""
    dense_costs = costs(pipeline.dense, pipeline.example)
    before = pipeline.preparation
    return {
        "format": ELASTIC_FORMAT,
        "schema": SCHEMA,
        "kind": kind.name,
        "model": built_from(pipeline.source),
        "state": state,
        "prepared": Plan(before.edits, (*before.untouched, *note_of(probe))).to_json(),
        "input": countable_shapes(pipeline.dense, pipeline.example, dense_costs.macs),
        "probe": probe.to_json() if isinstance(probe, Probe) else None,
        "dense": asdict(dense_costs),
        **environment(),
    }


def _refitted(
    pipeline: Pipeline, stage: Stage, counts: Sequence[Sequence[int]], agreements: Sequence[float]
) -> Sequence[CutNetwork | None]:
    """Return the network of every size that gets weights of its own; None for sizes that are plain only.

    Args:
        agreements: of the plain sizes, where the better recovery is to be chosen.
    """
    if not pipeline.settings.refit:
        return [None] * len(counts)
    cuts = [stage.cut(kept) for kept in counts]
    judge = pipeline.judge
    if not isinstance(judge, Judge):
        pipeline.recover(pipeline.dense, cuts, refit=True)
        return cuts
    pipeline.recover(pipeline.dense, cuts, refit=True, fitting=judge.fitting)
    choices = [judge.choice(plain, judge.agreement(cut.model)) for plain, cut in zip(agreements, cuts, strict=True)]
    return [cut if choice.chosen == REFIT else None for choice, cut in zip(choices, cuts, strict=True)]


def _measured(pipeline: Pipeline, cut: CutNetwork, metric: Metric | None) -> dict[str, Any]:
    """Return the costs and the metric of a size; None for a metric of NaN or inf, which JSON does not have."""
    value = None if metric is None else metric(cut.model)
    finite = value is not None and math.isfinite(value)
    return {"costs": asdict(costs(cut.model, pipeline.example)), "metric": value if finite else None}
