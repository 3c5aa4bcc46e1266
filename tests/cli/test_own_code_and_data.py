"""Images, networks and methods of the user's own, and folders that cannot be written."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from data.dataset_writers import write

NETWORK = """
from torch import nn

from sparsefw.models import model_factory

@model_factory
def make(classes=3, width=4):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(width, classes))
"""
RECIPE = """
data: {name: folder, batch_size: 4, validation: 0.25, size: [16, 16], augment: {resized_crop: true}}
model: {name: "mynet:make", arguments: {width: 8}}
method: {name: sparsefw, kind: filters, k: 0.5}
train: {epochs: 2, lr: 0.1}
engine: {workers: 0}
"""


def sparsefw(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the installed command; unlike `python -m`, it does not put the current folder on the path by itself."""
    command = [str(Path(sys.executable).with_name("sparsefw")), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture(scope="module")
def own(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    write("folder", folder / "pictures", images=12)
    (folder / "mynet.py").write_text(NETWORK)
    (folder / "own.yaml").write_text(RECIPE)
    return folder


@pytest.mark.slow
def test_the_suggested_next_command_works(own):
    """It needs no --data, which the run records, but --trust, because code makes the network."""
    output = sparsefw(own, "train", "own.yaml", "--trust", "--data", "pictures").stdout
    assert output.rstrip().endswith("next, `sparsefw curve runs/own-seed0 --trust`")
    assert "add --trust" in sparsefw(own, "curve", "runs/own-seed0", code=2).stderr
    sparsefw(own, "curve", "runs/own-seed0", "--trust", "--at", "0.5")
    sparsefw(own, "compress", "runs/own-seed0", "--trust", "--filters", "0.5", "-o", "small")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (own / "small").iterdir()}
    assert modes == {0o644}  # a server under another user may read them


METHOD = """
from typing import Literal

from sparsefw.methods import SGD
from sparsefw.methods.base import register

@register
class Plain(SGD):
    name: Literal["mymethod:Plain"] = "mymethod:Plain"
"""
GRID = """
recipe: digits-resnet
kind: filters
at: [0.5]
train: {epochs: 1}
methods:
  Own: {method: {name: "mymethod:Plain"}}
"""


@pytest.mark.slow
def test_workers_import_own_code_from_the_current_folder_with_trust_only(tmp_path):
    """And nothing else from there: optuna.py stands for a file that happens to be named like a package."""
    (tmp_path / "mynet.py").write_text(NETWORK.replace("Conv2d(3", "Conv2d(1").replace("classes=3", "classes=10"))
    (tmp_path / "mymethod.py").write_text(METHOD)
    (tmp_path / "optuna.py").write_text("raise SystemExit('a file in the current folder was imported')")
    (tmp_path / "own.yaml").write_text(GRID)
    words = ["sweep", "own.yaml", "--seeds", "1", "--workers", "1", "--out", "sweep", "--set", "model.name=mynet:make"]
    assert "add --trust" in sparsefw(tmp_path, *words, code=2).stderr
    assert not (tmp_path / "sweep").exists()
    assert "failed" not in sparsefw(tmp_path, *words, "--trust").stderr
    results = json.loads((tmp_path / "sweep" / "results.json").read_text())
    assert results["rows"]["Own"]["test"]["seeds"] == [0]
    joined = sparsefw(tmp_path, "sweep", "--join", "sweep", "--workers", "1", code=2)
    assert "'mynet:make' would import the Python module 'mynet'" in joined.stderr


def test_a_corrupt_image_is_named_or_skipped(own, tmp_path):
    write("folder", tmp_path / "pictures", images=12)
    bad = sorted((tmp_path / "pictures" / "train").rglob("*.*"))[0]
    bad.write_bytes(bad.read_bytes()[:60])
    words = (
        "train",
        str(own / "own.yaml"),
        "--trust",
        "--data",
        str(tmp_path / "pictures"),
        "--out",
        str(tmp_path / "run"),
    )
    assert bad.name in sparsefw(own, *words, code=2).stderr
    done = sparsefw(own, *words, "--set", "data.on_corrupt=skip", "--out", str(tmp_path / "run2"), "--quiet")
    assert done.stderr.strip() == "1 corrupt images were left out"


@pytest.mark.parametrize("where", ["/proc/nowhere", "dangling", "file", "file/below"])
def test_a_folder_that_cannot_be_made_is_refused_in_one_line(where, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to(tmp_path / "gone" / "away")
    done = sparsefw(tmp_path, "train", "digits-resnet-sgd", "--out", where, code=2)
    assert done.stderr.count("\n") == 1
    assert "choose another --out" in done.stderr


def test_compress_without_an_amount_names_the_options(tmp_path):
    assert (
        "with one of --filters, --neurons, --heads, --rank, --weights"
        in sparsefw(tmp_path, "compress", ".", code=2).stderr
    )


@pytest.mark.slow
def test_a_method_of_the_users_own(tmp_path):
    """Run the example of the documentation: trained, continued, and compressed without its code."""
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    (tmp_path / "mine.py").write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    small = ["--set", "train.epochs=1", "--set", "model.arguments.width=4", "--quiet"]
    own = ["train", "digits-resnet-sgd", "-o", "run", *small, "--trust", "--set", "method.name=mine:Decay"]
    for _ in range(2):  # the second time it is over already
        sparsefw(tmp_path, *own, "--set", "method.strength=0.01")
    assert "method.strength" in sparsefw(tmp_path, *own, code=2).stderr  # another run
    assert "strength" in sparsefw(tmp_path, *own, "--set", "method.strength=-1", code=2).stderr
    assert "strength = 0.0001  (float)" in sparsefw(tmp_path, "list", "methods", "mine:Decay", "--trust").stdout
    (tmp_path / "mine.py").unlink()
    assert "filters removed" in sparsefw(tmp_path, "curve", "run", "--at", "0.5", "--quiet").stdout
    assert "Decay strength=0.01" in sparsefw(tmp_path, "report", "run").stdout
    assert "there is no module 'mine'" in sparsefw(tmp_path, *own, code=2).stderr
    (tmp_path / "mine.py").write_text("")
    assert "registers no method of this name; it registers none" in sparsefw(tmp_path, *own, code=2).stderr
    (tmp_path / "mine.py").write_text("import nowhere")
    assert "module 'mine' cannot be imported: No module named 'nowhere'" in sparsefw(tmp_path, *own, code=2).stderr
