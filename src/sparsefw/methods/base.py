"""Method: how gradients are made, what moves the weights, and what happens between steps."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from pydantic import ConfigDict
from torch import Tensor, nn

from sparsefw.config_base import ConfigError, Section, parse
from sparsefw.data.batches import Batch
from sparsefw.kinds import FILTERS, Kind
from sparsefw.methods.layers import layers_of
from sparsefw.optim import SFW
from sparsefw.text import did_you_mean


class Backward(Protocol):
    """Forward, loss and backward on a batch: gradients, times `scale`, are added to .grad; sums of metrics come back."""

    @property
    def scale(self) -> float | Tensor: ...

    def __call__(self, batch: Batch) -> Tensor: ...


class OptimizerSettings(NamedTuple):
    """What every method is given alike, so that methods are compared and not their settings."""

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    rest: str
    rest_lr: float
    steps: int
    example: Tensor | None = None  # a batch such as the network gets, for methods that follow it through

    def make(self, groups: Any, **changes: Any) -> SFW:
        usual = dict(
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            rest=self.rest,
            rest_lr=self.rest_lr,
        )
        return SFW(groups, **{**usual, **changes})


class Method(Section):
    """A training method, which is its own typed configuration. The hooks, in the order in which a run calls them:

    optimizer     once: the optimizer for the model's parameters
    gradients     every step: add gradients to .grad. One look at the batch here; methods that look twice override it
    adjust        every step, when .grad is complete: mean over the batch, unscaled. Add what a penalty adds, or mask
    after_step    every step, when the weights have moved, before they are averaged. Learning rates may be tensors
    after_epoch   when an epoch has ended, after its last step, and before the weights are evaluated

    gradients, adjust and after_step are part of the step that is captured in a CUDA graph: they do the same in every step and
    never wait for the device. `uncapturable` says why a method cannot. What changes with the epoch belongs into after_epoch.

    title, paper  for tables
    removes       the kind that it prepares a network for the removal of; None: any
    looks         how often a step looks at its batch: those that do so twice cost twice as much
    forms         its rows in `sparsefw bench train`: a name, and the settings
    told          settings that labels in tables and figures always tell
    averages      False: an average of its weights (train.ema) has not what they have, so it is refused
    example       a command that trains by it
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    removes: ClassVar[Kind | None] = None
    looks: ClassVar[int] = 1
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}
    told: ClassVar[tuple[str, ...]] = ("kind", "k", "strength")
    averages: ClassVar[bool] = True
    example: ClassVar[str] = "sparsefw train digits-resnet-sgd --set method.name={name}"

    name: str

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        """Here SGD (or AdamW) on all that is trained. A network without what the method looks at is refused before it is."""
        if self.removes is not None:
            layers_of(model, self.removes)
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        return settings.make([{"params": trained, "region": None}])

    def gradients(self, model: nn.Module, batch: Batch, backward: Backward) -> Tensor:
        return backward(batch)

    def adjust(self, model: nn.Module) -> None:
        return None

    def after_step(self, model: nn.Module, optimizer: SFW) -> None:
        return None

    def after_epoch(self, model: nn.Module, optimizer: SFW, epoch: int, epochs: int) -> None:
        """`epoch` counts from 1: it is `epochs` after the last one."""

    @property
    def uncapturable(self) -> str | None:
        """Why steps cannot be captured in a CUDA graph, in a few words; None where they can."""
        return None

    @property
    def least_epochs(self) -> int:
        """How many there must be for what changes between them."""
        return 1

    @property
    def prepares(self) -> Kind:
        """What to remove after training."""
        return self.removes or FILTERS

    @property
    def label(self) -> str:
        """Such as "SSL strength=0.01": its title, and the settings that are not the default ones."""
        words = [self.title]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name != "name" and value is not None and (value != field.default or name in self.told):
                plain = f"{value:g}" if isinstance(value, float) else str(value)
                words.append(plain if name == "kind" else name if value is True else f"{name}={plain}")
        return " ".join(words)

    def overrides(self, hook: str) -> bool:
        """Whether this method does something in `hook`."""
        return getattr(type(self), hook) is not getattr(Method, hook)


METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound=Method)


def register(method: type[M]) -> type[M]:
    """Class decorator: the method is known by the default of its field `name`."""
    METHODS[method.model_fields["name"].default] = method
    return method


class Foreign(Method):
    """A method that this program does not know, as a run folder names it: nothing can be trained by it, all else can be done."""

    model_config = ConfigDict(extra="allow", frozen=True)

    title: ClassVar[str] = "own"
    paper: ClassVar[str] = "none"


def find_method(name: str) -> type[Method]:
    """The class of a registered method, or of one of the user's own, "module:Class"."""
    if name not in METHODS and ":" in name:
        _import_own(name)
    if name not in METHODS:
        known = f"{', '.join(METHODS)}, and module:Class of your own"
        raise ConfigError(f"method.name={name!r}{did_you_mean(name, METHODS)}; there are {known}")
    return METHODS[name]


def method_from(values: Any, foreign: bool = False) -> Method:
    """The method that a table `{name: ..., settings}` describes. A name "module:Class" is of a module of the user's own.

    foreign: what is not known is not looked for, since nothing will be trained.
    """
    if isinstance(values, Method):
        return values
    if isinstance(values, str):
        raise ConfigError(f"method={values}: it is a table; a name is given as method.name={values}")
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise ConfigError(f"method: needs a name, one of {', '.join(METHODS)}")
    name = values["name"]
    if name not in METHODS and foreign:
        return Foreign(**values)
    return parse(find_method(name), values, "method")


def _import_own(name: str) -> None:
    """Import, hence run, the module of a method "module:Class"; its decorator registers it under this very name."""
    module = name.partition(":")[0]
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(f"method.name={name!r}: module {module!r} cannot be imported: {error}") from error
        raise ConfigError(f"method.name={name!r}: there is no module {module!r}") from None
    if name not in METHODS:
        there = ", ".join(repr(own) for own, method in METHODS.items() if method.__module__ == module)
        what = f"it registers {there}" if there else "it registers none: is @register above the class?"
        raise ConfigError(f"method.name={name!r}: module {module!r} registers no method of this name; {what}")
