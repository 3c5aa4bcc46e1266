"""Makes a smaller network from a trained one, evaluates and times it, and saves it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsefw.cli.output import Outcome
from sparsefw.cli.subjects import form_line
from sparsefw.compression import Compressed, NotRunWarning, measure, save
from sparsefw.compression.artifact.files import check_replaceable
from sparsefw.compression.artifact.folder import is_artifact
from sparsefw.compression.recovery.batches import first_items
from sparsefw.train.subject import Subject


def compress_run(subject: Subject, out: Path, onnx: bool, settings: dict[str, Any]) -> Outcome:
    """Compress a network, evaluate and time the result, and save it."""
    check_replaceable(out.resolve(), is_artifact)  # now, not after minutes of work
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotRunWarning)  # the summary says it
        small = subject.compress(**settings)
    metric = subject.task.metric
    split = subject.reported
    measured = {}
    if split is not None:
        measured = {"dense": subject.metrics(subject.model, split), "compressed": subject.metrics(small.model, split)}
    save(small, out, onnx=onnx, metrics={name: metrics[metric] for name, metrics in measured.items()})
    times = latencies(small, onnx)
    record = {
        "folder": out,
        "metric": metric,
        **({} if split is None else {split: measured}),
        "costs": {"dense": asdict(small.dense), "compressed": asdict(small.costs)},
        "milliseconds": times,
        "request": small.plan.request,
    }
    lines = [_metric_text(metric, split, measured), *form_line(subject), small.summary("validation")]
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


def _metric_text(metric: str, split: str | None, measured: Mapping[str, Mapping[str, float]]) -> str:
    if split is None:
        return "there are no images with labels: not evaluated"
    figures = [f"{metrics[metric]:.2f}" for metrics in measured.values()]
    return f"{metric} on the {split} images: {' -> '.join(figures)}"


def _latency_text(backend: str, dense: float, small: float) -> str:
    name = backend.removesuffix("runtime") + " ms"
    return f"{name:11} {dense:>14.3f} -> {small:>14.3f}  ({dense / small:.1f}x as fast, batch 1)"
