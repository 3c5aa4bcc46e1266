"""Whatever a file holds, its reader returns a record or raises one line that names the file; nothing in it is run."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings

from fuzz.canary import watched
from fuzz.memory import NO_MEMORY, at_most
from fuzz.mutations import JSON, JSON_LINES, YAML, Raw, hostile
from fuzz.readers import READERS, Reader, ledger_bytes, ledger_with
from junk import DEEP, variants
from sweep.sweeps import GRID

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


@pytest.mark.slow
@pytest.mark.parametrize("reader", [reader for reader in READERS if reader.is_whole and reader.form], ids=str)
def test_every_value_exchanged_for_junk(reader, tmp_path):
    """One after the other, whatever the cases above happened to exchange."""
    if reader.slow or reader.form not in (JSON, JSON_LINES, YAML):
        pytest.skip("its own tests exchange every value")
    file = reader.example(tmp_path)
    for variant in variants(reader.form.load(file.read_bytes())):
        refusal_of(reader.form.dump(variant), reader, file)


# What made a reader fail in another way than by its line, once.
FOUND = {
    "recipe": (
        b"\x00",
        b"name: !!bool x",
        b"name: 2001-99-99",
        b"name: !!timestamp x",
        b"name: !!int ''",
        b"seed: " + b"1" * 5000,
    ),
    "grid": (b"\x00", GRID.replace("name: sgd", "a: 1").encode()),
    "run: config.yaml": (b"method: {name: !!bool x}", b"method: {name: !!int ''}"),
    "data: tinyimagenet folder wnids.txt": (b"\x80",),
    "data: tinyimagenet folder val_annotations.txt": (b"\x80",),
    "run: metrics.jsonl": (b'{"epoch": 1' + b"0" * 400 + b"}", b'{"epoch": 1, "step": 1' + b"0" * 400 + b"}"),
    "latency table": (DEEP.encode(), b'{"a": 1' + b"0" * 400 + b"}"),
    "data: cache, about.json": (DEEP.encode(),),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found(name, tmp_path):
    (reader,) = (reader for reader in READERS if reader.name == name)
    file = reader.example(tmp_path)
    for content in FOUND[name]:
        message = refusal_of(content, reader, file)
        is_passed_over = name in ("run: metrics.jsonl", "latency table", "data: cache, about.json")
        assert message is not None or is_passed_over


def test_ledgers_that_were_found(tmp_path):
    """A database that waits would not mend is not waited for."""
    (reader,) = (reader for reader in READERS if reader.name == "sweep: ledger")
    file = reader.example(tmp_path)
    whole = ledger_bytes()
    records = ({}, None, Raw(DEEP))
    plans = [ledger_with({"study_user_attributes 1": record}) for record in records]
    for content in (ledger_with({}), *plans, whole[:5000]):
        assert "ledger.db" in str(refusal_of(content, reader, file))


@pytest.mark.parametrize("arguments", [{"vidth": 4}, {"width": 8}, {"width": 10**7}, {"classes": "x"}])
def test_a_network_that_is_not_what_its_header_says(arguments, tmp_path):
    """In a run whose hashes are right."""
    (reader,) = (reader for reader in READERS if reader.name == "run: its network")
    file = reader.example(tmp_path)
    tree = reader.form.load(file.read_bytes())
    tree["about"]["model"]["arguments"] = arguments
    assert "model.safetensors: " in refusal_of(reader.form.dump(tree), reader, file)
