"""Accelerate: the number of steps of a training in an own loop; all else is as without it.

model, loader = accelerator.prepare(model, loader)
steps = training_steps(accelerator, loader, epochs=10)
optimizer = accelerator.prepare(SFW(constrain(model, "filters", example=x, steps=steps)))
sizes = Sizes(model, "filters", example=x)
accelerator.register_for_checkpointing(sizes)
"""

from __future__ import annotations

import math
from typing import Any

from sparsefw.integrations.requirements import not_installed, prepare_torchvision, sharded

try:
    prepare_torchvision()
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.utils import DistributedType
except ModuleNotFoundError as error:
    raise not_installed(error, "accelerate", "transformers") from error

_SHARDING = (DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MEGATRON_LM)


def training_steps(accelerator: Accelerator, loader: Any, epochs: int) -> int:
    """Return how many steps the optimizer takes in so many epochs, in which each process sees its part of the data.

    Args:
        accelerator: Accumulates gradients over so many batches as it was made for; the last ones of an epoch may be fewer.
        loader: What prepare() returned: before it, the loader has the batches of all processes.
        epochs: Of the whole training.

    Raises:
        ValueError: The accelerator shards weights, or the loader does not know its length.
    """
    if accelerator.distributed_type in _SHARDING:
        raise sharded(str(accelerator.distributed_type.value))
    if not isinstance(loader, DataLoaderStateMixin):
        raise ValueError("this loader has the batches of all processes: give the one that accelerator.prepare returned")
    try:
        batches = len(loader)
    except TypeError as error:
        raise ValueError(
            "the loader does not know its number of batches: count the steps yourself, constrain(..., steps=...)"
        ) from error
    whole_epochs = accelerator.gradient_state.sync_with_dataloader
    accumulated = accelerator.gradient_accumulation_steps
    return epochs * math.ceil(batches / accumulated) if whole_epochs else epochs * batches // accumulated
