"""`sparsefw compress`: a smaller network from a run, measured, and written."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from sparsefw.compression import measure, save
from sparsefw.compression.artifact import is_artifact
from sparsefw.compression.calibration import cut
from sparsefw.compression.files import check_replaceable
from sparsefw.train.study import Study


class Outcome(NamedTuple):
    """For machines, and for people."""

    record: dict[str, Any]
    text: str


def compress_run(study: Study, out: Path, onnx: bool, how: dict[str, Any]) -> Outcome:
    """Compress as `how` says, evaluate on the test images (where there are none, on the validation images), time, save."""
    check_replaceable(out.resolve(), is_artifact)  # before minutes of work
    small, metric = study.compress(**how), study.task.metric
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
    lines = ["there are neither test nor validation images: not evaluated"]
    if measured:
        lines = [f"{metric} on the {split} images: {' -> '.join(f'{m[metric]:.2f}' for m in measured.values())}"]
    lines.append(small.summary("validation"))
    lines += [
        f"{name.removesuffix('runtime') + ' ms':11} {dense:>14.3f} -> {now:>14.3f}  ({dense / now:.1f}x as fast, batch 1)"
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
