"""Every recipe that is shipped: complete, the paper's where it says so, buildable at full size, and able to train."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from data.dataset_writers import FORMATS, write
from sparsefw import constrain
from sparsefw.data import DATASETS
from sparsefw.methods import SparseFW
from sparsefw.models import MODELS
from sparsefw.train import RunFolder, fit, load_recipe, recipe_descriptions
from sparsefw.train.display import Display
from sparsefw.train.recipes import SHIPPED
from sparsefw.train.run import build_model

RECIPES = sorted(recipe_descriptions())
KINDS = ("sgd", "filters", "rank", "weights")
# The paper's Section 4 and appendix: network's weights in millions, epochs, batch, weight decay; all with lr 0.1, momentum 0.9.
PAPER = {
    "cifar10-resnet18": (11, 100, 128, 5e-4),
    "cifar100-wide-resnet": (37, 100, 128, 5e-4),
    "tinyimagenet-resnet50": (24, 100, 128, 5e-4),  # 26 with the classifier of 1,000 classes
    "imagenet-resnet50": (26, 90, 1024, 1e-4),
    "cityscapes-pspnet": (68, 200, 12, 1e-4),
}
HEAVY = ("pspnet", "resnet50", "wide-resnet")
# Two steps must not take minutes on a CPU: large inputs are made small; networks keep their size.
SMALLER = {"cityscapes": "data.size=[65,65]", "camvid": "data.size=[33,41]", "imagenet": "data.size=[64,64]"}


@pytest.mark.parametrize("stem", PAPER)
def test_the_papers_set_ups(stem):
    millions, epochs, batch, decay = PAPER[stem]
    for kind in KINDS:
        config = load_recipe(f"{stem}-{kind}")
        assert (config.train.epochs, config.data.batch_size, config.train.weight_decay) == (epochs, batch, decay)
        assert (config.train.lr, config.train.momentum, config.train.schedule.kind) == (0.1, 0.9, "linear")
        assert config.train.schedule.warmup == config.train.label_smoothing == config.train.mixup == 0
        assert config.data.validation == 0.1
        assert config.method.name == ("sgd" if kind == "sgd" else "sparsefw")
        assert kind == "sgd" or config.method.kind == config.curve.kind == kind
        if kind != "sgd":
            paper = load_recipe(f"{stem}-{kind}-paper")
            assert (paper.method.rescale, paper.method.kind, paper.train) == ("gradient", kind, config.train)
            assert paper.method.k is not None
            assert paper.method.w is not None
            assert (config.method.rescale, config.method.k, config.method.w) == ("horizon", None, None)
    assert round(sum(p.numel() for p in on_meta(f"{stem}-sgd").parameters()) / 1e6) == millions


def test_the_papers_augmentations():
    cifar10, cifar100, tiny, imagenet = (
        load_recipe(f"{stem}-sgd").data.augment
        for stem in ("cifar10-resnet18", "cifar100-wide-resnet", "tinyimagenet-resnet50", "imagenet-resnet50")
    )
    assert (cifar10.crop, cifar10.flip, cifar10.rotation) == (4, True, 0)
    assert (cifar100.crop, cifar100.flip, cifar100.rotation) == (4, True, 15)
    assert tiny == imagenet
    assert (tiny.resized_crop, tiny.flip, tiny.crop) == (True, True, 0)


def on_meta(name: str) -> torch.nn.Module:
    """The recipe's network at full size, without memory."""
    config = load_recipe(name)
    info = DATASETS[config.data.name]
    with torch.device("meta"):
        data = SimpleNamespace(classes=info.classes, shape=info.shape)
        return build_model(config, data, Display("", quiet=True), trust=False)


@pytest.mark.parametrize("name", RECIPES)
def test_builds_at_full_size(name):
    config, model = load_recipe(name), on_meta(name)
    info = DATASETS[config.data.name]
    height, width = config.data.size or info.shape[1:]
    model.eval()
    output = model(torch.empty(2, info.shape[0], height, width, device="meta"))
    assert output.shape == ((2, info.classes) if info.task == "classification" else (2, info.classes, height, width))
    if isinstance(config.method, SparseFW):
        m = config.method
        size = dict(w=m.w or 1.0) if m.rescale == "gradient" else dict(steps=1000, renewals=m.renewals)
        for p in model.to_empty(device="cpu").parameters():
            p.data.zero_()
        groups = constrain(model, m.kind, k=m.k, report=None, **size)
        assert any(group["region"] is not None for group in groups)


def test_every_file_of_recipes_is_loaded_by_these_tests():
    for file in SHIPPED.iterdir():
        stem = file.name.removesuffix(".yaml")
        is_loaded = any(name == stem or name.startswith(f"{stem}-") for name in RECIPES)
        assert is_loaded, f"no test loads recipes/{file.name}; a recipe is a file NAME.yaml, without folders"


def test_every_recipe_says_what_it_is_about():
    assert all(recipe_descriptions().values())
    assert {config.model.name for config in map(load_recipe, RECIPES)} <= set(MODELS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow if any(h in n for h in HEAVY) else ()) for n in RECIPES],
)
def test_trains_for_two_steps_on_files_in_the_real_format(name, tmp_path):
    config = load_recipe(name)
    batch = 8 if config.sizes is not None else 4  # four sizes need two images each
    changes = ["train.epochs=1", f"data.batch_size={batch}", "data.validation=0", "engine.workers=0"]
    changes += [change for data, change in SMALLER.items() if data == config.data.name]
    write(config.data.name, tmp_path / "data", images=2 * batch)
    if not FORMATS[config.data.name]:
        changes.remove(f"data.batch_size={batch}")  # digits are what they are
        changes.append("data.batch_size=700")
    result = fit(load_recipe(name, changes), tmp_path / "run", tmp_path / "data", quiet=True)
    assert result["steps"] == 2
    assert 0 <= result["test"][result["metric"]] <= 100
    model, _ = RunFolder(tmp_path / "run").load_model()
    assert all(bool(t.isfinite().all()) for t in model.state_dict().values())
