"""The elastic artifact: one folder from which any of many sizes is loaded, with no data and in seconds.

plan.json                  the points of a grid: ratio, what was done, what it costs
model.safetensors          the dense weights; plain points are cut out of them when loaded
plain-0.7.safetensors      of a plain point only the BatchNorm statistics; all weights in networks without BatchNorm
refit-0.7.safetensors      of a refit point all weights
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor, nn

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
from sparsefw.compression.compressing import Compressed
from sparsefw.compression.cost import costs
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.progress import Progress
from sparsefw.compression.recovery.batchnorm import has_batch_norm
from sparsefw.compression.settings import Metric, ratio_of, ratios_of, settings_of
from sparsefw.compression.target import Target
from sparsefw.environment import environment
from sparsefw.kinds import FILTERS, Kind, kind_of

FORMAT, SCHEMA = "sparsefw-elastic", 1
COSTS = {"params": "parameters", "macs": "macs", "bytes": "bytes"}


def save_elastic(
    model: nn.Module,
    folder: str | os.PathLike[str],
    kind: Kind | str = FILTERS.name,
    at: Sequence[float] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    *,
    calibration: Iterable[Any],
    example: Any = None,
    refit: bool = True,
    form: str = "removed",
    score: str = "l1",
    allocation: str | None = None,
    include: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    round_to: int = 1,
    evaluate: Callable[[nn.Module], float] | None = None,
    progress: Progress | bool | None = None,
) -> None:
    """Compress one model to every ratio in `at`, plain and refit, and write all of them into one folder."""
    kind = kind_of(kind)
    ratios = sorted(set(ratios_of(at, kind)))
    metric = None if evaluate is None else Metric(evaluate)
    settings = settings_of(form, score, allocation, include, exclude, round_to, refit)
    work = Pipeline(model, example, calibration, settings, progress)
    stage = work.stage(kind, work.dense)
    counts = [work.counts(stage, ratio) for ratio in ratios]

    def stands_alone(refitted: bool) -> bool:
        return refitted or not has_batch_norm(work.dense)  # matched moments change the weights themselves

    with replaced_folder(Path(folder).resolve(), is_artifact) as aside:
        write_tensors(aside / "model.safetensors", unique_tensors(work.dense))
        points = []
        for form_of, recover in (("plain", False), ("refit", True))[: 2 if refit else 1]:
            cuts = [stage.cut(kept) for kept in counts]
            work.recover(work.dense, cuts, refit=recover)
            for ratio, cut in zip(ratios, cuts, strict=True):
                name = f"{form_of}-{ratio!r}.safetensors"
                own, state = unique_tensors(cut.model), state_of(cut.model)
                write_tensors(aside / name, pack(own) if stands_alone(recover) else _statistics(cut.model, own))
                point = {
                    "ratio": ratio,
                    "form": form_of,
                    "file": name,
                    "costs": asdict(costs(cut.model, work.example)),
                    "metric": None if metric is None else _finite(metric(cut.model)),
                    "state": state,
                    "plan": Plan(
                        cut.edits,
                        cut.untouched,
                        {**kind.request(ratio), "removed": kind.request(ratio), "by": [], "refit": recover},
                    ).to_json(),
                }
                points.append(point)
        header = {
            "format": FORMAT,
            "schema": SCHEMA,
            "kind": kind.name,
            "model": built_from(model),
            "state": state_of(model),
            "unfused": Plan(tuple(work.unfused)).to_json(),
            "dense": asdict(costs(work.dense, work.example)),
            "points": points,
            "sha256": {path.name: sha256(path) for path in sorted(aside.iterdir())},
            **environment(),
        }
        write_json(aside / "plan.json", {**header, "digest": digest_of(header)})


def _finite(value: float) -> float | None:
    """JSON has no NaN: a broken point has no metric."""
    return value if math.isfinite(value) else None


def _statistics(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    buffers = dict(model.named_buffers())
    return {name: tensor for name, tensor in tensors.items() if name in buffers}


def load(
    folder: str | os.PathLike[str],
    constructor: Constructor | None = None,
    *,
    target: str | None = None,
    refit: bool | None = None,
    **removed: float | None,
) -> Compressed:
    """The model in an artifact. The architecture comes from the model registry by name, or from `constructor`.

    From an elastic artifact: the stored point nearest to filters=0.7, or whichever kind it holds, or the largest one that meets a
    target such as "params=0.3"; refit points where there are any, unless refit=False.
    """
    path = Path(folder)
    try:
        wanted = {kind_of(word).name: ratio_of(word, ratio) for word, ratio in removed.items() if ratio is not None}
    except ValueError as error:
        raise ArtifactError(str(error)) from None
    header = _header(path)
    for _ in range(10):
        try:
            if header["format"] == FORMAT:
                found = _load_point(path, header, constructor, _choose(path, header, wanted, target, refit))
            elif wanted or target is not None:
                raise ArtifactError(f"{path} holds one size only; sizes can be chosen from an elastic artifact")
            else:
                found = load_artifact(path, header, constructor)
        except ArtifactError:
            newer = _header(path)
            if newer == header:
                raise
        else:
            newer = _header(path) if (path / "plan.json").exists() else header
            if newer == header:
                return found
        header = newer  # another process has just saved here: we read some files of one artifact and some of the other
    raise ArtifactError(f"{path} is being written over and over: try again when it is finished")


def _header(path: Path) -> dict[str, Any]:
    """plan.json, checked."""
    header = read_json(path / "plan.json")
    if not isinstance(header, dict) or header.get("format") not in ("sparsefw-artifact", FORMAT):
        raise ArtifactError(f"{path / 'plan.json'} is not a sparsefw artifact")
    if header.get("schema") != 1:
        raise ArtifactError(f"{path}: schema {header.get('schema')!r} is not one that this version reads (1)")
    if header.get("digest") != digest_of(header):
        raise ArtifactError(f"{path / 'plan.json'} is damaged or was edited: its digest is not the one that was saved")
    return header


def _choose(
    path: Path, header: Mapping[str, Any], wanted: Mapping[str, float], target: str | None, refit: bool | None
) -> Mapping[str, Any]:
    kind, points = header.get("kind"), header.get("points")
    keys = {"ratio", "form", "file", "costs", "metric", "state", "plan"}
    if not isinstance(points, list) or not points or not all(isinstance(p, dict) and keys <= set(p) for p in points):
        raise ArtifactError(f"{path / 'plan.json'} lists no points")
    forms = {p["form"] for p in points}
    form = "refit" if (refit if refit is not None else "refit" in forms) else "plain"
    points = [p for p in points if p["form"] == form]
    if not points:
        raise ArtifactError(f"{path} has no {form} points")
    offered = ", ".join(f"{p['ratio']:g}" for p in points)
    if (target is None) == (not wanted) or len(wanted) > 1 or (wanted and kind not in wanted):
        raise ArtifactError(
            f"{path} offers {kind} = {offered}: ask for one of them, or for a target such as 'params=0.3'"
        )
    if target is not None:
        goal = Target.parse(target)
        if goal.metric not in COSTS:
            raise ArtifactError(f"target {target!r}: an elastic artifact knows {', '.join(COSTS)}")
        key = COSTS[goal.metric]
        fitting = [p for p in points if p["costs"][key] <= goal.value * header["dense"][key]]
        if not fitting:
            least = min(p["costs"][key] for p in points) / header["dense"][key]
            raise ArtifactError(f"{path}: no stored point has {target}; the smallest is {goal.metric}={least:.4g}")
        return max(fitting, key=lambda p: p["costs"][key])
    ratio = wanted[str(kind)]
    nearest: Mapping[str, Any] = min(points, key=lambda p: abs(p["ratio"] - ratio))
    if abs(nearest["ratio"] - ratio) > 1e-9:
        warnings.warn(f"{kind}={ratio:g} is not stored; the nearest of {offered} is {nearest['ratio']:g}", stacklevel=3)
    return nearest


def _load_point(
    path: Path, header: Mapping[str, Any], constructor: Constructor | None, point: Mapping[str, Any]
) -> Compressed:
    hashes = header.get("sha256")
    check_hashes(path, hashes, [point["file"], *(["model.safetensors"] if point["form"] == "plain" else [])])
    plan = read_plan(path, point["plan"])
    model = dense_architecture(path, header.get("model"), constructor)
    reshape(path, read_plan(path, header["unfused"]), model)
    own = unpack(read_tensors(path / point["file"]))
    if point["form"] == "plain":
        fill(path, model, read_tensors(path / "model.safetensors"), header.get("state"))
        plan.apply(model)
        own = {**unique_tensors(model), **own}
    else:
        reshape(path, plan, model)
    fill(path, model, own, point["state"])
    certificate = {
        "costs": {"dense": header["dense"], "compressed": point["costs"]},
        "metrics": {"compressed": point["metric"]},
    }
    return loaded(path, model, plan, certificate)
