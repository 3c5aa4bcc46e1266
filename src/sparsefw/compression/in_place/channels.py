"""Channels silenced in place: filters, their biases and the outputs of norms are 0, which equals removing the channels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sparsefw.compression.in_place.attention import LinearPart
from sparsefw.compression.in_place.restriction import InPlaceCut, Mask, Restriction
from sparsefw.compression.in_place.slices import InSlices, OnePassError
from sparsefw.compression.recovery.calibration import device_of
from sparsefw.compression.score import RowScores
from sparsefw.compression.structure.channels import (
    SEPARATE_NORMS,
    Channels,
    Side,
    is_frozen_norm,
    is_norm_of_channels,
)
from sparsefw.compression.structure.counted_norms import norm_form
from sparsefw.compression.structure.layers import AnyConv, bare_tensor, groups_of, weight_of
from sparsefw.compression.structure.surgery import axis_of_bare, size
from sparsefw.geometry.select import without_smallest_masks
from sparsefw.layer_types import TRANSPOSED

Counts = Callable[[float], Sequence[int]]


class _Target(NamedTuple):
    """A tensor to mask, and the function from the mask of its layer's positions to one that it can be multiplied by.

    owner, name: of a buffer or a part of a parameter, which are other tensors when a network was moved to another dtype.
    """

    tensor: Tensor
    shaped: Callable[[Tensor], Tensor]
    owner: nn.Module | None = None
    name: str = ""

    @property
    def key(self) -> Hashable:
        return id(self.owner or self.tensor), self.name

    def now(self) -> Tensor:
        """Return the tensor that the network has at the moment."""
        tensor: Tensor = self.tensor if self.owner is None else getattr(self.owner, self.name)
        return tensor


class ChannelCut(InPlaceCut):
    """Sets of channels lose those with the smallest scores, equally many from every group."""

    def __init__(
        self,
        model: nn.Module,
        sets: Sequence[Channels],
        scores: RowScores,
        counts: Counts,
        norms: dict[str, str] | None,
    ) -> None:
        """Prepare the gathers from scores to the masks of all layers.

        Args:
            sets: The sets that lose channels.
            scores: Computes the scores of all sets.
            counts: From a ratio to the number of channels that each set keeps.
            norms: Layer -> the batch norm that alone reads it: where that is silenced, the layer need not be. None: filters are
                zeroed, and nothing else (masked).
        """
        seen = next((channels.name for channels in sets if channels.reaches_norms), None)
        if seen is not None:
            raise ValueError(
                f"the channels of {seen} are not 0 where they are silent, and norms average over them: they cannot be left out "
                "in place; exclude these layers, or use compress, which removes them"
            )
        self._scores = scores
        self._counts = counts
        self._sets = sets
        self.norms = norms
        device = device_of(model)
        # One row for every group of every set; a row ranks its own channels.
        widest = max(channels.count for channels in sets)
        rows: list[list[int]] = []
        self._groups: list[int] = []  # of each set
        row_of: list[list[int]] = [[] for _ in sets]
        for s, channels in enumerate(sets):
            for group in sorted(set(channels.groups)):
                row_of[s].append(len(rows))
                rows.append([s * widest + j for j, g in enumerate(channels.groups) if g == group])
            self._groups.append(len(row_of[s]))
        self._total = len(sets) * widest
        longest = max(map(len, rows))
        order = np.full((len(rows), longest), self._total, dtype=np.int64)
        place = np.zeros(self._total + 1, dtype=np.int64)  # of every channel among the rows
        for r, members in enumerate(rows):
            order[r, : len(members)] = members
            place[members] = np.arange(len(members)) + r * longest
        place[-1] = len(rows) * longest  # a channel that always stays
        self._order = torch.from_numpy(order).to(device)
        positions = _channel_of_position(model, sets, widest)
        self._position = torch.from_numpy(place[np.concatenate(list(positions.values()))]).to(device)
        self.sites = list(positions)
        self._lengths = [len(indices) for indices in positions.values()]
        targets = [_targets(model, layer, side, norms) for layer, side in positions]
        self._targets = [(i, target) for i, of_site in enumerate(targets) for target in of_site]
        # Of most targets: masks of this type need no conversion, which would be a launch for each.
        self._dtype = self._targets[0][1].tensor.dtype if self._targets else torch.float32

    @property
    def tables_of_heads(self) -> set[tuple[str, Side]]:
        """Scales and tables of biases with an entry for each head: where its values are silent, they have no effect."""
        sites = [site for channels in self._sets if channels.is_heads for site in channels.sites]
        return {(site.layer, site.side) for site in sites if site.side in (Side.EACH, Side.ROWS)}

    def numbers(self, ratio: float) -> Tensor:
        kept = self._counts(ratio)
        removed = [
            (channels.count - count) // groups
            for channels, count, groups in zip(self._sets, kept, self._groups, strict=True)
            for _ in range(groups)
        ]
        return torch.tensor(removed)

    def masks(self, numbers: Tensor) -> Sequence[Tensor]:
        """Return a mask of the outputs of every site, with a row for each size.

        Args:
            numbers: Of channels that go, a row for each size.
        """
        infinite = torch.full((1,), torch.inf, dtype=torch.float64, device=numbers.device)
        ranked = torch.cat([self._scores().flatten(), infinite])[self._order]
        stays = without_smallest_masks(ranked, numbers)
        always = torch.ones((len(numbers), 1), dtype=torch.bool, device=numbers.device)
        of_positions = torch.cat([stays.flatten(1), always], dim=1)[:, self._position].to(self._dtype)
        return of_positions.split(self._lengths, dim=1)

    def restriction(self, numbers: Tensor) -> Restriction:
        masks = self.masks(numbers.unsqueeze(0))
        of_tensor: dict[Hashable, tuple[Tensor, Tensor]] = {}
        for i, target in self._targets:
            tensor = target.now()
            mask = target.shaped(masks[i][0]).to(tensor.dtype)
            known = of_tensor.get(
                target.key
            )  # a projection of attention is silenced by its heads and by what it writes
            of_tensor[target.key] = tensor, mask if known is None else known[1] * mask
        return Mask([tensor for tensor, _ in of_tensor.values()], [mask for _, mask in of_tensor.values()])

    def in_slices(self, model: nn.Module) -> InSlices:
        return _ChannelSlices(model, self)


class _ChannelSlices(InSlices):
    """Channels silenced behind the layers that write them, in the scale and the offset of a norm where it has them."""

    def __init__(self, model: nn.Module, cut: ChannelCut) -> None:
        self._cut = cut
        self._sites: dict[nn.Module, tuple[int, int]] = {}  # the index of its mask, and its outputs per masked channel
        for i, (layer, side) in enumerate(cut.sites):
            if (layer, side) in cut.tables_of_heads:
                continue
            repeated = _outputs_per_channel(model, layer, side, cut.norms)
            if repeated:
                self._sites[model.get_submodule(layer)] = i, repeated
        self.modules = list(self._sites)

    def attributes(self, numbers: Tensor, slice_of_part: Tensor) -> Mapping[nn.Module, dict[str, Any]]:
        of_slices = torch.cat([numbers, torch.zeros_like(numbers[:1])])  # from the whole network nothing goes
        masks = self._cut.masks(of_slices[slice_of_part])
        masked = self._cut.norms is None  # filters are masked, and their biases stay
        return {
            module: {
                "_slice_masks": masks[i] if repeated == 1 else masks[i].repeat_interleave(repeated, 1),
                "_slice_axis": _axis_of_outputs(module),
                "_slice_keeps_bias": masked and getattr(module, "bias", None) is not None,
            }
            for module, (i, repeated) in self._sites.items()
        }


def _axis_of_outputs(module: nn.Module) -> int:
    """Return the axis of the channels in the outputs of a layer that is silenced."""
    form = norm_form(module)
    if form is not None:
        return form.axis
    return -1 if isinstance(module, (nn.Linear, nn.Embedding)) else 1


def _outputs_per_channel(model: nn.Module, layer: str, side: Side, norms: dict[str, str] | None) -> int:
    """Return how many outputs of a layer a channel has, if they are to be silenced; 0 if they need not be."""
    bare = bare_tensor(model, layer)
    if bare is not None:
        raise OnePassError(
            f"{layer} is a {'parameter' if isinstance(bare, nn.Parameter) else 'buffer'} outside of layers"
        )
    module: Any = model.get_submodule(layer)
    if side == Side.IN:
        raise OnePassError(f"{layer} reads channels that are not 0 where they are silent")
    if isinstance(module, nn.Embedding) or is_norm_of_channels(module):
        return 1
    if side == Side.OUT:
        if norms is None:
            return 1
        behind = norms.get(layer)
        return 0 if behind is not None and model.get_submodule(behind).affine else 1
    if isinstance(module, AnyConv) and module.bias is not None:  # depthwise
        return int(module.out_channels // module.in_channels)
    return 0


def _channel_of_position(model: nn.Module, sets: Sequence[Channels], widest: int) -> dict[tuple[str, Side], np.ndarray]:
    """Map every side of a layer that is silenced to the channel at each position; -1, the last of all, where none may go."""
    positions: dict[tuple[str, Side], np.ndarray] = {}
    for s, channels in enumerate(sets):
        for site in channels.sites:
            if site.side == Side.COUNT or (site.side == Side.IN and not channels.leaves_constant):
                continue
            key = (site.layer, site.side)
            if key not in positions:
                positions[key] = np.full(size(model, *key), -1, dtype=np.int64)
            for j, slots in enumerate(site.slots):
                positions[key][list(slots)] = s * widest + j
    return positions


def _targets(model: nn.Module, layer: str, side: Side, norms: dict[str, str] | None) -> list[_Target]:
    """Return the tensors of a layer that silence its channels."""
    bare = bare_tensor(model, layer)  # a scale, an offset or a mask outside of layers
    if bare is not None:
        axis = axis_of_bare(bare, side) if bare.ndim else 0
        owner, _, local = layer.rpartition(".")
        where = () if isinstance(bare, nn.Parameter) else (model.get_submodule(owner), local)
        return [_Target(bare, lambda mask: mask.view([-1 if i == axis else 1 for i in range(bare.ndim)]), *where)]
    module: Any = model.get_submodule(layer)
    if isinstance(module, LinearPart):
        return _targets_of_part(module, side, norms is None)
    if isinstance(module, nn.Embedding):
        return [_Target(module.weight, _as_it_is)]
    if is_frozen_norm(module):
        return [_Target(vector, _as_it_is) for vector in (module.weight, module.bias)]
    if norm_form(module) is not None:
        return [_Target(vector, _as_it_is) for vector in module.parameters()]
    if side == Side.IN:
        return [_columns_target(module)]
    if side == Side.OUT:
        bias = [] if module.bias is None else [module.bias]
        if norms is None:
            return [_rows_target(module)]
        behind = norms.get(layer)
        if behind is not None and model.get_submodule(behind).affine:
            return []
        return [_rows_target(module), *(_Target(vector, _as_it_is) for vector in bias)]
    if isinstance(module, SEPARATE_NORMS):
        if not module.affine:
            mean = module.running_mean
            return [] if mean is None else [_Target(mean, _as_it_is, module, "running_mean")]
        return [_Target(vector, _as_it_is) for vector in (module.weight, module.bias) if vector is not None]
    if isinstance(module, AnyConv) and module.bias is not None:  # depthwise
        times = module.out_channels // module.in_channels
        return [_Target(module.bias, lambda mask: mask.repeat_interleave(times))]
    return []


def _targets_of_part(layer: LinearPart, side: Side, keeps_bias: bool) -> list[_Target]:
    if side == Side.IN:
        return [_columns_target(layer)._replace(owner=layer, name="weight")]
    rows = _rows_target(layer)._replace(owner=layer, name="weight")
    bias = layer.bias
    return [rows] if bias is None or keeps_bias else [rows, _Target(bias, _as_it_is, layer, "bias")]


def _as_it_is(mask: Tensor) -> Tensor:
    return mask


def _rows_target(layer: nn.Module) -> _Target:
    weight = weight_of(layer)
    if not isinstance(layer, TRANSPOSED):
        return _Target(weight, lambda mask: mask.view(-1, *[1] * (weight.ndim - 1)))
    # (inputs, outputs per group, *kernel): every group is a range of the first axis, and has its own outputs.
    groups = groups_of(layer)
    inputs = weight.shape[0] // groups

    def shaped(mask: Tensor) -> Tensor:
        return mask.view(groups, -1).repeat_interleave(inputs, 0).view(*weight.shape[:2], *[1] * (weight.ndim - 2))

    return _Target(weight, shaped)


def _columns_target(layer: nn.Module) -> _Target:
    """What a layer reads from each of its inputs."""
    weight = weight_of(layer)
    if isinstance(layer, TRANSPOSED):
        return _Target(weight, lambda mask: mask.view(-1, *[1] * (weight.ndim - 1)))
    groups = groups_of(layer)
    outputs = weight.shape[0] // groups
    kernel = [1] * (weight.ndim - 2)
    return _Target(
        weight, lambda mask: mask.view(groups, -1).repeat_interleave(outputs, 0).view(len(weight), -1, *kernel)
    )
