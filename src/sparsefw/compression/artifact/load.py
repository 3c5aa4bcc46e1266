"""load: a network from an artifact, of one size or of any."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from sparsefw.compression.amounts import KindAmounts, ratio_of
from sparsefw.compression.artifact.elastic import ELASTIC_FORMAT, FORM_KEYS, HEADER_KEYS, POINT_KEYS
from sparsefw.compression.artifact.elastic import SCHEMA as ELASTIC_SCHEMA
from sparsefw.compression.artifact.elastic_folder import Point, open_elastic
from sparsefw.compression.artifact.files import ArtifactError, digest_of, read_json
from sparsefw.compression.artifact.folder import ONE_SIZE_FORMAT, Constructor, load_artifact
from sparsefw.compression.artifact.folder import SCHEMA as ONE_SIZE_SCHEMA
from sparsefw.compression.compressed import Compressed
from sparsefw.compression.target import COSTS, Target
from sparsefw.kinds import Kind, is_pattern, kind_of
from sparsefw.scalars import is_int, is_number

SCHEMAS = {ONE_SIZE_FORMAT: ONE_SIZE_SCHEMA, ELASTIC_FORMAT: ELASTIC_SCHEMA}


class _Request(NamedTuple):
    """What is asked of an elastic folder: the ratio of a kind or a target; refit sizes, plain ones, or what was chosen."""

    ratios: Mapping[str, float]
    target: str | None
    refit: bool | None


def load(
    folder: str | os.PathLike[str],
    constructor: Constructor | None = None,
    *,
    target: str | None = None,
    refit: bool | None = None,
    **removed: Unpack[KindAmounts],
) -> Compressed:
    """Return the model in an artifact.

    From an elastic folder, any ratio can be loaded: the network is cut out of the dense weights exactly as
    compress(..., refit=False) would cut it, without data. Statistics are those stored for the ratio. Between two stored ratios
    they are interpolated, beyond the largest they are those of the largest; a warning and a note in `plan.untouched` say so.

    Args:
        folder: The artifact of save or save_elastic.
        constructor: A function that builds the dense network; None: the model registry builds it by name.
        target: From an elastic artifact: load the largest size that meets a target such as "params=0.3", at any ratio.
        refit: From an elastic artifact: load refit sizes, which are at stored ratios only (True), or plain ones (False). None:
            refit ones at the ratios that have them, plain ones elsewhere.
        removed: From an elastic artifact: load the size that removes, for example, filters=0.73.
    """
    path = Path(folder)
    try:
        wanted = dict(_wanted_size(word, amount) for word, amount in removed.items() if amount is not None)
    except ValueError as error:
        raise ArtifactError(str(error)) from None
    request = _Request(wanted, target, refit)
    header = _header(path)
    for _ in range(10):
        try:
            if header["format"] == ELASTIC_FORMAT:
                small = _load_elastic(path, header, constructor, request)
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
    if not isinstance(header, dict) or header.get("format") not in list(SCHEMAS):
        raise ArtifactError(f"{path / 'plan.json'} is not a sparsefw artifact")
    schema = SCHEMAS[header["format"]]
    if header.get("schema") != schema:
        raise ArtifactError(
            f"{path}: schema {header.get('schema')!r} is not the one that this version reads ({schema}); save it again"
        )
    if header.get("digest") != digest_of(header):
        raise ArtifactError(f"{path / 'plan.json'} is damaged or was edited: its digest is not the one that was saved")
    return header


def _load_elastic(
    path: Path, header: Mapping[str, Any], constructor: Constructor | None, request: _Request
) -> Compressed:
    """Return the network of the size that is asked for."""
    points = _points(path, header)
    kind = _kind(path, header, points, request)
    goal = None if request.target is None else Target.parse(request.target)
    if goal is not None and goal.metric not in COSTS:
        raise ArtifactError(f"target {request.target!r}: an elastic artifact can be loaded by {', '.join(COSTS)}")
    folder = open_elastic(path, header, constructor, kind, points)
    if goal is not None:
        goal = goal.of_dense(header["dense"][COSTS[goal.metric]])
    ratio = request.ratios.get(kind.name)
    if request.refit:
        return folder.refit(folder.refit_point(ratio, goal), request.target)
    if ratio is None:
        assert goal is not None
        ratio = folder.ratio_for(goal)
    kept = folder.stage.counts_for(ratio)
    same = [point for point in points if point["kept"] == kept]
    if not same:
        return folder.between(ratio, kept, request.target)
    stored = min(same, key=lambda point: abs(point["ratio"] - ratio))
    if stored["refit"] is not None and request.refit is None:
        return folder.refit(stored, request.target)
    return folder.plain(stored, request.target)


def _points(path: Path, header: Mapping[str, Any]) -> list[Point]:
    """Return the stored sizes."""
    missing = HEADER_KEYS - set(header)
    if missing:
        raise ArtifactError(f"{path / 'plan.json'} has no {', '.join(sorted(missing))}")
    if not isinstance(header["state"], dict) or not isinstance(header["order"], dict):
        raise ArtifactError(f"{path / 'plan.json'} does not describe an elastic artifact")
    points = header["points"]
    if not isinstance(points, list) or not points or not all(map(_is_point, points)):
        raise ArtifactError(f"{path / 'plan.json'} lists no points")
    return points


def _is_point(point: Any) -> bool:
    if not isinstance(point, dict) or not set(point) >= POINT_KEYS:
        return False
    forms = [point["plain"], *([] if point["refit"] is None else [point["refit"]])]
    has_counts = isinstance(point["kept"], list) and all(map(is_int, point["kept"]))
    return has_counts and is_number(point["ratio"]) and all(isinstance(f, dict) and set(f) >= FORM_KEYS for f in forms)


def _kind(path: Path, header: Mapping[str, Any], points: Sequence[Point], request: _Request) -> Kind:
    """Return the kind of the folder; ArtifactError if it does not offer what is asked for."""
    try:
        kind = kind_of(str(header["kind"]))
    except ValueError as error:
        raise ArtifactError(f"{path / 'plan.json'}: {error}") from None
    is_one_size = len(request.ratios) + (request.target is not None) == 1
    if not is_one_size or any(name != kind.name for name in request.ratios):
        offered = ", ".join(f"{point['ratio']:g}" for point in points)
        more = "" if kind.only_ratio is not None else " and any other ratio"
        raise ArtifactError(
            f"{path} offers {kind.name} = {offered}{more}: ask for one of them, or for a target such as 'params=0.3'"
        )
    if kind.only_ratio is not None and request.ratios.get(kind.name, kind.only_ratio) != kind.only_ratio:
        raise ArtifactError(f"{path}: {kind.name} removes {kind.only_ratio:g} of the weights, no other share")
    return kind
