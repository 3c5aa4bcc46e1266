"""A network that a runtime computes, as a torch.nn.Module: what evaluates networks evaluates exported files, too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from sparsefw.compression.artifact.export.checked import Runner
from sparsefw.compression.artifact.export.tracing import on_cpu
from sparsefw.compression.recovery.batches import batch_size, items_of
from sparsefw.compression.structure.layers import call_on_copy, evaluating


class RuntimeNetwork(nn.Module):
    """A network that a runtime computes: it takes the arguments of the model that it was made of, and gives such outputs.

    Args:
        runner: The network in its runtime.
        model: What it was made of.
        example: An input of the model.
        largest_batch: Larger batches are run in parts; None: any is run at once.
    """

    def __init__(self, runner: Runner, model: nn.Module, example: Any, largest_batch: int | None) -> None:
        super().__init__()
        self._runner = runner
        with evaluating(model):
            self._structure = tree_flatten(call_on_copy(model, example))[1]
        self._largest_batch = largest_batch

    def forward(self, *positional: Any, **by_name: Any) -> Any:
        inputs = (positional, by_name) if by_name else positional
        device = next(t.device for t in tree_leaves(inputs) if isinstance(t, Tensor))
        parts = [self._runner(part)() for part in self._parts(on_cpu(inputs))]
        outputs = [torch.cat([torch.as_tensor(t) for t in pieces]).to(device) for pieces in zip(*parts, strict=True)]
        return tree_unflatten(outputs, self._structure)

    def _parts(self, inputs: Any) -> Iterator[Any]:
        size = batch_size(inputs)
        if self._largest_batch is None or size <= self._largest_batch:
            yield inputs
            return
        for first in range(0, size, self._largest_batch):
            yield items_of(inputs, range(first, min(first + self._largest_batch, size)))
