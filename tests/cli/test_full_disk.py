"""A disk without room: one line that names the file, exit code 1, and what was there before is still there.

A limit of the size of files makes the same writes fail that a full disk would.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy

from sparsefw.sweep.storage import retry_while_unreachable

GRID = """
recipe: digits-resnet
kind: filters
at: [0.5]
train: {epochs: 1}
methods:
  SGD: {method: {name: sgd}}
"""
TINY = ["--set", "train.epochs=1", "--set", "model.arguments.width=8", "--quiet"]


def sparsefw(folder: Path, *words: object, limit: int = resource.RLIM_INFINITY) -> subprocess.CompletedProcess[str]:
    """Run a command that can write no file of more than `limit` bytes."""
    cache = {**os.environ, "OMP_NUM_THREADS": "1", "SPARSEFW_CACHE": str(folder / "cache")}
    return subprocess.run(
        [sys.executable, "-m", "sparsefw", *map(str, words)],
        cwd=folder,
        env=cache,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY)),
        capture_output=True,
        text=True,
        timeout=300,
    )


def failed(folder: Path, *words: object, limit: int) -> str:
    """Return the one line with which a command fails that has no room."""
    before = contents(folder)
    done = sparsefw(folder, *words, limit=limit)
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    after = contents(folder)
    assert {path: after.get(path) for path in before} == before
    assert not [path for path in after if ".new" in str(path)]
    return line


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("disk")
    done = sparsefw(folder, "train", "digits-resnet-filters", "--out", "run", *TINY)
    assert done.returncode == 0, done.stderr
    return folder / "run"


@pytest.mark.slow
def test_train_says_which_file_has_no_room_and_continues_later(tmp_path):
    words = ("train", "digits-resnet-filters", "--out", "run", *TINY)
    assert failed(tmp_path, *words, limit=50_000) == "failed: run/model.safetensors: File too large"
    assert sparsefw(tmp_path, *words).returncode == 0


@pytest.mark.slow
def test_compress_keeps_the_network_that_is_there(run):
    small = run.parent / "small"
    compress = ("compress", "run", "--quiet", "-o", "small", "--filters")
    assert sparsefw(run.parent, *compress, 0.9).returncode == 0
    line = failed(run.parent, *compress, 0.5, limit=10_000)
    assert line == f"failed: cannot write {small}/model.safetensors: File too large"
    line = failed(run.parent, *compress, 0.5, "--onnx", limit=40_000)
    assert line == f"failed: cannot write {small}/model.onnx: File too large"


@pytest.mark.slow
def test_curve_and_report_name_their_files(run):
    line = failed(run.parent, "curve", "run", "--at", "0.5", "--quiet", limit=2_000)
    assert line == "failed: run/curves/filters-removed.png: File too large"
    (run.parent / "r.html").write_text("old")
    assert (
        failed(run.parent, "report", "run", "-o", "r.html", limit=2_000)
        == "failed: cannot write r.html: File too large"
    )


@pytest.mark.slow
def test_retrain_names_its_file(run):
    line = failed(run.parent, "retrain", "run", "--weights", "0.5", "--epochs", "1", "--quiet", limit=50_000)
    assert line == "failed: run-retrained/phase-1.safetensors: File too large"


@pytest.mark.slow
def test_a_sweep_ends_instead_of_starting_workers_for_ever(tmp_path):
    (tmp_path / "tiny.yaml").write_text(GRID)
    words = ("sweep", "tiny.yaml", "--out", "sweep", "--workers", 1, "--quiet", "--set", "model.arguments.width=32")
    done = sparsefw(tmp_path, *words, limit=600_000)
    assert done.returncode == 1
    worker, sweep = done.stderr.splitlines()
    assert worker.endswith("model.safetensors: File too large")
    assert sweep == "failed: a worker cannot write, as the line above says; mend that, and the same command continues"


def test_a_full_database_is_not_waited_for(tmp_path):
    """SQLite's own error, of a database that may not grow."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'ledger.db'}")

    @retry_while_unreachable
    def fill() -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count=2")
            connection.exec_driver_sql("CREATE TABLE t (x BLOB)")
            connection.exec_driver_sql("INSERT INTO t VALUES (zeroblob(100000))")

    with pytest.raises(OSError, match=r"No space left on device: 'ledger.db'"):
        fill()
    engine.dispose()
