"""The elastic artifact: one folder from which any of several sizes is loaded, in seconds and without data.

plan.json                  one point per size and form: ratio, plan, costs
model.safetensors          the dense weights; plain points are cut out of them when loaded
plain-0.7.safetensors      the BatchNorm statistics of a plain point; all weights in networks without BatchNorm
refit-0.7.safetensors      all weights of a refit point
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor, nn

from sparsefw.compression.amounts import KindAmounts, ratio_of, ratios_of
from sparsefw.compression.artifact.files import (
    ArtifactError,
    check_hashes,
    digest_of,
    read_json,
    read_tensors,
    replaced_folder,
    sha256,
    write_json,
    write_tensors,
)
from sparsefw.compression.artifact.folder import (
    ONE_SIZE_FORMAT,
    Constructor,
    built_from,
    dense_architecture,
    fill,
    is_artifact,
    load_artifact,
    loaded,
    read_plan,
    reshape,
    state_of,
)
from sparsefw.compression.artifact.packing import pack, unique_tensors, unpack
from sparsefw.compression.artifact.plan import Plan
from sparsefw.compression.compressed import Compressed
from sparsefw.compression.cost import costs
from sparsefw.compression.metric import Metric
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.recovery.batchnorm import has_batch_norm
from sparsefw.compression.recovery.cut_network import CutNetwork
from sparsefw.compression.settings import Settings, SettingsKeywords, settings_from, takes_settings
from sparsefw.compression.target import COSTS, Target
from sparsefw.environment import environment
from sparsefw.kinds import FILTERS, Kind, is_pattern, kind_of

ELASTIC_FORMAT = "sparsefw-elastic"
SCHEMA = 1
PLAIN = "plain"
REFIT = "refit"
POINT_KEYS = {"ratio", "form", "file", "costs", "metric", "state", "plan"}
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
    """Compress one model to several sizes, plain and refit, and write all of them into one folder.

    Args:
        model: The trained network, which is not changed.
        folder: Where to write. An artifact that is already there is replaced as a whole.
        kind: What to remove, such as "filters".
        at: The fractions to remove.
        calibration: Batches, as in compress.
        evaluate: A function from a model to a number, which is recorded for every size.
        keywords: Settings, as in compress.
    """
    kind = kind_of(kind)
    ratios = sorted(set(ratios_of(at, kind)))
    metric = None if evaluate is None else Metric(evaluate)
    settings = settings_from(save_elastic, DEFAULTS, calibration, keywords)
    pipeline = Pipeline(model, settings)
    dense = pipeline.dense
    stage = pipeline.stage(kind, dense)
    counts = [stage.counts_for(ratio) for ratio in ratios]
    with replaced_folder(Path(folder).resolve(), is_artifact) as aside:
        write_tensors(aside / "model.safetensors", unique_tensors(dense))
        points = []
        for form in (PLAIN, REFIT) if settings.refit else (PLAIN,):
            cuts = [stage.cut(kept) for kept in counts]
            pipeline.recover(dense, cuts, refit=form == REFIT)
            for ratio, cut in zip(ratios, cuts, strict=True):
                # Matched moments change the weights of networks without BatchNorm, also in plain points.
                only_statistics = form == PLAIN and has_batch_norm(dense)
                state = state_of(cut.model)  # before the metric, which may change the mode
                name = f"{form}-{ratio!r}.safetensors"
                write_tensors(aside / name, _statistics(cut.model) if only_statistics else _packed(cut.model))
                point = {
                    "ratio": ratio,
                    "form": form,
                    "file": name,
                    "costs": asdict(costs(cut.model, pipeline.example)),
                    "metric": None if metric is None else _finite(metric(cut.model)),
                    "state": state,
                    "plan": _plan_of_point(kind, ratio, form, cut).to_json(),
                }
                points.append(point)
        header = {
            "format": ELASTIC_FORMAT,
            "schema": SCHEMA,
            "kind": kind.name,
            "model": built_from(model),
            "state": state_of(model),
            "unfused": Plan(tuple(pipeline.unfused)).to_json(),
            "dense": asdict(costs(dense, pipeline.example)),
            "points": points,
            "sha256": {path.name: sha256(path) for path in sorted(aside.iterdir())},
            **environment(),
        }
        write_json(aside / "plan.json", {**header, "digest": digest_of(header)})


def _plan_of_point(kind: Kind, ratio: float, form: str, cut: CutNetwork) -> Plan:
    arguments = kind.compress_arguments(ratio)
    return Plan(cut.edits, cut.untouched, {**arguments, "removed": arguments, "by": [], "refit": form == REFIT})


def _finite(value: float) -> float | None:
    """Return the value; None for NaN and inf, which JSON does not have."""
    return value if math.isfinite(value) else None


def _packed(model: nn.Module) -> dict[str, Tensor]:
    return pack(unique_tensors(model))


def _statistics(model: nn.Module) -> dict[str, Tensor]:
    buffers = dict(model.named_buffers())
    return {name: tensor for name, tensor in unique_tensors(model).items() if name in buffers}


def load(
    folder: str | os.PathLike[str],
    constructor: Constructor | None = None,
    *,
    target: str | None = None,
    refit: bool | None = None,
    **removed: Unpack[KindAmounts],
) -> Compressed:
    """Return the model in an artifact.

    Args:
        folder: The artifact of save or save_elastic.
        constructor: A function that builds the dense network; None: the model registry builds it by name.
        target: From an elastic artifact: load the largest size that meets a target such as "params=0.3".
        refit: From an elastic artifact: load refit sizes (True) or plain ones (False); None: refit ones if there are any.
        removed: From an elastic artifact: load the size nearest to, for example, filters=0.7.
    """
    path = Path(folder)
    try:
        wanted = dict(_wanted_size(word, amount) for word, amount in removed.items() if amount is not None)
    except ValueError as error:
        raise ArtifactError(str(error)) from None
    header = _header(path)
    for _ in range(10):
        try:
            if header["format"] == ELASTIC_FORMAT:
                point = _choose(path, header, wanted, target, refit)
                small = _load_point(path, header, constructor, point)
            elif wanted or target is not None:
                raise ArtifactError(f"{path} holds one size only; sizes can be chosen from an elastic artifact")
            else:
                small = load_artifact(path, header, constructor)
        except ArtifactError:
            newer = _header(path)
            if newer == header:
                raise
        else:
            newer = _header(path) if (path / "plan.json").exists() else header
            if newer == header:
                return small
        header = newer  # another process has just saved here: the files may be of two artifacts
    raise ArtifactError(f"{path} is being rewritten by another process; load it when that process has finished")


def _wanted_size(word: str, amount: Any) -> tuple[str, float]:
    """Return the name of a kind and the ratio that is asked for; weights="2:4" is the one ratio of the kind 2:4."""
    if isinstance(amount, str) and is_pattern(amount):
        pattern = kind_of(amount)
        assert pattern.only_ratio is not None
        return pattern.name, pattern.only_ratio
    return kind_of(word).name, ratio_of(word, amount)


def _header(path: Path) -> dict[str, Any]:
    """Return the content of plan.json, checked."""
    header = read_json(path / "plan.json")
    if not isinstance(header, dict) or header.get("format") not in (ONE_SIZE_FORMAT, ELASTIC_FORMAT):
        raise ArtifactError(f"{path / 'plan.json'} is not a sparsefw artifact")
    if header.get("schema") != SCHEMA:
        raise ArtifactError(
            f"{path}: schema {header.get('schema')!r} is not the one that this version reads ({SCHEMA})"
        )
    if header.get("digest") != digest_of(header):
        raise ArtifactError(f"{path / 'plan.json'} is damaged or was edited: its digest is not the one that was saved")
    return header


def _choose(
    path: Path, header: Mapping[str, Any], wanted: Mapping[str, float], target: str | None, refit: bool | None
) -> Mapping[str, Any]:
    """Return the point to load."""
    kind = header.get("kind")
    points = _points(path, header, refit)
    offered = ", ".join(f"{point['ratio']:g}" for point in points)
    if (target is None) == (not wanted) or len(wanted) > 1 or (wanted and kind not in wanted):
        raise ArtifactError(
            f"{path} offers {kind} = {offered}: ask for one of them, or for a target such as 'params=0.3'"
        )
    if target is not None:
        return _largest_that_meets(path, header, points, target)
    ratio = wanted[str(kind)]
    nearest = min(points, key=lambda point: abs(point["ratio"] - ratio))
    if abs(nearest["ratio"] - ratio) > 1e-9:
        warnings.warn(f"{kind}={ratio:g} is not stored; the nearest of {offered} is {nearest['ratio']:g}", stacklevel=3)
    return nearest


def _points(path: Path, header: Mapping[str, Any], refit: bool | None) -> list[Mapping[str, Any]]:
    """Return the stored points of one form: refit ones, or plain ones."""
    points = header.get("points")
    if not isinstance(points, list) or not points:
        raise ArtifactError(f"{path / 'plan.json'} lists no points")
    if not all(isinstance(point, dict) and set(point) >= POINT_KEYS for point in points):
        raise ArtifactError(f"{path / 'plan.json'} lists no points")
    wants_refit = any(point["form"] == REFIT for point in points) if refit is None else refit
    form = REFIT if wants_refit else PLAIN
    of_form = [point for point in points if point["form"] == form]
    if not of_form:
        raise ArtifactError(f"{path} has no {form} points")
    return of_form


def _largest_that_meets(
    path: Path, header: Mapping[str, Any], points: Sequence[Mapping[str, Any]], target: str
) -> Mapping[str, Any]:
    goal = Target.parse(target)
    if goal.metric not in COSTS:
        raise ArtifactError(f"target {target!r}: an elastic artifact can be loaded by {', '.join(COSTS)}")
    cost = COSTS[goal.metric]
    dense = header["dense"][cost]
    small_enough = [point for point in points if point["costs"][cost] <= goal.value * dense]
    if not small_enough:
        least = min(point["costs"][cost] for point in points) / dense
        raise ArtifactError(f"{path}: no stored point has {target}; the smallest is {goal.metric}={least:.4g}")
    return max(small_enough, key=lambda point: point["costs"][cost])


def _load_point(
    path: Path, header: Mapping[str, Any], constructor: Constructor | None, point: Mapping[str, Any]
) -> Compressed:
    is_plain = point["form"] == PLAIN
    needed = [point["file"], "model.safetensors"] if is_plain else [point["file"]]
    check_hashes(path, header.get("sha256"), needed)
    plan = read_plan(path, point["plan"])
    model = dense_architecture(path, header.get("model"), constructor)
    reshape(path, read_plan(path, header["unfused"]), model)
    tensors = unpack(read_tensors(path / point["file"]))
    if is_plain:
        fill(path, model, read_tensors(path / "model.safetensors"), header.get("state"))
        plan.apply(model)
        tensors = {**unique_tensors(model), **tensors}
    else:
        reshape(path, plan, model)
    fill(path, model, tensors, point["state"])
    certificate = {
        "costs": {"dense": header["dense"], "compressed": point["costs"]},
        "metrics": {"compressed": point["metric"]},
    }
    return loaded(path, model, plan, certificate)
