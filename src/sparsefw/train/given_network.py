"""A network that was trained elsewhere: its name and a file of weights, or a folder that holds both. No code in it is run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from sparsefw.compression import Curve, load
from sparsefw.compression.recovery.calibration import run
from sparsefw.config_base import ConfigError
from sparsefw.data.batches import DataPart
from sparsefw.data.own_images import ARRAYS, InputForm, labelled_images, read_arrays, unlabelled_images
from sparsefw.kinds import FILTERS, Kind, kind_of
from sparsefw.models import MODELS, build_named, load_weights, open_pretrained, read_weights
from sparsefw.models.own_networks import is_own_network
from sparsefw.models.pretrained_folder import CONFIG
from sparsefw.recovery_words import SYNTHETIC
from sparsefw.runfolder import Split
from sparsefw.text import did_you_mean, first_line
from sparsefw.train.config import LEAST_CALIBRATION, CurveConfig
from sparsefw.train.engine import Engine, evaluation_engine
from sparsefw.train.input_form import FormOptions, input_form
from sparsefw.train.subject import Subject
from sparsefw.train.tasks import Classification

PLAN = "plan.json"  # of what `save` writes
IMAGES = 1024  # that calibrate, at most, if nothing else is said


class Logits(nn.Module):
    """The scores of the classes that a network of transformers gives beside other outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        output = self.model(x)
        return getattr(output, "logits", output)


@dataclass(frozen=True)
class GivenNetwork(Subject):
    """A network with weights, the form of its inputs, and the folders of images that the user has for it.

    given    its name or folder, as the user typed it
    record   its name and arguments, as `sparsefw.models.build` takes them
    form     how images become its inputs; why that is not known, where nothing says it: only files of arrays do not need it
    images   at most so many calibrate
    parts    the images with labels, by split
    """

    given: str
    model: nn.Module
    engine: Engine
    task: Classification
    record: Mapping[str, Any]
    form: InputForm | str
    images: int = IMAGES
    parts: Mapping[str, DataPart] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.given

    def inputs(self, calibration: int | str | Path | None) -> dict[str, Any]:
        """Return the arguments calibration= and example= of compress.

        Args:
            calibration: a folder of images, a file of arrays, or the word for synthetic inputs.
        """
        if calibration == SYNTHETIC:
            return {"calibration": SYNTHETIC, "example": self._example(2)}
        if not isinstance(calibration, Path):
            number = "" if calibration is None else f"there are no training images to take {calibration} from; "
            raise ConfigError(
                f"{self.name}: {number}give --calibration FOLDER, some hundred images without labels, or "
                f"--calibration {SYNTHETIC} where there are none"
            )
        if calibration.suffix in ARRAYS:
            return {"calibration": read_arrays(calibration)}
        images = unlabelled_images(calibration, self.known_form(), self.engine.device, self.engine.workers)
        if len(images) < LEAST_CALIBRATION:
            raise ConfigError(f"{calibration} holds one image; calibration needs at least {LEAST_CALIBRATION}")
        return {"calibration": images.sample(self.images)}

    def part(self, split: str) -> DataPart:
        if split not in self.parts:
            raise ConfigError(
                f"{self.name} has no {split} images with labels: give --evaluate FOLDER, with a folder of images per class"
            )
        return self.parts[split]

    @property
    def reported(self) -> str | None:
        return Split.TEST if Split.TEST in self.parts else None

    def metrics(self, model: nn.Module, split: str = Split.TEST) -> dict[str, float]:
        return super().metrics(Logits(model), split)

    def curve(
        self,
        kind: Kind | str | None = None,
        at: Sequence[float] | None = None,
        form: str = "removed",
        split: str = Split.TEST,
        calibration: Any = None,
        **how: Any,
    ) -> Curve:
        """Compute a curve, accuracy against ratio.

        Args:
            kind, at: None: filters, at the ratios that recipes have.
            form, split: see `sparsefw.curve` and Subject.metrics.
            calibration: see inputs.
            how: further arguments of `sparsefw.curve`.
        """
        kind = FILTERS if kind is None else kind_of(kind)
        ratios = CurveConfig().at if kind.only_ratio is None else (kind.only_ratio,)
        return self.measured_curve(kind, ratios if at is None else at, form, split, calibration, **how)

    def known_form(self) -> InputForm:
        """Return how images become inputs; ConfigError if nothing says it."""
        if not isinstance(self.form, InputForm):
            raise ConfigError(self.form)
        return self.form

    def _example(self, items: int) -> Tensor:
        return torch.zeros(items, *self.known_form().shape, device=self.engine.device)


def open_network(
    given: str,
    weights: Path | None = None,
    arguments: Sequence[str] = (),
    *,
    options: FormOptions = FormOptions(),
    evaluate: Path | None = None,
    halves: bool = False,
    images: int = IMAGES,
    device: str = "auto",
    trust: bool = False,
) -> GivenNetwork:
    """Build a network, load its weights, and open the images to evaluate it on.

    Args:
        given: its name, such as "timm:resnet18"; or a folder of `save`, or of save_pretrained of transformers.
        weights: a .safetensors, .pt or .pth file, for networks that are given by name.
        arguments: of the network's constructor, such as "num_classes=10".
        options: how images become inputs, where the library's own way is not meant.
        evaluate: a folder of images in a folder per class.
        halves: half of these images is for choosing (the validation images), the other for reporting (the test images).
        images: the largest number of images to calibrate on.
        trust: whether Python code that makes the network may be imported, which runs it.
    """
    if images < LEAST_CALIBRATION:
        raise ConfigError(f"--images {images}: must be at least {LEAST_CALIBRATION}")
    engine = evaluation_engine(device)
    folder = Path(given)
    if folder.is_dir():
        if weights is not None or arguments:
            raise ConfigError(f"{given} is a folder with weights of its own: leave --checkpoint and --argument out")
        model, record = _from_folder(folder)
        form_folder = folder if (folder / CONFIG).is_file() else None
    else:
        model, record = _by_name(given, weights, arguments, trust)
        form_folder = None
    model = engine.place(model.eval())
    form: InputForm | str
    try:
        form = input_form(model, record, form_folder, options)
    except ConfigError as error:
        if evaluate is not None or any(option is not None for option in options):
            raise
        form = str(error)  # files of arrays need none
    network = GivenNetwork(given, model, engine, Classification(1), record, form, images)
    if evaluate is None:
        return network
    return _with_labels(network, evaluate, halves)


def _with_labels(network: GivenNetwork, folder: Path, halves: bool) -> GivenNetwork:
    """Return the network with images to evaluate it on."""
    scores = run(Logits(network.model), network._example(2), "--evaluate")
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        raise ConfigError(f"{network.name} does not give a score per class: only classifiers are evaluated on a folder")
    classes = int(scores.shape[1])
    engine = network.engine
    parts = labelled_images(folder, network.known_form(), classes, engine.device, engine.workers, halves)
    splits = (Split.VALIDATION, Split.TEST) if halves else (Split.TEST,)
    by_split: dict[str, DataPart] = dict(zip(splits, parts, strict=True))
    return replace(network, task=Classification(classes), parts=by_split)


def _from_folder(folder: Path) -> tuple[nn.Module, Mapping[str, Any]]:
    if (folder / PLAN).is_file():
        small = load(folder)
        return small.model, _record(small.model)
    if (folder / CONFIG).is_file():
        model = open_pretrained(folder)
        return model, _record(model)
    raise ConfigError(
        f"{folder} is not a run folder: it has no config.yaml; nor a network: it has no {PLAN} of `save`, and no {CONFIG} of "
        "transformers"
    )


def _record(model: nn.Module) -> Mapping[str, Any]:
    record: Any = getattr(model, "built_from", None)
    return record if isinstance(record, dict) else {"name": type(model).__name__, "arguments": {}}


def _by_name(
    name: str, weights: Path | None, arguments: Sequence[str], trust: bool
) -> tuple[nn.Module, Mapping[str, Any]]:
    if name not in MODELS and ":" not in name:
        hint = did_you_mean(name, MODELS)
        raise ConfigError(
            f"{name} is neither a run folder nor another folder, and no name of a network{hint}; such as timm:resnet18, "
            "torchvision:resnet18, or one of `sparsefw list models`"
        )
    if weights is None:
        raise ConfigError(f"{name} is the name of a network: give its trained weights by --checkpoint FILE")
    model = build_named(name, _parsed(arguments), trust=trust, field="NETWORK")
    try:
        load_weights(model, weights)
    except ValueError as error:
        misfit = str(error).partition("; leave_out=")[0].partition("; into=")[0]  # what Python users can do
        raise ConfigError(f"{misfit}{_hint_at_classes(name, model, weights)}") from None
    return model, _record(model)


def _parsed(arguments: Iterable[str]) -> dict[str, Any]:
    """Return arguments such as "num_classes=10"; their values are YAML, as those of --set."""
    parsed: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key:
            raise ConfigError(f"--argument {argument}: write KEY=VALUE, such as num_classes=10")
        try:
            parsed[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--argument {argument}: {first_line(error)}") from None
    return parsed


def _hint_at_classes(name: str, model: nn.Module, weights: Path) -> str:
    """Return the argument with which the network has the classes of the weights, where nothing else differs."""
    try:
        _, found = read_weights(weights)
    except ValueError:
        return ""
    shapes = {key: tensor.shape for key, tensor in model.state_dict().items()}
    heads = [key for key, tensor in found.items() if key in shapes and tensor.shape != shapes[key]]
    counts = {len(found[key]) for key in heads if found[key].ndim and found[key].shape[1:] == shapes[key][1:]}
    if len(counts) != 1 or not set(shapes) <= {*found, *(k for k in shapes if k.endswith("num_batches_tracked"))}:
        return ""
    word = "classes" if name in MODELS else "num_classes"
    return "" if is_own_network(name) else f"; --argument {word}={counts.pop()} builds a network for these"
