"""A trained run, opened again with its data: its curves, and smaller networks made from it. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sparsefw.compression import Curve
from sparsefw.compression.cost import Costs
from sparsefw.config_base import ConfigError
from sparsefw.data.batches import DataPart
from sparsefw.data.loaders import Data, open_data
from sparsefw.kinds import Kind, kind_of
from sparsefw.runfolder import Split
from sparsefw.runfolder.schema import CurveRecord, CurveSettings, RecordedPoint, Size
from sparsefw.scalars import is_int
from sparsefw.train.config import LEAST_CALIBRATION, RunConfig
from sparsefw.train.engine import Engine, evaluation_engine
from sparsefw.train.folder import RunFolder
from sparsefw.train.subject import Subject
from sparsefw.train.tasks import Task, task_for

RECORDED = ("score", "allocation", "refit")  # arguments of a curve that are recorded with it


@dataclass(frozen=True)
class TrainedRun(Subject):
    """The trained network of a run folder, and the images to calibrate and evaluate it on.

    digest   SHA-256 of the network's file
    """

    folder: RunFolder
    config: RunConfig
    model: nn.Module
    data: Data
    task: Task
    engine: Engine
    digest: str | None

    @classmethod
    def open(
        cls,
        path: Path,
        data_folder: Path | None = None,
        device: str = "auto",
        trust: bool = False,
        data_changed: bool = False,
    ) -> TrainedRun:
        """Open a run folder whose training is over.

        Args:
            data_folder: None: the one that the run was trained on.
            trust: whether Python code that makes the network may be imported, which runs it.
            data_changed: go on also where the data are not those of the training; recorded in the folder.
        """
        folder = RunFolder(path)
        config = folder.config
        model, _ = folder.load_model(trust)
        digest = None if folder.result is None else folder.result.model
        # Of the engine of the training only the workers matter here: a run of a GPU is compressed on a CPU, too.
        engine = evaluation_engine(device, config.engine.workers)
        data = open_data(
            config.data,
            folder.data if data_folder is None else data_folder,
            device=engine.device,
            seed=config.seed,
            channels_last=engine.channels_last,
            workers=engine.workers,
        )
        record = folder.accepted_data(data.fingerprint, None, data_changed)
        if data_changed:
            folder.writer.data(record)
        task = task_for(data.task, data.classes, 0.0, data.ignore_label)
        return cls(folder, config, engine.place(model), data, task, engine, digest)

    def calibration_images(self, given: int | None) -> int:
        """Return the number of calibration images: the given one, or that of the configuration."""
        images = self.config.curve.calibration if given is None else given
        if images < LEAST_CALIBRATION:
            raise ConfigError(f"calibration={images}: must be at least {LEAST_CALIBRATION} images")
        return images

    def calibration(self, images: int) -> Iterable[Tensor]:
        """Return batches of this many training images, without labels."""
        return self.data.train.sample(images)

    @property
    def name(self) -> str:
        return str(self.folder.path)

    @property
    def title(self) -> str:
        return self.config.name

    def inputs(self, calibration: Any) -> dict[str, Any]:
        if calibration is not None and not is_int(calibration):
            raise ConfigError(
                f"{self.name} is calibrated on images of its own training: give their number, not {calibration}"
            )
        return {"calibration": self.calibration(self.calibration_images(calibration))}

    def part(self, split: str) -> DataPart:
        part = self.data.test if split == Split.TEST else self.data.validation
        if part is None:
            reason = "was trained with data.validation=0" if split == Split.VALIDATION else "has no test images"
            raise ConfigError(f"{self.name} {reason}: there is no {split} split to evaluate on")
        return part

    @property
    def reported(self) -> str | None:
        """The test images; if there are none, the validation images."""
        if self.data.test is not None:
            return Split.TEST
        return None if self.data.validation is None else Split.VALIDATION

    def curve(
        self,
        kind: Kind | str | None = None,
        at: Sequence[float] | None = None,
        form: str = "removed",
        split: str = Split.TEST,
        **how: Any,
    ) -> Curve:
        """Compute a curve, accuracy against ratio, and write it into the run folder.

        Args:
            kind, at: None: those of the configuration.
            how: further arguments of `sparsefw.curve`; calibration is the number of images here.
        """
        kind = self.config.curve_kind if kind is None else kind_of(kind)
        images = how.pop("calibration", None)
        if images is None:
            images = self.config.curve.calibration
        ratios = self.config.ratios(kind) if at is None else at
        measured = self.measured_curve(kind, ratios, form, split, images, **how)
        settings = CurveSettings(calibration=images, **{name: how[name] for name in RECORDED if name in how})
        self.folder.writer.curve(curve_record(measured, self.task.metric, split, settings, self.digest))
        return measured


def curve_record(measured: Curve, metric: str, split: str, settings: CurveSettings, model: str | None) -> CurveRecord:
    """Return a curve as the run folder keeps it."""
    points = tuple(
        RecordedPoint(
            ratio=point.ratio,
            plain=point.plain,
            refit=point.refit,
            size=_size(point.costs, point.milliseconds),
            distance=point.distance,
            chosen=None if point.agreements is None else point.chosen,
        )
        for point in measured.points
    )
    return CurveRecord(
        kind=measured.kind,
        form=measured.form,
        metric=metric,
        split=split,
        settings=settings,
        dense=measured.dense,
        size=_size(measured.dense_costs, measured.dense_milliseconds),
        points=points,
        model=model,
    )


def _size(costs: Costs | None, milliseconds: float | None) -> Size:
    return Size(milliseconds=milliseconds) if costs is None else Size(**asdict(costs), milliseconds=milliseconds)
