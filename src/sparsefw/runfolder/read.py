"""The one reader of run folders. A run that was killed or lost a file is read as far as possible, and lists its problems."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from sparsefw.atomic_io import parse_json
from sparsefw.limits import RECIPE_CHARACTERS, RECORD_BYTES, read_bounded, require_regular
from sparsefw.runfolder.digest import is_intact, is_intact_text, without_digest
from sparsefw.runfolder.files import RetrainingPaths, RunPaths, Split, is_run_folder
from sparsefw.runfolder.identity import identity_of, is_of
from sparsefw.runfolder.parse import (
    MALFORMED,
    parse_curve,
    parse_data,
    parse_environment,
    parse_epoch,
    parse_facts,
    parse_model,
    parse_result,
    parse_retraining,
    parse_spectra,
)
from sparsefw.runfolder.schema import (
    ConfigRecord,
    CurveRecord,
    DataRecord,
    EnvironmentRecord,
    EpochRecord,
    ModelRecord,
    ResultRecord,
    RetrainingRequest,
    RunFacts,
    RunStatus,
    SpectraRecord,
)
from sparsefw.text import one_line

if TYPE_CHECKING:
    from torch import Tensor

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, where it is installed, is ten times as fast
DAMAGED = "is damaged: its content is not what was written; restore it, or remove the folder"
LONG = 8192  # characters: several times those of any configuration

T = TypeVar("T")


class RunFolderError(ValueError):
    """A run folder that cannot be read. reason: one line, without the folder."""

    def __init__(self, folder: Path, reason: str) -> None:
        super().__init__(f"{folder}: {reason}")
        self.folder = folder
        self.reason = reason


@dataclass(frozen=True)
class RunRecord:
    """Everything in a run folder but weights and pictures.

    epochs     one record per epoch, in order
    failure    the last line of error.txt
    problems   what is missing or damaged, one line each
    """

    folder: Path
    facts: RunFacts
    config: ConfigRecord
    environment: EnvironmentRecord
    epochs: tuple[EpochRecord, ...]
    result: ResultRecord | None
    failure: str | None
    curves: tuple[CurveRecord, ...]
    spectra: SpectraRecord
    problems: tuple[str, ...]

    @property
    def status(self) -> RunStatus:
        if self.result is not None:
            return RunStatus.FINISHED
        return RunStatus.UNFINISHED if self.failure is None else RunStatus.FAILED


def find_runs(folder: Path) -> list[Path]:
    """Return the run folders in a folder, at any depth, in the order of their names; itself if it is one.

    Raises:
        RunFolderError: there is no such folder, or it holds no run.
    """
    if not folder.is_dir():
        raise RunFolderError(folder, "it is a file, and a run is a folder" if folder.exists() else "no such folder")
    runs = []
    for path, below, _ in os.walk(folder):
        if is_run_folder(Path(path)):
            runs.append(Path(path))
            below.clear()  # a folder inside a run folder belongs to that run
        below[:] = sorted(name for name in below if not name.startswith("."))
    if not runs:
        raise RunFolderError(folder, "it is not a run folder, and contains none")
    return runs


def read_run(folder: Path) -> RunRecord:
    """Read a run folder, as far as it is complete.

    Raises:
        RunFolderError: it is no run folder, or run.json or config.yaml is missing or damaged.
    """
    if not is_run_folder(folder):
        raise RunFolderError(
            folder, "not a run folder (no run.json, config.yaml, metrics.jsonl, result.json or curves)"
        )
    paths = RunPaths(folder)
    config = read_config(folder)
    facts = read_facts(folder)
    if facts is None:
        raise RunFolderError(folder, f"{paths.facts.name} is missing")
    try:
        identity = identity_of(config)
    except (*MALFORMED, RecursionError) as error:
        raise RunFolderError(folder, f"{paths.config.name} is not a configuration: {one_line(error)}") from None
    problems: list[str] = []
    result = _tolerated(lambda: read_result(folder), problems)
    if result is not None and not is_of(identity, result.run):
        problems.append(f"{paths.result.name} is left out: it belongs to another run")
        result = None
    network = None if result is None else result.model
    failure = None
    if not paths.result.exists():
        failure = _last_line(paths.error)
        problems.append(f"unfinished: no {paths.result.name}" if failure is None else f"failed: {failure}")
    epochs = _one_per_epoch(_own_lines(_whole_lines(paths.metrics, problems), identity, paths.metrics, problems))
    environment = _tolerated(lambda: read_environment(folder), problems)
    data = _tolerated(lambda: read_data(folder), problems)
    changes = () if data is None else data.changes
    problems += [str(change) for change in changes]
    if result is not None and paths.metrics.exists() and not changes:  # with other data, epochs have other steps
        problems += _lost_epochs(epochs, config, result, paths.metrics)
    curves = _all_curves(paths, network, problems)
    spectra = _tolerated(lambda: _read(paths.spectra, parse_spectra, "does not hold spectra"), problems)
    if spectra is not None and not is_of(network, spectra.model):
        problems.append(_of_another_network(paths.spectra))
        spectra = None
    spectra = spectra or SpectraRecord()
    problems += [f"no spectrum of {layer}: {reason}" for layer, reason in spectra.left_out.items()]
    return RunRecord(
        folder=folder,
        facts=facts,
        config=config,
        environment=environment or EnvironmentRecord(),
        epochs=epochs,
        result=result,
        failure=failure,
        curves=curves,
        spectra=spectra,
        problems=tuple(problems),
    )


def read_config(folder: Path) -> ConfigRecord:
    """Read config.yaml; RunFolderError if it is missing or damaged."""
    path = RunPaths(folder).config
    try:
        text = read_bounded(path, RECORD_BYTES).decode()
        is_bomb = len(text) > RECIPE_CHARACTERS or _has_aliases(text)
        # libyaml overruns the stack of the process where a file is nested deeply, which takes a long one.
        values = {} if is_bomb else yaml.load(text, LOADER if len(text) < LONG else yaml.SafeLoader)
    except FileNotFoundError:
        raise RunFolderError(folder, f"{path.name} is missing") from None
    except OSError as error:
        raise RunFolderError(folder, f"{path.name} cannot be read ({error.strerror})") from None
    except (*MALFORMED, RecursionError, yaml.YAMLError):
        raise RunFolderError(folder, f"{path.name} cannot be read (it is not YAML)") from None
    if is_bomb:
        raise RunFolderError(folder, f"{path.name} is not a configuration: it is too long, or has aliases")
    if not is_intact_text(text):
        raise RunFolderError(folder, f"{path.name} {DAMAGED}")
    method = values.get("method") if isinstance(values, dict) else None
    if not isinstance(method, dict) or "name" not in method:
        raise RunFolderError(folder, f"{path.name} has no method.name")
    return ConfigRecord(values)


def _has_aliases(text: str) -> bool:
    """Return whether it repeats values by aliases, which make gigabytes of a few hundred bytes; no run folder has them."""
    return "*" in text and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader))


def read_facts(folder: Path) -> RunFacts | None:
    """Read run.json; None if it is missing, RunFolderError if it is damaged."""
    return _read(RunPaths(folder).facts, parse_facts, "is not the record of a run")


def read_environment(folder: Path) -> EnvironmentRecord | None:
    """Read environment.json; None if it is missing, RunFolderError if it is damaged."""
    return _read(RunPaths(folder).environment, parse_environment, "is not an environment")


def read_data(folder: Path) -> DataRecord | None:
    """Read data.json; None if it is missing, RunFolderError if it is damaged."""
    return _read(RunPaths(folder).data, parse_data, "is not a record of data")


def read_epochs(folder: Path) -> list[EpochRecord]:
    """Read the lines of metrics.jsonl that are whole: a kill may have torn the last one."""
    return _whole_lines(RunPaths(folder).metrics, [])


def read_result(folder: Path) -> ResultRecord | None:
    """Read result.json; None if it is missing, RunFolderError if it is damaged."""
    return _read(RunPaths(folder).result, parse_result, "is not a result")


def read_curve(folder: Path, kind: str, form: str, split: Split = Split.TEST) -> CurveRecord | None:
    """Read one curve; None if it is missing, RunFolderError if it is damaged."""
    return _read(RunPaths(folder).curve(kind, form, split), parse_curve, "is not a curve")


def read_model_header(folder: Path) -> ModelRecord | None:
    """Read the header of model.safetensors; None if the file is missing, RunFolderError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    path = RunPaths(folder).model
    if not path.exists():
        return None
    try:
        require_regular(path)
        with safe_open(str(path), framework="pt") as file:
            return parse_model(parse_json(file.metadata()["sparsefw"]))
    except (SafetensorError, OSError, *MALFORMED) as error:
        raise RunFolderError(folder, f"{path.name} is damaged: {one_line(error)}") from None


def read_model_tensors(folder: Path) -> dict[str, Tensor]:
    """Read the weights of model.safetensors; RunFolderError if it is missing or damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = RunPaths(folder).model
    try:
        require_regular(path)
        return load_file(str(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise RunFolderError(folder, f"{path.name} is damaged: {one_line(error)}") from None


def read_retraining(folder: Path) -> RetrainingRequest | None:
    """Read retrain.json of a retraining's folder; None if it is missing, RunFolderError if it is damaged."""
    return _read(RetrainingPaths(folder).request, parse_retraining, "is not a retraining")


def _read(path: Path, parse: Callable[[Mapping[str, Any]], T], reason: str) -> T | None:
    try:
        content = parse_json(read_bounded(path, RECORD_BYTES).decode())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFolderError(path.parent, f"{path.name} cannot be read ({error.strerror})") from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise RunFolderError(path.parent, f"{path.name} cannot be read")
    if not is_intact(content):
        raise RunFolderError(path.parent, f"{path.name} {DAMAGED}")
    try:
        return parse(without_digest(content))
    except MALFORMED as error:
        raise RunFolderError(path.parent, f"{path.name} {reason} ({type(error).__name__}: {one_line(error)})") from None


def _tolerated(read: Callable[[], T | None], problems: list[str]) -> T | None:
    try:
        return read()
    except RunFolderError as error:
        problems.append(error.reason)
        return None


def _whole_lines(path: Path, problems: list[str]) -> list[EpochRecord]:
    """Parse every whole line. A kill tears the last one at most; any other broken line is counted."""
    try:
        lines = _lines(path)
    except FileNotFoundError:
        problems.append(f"no {path.name}")
        return []
    except OSError as error:
        problems.append(f"{path.name} cannot be read ({error.strerror})")
        return []
    records = []
    broken = []
    for line_number, line in enumerate(lines, 1):
        record = _line(line)
        if record is not None:
            records.append(record)
        elif line.strip():
            broken.append(line_number)
    if broken == [len(lines)]:
        problems.append(f"the last line of {path.name} is torn")
    elif broken:
        problems.append(f"{path.name}: {len(broken)} lines cannot be read, the first is line {broken[0]}")
    return records


def _lines(path: Path) -> list[str]:
    return read_bounded(path, RECORD_BYTES).decode(errors="replace").splitlines()


def _line(text: str) -> EpochRecord | None:
    try:
        content = parse_json(text)
        return parse_epoch(content) if is_intact(content) else None
    except MALFORMED:
        return None


def _one_per_epoch(records: list[EpochRecord]) -> tuple[EpochRecord, ...]:
    """Keep the last record of every epoch: a run that was resumed may have written some twice."""
    last = {record.epoch: record for record in records}
    return tuple(last[epoch] for epoch in sorted(last))


def _own_lines(records: list[EpochRecord], identity: str, path: Path, problems: list[str]) -> list[EpochRecord]:
    own = [record for record in records if is_of(identity, record.run)]
    if len(own) < len(records):
        problems.append(f"{path.name}: {len(records) - len(own)} lines are left out: they belong to another run")
    return own


def lost_epoch(records: Iterable[EpochRecord], ended: int) -> int | None:
    """Return the first of the epochs that have ended without a record; None if all have one."""
    recorded = {record.epoch for record in records}
    return next((epoch for epoch in range(1, ended + 1) if epoch not in recorded), None)


def _lost_epochs(epochs: tuple[EpochRecord, ...], config: ConfigRecord, result: ResultRecord, path: Path) -> list[str]:
    """Return what a finished training lacks in its epochs: there must be all, up to the last step."""
    last = epochs[-1] if epochs else None
    ended = config.epochs if config.epochs is not None else 0 if last is None else last.epoch
    if (lost := lost_epoch(epochs, ended)) is not None:
        return [f"{path.name} has no whole line of epoch {lost}, which has been trained"]
    if last is not None and None not in (last.step, result.steps) and last.step != result.steps:
        return [f"{path.name} ends at step {last.step:,}, and the training at step {result.steps:,}"]
    return []


def _of_another_network(path: Path) -> str:
    return f"{path.name} is left out: it was measured on a network that result.json does not name"


def _all_curves(paths: RunPaths, network: str | None, problems: list[str]) -> tuple[CurveRecord, ...]:
    """Read the curves of this network: a training that began again left those of another one behind."""
    curves = []
    for file in [file for split in Split for file in sorted(paths.curves(split).glob("*.json"))]:
        try:
            curve = _read(file, parse_curve, "is not a curve")
        except RunFolderError as error:
            problems.append(error.reason)
        else:
            if curve is not None and is_of(network, curve.model):
                curves.append(curve)
            elif curve is not None:
                problems.append(_of_another_network(file))
    return tuple(curves)


def _last_line(path: Path) -> str | None:
    """Return the last line of a text that is not blank; None if there is no such file."""
    try:
        lines = _lines(path)
    except OSError:
        return None
    return next((line.strip() for line in reversed(lines) if line.strip()), None)
