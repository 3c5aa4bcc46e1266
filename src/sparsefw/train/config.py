"""RunConfig: everything that a training run depends on, typed. It is what a recipe becomes and what a run folder keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, model_validator

from sparsefw.config_base import KindName, Section
from sparsefw.data.loaders import DataConfig
from sparsefw.kinds import Kind, kind_of
from sparsefw.methods import Method, method_from
from sparsefw.train.schedule import Schedule


class WeightsConfig(Section):
    """Weights to start from.

    file         safetensors, or a .pth of which nothing but tensors is read
    into         the part of the network they are of: "backbone" puts a classifier's into a PSPNet
    leave_out    names that are not taken, such as "fc.*" where the file's classes are others
    """

    file: Path
    into: str | None = None
    leave_out: tuple[str, ...] = ()


class ModelConfig(Section):
    """Which network. The number of classes and of input channels are the data's, unless `arguments` say otherwise.

    name        of `sparsefw list models`, or "timm:NAME", "torchvision:NAME", or "package.module:function", which is given the
                arguments alone
    """

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    weights: WeightsConfig | None = None


class TrainConfig(Section):
    """How long and how fast.

    lr, momentum     of every method; on what is unconstrained with weight_decay, by `rest`
    rest, rest_lr    "sgd" or "adamw" for what is unconstrained, and its learning rate where it is another one
    mixup            alpha of the Beta distribution by which images are mixed in pairs; 0: not at all
    ema              decay per step of an average of the weights, which is then what is evaluated and saved; None: no average
    evaluate_every   epochs between evaluations on the validation images
    """

    epochs: int = Field(ge=1)
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


class EngineConfig(Section):
    """Where, in which precision and how fast. None: what is fastest and safe here.

    device              "auto", "cpu", "cuda", "cuda:1"
    precision           "auto": bf16 on a GPU that has it, else fp32; "fp16" scales the loss
    accumulate          parts into which a batch is cut, one after the other, where it does not fit into memory (batch norms
                        see the parts, and the loss of label maps is the mean over parts of means over labelled pixels)
    workers             processes that decode images of streamed sets
    checkpoint_seconds  time between checkpoints; what a kill costs at most
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
    """What `sparsefw curve` looks at unless told otherwise: the kind (None: what the method prepares for), and the ratios."""

    kind: KindName | None = None
    at: tuple[float, ...] = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    calibration: int = Field(default=4096, ge=2)

    @model_validator(mode="after")
    def _fractions(self) -> Self:
        if not self.at or any(not 0 <= ratio < 1 for ratio in self.at):
            raise ValueError(f"at={list(self.at)}: ratios to remove must be in [0, 1), at least one")
        return self


class ObserveConfig(Section):
    """What else metrics.jsonl tells of every epoch, for those who study a training. It costs a little time.

    distance    ||W - C(W)|| / ||W|| to the network without this fraction of what is to be removed
    gradients   the norm of the batches' gradients, over all parameters, averaged over the epoch's steps
    """

    distance: float | None = Field(default=None, gt=0, lt=1)
    gradients: bool = False


def _method(values: Any, info: ValidationInfo) -> Method:
    return method_from(values, **(info.context or {}))


class RunConfig(Section):
    """One training run."""

    name: str
    seed: int = Field(default=0, ge=0)
    data: DataConfig
    model: ModelConfig
    method: Annotated[SerializeAsAny[Method], BeforeValidator(_method)]
    train: TrainConfig
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
        """What the run is called in tables and figures."""
        plain = self.method.name == "sgd" and self.train.rest == "adamw"
        return "AdamW" if plain else self.method.label

    @property
    def curve_kind(self) -> Kind:
        """What is removed after training, unless said otherwise: what the method prepares for."""
        return self.method.prepares if self.curve.kind is None else kind_of(self.curve.kind)

    def ratios(self, kind: Kind) -> tuple[float, ...]:
        """How much of it `sparsefw curve` removes, unless said otherwise."""
        if kind.only_ratio is not None:
            return (kind.only_ratio,)
        return self.curve.at if kind == self.curve_kind else CurveConfig().at

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if self.train.epochs < self.method.least_epochs:
            raise ValueError(
                f"train.epochs={self.train.epochs}: {self.method.label} needs at least {self.method.least_epochs}"
            )
        return self

    @model_validator(mode="after")
    def _average(self) -> Self:
        if self.train.ema is not None and not self.method.averages:
            raise ValueError(
                f"train.ema does not go with method.name={self.method.name}: an average of its weights is not what they are"
            )
        return self

    def plain(self) -> dict[str, Any]:
        """As YAML and JSON keep it."""
        return self.model_dump(mode="json")
