"""Synthetic inputs, for calibration where there are no data: inputs that give the statistics which the batch norms hold.

    x = argmin  mean over batch norms of  |mean_x - mean|^2 / variance + (deviation_x / deviation - 1)^2

over a batch of inputs that begins as normal noise, by Adam, with the weights fixed. Every batch norm remembers the mean and the
variance that its inputs had in training: inputs that give these again look, to each layer, like those that it was trained on.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.progress import Progress
from sparsefw.compression.recovery.calibration import device_of
from sparsefw.compression.structure.layers import call_on_copy, first_input
from sparsefw.layer_types import BATCH_NORMS

BATCHES = 4
BATCH = 64
STEPS = 200  # per batch
LR = 0.1


def synthetic_inputs(model: nn.Module, example: Any, progress: Progress | None = None) -> list[Tensor]:
    """Return batches of inputs that are made from the statistics of the model's batch norms; the model is not changed.

    Args:
        model: A trained network with batch norms.
        example: An input, one tensor with a batch axis, of which only the shape is used.
        progress: Called before each batch.
    """
    if not isinstance(example, Tensor) or not example.is_floating_point():
        raise ValueError(
            "calibration='synthetic' makes inputs of one tensor of real numbers: give such an example=, or calibration inputs"
        )
    network = copy.deepcopy(model).eval().requires_grad_(False)
    norms = [m for m in network.modules() if isinstance(m, BATCH_NORMS) and m.running_mean is not None]
    if not norms:
        raise ValueError(
            "calibration='synthetic' makes inputs from the statistics of batch norms, and this network has none: give "
            "calibration= inputs"
        )
    generator = torch.Generator().manual_seed(0)
    batches = []
    for number in range(BATCHES):
        if progress is not None:
            progress(number, BATCHES, "synthetic inputs")
        noise = torch.randn(BATCH, *example.shape[1:], generator=generator)
        batches.append(_fitted(network, norms, noise.to(device_of(model))))
    if progress is not None:
        progress(BATCHES, BATCHES, "")
    return batches


def _fitted(network: nn.Module, norms: Sequence[Any], inputs: Tensor) -> Tensor:
    """Return the inputs after STEPS steps towards the statistics of the norms."""
    inputs.requires_grad_(True)
    optimizer = torch.optim.Adam([inputs], lr=LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    with _gaps(norms) as gaps, torch.enable_grad():
        for _ in range(STEPS):
            gaps.clear()
            optimizer.zero_grad()
            call_on_copy(network, inputs)
            torch.stack(gaps).mean().backward()
            optimizer.step()
            schedule.step()
    return inputs.detach()


@contextmanager
def _gaps(norms: Sequence[Any]) -> Iterator[list[Tensor]]:
    """Within the block, every call of a norm adds to the list how far its inputs are from the statistics that it holds."""
    gaps: list[Tensor] = []

    def compare(norm: Any, args: Any, kwargs: Any) -> None:
        x = first_input(args, kwargs)
        axes = [axis for axis in range(x.ndim) if axis != 1]
        variance, mean = torch.var_mean(x, axes, correction=0)
        held = norm.running_var + norm.eps
        deviations = (variance + norm.eps).sqrt() / held.sqrt()
        gaps.append(((mean - norm.running_mean).square() / held + (deviations - 1).square()).mean())

    with ExitStack() as registered:
        for norm in norms:
            handle = norm.register_forward_pre_hook(compare, with_kwargs=True)
            registered.callback(handle.remove)
        yield gaps
