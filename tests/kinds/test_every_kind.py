"""Every kind that is registered goes through the whole product: a new one is tested by being registered."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from sparsefw import SFW, compress, constrain, curve, load, save, save_elastic
from sparsefw.cli.main import app
from sparsefw.cli.verbs.compress import compress as compress_command
from sparsefw.compression.allocate import ALLOCATIONS
from sparsefw.compression.amounts import KindAmounts
from sparsefw.compression.artifact.files import ArtifactError
from sparsefw.compression.kinds import STAGES
from sparsefw.compression.score import SCORES
from sparsefw.kind_words import KIND_WORDS
from sparsefw.kinds import FILTERS, GAUGES, HEADS, KINDS, WEIGHTS, Pattern, in_order, kind_of
from sparsefw.methods.weight_stacks import weight_stacks
from sparsefw.models import build
from sparsefw.train import load_recipe

EVERY = [*KINDS, "2:4"]
UNKNOWN = r"unknown kind 'filtres'; did you mean 'filters'\?; there are filters, neurons, heads, rank, weights and N:M"


def vit() -> nn.Module:
    torch.manual_seed(0)
    return build("vit_tiny", classes=10, in_channels=1, image=8, patch=2, width=16, depth=2, heads=4)


def images(count: int) -> Tensor:
    return torch.randn(count, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def size_of(model: nn.Module) -> int:
    """How many weights are not 0; biases may become so when what is left is fitted."""
    return sum(int(p.count_nonzero()) for p in model.parameters() if p.ndim > 1)


def sparsefw(*words: str | Path) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_words_records_and_cuts_are_the_same_list():
    assert list(KIND_WORDS) == list(KINDS) == [kind.name for kind in KINDS.values()]
    assert list(KindAmounts.__annotations__) == list(KINDS)
    assert set(STAGES) == {kind.family for kind in (*KINDS.values(), kind_of("2:4"))}


@pytest.mark.parametrize("name", EVERY)
def test_defaults_of_a_kind_exist(name):
    kind = kind_of(name)
    assert kind.gauge in GAUGES
    assert kind.allocation in ALLOCATIONS
    assert (kind.score in SCORES) == kind.of_channels


def test_the_default_score_of_the_command_line_is_that_of_the_kinds():
    """--help must not wait for the records."""
    default = inspect.signature(compress_command).parameters["score"].default
    assert {default or FILTERS.score} == {kind.score for kind in KINDS.values() if kind.of_channels}


@pytest.mark.parametrize("word", EVERY)
def test_from_constraint_to_file(word, tmp_path):
    """constrain -> train -> curve -> compress -> save -> load, by the library."""
    kind, model, batches = kind_of(word), vit(), [images(64)]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = SFW(constrain(model, word, steps=4, report=None), rest="adamw", rest_lr=1e-3)
    constrained = {name for group in optimizer.param_groups if group["region"] for name in group["param_names"]}
    layers = {name: model.get_submodule(name.removesuffix(".weight")) for name in kind.views(model)}
    fit = {name for name, layer in layers.items() if not kind.unfit_reason(layer, layer.weight)}
    assert constrained == fit - {"head.weight"} != set()
    for _ in range(4):
        optimizer.zero_grad()
        model(images(32)).square().mean().backward()
        optimizer.step()
    assert all(not torch.equal(before[name], p) for name, p in model.named_parameters() if name in constrained)

    ratio = kind.only_ratio or 0.5
    line = curve(model, word, [ratio], calibration=batches, evaluate=lambda net: float(size_of(net)), form="removed")
    assert (line.kind, line.points[0].ratio) == (word, ratio)
    assert line.points[0].plain < line.dense

    small = compress(model, calibration=batches, refit=False, **kind.compress_arguments(ratio))
    assert size_of(small.model) == line.points[0].plain
    assert (small.costs.parameters < small.dense.parameters) == kind.shrinks
    save(small, tmp_path / "small")
    again = load(tmp_path / "small").model
    assert torch.equal(again(images(3)), small.model(images(3)))


@pytest.mark.parametrize("word", EVERY)
def test_masked_curves(word):
    kind = kind_of(word)
    how = dict(calibration=[images(64)], evaluate=lambda net: float(size_of(net)), form="masked")
    line = curve(vit(), word, [kind.only_ratio or 0.5], **how)
    assert line.points[0].plain < line.dense
    assert line.points[0].costs is None


@pytest.mark.parametrize("word", EVERY)
def test_elastic_folders(word, tmp_path):
    kind, model = kind_of(word), vit()
    ratio = kind.only_ratio or 0.5
    save_elastic(model, tmp_path / "any", word, [ratio], calibration=[images(64)])
    small = load(tmp_path / "any", refit=False, **{word: ratio}).model
    assert size_of(small) < size_of(model)


@pytest.mark.slow
@pytest.mark.parametrize("word", EVERY)
def test_from_recipe_to_page(word, tmp_path):
    """train -> curve -> compress -> report, by the command line."""
    changes = ["train.epochs=1", "train.schedule.warmup=0", "model.arguments.width=24", "model.arguments.depth=1"]
    sets = [part for change in (f"method.kind={word}", *changes) for part in ("--set", change)]
    run, page = tmp_path / "run", tmp_path / "page.html"
    sparsefw("train", "digits-vit-neurons", "-o", run, "--quiet", *sets)
    line = json.loads(sparsefw("curve", run, "--json", "--quiet"))
    assert line["kind"] == word
    ((option, amount),) = kind_of(word).compress_arguments(0.5).items()
    sparsefw("compress", run, f"--{option}", amount, "-o", tmp_path / "small", "--quiet")
    sparsefw("report", run, "-o", page)
    assert f"{kind_of(word).units} removed" in page.read_text().lower()
    command = f"sparsefw compress {run} --{option}"
    assert command in page.read_text()


def test_an_unknown_kind_is_refused_everywhere_in_the_same_words(tmp_path):
    model, how = vit(), dict(calibration=[images(64)], evaluate=lambda net: 0.0)
    for refused in (
        lambda: constrain(model, "filtres", steps=4),
        lambda: compress(model, example=images(2), filtres=0.5),
        lambda: compress(model, example=images(2), target="params=0.5", by="filtres"),
        lambda: curve(model, "filtres", [0.5], **how),
        lambda: save_elastic(model, tmp_path / "any", "filtres", calibration=[images(4)]),
        lambda: load(tmp_path, filtres=0.5),
        lambda: weight_stacks(model, "filtres"),
        lambda: load_recipe("digits-resnet-sgd", ["curve.kind=filtres"]),
        lambda: load_recipe("digits-resnet-filters", ["method.kind=filtres"]),
    ):
        with pytest.raises((ValueError, ArtifactError), match=UNKNOWN):
            refused()


def test_a_misspelt_option_is_no_kind():
    with pytest.raises(TypeError, match="unknown argument 'calibraton'; did you mean 'calibration'"):
        compress(vit(), example=images(2), filters=0.5, calibraton=[])


def test_patterns():
    assert kind_of("2:4") == kind_of("2:4") != kind_of("1:4")
    assert isinstance(kind_of("2:4"), Pattern)
    assert kind_of("1:4").only_ratio == 0.75
    with pytest.raises(ValueError, match=r"2:4 removes 0\.5 of the weights, no other share"):
        curve(vit(), "2:4", [0.7], calibration=[images(4)], evaluate=lambda net: 0.0)
    with pytest.raises(ValueError, match="by='2:4': it removes a fixed share"):
        compress(vit(), target="bytes=0.5", by="2:4", example=images(2))


def test_the_order_in_which_kinds_are_applied():
    assert in_order([kind_of("2:4"), WEIGHTS, HEADS, FILTERS]) == [FILTERS, HEADS, WEIGHTS, kind_of("2:4")]


def test_filters_leave_to_other_kinds_what_these_are_asked_for():
    """filters= alone removes heads and neurons, too; heads= and neurons= beside it take them over."""

    def kept(**removed: float) -> list[int]:
        net = compress(vit(), example=images(2), refit=False, **removed).model
        return [net.blocks[0].attention.num_heads, net.blocks[0].mlp[0].out_features]

    assert kept(filters=0.5) == [2, 32]
    assert kept(heads=0.5) == [2, 64]
    assert kept(neurons=0.25) == [4, 48]
    assert kept(filters=0.5, heads=0.25) == [3, 32]
    assert kept(heads=0.25, neurons=0.75) == [3, 16]
    net = compress(vit(), example=images(2), refit=False, filters=0.5, heads=0.25, neurons=0.75).model
    assert kept(filters=0.5, heads=0.25, neurons=0.75) == [3, 16]
    assert net.head.in_features == vit().head.in_features // 2  # what is left to filters is the width of the stream
