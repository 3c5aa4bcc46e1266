"""Method: how gradients are made, what moves the weights, and what happens between steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from torch import Tensor, nn

from sparsefw.data.batches import Batch
from sparsefw.optim import SFW
from sparsefw.typed import ConfigError, Section, parse
from sparsefw.words import did_you_mean

# Forward, loss and backward on one batch: gradients are added to .grad, sums of metrics come back.
Backward = Callable[[Batch], Tensor]


class OptimizerSettings(NamedTuple):
    """What every method is given alike, so that methods are compared and not their settings."""

    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    rest: str
    rest_lr: float
    steps: int

    def make(self, groups: Any) -> SFW:
        return SFW(
            groups,
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            rest=self.rest,
            rest_lr=self.rest_lr,
        )


class Method(Section, ABC):
    """A training method, which is its own typed configuration. The hooks, in the order in which a run calls them:

    optimizer     once: the optimizer for the model's parameters
    gradients     every step, for every part of its batch: add gradients to .grad. One forward-backward here; methods that
                  look twice override it
    penalty       every step, inside the loss: a term to add to it, or None
    after_step    when the weights have moved
    after_epoch   when an epoch has ended, after its last step

    captured says whether a step may be captured in a CUDA graph: nothing in gradients and penalty waits for the device.
    """

    title: ClassVar[str]
    paper: ClassVar[str]
    captured: ClassVar[bool] = True

    name: str

    @abstractmethod
    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW: ...

    def gradients(self, model: nn.Module, batch: Batch, backward: Backward) -> Tensor:
        return backward(batch)

    def penalty(self, model: nn.Module) -> Tensor | None:
        return None

    def after_step(self, model: nn.Module, step: int, steps: int) -> None:
        return None

    def after_epoch(self, model: nn.Module, epoch: int, epochs: int) -> None:
        return None

    def overrides(self, hook: str) -> bool:
        """Whether this method does something in `hook`, so that the engine need not ask in every step."""
        return getattr(type(self), hook) is not getattr(Method, hook)


METHODS: dict[str, type[Method]] = {}
M = TypeVar("M", bound=Method)


def register(method: type[M]) -> type[M]:
    """Class decorator: the method is known by the default of its field `name`."""
    METHODS[method.model_fields["name"].default] = method
    return method


def method_from(values: Any) -> Method:
    """The method that a table `{name: ..., settings}` describes."""
    if isinstance(values, Method):
        return values
    if not isinstance(values, Mapping) or not isinstance(values.get("name"), str):
        raise ConfigError(f"method: needs a name, one of {', '.join(METHODS)}")
    name = values["name"]
    if name not in METHODS:
        raise ConfigError(f"method.name={name!r}{did_you_mean(name, METHODS)}; there are {', '.join(METHODS)}")
    return parse(METHODS[name], values, "method")
