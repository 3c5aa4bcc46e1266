"""What a training tells of itself: how far its constraint has come, and what goes wrong. Real runs on digits."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from torch import nn

from sparsefw import constrain
from sparsefw.optim import SFW, SFWWarning
from sparsefw.runfolder.read import read_epochs
from sparsefw.runfolder.schema import ConstraintFigures
from sparsefw.train import fit, load_recipe
from sparsefw.train.constraint_progress import constraint_figures, planned_renewals, progress_text
from sparsefw.train.diagnosis import Trouble
from sparsefw.train.display import Display
from sparsefw.train.recorder import aim_of
from sparsefw.train.run import prepare
from sparsefw.train.trackers import flat_metrics

FIGURES = {"renewed", "decayed", "compressible", "clamped"}
PAPER = ("method.renewals=null", "method.rescale=gradient", "method.k=0.1")
BAD = (*PAPER, "method.w=0.001", "train.lr=30", "train.epochs=3")


def config(variant: str, *changes: str):
    small = ["model.arguments.width=8", "train.epochs=5", "engine.device=cpu"]
    return load_recipe(f"digits-resnet-{variant}", [*small, *changes])


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The folder and the result of a run in which every other epoch is looked at."""
    folder = tmp_path_factory.mktemp("healthy")
    found = fit(config("filters", "train.evaluate_every=2"), folder, quiet=True)
    return folder, found


def test_where_validation_is_due_the_row_tells_of_the_constraint(healthy):
    epochs = read_epochs(healthy[0])
    rows = [epoch.to_json() for epoch in epochs]
    assert [row["epoch"] for row in rows if "constraint" in row] == [2, 4, 5]
    figures = [row["constraint"] for row in rows if "constraint" in row]
    assert all(set(one) == FIGURES and all(isinstance(v, float) for v in one.values()) for one in figures)
    renewed = [one["renewed"] for one in figures]
    assert renewed == sorted(renewed)
    planned = planned_renewals(prepare(config("filters"), None, Display("", quiet=True)).optimizer)
    assert renewed[-1] == pytest.approx(planned, rel=0.02)  # the last of 95 shares is not quite zero
    assert flat_metrics(epochs[-1])["constraint/compressible"] == figures[-1]["compressible"]


def test_where_validation_is_due_the_row_tells_of_every_constrained_layer(healthy):
    training = prepare(config("filters"), None, Display("", quiet=True))
    sizes = {name: p.numel() for name, p in training.model.named_parameters()}
    groups = [group for group in training.optimizer.param_groups if group["region"]]
    constrained = [name for group in groups for name in group["param_names"]]
    for epoch in read_epochs(healthy[0]):
        layers = epoch.figures.layers
        if epoch.figures.constraint is None:
            assert layers == {}
            continue
        blocks = {name: name.split(" + ") for name in layers}  # coupled weights are one block
        assert sorted(name for block in blocks.values() for name in block) == sorted(constrained)
        weights = {name: sum(sizes[part] for part in block) for name, block in blocks.items()}
        whole = sum(weights[name] * layer.decayed for name, layer in layers.items()) / sum(weights.values())
        assert epoch.figures.constraint.decayed == pytest.approx(whole)


def test_a_healthy_run_has_no_warnings(healthy):
    folder, found = healthy
    assert found["warnings"] == json.loads((folder / "result.json").read_text())["warnings"] == []


def test_without_a_constraint_there_is_nothing_to_tell(tmp_path, capsys):
    fit(config("sgd", "train.epochs=2"), tmp_path)
    assert all(epoch.figures.constraint is None for epoch in read_epochs(tmp_path))
    said = capsys.readouterr().err
    assert "epoch   2/2" in said
    assert "renewed" not in said


def test_parameters_that_the_output_does_not_depend_on_are_named_once_though_quiet(tmp_path, capsys):
    changes = ("model.name=train.networks:unfinished", "train.epochs=2")
    fit(config("sgd", *changes), tmp_path, trust=True, quiet=True)
    assert capsys.readouterr().err.splitlines() == [
        "digits-resnet-sgd: warning: forgotten.weight, forgotten.bias got no gradient and did not move: the output of the "
        "network does not depend on them; leave them out of the network, or freeze them by requires_grad_(False)"
    ]


def test_the_line_of_an_epoch_ends_with_it(tmp_path, capsys):
    fit(config("filters", "train.epochs=2", "method.renewals=0.4"), tmp_path)
    line, after = capsys.readouterr().err.splitlines()[-2:]
    figures = read_epochs(tmp_path)[-1].figures.constraint
    assert "0 % of what can be removed has decayed: compressed, the network depends on refit" in after
    assert line.endswith(f"  renewed {figures.renewed:.1f} of 0.4  decayed {100 * figures.decayed:.0f} %")


def test_progress_in_words():
    assert progress_text(ConstraintFigures(1.24, 0.43), 3.0) == "renewed 1.2 of 3.0  decayed 43 %"
    assert progress_text(ConstraintFigures(12.0, 1.0), None) == "renewed 12.0  decayed 100 %"


def test_what_is_planned_counts_groups_by_their_size():
    """300 weights that are to be renewed twice, and 100 that are to be renewed four times: 2.5 times."""
    model = nn.ModuleDict({"a": nn.Linear(30, 10, bias=False), "b": nn.Linear(10, 10, bias=False)})
    groups = [
        group
        for name, renewals in (("a", 2.0), ("b", 4.0))
        for group in constrain(model[name], "weights", steps=1000, renewals=renewals, report=None)
    ]
    assert planned_renewals(SFW(groups)) == pytest.approx(2.5)
    assert (
        planned_renewals(SFW(constrain(model, "weights", k=10, w=10.0, report=None))) is None
    )  # the paper's rule plans none
    free = SFW([{"params": list(model.parameters()), "region": None}])
    assert planned_renewals(free) is None
    assert constraint_figures(free) == (None, {})


def test_a_run_that_goes_wrong_says_so_once_though_quiet_and_in_its_result(tmp_path, capsys):
    found = fit(config("filters", *BAD), tmp_path, quiet=True)
    cut, chance = found["warnings"]
    assert cut.startswith("the step size was cut at 1 in 100 % of the steps")
    assert cut.endswith("try train.lr below 30, a larger method.w or method.rescale=horizon")
    assert chance.startswith("after 3 of 3 epochs the training accuracy is ")
    said = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[:2] for line in said] == [["digits-resnet-filters", "warning"]] * 2
    assert said[0] == f"digits-resnet-filters: warning: {cut}"
    assert json.loads((tmp_path / "result.json").read_text())["warnings"] == found["warnings"]


def test_what_a_training_is_judged_by():
    """19 batches of 64 of the 1,260 images; the most frequent digit has more than a tenth of them."""
    training = prepare(config("filters", "train.lr=0.2"), None, Display("", quiet=True))
    aim = aim_of(training)
    assert (aim.epochs, aim.images, aim.lr) == (5, 1216, 0.2)
    assert 10 < aim.chance < 11
    assert aim.renewals == planned_renewals(training.optimizer)
    assert {"k", "w", "renewals", "rescale"} <= aim.dials
    two_of_four = prepare(config("weights", "method.kind=2:4", "method.k=null"), None, Display("", quiet=True))
    assert "k" not in aim_of(two_of_four).dials
    maps = SimpleNamespace(metric="mean_iou", classes=12)
    training.task = maps
    assert aim_of(training).chance is None


@pytest.mark.filterwarnings("error")
def test_the_papers_rule_whose_first_steps_are_cut_is_in_no_trouble_while_it_learns(tmp_path, capsys):
    """114 steps: the optimizer, which looks every 100, would warn of single layers, and before that of weights that it scaled."""
    found = fit(config("rank", *PAPER, "train.epochs=6"), tmp_path, quiet=True)
    first, *_, last = read_epochs(tmp_path)
    assert first.figures.constraint.clamped > 0.5
    assert last.figures.constraint.clamped < 0.5
    assert (found["warnings"], capsys.readouterr().err) == ([], "")


@pytest.mark.filterwarnings("error")
def test_weights_of_a_file_that_are_scaled_are_told(tmp_path):
    fit(config("sgd", "train.epochs=1"), tmp_path / "first", quiet=True)
    file = f"model.weights={{file: {tmp_path / 'first' / 'model.safetensors'}}}"
    with pytest.raises(SFWWarning, match="were outside of their regions"):
        prepare(config("rank", *PAPER, file), None, Display("", quiet=True))


def test_each_trouble_is_told_once_though_quiet(capsys):
    display = Display("run", quiet=True)
    for key in ("clamped", "chance", "clamped"):
        display.warn(Trouble(key, f"it is {key}"))
    assert capsys.readouterr().err == "run: warning: it is clamped\nrun: warning: it is chance\n"


def test_of_several_processes_the_first_one_warns(capsys):
    Display("run", quiet=False, first=False).warn(Trouble("chance", "nothing was learned"))
    assert capsys.readouterr().err == ""
