"""Latency: measured, never computed from MACs. After a warm-up, the median of many runs with its spread."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsefw.atomic_io import parse_json, write_text
from sparsefw.compression.recovery.batches import batch_size, repeated
from sparsefw.compression.structure.layers import (
    AnyConv,
    call,
    call_on_copy,
    cloned,
    evaluating,
    first_input,
    hooks,
    is_layer,
)
from sparsefw.environment import device_name
from sparsefw.limits import RECORD_BYTES, read_bounded
from sparsefw.user_cache import cache_folder

BACKENDS = ("eager", "onnxruntime")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Latency:
    """Milliseconds per call: median and interquartile range (spread) over `runs`, with batch, threads, device and backend."""

    median: float
    spread: float
    runs: int
    batch: int
    threads: int
    device: str
    backend: str

    def __str__(self) -> str:
        conditions = f"batch {self.batch}, {self.backend}, {self.device}, {self.threads} threads"
        return f"{self.median:.3f} ms (+- {self.spread / 2:.3f}), {conditions}"


def measure(
    model: nn.Module, example: Any, *, batch: int | None = None, seconds: float = 1.0, backend: str = "eager"
) -> Latency:
    """Measure the latency of one forward pass on this machine.

    Args:
        model: The network.
        example: An input with a batch axis.
        batch: Repeat the example's first item this many times; None: use the example as it is.
        seconds: How long to measure, after a warm-up of a fifth of it.
        backend: "eager" or "onnxruntime".
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"measure needs a torch.nn.Module, got {type(model).__name__}; for the result of compress, pass its .model"
        )
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}: there are {', '.join(BACKENDS)}")
    inputs = cloned(example)  # a model may change its inputs in place
    inputs = inputs if batch is None else repeated(inputs, batch)
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
    device = tensors[0].device
    if backend == "onnxruntime":
        from sparsefw.compression.artifact.export import onnx_session

        once: Callable[[], Any] = onnx_session(model, inputs)
        label = "cpu"
    else:
        label = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"

        def once() -> Any:
            return call(model, inputs)

    with evaluating(model):
        return latency_of(once, inputs, backend, seconds, label, device)


def latency_of(
    once: Callable[[], Any],
    inputs: Any,
    backend: str,
    seconds: float,
    label: str = "cpu",
    device: torch.device = CPU,
    threads: int | None = None,
) -> Latency:
    """Measure the latency of a call that computes these inputs. threads: None stands for those of torch."""
    times = repeat(once, seconds, device)
    quarters = statistics.quantiles(times, n=4)
    return Latency(
        statistics.median(times),
        quarters[2] - quarters[0],
        len(times),
        batch_size(inputs),
        torch.get_num_threads() if threads is None else threads,
        label,
        backend,
    )


def repeat(
    once: Callable[[], Any], seconds: float, device: torch.device, least: int = 10, most: int = 2000
) -> list[float]:
    """Return the milliseconds of single calls, after a warm-up of a fifth of the time."""

    def timed() -> float:
        start = time.perf_counter()
        once()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - start) * 1e3

    end = time.perf_counter() + seconds / 5
    warm = 0
    while time.perf_counter() < end or warm < 3:
        timed()
        warm += 1
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (time.perf_counter() < end or len(times) < least) and len(times) < most:
        times.append(timed())
    return times


class LatencyTable:
    """Latencies of single layers on this device, cached on disk: a layer is measured once per shape and machine."""

    def __init__(self, device: torch.device) -> None:
        identity = hashlib.sha256(f"{device_name(device)} torch {torch.__version__}".encode()).hexdigest()[:16]
        self.path = cache_folder() / f"latency-{identity}.json"
        self._times: dict[str, float] = self._read()

    def _read(self) -> dict[str, float]:
        try:
            times = parse_json(read_bounded(self.path, RECORD_BYTES).decode())
            return {str(k): float(v) for k, v in times.items() if 0 < float(v) < math.inf}
        except (OSError, ValueError, AttributeError, TypeError, OverflowError):  # missing or damaged: measured again
            return {}

    def of(self, layer: nn.Module, x: Tensor) -> float:
        """Return the milliseconds of a layer on an input."""
        key = f"{_describe(layer)} on {tuple(x.shape)} {tuple(x.stride())} {x.dtype}"
        if key not in self._times:
            with evaluating(layer):
                self._times[key] = statistics.median(repeat(lambda: layer(x), 0.05, x.device, least=5))
            self._write()
        return self._times[key]

    def _write(self) -> None:
        """Write the cache, atomically; without a writable folder there is none."""
        with contextlib.suppress(OSError):
            write_text(self.path, json.dumps(self._times))


def _describe(layer: Any) -> str:
    if isinstance(layer, nn.Linear):
        return f"Linear {layer.in_features} {layer.out_features} {layer.bias is not None}"
    assert isinstance(layer, AnyConv)
    parts = (
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.padding_mode,
        layer.output_padding,
        layer.dilation,
        layer.groups,
        layer.bias is not None,
    )
    return f"{type(layer).__name__} {' '.join(map(str, parts))}"


def estimate(model: nn.Module, example: Any, table: LatencyTable) -> float:
    """Return the sum of the latencies of all convolutions and linear layers, each on its actual input."""
    total = 0.0

    def make(name: str, module: nn.Module) -> tuple[Any, ...]:
        def add(layer: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal total
            if not busy:
                busy.append(True)
                total += table.of(layer, first_input(args, kwargs).detach())
                busy.clear()

        return (module.register_forward_pre_hook(add, with_kwargs=True),) if is_layer(module) else ()

    busy: list[bool] = []  # measuring a layer calls it, and this hook, again
    with evaluating(model), hooks(model, make):
        call_on_copy(model, example)
    return total
