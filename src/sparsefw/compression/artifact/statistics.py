"""Statistics of sizes: all that a plain size needs beside the dense weights, one number per channel that stays.

running_mean, running_var   of every batch norm
scale, bias                 in networks without batch norms: the factor and the bias of every layer, from matched moments

Between two stored sizes, they are interpolated; a channel that the smaller of both lacks has those of the larger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.recovery.cut_network import CutNetwork
from sparsefw.compression.recovery.moments import last_part, scale_outputs
from sparsefw.compression.structure.layers import bias_of
from sparsefw.layer_types import BATCH_NORMS

MEAN, VARIANCE, SCALE, BIAS = FIELDS = ("running_mean", "running_var", "scale", "bias")
Values = dict[str, dict[str, Tensor]]  # field -> layer of the dense network -> one number per channel that stays
Rows = Mapping[str, Sequence[int]]  # layer -> its channels in the dense network; layers that keep all are not there


@dataclass(frozen=True)
class Statistics:
    """The statistics of one size, and which channels of the dense network they belong to."""

    values: Values
    rows: Rows

    @classmethod
    def of_cut(cls, cut: CutNetwork) -> Statistics:
        """Return those of a network that was recovered as a plain one."""
        values: Values = {field: {} for field in FIELDS}
        for name, module in cut.model.named_modules():
            if isinstance(module, BATCH_NORMS) and isinstance(module.running_mean, Tensor):
                values[MEAN][name] = module.running_mean
                values[VARIANCE][name] = _tensor(module, VARIANCE)
        for name, scale in cut.scales.items():
            values[SCALE][name] = scale
            bias = bias_of(last_part(cut.model.get_submodule(name)))
            if bias is not None:
                values[BIAS][name] = bias.detach()
        return cls(values, cut.rows)

    @classmethod
    def of_dense(cls, dense: nn.Module, layers: Mapping[str, Sequence[str]]) -> Statistics:
        """Return those of the dense network itself, for these layers of each field."""
        values = {
            field: {name: _in_dense(dense.get_submodule(name), field) for name in names}
            for field, names in layers.items()
        }
        return cls(values, {})

    @classmethod
    def from_file(cls, joined: Mapping[str, Tensor], dense: Statistics, rows: Rows) -> Statistics:
        """Return those of one size from one tensor per field; ValueError if their lengths are not those of its channels."""
        values: Values = {}
        for field, names in dense.layers.items():
            lengths = [len(rows.get(name, dense.values[field][name])) for name in names]
            if names and (field not in joined or len(joined[field]) != sum(lengths)):
                raise ValueError(f"{field} has not one number for each of {sum(lengths)} channels")
            values[field] = dict(zip(names, joined[field].split(lengths), strict=True)) if names else {}
        return cls(values, rows)

    def to_file(self) -> dict[str, Tensor]:
        """Return one tensor per field."""
        return {field: torch.cat(list(of.values())) for field, of in self.values.items() if of}

    @property
    def layers(self) -> dict[str, list[str]]:
        """The names of the layers that have each field."""
        return {field: list(of) for field, of in self.values.items()}

    def write(self, small: nn.Module) -> None:
        """Write them into the network that was cut out of the dense one, in place."""
        with torch.no_grad():
            for field in (MEAN, VARIANCE):
                for name, values in self.values[field].items():
                    _tensor(small.get_submodule(name), field).copy_(values)
            for name, scale in self.values[SCALE].items():
                scale_outputs(last_part(small.get_submodule(name)), scale)
            for name, bias in self.values[BIAS].items():
                _tensor(last_part(small.get_submodule(name)), BIAS).copy_(bias)


def interpolated(dense: Statistics, larger: Statistics, smaller: Statistics, share: float, rows: Rows) -> Statistics:
    """Return the statistics `share` of the way from the larger size to the smaller one, for these channels."""
    values: Values = {}
    for field, of_dense in dense.values.items():
        values[field] = {}
        for name, value in of_dense.items():
            start = _placed(larger, field, name, value.double())
            end = _placed(smaller, field, name, start)
            between = start + share * (end - start)
            values[field][name] = between[list(rows[name])] if name in rows else between
    return Statistics(values, rows)


def _placed(statistics: Statistics, field: str, name: str, otherwise: Tensor) -> Tensor:
    """Return the values at their places in the dense network, and others where a channel has none."""
    placed = otherwise.clone()
    values = statistics.values[field][name].double()
    if name in statistics.rows:
        placed[list(statistics.rows[name])] = values
    else:
        placed.copy_(values)
    return placed


def _in_dense(module: nn.Module, field: str) -> Tensor:
    if field != SCALE:
        return _tensor(module, field).detach()
    outputs: Any = module.out_features if isinstance(module, nn.Linear) else module.out_channels
    return torch.ones(outputs, dtype=torch.float64)


def _tensor(module: nn.Module, field: str) -> Tensor:
    tensor = getattr(module, field)
    assert isinstance(tensor, Tensor)
    return tensor
