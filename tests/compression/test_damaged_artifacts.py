"""Whatever the files of an artifact hold, it is loaded or refused in one line, also where all hashes are right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from junk import NOT_JSON, variants
from sparsefw import compress, load, save
from sparsefw.compression import ArtifactError
from sparsefw.compression.artifact.files import digest_of, sha256
from sparsefw.models import build


@pytest.fixture
def folder(tmp_path) -> Path:
    save(compress(build("resnet_digits", width=4), filters=0.5, example=torch.zeros(2, 1, 8, 8)), tmp_path / "small")
    return tmp_path / "small"


def is_refused(folder: Path) -> bool:
    """Return whether an artifact is refused, in one line that names its folder; describe the costs of any other."""
    try:
        small = load(folder)
        _ = str(small.plan) + (f"{small.dense.macs / max(small.costs.macs, 1):,} {small.costs.bytes:>14,}")
    except ArtifactError as error:
        message = str(error)
    else:
        return False
    assert "\n" not in message
    assert str(folder) in message
    return True


def write_hashed(path: Path, header: dict[str, Any]) -> None:
    path.write_text(json.dumps({**header, "digest": digest_of(header)}))


@pytest.mark.parametrize("name", ["plan.json", "certificate.json", "model.safetensors"])
def test_what_is_not_json_or_no_tensors(folder, name):
    for content in NOT_JSON:
        (folder / name).write_bytes(content)
        assert is_refused(folder)


def test_plans_with_junk_whose_digest_is_right(folder):
    path = folder / "plan.json"
    header = json.loads(path.read_text())
    refused = 0
    for variant in variants(header):
        write_hashed(path, variant)
        refused += is_refused(folder)
    assert refused > 100


def test_certificates_with_junk_whose_hash_is_right(folder):
    path = folder / "certificate.json"
    header = json.loads((folder / "plan.json").read_text())
    contents = [*NOT_JSON, *(json.dumps(variant).encode() for variant in variants(json.loads(path.read_text())))]
    refused = 0
    for content in contents:
        path.write_bytes(content)
        header["sha256"]["certificate.json"] = sha256(path)
        write_hashed(folder / "plan.json", header)
        refused += is_refused(folder)
    assert refused > len(NOT_JSON)
