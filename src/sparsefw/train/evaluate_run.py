"""A trained run, opened again with its data: its curves, and smaller networks made from it. Nothing is trained here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sparsefw.atomic_io import write_json
from sparsefw.compression import Curve, compress, curve
from sparsefw.compression.compressing import Compressed
from sparsefw.config_base import ConfigError
from sparsefw.data.loaders import Data, open_data
from sparsefw.kinds import Kind, kind_of
from sparsefw.train.config import EngineConfig, RunConfig
from sparsefw.train.engine import Engine, engine_for
from sparsefw.train.folder import RunFolder
from sparsefw.train.loop import evaluate
from sparsefw.train.tasks import Task, task_for

SPLITS = ("test", "validation")
HOW = ("score", "allocation", "refit")  # written beside a curve: what else its figures depend on


@dataclass(frozen=True)
class Study:
    """The trained network of a run folder, and the images to calibrate and evaluate it on."""

    folder: RunFolder
    config: RunConfig
    model: nn.Module
    data: Data
    task: Task
    engine: Engine

    @classmethod
    def open(cls, path: Path, data_folder: Path | None = None, device: str = "auto", trust: bool = False) -> Study:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ConfigError("curves and compression run in one process: without torchrun")
        folder = RunFolder(path)
        config = folder.config
        model, _ = folder.load_model(trust)
        # Of what the training ran on, only the readers matter here: a run of a GPU is compressed on a CPU, too.
        here = EngineConfig(device=device, workers=config.engine.workers)
        engine = engine_for(config.model_copy(update={"engine": here}), 0)
        data = open_data(
            config.data,
            folder.data if data_folder is None else data_folder,
            device=engine.device,
            seed=config.seed,
            channels_last=engine.channels_last,
            workers=engine.workers,
        )
        task = task_for(data.task, data.classes, 0.0, data.ignore_label)
        return cls(folder, config, engine.place(model), data, task, engine)

    def calibration(self, images: int) -> Iterable[Tensor]:
        return self.data.train.sample(images)

    def metrics(self, model: nn.Module, split: str = "test") -> dict[str, float]:
        part = self.data.test if split == "test" else self.data.validation
        if split not in SPLITS:
            raise ConfigError(f"split={split!r}: there are {', '.join(SPLITS)}")
        if part is None:
            why = "was trained with data.validation=0" if split == "validation" else "has no test images"
            raise ConfigError(f"{self.folder.path} {why}: there is no {split} split to evaluate on")
        return evaluate(model, part, self.task, self.engine)

    def metric(self, split: str = "test") -> Callable[[nn.Module], float]:
        """A model's figure of merit, in percent."""
        return lambda model: self.metrics(model, split)[self.task.metric]

    def curve(
        self,
        kind: Kind | str | None = None,
        at: Sequence[float] | None = None,
        form: str = "removed",
        split: str = "test",
        **how: Any,
    ) -> Curve:
        """Accuracy against ratio; written to the run folder's curves/."""
        kind = self.config.curve_kind if kind is None else kind_of(kind)
        images = how.pop("calibration", None) or self.config.curve.calibration
        found = curve(
            self.model,
            kind,
            list(self.config.ratios(kind) if at is None else at),
            form=form,
            calibration=self.calibration(images),
            evaluate=self.metric(split),
            **how,
        )
        measured = {"metric": self.task.metric, "split": split, "calibration": images}
        record = {**found.to_json(), **measured, **{key: how[key] for key in HOW if key in how}}
        where = (
            "curves" if split == "test" else f"curves-{split}"
        )  # what was chosen by is never mixed with what is reported
        write_json(self.folder.path / where / f"{kind.name}-{form}.json", record)
        return found

    def compress(self, calibration: int | None = None, **how: Any) -> Compressed:
        """A smaller network. What a target drop= may fall is measured on the validation images, never on the test images."""
        target = how.get("target")
        if isinstance(target, str) and target.startswith("drop"):
            how["evaluate"] = self.metric("validation")
        return compress(self.model, calibration=self.calibration(calibration or self.config.curve.calibration), **how)
