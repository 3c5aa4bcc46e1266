"""Refit: the remaining weights are fitted, layer by layer and in closed form, to the dense network. No labels, no gradient.

Layers are visited in forward order. For a layer with dense weight W0, let X be its inputs in the compressed network, whose
earlier layers are already refitted, and Y its outputs in the dense network, both centred if an offset can be absorbed. Then

    W = argmin ||Y - W X||^2 + r ||W - W0||^2 = (Y X^T + r W0) (X X^T + r I)^-1

with the ridge r chosen on held-out batches. Filters keep rows of W. Low rank t takes U U^T W with U the leading eigenvectors of
W (X X^T + r I) W^T, the best product of that rank for the same objective. Sparse weights solve it on their support.

Memory: the sums X X^T and Y X^T per layer in float64, patches of at most PATCH_BYTES at a time, and what the rest of a pass
needs of one layer after another (passes.py), at most KEPT_BYTES; never all activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.progress import Progress
from sparsefw.compression.recovery.calibration import NotFiniteError, add_over_ranks, rank_of
from sparsefw.compression.recovery.cut_network import CutNetwork, Solution
from sparsefw.compression.recovery.passes import Passes, recover_in_passes
from sparsefw.compression.recovery.patches import choose_positions, samples
from sparsefw.compression.structure.layers import as_matrices, bias_of, weight_of

RIDGES = (1e-4, 1e-3, 1e-2, 1e-1)  # relative to the mean square of an input
DEFAULT_RIDGE = 1e-3  # with too few batches to hold some out
HELD_OUT = 4  # every 4th batch
SMALLEST_HALF = 128  # of the inputs of a layer: halves of fewer are not faster


class Sums:
    """Sums of products over all samples seen, in float64, of data shifted by the first batch's means (against cancellation)."""

    def __init__(self, shift_x: Tensor, shift_y: Tensor) -> None:
        groups, f = shift_x.shape
        n = shift_y.shape[1]
        self.shift_x = shift_x  # in float64, which the sums inherit
        self.shift_y = shift_y
        self.xx = shift_x.new_zeros(groups, f, f)
        self.yx = shift_x.new_zeros(groups, n, f)
        self.yy = shift_x.new_zeros(groups, n)
        self.x = shift_x.new_zeros(groups, f)
        self.y = shift_x.new_zeros(groups, n)
        self.count = shift_x.new_zeros(())

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add samples x (g, f, samples), y (g, n, samples)."""
        x = x - self.shift_x.unsqueeze(-1)  # float64 from here on
        y = y - self.shift_y.unsqueeze(-1)
        self.xx += _gram(x)
        self.yx += y @ x.mT
        self.x += x.sum(-1)
        self.y += y.sum(-1)
        self.yy += y.square().sum(-1)
        self.count += x.shape[-1]

    def is_finite(self) -> bool:
        return all(bool(t.isfinite().all()) for t in (self.xx, self.yx, self.yy))

    @property
    def shifts(self) -> tuple[Tensor, Tensor]:
        return self.shift_x, self.shift_y

    def __add__(self, other: Sums) -> Sums:
        total = Sums(*self.shifts)
        for name in ("xx", "yx", "x", "y", "yy", "count"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total

    def share(self) -> None:
        add_over_ranks([self.xx, self.yx, self.x, self.y, self.yy, self.count])

    def covariances(self, centred: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return X X^T, Y X^T and the diagonal of Y Y^T, per sample; about the means, or about 0."""
        x = self.x / self.count
        y = self.y / self.count
        xx = self.xx / self.count - _outer(x, x)
        yx = self.yx / self.count - _outer(y, x)
        yy = self.yy / self.count - y.square()
        if not centred:
            mean_x, mean_y = self.means()
            xx = xx + _outer(mean_x, mean_x)
            yx = yx + _outer(mean_y, mean_x)
            yy = yy + mean_y.square()
        return xx, yx, yy

    def means(self) -> tuple[Tensor, Tensor]:
        return self.x / self.count + self.shift_x, self.y / self.count + self.shift_y


def refit(
    dense: nn.Module,
    cuts: Sequence[CutNetwork],
    order: Sequence[str],
    calibration: Iterable[Any],
    absorbs_offset: Callable[[str], bool],
    progress: Progress | None = None,
) -> None:
    """Refit all cuts, in place, to one dense model, whose forward passes are shared between them.

    Args:
        dense: The network to imitate.
        cuts: The smaller networks.
        order: The layers to fit, in forward order.
        calibration: The inputs to fit on.
        absorbs_offset: Whether a layer's bias, or the batch norm behind it, absorbs an offset of its outputs.
        progress: Called before each layer.
    """
    # Both networks normalise by the batch: if nothing was removed, their inputs are equal and nothing changes.
    recover_in_passes(
        dense, cuts, order, calibration, lambda passes: fit_layers(passes, order, absorbs_offset, progress)
    )


def fit_layers(
    passes: Passes, order: Sequence[str], absorbs_offset: Callable[[str], bool], progress: Progress | None = None
) -> None:
    """Refit the layers of all cuts, in place and in this order, by what the passes find there."""
    broken: set[int] = set()
    for done, name in enumerate(order):
        if progress is not None:
            progress(done, len(order), name)
        layer = passes.dense.get_submodule(name)
        for cut, (fitting, held) in zip(passes.cuts, _collect(passes, name, done), strict=True):
            if fitting is None:  # no batch has inputs for it
                continue
            if fitting.is_finite() and (held is None or held.is_finite()):
                _fit(cut, name, layer, fitting, held, absorbs_offset(name))
                continue
            broken.add(id(cut))  # too much was removed from this one; the others continue
            if len(broken) == len(passes.cuts):
                raise NotFiniteError(
                    f"{name}: calibration gives activations that are not finite, or too large to be squared"
                )
    if progress is not None:
        progress(len(order), len(order), "")


def _fit(cut: CutNetwork, name: str, layer: nn.Module, fitting: Sums, held: Sums | None, centred: bool) -> None:
    """Write the fitted weight into one layer, and the bias where an offset can be absorbed."""
    current = cut.model.get_submodule(name)
    weight = cut.write_refit(name, _solve(_start(layer, current), fitting, held, centred))
    last = current[-1] if isinstance(current, nn.Sequential) else current
    bias = bias_of(last)
    if centred and bias is not None:
        total = fitting if held is None else fitting + held
        mean_x, mean_y = total.means()
        offset = mean_y - (weight.double() @ mean_x.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            bias.copy_(offset.flatten())


def _start(layer: nn.Module, current: nn.Module) -> Tensor:
    """Return W0: the weight before compression, cut to the remaining inputs and outputs."""
    same = isinstance(current, nn.Sequential) or weight_of(layer).shape == weight_of(current).shape
    return as_matrices(layer if same else current).detach().double()


def _solve(start: Tensor, fitting: Sums, held: Sums | None, centred: bool) -> Solution:
    if held is None:
        return _system(start, fitting, DEFAULT_RIDGE, centred)
    return _system(start, fitting + held, _best_ridge(start, fitting, held, centred), centred)


def _best_ridge(start: Tensor, fitting: Sums, held: Sums, centred: bool) -> float:
    """Return the smallest ridge that is best on held-out samples; if all fit exactly, rounding does not decide."""
    errors = [_error(_system(start, fitting, ridge, centred), held, centred) for ridge in RIDGES]
    slack = 1e-9 * float(held.covariances(centred)[2].sum())
    return next(ridge for ridge, error in zip(RIDGES, errors, strict=True) if error <= min(errors) + slack)


def _system(start: Tensor, sums: Sums, ridge: float, centred: bool) -> Solution:
    xx, yx, _ = sums.covariances(centred)
    mean_square = xx.diagonal(dim1=-2, dim2=-1).mean(-1).clamp(min=1e-30)
    r = (ridge * mean_square).view(-1, 1, 1)
    gram = xx + r * torch.eye(xx.shape[-1], dtype=xx.dtype, device=xx.device)
    moments = yx + r * start
    return Solution(_solve_right(moments, gram), gram, moments)


def _solve_right(moments: Tensor, gram: Tensor) -> Tensor:
    """Return moments @ gram^-1 for a positive definite gram."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    if bool(failed.any()):  # rounding made it indefinite: inputs that repeat each other exactly
        return moments @ torch.linalg.pinv(gram, hermitian=True)
    return torch.cholesky_solve(moments.mT, factor).mT


def _error(solution: Solution, held: Sums, centred: bool) -> float:
    """Return ||Y - W X||^2 on held-out samples, from their sums."""
    xx, yx, yy = held.covariances(centred)
    w = solution.weight
    return float(yy.sum() - 2 * (w * yx).sum() + ((w @ xx) * w).sum())


def _collect(passes: Passes, name: str, seed: int) -> list[tuple[Sums, Sums | None]]:
    """Return for each cut the sums of one layer's inputs and dense outputs over the batches: to fit, and held out."""
    layer = passes.dense.get_submodule(name)
    sums: list[list[Sums | None]] = [[None, None] for _ in passes.cuts]
    for reached in passes.at(name):
        output = reached.output
        if not output.numel():  # a head that is run on what was found, where nothing was
            continue
        generator = torch.Generator().manual_seed((seed << 32) + reached.number)
        positions = choose_positions(layer, output, generator)
        # Several processes hold out the same batches as a single one.
        part = 1 if reached.number % HELD_OUT == HELD_OUT - 1 else 0
        for i, (cut, layer_input) in enumerate(zip(passes.cuts, reached.inputs, strict=True)):
            if isinstance(layer, nn.Linear) and layer_input.shape[:-1] != output.shape[:-1]:
                continue  # a layer over positions, which sees fewer channels and computes the same for each
            current = cut.model.get_submodule(name)
            first_layer = current[0] if isinstance(current, nn.Sequential) else current
            for x, y in samples(first_layer, layer_input, output, cut.rows.get(name), positions):
                if sums[i][part] is None:
                    first = next((other for other in sums[i] if other is not None), None)  # the same shift for both
                    shifts = (x.double().mean(-1), y.double().mean(-1)) if first is None else first.shifts
                    sums[i][part] = Sums(*shifts)
                sums[i][part].add(x, y)  # type: ignore[union-attr]
    if rank_of()[1] > 1:
        for pair in sums:
            _share(pair)
    # Where all batches with inputs are of one part, nothing is held out.
    return [(fitting, held) if fitting is not None else (held, None) for fitting, held in sums]  # type: ignore[misc]


def _share(pair: list[Sums | None]) -> None:
    """Add up the sums of all ranks, fitted and held out, in place. Each rank has its own shift: all are moved to shift 0."""
    known = next(sums for sums in pair if sums is not None)
    for i, sums in enumerate(pair):
        moved = Sums(torch.zeros_like(known.shift_x), torch.zeros_like(known.shift_y))
        if sums is not None:
            mean_x, mean_y = sums.means()
            xx, yx, yy = sums.covariances(centred=False)
            moved.xx = xx * sums.count
            moved.yx = yx * sums.count
            moved.yy = yy * sums.count
            moved.x = mean_x * sums.count
            moved.y = mean_y * sums.count
            moved.count = sums.count
        moved.share()
        pair[i] = moved if float(moved.count) else None


def best_rank(solution: Solution, rank: int) -> Tensor:
    """Return the argmin of the refit objective over weights of this rank: U U^T W, U the leading eigenvectors of W gram W^T."""
    w = solution.weight
    if w.shape[-2] > w.shape[-1]:  # the eigenvectors lie in the range of W, which has fewer dimensions
        basis, within = torch.linalg.qr(w)
        return basis @ best_rank(replace(solution, weight=within), rank)
    _, vectors = torch.linalg.eigh(w @ solution.gram @ w.mT)
    U = vectors[..., -rank:]
    return U @ (U.mT @ w)


def on_support(solution: Solution, mask: Tensor, iterations: int = 200) -> Tensor:
    """Return the argmin of the refit objective over weights that are 0 outside of the mask.

    It solves w gram = moments on every row's support, by conjugate gradients.
    """
    partly = (mask.any(-1) & ~mask.all(-1)).any(0)  # rows that are full or empty are already solved
    if not bool(partly.all()):
        w = torch.where(mask, solution.weight, 0)
        if bool(partly.any()):
            rows = Solution(w[:, partly], solution.gram, solution.moments[:, partly])
            w[:, partly] = on_support(rows, mask[:, partly], iterations)
        return w
    gram = solution.gram
    diagonal = gram.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    w = torch.where(mask, solution.weight, 0)
    residual = torch.where(mask, solution.moments - w @ gram, 0)
    direction = residual / diagonal
    old = (residual * direction).sum(-1, keepdim=True)
    first = old.max().clamp(min=1e-300)
    for _ in range(iterations):
        curved = torch.where(mask, direction @ gram, 0)
        step = old / (direction * curved).sum(-1, keepdim=True).clamp(min=1e-300)
        w = w + step * direction
        residual = residual - step * curved
        scaled = residual / diagonal
        new = (residual * scaled).sum(-1, keepdim=True)
        if float(new.max() / first) < 1e-18:  # of squares: weights right to 1e-6 or better
            break
        direction = scaled + new / old.clamp(min=1e-300) * direction
        old = new
    return w


def _gram(x: Tensor) -> Tensor:
    """Return x x^T; of a large one, only one of the two products that are transposed to each other is computed."""
    half = x.shape[-2] // 2
    if half < SMALLEST_HALF:
        return x @ x.mT
    first, last = x[..., :half, :], x[..., half:, :]
    across = last @ first.mT
    above = torch.cat([_gram(first), across.mT], dim=-1)
    return torch.cat([above, torch.cat([across, _gram(last)], dim=-1)], dim=-2)


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)
