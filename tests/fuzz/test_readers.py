"""Whatever a file holds, its reader returns a record or raises one line that names the file; nothing in it is run."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings

from fuzz.canary import watched
from fuzz.memory import NO_MEMORY, at_most
from fuzz.mutations import hostile
from fuzz.readers import READERS, Reader

CASES = int(os.environ.get("CASES", "25"))  # per reader
SEED = int(os.environ.get("SEED", "0"))
MEMORY = 1 << 30  # bytes for one small file; the largest allowance of `sparsefw.limits` for one


def refusal(reader: Reader, file: Path) -> str | None:
    """Return the line with which a reader refuses its file, None if it reads it; AssertionError for anything else."""
    try:
        with warnings.catch_warnings(action="ignore"), watched(), at_most(MEMORY):
            reader.read(file)
    except reader.errors as error:
        message = str(error)
    else:
        return None
    assert len(message.splitlines()) == 1, message
    assert reader.reserves or not NO_MEMORY.search(message), message
    return message


def refusal_of(content: bytes, reader: Reader, file: Path) -> str | None:
    """Return how a reader refuses a file of this content: in a line that names it, or its folder."""
    file.write_bytes(content)
    reader.seal(file)
    message = refusal(reader, file)
    assert message is None or file.name in message or file.parent.name in message, message
    return message


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
@pytest.mark.parametrize("reader", READERS, ids=str)
def test_hostile_files(reader, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "example").mkdir()
    file = reader.example(tmp_path / "example")
    whole = file.read_bytes()
    assert refusal_of(whole, reader, file) is None

    cases = max(5, CASES // 5) if reader.slow else CASES

    @seed(SEED)
    @settings(max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(hostile(whole, reader.form))
    def check(content: bytes) -> None:
        message = refusal_of(content, reader, file)
        assert message is not None or not reader.is_sealed or reader.is_same(content, whole)

    check()
