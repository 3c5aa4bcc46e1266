"""Refit by other means, for the tests: one layer refitted, its samples collected, the least-squares problem solved by numpy."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch
from torch import Tensor, nn

from sparsefw.compression.artifact.plan import Keep
from sparsefw.compression.recovery import refit
from sparsefw.compression.recovery.calibration import Calibration
from sparsefw.compression.recovery.cut_network import CutNetwork, Solution
from sparsefw.compression.structure.layers import set_weight

CPU = torch.device("cpu")
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(layer: nn.modules.conv._ConvNd, x: np.ndarray) -> np.ndarray:
    """What a convolution sees, by loops: (images, channels, taps, positions)."""
    axes = len(layer.kernel_size)
    reach = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    if layer.padding == "same":
        margins = [(r // 2, r - r // 2) for r in reach]
    else:
        margins = [(0, 0)] * axes if layer.padding == "valid" else [(p, p) for p in layer.padding]
    padded = np.pad(x, [(0, 0), (0, 0), *margins], mode=MODES[layer.padding_mode])
    counts = [(padded.shape[2 + i] - reach[i] - 1) // layer.stride[i] + 1 for i in range(axes)]
    columns = []
    for position in itertools.product(*map(range, counts)):
        taps = []
        for tap in itertools.product(*map(range, layer.kernel_size)):
            at = [position[i] * layer.stride[i] + tap[i] * layer.dilation[i] for i in range(axes)]
            taps.append(padded[(slice(None), slice(None), *at)])
        columns.append(np.stack(taps, axis=-1))
    return np.stack(columns, axis=-1)


class Shifted(nn.Module):
    """Some input disturbance, and the layer to refit behind it: the inputs of dense and compressed network differ."""

    def __init__(self, layer: nn.Module, disturbed: bool) -> None:
        super().__init__()
        self.disturbed, self.layer = disturbed, layer

    def see(self, x: Tensor) -> Tensor:
        return x + 0.5 * x.roll(1, dims=0).sin() + 0.3 if self.disturbed else x

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.see(x))


def refitted(
    layer: nn.Module, batches: list[Tensor], rows: list[int] | None = None, centred: bool | None = None, write=None
) -> nn.Module:
    """The layer, refitted to compute from disturbed inputs what it did from the others."""
    dense, current = Shifted(layer, False), copy.deepcopy(layer)
    if rows is not None:
        Keep("0", "out", tuple(rows)).apply(nn.Sequential(current))
    small = Shifted(current, True)

    def put(name: str, solution: Solution) -> Tensor:
        set_weight(current, solution.weight)
        return solution.weight

    offset = layer.bias is not None if centred is None else centred
    refit.refit(
        dense,
        [CutNetwork(small, (), (), {} if rows is None else {"layer": rows}, write or put)],
        ["layer"],
        Calibration(batches, CPU),
        lambda name: offset,
    )
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in (*dense.modules(), *small.modules()))
    return current


def data(layer: nn.Module, batches: list[Tensor], rows: list[int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """X (g, f, samples) and Y (g, n, samples) of the fit, by loops."""
    groups = getattr(layer, "groups", 1)
    xs, ys = [], []
    for batch in batches:
        x = Shifted(layer, True).see(batch)
        with torch.no_grad():
            y = layer(batch)
        if isinstance(layer, nn.Linear):
            xs.append(x.reshape(-1, x.shape[-1]).T.numpy()[None])
            y = y.reshape(-1, y.shape[-1]).T.numpy()
        else:
            columns = by_hand(layer, x.numpy())  # (images, channels, taps, positions)
            xs.append(columns.transpose(1, 2, 0, 3).reshape(groups, -1, columns.shape[0] * columns.shape[3]))
            y = y.flatten(2).transpose(0, 1).flatten(1).numpy()
        ys.append((y if rows is None else y[rows]).reshape(groups, -1, xs[-1].shape[-1]))
    return np.concatenate(xs, axis=2), np.concatenate(ys, axis=2)


def least_squares(x: np.ndarray, y: np.ndarray, offset: bool) -> tuple[np.ndarray, np.ndarray]:
    """argmin ||Y - W X - b||^2 by numpy, per group; b is 0 without an offset."""
    weights, offsets = [], []
    for own_x, own_y in zip(x, y, strict=True):
        design = np.vstack([own_x, np.ones((1, own_x.shape[1]))]) if offset else own_x
        solution = np.linalg.lstsq(design.T, own_y.T, rcond=None)[0].T
        weights.append(solution[:, :-1] if offset else solution)
        offsets.append(solution[:, -1] if offset else np.zeros(len(own_y)))
    return np.stack(weights), np.concatenate(offsets)


def ridge(x: np.ndarray, y: np.ndarray, start: np.ndarray, r: float, centred: bool) -> np.ndarray:
    """(Y X^T / N + r m W0) (X X^T / N + r m I)^-1 with m the mean square of an input."""
    weights = []
    for own_x, own_y, w in zip(x, y, start, strict=True):
        if centred:
            own_x, own_y = own_x - own_x.mean(1, keepdims=True), own_y - own_y.mean(1, keepdims=True)
        count = own_x.shape[1]
        gram = own_x @ own_x.T / count
        amount = r * np.trace(gram) / len(gram)
        weights.append((own_y @ own_x.T / count + amount * w) @ np.linalg.inv(gram + amount * np.eye(len(gram))))
    return np.stack(weights)
