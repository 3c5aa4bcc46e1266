"""Engine: device, precision, memory format, compilation, processes: what is fastest and safe where we are."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

from sparsefw.config_base import ConfigError
from sparsefw.data.batches import Share
from sparsefw.environment import cores
from sparsefw.models import MODELS
from sparsefw.train.config import RunConfig

# Compiling takes half a minute or more; in shorter trainings it never pays for itself.
COMPILED_STEPS = 3000


@dataclass(frozen=True)
class Engine:
    """What EngineConfig has become on this machine."""

    device: torch.device
    precision: torch.dtype  # of the forward pass; weights are always float32
    channels_last: bool
    compile: bool
    cuda_graph: bool
    sync_batchnorm: bool
    accumulate: int
    workers: int
    share: Share

    def place(self, model: nn.Module) -> nn.Module:
        if self.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model  # type: ignore[call-overload]

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)

    def __str__(self) -> str:
        words = [str(self.device), str(self.precision).removeprefix("torch.")]
        words += [name for name in ("channels_last", "compile", "cuda_graph", "sync_batchnorm") if getattr(self, name)]
        words += [f"{self.share.world} processes"] if self.share.world > 1 else []
        return ", ".join(words)


def engine_for(config: RunConfig, steps: int) -> Engine:
    wanted, share = config.engine, join_processes(config.engine.device)
    if share.world > 1 and ":" in wanted.device:
        raise ConfigError(
            f"engine.device={wanted.device}: several processes need a device each; take cuda, cpu or auto"
        )
    device = _device(wanted.device)
    on_gpu = device.type == "cuda"
    if config.data.batch_size % (share.world * wanted.accumulate):
        raise ConfigError(
            f"data.batch_size={config.data.batch_size} must be a multiple of {share.world} processes "
            f"times engine.accumulate={wanted.accumulate}"
        )
    precision = _precision(wanted.precision, device)
    ours = config.model.name in MODELS  # of other networks it is not known that they can be captured or compiled
    hindrance = _hindrance(config, on_gpu, share.world, precision)
    if wanted.cuda_graph and hindrance:
        raise ConfigError(f"engine.cuda_graph=true needs {hindrance}")
    return Engine(
        device=device,
        precision=precision,
        channels_last=on_gpu if wanted.channels_last is None else wanted.channels_last,
        compile=on_gpu and ours and steps >= COMPILED_STEPS if wanted.compile is None else wanted.compile,
        cuda_graph=hindrance is None and ours if wanted.cuda_graph is None else wanted.cuda_graph,
        sync_batchnorm=_sync(wanted.sync_batchnorm, on_gpu, share.world),
        accumulate=wanted.accumulate,
        workers=min(8, max(1, cores() // share.world)) if wanted.workers is None else wanted.workers,
        share=share,
    )


def _hindrance(config: RunConfig, on_gpu: bool, world: int, precision: torch.dtype) -> str | None:
    """What is missing to capture whole steps in a CUDA graph; None where nothing is."""
    if not on_gpu:
        return "a CUDA device"
    if world > 1:
        return "one process"
    if precision == torch.float16:
        return "a precision other than fp16"
    reason = config.method.uncapturable
    return None if reason is None else f"another method than {config.method.name}: {reason}"


def join_processes(device: str) -> Share:
    """This process's place in the job that torchrun started; alone where there is none."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not distributed.is_initialized():
        on_gpu = device != "cpu" and torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        distributed.init_process_group("nccl" if on_gpu else "gloo")
    return Share(distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else Share()


@contextmanager
def processes(device: str) -> Iterator[Share]:
    """This process's place in the job, which is left in the end: gloo's threads abort a process that ends with them at work.

    Whoever lets go of the group last ends its threads. A wrapped network must not be the one: it waits for them and keeps
    Python's lock, for which they may wait themselves. So networks are let go before, those of an error's frames too.
    """
    joined_before = distributed.is_initialized()
    try:
        yield join_processes(device)
    except BaseException as error:
        if distributed.is_initialized() and not joined_before:
            traceback.clear_frames(error.__traceback__)
        raise
    finally:
        if distributed.is_initialized() and not joined_before:
            gc.collect()
            distributed.destroy_process_group()


T = TypeVar("T")


def on_first(share: Share, action: Callable[[], T]) -> T:
    """What `action` returns in the first process, in all of them. What it raises there, all raise: nobody waits in vain."""
    outcome: list[Any] = [None, None]
    if share.rank == 0:
        try:
            outcome[0] = action()
        except Exception as error:  # whatever it is: the others wait
            if share.world == 1:
                raise
            outcome[1] = error
    if share.world > 1:
        distributed.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    return outcome[0]


def any_process(engine: Engine, *flags: bool) -> list[bool]:
    """Which of the flags are up in at least one process. All must call this at the same step."""
    if engine.share.world == 1:
        return list(flags)
    raised = torch.tensor(flags, dtype=torch.int32, device=engine.device)
    distributed.all_reduce(raised, distributed.ReduceOp.MAX)
    return [bool(flag) for flag in raised.tolist()]


def of_all_processes(engine: Engine, tensor: Tensor) -> Tensor:
    """(processes, ...): the tensor of every process. All must call this at the same step."""
    if engine.share.world == 1:
        return tensor[None]
    found = [torch.empty_like(tensor) for _ in range(engine.share.world)]
    distributed.all_gather(found, tensor)
    return torch.stack(found)


def _device(wanted: str) -> torch.device:
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"engine.device={wanted}: there is no CUDA device here; take cpu or auto")
    if wanted == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    device = torch.device(wanted)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"engine.device={wanted}: there are {torch.cuda.device_count()} CUDA devices, counted from 0")
    return device


def _precision(wanted: str, device: torch.device) -> torch.dtype:
    if wanted == "auto":
        good = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if good else torch.float32
    if wanted == "fp16" and device.type == "cpu":
        raise ConfigError("engine.precision=fp16 needs a CUDA device; on a CPU take fp32 or bf16")
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[wanted]


def _sync(wanted: bool | None, on_gpu: bool, world: int) -> bool:
    if wanted and not on_gpu:
        raise ConfigError("engine.sync_batchnorm=true needs CUDA devices: torch has it for these only")
    return on_gpu and world > 1 if wanted is None else wanted and world > 1
