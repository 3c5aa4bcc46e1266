"""`sparsefw bench`, as it is typed: its text and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from sparsefw.cli import app

SMALL = ("model.arguments.width=4",)


@pytest.fixture(autouse=True)
def _no_data_variable(monkeypatch):
    monkeypatch.delenv("SPARSEFW_DATA", raising=False)


def sparsefw(*arguments: str | Path) -> str:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_row_is_compared_with_sgd():
    answer = json.loads(sparsefw("bench", "train", "--seconds", 0.05, "--set", *SMALL, "--json"))
    assert list(answer["rows"]) == ["sgd", "nuc-svd", "filters", "weights", "rank-0.1", "rank-0.3"]
    assert answer["rows"]["sgd"]["share"] == 1
    labels = {key: row["label"] for key, row in answer["rows"].items()}
    assert labels["filters"] == "SparseFW filters k=0.2"
    assert labels["nuc-svd"] == "NUC (full SVD)"
    for row in answer["rows"].values():
        assert row["images_per_second"] == pytest.approx(64e3 / row["milliseconds"])
        assert row["share"] == pytest.approx(row["images_per_second"] / answer["rows"]["sgd"]["images_per_second"])
        assert row["spread"][0] <= 1 <= row["spread"][1]
        assert row["stretches"] >= 3
    assert (answer["recipe"], answer["batch_size"], answer["shape"]) == ("digits-resnet", 64, [1, 8, 8])
    assert not answer["made_up"]
    assert answer["versions"]["torch"] == torch.__version__


def test_only_the_requested_rows_are_measured():
    text = sparsefw("bench", "train", "digits-resnet", "--rows", "nuc-svd", "--seconds", 0.01, "--set", *SMALL)
    assert "NUC (full SVD)" in text
    assert "images of 1 x 8 x 8, those of the data set" in text
    assert "filters" not in text


def test_the_table_says_that_images_are_made_up():
    changes = ["--set", "data.batch_size=2", "--set", *SMALL, "--set", "data.size=[16,16]"]
    text = sparsefw("bench", "train", "cifar10-resnet18", "--rows", "sgd", "--seconds", 0, *changes)
    assert "batches of 2 images of 3 x 16 x 16, made up in memory: no file is read or decoded" in text


def test_the_speed_of_the_data_path_is_measured():
    assert json.loads(sparsefw("bench", "data", "--seconds", 0.1, "--json"))["images_per_second"] > 0
    assert sparsefw("bench", "data", "--seconds", 0).startswith("digits-resnet-sgd: 0 images/s on ")
