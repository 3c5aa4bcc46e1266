"""RunConfig: everything that a training run depends on, typed. Recipes are parsed into it, and run folders keep it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, ValidationInfo, model_validator

from sparsefw.compression.settings import MASKED
from sparsefw.compression.sizes import check_range
from sparsefw.config_base import KindName, Section, parse
from sparsefw.data.loaders import DataConfig
from sparsefw.kinds import Kind, kind_of
from sparsefw.methods import SGD, Method, method_from, with_code
from sparsefw.models import require_trusted_network
from sparsefw.train.schedule import Schedule

LEAST_CALIBRATION = 2  # images: a single one has no variance, which BatchNorm statistics need
MOST_EPOCHS = 1_000_000


class WeightsConfig(Section):
    """Weights to start from.

    file         safetensors, or a .pth from which only tensors are read
    into         the part of the network that they are loaded into: "backbone" for those of a classifier in a PSPNet
    leave_out    names that are not loaded, such as "fc.*" where the classes of the file differ
    """

    file: Path
    into: str | None = None
    leave_out: tuple[str, ...] = ()


class ModelConfig(Section):
    """The network. The data give the numbers of classes and of input channels, unless `arguments` say otherwise.

    name        of `sparsefw list models`, or "timm:NAME", "torchvision:NAME", or "package.module:Attribute", a class or function
                of the user's, which is called with the arguments only, and imported only with trust
    """

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    weights: WeightsConfig | None = None


class TrainConfig(Section):
    """The length and the step sizes of a training.

    lr, momentum     of all weights
    weight_decay     of the unconstrained weights
    rest, rest_lr    optimizer of the unconstrained weights, "sgd" or "adamw", and its learning rate; None: lr
    mixup            alpha of the Beta distribution by which images are mixed in pairs; 0: not at all
    ema              decay per step of an average of the weights, which is evaluated and saved in their place; None: no average
    evaluate_every   epochs between evaluations on the validation images
    """

    epochs: int = Field(ge=1, le=MOST_EPOCHS)
    lr: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    nesterov: bool = False
    rest: Literal["sgd", "adamw"] = "sgd"
    rest_lr: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    schedule: Schedule = Schedule()
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    mixup: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    ema: float | None = Field(default=None, gt=0, lt=1)
    evaluate_every: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _momentum_for_nesterov(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov=True needs a momentum above 0")
        return self


class SizesConfig(Section):
    """Training over sizes: in every step, a part of the batch sees the network at a size that is drawn for the step.

    kind           the units that go; None: those that the method prepares for removal
    form           "removed": channels with all that belongs to them, as in compress; "masked": each layer's own filters
    share          of the images that see the smaller network
    draws          how many sizes are drawn for a step, one from each of so many equal parts of the distribution
    both           every image sees the whole network and a smaller one, at twice the cost; share is then the weight of the latter
    targets        what smaller networks learn: the "labels", or the "outputs" of the whole network, which needs both
    between        the least and the largest share of the units that is removed; None: 0 and 0.95, of weights 0.995
    distribution   what is uniform: the kept "width" (the default), the kept "parameters", or the "logarithm" of the width (the
                   default for weights), which draws more small networks
    score          by which channels are ranked: "l1", "l2" or "bn"; None: that of the kind
    """

    kind: KindName | None = None
    form: Literal["removed", "masked"] = "removed"
    share: float = Field(default=0.5, gt=0, lt=1)
    draws: int = Field(default=1, ge=1)
    both: bool = False
    targets: Literal["labels", "outputs"] = "labels"
    between: tuple[float, float] | None = None
    distribution: str | None = None
    score: Literal["l1", "l2", "bn"] | None = None

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        check_range(self.between, self.distribution)
        return self

    @model_validator(mode="after")
    def _outputs_of_the_same_images(self) -> Self:
        if self.targets == "outputs" and not self.both:
            raise ValueError("targets=outputs are those of the whole network for the same images: it needs both=true")
        return self


# Twice the cost, better at every size: the whole network learns from the labels, and teaches four smaller ones.
TAUGHT = {"both": True, "targets": "outputs", "draws": 4, "distribution": "logarithm"}


class EngineConfig(Section):
    """Where and in which precision a training runs. None: the fastest setting that is safe on the machine.

    device              "auto", "cpu", "cuda", "cuda:1"
    precision           "auto": bf16 on a GPU that has it, else fp32; "fp16" scales the loss
    accumulate          number of parts in which a batch is processed if it does not fit into memory (batch norms see single
                        parts, and the loss of label maps is the mean over parts of means over labelled pixels)
    workers             processes that decode the images of streamed data sets
    checkpoint_seconds  time between checkpoints, which is the most that a kill costs
    """

    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    channels_last: bool | None = None
    compile: bool | None = None
    cuda_graph: bool | None = None
    sync_batchnorm: bool | None = None
    accumulate: int = Field(default=1, ge=1)
    workers: int | None = Field(default=None, ge=0)
    checkpoint_seconds: float = Field(default=60.0, ge=0)


class CurveConfig(Section):
    """The defaults of `sparsefw curve`.

    kind          None: the kind that the method prepares the network for
    at            ratios to remove
    calibration   number of images
    """

    kind: KindName | None = None
    at: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    calibration: int = Field(default=4096, ge=LEAST_CALIBRATION)

    @model_validator(mode="after")
    def _fractions(self) -> Self:
        if not self.at or any(not 0 <= ratio < 1 for ratio in self.at):
            raise ValueError(f"at={list(self.at)}: ratios to remove must be in [0, 1), at least one")
        return self


class ObserveConfig(Section):
    """Further figures of every epoch, for those who study a training. They cost a little time.

    distance    ||W - C(W)|| / ||W||, where C removes this fraction of the curve's kind
    gradients   the norm of the batches' gradients, over all parameters, averaged over the epoch's steps
    """

    distance: float | None = Field(default=None, gt=0, lt=1)
    gradients: bool = False


def _method(values: Any, info: ValidationInfo) -> Method:
    return method_from(values, **(info.context or {}))


def _printable(name: str) -> str:
    """Return the name, which messages, tables and figures show; escape sequences would control the terminal."""
    if not name.isprintable():
        raise ValueError(f"name={name!r}: must be printable, in one line")
    return name


class RunConfig(Section):
    """The configuration of one training run."""

    name: Annotated[str, AfterValidator(_printable)]
    seed: int = Field(default=0, ge=0, le=2**63 - 1)  # what generators of random numbers take
    data: DataConfig
    model: ModelConfig
    method: Annotated[SerializeAsAny[Method], BeforeValidator(_method)]
    train: TrainConfig
    sizes: SizesConfig | None = None
    engine: EngineConfig = EngineConfig()
    curve: CurveConfig = CurveConfig()
    observe: ObserveConfig = ObserveConfig()
    track: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ()

    @model_validator(mode="after")
    def _batches(self) -> Self:
        if self.data.batch_size % self.engine.accumulate:
            raise ValueError(
                f"engine.accumulate={self.engine.accumulate} does not divide data.batch_size={self.data.batch_size}"
            )
        return self

    @property
    def label(self) -> str:
        """The name of the run in tables and figures."""
        adamw_alone = isinstance(self.method, SGD) and self.train.rest == "adamw"
        method = "AdamW" if adamw_alone else self.method.label
        if self.sizes is None:
            return method
        return f"{method} over sizes" + ", fine-tuned" * (self.model.weights is not None)

    @property
    def sizes_kind(self) -> Kind:
        """The kind whose sizes the training draws: that of the sizes, or the one that the method prepares for."""
        named = None if self.sizes is None else self.sizes.kind
        return self.method.prepares if named is None else kind_of(named)

    @property
    def curve_kind(self) -> Kind:
        """The kind that is removed after training: that of the curve, or the one that the training prepares for."""
        return self.sizes_kind if self.curve.kind is None else kind_of(self.curve.kind)

    def ratios(self, kind: Kind) -> tuple[float, ...]:
        """Return the ratios at which `sparsefw curve` removes this kind by default."""
        if kind.only_ratio is not None:
            return (kind.only_ratio,)
        return self.curve.at if kind == self.curve_kind else CurveConfig().at

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.train.epochs < self.method.min_epochs:
            raise ValueError(
                f"train.epochs={self.train.epochs}: {self.method.label} needs at least {self.method.min_epochs}"
            )
        return self

    @model_validator(mode="after")
    def _average(self) -> Self:
        if self.train.ema is not None and not self.method.allows_averaging:
            raise ValueError(
                f"train.ema does not go with method.name={self.method.name}: the average of its weights lacks their structure"
            )
        return self

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.sizes is None:
            return self
        kind = self.sizes_kind
        if self.method.passes > 1:
            raise ValueError(
                f"sizes: method.name={self.method.name} passes {self.method.passes} times over a batch, each time with other "
                "weights; sizes go with methods that pass once"
            )
        if kind.only_ratio is not None:
            raise ValueError(f"sizes.kind={kind.name}: it removes a fixed share, so there is no size to draw")
        if self.sizes.form == MASKED and not kind.of_channels:
            raise ValueError(f"sizes.form=masked is for filters, neurons and heads, not for {kind.name}")
        if self.sizes.score is not None and kind.score is None:
            raise ValueError(f"sizes.score={self.sizes.score}: {kind.name} are ranked by their magnitudes")
        return self

    def with_code(self, trust: bool) -> RunConfig:
        """Return the configuration that can be trained: a method of the user's own is imported, and its settings are checked.

        trust: whether the code that the configuration names may be imported; ValueError if there is any, and it may not.
        """
        require_trusted_network(self.model.name, trust)
        method = with_code(self.method, trust)
        return self if method is self.method else parse(RunConfig, {**self.plain(), "method": method}, self.name)

    def plain(self) -> dict[str, Any]:
        """Return the configuration as plain values, for YAML and JSON."""
        return self.model_dump(mode="json")
