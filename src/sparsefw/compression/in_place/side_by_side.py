"""Networks of several sizes side by side: in one pass, every slice of a batch sees a size of its own.

Outputs of layers are silenced or projected for the images of one slice, instead of the weights; and batch norms normalise every
slice by its own statistics. So a batch of several sizes costs one pass, and the weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from sparsefw.compression.in_place.attention import PlainView
from sparsefw.compression.in_place.restriction import InPlaceCut, restricted, unchanged_buffers
from sparsefw.compression.in_place.sliced_layers import Sliced, sliced
from sparsefw.compression.in_place.slices import OnePassError
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import call_on_copy, plain_transformer_layers
from sparsefw.text import first_line

# How far one pass may be from a pass for each size, by rounding. A mistake changes outputs by their own size.
_TOLERANCE = 1e-2
_TRIED_RATIO = 0.5
_OF_THE_MODEL = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, AssertionError, AttributeError)
_FORWARDS = (_BatchNorm.forward, nn.SyncBatchNorm.forward)  # of batch norms whose statistics are those of each slice
MOST_PARTS = 64  # of equal length, in which a batch is thought to be divided


class SideBySide:
    """Gives the first slices of every batch smaller networks, and the last one the whole network.

    Args:
        model: The network.
        view: The same as plain layers.
        cut: How it is made smaller.
        example: An input; one pass is compared with one for each size, and OnePassError is raised where they disagree.
    """

    def __init__(self, model: nn.Module, view: PlainView, cut: InPlaceCut, example: Any) -> None:
        self._cut = cut
        self._in_slices = cut.in_slices(view.plain)
        self._attentions = {old: {"_slice_attention": plain} for old, plain in view.attentions.items()}
        self._divisions: dict[tuple[float, ...], _Division] = {}
        self._norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
        for name, module in model.named_modules():
            if isinstance(module, _BatchNorm) and type(module).forward not in _FORWARDS:
                raise OnePassError(f"{name} is a {type(module).__name__}, which is no batch norm of torch")
        self._require_agreement(model, example)

    @property
    def followed(self) -> Sequence[Tensor]:
        """Tensors that change from block to block, and that a training which resumes must have."""
        return self._in_slices.followed

    @contextmanager
    def slices(self, ends: Sequence[float], numbers: Tensor) -> Iterator[None]:
        """Divide every batch of the block.

        Args:
            ends: Where the slices of the smaller networks end, as fractions of the batch; the rest sees the whole network.
            numbers: Of units that go, a row for each of these slices.
        """
        if len(ends) != len(numbers):
            raise ValueError(f"there are {len(numbers)} chosen sizes, and ends of {len(ends)} slices for them")
        division = self._division(tuple(ends), numbers.device)
        modules = list(dict.fromkeys([*self._norms, *self._attentions, *self._in_slices.modules]))
        classes = [type(module) for module in modules]
        if any(issubclass(kind, Sliced) for kind in classes):
            raise ValueError("the network already has several sizes: this block is within another one")
        own = {**self._attentions, **self._in_slices.attributes(numbers, division.slice_of_part)}
        try:
            for module, kind in zip(modules, classes, strict=True):
                vars(module)["_slice_ends"] = division.ends
                vars(module)["_slice_parts"] = division.first_parts
                vars(module)["_slice_average"] = division.average
                vars(module).update(own.get(module, {}))
                module.__class__ = sliced(kind)
            with plain_transformer_layers():
                yield
        finally:
            for module, kind in zip(modules, classes, strict=True):
                module.__class__ = kind
                for name in Sliced.__annotations__:
                    vars(module).pop(name, None)

    def _division(self, ends: tuple[float, ...], device: torch.device) -> _Division:
        if ends not in self._divisions:
            self._divisions[ends] = _Division.at(ends, device)
        return self._divisions[ends]

    @torch.no_grad()
    def _require_agreement(self, model: nn.Module, example: Any) -> None:
        """Compare one pass over two sizes with one pass for each, in numbers."""
        numbers = self._cut.numbers(_TRIED_RATIO).to(next(model.parameters()).device)
        small, whole = _random_like(example, seed=0), _random_like(example, seed=1)
        exact = torch.backends.cudnn.flags(allow_tf32=False)
        with _batch_statistics(model), unchanged_buffers(model), plain_transformer_layers(), exact:
            try:
                with restricted(model, self._cut.restriction(numbers)):
                    expected_small = call_on_copy(model, small)
                expected = tree_map(_joined, expected_small, call_on_copy(model, whole))
                with self.slices([0.5], numbers.unsqueeze(0)):
                    found = call_on_copy(model, tree_map(_joined, small, whole))
                found = tree_map(_of_each_item, found)
            except _OF_THE_MODEL as error:  # such as a model that takes batches of one size only
                raise OnePassError(f"it does not run on a larger batch: {first_line(error)}") from error
        gap = relative_gap(expected, found)
        if not gap <= _TOLERANCE:
            raise OnePassError(f"its outputs for several sizes at once differ from those one by one, by {gap:.2g}")


class _Division(NamedTuple):
    """The slices of a batch, and the equal parts that they consist of; where there are no such parts, the slices themselves.

    ends            where the slices end, as fractions of the batch, but for the last one
    first_parts     of each slice
    slice_of_part   on the device
    average         (parts, parts): averages a figure of the parts over the slice of each; None if they are not equal
    """

    ends: tuple[float, ...]
    first_parts: tuple[int, ...]
    slice_of_part: Tensor
    average: Tensor | None

    @classmethod
    def at(cls, ends: tuple[float, ...], device: torch.device) -> _Division:
        bounds = _bounds_in_parts(ends)
        lengths = torch.ones(len(ends) + 1, dtype=torch.int64) if bounds is None else torch.tensor(bounds).diff()
        slice_of_part = torch.arange(len(lengths)).repeat_interleave(lengths)
        first = (lengths.cumsum(0) - lengths).tolist()
        average = None
        if bounds is not None:
            average = ((slice_of_part[:, None] == slice_of_part) / lengths[slice_of_part]).to(device)
        return cls(ends, tuple(first), slice_of_part.to(device), average)


def _bounds_in_parts(ends: Sequence[float]) -> list[int] | None:
    """Return where slices begin and end, counted in the fewest equal parts of a batch; None where these would be too many.

    >>> _bounds_in_parts([0.25, 0.5]), _bounds_in_parts([0.3141])
    ([0, 1, 2, 4], None)
    """
    for count in range(1, MOST_PARTS + 1):
        bounds = [0, *(round(count * end) for end in ends), count]
        exact = all(abs(count * end - bound) < 1e-9 for end, bound in zip(ends, bounds[1:], strict=False))
        if exact and all(start < stop for start, stop in pairwise(bounds)):
            return bounds
    return None


def _joined(first: Any, second: Any) -> Any:
    if not isinstance(first, Tensor):
        return first
    return torch.cat([first, second]) if first.ndim else None


def _of_each_item(output: Any) -> Any:
    """Leave out numbers of a whole batch, such as the loss of a network that was given labels, too."""
    return None if isinstance(output, Tensor) and output.ndim == 0 else output


def _random_like(example: Any, seed: int) -> Any:
    """Return random inputs of the example's shapes, twice as many; whole numbers, such as tokens, stay."""
    draw = torch.Generator().manual_seed(seed)

    def randomised(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        many = x.repeat(2, *[1] * (x.ndim - 1))
        return torch.randn(many.shape, generator=draw).to(many) if many.is_floating_point() else many

    return tree_map(randomised, example)


class _BatchNormOfOneProcess(_BatchNorm):
    def _check_input_dim(self, input: Tensor) -> None:
        pass


@contextmanager
def _batch_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norms normalise by the batch of this process, and nothing be random, for the duration of a block."""
    before = [(module, type(module), module.training) for module in model.modules()]
    try:
        for module, kind, _ in before:
            module.training = isinstance(module, _BatchNorm)
            if issubclass(kind, nn.SyncBatchNorm):  # other processes may not try at this moment
                module.__class__ = _BatchNormOfOneProcess
        yield
    finally:
        for module, kind, mode in before:
            module.__class__ = kind
            module.training = mode
