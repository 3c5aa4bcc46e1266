"""Agreement: how well the outputs of a smaller network follow those of the whole one, without labels.

    agreement = correlation - 4 divergence, the mean over the output tensors; 1 if they are the same

    correlation   <Y - mean Y, Z - mean Z> / (||Y - mean Y|| ||Z - mean Z||), the means those of every entry over the inputs
    divergence    of the classes: the mean of KL(softmax(3 Y / s(Y)), softmax(3 Z / s(Z))), s the mean spread over the classes

Y are the outputs of the whole network and Z those of the smaller one. Neither part minds if a cut network gives the same answer
only less loudly, as a squared error would, which is what refit minimises. The correlation serves outputs of every kind. It alone
would prefer refit too often: which class comes first depends on few of the outputs, and the divergence looks at these. It is 0
where there are no classes. Measured by benchmarks/recovery_choice.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from sparsefw.compression.recovery.calibration import run
from sparsefw.compression.structure.channels import tensors_of
from sparsefw.compression.structure.decisions import Decisions
from sparsefw.compression.structure.layers import evaluating

WORST = -1000.0
WEIGHT = 4.0  # of the divergence
SHARPNESS = 3.0  # of the classes
CONSTANT = 1e-12  # of the sum of squares: an output that varies less has nothing to compare


def agreement(whole: nn.Module, small: nn.Module, inputs: Iterable[Any]) -> float:
    """Return the agreement of two networks, at most 1; WORST if outputs of the smaller one are not finite.

    The smaller one follows the decisions of the whole one. Batch after batch adds to sums, and no outputs are kept. Whole
    numbers, such as the index of a class, count only where there is nothing else: by the share of them that is equal.

    It is nan if nothing can be compared: no tensors, tensors of other shapes, or the same outputs for every input.
    """
    outputs = _Outputs()
    with evaluating(whole), evaluating(small):
        for batch in inputs:
            with Decisions() as decided:
                expected = tensors_of(run(whole, batch))
            with Decisions(decided):  # such as which boxes are kept: else there would be others to compare
                outputs.add(expected, tensors_of(run(small, batch)))
    return outputs.agreement()


class _Outputs:
    """The outputs of two networks for the same inputs, as sums."""

    def __init__(self) -> None:
        self.finite = True
        self.sums: dict[int, dict[tuple[int, ...], _Sums]] = {}  # output -> shape of an item -> sums
        self.equal: dict[int, list[float]] = {}  # output -> shares of equal whole numbers, a batch each

    def add(self, whole: list[Tensor], small: list[Tensor]) -> None:
        for number, (y, z) in enumerate(zip(whole, small, strict=False)):
            if y.shape != z.shape or not y.ndim or not y.numel():
                continue
            if not (y.is_floating_point() or y.is_complex()):
                self.equal.setdefault(number, []).append(float((y == z).double().mean()))
                continue
            if y.is_complex():
                y, z = torch.view_as_real(y), torch.view_as_real(z)
            finite = y.isfinite()  # -inf may be there on purpose: masks of attention
            y, z = (torch.where(finite, t, 0).double() for t in (y, z))
            self.finite = self.finite and bool(z.isfinite().all())
            of_output = self.sums.setdefault(number, {})
            of_output.setdefault(tuple(y.shape[1:]), _Sums(y[0])).add(y, z)

    def agreement(self) -> float:
        if not self.finite:
            return WORST
        known = [value for sums in self.sums.values() if (value := _agreement(list(sums.values()))) is not None]
        known = known or [sum(shares) / len(shares) for shares in self.equal.values()]
        return max(WORST, sum(known) / len(known)) if known else math.nan


class _Sums:
    """Sums over items of one shape: of y, of z, of y^2, z^2 and y z over all entries, and of the divergence of the items."""

    def __init__(self, item: Tensor) -> None:
        self.y = torch.zeros_like(item)
        self.z = torch.zeros_like(item)
        self.products = item.new_zeros(3)
        self.divergence = 0.0
        self.count = 0

    def add(self, y: Tensor, z: Tensor) -> None:
        self.y += y.sum(0)
        self.z += z.sum(0)
        self.products += _products(y, z)
        self.divergence += len(y) * divergence(y, z)
        self.count += len(y)

    def centred(self) -> Tensor:
        """Return the sums of products about the means of every entry."""
        return self.products - _products(self.y, self.z) / self.count


def _products(y: Tensor, z: Tensor) -> Tensor:
    return torch.stack([y.square().sum(), z.square().sum(), (y * z).sum()])


def divergence(y: Tensor, z: Tensor) -> float:
    """Return the mean of KL(p, q), p and q the distributions over the classes that a batch of outputs stands for.

    Classes are on axis 1, as in the cross-entropy of torch; in sequences (batch, length, classes), on the last.
    """
    if y.ndim < 2:
        return 0.0
    axis = 2 if y.ndim == 3 else 1
    p, q = (log_softmax(SHARPNESS * t / t.std(axis, correction=0).mean().clamp(min=1e-12), axis) for t in (y, z))
    return float(kl_div(q, p, reduction="none", log_target=True).sum(axis).mean())


def _agreement(sums: list[_Sums]) -> float | None:
    """Return the agreement of one output; None if it is the same for every input."""
    yy, zz, yz = map(float, sum((one.centred() for one in sums), torch.zeros(())))
    if yy <= CONSTANT * sum(float(one.products[0]) for one in sums):
        return None
    correlation = yz / math.sqrt(yy * zz) if zz > 0 else 0.0
    return correlation - WEIGHT * sum(one.divergence for one in sums) / sum(one.count for one in sums)
