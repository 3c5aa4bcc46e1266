"""The engine of a training: device, precision, memory format, compilation and processes, as fast as is safe on this machine."""

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

from sparsefw.config_base import ConfigError, parse
from sparsefw.data.batches import Share
from sparsefw.environment import usable_cores
from sparsefw.models import MODELS
from sparsefw.train.config import EngineConfig, RunConfig
from sparsefw.train.rendezvous import fresh_store

# Compiling takes half a minute or more; in shorter trainings it never pays for itself.
COMPILED_STEPS = 3000


@dataclass(frozen=True)
class Engine:
    """The settings of EngineConfig, decided for this machine.

    precision   of the forward pass; weights are always float32
    share       the place of this process among all processes
    """

    device: torch.device
    precision: torch.dtype
    channels_last: bool
    compile: bool
    cuda_graph: bool
    sync_batchnorm: bool
    accumulate: int
    workers: int
    share: Share

    def place(self, model: nn.Module) -> nn.Module:
        """Move a model to the device, in its memory format."""
        if self.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        model = model.to(self.device)
        return model.to(memory_format=torch.channels_last) if self.channels_last else model  # type: ignore[call-overload]

    def autocast(self) -> torch.autocast:
        """Return the context in which a forward pass has the chosen precision."""
        return torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32)

    def __str__(self) -> str:
        words = [str(self.device), str(self.precision).removeprefix("torch.")]
        words += [name for name in ("channels_last", "compile", "cuda_graph", "sync_batchnorm") if getattr(self, name)]
        words += [f"{self.share.world} processes"] if self.share.world > 1 else []
        return ", ".join(words)


def engine_for(config: RunConfig, steps: int) -> Engine:
    """Decide the engine of a training.

    Args:
        steps: the length of the training; short ones are not compiled.
    """
    wanted = config.engine
    share = join_processes(wanted.device)
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
    ours = config.model.name in MODELS  # other networks may not allow to be captured or compiled
    missing = _missing_for_cuda_graph(config, on_gpu, share.world, precision)
    if wanted.cuda_graph and missing is not None:
        raise ConfigError(f"engine.cuda_graph=true needs {missing}")
    return Engine(
        device=device,
        precision=precision,
        channels_last=on_gpu if wanted.channels_last is None else wanted.channels_last,
        compile=on_gpu and ours and steps >= COMPILED_STEPS if wanted.compile is None else wanted.compile,
        cuda_graph=missing is None and ours if wanted.cuda_graph is None else wanted.cuda_graph,
        sync_batchnorm=_sync(wanted.sync_batchnorm, on_gpu, share.world),
        accumulate=wanted.accumulate,
        workers=_workers(wanted.workers, share.world),
        share=share,
    )


def evaluation_engine(device: str, workers: int | None = None) -> Engine:
    """Return the engine of one process that trains nothing: full precision, nothing compiled or captured.

    Args:
        device: "auto", "cpu", "cuda" or "cuda:1".
        workers: processes that decode images; None: one per core, at most eight.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("curves and compression run in one process: start them without torchrun")
    wanted = parse(EngineConfig, {"device": device, "workers": workers}, "engine")
    chosen = _device(wanted.device)
    return Engine(
        device=chosen,
        precision=torch.float32,
        channels_last=chosen.type == "cuda",
        compile=False,
        cuda_graph=False,
        sync_batchnorm=False,
        accumulate=1,
        workers=_workers(wanted.workers, 1),
        share=Share(),
    )


def _workers(wanted: int | None, processes: int) -> int:
    return min(8, max(1, usable_cores() // processes)) if wanted is None else wanted


def _missing_for_cuda_graph(config: RunConfig, on_gpu: bool, world: int, precision: torch.dtype) -> str | None:
    """Return what is missing to capture whole steps in a CUDA graph; None if nothing is."""
    if not on_gpu:
        return "a CUDA device"
    if world > 1:
        return "one process"
    if precision == torch.float16:
        return "a precision other than fp16"
    reason = config.method.uncapturable
    return None if reason is None else f"another method than {config.method.name}: {reason}"


def join_processes(device: str) -> Share:
    """Join the job that torchrun started, and return this process's place in it; alone without torchrun."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1 and not distributed.is_initialized():
        on_gpu = device != "cpu" and torch.cuda.is_available()
        if on_gpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        store, rank, world = fresh_store()
        distributed.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=world)
    return Share(distributed.get_rank(), distributed.get_world_size()) if distributed.is_initialized() else Share()


@contextmanager
def processes(device: str) -> Iterator[Share]:
    """Join the job for the length of a block, and leave it in the end: gloo's running threads abort a process that exits.

    The last reference to the process group ends its threads. A wrapped network must not hold that reference: it would wait for
    the threads while it holds Python's lock, for which they may wait themselves. So networks are freed before, also those in the
    frames of an error.
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
    """Run `action` in the first process; all processes return its value, or raise its error, so that none waits in vain."""
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
    """Return which of the flags are set in at least one process. All processes must call this at the same step."""
    if engine.share.world == 1:
        return list(flags)
    raised = torch.tensor(flags, dtype=torch.int32, device=engine.device)
    distributed.all_reduce(raised, distributed.ReduceOp.MAX)
    return [bool(flag) for flag in raised.tolist()]


def of_all_processes(engine: Engine, tensor: Tensor) -> Tensor:
    """Return the tensors of all processes, stacked. All processes must call this at the same step."""
    if engine.share.world == 1:
        return tensor[None]
    tensors = [torch.empty_like(tensor) for _ in range(engine.share.world)]
    distributed.all_gather(tensors, tensor)
    return torch.stack(tensors)


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
        raise ConfigError("engine.sync_batchnorm=true needs CUDA devices: torch synchronises batch norms on no others")
    return on_gpu and world > 1 if wanted is None else wanted and world > 1
