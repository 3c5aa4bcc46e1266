"""Matched moments, for networks without BatchNorm: the mean and variance of every layer's outputs become the dense network's.

    y'_j = (y_j - mean_j) * scale_j + dense mean_j,   scale_j = dense deviation_j / deviation_j, within [1/2, 2]

written into the weight and bias of the layer, in forward order. Without a bias only the scale is corrected.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sparsefw.compression.progress import Progress
from sparsefw.compression.recovery.batchnorm import Moments
from sparsefw.compression.recovery.calibration import Calibration, NotFiniteError, add_over_ranks
from sparsefw.compression.recovery.cut_network import CutNetwork
from sparsefw.compression.recovery.passes import Passes, recover_in_passes
from sparsefw.compression.structure.layers import as_matrices, bias_of, channel_axis, evaluating, set_weight

LARGEST = 2.0  # a channel whose deviation fell further carries mostly noise, which a larger scale would only amplify


def match_moments(
    dense: nn.Module, cut: CutNetwork, order: Sequence[str], calibration: Calibration, progress: Progress | None = None
) -> None:
    """Correct all layers of a compressed model, in place."""
    recover_in_passes(
        dense, [cut], order, calibration, lambda passes: match_layers(passes, order, progress), following=False
    )


def match_layers(passes: Passes, order: Sequence[str], progress: Progress | None = None) -> None:
    """Correct the layers of a cut, in place and in this order, by what the passes find there."""
    (cut,) = passes.cuts
    for done, name in enumerate(order):
        if progress is not None:
            progress(done, len(order), name)
        layer = passes.dense.get_submodule(name)
        current = cut.model.get_submodule(name)
        wanted, got = Moments(), Moments()
        for reached in passes.at(name):
            axis = channel_axis(layer, reached.output)
            rows = cut.rows.get(name)
            y = reached.output
            wanted.add(y if rows is None else y.index_select(axis, torch.as_tensor(rows, device=y.device)), axis)
            with evaluating(current):
                got.add(current(next(reached.inputs)), axis)
        add_over_ranks([wanted.sums, got.sums])  # type: ignore[list-item]
        if not float(wanted.sums[2, 0]) or not float(got.sums[2, 0]):  # type: ignore[index]
            continue  # a head that is run on what was found, where nothing was
        if not all(bool(m.sums.isfinite().all()) for m in (wanted, got) if m.sums is not None):
            raise NotFiniteError(
                f"{name}: calibration gives activations that are not finite, or too large to be squared"
            )
        cut.scales[name] = _correct(last_part(current), wanted, got)
    if progress is not None:
        progress(len(order), len(order), "")


def last_part(layer: nn.Module) -> nn.Module:
    """Return the layer that writes the outputs: the second of the two that a layer of low rank consists of."""
    if not isinstance(layer, nn.Sequential):
        return layer
    last = layer[-1]
    assert isinstance(last, nn.Module)
    return last


def scale_outputs(layer: nn.Module, scale: Tensor) -> None:
    """Multiply the weight of every output by its factor, in place."""
    weight = as_matrices(layer).detach().double()
    set_weight(layer, weight * scale.view(weight.shape[0], weight.shape[1], 1))


def _correct(layer: nn.Module, wanted: Moments, got: Moments) -> Tensor:
    """Match the moments of one layer, in place; return the factor of every output."""
    silent = got.variance <= 1e-12 * wanted.variance
    scale = (wanted.variance / torch.where(silent, 1, got.variance)).sqrt().clamp(1 / LARGEST, LARGEST)
    scale = torch.where(silent, torch.ones_like(scale), scale)
    scale_outputs(layer, scale)
    bias = bias_of(layer)
    if bias is not None:
        with torch.no_grad():
            bias.copy_((bias.double() - got.mean) * scale + wanted.mean)
    return scale
