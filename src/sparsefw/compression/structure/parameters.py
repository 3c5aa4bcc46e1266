"""Parameters outside of layers: scales, offsets and masks of channels, tables, and weights that code multiplies with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure.channels import Side, is_depthwise
from sparsefw.compression.structure.direct_weights import Weight, weight_of
from sparsefw.compression.structure.labels import Array
from sparsefw.compression.structure.layers import AnyConv, axis_of_channels, may_be_of_channels
from sparsefw.compression.structure.notes import Notes

LARGEST_TABLE = 2**18  # entries of a parameter, each of which gets a label


class Parameters:
    """What code does with parameters and buffers by itself, of the network that runs.

    names    of its parameters, and of buffers that may be a scale, an offset or a mask of channels
    tables   parameters of several axes -> the label of each entry
    used     layers -> what else code does with their weights
    """

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.labels = notes.labels
        self.modules: dict[str, nn.Module] = {}
        self.names: dict[Tensor, str] = {}
        self.tables: dict[str, Array] = {}
        self.used: dict[str, Reason] = {}

    def enter(self, model: nn.Module) -> None:
        """Look at the parameters of this network from now on."""
        self.modules = dict(model.named_modules())
        self.names = {p: name for name, p in model.named_parameters()}
        self.names |= {b: name for name, b in model.named_buffers() if may_be_of_channels(b)}

    def name_of(self, tensor: Tensor) -> str:
        """Return what people call a tensor: a parameter or buffer by its name, another by the module that makes it."""
        name = self.names.get(tensor)
        if name is not None:
            return f"the {'parameter' if isinstance(tensor, nn.Parameter) else 'buffer'} {name}"
        return f"a tensor of shape {tuple(tensor.shape)} that code makes"

    def weight_of(self, tensor: Tensor) -> Weight | None:
        name = self.names.get(tensor)
        return None if name is None else weight_of(self.modules[name.rpartition(".")[0]], name, tensor)

    def weight_is_used(self, weight: Weight, operation: str) -> None:
        self.used.setdefault(weight.site, because(Cause.WEIGHT_IS_USED, layer=weight.site, operation=operation))

    def written_by(self, weight: Weight, read: Array | None, count: int) -> Array:
        """Note that code multiplies with a weight by itself; return the labels of what it writes."""
        rows, columns = weight.sides[-2:]
        if read is not None and rows is not None:
            self.notes.add(weight.site, rows, read)
        elif read is not None:
            self.labels.fix(read, because(Cause.USED_OUTSIDE))
        written = self.notes.of.get((weight.site, columns)) if columns is not None else None
        if written is None:
            written = self.labels.fresh(count)
        if columns is None:
            self.labels.fix(written, because(Cause.USED_OUTSIDE))
        else:
            self.notes.add(weight.site, columns, written)
        self.notes.called.add(weight.site)
        return written

    def labels_of(self, tensor: Tensor) -> Array | None:
        """Label a tensor used outside of layers, such as a scale or a mask per channel or a table of positions."""
        name = self.names.get(tensor)
        if name is None:
            return None
        owner = self.modules[name.rpartition(".")[0]]
        if isinstance(owner, (nn.Linear, AnyConv)) and name.endswith((".weight", ".bias")):
            return self._bias_labels(name, tensor)
        axis = axis_of_channels(tensor)
        if axis is None and not isinstance(tensor, nn.Parameter):
            return None
        if axis is None or (tensor.ndim == 2 and min(tensor.shape) > 1):
            return self._table_labels(name, tensor)
        labels = self.notes.of.get((name, Side.EACH))
        if labels is None:
            labels = self.labels.fresh(tensor.shape[axis] if tensor.ndim else 1)
        self.notes.add(name, Side.EACH, labels)
        return labels.reshape([-1 if i == axis else 1 for i in range(tensor.ndim)])

    def _bias_labels(self, name: str, tensor: Tensor) -> Array | None:
        """Label the bias of a layer, outside of the layer, by its outputs; None for a weight."""
        layer, _, local = name.rpartition(".")
        module = self.modules[layer]
        if local != "bias" or (is_depthwise(module) and module.out_channels != module.in_channels):
            return None
        side = Side.EACH if is_depthwise(module) else Side.OUT
        labels = self.notes.of.get((layer, side), self.labels.fresh(len(tensor)))
        self.notes.add(layer, side, labels)
        return labels

    def _table_labels(self, name: str, tensor: Tensor) -> Array | None:
        """Label every entry of a table, such as biases of attention: which of its axes counts channels, its use shows.

        Of larger tables, such as positions, the last axis does.
        """
        if tensor.numel() > LARGEST_TABLE:
            columns = self.notes.of.get((name, Side.EACH), self.labels.fresh(tensor.shape[-1]))
            self.notes.add(name, Side.EACH, columns)
            return columns.reshape((1,) * (tensor.ndim - 1) + (-1,))
        if name not in self.tables:
            self.tables[name] = self.labels.fresh(tensor.numel()).reshape(tuple(tensor.shape))
        return self.tables[name]

    def judge_tables(self) -> None:
        """Note the axis of every table along which its labels differ. Entries that nothing uses go with their neighbours."""
        for name, entries in self.tables.items():
            classes = self.labels.classes(entries)
            distinct, counts = np.unique(classes, return_counts=True)
            used = ~np.isin(classes, distinct[counts == 1])
            for side, axis in _sides_of_table(entries):
                first = _same_along_others(classes, used, axis)
                if first is not None:
                    self.labels.unite(np.moveaxis(classes, axis, -1), first)
                    self.notes.add(name, side, first)
                    break
            else:
                self.labels.fix(entries, because(Cause.TWO_AXES))

    def judge_uses(self) -> None:
        """Keep the channels of layers with whose weights code does something else than multiply."""
        for (name, _), labels in self.notes.of.items():
            if name in self.used:
                self.labels.fix(labels, self.used[name])


def _sides_of_table(entries: Array) -> list[tuple[Side, int]]:
    """Return the sides of a parameter outside of layers, each with the axis that it counts, the last one first."""
    sides = [(Side.EACH, entries.ndim - 1), (Side.ROWS, 0), (Side.PLANES, 1)]
    return [(side, axis) for side, axis in sides[: max(2, entries.ndim)] if entries.shape[axis] > 1]


def _same_along_others(classes: Array, used: npt.NDArray[np.bool_], axis: int) -> Array | None:
    """Return the class at each place of an axis; None if used entries differ along another one."""
    lines = np.moveaxis(classes, axis, 0).reshape(classes.shape[axis], -1)
    in_use = np.moveaxis(used, axis, 0).reshape(lines.shape)
    first = lines[np.arange(len(lines)), in_use.argmax(1)]
    is_same = in_use.any(1) & ((lines == first[:, None]) | ~in_use).all(1)
    return first if bool(is_same.all()) else None
