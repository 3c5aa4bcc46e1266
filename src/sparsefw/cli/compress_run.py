"""Makes a smaller network from a run, evaluates and times it, and saves it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsefw.cli.output import Outcome
from sparsefw.compression import Compressed, NotRunWarning, quantise, save
from sparsefw.compression.artifact.export.formats import FORMATS
from sparsefw.compression.artifact.export.tracing import on_cpu
from sparsefw.compression.artifact.files import check_replaceable
from sparsefw.compression.artifact.folder import file_sizes, is_artifact
from sparsefw.compression.latency import latency_of
from sparsefw.compression.quantised import BACKENDS as QUANTISERS
from sparsefw.compression.recovery.batches import first_items
from sparsefw.train.evaluate_run import TrainedRun


def compress_run(
    trained: TrainedRun, out: Path, formats: Sequence[str], int8: bool, settings: dict[str, Any]
) -> Outcome:
    """Compress a run, evaluate and time the result, and save it.

    It is evaluated on the test images; if there are none, on the validation images.

    Args:
        formats: The formats to export, keys of FORMATS.
        int8: Whether the network is also written in int8.
    """
    check_replaceable(out.resolve(), is_artifact)  # now, not after minutes of work
    backends = int8_backends(formats) if int8 else []
    for form in (*(FORMATS[option] for option in formats), *(QUANTISERS[backend].float for backend in backends)):
        form.require()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotRunWarning)  # the summary says it
        small = trained.compress(**settings)
    metric = trained.task.metric
    split = "test" if trained.data.test is not None else "validation"
    is_evaluated = trained.data.test is not None or trained.data.validation is not None
    measured = {}
    if is_evaluated:
        measured = {"dense": trained.metrics(trained.model, split), "compressed": trained.metrics(small.model, split)}
    images = trained.calibration_images(settings.get("calibration"))
    quantised = [
        quantise(
            small,
            calibration=trained.calibration(images),
            backend=backend,
            evaluate=trained.metric(split) if is_evaluated else None,
        )
        for backend in backends
    ]
    save(
        small,
        out,
        **dict.fromkeys(formats, True),
        int8=quantised,
        metrics={name: metrics[metric] for name, metrics in measured.items()},
    )
    times = latencies(small, out, formats)
    record = {
        "folder": out,
        "metric": metric,
        split: measured or None,
        "costs": {"dense": asdict(small.dense), "compressed": asdict(small.costs)},
        "files": file_sizes(out),
        "milliseconds": times,
        "int8": {one.backend: one.to_json() for one in quantised},
        "request": small.plan.request,
    }
    lines = [_metric_text(metric, split, measured), small.summary("validation")]
    lines += [_latency_text(backend, *milliseconds) for backend, milliseconds in times.items()]
    lines += [one.summary(metric) for one in quantised]
    lines += [f"{size:>14,} bytes in {name}" for name, size in file_sizes(out).items()]
    return Outcome(record, "\n".join([*lines, str(out)]))


def int8_backends(formats: Sequence[str]) -> list[str]:
    """Return the runtimes for which a network is made int8, by the formats asked for; onnxruntime's file is OpenVINO's, too.

    >>> int8_backends([]), int8_backends(["executorch"]), int8_backends(["openvino", "executorch"])
    (['onnxruntime'], ['executorch'], ['onnxruntime', 'executorch'])
    """
    for_devices = ["executorch"] if "executorch" in formats else []
    is_for_others = "onnx" in formats or "openvino" in formats or not for_devices
    return (["onnxruntime"] if is_for_others else []) + for_devices


def latencies(small: Compressed, folder: Path, formats: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the milliseconds of one item in the dense and in the small network on this machine, by backend."""
    assert small.source is not None
    times = {"eager": (small.latency.dense.median, small.latency.compressed.median)}
    on_gpu = any(p.is_cuda for p in small.source.parameters())
    for option in () if on_gpu else formats:
        runtime, load = FORMATS[option].runtime, FORMATS[option].load
        if load is None:
            continue
        with tempfile.TemporaryDirectory() as aside:
            dense = Path(aside) / FORMATS[option].file
            FORMATS[option].write(small.source, small.example, dense)
            item = first_items(on_cpu(small.example), 1)
            before, after = (
                latency_of(load(path)(item), item, runtime, seconds=0.5).median
                for path in (dense, folder / FORMATS[option].file)
            )
        times[runtime] = (before, after)
    return times


def _metric_text(metric: str, split: str, measured: Mapping[str, Mapping[str, float]]) -> str:
    if not measured:
        return "there are neither test nor validation images: not evaluated"
    figures = [f"{metrics[metric]:.2f}" for metrics in measured.values()]
    return f"{metric} on the {split} images: {' -> '.join(figures)}"


def _latency_text(backend: str, dense: float, small: float) -> str:
    name = backend.removesuffix("runtime") + " ms"
    return f"{name:11} {dense:>14.3f} -> {small:>14.3f}  ({dense / small:.1f}x as fast, batch 1)"
