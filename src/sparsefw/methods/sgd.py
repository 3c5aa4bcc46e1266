"""SGD with momentum (or AdamW): the baseline, trained without a thought of compression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from torch import nn

from sparsefw.methods.base import Method, OptimizerSettings, register
from sparsefw.optim import SFW


@register
class SGD(Method):
    """theta <- theta - lr m, with m <- momentum m + gradient + weight_decay theta."""

    title: ClassVar[str] = "SGD"
    paper: ClassVar[str] = "Robbins, Monro: A Stochastic Approximation Method, 1951"

    name: Literal["sgd"] = "sgd"

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        return settings.make([{"params": trained, "region": None}])
