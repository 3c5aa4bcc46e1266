"""Method, the base of all training methods, and their registry.

A method is a frozen record of its settings, with hooks that the training loop calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from pydantic import ConfigDict
from torch import Tensor, nn

from sparsefw.config_base import ConfigError, Section, parse
from sparsefw.data.batches import Batch
from sparsefw.kinds import FILTERS, Kind
from sparsefw.methods.weight_stacks import weight_stacks
from sparsefw.optim import SFW
from sparsefw.own_code import import_code, names_code
from sparsefw.text import did_you_mean


class Backward(Protocol):
    """One forward and backward pass: adds the gradient of the loss, times `scale`, to .grad and returns sums of metrics."""

    @property
    def scale(self) -> float | Tensor: ...

    def __call__(self, batch: Batch) -> Tensor: ...


class OptimizerSettings(NamedTuple):
    """The settings of the optimizer, which are the same for every method: a comparison then compares methods.

    lr, momentum, weight_decay, nesterov   of the optimizer
    rest       "sgd" or "adamw": the optimizer of parameters without a region
    rest_lr    learning rate of these
    steps      of the whole training
    example    a batch of inputs, for methods that follow channels through the network
    """

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    rest: str
    rest_lr: float
    steps: int
    example: Tensor | None = None

    def make(self, groups: Any, **changes: Any) -> SFW:
        """Return the optimizer of these param groups, with some of its arguments changed."""
        arguments = dict(
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            rest=self.rest,
            rest_lr=self.rest_lr,
        )
        return SFW(groups, **{**arguments, **changes})


class Method(Section):
    """A training method; its fields are its settings. The hooks, in the order in which a run calls them:

    optimizer     once: return the optimizer of the model's parameters
    gradients     every step: add gradients to .grad, by one pass over the batch unless overridden
    adjust        every step, when .grad is the complete, unscaled mean over the batch: add the gradient of a penalty, or mask
    after_step    every step, after the weights have moved and before they are averaged; learning rates may be tensors
    after_epoch   every epoch, after its last step and before the weights are evaluated

    gradients, adjust and after_step are captured in a CUDA graph: they do the same in every step and never wait for the device,
    or `uncapturable` gives the reason. Changes from epoch to epoch belong in after_epoch.

    Class attributes:

    title, paper        for tables
    removes             the kind of units that the method prepares for removal; None: any
    passes              forward and backward passes over the batch in a step; two cost twice as much
    forms               the rows of the method in `sparsefw bench train`: name -> settings; "" stands for the name of the method
    shown_settings      settings that labels in tables and figures always show
    allows_averaging    False: averages of its weights (train.ema) are refused, because they lose the effect of the method
    example             a command that trains by the method
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    removes: ClassVar[Kind | None] = None
    passes: ClassVar[int] = 1
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {"": {}}
    shown_settings: ClassVar[tuple[str, ...]] = ("kind", "k", "strength")
    allows_averaging: ClassVar[bool] = True
    example: ClassVar[str] = "sparsefw train digits-resnet-sgd --set method.name={name}"

    name: str

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        """Return SGD (or AdamW) on all trained parameters; raise ValueError where the network has no weights for the method."""
        if self.removes is not None:
            weight_stacks(model, self.removes)
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        return settings.make([{"params": trained, "region": None}])

    def gradients(self, model: nn.Module, batch: Batch, backward: Backward) -> Tensor:
        return backward(batch)

    def adjust(self, model: nn.Module) -> None:
        return None

    def after_step(self, model: nn.Module, optimizer: SFW) -> None:
        return None

    def after_epoch(self, model: nn.Module, optimizer: SFW, epoch: int, epochs: int) -> None:
        """Change weights or regions after epoch number `epoch`, of 1 to `epochs`."""

    @property
    def uncapturable(self) -> str | None:
        """The reason, in a few words, why steps cannot be captured in a CUDA graph; None where they can."""
        return None

    @property
    def min_epochs(self) -> int:
        """The fewest epochs that the method needs."""
        return 1

    @property
    def prepares(self) -> Kind:
        """The kind of units to remove after training."""
        return self.removes or FILTERS

    @property
    def label(self) -> str:
        """The title and the settings that differ from their defaults, such as "SSL strength=0.01"."""
        words = [self.title]
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            is_shown = value != field.default or name in self.shown_settings
            if name == "name" or value is None or not is_shown:
                continue
            text = f"{value:g}" if isinstance(value, float) else str(value)
            if name == "kind":
                words.append(text)
            else:
                words.append(name if value is True else f"{name}={text}")
        return " ".join(words)

    def overrides(self, hook: str) -> bool:
        """Return whether this method does something in `hook`."""
        return getattr(type(self), hook) is not getattr(Method, hook)


METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound=Method)


def register(method: type[M]) -> type[M]:
    """Class decorator: add a method to METHODS under the default of its field `name`."""
    for attribute in ("title", "paper"):
        if not hasattr(method, attribute):
            raise TypeError(f"method {method.__name__}: the class attribute {attribute!r} is missing")
    METHODS[method_name(method)] = method
    return method


def method_name(method: type[Method]) -> str:
    """Return the name by which configurations call a method.

    >>> method_name(METHODS["ssl"])
    'ssl'
    """
    return str(method.model_fields["name"].default)


class UnknownMethod(Method):
    """A method that a configuration names but that is not registered here: it can be shown and evaluated, but not trained."""

    model_config = ConfigDict(extra="allow", frozen=True)

    title: ClassVar[str] = "own"
    paper: ClassVar[str] = "none"

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        raise ConfigError(f"method.name={self.name!r}: this method is not registered here, so it cannot train")


def find_method(name: str, trust: bool = False) -> type[Method]:
    """Return the class of a registered method, or of a method "module:Class" of the user.

    trust: whether the module of such a method may be imported, which runs it.

    >>> find_method("ssl").title
    'SSL'
    """
    if name not in METHODS and names_code(name):
        _import_user_method(name, trust)
    if name not in METHODS:
        known = f"{', '.join(METHODS)}, and module:Class of your own"
        raise ConfigError(f"method.name={name!r}{did_you_mean(name, METHODS)}; there are {known}")
    return METHODS[name]


def method_from(values: Any, allow_unknown: bool = False) -> Method:
    """Return the method of a table `{name: ..., settings}`; nothing is imported.

    A method "module:Class" that is not registered is an UnknownMethod until `with_code` imports it.

    Args:
        values: the table, or a method.
        allow_unknown: return an UnknownMethod for any other name that is not registered, too.

    >>> method_from({"name": "ssl", "strength": 0.01}).label
    'SSL strength=0.01'
    """
    if isinstance(values, Method):
        return values
    if isinstance(values, str):
        raise ConfigError(f"method={values}: it is a table; a name is given as method.name={values}")
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise ConfigError(f"method: needs a name, one of {', '.join(METHODS)}")
    name = values["name"]
    if name not in METHODS and (names_code(name) or allow_unknown):
        return UnknownMethod(**values)
    return parse(find_method(name), values, "method")


def with_code(method: Method, trust: bool) -> Method:
    """Return the method itself, or for an UnknownMethod "module:Class" the user's, with its settings checked.

    trust: whether the module of the method may be imported, which runs it.
    """
    if not isinstance(method, UnknownMethod):
        return method
    return parse(find_method(method.name, trust), method.model_dump(), "method")


def _import_user_method(name: str, trust: bool) -> None:
    """Import the module of a method "module:Class", whose decorator registers the method under this name."""
    module = import_code("method.name", name, trust).__name__
    if name not in METHODS:
        registered = ", ".join(repr(key) for key, method in METHODS.items() if method.__module__ == module)
        hint = f"it registers {registered}" if registered else "it registers none: is @register above the class?"
        raise ConfigError(f"method.name={name!r}: module {module!r} registers no method of this name; {hint}")
