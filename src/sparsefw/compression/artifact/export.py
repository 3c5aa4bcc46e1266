"""Export: ONNX files, checked against the model, and torch.export programs; both with a dynamic batch."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sparsefw.atomic_io import naming, replaced_file
from sparsefw.compression.artifact.export_failure import reason_of
from sparsefw.compression.recovery.batches import takes_one_list
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import arguments_of, call_on_copy, evaluating


class ExportError(RuntimeError):
    """The model cannot be exported, or the exported model computes something else."""


def export_onnx(model: nn.Module, example: Any, path: str | os.PathLike[str], *, tolerance: float = 1e-4) -> float:
    """Write an ONNX file with a dynamic batch.

    Args:
        model: The network.
        example: An input with a batch axis.
        path: The file to write.
        tolerance: The largest accepted gap; ExportError beyond it.

    Returns:
        The largest difference between onnxruntime and the model, relative to the outputs.
    """
    with _written(path, model) as aside:
        return write_onnx(model, example, aside, tolerance)


def export_program(model: nn.Module, example: Any, path: str | os.PathLike[str]) -> None:
    """Write a torch.export program (.pt2) with a dynamic batch."""
    with _written(path, model) as aside:
        write_program(model, example, aside)


@contextlib.contextmanager
def _written(path: str | os.PathLike[str], model: nn.Module) -> Iterator[Path]:
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


def write_onnx(model: nn.Module, example: Any, path: Path, tolerance: float = 1e-4) -> float:
    """Write an ONNX file, which a full disk or a kill leaves incomplete; return the gap of export_onnx."""
    program = _onnx_program(model, example)
    with naming(path):
        program.save(str(path), external_data=False)
    gap = _onnx_gap(model, path, example)
    if not gap <= tolerance:
        raise ExportError(f"onnxruntime differs from the model by {gap:.2g} of its outputs, more than {tolerance:g}")
    return gap


def write_program(model: nn.Module, example: Any, path: Path) -> None:
    """Write a torch.export program, which a full disk or a kill leaves incomplete."""
    with evaluating(model), _quiet():
        program = _exported(model, example)
        with (
            naming(path),
            path.open("wb") as file,
        ):  # given the path, torch says of a full disk only that writing failed
            torch.export.save(program, file)


def onnx_session(model: nn.Module, inputs: Any) -> Callable[[], Any]:
    """Return a function that runs the model once in onnxruntime on these inputs, with as many threads as torch."""
    session = _session(_onnx_program(model, inputs).model_proto.SerializeToString())
    feed = _feed(session, inputs)
    return lambda: session.run(None, feed)


def _onnx_program(model: nn.Module, example: Any) -> Any:
    _needs("onnx", "onnxscript")
    _require_batch(example)
    with evaluating(model), _quiet():
        try:
            args, kwargs = _arguments(model, _on_cpu(_two(example)))
            program = torch.onnx.export(
                _cpu(model),
                args,
                kwargs=kwargs,
                dynamo=True,
                dynamic_shapes=_free_batch(args, kwargs, "batch"),
                verbose=False,
                optimize=True,
            )
        except Exception as error:
            raise ExportError(f"the model cannot be exported to ONNX: {reason_of(error, model, example)}") from error
    assert program is not None
    return program


def _require_batch(example: Any) -> None:
    if takes_one_list(example):
        raise ExportError(
            "the model takes a list of images, whose number and sizes a file would fix: export a module that takes a batch of "
            "images and gives boxes and scores of all candidates, and choose among them outside"
        )


def _exported(model: nn.Module, example: Any) -> Any:
    _require_batch(example)
    try:
        args, kwargs = _arguments(model, _two(example))
        return torch.export.export(model, args, kwargs, dynamic_shapes=_free_batch(args, kwargs))
    except Exception as error:
        raise ExportError(f"the model cannot be exported: {reason_of(error, model, example)}") from error


def _onnx_gap(model: nn.Module, path: Path, example: Any) -> float:
    """Return the largest relative difference, on the example and on a batch of another size."""
    session = _session(str(path))
    model = _cpu(model)
    tripled = tree_map(lambda t: torch.cat([t, t, t]) if isinstance(t, Tensor) else t, example)
    worst = 0.0
    for inputs in (_on_cpu(example), _on_cpu(tripled)):
        with evaluating(model):
            expected = call_on_copy(model, inputs)
        got = [torch.from_numpy(array) for array in session.run(None, _feed(session, inputs))]
        worst = max(worst, relative_gap(expected, got, whole_numbers=True))
    return worst


def _session(network: str | bytes) -> Any:
    """Return a session of a network: the path of its file, or its content."""
    _needs("onnxruntime")
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Idle threads spin by default and would slow the next measurement, of another session or of torch.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])


def _feed(session: Any, inputs: Any) -> dict[str, Any]:
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, Tensor)]
    return {node.name: t.detach().cpu().numpy() for node, t in zip(session.get_inputs(), tensors, strict=True)}


def _arguments(model: nn.Module, example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional or keyword arguments; of both, all become keyword arguments."""
    positional, by_name = arguments_of(example)
    if not by_name:
        return positional, {}
    names = list(inspect.signature(model.forward).parameters)
    return (), {**dict(zip(names, positional, strict=False)), **by_name}


def _free_batch(args: tuple[Any, ...], kwargs: dict[str, Any], axis: Any = torch.export.Dim.DYNAMIC) -> Any:
    """Return the dynamic shapes of the arguments: their first axis is the batch."""

    def free(value: Any) -> Any:
        return {0: axis} if isinstance(value, Tensor) and value.ndim else None

    return tree_map(free, kwargs) if kwargs else tuple(tree_map(free, args))


def _two(example: Any) -> Any:
    """Return the example with a batch of at least 2: a batch of 1 would be traced as a constant."""
    return tree_map(lambda t: torch.cat([t, t]) if isinstance(t, Tensor) and t.ndim and len(t) == 1 else t, example)


def _on_cpu(example: Any) -> Any:
    return tree_map(lambda t: t.detach().cpu() if isinstance(t, Tensor) else t, example)


def _cpu(model: nn.Module) -> nn.Module:
    is_on_cpu = all(t.device.type == "cpu" for t in (*model.parameters(), *model.buffers()))
    return model if is_on_cpu else copy.deepcopy(model).cpu()


def _needs(*packages: str) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise ExportError(f"{' and '.join(missing)} missing: pip install 'sparsefw[export]'")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporters, which print, log and warn about their internals."""
    unheard = io.StringIO()
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(unheard), contextlib.redirect_stderr(unheard):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
