"""Where metrics go: a file in the run folder always; TensorBoard, Weights & Biases and MLflow where asked for."""

from __future__ import annotations

import importlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsefw.durable import write_text
from sparsefw.train.config import RunConfig
from sparsefw.typed import ConfigError


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
    """A service that draws curves. Gets flat names such as train/loss."""

    @abstractmethod
    def write(self, values: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class TensorBoard(Tracker):
    def __init__(self, config: RunConfig, folder: Path) -> None:
        module = _package("tensorboard", "torch.utils.tensorboard")
        self._writer = module.SummaryWriter(str(folder / "tensorboard"))

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB(Tracker):
    """Offline too: set WANDB_MODE=offline. The run goes on under its own id after a resume."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        wandb = _package("wandb", "wandb")
        identity = folder.resolve().name.replace("/", "-")[:60]
        self._run = wandb.init(
            project="sparsefw", name=config.name, id=identity, dir=str(folder), config=config.plain(), resume="allow"
        )

    def write(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class MLflow(Tracker):
    """Into the folder `mlflow` of the run, or to the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        client = _package("mlflow", "mlflow.tracking").MlflowClient
        default = f"sqlite:///{folder / 'mlflow.db'}"
        self._client = client(os.environ.get("MLFLOW_TRACKING_URI") or default)
        found = self._client.get_experiment_by_name("sparsefw")
        experiment = found.experiment_id if found else self._client.create_experiment("sparsefw")
        self._run = self._client.create_run(experiment, run_name=config.name).info.run_id
        for name, value in _flat(config.plain()).items():
            self._client.log_param(self._run, name, value)

    def write(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def trackers(config: RunConfig, folder: Path) -> list[Tracker]:
    return [TRACKERS[name](config, folder) for name in config.track]  # type: ignore[call-arg]


def flat_metrics(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in _flat(row).items() if isinstance(value, (int, float))}


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}/") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _package(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"track={name} needs the package {error.name}: pip install 'sparsefw[{name}]'") from None
