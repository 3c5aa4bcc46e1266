"""Scores: how much a channel matters. Channels with small scores are removed first.

    l1           sum of |w| of the filters that write it (the paper's)
    l2           their L2 norm: the magnitude of the Groups view
    bn           their L2 norm times |gamma| / sqrt(var + eps): what BatchNorm makes of them
    activation   its share of what its readers compute:  sum over readers of  ||W_r[:, j]||^2 E[x_j^2] / (the same over all j)

Where several layers write a channel (a residual stream), each layer's scores are divided by their mean and added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.recovery.calibration import Calibration, add_over_ranks, run
from sparsefw.compression.structure.batchnorm_pairs import norms_behind
from sparsefw.compression.structure.channels import HEADS, IN, Channels, Site
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
    """What one or a few forward passes tell: the batch norm behind each layer, and the mean square of each layer's inputs."""

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
        if norm.running_var is None:  # it always normalises by the batch, whose deviation is proportional to the filter
            return torch.ones_like(norms) * gamma
        return norms * gamma / (norm.running_var + norm.eps).sqrt()

    return _over_writers(model, channels, scaled)


def activation(model: nn.Module, channels: Channels, observed: Observed) -> Tensor:
    total = torch.zeros(channels.count, dtype=torch.float64)
    readers = [site for site in channels.readers if site.layer in observed.energy]  # a head of the training never ran
    for site in readers:
        layer = model.get_submodule(site.layer)
        share = (_input_norms(layer).double() * observed.energy[site.layer]).cpu()
        total += _per_channel(site, share / share.sum().clamp(min=1e-300))
    if not readers:  # heads, and what only depthwise layers read: their own size is all there is to see
        return l2(model, channels, observed)
    return total


SCORES: dict[str, Score] = {"l1": l1, "l2": l2, "bn": bn, "activation": activation}
NEEDS_DATA = ("activation",)


def rows_of(layer: nn.Module) -> Tensor:
    """(outputs, weights per output) in float64, whatever the groups: the order of filters must not hang on rounding."""
    return as_matrices(layer).detach().double().flatten(0, 1)


def _over_writers(model: nn.Module, channels: Channels, score: Callable[[str, Tensor], Tensor]) -> Tensor:
    parts = []
    for site in channels.writers:
        module: Any = model.get_submodule(site.layer)
        if site.side == HEADS:
            projection = module.proj.weight.detach()
            values = score(site.layer, projection.t().reshape(int(module.num_heads), -1)).double().cpu()
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
    """||W[:, j]||^2 for every input channel j."""
    weight = weight_of(layer).detach()
    if isinstance(layer, TRANSPOSED):
        return weight.square().flatten(1).sum(1)
    groups = groups_of(layer)
    per_group = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    return per_group.square().sum(dim=(1, 3)).flatten()


def readers_of(found: Sequence[Channels], name: str, rows: int) -> tuple[Site, ...]:
    """The layers that read one layer's outputs; slots[i] is where row i arrives, nowhere where another layer gets it."""
    readers = []
    for channels in found:
        for writer in (site for site in channels.writers if site.layer == name):
            for reader in channels.readers:
                arrives = {row: to for own, to in zip(writer.slots, reader.slots, strict=True) for row in own}
                readers.append(Site(reader.layer, IN, tuple(arrives.get(row, ()) for row in range(rows))))
    return tuple(readers)


def observe(model: nn.Module, example: Any, calibration: Calibration | None) -> Observed:
    """Look at a forward pass on the example, and at the mean square of every layer's inputs on the calibration batches."""
    return Observed(norms_behind(model, example), {} if calibration is None else _energies(model, calibration))


def _energies(model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
    sums: dict[str, Tensor] = {}

    def make(name: str, module: nn.Module) -> Sequence[Any]:
        def look(layer: nn.Module, args: Any, kwargs: Any) -> None:
            x = first_input(args, kwargs)
            axis = channel_axis(layer, x)
            entries = x.detach().double().movedim(axis, 0).flatten(1)
            both = torch.stack([entries.square().sum(1), torch.full_like(entries[:, 0], entries.shape[1])])
            sums[name] = both if name not in sums else sums[name] + both

        return (module.register_forward_pre_hook(look, with_kwargs=True),) if is_layer(module) else ()

    with evaluating(model), hooks(model, make):
        for inputs in calibration:
            run(model, inputs)
    add_over_ranks(sums.values())
    return {name: both[0] / both[1] for name, both in sums.items()}
