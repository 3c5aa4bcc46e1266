"""`sparsefw bench`: which rows, on which images, and that the figures of the table are those of the stretches."""

from __future__ import annotations

import json
import math
import weakref
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from data.written import write
from sparsefw.cli import app, bench
from sparsefw.cli.bench import ROWS, Measured, chosen_rows, rates
from sparsefw.data import DATASETS
from sparsefw.train import load_recipe

SMALL = ("model.arguments.width=4",)


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
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


def test_the_rows_that_are_asked_for_and_always_sgd():
    assert set(chosen_rows(None)) == {"sgd", "filters", "weights", "rank-0.1", "rank-0.3", "nuc-svd"}
    assert chosen_rows("all") == list(ROWS)
    assert chosen_rows("nuc, filters") == ["sgd", "nuc", "filters"]
    text = sparsefw("bench", "train", "digits-resnet", "--rows", "nuc-svd", "--seconds", 0.01, "--set", *SMALL)
    assert "NUC (full SVD)" in text
    assert "images of 1 x 8 x 8, those of the data set" in text
    assert "filters" not in text


def test_data_path_alone():
    assert json.loads(sparsefw("bench", "data", "--seconds", 0.1, "--json"))["images_per_second"] > 0


# --- which images


@pytest.mark.parametrize(
    "stem", ["cifar10-resnet18", "cifar100-wide-resnet", "tinyimagenet-resnet50", "imagenet-resnet50", "fashion-resnet"]
)
@pytest.mark.parametrize("key", ROWS)
def test_without_data_images_like_the_recipes_are_made_up(stem, key):
    config, recipe = bench.row_config(stem, ROWS[key], None, ()), load_recipe(f"{stem}-sgd")
    info, like = DATASETS[recipe.data.name], config.data.noise
    assert (like.shape, like.classes) == (info.shape, info.classes)
    assert (config.data.batch_size, config.data.augment) == (recipe.data.batch_size, recipe.data.augment)
    assert like.images % config.data.batch_size == 0
    assert like.images >= 4 * config.data.batch_size
    assert like.images * math.prod(like.shape) <= 1e9  # bytes
    assert config.model == recipe.model
    assert config.train.epochs * like.images / config.data.batch_size >= 3000  # compiled, as the whole set would be
    assert type(config.method) is ROWS[key].method
    assert config.method.model_dump().items() >= ROWS[key].settings.items()


def test_made_up_images_are_said_to_be():
    changes = ["--set", "data.batch_size=2", "--set", *SMALL, "--set", "data.size=[16,16]"]
    text = sparsefw("bench", "train", "cifar10-resnet18", "--rows", "sgd", "--seconds", 0, *changes)
    assert "batches of 2 images of 3 x 16 x 16, made up in memory: no file is read or decoded" in text


def test_real_images_where_they_are_given_or_named_by_the_environment(tmp_path, monkeypatch):
    write("cifar10", tmp_path, images=8)
    changes = ("data.batch_size=4", "data.validation=0", *SMALL)
    assert not rates("cifar10-resnet18", tmp_path, 0, changes, ["sgd"]).record["made_up"]
    monkeypatch.setenv("SPARSEFW_DATA", str(tmp_path))
    assert not rates("cifar10-resnet18", None, 0, changes, ["sgd"]).record["made_up"]


# --- how it is measured


def test_slow_steps_are_few(monkeypatch):
    """One to warm up, one to see how long it takes, and three that are measured."""
    taken = []
    prepare = bench.prepare

    def counted(*arguments):
        training = prepare(*arguments)
        advance = training.advance
        training.advance = lambda batch: (taken.append(len(batch.targets)), advance(batch))[1]
        return training

    monkeypatch.setattr(bench, "prepare", counted)
    found = bench._measured(load_recipe("digits-resnet-rank", SMALL), None, 0.0)
    assert len(found.seconds) == 3
    assert taken == [64] * 5


def test_one_training_is_in_memory_at_a_time(monkeypatch):
    seen: list[weakref.ref] = []
    prepare = bench.prepare

    def watched(*arguments):
        assert all(model() is None for model in seen)
        training = prepare(*arguments)
        seen.append(weakref.ref(training.model))
        return training

    monkeypatch.setattr(bench, "prepare", watched)
    rates("digits-resnet", None, 0.0, SMALL, ["sgd", "filters", "nuc"])
    assert len(seen) == 4


def test_the_table_by_hand(monkeypatch):
    """SGD at 10 ms and 400 MiB first and at 12 ms last, filters at 22 ms and 600 MiB, NUC without a graph."""
    graph, plain = "cuda:0, bfloat16, cuda_graph", "cuda:0, bfloat16"
    answers = iter(
        [
            Measured([0.010, 0.009, 0.010], 400 << 20, graph),
            Measured([0.022, 0.020, 0.033], 600 << 20, graph),
            Measured([0.220, 0.220, 0.220], 800 << 20, plain),
            Measured([0.012, 0.012, 0.012], 400 << 20, graph),
        ]
    )
    monkeypatch.setattr(bench, "_measured", lambda *_: next(answers))
    found = rates("digits-resnet", None, 1.0, (), ["sgd", "filters", "nuc-svd"])
    sgd, filters, nuc = found.record["rows"].values()
    assert sgd["milliseconds"] == pytest.approx(11)
    assert sgd["spread"] == pytest.approx([9 / 11, 12 / 11])
    assert found.record["drift"] == pytest.approx(0.2)
    assert (filters["share"], nuc["share"]) == pytest.approx((0.5, 0.05))
    assert (filters["memory_share"], nuc["memory_share"]) == (1.5, 2.0)
    assert filters["spread"] == pytest.approx([20 / 22, 1.5])
    lines = found.text.splitlines()
    assert any("+20.0%; this machine was busy" in line for line in lines)
    assert "busy" not in bench.costs_text({**found.record, "drift": -0.02})
    assert lines[0] == f"digits-resnet on {graph}"
    assert lines[4].split() == [
        "SparseFW",
        "filters",
        "k=0.2",
        "2,909",
        "0.500",
        "22.00",
        "0.909..1.500",
        "600",
        "1.50",
    ]
    assert "+20.0%" in found.text
    assert lines[-1] == f"NUC (full SVD) ran on {plain}"
