"""What the files of a run folder contain, as frozen records. Metrics are in percent where they are accuracies or mean IoU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any

from sparsefw.recovery_words import AUTO, REFIT

Figures = Mapping[str, float]  # the metrics of a task by name, such as "loss" and "accuracy"


class RunKind(StrEnum):
    """Whether a network was trained once, or pruned and trained again."""

    TRAINED = "trained"
    RETRAINED = "retrained"


class RunStatus(StrEnum):
    """How far a run has come."""

    FINISHED = "finished"
    FAILED = "failed"
    UNFINISHED = "unfinished"


@dataclass(frozen=True)
class RetrainingPhase:
    """Which phase of which retraining a run is.

    source      folder of the run whose network was pruned first
    removed     fraction of the weights that are zero in this phase
    """

    source: str
    removed: float
    schedule: str
    phase: int
    phases: int


@dataclass(frozen=True)
class SweepJob:
    """Which job of which sweep a run is.

    job     number of the configuration in its row
    final   whether the run gives the test figures of a chosen configuration on a further seed
    """

    sweep: str
    row: str
    job: str
    final: bool


@dataclass(frozen=True)
class RunFacts:
    """run.json: what the run is, recorded when it begins.

    name        of the configuration
    label       of the method in tables and figures, such as "SparseFW filters k=0.3"
    family      the label without settings, such as "SparseFW filters"
    metric      the figure of merit, a key of the task's metrics
    phase       None unless `sparsefw retrain` made the run
    job         None unless a sweep made the run
    """

    name: str
    kind: RunKind
    label: str
    family: str
    seed: int
    metric: str
    phase: RetrainingPhase | None = None
    job: SweepJob | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ConfigRecord:
    """config.yaml: the whole configuration as plain values."""

    values: Mapping[str, Any]

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section such as "train"; empty if the configuration has none."""
        section = self.values.get(name)
        return section if isinstance(section, Mapping) else {}

    @property
    def task(self) -> str:
        """The network and the data: runs of one task can be compared."""
        return f"{self._name_of('model')} on {self._name_of('data')}"

    @property
    def method(self) -> str:
        """The registered name of the method, such as "sgd"."""
        return str(self.section("method")["name"])

    @property
    def epochs(self) -> int | None:
        """The planned length of the training."""
        epochs = self.section("train").get("epochs")
        return epochs if isinstance(epochs, int) else None

    @property
    def calibration(self) -> int | None:
        """The number of calibration images unless a command is given another one."""
        images = self.section("curve").get("calibration")
        return images if isinstance(images, int) else None

    def _name_of(self, section: str) -> str:
        value = self.values.get(section)
        return str(value.get("name", "?")) if isinstance(value, Mapping) else str(value or "?")


@dataclass(frozen=True)
class EnvironmentRecord:
    """environment.json: versions, hardware, date, version of the code; data: the folder that the data were read from."""

    versions: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    date: str | None = None
    code: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class DataChange:
    """A change of the data that was accepted by --data-changed.

    what    what had changed
    step    of the training, which went on with the changed data; None: they were read after the training
    """

    what: str
    step: int | None

    def __str__(self) -> str:
        when = "after the training" if self.step is None else f"from step {self.step:,} on"
        return f"other data were accepted {when}: {self.what}"


@dataclass(frozen=True)
class DataRecord:
    """data.json.

    fingerprint    of every part of the data: of the images that the training read last
    """

    fingerprint: Mapping[str, Mapping[str, int | str]]
    changes: tuple[DataChange, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ConstraintFigures:
    """How far the constraint has come, over all constrained weights or in one layer.

    renewed        how often the weights were renewed
    decayed        share of filters, directions or weights below 5 % of the largest of their layer
    compressible   share of the norm in the magnitudes that would be kept
    clamped        share of the steps whose size was cut at 1
    """

    renewed: float | None = None
    decayed: float | None = None
    compressible: float | None = None
    clamped: float | None = None


@dataclass(frozen=True)
class ObservedFigures:
    """Quantities that the configuration asks to observe; None where it does not."""

    gradient_norm: float | None = None
    distance: float | None = None


@dataclass(frozen=True)
class EpochFigures:
    """The figures of one epoch; None where they were not due.

    layers   name of a constrained weight -> its part of `constraint`
    """

    train: Figures
    validation: Figures | None = None
    constraint: ConstraintFigures | None = None
    observed: ObservedFigures | None = None
    layers: Mapping[str, ConstraintFigures] = field(default_factory=dict)

    def to_json(self) -> dict[str, dict[str, Any]]:
        parts = {name: getattr(self, name) for name in ("train", "validation", "constraint", "observed")}
        tables: dict[str, dict[str, Any]] = {name: _table(part) for name, part in parts.items() if part is not None}
        return tables | ({"layers": {name: _table(part) for name, part in self.layers.items()}} if self.layers else {})


def _table(figures: Any) -> dict[str, float]:
    table = dict(figures) if isinstance(figures, Mapping) else asdict(figures)
    return {name: value for name, value in table.items() if value is not None}


@dataclass(frozen=True)
class EpochRecord:
    """A line of metrics.jsonl. seconds: of training so far; lr: of the last step; run: identity. What it lacks is None."""

    epoch: int
    step: int | None
    seconds: float | None
    images_per_second: float | None
    lr: float | None
    figures: EpochFigures
    run: str | None = None

    def to_json(self) -> dict[str, Any]:
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "figures"}
        return {**others, **self.figures.to_json()}


@dataclass(frozen=True)
class ResultRecord:
    """result.json: the metrics of the trained network. Fields that the file lacks are None.

    seconds    spent in training steps
    model      SHA-256 of model.safetensors
    run        identity of the run
    """

    metric: str
    validation: Figures | None
    test: Figures | None
    steps: int | None = None
    seconds: float | None = None
    images_per_second: float | None = None
    skipped_images: int = 0
    warnings: tuple[str, ...] = ()
    model: str | None = None
    run: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "warnings": list(self.warnings)}


@dataclass(frozen=True)
class ModelRecord:
    """The header of model.safetensors: the network's name and arguments, the data it was trained on, the identity of its run."""

    name: str
    arguments: Mapping[str, Any]
    shape: tuple[int, ...]
    task: str
    classes: int
    run: str

    def to_json(self) -> dict[str, Any]:
        built_from = {"name": self.name, "arguments": dict(self.arguments)}
        data = {"shape": list(self.shape), "task": self.task, "classes": self.classes}
        return {**data, "model": built_from, "run": self.run}


@dataclass(frozen=True)
class Size:
    """The size of a network; None where it was not measured. A masked network has no size of its own."""

    parameters: float | None = None
    macs: float | None = None
    bytes: float | None = None
    milliseconds: float | None = None


SIZES = tuple(f.name for f in fields(Size))


@dataclass(frozen=True)
class CurveSettings:
    """Settings that the figures of a curve depend on.

    calibration   number of images; None where it was not recorded
    refit         whether weights were fitted; "auto": at every ratio, the better of both was chosen
    """

    score: str = "l1"
    allocation: str | None = None
    calibration: int | None = None
    refit: bool | str = AUTO


@dataclass(frozen=True)
class RecordedPoint:
    """A curve at one ratio.

    plain    nan if too much is removed to compute finite outputs
    refit    None if nothing was refitted
    chosen   "plain" or "refit", whichever follows the dense network better without labels; None if that was not asked for
    """

    ratio: float
    plain: float
    refit: float | None
    size: Size = field(default_factory=Size)
    distance: float | None = None
    chosen: str | None = None

    @property
    def metric(self) -> float | None:
        """The metric with the chosen recovery; None if none was chosen."""
        return None if self.chosen is None else self.refit if self.chosen == REFIT else self.plain


@dataclass(frozen=True)
class CurveRecord:
    """A file of curves/: the metric, in percent, of the network, a SHA-256 in `model`, and at every ratio removed."""

    kind: str
    form: str
    metric: str
    split: str
    settings: CurveSettings
    dense: float
    size: Size
    points: tuple[RecordedPoint, ...]
    model: str | None = None

    def to_json(self) -> dict[str, Any]:
        points = [
            {
                "ratio": point.ratio,
                "plain": point.plain,
                "refit": point.refit,
                "chosen": point.chosen,
                "distance": point.distance,
                "costs": _costs(point.size),
                "milliseconds": point.size.milliseconds,
            }
            for point in self.points
        ]
        return {
            "kind": self.kind,
            "form": self.form,
            "dense": self.dense,
            "dense_costs": _costs(self.size),
            "dense_milliseconds": self.size.milliseconds,
            "points": points,
            "metric": self.metric,
            "split": self.split,
            "model": self.model,
            **asdict(self.settings),
        }


def _costs(size: Size) -> dict[str, float | None] | None:
    costs = {name: getattr(size, name) for name in ("parameters", "macs", "bytes")}
    return None if all(value is None for value in costs.values()) else costs


@dataclass(frozen=True)
class Spectrum:
    """Magnitudes of a layer, largest first: those at `index`, out of `count`."""

    count: int
    index: tuple[int, ...]
    value: tuple[float, ...]


@dataclass(frozen=True)
class SpectraRecord:
    """spectra.json. layers: layer -> name of a kind -> magnitudes; left_out: layer -> reason; model: SHA-256 of its file."""

    layers: Mapping[str, Mapping[str, Spectrum]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RetrainingRequest:
    """retrain.json: the arguments of a retraining. run: digest of the weights that it starts from."""

    run: str
    weights: float
    epochs: int
    schedule: str
    phases: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
