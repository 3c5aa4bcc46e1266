"""The rows of the speed table: which are chosen, and on which images each is measured."""

from __future__ import annotations

import math

import pytest

from sparsefw.bench import ROWS, choose_rows, row_config
from sparsefw.data import DATASETS
from sparsefw.train import load_recipe
from sparsefw.train.config import SizesConfig


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    monkeypatch.delenv("SPARSEFW_DATA", raising=False)


def test_chosen_rows_always_include_sgd():
    assert set(choose_rows(None)) == {"sgd", "filters", "weights", "rank-0.1", "rank-0.3", "nuc-svd"}
    assert choose_rows("all") == list(ROWS)
    assert choose_rows("nuc, filters") == ["sgd", "nuc", "filters"]


@pytest.mark.parametrize(
    "stem", ["cifar10-resnet18", "cifar100-wide-resnet", "tinyimagenet-resnet50", "imagenet-resnet50", "fashion-resnet"]
)
@pytest.mark.parametrize("key", ROWS)
def test_without_data_random_images_like_those_of_the_recipe_are_used(stem, key):
    config = row_config(stem, ROWS[key], None, ())
    recipe = load_recipe(f"{stem}-sgd")
    info = DATASETS[recipe.data.name]
    like = config.data.noise
    assert (like.shape, like.classes) == (info.shape, info.classes)
    assert (config.data.batch_size, config.data.augment) == (recipe.data.batch_size, recipe.data.augment)
    assert like.images % config.data.batch_size == 0
    assert like.images >= 4 * config.data.batch_size
    assert like.images * math.prod(like.shape) <= 1e9  # bytes
    assert config.model == recipe.model
    assert config.train.epochs * like.images / config.data.batch_size >= 3000  # compiled, as the whole set would be
    assert type(config.method) is ROWS[key].method
    assert config.method.model_dump().items() >= ROWS[key].settings.items()


@pytest.mark.parametrize(("key", "variant"), [("sgd-taught", "sgd-sizes"), ("filters-taught", "sizes")])
def test_taught_rows_are_trained_as_in_the_recipes(key, variant):
    assert row_config("cifar10-resnet18", ROWS[key], None, ()).sizes == load_recipe(f"cifar10-resnet18-{variant}").sizes


def test_plain_rows_over_sizes_have_the_default_settings():
    assert row_config("cifar10-resnet18", ROWS["sgd-sizes"], None, ()).sizes == SizesConfig()
