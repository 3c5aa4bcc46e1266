"""torch.export programs (.pt2), with a free batch size.

torch loads them, and may unpickle what is in them: such a file is for those who trust where it comes from.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparsefw.atomic_io import naming
from sparsefw.compression.artifact.export.checked import ExportError, require_batch, written
from sparsefw.compression.artifact.export.failure import reason_of
from sparsefw.compression.artifact.export.tracing import at_least_two, free_batch, quiet, traced_arguments
from sparsefw.compression.structure.layers import evaluating


def export_program(model: nn.Module, example: Any, path: str | os.PathLike[str]) -> None:
    """Write a torch.export program (.pt2) with a free batch size. torch may unpickle such a file when it loads it."""
    with written(path, model) as aside:
        write_program(model, example, aside)


def write_program(model: nn.Module, example: Any, path: Path) -> None:
    """Write a torch.export program, which a full disk or a kill leaves incomplete."""
    with evaluating(model), quiet():
        program = traced(model, example)
        with (
            naming(path),
            path.open("wb") as file,
        ):  # given the path, torch says of a full disk only that writing failed
            torch.export.save(program, file)


def traced(model: nn.Module, example: Any, batch: Any = torch.export.Dim.DYNAMIC) -> Any:
    """Return the torch.export program of a network in evaluation mode; ExportError where it has none.

    Args:
        batch: The sizes that a batch may have.
    """
    require_batch(example)
    try:
        args, kwargs = traced_arguments(model, at_least_two(example))
        return torch.export.export(model, args, kwargs, dynamic_shapes=free_batch(args, kwargs, batch))
    except Exception as error:
        raise ExportError(f"the model cannot be exported: {reason_of(error, model, example)}") from error
