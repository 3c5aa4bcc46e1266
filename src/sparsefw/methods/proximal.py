"""The base of methods that follow SGD by a proximal step.

W <- argmin_Y 1/2 ||Y - W||^2 + lr * penalty(Y)
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from torch import Tensor, nn

from sparsefw.methods.base import Method
from sparsefw.optim import SFW


class Proximal(Method):
    """SGD on the loss alone, and a proximal step of length lr after every step or every epoch; none where strength is 0.

    The proximal step does not depend on the loss: it also changes layers that the batch did not use.
    """

    strength: float
    every: Literal["step", "epoch"] = "step"

    @abstractmethod
    def cut(self, model: nn.Module, lr: float | Tensor) -> None:
        """Take the proximal step."""

    def after_step(self, model: nn.Module, optimizer: SFW) -> None:
        if self.strength and self.every == "step":
            self.cut(model, optimizer.param_groups[0]["lr"])

    def after_epoch(self, model: nn.Module, optimizer: SFW, epoch: int, epochs: int) -> None:
        if self.strength and self.every == "epoch":
            self.cut(model, optimizer.param_groups[0]["lr"])
