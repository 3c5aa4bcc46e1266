"""quantise: a network in, its int8 copy out, with what it costs in agreement and what it saves in time on this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from sparsefw.compression.artifact.export.checked import Runner
from sparsefw.compression.artifact.export.executorch import load_executorch
from sparsefw.compression.artifact.export.formats import FORMATS, Format
from sparsefw.compression.artifact.export.int8_executorch import int8_executorch
from sparsefw.compression.artifact.export.int8_onnx import int8_onnx
from sparsefw.compression.artifact.export.onnx import load_onnx
from sparsefw.compression.artifact.export.runtime_network import RuntimeNetwork
from sparsefw.compression.artifact.export.tracing import on_cpu
from sparsefw.compression.compressed import Compressed
from sparsefw.compression.latency import latency_of
from sparsefw.compression.metric import Metric
from sparsefw.compression.recovery.agreement import agreement
from sparsefw.compression.recovery.batches import repeated
from sparsefw.compression.recovery.calibration import Calibration, device_of


@dataclass(frozen=True)
class _Backend:
    """How a network becomes int8 for a runtime.

    file      its name in the folder of an artifact
    float     the format of its float twin, by which both are run
    make      the content of the file, from a model, an example and calibration batches
    load      loads a file, or its content, into the runtime
    """

    file: str
    float: Format
    make: Callable[[nn.Module, Any, Iterable[Any]], bytes]
    load: Callable[[Path | bytes], Runner]


BACKENDS = {
    "onnxruntime": _Backend("model.int8.onnx", FORMATS["onnx"], int8_onnx, load_onnx),
    "executorch": _Backend("model.int8.pte", FORMATS["executorch"], int8_executorch, load_executorch),
}


SECONDS = 0.3  # how long each of the two is timed


class FloatAndInt8(NamedTuple):
    """One figure of the float network and of the int8 one."""

    float: Any
    int8: Any


@dataclass(frozen=True, repr=False)
class Quantised:
    """The int8 copy of a network.

    backend     the runtime that computes it, and its float twin, below
    whole       the float network that it was made of
    model       it, as a network to evaluate: a torch.nn.Module that its runtime computes
    file        its name in the folder of an artifact
    content     what is written there
    inputs      the number of calibration inputs
    agreement   with the outputs of the float network on these inputs; 1 if they are the same
    latency     of one item, in this runtime on this machine
    bytes       of the files
    metric      what `evaluate` gave; None without it
    """

    backend: str
    whole: nn.Module
    model: nn.Module = field(compare=False)
    file: str
    content: bytes
    inputs: int
    agreement: float
    latency: FloatAndInt8
    bytes: FloatAndInt8
    metric: FloatAndInt8 | None

    @property
    def is_slower(self) -> bool:
        """Whether int8 is slower than float in this runtime on this machine."""
        return bool(self.latency.int8.median > self.latency.float.median)

    def __repr__(self) -> str:
        return self.summary()

    def summary(self, metric: str = "metric") -> str:
        """Describe what int8 changes.

        Args:
            metric: The name of what `evaluate` measures.
        """
        before, after = self.latency.float.median, self.latency.int8.median
        lines = [
            f"int8 in {self.backend}, by ranges on {self.inputs} calibration inputs:",
            f"agreement   {self.agreement:>14.6f} with the float network (1: the same outputs)",
        ]
        if self.metric is not None:
            lines.append(f"{metric:11} {self.metric.float:>14.6g} -> {self.metric.int8:>14.6g}")
        lines.append(f"bytes       {self.bytes.float:>14,} -> {self.bytes.int8:>14,}  ({self.file})")
        lines.append(f"ms          {before:>14.3f} -> {after:>14.3f}  ({before / after:.1f}x as fast, batch 1)")
        if self.is_slower:
            lines.append(f"int8 is slower than float on this machine, in {self.backend}, for one item at a time.")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return all figures, as the certificate of an artifact has them."""
        return {
            "file": self.file,
            "inputs": self.inputs,
            "agreement": self.agreement,
            "latency": {name: asdict(value) for name, value in self.latency._asdict().items()},
            "is_slower": self.is_slower,
            "bytes": self.bytes._asdict(),
            "metric": None if self.metric is None else self.metric._asdict(),
        }


def quantise(
    network: Compressed | nn.Module,
    *,
    calibration: Iterable[Any],
    backend: str = "onnxruntime",
    evaluate: Callable[[nn.Module], float] | None = None,
) -> Quantised:
    """Return the int8 copy of a network, static: the ranges of activations are those of the calibration inputs.

    Args:
        network: The result of compress or load, or any network; it is not changed.
        calibration: Any iterable of batches, as compress takes it; labels are not needed.
        backend: The runtime that computes it: "onnxruntime", or "executorch", for which torchao quantises.
        evaluate: A function from a network to a number, such as its accuracy: measured of both.
    """
    model = network.model if isinstance(network, Compressed) else network
    if not isinstance(model, nn.Module):
        raise ValueError(f"quantise takes the result of compress or load, or a network, not a {type(model).__name__}")
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r}: there are {', '.join(BACKENDS)}")
    metric = None if evaluate is None else Metric(evaluate)
    way = BACKENDS[backend]
    batches = Calibration(calibration, device_of(model))
    batches.suit(model)
    example = batches.example
    content = way.make(model, example, (on_cpu(inputs) for inputs in batches))
    runner = way.load(content)
    small = RuntimeNetwork(runner, model, example, way.float.largest_batch)
    with tempfile.TemporaryDirectory() as folder:
        twin = Path(folder) / way.float.file
        way.float.write(model, example, twin)
        item = on_cpu(repeated(example, 1))
        before, after = (
            latency_of(run(item), item, backend, SECONDS, threads=way.float.threads())
            for run in (way.load(twin), runner)
        )
        size = twin.stat().st_size
    return Quantised(
        backend=backend,
        whole=model,
        model=small,
        file=way.file,
        content=content,
        inputs=batches.count,
        agreement=agreement(model, small, batches),
        latency=FloatAndInt8(before, after),
        bytes=FloatAndInt8(size, len(content)),
        metric=None if metric is None else FloatAndInt8(metric.of_dense(model), metric(small)),
    )
