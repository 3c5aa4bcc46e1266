"""Reproductions: all are built and checked up to training, two run to the end; the paper is quoted rightly."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sparsefw.cli import app
from sparsefw.config_base import ConfigError
from sparsefw.reproduce import EXPERIMENTS, find_experiment, speed
from sparsefw.reproduce.experiment import Command, Process, Setting, run_commands
from sparsefw.reproduce.paper import deviations, paper
from sparsefw.reproduce.paper_tables import TableExperiment, beside, comparison_chart
from sparsefw.reproduce.training_figures import Observed, Retraining
from sparsefw.reproduce.weight_figures import best_at_every_ratio, heat_maps
from sparsefw.sweep.grids import load_grid
from sparsefw.train import load_recipe
from sweep.sweeps import swept


def setting(folder: Path, quick: bool = True, **how) -> Setting:
    usual = dict(seeds=None, data=None, workers=2, changes=(), storage=None, say=lambda text: None)
    return Setting(folder=folder, quick=quick, **{**usual, **how})


def test_every_table_and_figure_of_the_paper_is_there():
    tables = {name for name, one in EXPERIMENTS.items() if isinstance(one, TableExperiment)}
    assert tables == set(paper().tables)
    assert len([name for name in tables if name.startswith("filters")]) == 4
    assert len([name for name in tables if name.startswith("rank")]) == 5
    others = {"throughput", "unstructured", "contour", "retraining", "distance", "gradients", "rescaling"}
    assert set(EXPERIMENTS) - tables == others


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_built_and_checked_up_to_training(tmp_path, name, quick):
    lines = find_experiment(name).planned(setting(tmp_path, quick))
    assert len(lines) > 1 or name == "throughput"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [name for name, one in EXPERIMENTS.items() if isinstance(one, TableExperiment)])
def test_grids_have_the_rows_and_ratios_of_the_papers_tables(name):
    table, whole = paper().tables[name], load_grid(find_experiment(name).grid)
    assert set(whole.methods) == set(table.rows)
    assert set(load_grid(find_experiment(name).quick).methods) == set(table.rows)
    assert whole.at == table.at
    assert all(len(cells) == len(table.at) for cells in table.rows.values())
    assert set(table.rates) in (set(), set(table.rows))


def test_some_figures_of_the_paper_by_hand():
    """Read off its appendix."""
    tables = paper().tables
    assert tables["filters-cifar10"].rows["SparseFW"] == ((90.72, 0.09), (90.39, 0.16), (87.51, 0.44), (35.15, 1.30))
    assert tables["rank-cityscapes"].rows["TRP"][-1] == (37.54, 0.43)
    assert tables["rank-imagenet"].rates["FR"] == 1418
    assert paper().throughput["SparseFW"]["cifar10"] == 1156
    assert paper().setups["imagenet"].batch_size == 1024


def found(**plain) -> dict:
    """Results of a sweep with two ratios and one seed."""
    rows = {}
    for name, values in plain.items():
        cells = [{"mean": value, "std": 0.5} for value in values]
        test = {"metric": "accuracy", "dense": {"mean": 95.0, "std": 0.25}, "plain": cells, "runs": [{"plain": values}]}
        rows[name] = {"test": test}
    return {"rows": rows, "at": [0.6, 0.7, 0.8, 0.9], "kind": "filters"}


def test_ours_the_papers_and_the_difference():
    table = beside(found(SSL=[92.0, 87.0, 63.66, float("nan")]), paper().tables["filters-cifar10"])
    rows = {(row[0], row[1]): row[2:] for row in table.rows[6:9]}
    assert rows == {
        ("SSL", "ours"): ("95.00 ±0.25", "92.00 ±0.50", "87.00 ±0.50", "63.66 ±0.50", "nan"),
        ("", "paper"): ("-", "91.26 ±0.13", "87.13 ±1.72", "63.66 ±0.36", "16.25 ±1.24"),
        ("", "difference"): ("", "+0.74", "-0.13", "+0.00", "-"),
    }
    assert table.rows[0] == ("SGD", "ours", "-", "-", "-", "-", "-")  # nothing was found for it
    assert (6, 3) in table.strong
    assert (6, 4) not in table.strong


def test_a_column_of_rates():
    table = beside(found(), paper().tables["rank-cifar10"], {"SGD": 50_000.0, "NUC": 123.4})
    assert table.header[:4] == ("", "", "images/s", "dense")
    assert [row[2] for row in table.rows[:3]] == ["50,000", "5,664", ""]
    assert [row[2] for row in table.rows[3:6]] == ["-", "1,156", ""]


def test_the_chart_has_both():
    chart = comparison_chart(found(SSL=[92.0, 87.0, 63.66, 10.0]), paper().tables["filters-cifar10"], "t")
    lines = {line.label: [y.mean for y in line.y] for line in chart.lines}
    assert lines["SSL"] == [92.0, 87.0, 63.66, 10.0]
    assert lines["SSL, paper"] == [91.26, 87.13, 63.66, 16.25]


def test_what_deviates_is_said():
    setup = paper().setups["cifar10"]
    config = load_recipe("cifar10-resnet18-sgd")
    assert deviations(config, setup, 2) == []
    other = load_recipe("digits-resnet-sgd", ["train.epochs=5", "data.validation=0", "train.lr=0.2"])
    assert deviations(other, setup, 1, ["train.lr=0.2"]) == [
        "data: digits, the paper CIFAR-10",
        "network: resnet_digits, the paper ResNet-18",
        "epochs: 5, the paper 100",
        "batch size: 64, the paper 128",
        "learning rate: 0.2, the paper 0.1",
        "held out for validation: 0% of the training images, the paper 10%",
        "1 seed, the paper 2",
        "--set train.lr=0.2",
    ]


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "tinyimagenet", "imagenet", "cityscapes"])
def test_recipes_are_the_papers_set_ups(data):
    """Nothing deviates but what must."""
    stem = load_grid(f"rank-{data}").recipe
    assert deviations(load_recipe(f"{stem}-sgd"), paper().setups[data], 2) == []


TRIED = {
    "0": {"settings": {"method.k": 0.1, "method.w": 10}, "dense": 90.0, "plain": [80.0, 20.0]},
    "1": {"settings": {"method.k": 0.1, "method.w": 20}, "dense": 91.0, "plain": [70.0, 40.0]},
    "2": {"settings": {"method.k": 0.3, "method.w": 10}, "dense": 92.0, "plain": [60.0, None]},
}


def test_heat_maps_by_hand():
    dense, pruned = heat_maps("k-support", TRIED, "accuracy")
    assert (dense.x, dense.y) == (("10", "20"), ("0.1", "0.3"))
    assert dense.values[0] == (90.0, 91.0)
    assert dense.values[1][0] == 92.0
    assert dense.values[1][1] != dense.values[1][1]  # nan: no such configuration
    assert pruned.values[0] == (50.0, 55.0)
    assert pruned.values[1][0] == 30.0  # where nothing can be computed, nothing is right


def test_the_best_configuration_at_every_ratio():
    assert best_at_every_ratio(TRIED, [0.5, 0.9]) == ([80.0, 40.0], [90.0, 91.0])


def test_commands_are_run_once_and_failures_do_not_stop_the_rest(tmp_path):
    said = []
    words = ("list", "recipes")
    commands = [
        Command(("list", "nonsense"), tmp_path / "never"),
        Command(words, tmp_path / "never"),
        Command(words, tmp_path),  # is there already
    ]
    failed = run_commands(commands, setting(tmp_path, workers=1, say=said.append))
    assert len(failed) == 1
    assert "nonsense" in failed[0]
    assert said == [
        "begun: sparsefw list nonsense",
        "[1/2] failed: sparsefw list nonsense",
        "begun: sparsefw list recipes",
        "[2/2] done: sparsefw list recipes",
    ]


def test_a_command_may_say_a_lot(tmp_path):
    """More than fits into a pipe that nobody reads."""
    words = [sys.executable, "-c", "import sys; sys.stderr.write('line\\n' * 100_000 + 'the end'); sys.exit(1)"]
    process = Process(words, dict(os.environ))
    assert process.wait(timeout=60) == 1
    assert process.last_line() == "the end"


def written(folder: Path, name: str, dense: float, pruned: float, again: dict[str, float]) -> None:
    """What the commands of the retraining experiment leave."""

    def result(place: Path, value: float) -> None:
        place.mkdir(parents=True)
        (place / "result.json").write_text(json.dumps({"metric": "accuracy", "test": {"accuracy": value}}))

    result(folder / f"{name}-seed0", dense)
    (folder / f"{name}-seed0" / "curves").mkdir()
    points = [{"ratio": 0.95, "plain": pruned}]
    (folder / f"{name}-seed0" / "curves" / "weights-masked.json").write_text(json.dumps({"points": points}))
    for decay, value in again.items():
        result(folder / f"{name}-seed0-retrained-{decay}" / "phase-1", value)


def test_retraining_by_hand(tmp_path, monkeypatch):
    """Columns are weight decays in training, rows those in retraining; one retraining has failed."""
    place = tmp_path / "quick-retraining"
    written(place, "sgd-0.0001", 95.0, 20.0, {"0": 91.0, "0.0005": 92.0, "0.005": 93.0})
    written(place, "sgd-0.002", 96.0, 40.0, {"0": 81.0, "0.0005": 82.0, "0.005": 83.0})
    written(place, "sgd-0.01", 90.0, 60.0, {"0.0005": 72.0, "0.005": 73.0})
    written(place, "sparsefw", 94.0, 93.0, {"0": 94.5})
    experiment = Retraining("retraining", "x")
    monkeypatch.setattr(Retraining, "stages", lambda self, setting: [])
    found = experiment.run(setting(tmp_path))
    dense, pruned, again = found.charts["heat"]
    assert (dense.x, dense.y) == (("0.0001", "0.002", "0.01"), ("0", "0.0005", "0.005"))
    assert set(dense.values) == {(95.0, 96.0, 90.0)}
    assert set(pruned.values) == {(20.0, 40.0, 60.0)}
    assert again.values[1] == (92.0, 82.0, 72.0)
    assert again.values[0][:2] == (91.0, 81.0)
    table = next(iter(found.tables.values()))
    assert table.rows == (
        ("SparseFW", "94.00", "93.00", "94.50", "0"),
        ("SGD, weight decay 0.0001", "95.00", "20.00", "93.00", "0.005"),
        ("SGD, weight decay 0.002", "96.00", "40.00", "83.00", "0.005"),
        ("SGD, weight decay 0.01", "90.00", "60.00", "73.00", "0.005"),
    )


def test_throughput_by_hand(tmp_path, monkeypatch):
    """The paper's shares are rates over the baseline's: 1156 / 5664 of SGD's for SparseFW."""
    rows = {"sgd": {"label": "SGD", "images_per_second": 1000.0, "share": 1.0}}
    rows["rank-0.1"] = {"label": "SparseFW rank k=0.1", "images_per_second": 900.0, "share": 0.9}
    measured = {"rows": rows, "drift": 0.5}
    monkeypatch.setattr(speed, "measure_training_speed", lambda *_: measured)
    found = find_experiment("throughput").run(setting(tmp_path))
    (table,) = found.tables.values()
    assert table.rows[1] == ("SparseFW rank k=0.1", "900", "0.900", "1,156", "0.204", "+0.696")
    assert "images/s are worth little: SGD's changed by +50% meanwhile, the machine was busy" in found.deviations
    with pytest.raises(ConfigError, match="does not depend on the seed"):
        find_experiment("throughput").planned(setting(tmp_path, seeds=3))


def test_the_papers_figures_were_not_changed_by_accident():
    """All of them were compared with the paper when this sum was written down."""
    digest = hashlib.sha256(paper().model_dump_json().encode()).hexdigest()
    assert digest == "7e29679906eb642ecb035387fd1e646be886487ca64ab975158050419ab21866"


def test_retraining_has_a_command_per_cell(tmp_path):
    experiment = Retraining("retraining", "x")
    trained, pruned, again = experiment.stages(setting(tmp_path, quick=False))
    assert (len(trained), len(pruned), len(again)) == (6, 6, 30)  # five weight decays of SGD, and SparseFW
    assert "--weights 0.95 --epochs 10" in str(again[0])


def test_observations_have_a_seed_per_training(tmp_path):
    assert len(Observed("gradients", "x", "gradient_norm").commands(setting(tmp_path, quick=False))) == 5 * 2
    assert len(Observed("gradients", "x", "gradient_norm").commands(setting(tmp_path, quick=False, seeds=1))) == 5


def test_what_is_not_there():
    with pytest.raises(ConfigError, match="did you mean 'filters-cifar10'"):
        find_experiment("filter-cifar10")
    done = CliRunner().invoke(app, ["reproduce", "nothing"])
    assert done.exit_code == 2


def test_they_are_listed():
    done = CliRunner().invoke(app, ["list", "experiments", "--json"])
    assert set(json.loads(done.stdout)) == set(EXPERIMENTS)


@pytest.mark.slow
def test_a_figure_end_to_end(tmp_path):
    """With few filters allowed to grow, the network comes close to its pruned version; with SGD it never does."""
    words = ["-m", "sparsefw", "reproduce", "distance", "--quick", "--out", str(tmp_path), "--json"]
    words += ["--set", "model.arguments.width=8", "--set", "train.epochs=4"]
    record, said = swept(words)
    assert record["SparseFW k=0.1"][-1] < 0.2 < record["SGD"][-1]
    assert "[4/4]" in said
    folder = tmp_path / "quick-distance"
    for name in (
        "README.md",
        "result.json",
        "distance.csv",
        "distance.tex",
        "distance-epochs.png",
        "distance-epochs.svg",
    ):
        assert (folder / name).stat().st_size > 0
    again, said = swept(words)
    assert again["SparseFW k=0.1"] == record["SparseFW k=0.1"]
    assert "begun" not in said  # nothing was done again
    _, said = swept([*words, "--set", "train.epochs=5"], code=2)
    assert "holds a run with train.epochs=4, this one has 5" in said


@pytest.mark.slow
def test_a_table_end_to_end(tmp_path):
    words = [
        "-m",
        "sparsefw",
        "reproduce",
        "filters-cifar10",
        "--quick",
        "--seeds",
        "1",
        "--out",
        str(tmp_path),
        "--json",
    ]
    record, _ = swept([*words, "--set", "model.arguments.width=4", "--set", "train.epochs=3"])
    rows = record["sweep"]["rows"]
    assert set(rows) == {"SGD", "SparseFW", "SSL", "GLT", "ABFP", "SFP"}
    assert all(len(row["test"]["plain"]) == 4 for row in rows.values())
    text = (tmp_path / "quick-filters-cifar10" / "filters-cifar10.csv").read_text().splitlines()
    assert len(text) == 1 + 3 * 6
    assert "data: digits, the paper CIFAR-10" in record["deviations"]
