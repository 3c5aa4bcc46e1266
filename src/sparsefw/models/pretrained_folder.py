"""Networks in the folders that save_pretrained of Hugging Face's transformers writes: a configuration and weights, no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from sparsefw.atomic_io import parse_json
from sparsefw.limits import RECORD_BYTES, read_bounded
from sparsefw.models.huggingface import LIBRARY, with_weights, without_origin
from sparsefw.models.pretrained import read_weights
from sparsefw.models.skeletons import BUILD_ERRORS, build_for
from sparsefw.text import one_line

CONFIG = "config.json"
PREPROCESSOR = "preprocessor_config.json"
_WEIGHTS = "model.safetensors"


def open_pretrained(folder: Path) -> nn.Module:
    """Build the network in a folder; ValueError, in one line, where its files name none, or weights that do not fit."""
    config = read_table(folder / CONFIG)
    classes = config.get("architectures")
    if not isinstance(classes, list) or len(classes) != 1 or not isinstance(classes[0], str):
        raise ValueError(f"{folder / CONFIG}: architectures={classes!r} must name one class of transformers")
    weights = folder / _WEIGHTS
    if not weights.exists():
        others = ", ".join(sorted(path.name for path in folder.glob("*model*"))) or "none"
        raise ValueError(
            f"{folder} has no {_WEIGHTS} (weights there: {others}); save it again by save_pretrained, in one file: pickles and "
            "parts of weights are not read"
        )
    record = {"name": f"{LIBRARY}:{classes[0]}", "arguments": without_origin(config)}
    _, tensors = read_weights(weights)
    try:
        model = build_for(record, tensors)
    except BUILD_ERRORS as error:
        raise ValueError(f"{folder / CONFIG}: {one_line(error)}") from None
    return with_weights(model, tensors, str(weights))


def read_table(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file that holds a table; ValueError if it holds anything else."""
    try:
        content = parse_json(read_bounded(path, RECORD_BYTES).decode())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a table of settings, got {type(content).__name__}")
    return content
