"""Batches: tensors with a batch axis, or a list of images, as detectors take them; their length and their items.

A list of images of different sizes is one argument of the network: ([image, image],). Where a network does not run on the images
one argument each, but on the list of them, that is what is meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sparsefw.compression.structure.layers import call_on_copy, evaluating


def inputs_of(batch: Any, takes_list: bool = False) -> Any:
    """Return the inputs of a batch, without labels; for a network that takes a list, that of all images.

    >>> image = torch.zeros(3, 8, 8)
    >>> [type(part) for part in inputs_of(([image, image], [{}, {}]), takes_list=True)]
    [<class 'list'>]
    """
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name not in ("labels", "label")}
    if not isinstance(batch, (tuple, list)):
        return batch
    if not batch:
        raise ValueError("calibration has an empty batch")
    images = _images(batch) or _images(batch[0])
    return (images,) if takes_list and images else batch[0]


def takes_list(model: nn.Module, batch: Any) -> bool:
    """Return whether a network takes the images of this batch as a list: it runs on nothing else."""
    if not isinstance(batch, (tuple, list)) or not batch or not (_images(batch) or _images(batch[0])):
        return False
    return not _runs(model, inputs_of(batch)) and _runs(model, inputs_of(batch, takes_list=True))


def as_arguments(model: nn.Module, example: Any) -> Any:
    """Return an example as the arguments of the network: images are one list if it runs on nothing else.

    >>> class Largest(nn.Module):
    ...     def forward(self, images):
    ...         return [image.amax((1, 2)) for image in images]
    >>> type(as_arguments(Largest(), [torch.zeros(3, 8, 8), torch.zeros(3, 8, 9)])[0])
    <class 'list'>
    """
    images = _images(example)
    return (images,) if images and not _runs(model, example) and _runs(model, (images,)) else example


def _images(value: Any) -> list[Tensor]:
    """Return the images if it is a list of nothing else, each (channels, height, width); else an empty list."""
    is_list = isinstance(value, (tuple, list))
    return list(value) if is_list and all(isinstance(t, Tensor) and t.ndim == 3 for t in value) else []


def _runs(model: nn.Module, inputs: Any) -> bool:
    try:
        with evaluating(model):
            call_on_copy(model, inputs)
    except Exception:  # of the model's own code, on inputs that it may not be made for
        return False
    return True


def _listed(inputs: Any) -> list[Tensor]:
    """Return the images of inputs that are one list of them; else an empty list."""
    is_one = isinstance(inputs, (tuple, list)) and len(inputs) == 1 and isinstance(inputs[0], list)
    return _images(inputs[0]) if is_one else []


def takes_one_list(inputs: Any) -> bool:
    """Return whether these are the inputs of a network that takes a list of images."""
    return bool(_listed(inputs))


def batch_size(inputs: Any) -> int:
    """Return the length of the first tensor, or of a list of images.

    >>> batch_size({"image": torch.zeros(8, 3)}), batch_size(([torch.zeros(3, 8, 8), torch.zeros(3, 8, 9)],))
    (8, 2)
    """
    if images := _listed(inputs):
        return len(images)
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, Tensor) and t.ndim]
    return int(tensors[0].shape[0]) if tensors else 1


def items_of(inputs: Any, which: Sequence[int]) -> Any:
    """Return these items of a batch; tensors without a batch axis, such as a mask that all items share, stay."""
    if images := _listed(inputs):
        return ([images[i] for i in which],)
    size = batch_size(inputs)

    def chosen(t: Any) -> Any:
        if not isinstance(t, Tensor) or not t.ndim or len(t) != size:
            return t
        if which == range(len(which)):
            return t[: len(which)]
        return torch.cat([t[i : i + 1] for i in which])  # keeps the memory format

    return tree_map(chosen, inputs)


def first_items(inputs: Any, count: int) -> Any:
    """Return the first items of a batch."""
    return items_of(inputs, range(min(count, batch_size(inputs))))


def repeated(inputs: Any, count: int) -> Any:
    """Return a batch of copies of the first item."""
    return items_of(inputs, [0] * count)
