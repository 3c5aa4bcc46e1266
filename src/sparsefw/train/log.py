"""Where metrics go: a file in the run folder always; TensorBoard, Weights & Biases and MLflow where asked for."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from sparsefw.atomic_io import write_text
from sparsefw.config_base import ConfigError, flat
from sparsefw.train.config import RunConfig


class MetricsFile:
    """metrics.jsonl: one JSON object per line. After a kill it is cut back to what the checkpoint knows."""

    def __init__(self, path: Path, step: int) -> None:
        self.path = path
        kept = [row for row in read_metrics(path) if row["step"] <= step]
        write_text(path, "".join(json.dumps(row) + "\n" for row in kept))

    def write(self, row: Mapping[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows that are whole: a kill may have torn the last one."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


class Tracker(ABC):
    """A service that draws curves. Gets flat names such as train/loss. After a kill it goes on with the curves it has."""

    name: ClassVar[str]
    module: ClassVar[str]

    @abstractmethod
    def __init__(self, config: RunConfig, folder: Path, step: int) -> None: ...

    @classmethod
    def package(cls) -> Any:
        return cls._imported(cls.module)

    @classmethod
    def _imported(cls, module: str) -> Any:
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"track={cls.name} needs the package {error.name}: pip install 'sparsefw[{cls.name}]'"
            ) from None

    @abstractmethod
    def write(self, values: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class TensorBoard(Tracker):
    name, module = "tensorboard", "torch.utils.tensorboard"

    def __init__(self, config: RunConfig, folder: Path, step: int) -> None:
        # What was written after the checkpoint is written again: readers drop the first.
        self._writer = self.package().SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(Tracker):
    """Offline too: set WANDB_MODE=offline. The run goes on under its own id after a resume."""

    name, module = "wandb", "wandb"

    def __init__(self, config: RunConfig, folder: Path, step: int) -> None:
        whole = folder.resolve()  # folders of one name may lie in several places
        identity = f"{re.sub(r'[^A-Za-z0-9_-]', '-', whole.name)[:50]}-{hashlib.sha256(bytes(whole)).hexdigest()[:8]}"
        self._run = self.package().init(
            project="sparsefw", name=config.name, id=identity, dir=str(folder), config=config.plain(), resume="allow"
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """Into mlflow.db in the run folder, or to the server that MLFLOW_TRACKING_URI names."""

    name, module = "mlflow", "mlflow.tracking"

    @classmethod
    def package(cls) -> Any:
        if not os.environ.get("MLFLOW_TRACKING_URI"):  # mlflow itself asks for what it writes files with too late
            for needed in ("sqlalchemy", "alembic"):
                cls._imported(needed)
        return super().package()

    def __init__(self, config: RunConfig, folder: Path, step: int) -> None:
        default, whole = f"sqlite:///{folder / 'mlflow.db'}", str(folder.resolve())
        self._client = self.package().MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or default)
        found = self._client.get_experiment_by_name("sparsefw")
        experiment = found.experiment_id if found else self._client.create_experiment("sparsefw")
        for run in self._client.search_runs([experiment]) if step else ():
            if run.data.tags.get("folder") == whole:
                self._run = run.info.run_id
                return
        self._run = self._client.create_run(experiment, run_name=config.name, tags={"folder": whole}).info.run_id
        for name, value in flat(config.plain(), "/").items():
            self._client.log_param(self._run, name, value)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


TRACKERS: dict[str, type[Tracker]] = {kind.name: kind for kind in (TensorBoard, WandB, MLflow)}


def check_trackers(config: RunConfig) -> None:
    """ConfigError where a package is missing; asked before anything is written."""
    for name in config.track:
        TRACKERS[name].package()


def trackers(config: RunConfig, folder: Path, step: int) -> list[Tracker]:
    """For a training that is at `step`."""
    return [TRACKERS[name](config, folder, step) for name in config.track]


def flat_metrics(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in flat(row, "/").items() if isinstance(value, (int, float))}
