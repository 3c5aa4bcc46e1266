"""Scores: how much a channel matters. Channels with the smallest scores are removed first.

    l1           sum of |w| of the filters that write it (the paper's)
    l2           their L2 norm: the magnitude of the Groups view
    bn           their L2 norm times |gamma| / sqrt(var + eps), the scale of the BatchNorm behind them
    activation   its share of what its readers compute:  sum over readers of  ||W_r[:, j]||^2 E[x_j^2] / (the same over all j)

If several layers write a channel (a residual stream), each layer's scores are divided by their mean, and added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.recovery.calibration import Calibration, add_over_ranks, run
from sparsefw.compression.structure.attention import known_attention
from sparsefw.compression.structure.batchnorm_pairs import norms_behind
from sparsefw.compression.structure.channels import Channels, Side, Site
from sparsefw.compression.structure.layers import (
    as_matrices,
    channel_axis,
    evaluating,
    first_input,
    groups_of,
    hooks,
    is_layer,
    weight_of,
)
from sparsefw.layer_types import TRANSPOSED


@dataclass(frozen=True)
class Observed:
    """Observations of forward passes.

    batch_norm   layer -> the batch norm behind it
    energy       layer -> the mean square of each of its inputs
    """

    batch_norm: dict[str, str]
    energy: dict[str, Tensor]


Score = Callable[[nn.Module, Channels, Observed], Tensor]


def l1(model: nn.Module, channels: Channels, observed: Observed) -> Tensor:
    return _over_writers(model, channels, lambda name, rows: rows.abs().sum(1))


def l2(model: nn.Module, channels: Channels, observed: Observed) -> Tensor:
    return _over_writers(model, channels, lambda name, rows: torch.linalg.vector_norm(rows, dim=1))


def bn(model: nn.Module, channels: Channels, observed: Observed) -> Tensor:
    def scaled(name: str, rows: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(rows, dim=1)
        if name not in observed.batch_norm:
            return norms
        norm: Any = model.get_submodule(observed.batch_norm[name])
        gamma = norm.weight.detach().abs() if norm.affine else 1.0
        if norm.running_var is None:  # it normalises by the batch, whose deviation is proportional to the filter
            return torch.ones_like(norms) * gamma
        return norms * gamma / (norm.running_var + norm.eps).sqrt()

    return _over_writers(model, channels, scaled)


def activation(model: nn.Module, channels: Channels, observed: Observed) -> Tensor:
    total = torch.zeros(channels.count, dtype=torch.float64)
    readers = [site for site in channels.readers if site.layer in observed.energy]  # an auxiliary head did not run
    for site in readers:
        layer = model.get_submodule(site.layer)
        share = (_input_norms(layer).double() * observed.energy[site.layer]).cpu()
        total += _per_channel(site, share / share.sum().clamp(min=1e-300))
    if not readers:  # attention heads, and channels that only depthwise layers read
        return l2(model, channels, observed)
    return total


SCORES: dict[str, Score] = {"l1": l1, "l2": l2, "bn": bn, "activation": activation}
NEEDS_DATA = ("activation",)


def rows_of(layer: nn.Module) -> Tensor:
    """Return the weight as (outputs, weights per output) in float64: the order of filters must not depend on rounding."""
    return as_matrices(layer).detach().double().flatten(0, 1)


def _over_writers(model: nn.Module, channels: Channels, score: Callable[[str, Tensor], Tensor]) -> Tensor:
    parts = []
    for site in channels.writers:
        module = model.get_submodule(site.layer)
        if site.side == Side.HEADS:
            attention = known_attention(module)
            weight = weight_of(module.get_submodule(attention.projection)).detach()
            values = score(site.layer, weight.t().reshape(attention.heads, -1)).double().cpu()
        else:
            values = score(site.layer, rows_of(module)).double().cpu()
        parts.append(_per_channel(site, values))
    if not parts:  # written by depthwise layers only
        return torch.ones(channels.count, dtype=torch.float64)
    if len(parts) == 1:
        return parts[0]
    return torch.stack([part / part.mean().clamp(min=1e-300) for part in parts]).sum(0)


def _per_channel(site: Site, values: Tensor) -> Tensor:
    return torch.stack([values[list(slots)].sum() for slots in site.slots])


def _input_norms(layer: nn.Module) -> Tensor:
    """Return ||W[:, j]||^2 for every input channel j."""
    weight = weight_of(layer).detach()
    if isinstance(layer, TRANSPOSED):
        return weight.square().flatten(1).sum(1)
    groups = groups_of(layer)
    per_group = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return per_group.square().sum(dim=(1, 3)).flatten()


def readers_of(sets: Sequence[Channels], name: str, rows: int) -> tuple[Site, ...]:
    """Return the layers that read one layer's outputs; slots[i] are the inputs at which row i arrives, if any."""
    readers = []
    for channels in sets:
        for writer in channels.writers:
            if writer.layer != name:
                continue
            for reader in channels.readers:
                inputs: dict[int, tuple[int, ...]] = {}
                for outputs, slots in zip(writer.slots, reader.slots, strict=True):
                    inputs |= dict.fromkeys(outputs, slots)
                readers.append(Site(reader.layer, Side.IN, tuple(inputs.get(row, ()) for row in range(rows))))
    return tuple(readers)


def observe(model: nn.Module, example: Any, calibration: Calibration | None) -> Observed:
    """Observe a forward pass on the example, and the mean square of every layer's inputs on the calibration batches."""
    return Observed(norms_behind(model, example), {} if calibration is None else _energies(model, calibration))


def _energies(model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
    """Return the mean square of every layer's inputs, per channel."""
    sums: dict[str, Tensor] = {}

    def make(name: str, module: nn.Module) -> Sequence[Any]:
        def add(layer: nn.Module, args: Any, kwargs: Any) -> None:
            x = first_input(args, kwargs)
            axis = channel_axis(layer, x)
            entries = x.detach().double().movedim(axis, 0).flatten(1)
            squares_and_count = torch.stack([entries.square().sum(1), torch.full_like(entries[:, 0], entries.shape[1])])
            sums[name] = squares_and_count if name not in sums else sums[name] + squares_and_count

        return (module.register_forward_pre_hook(add, with_kwargs=True),) if is_layer(module) else ()

    with evaluating(model), hooks(model, make):
        for inputs in calibration:
            run(model, inputs)
    add_over_ranks(sums.values())
    return {name: squares / count for name, (squares, count) in sums.items()}
