"""Makes a smaller network from a trained one, evaluates and times it, and saves it."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsefw.cli.output import Outcome
from sparsefw.cli.subjects import form_line
from sparsefw.compression import Compressed, NotRunWarning, quantise, save
from sparsefw.compression.artifact.export.formats import FORMATS
from sparsefw.compression.artifact.export.tracing import on_cpu
from sparsefw.compression.artifact.files import check_replaceable
from sparsefw.compression.artifact.folder import file_sizes, is_artifact
from sparsefw.compression.latency import latency_of
from sparsefw.compression.quantised import BACKENDS as QUANTISERS
from sparsefw.compression.recovery.batches import first_items
from sparsefw.config_base import ConfigError
from sparsefw.recovery_words import SYNTHETIC
from sparsefw.train.subject import Subject


def compress_run(subject: Subject, out: Path, formats: Sequence[str], int8: bool, settings: dict[str, Any]) -> Outcome:
    """Compress a network, evaluate and time the result, and save it.

    Args:
        formats: The formats to export, keys of FORMATS.
        int8: Whether the network is also written in int8.
    """
    check_replaceable(out.resolve(), is_artifact)  # now, not after minutes of work
    backends = int8_backends(formats) if int8 else []
    for form in (*(FORMATS[option] for option in formats), *(QUANTISERS[backend].float for backend in backends)):
        form.require()
    images = _images_for_int8(subject, settings.get("calibration")) if backends else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotRunWarning)  # the summary says it
        small = subject.compress(**settings)
    metric = subject.task.metric
    split = subject.reported
    measured = {}
    if split is not None:
        measured = {"dense": subject.metrics(subject.model, split), "compressed": subject.metrics(small.model, split)}
    evaluate = None if split is None else subject.metric(split)
    quantised = [quantise(small, calibration=images, backend=backend, evaluate=evaluate) for backend in backends]
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
        **({} if split is None else {split: measured}),
        "costs": {"dense": asdict(small.dense), "compressed": asdict(small.costs)},
        "files": file_sizes(out),
        "milliseconds": times,
        "int8": {one.backend: one.to_json() for one in quantised},
        "request": small.plan.request,
    }
    lines = [_metric_text(metric, split, measured), *form_line(subject), small.summary("validation")]
    lines += [_latency_text(backend, *milliseconds) for backend, milliseconds in times.items()]
    lines += [one.summary(metric) for one in quantised]
    lines += [f"{size:>14,} bytes in {name}" for name, size in file_sizes(out).items()]
    return Outcome(record, "\n".join([*lines, str(out)]))


def _images_for_int8(subject: Subject, calibration: Any) -> Any:
    """Return the calibration images; ConfigError where there are only synthetic inputs."""
    if calibration == SYNTHETIC:
        raise ConfigError(f"--int8 is calibrated on images: give a folder of them instead of {SYNTHETIC}")
    return subject.inputs(calibration)["calibration"]


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


def _metric_text(metric: str, split: str | None, measured: Mapping[str, Mapping[str, float]]) -> str:
    if split is None:
        return "there are no images with labels: not evaluated"
    figures = [f"{metrics[metric]:.2f}" for metrics in measured.values()]
    return f"{metric} on the {split} images: {' -> '.join(figures)}"


def _latency_text(backend: str, dense: float, small: float) -> str:
    name = backend.removesuffix("runtime") + " ms"
    return f"{name:11} {dense:>14.3f} -> {small:>14.3f}  ({dense / small:.1f}x as fast, batch 1)"
