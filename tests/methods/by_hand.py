"""One step of a method on one layer whose gradient is given, so that its result can be computed on paper."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsefw.methods import Batch, Method
from sparsefw.optim import SFW
from train.harness import settings

Rows = Sequence[Sequence[float]]


def layer(rows: Rows) -> nn.Sequential:
    """Return a convolution with these filters, one number per input channel."""
    weight = torch.tensor(rows, dtype=torch.float32)
    conv = nn.Conv2d(weight.shape[1], weight.shape[0], 1, bias=False)
    conv.weight = nn.Parameter(weight[:, :, None, None].clone())
    return nn.Sequential(conv)


def filters(net: nn.Module) -> Tensor:
    return net[0].weight.detach().flatten(1)


def optimizer_of(method: Method, net: nn.Module, lr: float, **changes) -> SFW:
    plain = {"lr": lr, "rest_lr": lr, "momentum": 0.0, "weight_decay": 0.0, "steps": 100}
    return method.optimizer(net, settings(**{**plain, **changes}), None)


def step(method: Method, rows: Rows, gradient: Rows | None = None, lr: float = 0.5) -> Tensor:
    """Return the filters after one step from `rows`, with this gradient of the loss (default 0)."""
    net = layer(rows)
    optimizer = optimizer_of(method, net, lr)
    net[0].weight.grad = torch.zeros_like(net[0].weight)
    if gradient is not None:
        net[0].weight.grad.copy_(torch.tensor(gradient)[:, :, None, None])
    method.adjust(net)
    optimizer.step()
    method.after_step(net, optimizer)
    return filters(net)


def after_epoch(method: Method, rows: Rows, epoch: int, epochs: int, lr: float = 0.5) -> Tensor:
    net = layer(rows)
    method.after_epoch(net, optimizer_of(method, net, lr), epoch, epochs)
    return filters(net)


class Bowl:
    """The backward pass of the loss 1/2 sum of curvature_i (theta_i - bottom_i)^2; records the weights of every pass."""

    def __init__(self, net: nn.Module, bottom: Rows, curvature: Rows | None = None, scale: float = 1.0) -> None:
        self._weight, self._bottom, self.scale = net[0].weight, torch.tensor(bottom), scale
        self._curvature = torch.ones_like(self._bottom) if curvature is None else torch.tensor(curvature)
        self.evaluated_at: list[Tensor] = []

    def __call__(self, batch: Batch) -> Tensor:
        weights = self._weight.detach().flatten(1)
        self.evaluated_at.append(weights.clone())
        gradient = (self.scale * self._curvature * (weights - self._bottom)).view_as(self._weight)
        self._weight.grad = gradient if self._weight.grad is None else self._weight.grad + gradient
        return torch.zeros(1)


def gradient_of(method: Method, net: nn.Module, backward: Bowl) -> Tensor:
    method.gradients(net, Batch(torch.zeros(1), torch.zeros(1)), backward)
    return net[0].weight.grad.flatten(1) / backward.scale
