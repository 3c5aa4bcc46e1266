"""Makes a smaller network from a run, evaluates and times it, and saves it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsefw.cli.output import Outcome
from sparsefw.compression import Compressed, NotRunWarning, measure, save
from sparsefw.compression.artifact.files import check_replaceable
from sparsefw.compression.artifact.folder import is_artifact
from sparsefw.compression.recovery.batches import first_items
from sparsefw.train.evaluate_run import TrainedRun


def compress_run(trained: TrainedRun, out: Path, onnx: bool, settings: dict[str, Any]) -> Outcome:
    """Compress a run, evaluate and time the result, and save it.

    It is evaluated on the test images; if there are none, on the validation images.
    """
    check_replaceable(out.resolve(), is_artifact)  # now, not after minutes of work
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotRunWarning)  # the summary says it
        small = trained.compress(**settings)
    metric = trained.task.metric
    split = "test" if trained.data.test is not None else "validation"
    measured = {}
    if trained.data.test is not None or trained.data.validation is not None:
        measured = {"dense": trained.metrics(trained.model, split), "compressed": trained.metrics(small.model, split)}
    save(small, out, onnx=onnx, metrics={name: metrics[metric] for name, metrics in measured.items()})
    times = latencies(small, onnx)
    record = {
        "folder": out,
        "metric": metric,
        split: measured or None,
        "costs": {"dense": asdict(small.dense), "compressed": asdict(small.costs)},
        "milliseconds": times,
        "request": small.plan.request,
    }
    lines = [_metric_text(metric, split, measured), small.summary("validation")]
    lines += [_latency_text(backend, *milliseconds) for backend, milliseconds in times.items()]
    return Outcome(record, "\n".join([*lines, str(out)]))


def latencies(small: Compressed, onnx: bool) -> dict[str, tuple[float, float]]:
    """Return the milliseconds of one item in the dense and in the small network on this machine, by backend."""
    assert small.source is not None
    times = {"eager": (small.latency.dense.median, small.latency.compressed.median)}
    on_gpu = any(p.is_cuda for p in small.source.parameters())
    if onnx and not on_gpu:
        item = first_items(small.example, 1)
        dense, compressed = (
            measure(model, item, backend="onnxruntime", seconds=0.5).median for model in (small.source, small.model)
        )
        times["onnxruntime"] = (dense, compressed)
    return times


def _metric_text(metric: str, split: str, measured: Mapping[str, Mapping[str, float]]) -> str:
    if not measured:
        return "there are neither test nor validation images: not evaluated"
    figures = [f"{metrics[metric]:.2f}" for metrics in measured.values()]
    return f"{metric} on the {split} images: {' -> '.join(figures)}"


def _latency_text(backend: str, dense: float, small: float) -> str:
    name = backend.removesuffix("runtime") + " ms"
    return f"{name:11} {dense:>14.3f} -> {small:>14.3f}  ({dense / small:.1f}x as fast, batch 1)"
