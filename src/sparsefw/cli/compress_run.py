"""Makes a smaller network from a run, measures it and writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from sparsefw.cli.output import Outcome
from sparsefw.compression import measure, save
from sparsefw.compression.artifact.files import check_replaceable
from sparsefw.compression.artifact.folder import is_artifact
from sparsefw.compression.recovery.calibration import cut
from sparsefw.train.evaluate_run import Study


def compress_run(study: Study, out: Path, onnx: bool, how: dict[str, Any]) -> Outcome:
    """Compress as `how` says, evaluate on the test images (where there are none, on the validation images), time, save."""
    check_replaceable(out.resolve(), is_artifact)  # before minutes of work
    small = study.compress(**how)
    metric = study.task.metric
    split = "test" if study.data.test is not None else "validation"
    measured = {}
    if study.data.test is not None or study.data.validation is not None:
        measured = {"dense": study.metrics(study.model, split), "compressed": study.metrics(small.model, split)}
    save(small, out, onnx=onnx, metrics={name: found[metric] for name, found in measured.items()})
    times = latencies(study.model, small.model, cut(small.example, 1), onnx)
    record = {
        "folder": out,
        "metric": metric,
        split: measured or None,
        "costs": {"dense": asdict(small.dense), "compressed": asdict(small.costs)},
        "milliseconds": times,
        "request": small.plan.request,
    }
    lines = [_metric_text(metric, split, measured), small.summary("validation")]
    lines += [_latency_text(backend, *both) for backend, both in times.items()]
    return Outcome(record, "\n".join([*lines, str(out)]))


def latencies(dense: nn.Module, small: nn.Module, example: Any, onnx: bool) -> dict[str, tuple[float, float]]:
    """Measure the milliseconds of the dense and of the small network, by backend, here and now."""
    on_gpu = any(p.is_cuda for p in dense.parameters())
    backends = ("eager", "onnxruntime") if onnx and not on_gpu else ("eager",)
    return {
        backend: (
            measure(dense, example, backend=backend, seconds=0.5).median,
            measure(small, example, backend=backend, seconds=0.5).median,
        )
        for backend in backends
    }


def _metric_text(metric: str, split: str, measured: Mapping[str, Mapping[str, float]]) -> str:
    if not measured:
        return "there are neither test nor validation images: not evaluated"
    return f"{metric} on the {split} images: {' -> '.join(f'{found[metric]:.2f}' for found in measured.values())}"


def _latency_text(backend: str, dense: float, small: float) -> str:
    name = backend.removesuffix("runtime") + " ms"
    return f"{name:11} {dense:>14.3f} -> {small:>14.3f}  ({dense / small:.1f}x as fast, batch 1)"
