"""`sparsefw compress`: a smaller network from a run, measured, and written."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from sparsefw.compression import measure, save
from sparsefw.compression.calibration import cut
from sparsefw.train.study import Study


class Outcome(NamedTuple):
    """For machines, and for people."""

    record: dict[str, Any]
    text: str


def compress_run(study: Study, out: Path, onnx: bool, how: dict[str, Any]) -> Outcome:
    """Compress as `how` says, evaluate on the test images, time, save."""
    small = study.compress(**how)
    split = "test" if study.data.test is not None else "validation"
    before, after = (study.metrics(model, split) for model in (study.model, small.model))
    metric = study.task.metric
    save(small, out, onnx=onnx, metrics={"dense": before[metric], "compressed": after[metric]})
    times = latencies(study.model, small.model, cut(small.example, 1), onnx)
    record = {
        "folder": out,
        "metric": metric,
        split: {"dense": before, "compressed": after},
        "costs": {"dense": asdict(small.dense), "compressed": asdict(small.costs)},
        "milliseconds": times,
        "request": small.plan.request,
    }
    lines = [f"{metric} on the {split} images: {before[metric]:.2f} -> {after[metric]:.2f}"]
    if "metric" in small.plan.request:
        dense, now = small.plan.request["metric"]
        lines.append(f"{metric} on the validation images, by which it was chosen: {dense:.2f} -> {now:.2f}")
    lines.append(repr(small))
    lines += [
        f"{name + ' ms':11} {dense:>14.3f} -> {now:>14.3f}  ({dense / now:.1f}x, batch 1)"
        for name, (dense, now) in times.items()
    ]
    return Outcome(record, "\n".join([*lines, str(out)]))


def latencies(dense: nn.Module, small: nn.Module, example: Any, onnx: bool) -> dict[str, tuple[float, float]]:
    """Milliseconds of the dense and of the small network, by backend, measured here and now."""
    backends = ("eager", "onnxruntime") if onnx and not _on_gpu(dense) else ("eager",)
    return {
        backend: (
            measure(dense, example, backend=backend, seconds=0.5).median,
            measure(small, example, backend=backend, seconds=0.5).median,
        )
        for backend in backends
    }


def _on_gpu(model: nn.Module) -> bool:
    return any(p.is_cuda for p in model.parameters())
