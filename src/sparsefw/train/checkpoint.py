"""Checkpoints: everything that changes during training, as safetensors, never pickle.

A checkpoint is one file, `step-00001170-SHA256.safetensors`, whose name contains the hash of its content: the hash shows whether
the file is whole. If it is damaged, the checkpoint before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsefw.atomic_io import file_digest, parse_json, write_bytes
from sparsefw.config_base import ConfigError
from sparsefw.limits import require_regular
from sparsefw.runfolder.parse import MALFORMED
from sparsefw.text import one_line

_NAME = re.compile(r"step-(\d{8,})-([0-9a-f]{64})\.safetensors")


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write a checkpoint, and remove all but this one and the one before.

    Checkpoints of later steps are removed, too: they are damaged, or the training was resumed from an earlier one.

    Args:
        state: plain values and tensors in dictionaries, lists and tuples.
    """
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    tree = _encoded(state, tensors)
    content = save(tensors, {"state": json.dumps(tree)})
    path = folder / f"step-{step:08d}-{hashlib.sha256(content).hexdigest()}.safetensors"
    write_bytes(path, content)
    earlier = [file for file_step, file in _files(folder) if file_step < step]
    for _, file in _files(folder):
        if file not in (path, *earlier[:1]):
            file.unlink(missing_ok=True)
    return path


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[Path]]:
    """Return the newest whole checkpoint, None if there is none, and the newer ones that are damaged, which are kept."""
    damaged: list[Path] = []
    for _, path in _files(folder):
        with suppress(OSError):
            if path.name.endswith(f"{file_digest(path)}.safetensors"):
                return path, damaged
        damaged.append(path)
    return None, damaged


def newest_step(folder: Path) -> int:
    """Return the step of the newest checkpoint, whole or not; 0 if there is none."""
    return max((step for step, _ in _files(folder)), default=0)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state that `save_checkpoint` was given; ConfigError if the file holds something else."""
    from safetensors import SafetensorError, safe_open

    try:
        require_regular(path)
        with safe_open(str(path), framework="pt") as file:
            tree = parse_json(file.metadata()["state"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dictionary)
        state = _decoded(tree, tensors)
        if not isinstance(state, dict):
            raise TypeError(f"a {type(state).__name__} instead of a dictionary")
        return state
    except (SafetensorError, OSError, *MALFORMED) as error:
        raise ConfigError(f"{path} is not a checkpoint of sparsefw: {one_line(error)}; remove it") from None


def _files(folder: Path) -> list[tuple[int, Path]]:
    """Return the step and the path of every checkpoint, newest first."""
    names = os.listdir(folder) if folder.is_dir() else []
    files = [(int(match[1]), folder / name) for name in names if (match := _NAME.fullmatch(name))]
    return sorted(files, reverse=True)


def _encoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, and put its tensors into `tensors`; keys that are no texts, and tuples, stay what they are."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[_encoded(key, tensors), _encoded(item, tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"  # also torch.Size and named ones
        return {kind: [_encoded(item, tensors) for item in value]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"a checkpoint holds plain values and tensors only, not {type(value).__name__}")


def _decoded(tree: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    ((kind, value),) = tree.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {_decoded(key, tensors): _decoded(item, tensors) for key, item in value}
    items = [_decoded(item, tensors) for item in value]
    return tuple(items) if kind == "tuple" else items


def plain_rates(optimizer_state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of an optimizer with learning rates as numbers: on a GPU they are tensors."""
    groups = [
        {**group, "lr": float(group["lr"]) if isinstance(group["lr"], torch.Tensor) else group["lr"]}
        for group in optimizer_state["param_groups"]
    ]
    return {**optimizer_state, "param_groups": groups}
