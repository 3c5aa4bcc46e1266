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
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from sparsefw.compression.recovery.calibration import Calibration, add_over_ranks, device_of, run
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

if TYPE_CHECKING:
    from sparsefw.compression.fused.row_norms import RowNorms


@dataclass(frozen=True)
class Observed:
    """Observations of forward passes.

    batch_norm   layer -> the batch norm behind it
    energy       layer -> the mean square of each of its inputs
    """

    batch_norm: dict[str, str]
    energy: dict[str, Tensor]


def l1(model: nn.Module, name: str, rows: Tensor, observed: Observed) -> Tensor:
    return _norms(rows, 1)


def l2(model: nn.Module, name: str, rows: Tensor, observed: Observed) -> Tensor:
    return _norms(rows, 2)


def bn(model: nn.Module, name: str, rows: Tensor, observed: Observed) -> Tensor:
    norms = _norms(rows, 2)
    if name not in observed.batch_norm:
        return norms
    norm: Any = model.get_submodule(observed.batch_norm[name])
    gamma = norm.weight.detach().abs() if norm.affine else 1.0
    if norm.running_var is None:  # it normalises by the batch, whose deviation is proportional to the filter
        return torch.ones_like(norms) * gamma
    return norms * gamma / (norm.running_var + norm.eps).sqrt()


RowScore = Callable[[nn.Module, str, Tensor, Observed], Tensor]
ROW_SCORES: dict[str, RowScore] = {"l1": l1, "l2": l2, "bn": bn}


def _norms(rows: Tensor, order: int) -> Tensor:
    """Return the norm of every row, in float64: the order of filters must not depend on rounding."""
    return torch.linalg.vector_norm(rows, order, dim=tuple(range(1, rows.ndim)), dtype=torch.float64)


class RowScores:
    """The scores of all sets at once, by the rows of the weights that write their channels.

    Computed anew in every call, on the model's device and without waiting for it: one norm for every layer, and a few gathers.
    """

    def __init__(self, model: nn.Module, sets: Sequence[Channels], score: RowScore, observed: Observed) -> None:
        self._model = model
        self._score = score
        self._observed = observed
        writers = [(i, site) for i, channels in enumerate(sets) for site in _scored(channels)]
        self._layers = list(dict.fromkeys((site.layer, site.side) for _, site in writers))
        first_row: dict[tuple[str, Side], int] = {}
        total = 0
        for layer, side in self._layers:
            first_row[layer, side] = total
            total += self._rows(layer, side).shape[0]
        device = device_of(model)
        widest = max((channels.count for channels in sets), default=0)
        # Behind the last row of all layers comes a 0, and behind the last writer a row of ones and one of zeros, for padding.
        slots = [
            [[first_row[site.layer, site.side] + position for position in channel] for channel in site.slots]
            for _, site in writers
        ]
        depth = max((len(channel) for writer in slots for channel in writer), default=1)
        self._slots = _padded(slots, (len(writers), widest, depth), total).to(device)
        of_set = [[w for w, (i, _) in enumerate(writers) if i == s] or [len(writers)] for s in range(len(sets))]
        self._writers = _padded(of_set, (len(sets), max(map(len, of_set), default=1)), len(writers) + 1).to(device)
        present = [sum(map(bool, site.slots)) for _, site in writers]
        counts = torch.tensor(present, dtype=torch.float64, device=device)
        self._counts = counts.unsqueeze(1)
        shared = torch.tensor([len(of_set[i]) > 1 for i, _ in writers], dtype=torch.bool, device=device)
        self._shared = shared.unsqueeze(1)
        self._at_once = self._norms_at_once()
        self._padding = torch.tensor([[1.0], [0.0]], dtype=torch.float64, device=device).expand(2, widest)

    def __call__(self) -> Tensor:
        """Return the scores as (sets, channels of the largest set), float64; behind a set's last channel they are 0."""
        with torch.no_grad():
            if self._at_once is not None and self._at_once.fits():
                rows = [self._at_once()]
            else:
                rows = [
                    self._score(self._model, layer, self._rows(layer, side), self._observed)
                    for layer, side in self._layers
                ]
            zero = torch.zeros(1, dtype=torch.float64, device=self._slots.device)
            of_writers = torch.cat([*(row.double() for row in rows), zero])[self._slots].sum(-1)
            means = of_writers.sum(1, keepdim=True) / self._counts
            of_writers = of_writers / torch.where(self._shared, means.clamp(min=1e-300), 1.0)
            return torch.cat([of_writers, self._padding])[self._writers].sum(1)

    def _norms_at_once(self) -> RowNorms | None:
        """Return how the scores of all rows are computed in one launch; None where they are no norms, or no GPU fuses them."""
        order = 1 if self._score is l1 else 2 if self._score is l2 else None
        modules = [self._model.get_submodule(layer) for layer, side in self._layers if side == Side.OUT]
        plain = len(modules) == len(self._layers) and not any(isinstance(module, TRANSPOSED) for module in modules)
        if order is None or not modules or not plain or self._slots.device.type != "cuda" or not find_spec("triton"):
            return None
        from sparsefw.compression.fused.row_norms import RowNorms

        return RowNorms([weight_of(module) for module in modules], order)

    def _rows(self, layer: str, side: Side) -> Tensor:
        """Return what writes each output of a layer: (outputs, ...)."""
        module = self._model.get_submodule(layer)
        weight = weight_of(module).detach()
        if side == Side.IN:
            return weight if isinstance(module, TRANSPOSED) else weight.transpose(0, 1)
        return as_matrices(module).detach().flatten(0, 1) if isinstance(module, TRANSPOSED) else weight


def _scored(channels: Channels) -> Sequence[Site]:
    """Return the sites whose weights decide: what writes channels; of heads, what the output projection reads from them."""
    return channels.readers if channels.is_heads else channels.writers


def _padded(lists: Sequence[Any], shape: tuple[int, ...], filler: int) -> Tensor:
    """Return nested lists of indices as one tensor of this shape, with the filler where a list is too short."""
    padded = np.full(shape, filler, dtype=np.int64)
    for i, values in enumerate(lists):
        if len(shape) == 2:
            padded[i, : len(values)] = values
        else:
            for j, inner in enumerate(values):
                padded[i, j, : len(inner)] = inner
    return torch.from_numpy(padded)


def activation(model: nn.Module, channels: Channels, observed: Observed) -> Tensor:
    total = torch.zeros(channels.count, dtype=torch.float64)
    readers = [site for site in channels.readers if site.layer in observed.energy]  # an auxiliary head did not run
    for site in readers:
        layer = model.get_submodule(site.layer)
        share = (_input_norms(layer).double() * observed.energy[site.layer]).cpu()
        total += _per_channel(site, share / share.sum().clamp(min=1e-300))
    if not readers:  # attention heads, and channels that only depthwise layers read
        return scores_of("l2", model, [channels], observed)[0]
    return total


SCORES = (*ROW_SCORES, "activation")
NEEDS_DATA = ("activation",)


def scores_of(name: str, model: nn.Module, sets: Sequence[Channels], observed: Observed) -> list[Tensor]:
    """Return the scores of every set's channels, in float64 on the CPU."""
    if name in ROW_SCORES:
        rows = RowScores(model, sets, ROW_SCORES[name], observed)().cpu()
        return [row[: channels.count] for row, channels in zip(rows, sets, strict=True)]
    return [activation(model, channels, observed) for channels in sets]


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
