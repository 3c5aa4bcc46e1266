"""What all formats share: a file is written aside, run by its own runtime, compared with the network, and put in place."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sparsefw.atomic_io import replaced_file
from sparsefw.compression.artifact.export.tracing import model_on_cpu, on_cpu, quiet
from sparsefw.compression.recovery.batches import takes_one_list
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import call_on_copy, evaluating
from sparsefw.text import first_line

# What loading a file by its runtime gives: from inputs, a function that runs the network once on them and returns its outputs.
Runner = Callable[[Any], Callable[[], Sequence[Any]]]
TOLERANCE = 1e-4  # of the outputs: rounding of float32 stays below


class ExportError(RuntimeError):
    """The model cannot be exported, or the exported model computes something else."""


@contextlib.contextmanager
def written(path: str | os.PathLike[str], model: nn.Module) -> Iterator[Path]:
    """Yield a path to export the model to; ExportError where the file cannot be written."""
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"only a torch.nn.Module can be exported, got {type(model).__name__}; for the result of compress, pass its .model"
        )
    try:
        with replaced_file(Path(path)) as aside:
            yield aside
    except OSError as error:
        raise ExportError(f"cannot write {error.filename or path}: {error.strerror or error}") from error


def checked_gap(model: nn.Module, example: Any, runner: Runner, runtime: str, tolerance: float) -> float:
    """Return the largest difference between a runtime and the model, relative to the outputs; ExportError beyond the tolerance.

    They are compared on the example and on a batch of another size.
    """
    model = model_on_cpu(model)
    tripled = tree_map(lambda t: torch.cat([t, t, t]) if isinstance(t, Tensor) else t, example)
    worst = 0.0
    for inputs in (on_cpu(example), on_cpu(tripled)):
        with evaluating(model):
            expected = call_on_copy(model, inputs)
        try:
            got = [torch.as_tensor(output) for output in runner(inputs)()]
        except RuntimeError as error:
            raise ExportError(f"{runtime} cannot run the model: {first_line(error)}") from error
        worst = max(worst, relative_gap(expected, got, whole_numbers=True))
    if not worst <= tolerance:
        raise ExportError(f"{runtime} differs from the model by {worst:.2g} of its outputs, more than {tolerance:g}")
    return worst


def require_batch(example: Any) -> None:
    """Raise ExportError for inputs of a network that takes a list of images."""
    if takes_one_list(example):
        raise ExportError(
            "the model takes a list of images, whose number and sizes a file would fix: export a module that takes a batch of "
            "images and gives boxes and scores of all candidates, and choose among them outside"
        )


def arrays_of(inputs: Any) -> list[Any]:
    """Return the tensors of the inputs as numpy arrays, in their order."""
    return [t.detach().cpu().numpy() for t in tree_leaves(inputs) if isinstance(t, Tensor)]


def require(*packages: str, extra: str) -> None:
    """Raise ExportError, which names the extra to install, unless all these packages are installed."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ExportError(f"{' and '.join(missing)} missing: pip install 'sparsefw[{extra}]'")


def imported(module: str, extra: str) -> Any:
    """Import a module of an optional package; ExportError where it is missing, or does not run with this torch."""
    package = module.partition(".")[0]
    require(package, extra=extra)
    try:
        with quiet():
            return importlib.import_module(module)
    except ImportError as error:
        raise ExportError(
            f"{package} is installed and cannot be imported beside torch {torch.__version__}: {error}; "
            f"pip install 'sparsefw[{extra}]' installs what it needs"
        ) from error
