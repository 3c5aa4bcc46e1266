"""Calibration: batches of inputs, no labels, the same in every pass."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from sparsefw.compression.structure.layers import call
from sparsefw.text import first_line


class NotFiniteError(ValueError):
    """A network gives NaN or inf on the calibration inputs, or numbers whose squares are."""


class Calibration:
    """Inputs from any iterable of batches, on the model's device.

    A batch is a tensor, a dict of keyword arguments (its "labels" are dropped), or a tuple or list whose first item is the
    input and whose others (labels) are ignored. Something that can be iterated over again, such as a DataLoader, is read
    again in every pass with the random numbers of seed 0, so that shuffling and augmentation repeat; an iterator, such as a
    generator, is read once and held.
    """

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        if isinstance(batches, (Tensor, str, Mapping)) or not isinstance(batches, Iterable):
            got = type(batches).__name__
            raise ValueError(
                f"calibration must be an iterable of batches, got {got}; such as a DataLoader or images.split(64)"
            )
        self._batches = list(batches) if isinstance(batches, Iterator) else batches
        self._device = device
        self.count = 0  # of inputs, known after a pass

    def __iter__(self) -> Iterator[Any]:
        empty, count = True, 0
        with _repeated_randomness(self._batches):
            for batch in _from_the_start(self._batches):
                inputs = tree_map(self._move, inputs_of(batch))
                if not batch_size(inputs):
                    raise ValueError("calibration has an empty batch")
                empty, count = False, count + batch_size(inputs)
                yield inputs
        self.count = count
        if empty:
            raise ValueError("calibration is empty: it has no batch")

    def _move(self, value: Any) -> Any:
        return value.to(self._device, non_blocking=True) if isinstance(value, Tensor) else value

    @property
    def example(self) -> Any:
        """One input of batch size 1 to 2, cut from the first batch: enough to follow shapes."""
        return cut(next(iter(self)), 2)


def _from_the_start(batches: Any) -> Any:
    """Persistent workers would go on with the random numbers of the pass before: a loader with fresh ones."""
    if isinstance(batches, DataLoader) and batches.persistent_workers:
        batches = copy.copy(batches)
        batches._iterator = None
    return batches


@contextlib.contextmanager
def _repeated_randomness(batches: Any) -> Iterator[None]:
    """Random numbers of seed 0 from torch, numpy, `random` and the loader's own generator; afterwards all go on as before.

    Generators of a GPU are left alone: torch.manual_seed would reset them, and data is not drawn there.
    """
    own = getattr(batches, "generator", None)
    generators = [torch.default_generator, *([own] if isinstance(own, torch.Generator) else [])]
    before = [generator.get_state() for generator in generators], random.getstate(), np.random.get_state()
    for generator in generators:
        generator.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        for generator, state in zip(generators, before[0], strict=True):
            generator.set_state(state)
        random.setstate(before[1])
        np.random.set_state(before[2])


def inputs_of(batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return {name: value for name, value in batch.items() if name not in ("labels", "label")}
    if isinstance(batch, (tuple, list)):
        if not batch:
            raise ValueError("calibration has an empty batch")
        return batch[0]
    return batch


def batch_size(inputs: Any) -> int:
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, Tensor) and t.ndim]
    return int(tensors[0].shape[0]) if tensors else 1


def cut(inputs: Any, items: int) -> Any:
    """The first items of a batch; what is not along the batch, such as a mask that all items share, stays."""
    size = batch_size(inputs)
    return tree_map(lambda t: t[:items] if isinstance(t, Tensor) and t.ndim and len(t) == size else t, inputs)


def run(model: nn.Module, inputs: Any, what: str = "calibration") -> Any:
    """The model on one batch of calibration; what does not fit is said in one line."""
    if not any(isinstance(t, Tensor) for t in tree_leaves(inputs)):
        raise ValueError(f"{what} has no tensor in it: {type(inputs).__name__}; give torch tensors, with a batch axis")
    for tensor in tree_leaves(inputs):
        # -inf may be there for a purpose: masks of attention.
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not bool((tensor < torch.inf).all()):
            raise ValueError(f"{what} contains NaN or inf")
    try:
        return call(model, inputs)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        shapes = [tuple(t.shape) for t in tree_leaves(inputs) if isinstance(t, Tensor)]
        raise ValueError(f"{what} does not fit the model: inputs of shape {shapes}: {first_line(error)}") from error


def device_of(model: nn.Module) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def rank_of() -> tuple[int, int]:
    """Which process of a torch.distributed job this is, and of how many; (0, 1) outside of one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def add_over_ranks(tensors: Iterable[Tensor]) -> None:
    """Sum over the processes of a torch.distributed job, in place; nothing to do in a single one."""
    if rank_of()[1] > 1:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)


def mean_over_ranks(value: float) -> float:
    """What the processes of a torch.distributed job measured, averaged: all must decide alike."""
    world = rank_of()[1]
    if world == 1:
        return value
    device = torch.device("cuda") if torch.distributed.get_backend() == "nccl" else torch.device("cpu")
    total = torch.tensor(value, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(total)
    return float(total) / world
