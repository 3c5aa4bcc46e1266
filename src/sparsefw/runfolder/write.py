"""The one writer of run folders. Files are replaced as a whole, so that a kill leaves the previous one; epochs are appended."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sparsefw.atomic_io import file_digest, naming, write_bytes, write_json, write_text
from sparsefw.runfolder.digest import with_digest, with_digest_line
from sparsefw.runfolder.files import RetrainingPaths, RunPaths, Split
from sparsefw.runfolder.read import RunFolderError, read_epochs, read_facts
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
    SpectraRecord,
)

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class RunWriter:
    """Writes the files of one run folder."""

    folder: Path

    @property
    def paths(self) -> RunPaths:
        return RunPaths(self.folder)

    def begin(self, config: ConfigRecord, facts: RunFacts, environment: EnvironmentRecord, regions: str = "") -> None:
        """Record what the run is. A run that is resumed keeps the facts with which it began.

        Args:
            regions: which layer is constrained to which region, one line each; nothing is written where it is empty.
        """
        write_text(self.paths.config, with_digest_line(config_yaml(config)))
        if not self._has_facts():
            write_json(self.paths.facts, with_digest(facts.to_json()))
        if regions:
            write_text(self.paths.regions, regions + "\n")
        write_json(self.paths.environment, with_digest(environment.to_json()))

    def _has_facts(self) -> bool:
        try:
            return read_facts(self.folder) is not None
        except RunFolderError:
            return False

    def data(self, record: DataRecord) -> None:
        write_json(self.paths.data, with_digest(record.to_json()))

    def model(self, tensors: Mapping[str, Tensor], record: ModelRecord) -> str:
        """Write the network, and return the SHA-256 of its file, which belongs into the result."""
        from safetensors.torch import save

        write_bytes(self.paths.model, save(dict(tensors), {"sparsefw": json.dumps(record.to_json())}))
        return file_digest(self.paths.model)

    def spectra(self, record: SpectraRecord) -> None:
        write_json(self.paths.spectra, with_digest(record.to_json()))

    def result(self, record: ResultRecord) -> None:
        """Record that training is over: the last file of a training."""
        write_json(self.paths.result, with_digest(record.to_json()))

    def curve(self, record: CurveRecord) -> None:
        write_json(self.paths.curve(record.kind, record.form, Split(record.split)), with_digest(record.to_json()))

    def error(self, traceback: str) -> None:
        """Record why the training failed."""
        write_text(self.paths.error, traceback)

    def forget_error(self) -> None:
        self.paths.error.unlink(missing_ok=True)

    def forget_model(self) -> None:
        self.paths.model.unlink(missing_ok=True)

    def forget_result(self) -> None:
        self.paths.result.unlink(missing_ok=True)

    def forget_checkpoints(self) -> None:
        shutil.rmtree(self.paths.checkpoints, ignore_errors=True)


class EpochWriter:
    """Appends to metrics.jsonl. After a kill the file is first cut back to the step of the checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        self._path = RunPaths(folder).metrics
        kept = [record for record in read_epochs(folder) if record.step is not None and record.step <= step]
        write_text(self._path, "".join(map(_line, kept)))

    def append(self, *records: EpochRecord) -> None:
        with naming(self._path), self._path.open("a") as file:
            file.write("".join(map(_line, records)))
            file.flush()
            os.fsync(file.fileno())


def _line(record: EpochRecord) -> str:
    return json.dumps(with_digest(record.to_json())) + "\n"


def config_yaml(config: ConfigRecord) -> str:
    """Return a configuration as YAML, in its own order."""
    return yaml.dump(dict(config.values), Dumper=_Dumper, sort_keys=False)


class _Dumper(yaml.SafeDumper):
    """Writes a value that occurs twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def write_retraining(folder: Path, request: RetrainingRequest) -> None:
    """Write retrain.json, the arguments of the retraining in this folder."""
    write_json(RetrainingPaths(folder).request, with_digest(request.to_json()))


def write_phase_weights(folder: Path, phase: int, tensors: Mapping[str, Tensor]) -> Path:
    """Write the pruned weights that a phase starts from, and return their file."""
    from safetensors.torch import save

    path = RetrainingPaths(folder).weights(phase)
    write_bytes(path, save(dict(tensors)))
    return path
