"""NUC: SGD with a penalty on the nuclear norms of the convolutions, the rival of low-rank constraints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from sparsefw.methods.base import Method, OptimizerSettings, register
from sparsefw.methods.sgd import SGD
from sparsefw.optim import SFW
from sparsefw.optim.rules import Rule, find


@register
class NUC(Method):
    """SGD on loss + strength * sum of ||W||_* over the layers that SparseFW's "rank" constrains, W a matrix of filters x rest.

    The gradient of ||W||_* is U V^T where W = U S V^T: it takes a full SVD of every layer in every step.
    """

    title: ClassVar[str] = "NUC"
    paper: ClassVar[str] = (
        "Tai, Xiao, Zhang, Wang, E: Convolutional neural networks with low-rank regularization, ICLR 2016"
    )
    captured: ClassVar[bool] = False  # an SVD asks the device whether it has converged

    name: Literal["nuc"] = "nuc"
    strength: float = Field(default=1e-4, ge=0, allow_inf_nan=False)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        _matrices(model)  # a network without convolutions is refused before anything is trained
        return SGD().optimizer(model, settings, report)

    def penalty(self, model: nn.Module) -> Tensor | None:
        if not self.strength:
            return None
        # Of the singular values alone, not of U and V: their gradients have no differences of singular values in a
        # denominator, and where some are equal or 0 the result is still a subgradient.
        norms = [torch.linalg.svdvals(matrix).sum() for matrix in _matrices(model)]
        return self.strength * torch.stack(norms).sum()


def _matrices(model: nn.Module) -> list[Tensor]:
    """The weights of the convolutions that are trained, each as filters x (channels * height * width)."""
    found = [c for c in find(model, [Rule(kind="rank")]) if c.rule is not None]
    return [c.parameter.movedim(c.axis, 0).flatten(1) for c in found]
