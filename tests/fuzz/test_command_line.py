"""Hostile files given to the commands: exit code 2 and one line, or a page that lists what is damaged; no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from typer.testing import CliRunner

from fuzz.canary import watched
from fuzz.memory import at_most
from fuzz.mutations import JSON, YAML, Form, hostile
from fuzz.readers import READERS
from fuzz.test_readers import CASES, SEED
from sparsefw.cli import app
from sparsefw.runfolder import RunPaths
from sparsefw.train.recipes import load_recipe
from sparsefw.train.run import fit

BY_NAME = {reader.name: reader for reader in READERS}
FEW = max(5, CASES // 5)
RECIPE = ["train", "FILE", "--show"]
GRID = ["sweep", "FILE", "--show"]


def end_of(*words: str) -> int:
    """Run a command in this process, and return its exit code: 0, or 2 after exactly one line."""
    with warnings.catch_warnings(action="ignore"), watched(), at_most(2 << 30):
        result = CliRunner().invoke(app, list(words))
    assert result.exit_code in (0, 2), (result.stderr, result.exception)
    assert "Traceback" not in result.output
    if result.exit_code:
        assert len(result.stderr.splitlines()) == 1, result.stderr
        assert result.stderr.startswith("error: ")
    return result.exit_code


def fuzz(file: Path, form: Form | None, *words: str, cases: int = FEW) -> None:
    whole = file.read_bytes()

    @seed(SEED)
    @settings(max_examples=cases, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(hostile(whole, form))
    def check(content: bytes) -> None:
        file.write_bytes(content)
        end_of(*words)

    check()
    file.write_bytes(whole)


@pytest.mark.parametrize("name, words", [("recipe", RECIPE), ("grid", GRID)])
def test_configurations(name, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = BY_NAME[name].example(tmp_path)
    command = [str(file) if word == "FILE" else word for word in words]
    assert end_of(*command) == 0
    fuzz(file, YAML, *command)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    config = load_recipe("digits-resnet-sgd", ["model.arguments.width=4", "train.epochs=1"])
    folder = tmp_path_factory.mktemp("run") / "run"
    fit(config, folder, quiet=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["run.json", "result.json", "environment.json", "data.json", "config.yaml", "model.safetensors"]
)
def test_a_trained_run(name, run, tmp_path):
    """A split that does not exist ends the command before anything is measured, whatever else the files hold."""
    file = run / name
    form = JSON if name.endswith(".json") else YAML if name.endswith(".yaml") else None
    fuzz(file, form, "curve", str(run), "--split", "no such split", "--device", "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "result.json", "config.yaml", "metrics.jsonl", "spectra.json"])
def test_reports(name, run, tmp_path):
    file = run / name
    form = YAML if name.endswith(".yaml") else JSON if name.endswith(".json") else None
    fuzz(file, form, "report", str(run), "-o", str(tmp_path / "page.html"), cases=max(3, CASES // 25))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sweep: ledger"])
def test_ledgers(name, tmp_path):
    file = BY_NAME[name].example(tmp_path)
    for content in (b"", b"\x00" * 5000, file.read_bytes()[:5000], file.read_bytes()[:1000] * 30):
        file.write_bytes(content)
        assert end_of("sweep", "--join", f"sqlite:///{file}", "--out", str(tmp_path / "joined")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"\x00", b"!!bool x", b"{" * 5000])
def test_real_processes(content, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    for verb in ("train", "sweep"):
        process = subprocess.run(
            [sys.executable, "-m", "sparsefw", verb, str(file)], capture_output=True, text=True, check=False
        )
        assert process.returncode == 2
        assert process.stdout == ""
        assert len(process.stderr.splitlines()) == 1
        assert process.stderr.startswith("error: ")
        assert str(file) in process.stderr


@pytest.mark.slow
def test_an_edited_result_is_no_wrong_network(run, tmp_path):
    """The network of another run, and its hash in the result: it is bound to the configuration, too."""
    path = RunPaths(run).config
    whole = path.read_text()
    path.write_text(whole.replace("epochs: 1", "epochs: 2"))
    assert end_of("curve", str(run), "--device", "cpu") == 2
    path.write_text(whole)
    assert json.loads((run / "result.json").read_text())["model"]
