"""Masked: SGD on the weights that are not 0 at the start. The retraining half of iterative magnitude pruning.

    gradient <- mask * gradient,   mask = 1 where theta != 0 at the start

Han, Pool, Tran, Dally: Learning both Weights and Connections for Efficient Neural Networks, NeurIPS 2015; Renda, Frankle,
Carbin: Comparing Rewinding and Fine-tuning in Neural Network Pruning, ICLR 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.config_base import ConfigError
from sparsefw.kinds import WEIGHTS, Kind
from sparsefw.methods.base import Method, OptimizerSettings, register
from sparsefw.methods.weight_stacks import weight_stacks
from sparsefw.optim import SFW


@register
class Masked(Method):
    """SGD on the weights of convolutions and linear layers that are not 0 at the start: the gradients of the others are 0.

    Their momenta and decays are then 0, too. Training starts from the compressed network of a run (model.weights) and is no
    longer "train once, never retrain"; reports say so.

    removed   the fraction of weights that must be 0 at the start; None: any
    """

    title: ClassVar[str] = "retrained"
    paper: ClassVar[str] = "Han, Pool, Tran, Dally: NeurIPS 2015, arXiv:1506.02626; Renda, Frankle, Carbin: ICLR 2020"
    removes: ClassVar[Kind | None] = WEIGHTS
    example: ClassVar[str] = "sparsefw retrain RUN --weights 0.9 --epochs 5"

    name: Literal["masked"] = "masked"
    removed: float | None = Field(default=None, ge=0, lt=1)

    @property
    def label(self) -> str:
        return self.title if self.removed is None else f"{self.title} {self.removed:.4g}"

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        # A mask needs no state: a resumed run reads the weights of the start again before its checkpoint.
        parameters = [p for stack in weight_stacks(model, WEIGHTS) for p in stack.parameters]
        _MASKS[model] = [(p, (p.detach() != 0).to(p.dtype)) for p in parameters]
        count = sum(p.numel() for p in parameters)
        zeros = 1 - sum(float(mask.sum()) for _, mask in _MASKS[model]) / count
        if self.removed is not None and abs(zeros - self.removed) > 1e-3 + 1 / count:
            raise ConfigError(f"method.removed={self.removed:g}: {zeros:.4g} of the weights are 0; see model.weights")
        return super().optimizer(model, settings, report)

    @torch.no_grad()
    def adjust(self, model: nn.Module) -> None:
        for p, mask in _MASKS[model]:
            if p.grad is not None:
                p.grad.mul_(mask.to(p.device))


_MASKS: WeakKeyDictionary[nn.Module, list[tuple[Tensor, Tensor]]] = WeakKeyDictionary()
