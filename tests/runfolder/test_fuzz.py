"""Whatever a file of a run holds, its reader returns a record or raises one line that names the file: never a traceback."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from junk import DEEP, NOT_JSON, variants
from runfolder.records import DATA, REQUEST, change_record
from runfolder.test_round_trip import write_whole_run
from sparsefw.config_base import ConfigError
from sparsefw.report import read_run as read_reported_run
from sparsefw.report.charts import run_charts
from sparsefw.runfolder import RunFolderError, RunPaths, read_run
from sparsefw.runfolder.digest import without_digest
from sparsefw.runfolder.read import (
    read_config,
    read_curve,
    read_data,
    read_environment,
    read_epochs,
    read_facts,
    read_model_header,
    read_model_tensors,
    read_result,
    read_retraining,
)
from sparsefw.runfolder.schema import DataChange
from sparsefw.runfolder.write import write_retraining
from sparsefw.train.diagnosis import epochs_of
from sparsefw.train.folder import RunFolder

READERS: dict[str, Callable[[Path], Any]] = {
    "run.json": read_facts,
    "environment.json": read_environment,
    "data.json": read_data,
    "result.json": read_result,
    "curves/filters-removed.json": lambda folder: read_curve(folder, "filters", "removed"),
    "spectra.json": read_run,
    "retrain.json": read_retraining,
    "config.yaml": lambda folder: RunFolder(folder).config,
    "metrics.jsonl": lambda folder: epochs_of(read_epochs(folder)),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_whole_run(folder).data(replace(DATA, changes=(DataChange("another part", 3), DataChange("no part", None))))
    write_retraining(folder, REQUEST)
    return folder


def damaged(name: str, content: bytes) -> Iterator[bytes]:
    yield from NOT_JSON
    draw = random.Random(name)
    for _ in range(20):
        yield content[: draw.randrange(len(content))]
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        yield bytes(flipped)
    if name.endswith(".yaml"):
        yield from (yaml.safe_dump(variant).encode() for variant in variants(yaml.safe_load(content)))
    elif name.endswith(".jsonl"):
        records = [without_digest(json.loads(line)) for line in content.splitlines()]
        yield from (json.dumps(variant).encode() for record in records for variant in variants(record))
    else:
        yield from (json.dumps(variant).encode() for variant in variants(without_digest(json.loads(content))))


def refusal(read: Callable[[Path], Any], folder: Path, content: bytes) -> str | None:
    """The message with which a reader refuses what is in the folder; AssertionError if it fails in another way."""
    try:
        read(folder)
    except (RunFolderError, ConfigError) as error:
        return str(error)
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error} of {content[:300]!r}") from error
    return None


@pytest.mark.parametrize("name", READERS)
def test_every_reader_of_text_ends_in_a_record_or_in_one_line(folder, name):
    path = folder / name
    whole = path.read_bytes()
    refused = 0
    for content in damaged(name, whole):
        path.write_bytes(content)
        for read in (READERS[name], read_run):
            message = refusal(read, folder, content)
            if message is not None:
                refused += 1
                assert "\n" not in message, content[:200]
                assert path.name in message, content[:200]
    path.write_bytes(whole)
    # The broken lines of metrics.jsonl, and spectra, are listed as problems.
    assert refused or name in ("metrics.jsonl", "spectra.json")


@pytest.mark.parametrize(
    "deep", [DEEP, "{a: " * 20_000, "- " * 50_000, "? " * 50_000], ids=["json", "map", "list", "key"]
)
def test_a_configuration_that_is_nested_too_deeply_is_refused(folder, deep):
    """libyaml would overrun the stack, and end the process."""
    path = RunPaths(folder).config
    whole = path.read_bytes()
    path.write_text(deep)
    with pytest.raises(RunFolderError, match=r"config\.yaml cannot be read"):
        read_config(folder)
    path.write_bytes(whole)


@pytest.mark.parametrize("read", [read_model_header, read_model_tensors])
def test_every_reader_of_the_network_ends_in_a_record_or_in_one_line(folder, read):
    path = RunPaths(folder).model
    whole = path.read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    about = json.loads(header["__metadata__"]["sparsefw"])

    def files() -> Iterator[bytes]:
        yield from NOT_JSON
        for metadata in [None, {}, {"sparsefw": ""}, *({"sparsefw": json.dumps(v)} for v in (DEEP, *variants(about)))]:
            changed = {**header, "__metadata__": metadata}
            if metadata is None:
                del changed["__metadata__"]
            text = json.dumps(changed).encode()
            yield len(text).to_bytes(8, "little") + text + whole[8 + size :]

    for content in files():
        path.write_bytes(content)
        message = refusal(read, folder, content)
        assert message is None or ("\n" not in message and path.name in message)
    path.write_bytes(whole)


def test_a_metric_that_is_unknown_is_drawn_under_its_own_name(folder):
    path = RunPaths(folder).facts
    whole = path.read_bytes()
    change_record(path, metric="beauty")
    assert "beauty" in str(run_charts(read_reported_run(folder))[0])
    path.write_bytes(whole)
