"""The names of the files in a run folder, and in the folder of a retraining. No other module spells them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePath

# Every name in a run folder; a name with a slash is a folder, and what it contains belongs to it.
NAMES = (
    "run.json",
    "config.yaml",
    "environment.json",
    "data.json",
    "regions.txt",
    "metrics.jsonl",
    "checkpoints/",
    "model.safetensors",
    "spectra.json",
    "result.json",
    "error.txt",
    "training.png",
    "training.svg",
    "curves/",
    "curves-validation/",
    "small/",
    "tensorboard/",
    "wandb/",
    "mlflow.db",
    ".lock",
)
# One of these is enough to recognise a run folder: a run that lost its config.yaml is reported as damaged, not passed over.
MARKS = ("run.json", "config.yaml", "metrics.jsonl", "result.json", "curves")


class Split(StrEnum):
    """The images on which a network is evaluated."""

    TEST = "test"
    VALIDATION = "validation"


@dataclass(frozen=True)
class RunPaths:
    """The paths of the files in one run folder."""

    folder: Path

    @property
    def facts(self) -> Path:
        return self.folder / "run.json"

    @property
    def config(self) -> Path:
        return self.folder / "config.yaml"

    @property
    def environment(self) -> Path:
        return self.folder / "environment.json"

    @property
    def data(self) -> Path:
        return self.folder / "data.json"

    @property
    def regions(self) -> Path:
        return self.folder / "regions.txt"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def spectra(self) -> Path:
        return self.folder / "spectra.json"

    @property
    def result(self) -> Path:
        return self.folder / "result.json"

    @property
    def error(self) -> Path:
        return self.folder / "error.txt"

    @property
    def lock(self) -> Path:
        return self.folder / ".lock"

    @property
    def picture(self) -> Path:
        """The picture of the training, without its suffix."""
        return self.folder / "training"

    @property
    def small(self) -> Path:
        """The default folder of the compressed network."""
        return self.folder / "small"

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def mlflow(self) -> Path:
        return self.folder / "mlflow.db"

    def curves(self, split: Split) -> Path:
        """The folder of the curves: those that configurations are chosen by are kept apart from those that are reported."""
        return self.folder / ("curves" if split is Split.TEST else "curves-validation")

    def curve(self, kind: str, form: str, split: Split = Split.TEST) -> Path:
        return self.curves(split) / f"{_file_part(kind)}-{form}.json"

    def curve_picture(self, kind: str, form: str) -> Path:
        """The picture of a curve on the test images, without its suffix."""
        return self.curves(Split.TEST) / f"{_file_part(kind)}-{form}"


@dataclass(frozen=True)
class RetrainingPaths:
    """The paths of the files in the folder of a retraining, whose phases are numbered from 1."""

    folder: Path

    @property
    def request(self) -> Path:
        return self.folder / "retrain.json"

    def phase(self, number: int) -> Path:
        """The run folder of a phase."""
        return self.folder / f"phase-{number}"

    def weights(self, number: int) -> Path:
        """The pruned weights that a phase starts from."""
        return self.folder / f"phase-{number}.safetensors"


def is_run_folder(folder: Path) -> bool:
    """Return whether the folder holds a run, whole or damaged."""
    return any((folder / name).exists() for name in MARKS)


def is_declared(path: PurePath) -> bool:
    """Return whether NAMES lists a file, given by its path relative to the run folder.

    >>> is_declared(PurePath("curves/filters-removed.json")), is_declared(PurePath("notes.txt"))
    (True, False)
    """
    top = path.parts[0]
    return f"{top}/" in NAMES if len(path.parts) > 1 else top in NAMES


def _file_part(kind: str) -> str:
    """Return the name of a kind without the colon of N:M, which Windows does not allow in file names."""
    return kind.replace(":", "-")
