"""Calibration: batches of inputs, no labels, the same in every pass."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from sparsefw.compression.check import is_sparse, why_not_sparse
from sparsefw.compression.recovery.batches import batch_size, first_items, inputs_of, items_of, takes_list
from sparsefw.compression.structure.layers import call_on_copy, hint_at_labels
from sparsefw.text import first_line

HELD_OUT = 4  # every 4th input is in the part that is held out


class NotFiniteError(ValueError):
    """A network gives NaN or inf on the calibration inputs, or numbers whose squares are."""


class Calibration:
    """Inputs from any iterable of batches, on the model's device.

    A batch is a tensor, a dict of keyword arguments (its "labels" are dropped), or a tuple or list whose first item is the
    input and whose others (labels) are ignored. For a network that takes a list of images it is such a list, or a tuple or list
    whose first item is one. An iterable that can be read again, such as a DataLoader, is read in every pass
    with the random numbers of seed 0, so that shuffling and augmentation repeat; an iterator, such as a generator, is read once
    and kept.
    """

    def __init__(self, batches: Iterable[Any], device: torch.device) -> None:
        if isinstance(batches, (Tensor, str, Mapping)) or not isinstance(batches, Iterable):
            got = type(batches).__name__
            raise ValueError(
                f"calibration must be an iterable of batches, got {got}; such as a DataLoader or images.split(64)"
            )
        self._batches = list(batches) if isinstance(batches, Iterator) else batches
        self._device = device
        self._takes_list = False
        self.count = 0  # of inputs; known after the first pass

    def suit(self, model: nn.Module) -> None:
        """Find out whether the model takes the images of a batch as a list."""
        with _repeated_randomness(self._batches):
            first = next(iter(_from_the_start(self._batches)), None)
        self._takes_list = takes_list(model, tree_map(self._move, first))

    def __iter__(self) -> Iterator[Any]:
        count = 0
        with _repeated_randomness(self._batches):
            for batch in _from_the_start(self._batches):
                inputs = tree_map(self._move, inputs_of(batch, self._takes_list))
                check_dense(inputs, "calibration")
                if not batch_size(inputs):
                    raise ValueError("calibration has an empty batch")
                count += batch_size(inputs)
                yield inputs
        self.count = count
        if not count:
            raise ValueError("calibration is empty: it has no batch")

    def _move(self, value: Any) -> Any:
        return value.to(self._device, non_blocking=True) if isinstance(value, Tensor) else value

    @property
    def example(self) -> Any:
        """The first one or two items of the first batch: enough to follow shapes."""
        return first_items(next(iter(self)), 2)


@dataclass(frozen=True)
class Part:
    """Every fourth input of a calibration, or the three others: of every batch, whatever their order and number.

    Input j of batch b is held out if b + j + 1 is a multiple of 4. Several processes that deal out batches in turn hold out the
    same inputs as one.
    """

    calibration: Calibration
    held_out: bool

    def __iter__(self) -> Iterator[Any]:
        rank, ranks = rank_of()
        for number, inputs in enumerate(self.calibration):
            first = number * ranks + rank
            places = torch.arange(first, first + batch_size(inputs)) % HELD_OUT == HELD_OUT - 1
            chosen = places if self.held_out else ~places
            if bool(chosen.any()):
                yield items_of(inputs, chosen.nonzero().flatten().tolist())


def _from_the_start(batches: Any) -> Any:
    """Return a loader with new workers: persistent ones would continue the random numbers of the last pass."""
    if isinstance(batches, DataLoader) and batches.persistent_workers:
        batches = copy.copy(batches)
        batches._iterator = None
    return batches


@contextlib.contextmanager
def _repeated_randomness(batches: Any) -> Iterator[None]:
    """Within the block, seed 0 for torch, numpy, `random` and the loader's generator; afterwards all have their old state.

    Generators of a GPU are left alone: torch.manual_seed would reset them, and no data is drawn there.
    """
    generators = [torch.default_generator]
    loader_generator = getattr(batches, "generator", None)
    if isinstance(loader_generator, torch.Generator):
        generators.append(loader_generator)
    torch_states = [generator.get_state() for generator in generators]
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    for generator in generators:
        generator.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    try:
        yield
    finally:
        for generator, state in zip(generators, torch_states, strict=True):
            generator.set_state(state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def check_dense(inputs: Any, name: str) -> None:
    """Refuse inputs of the user with sparse tensors: these have no strides, and few operations."""
    for tensor in tree_leaves(inputs):
        if isinstance(tensor, Tensor) and is_sparse(tensor):
            raise ValueError(f"{name} holds a tensor of shape {tuple(tensor.shape)} that {why_not_sparse(tensor)}")


def run(model: Callable[..., Any], inputs: Any, name: str = "calibration") -> Any:
    """Run the model on inputs of the user; ValueError, in one line, if they do not fit."""
    if not any(isinstance(t, Tensor) for t in tree_leaves(inputs)):
        raise ValueError(f"{name} has no tensor in it: {type(inputs).__name__}; give torch tensors, with a batch axis")
    check_dense(inputs, name)
    for tensor in tree_leaves(inputs):
        # -inf may be there on purpose: masks of attention.
        if isinstance(tensor, Tensor) and tensor.is_floating_point() and not bool((tensor < torch.inf).all()):
            raise ValueError(f"{name} contains NaN or inf")
    try:
        return call_on_copy(model, inputs)
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError) as error:
        shapes = [tuple(t.shape) for t in tree_leaves(inputs) if isinstance(t, Tensor)]
        hint = hint_at_labels(inputs) if name == "example" else _hint_at_several(error)
        raise ValueError(
            f"{name} does not fit the model: inputs of shape {shapes}: {first_line(error)}{hint}"
        ) from error


def _hint_at_several(error: Exception) -> str:
    """Return how to write a batch of several inputs, where the model misses one or takes none by that name."""
    if not isinstance(error, TypeError) or "argument" not in str(error):
        return ""
    return "; of a batch that is a tuple, the first item is the input: write ((a, b), labels) or ((a, b),) for inputs a and b"


def device_of(model: nn.Module) -> torch.device:
    for tensor in (*model.parameters(), *model.buffers()):
        return tensor.device
    return torch.device("cpu")


def rank_of() -> tuple[int, int]:
    """Return the rank of this process in a torch.distributed job and the number of processes; (0, 1) outside of one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


def add_over_ranks(tensors: Iterable[Tensor]) -> None:
    """Sum over the processes of a torch.distributed job, in place."""
    if rank_of()[1] > 1:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)


def mean_over_ranks(value: float) -> float:
    """Return the mean over the processes of a torch.distributed job, which must all decide alike."""
    world = rank_of()[1]
    if world == 1:
        return value
    device = torch.device("cuda") if torch.distributed.get_backend() == "nccl" else torch.device("cpu")
    total = torch.tensor(value, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(total)
    return float(total) / world
