"""Trackers that draw the metrics of a training: TensorBoard, Weights & Biases and MLflow."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from sparsefw.config_base import ConfigError, flatten
from sparsefw.runfolder import RunPaths
from sparsefw.runfolder.schema import EpochRecord
from sparsefw.train.config import RunConfig


class Tracker(ABC):
    """A service that draws curves under flat names such as train/loss. A resumed training continues the curves that exist.

    name      its word in the configuration, and the name of the extra that installs it
    module    the module that it needs
    """

    name: ClassVar[str]
    module: ClassVar[str]

    @abstractmethod
    def __init__(self, config: RunConfig, folder: Path, step: int) -> None:
        """Open the curves of the run in `folder`, at `step`."""

    @classmethod
    def package(cls) -> Any:
        """Import what the tracker needs; ConfigError if it is not installed."""
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
    def write(self, values: Mapping[str, float], step: int) -> None:
        """Add one point to every curve."""

    @abstractmethod
    def close(self) -> None:
        """Say that the training is over."""


class TensorBoard(Tracker):
    name = "tensorboard"
    module = "torch.utils.tensorboard"

    def __init__(self, config: RunConfig, folder: Path, step: int) -> None:
        # Steps after the checkpoint are written again: purge_step tells readers to drop the first version.
        self._writer = self.package().SummaryWriter(str(RunPaths(folder).tensorboard), purge_step=step + 1)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(Tracker):
    """Works offline with WANDB_MODE=offline. A resumed training keeps the id of its run."""

    name = "wandb"
    module = "wandb"

    def __init__(self, config: RunConfig, folder: Path, step: int) -> None:
        path = folder.resolve()  # folders of one name may be in several places
        name = re.sub(r"[^A-Za-z0-9_-]", "-", path.name)[:50]
        identity = f"{name}-{hashlib.sha256(bytes(path)).hexdigest()[:8]}"
        self._run = self.package().init(
            project="sparsefw", name=config.name, id=identity, dir=str(folder), config=config.plain(), resume="allow"
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """Into mlflow.db in the run folder, or to the server that MLFLOW_TRACKING_URI names."""

    name = "mlflow"
    module = "mlflow.tracking"

    @classmethod
    def package(cls) -> Any:
        if not os.environ.get("MLFLOW_TRACKING_URI"):  # mlflow imports what its own files need only when it writes them
            for module in ("sqlalchemy", "alembic"):
                cls._imported(module)
        return super().package()

    def __init__(self, config: RunConfig, folder: Path, step: int) -> None:
        address = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{RunPaths(folder).mlflow}"
        path = str(folder.resolve())
        self._client = self.package().MlflowClient(address)
        experiment = self._client.get_experiment_by_name("sparsefw")
        number = experiment.experiment_id if experiment else self._client.create_experiment("sparsefw")
        for run in self._client.search_runs([number]) if step else ():
            if run.data.tags.get("folder") == path:
                self._run = run.info.run_id
                return
        self._run = self._client.create_run(number, run_name=config.name, tags={"folder": path}).info.run_id
        for name, value in flatten(config.plain(), "/").items():
            self._client.log_param(self._run, name, value)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


TRACKERS: dict[str, type[Tracker]] = {tracker.name: tracker for tracker in (TensorBoard, WandB, MLflow)}


def check_trackers(config: RunConfig) -> None:
    """Raise ConfigError if a tracker of the configuration is not installed; called before anything is written."""
    for name in config.track:
        TRACKERS[name].package()


def open_trackers(config: RunConfig, folder: Path, step: int) -> list[Tracker]:
    """Open the trackers of a configuration, for a training that is at `step`."""
    return [TRACKERS[name](config, folder, step) for name in config.track]


def flat_metrics(record: EpochRecord) -> dict[str, float]:
    """Return all numbers of an epoch but those of single layers under flat names, such as "validation/accuracy"."""
    tables = record.to_json()
    tables.pop("layers", None)
    values = flatten(tables, "/")
    return {name: float(value) for name, value in values.items() if isinstance(value, (int, float))}
