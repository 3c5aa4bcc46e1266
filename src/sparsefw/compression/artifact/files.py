"""Files of artifacts: folders that are replaced as a whole, JSON and tensors that are checked by hashes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsefw import atomic_io
from sparsefw.compression.artifact.packing import unpack
from sparsefw.limits import RECORD_BYTES, read_bounded, require_regular
from sparsefw.text import one_line


class ArtifactError(ValueError):
    """A problem with an artifact, in one line: what, where, and what would be right."""


@contextlib.contextmanager
def replaced_folder(folder: Path, is_ours: Callable[[Path], bool]) -> Iterator[Path]:
    """An empty folder to write into, which replaces `folder` when the block ends without an error.

    A folder that is not ours is never replaced. After a full disk or a kill, the previous one is still whole.
    """
    check_replaceable(folder, is_ours)
    try:
        with atomic_io.replaced_folder(folder) as aside:
            yield aside
    except OSError as error:
        raise ArtifactError(f"cannot write {error.filename or folder}: {error.strerror or error}") from error


def check_replaceable(folder: Path, is_ours: Callable[[Path], bool]) -> None:
    """Raise ArtifactError unless the folder is missing, empty, or ours."""
    if folder == Path.cwd():
        raise ArtifactError(f"{folder} is the current folder, which cannot be replaced; choose one inside it")
    if folder.exists() and not (folder.is_dir() and (is_ours(folder) or not any(folder.iterdir()))):
        raise ArtifactError(
            f"{folder} exists and is not an artifact, or holds files of your own; choose another folder, or remove it"
        )


def write_json(path: Path, data: Any) -> None:
    with atomic_io.naming(path):
        path.write_text(json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")


def digest_of(header: Mapping[str, Any]) -> str:
    """Return the digest of everything in a plan file but the digest itself."""
    content = {key: value for key, value in header.items() if key != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_json(path: Path) -> Any:
    try:
        return atomic_io.parse_json(read_bounded(path, RECORD_BYTES).decode())
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing: not an artifact, or an incomplete copy of one") from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ArtifactError(f"{path} cannot be read: {one_line(error)}") from None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save

    apart: dict[str, Tensor] = {}
    memory: set[int] = set()  # safetensors refuses tensors that share it, such as views of one table
    for name, t in tensors.items():
        tensor = t.detach().cpu().contiguous()
        start = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if start in memory else tensor
        memory.add(start)
    with atomic_io.naming(path):
        path.write_bytes(save(apart))


def read_tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        require_regular(path)
        return load_file(str(path))
    except FileNotFoundError:
        raise ArtifactError(f"{path} is missing: an incomplete copy of an artifact") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ArtifactError(f"{path} is damaged: {one_line(error)}") from None


def read_packed(path: Path) -> dict[str, Tensor]:
    """Return the tensors in a file, those that were packed unpacked."""
    try:
        return unpack(read_tensors(path))
    except ArtifactError:
        raise
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged: {error}") from None


def sha256(path: Path) -> str:
    try:
        return atomic_io.file_digest(path)
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}") from None


def check_hashes(folder: Path, expected: Any, needed: Sequence[str]) -> None:
    """Check that every needed file is listed, exists, and is as it was written."""
    if not isinstance(expected, dict):
        raise ArtifactError(f"{folder}: lists no file hashes: not an artifact")
    for name in needed:
        digest = expected.get(name)
        if not isinstance(name, str) or "/" in name or os.sep in name or name.startswith("."):
            raise ArtifactError(f"{folder}: names a file outside of itself: {name!r}")
        if sha256(folder / name) != digest:
            raise ArtifactError(f"{folder / name} is damaged or was edited: its SHA-256 is not the one that was saved")


def hash_tensors(tensors: dict[str, Tensor]) -> str:
    """Return one hash for a set of named weights, independent of device and memory format."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        t = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(t.shape)} {t.dtype}\n".encode())
        digest.update(t.flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b"")
    return digest.hexdigest()
