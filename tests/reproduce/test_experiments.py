"""Experiments: all are built and checked up to training, two run to the end; the paper is quoted correctly."""

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
from sparsefw.reproduce import EXPERIMENTS, find_experiment, throughput
from sparsefw.reproduce.commands import Command, Process, run_commands
from sparsefw.reproduce.experiment import ExperimentOptions
from sparsefw.reproduce.paper import find_deviations, paper
from sparsefw.reproduce.paper_tables import TableExperiment, comparison_chart, comparison_table
from sparsefw.reproduce.training_figures import EpochExperiment, Quantity, RetrainingExperiment
from sparsefw.reproduce.weight_figures import best_at_every_ratio, heat_maps
from sparsefw.runfolder import RunWriter
from sparsefw.runfolder.schema import CurveRecord, CurveSettings, RecordedPoint, ResultRecord, Size
from sparsefw.sweep.grids import load_grid
from sparsefw.train import load_recipe
from sweep.sweeps import run_to_end


def options(folder: Path, quick: bool = True, **given) -> ExperimentOptions:
    defaults = dict(seeds=None, data=None, workers=None, changes=(), storage=None, trust=False, log=lambda line: None)
    return ExperimentOptions(folder=folder, quick=quick, **{**defaults, **given})


def test_every_table_and_figure_of_the_paper_has_an_experiment():
    tables = {name for name, experiment in EXPERIMENTS.items() if isinstance(experiment, TableExperiment)}
    assert tables == set(paper().tables)
    assert len([name for name in tables if name.startswith("filters")]) == 4
    assert len([name for name in tables if name.startswith("rank")]) == 5
    others = {"throughput", "unstructured", "contour", "retraining", "distance", "gradients", "rescaling"}
    assert set(EXPERIMENTS) - tables == others


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_is_checked_up_to_training(tmp_path, name, quick):
    lines = find_experiment(name).describe(options(tmp_path, quick))
    assert len(lines) > 1 or name == "throughput"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", paper().tables)
def test_grids_have_the_rows_and_ratios_of_the_papers_tables(name):
    table = paper().tables[name]
    grid = load_grid(find_experiment(name).grid)
    assert set(grid.methods) == set(table.rows)
    assert set(load_grid(find_experiment(name).quick_grid).methods) == set(table.rows)
    assert grid.at == table.at
    assert all(len(cells) == len(table.at) for cells in table.rows.values())
    assert set(table.rates) in (set(), set(table.rows))


def test_some_figures_of_the_paper():
    """Copied from its appendix."""
    tables = paper().tables
    assert tables["filters-cifar10"].rows["SparseFW"] == ((90.72, 0.09), (90.39, 0.16), (87.51, 0.44), (35.15, 1.30))
    assert tables["rank-cityscapes"].rows["TRP"][-1] == (37.54, 0.43)
    assert tables["rank-imagenet"].rates["FR"] == 1418
    assert paper().throughput["SparseFW"]["cifar10"] == 1156
    assert paper().setups["imagenet"].batch_size == 1024


def sweep_results(**plain) -> dict:
    """Return the results of a sweep with four ratios and one seed."""
    rows = {}
    for name, values in plain.items():
        cells = [{"mean": value, "std": 0.5} for value in values]
        test = {"metric": "accuracy", "dense": {"mean": 95.0, "std": 0.25}, "plain": cells, "runs": [{"plain": values}]}
        rows[name] = {"test": test}
    return {"rows": rows, "at": [0.6, 0.7, 0.8, 0.9], "kind": "filters"}


def test_a_table_has_our_figures_the_papers_and_the_difference():
    table = comparison_table(sweep_results(SSL=[92.0, 87.0, 63.66, float("nan")]), paper().tables["filters-cifar10"])
    rows = {(row[0], row[1]): row[2:] for row in table.rows[6:9]}
    assert rows == {
        ("SSL", "ours"): ("95.00 ±0.25", "92.00 ±0.50", "87.00 ±0.50", "63.66 ±0.50", "nan"),
        ("", "paper"): ("-", "91.26 ±0.13", "87.13 ±1.72", "63.66 ±0.36", "16.25 ±1.24"),
        ("", "difference"): ("", "+0.74", "-0.13", "+0.00", "-"),
    }
    assert table.rows[0] == ("SGD", "ours", "-", "-", "-", "-", "-")  # nothing was found for it
    assert (6, 3) in table.strong
    assert (6, 4) not in table.strong


def test_a_table_with_a_column_of_rates():
    table = comparison_table(sweep_results(), paper().tables["rank-cifar10"], {"SGD": 50_000.0, "NUC": 123.4})
    assert table.header[:4] == ("", "", "images/s", "dense")
    assert [row[2] for row in table.rows[:3]] == ["50,000", "5,664", ""]
    assert [row[2] for row in table.rows[3:6]] == ["-", "1,156", ""]


def test_a_chart_has_our_curves_and_the_papers():
    chart = comparison_chart(
        sweep_results(SSL=[92.0, 87.0, 63.66, 10.0]), paper().tables["filters-cifar10"], "t", {"SSL": "ssl"}
    )
    lines = {line.label: [y.mean for y in line.y] for line in chart.lines}
    assert lines["SSL"] == [92.0, 87.0, 63.66, 10.0]
    assert lines["SSL, paper"] == [91.26, 87.13, 63.66, 16.25]


def test_deviations_from_the_paper_are_listed():
    setup = paper().setups["cifar10"]
    config = load_recipe("cifar10-resnet18-sgd")
    assert find_deviations(config, setup, 2) == []
    other = load_recipe("digits-resnet-sgd", ["train.epochs=5", "data.validation=0", "train.lr=0.2"])
    assert find_deviations(other, setup, 1, ["train.lr=0.2"]) == [
        "data: digits (paper: CIFAR-10)",
        "network: resnet_digits (paper: ResNet-18)",
        "epochs: 5 (paper: 100)",
        "batch size: 64 (paper: 128)",
        "learning rate: 0.2 (paper: 0.1)",
        "seeds: 1 (paper: 2)",
        "held out for validation: 0% of the training images (paper: 10%)",
        "--set train.lr=0.2",
    ]


@pytest.mark.parametrize("data", ["cifar10", "cifar100", "tinyimagenet", "imagenet", "cityscapes"])
def test_recipes_have_the_papers_set_ups(data):
    stem = load_grid(f"rank-{data}").recipe
    assert find_deviations(load_recipe(f"{stem}-sgd"), paper().setups[data], 2) == []


TRIED = {
    "0": {"settings": {"method.k": 0.1, "method.w": 10}, "dense": 90.0, "plain": [80.0, 20.0]},
    "1": {"settings": {"method.k": 0.1, "method.w": 20}, "dense": 91.0, "plain": [70.0, 40.0]},
    "2": {"settings": {"method.k": 0.3, "method.w": 10}, "dense": 92.0, "plain": [60.0, None]},
}


def test_heat_maps_over_k_and_w():
    dense, pruned = heat_maps("k-support", TRIED, "accuracy")
    assert (dense.x, dense.y) == (("10", "20"), ("0.1", "0.3"))
    assert dense.values[0] == (90.0, 91.0)
    assert dense.values[1][0] == 92.0
    assert dense.values[1][1] != dense.values[1][1]  # nan: no such configuration
    assert pruned.values[0] == (50.0, 55.0)
    assert pruned.values[1][0] == 30.0  # a ratio without finite outputs counts as 0


def test_the_best_configuration_at_every_ratio():
    assert best_at_every_ratio(TRIED, 2) == ([80.0, 40.0], [90.0, 91.0])


def test_commands_are_run_once_and_failures_do_not_stop_the_rest(tmp_path):
    lines = []
    words = ("list", "recipes")
    commands = [
        Command(("list", "nonsense"), tmp_path / "never"),
        Command(words, tmp_path / "never"),
        Command(words, tmp_path),  # its output exists
    ]
    failed = run_commands(commands, workers=1, log=lines.append)
    assert len(failed) == 1
    assert "nonsense" in failed[0]
    assert lines == [
        "started: sparsefw list nonsense",
        "[1/2] failed: sparsefw list nonsense",
        "started: sparsefw list recipes",
        "[2/2] done: sparsefw list recipes",
    ]


def test_a_command_may_print_more_than_a_pipe_holds():
    words = [sys.executable, "-c", "import sys; sys.stderr.write('line\\n' * 100_000 + 'the end'); sys.exit(1)"]
    process = Process(words, dict(os.environ))
    assert process.wait(timeout=60) == 1
    assert process.last_line() == "the end"


def write_runs(folder: Path, name: str, dense: float, pruned: float, retrained: dict[str, float]) -> None:
    """Write the files that the commands of the retraining experiment write."""

    def result(place: Path, value: float) -> None:
        RunWriter(place).result(ResultRecord("accuracy", None, {"accuracy": value}))

    result(folder / f"{name}-seed0", dense)
    points = (RecordedPoint(0.95, pruned, None),)
    curve = CurveRecord("weights", "masked", "accuracy", "test", CurveSettings(), dense, Size(), points)
    RunWriter(folder / f"{name}-seed0").curve(curve)
    for decay, value in retrained.items():
        result(folder / f"{name}-seed0-retrained-{decay}" / "phase-1", value)


def test_the_retraining_experiment_with_made_up_runs(tmp_path, monkeypatch):
    """Columns are weight decays in training, rows those in retraining; one retraining failed."""
    place = tmp_path / "quick-retraining"
    write_runs(place, "sgd-0.0001", 95.0, 20.0, {"0": 91.0, "0.0005": 92.0, "0.005": 93.0})
    write_runs(place, "sgd-0.002", 96.0, 40.0, {"0": 81.0, "0.0005": 82.0, "0.005": 83.0})
    write_runs(place, "sgd-0.01", 90.0, 60.0, {"0.0005": 72.0, "0.005": 73.0})
    write_runs(place, "sparsefw", 94.0, 93.0, {"0": 94.5})
    experiment = RetrainingExperiment("retraining", "x")
    monkeypatch.setattr(RetrainingExperiment, "stages", lambda self, options: [])
    result = experiment.run(options(tmp_path))
    dense, pruned, retrained = result.charts["heat"]
    assert (dense.x, dense.y) == (("0.0001", "0.002", "0.01"), ("0", "0.0005", "0.005"))
    assert set(dense.values) == {(95.0, 96.0, 90.0)}
    assert set(pruned.values) == {(20.0, 40.0, 60.0)}
    assert retrained.values[1] == (92.0, 82.0, 72.0)
    assert retrained.values[0][:2] == (91.0, 81.0)
    table = next(iter(result.tables.values()))
    assert table.rows == (
        ("SparseFW", "94.00", "93.00", "94.50", "0"),
        ("SGD, weight decay 0.0001", "95.00", "20.00", "93.00", "0.005"),
        ("SGD, weight decay 0.002", "96.00", "40.00", "83.00", "0.005"),
        ("SGD, weight decay 0.01", "90.00", "60.00", "73.00", "0.005"),
    )


def test_the_throughput_experiment_with_made_up_rates(tmp_path, monkeypatch):
    """The paper's shares are rates over the baseline's: 1156 / 5664 of SGD's for SparseFW."""
    rows = {"sgd": {"label": "SGD", "images_per_second": 1000.0, "share": 1.0}}
    rows["rank-0.1"] = {"label": "SparseFW rank k=0.1", "images_per_second": 900.0, "share": 0.9}
    measured = {"rows": rows, "drift": 0.5}
    monkeypatch.setattr(throughput, "measure_training_speed", lambda *_: measured)
    result = find_experiment("throughput").run(options(tmp_path))
    (table,) = result.tables.values()
    assert table.rows[1] == ("SparseFW rank k=0.1", "900", "0.900", "1,156", "0.204", "+0.696")
    warning = "images/s are unreliable: SGD's changed by +50% meanwhile, because the machine was busy"
    assert warning in result.deviations


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("throughput", {"seeds": 3}, "--seeds 3: speed does not depend on the seed; leave it out"),
        ("throughput", {"workers": 2}, "--workers 2: methods are timed one after the other"),
        ("retraining", {"seeds": 3}, "--seeds 3: there is one training per weight decay"),
        ("distance", {"storage": "x.db"}, "--storage x.db: this is no sweep"),
    ],
)
def test_an_option_that_an_experiment_cannot_use_is_refused(tmp_path, name, given, message):
    with pytest.raises(ConfigError, match=message):
        find_experiment(name).check_options(options(tmp_path, **given))


def test_the_papers_figures_were_not_changed_by_accident():
    """All of them were compared with the paper when this checksum was computed."""
    digest = hashlib.sha256(paper().model_dump_json().encode()).hexdigest()
    assert digest == "8b0a7ec5ca9477d6af483fb7fbd8bac318a31796723c121628d037efae22a97a"


def test_retraining_has_a_command_per_cell(tmp_path):
    experiment = RetrainingExperiment("retraining", "x")
    train, prune, retrain = experiment.stages(options(tmp_path, quick=False))
    assert (len(train), len(prune), len(retrain)) == (6, 6, 30)  # five weight decays of SGD, and SparseFW
    assert "--weights 0.95 --epochs 10" in str(retrain[0])


def test_gradient_norms_have_a_training_per_label_and_seed(tmp_path):
    experiment = EpochExperiment("gradients", "x", Quantity.GRADIENT_NORM)
    assert len(experiment.commands(options(tmp_path, quick=False))) == 5 * 2
    assert len(experiment.commands(options(tmp_path, quick=False, seeds=1))) == 5


def test_an_unknown_experiment_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'filters-cifar10'"):
        find_experiment("filter-cifar10")
    done = CliRunner().invoke(app, ["reproduce", "nothing"])
    assert done.exit_code == 2


def test_experiments_are_listed():
    done = CliRunner().invoke(app, ["list", "experiments", "--json"])
    assert set(json.loads(done.stdout)) == set(EXPERIMENTS)


@pytest.mark.slow
def test_a_figure_end_to_end(tmp_path):
    """If few filters may grow, the network gets close to its pruned version; with SGD it never does."""
    words = ["-m", "sparsefw", "reproduce", "distance", "--quick", "--out", str(tmp_path), "--json"]
    words += ["--set", "model.arguments.width=8", "--set", "train.epochs=4"]
    record, messages = run_to_end(words)
    assert record["SparseFW k=0.1"][-1] < 0.2 < record["SGD"][-1]
    assert "[4/4]" in messages
    folder = tmp_path / "quick-distance"
    for name in (
        "README.md",
        "reproduction.json",
        "distance.csv",
        "distance.tex",
        "distance-epochs.png",
        "distance-epochs.svg",
    ):
        assert (folder / name).stat().st_size > 0
    again, messages = run_to_end(words)
    assert again["SparseFW k=0.1"] == record["SparseFW k=0.1"]
    assert "started" not in messages  # nothing is trained again
    _, messages = run_to_end([*words, "--set", "train.epochs=5"], code=2)
    assert "holds a run with train.epochs=4, this one has 5" in messages


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
    record, _ = run_to_end([*words, "--set", "model.arguments.width=4", "--set", "train.epochs=3"])
    rows = record["sweep"]["rows"]
    assert set(rows) == {"SGD", "SparseFW", "SSL", "GLT", "ABFP", "SFP"}
    assert all(len(row["test"]["plain"]) == 4 for row in rows.values())
    text = (tmp_path / "quick-filters-cifar10" / "filters-cifar10.csv").read_text().splitlines()
    assert len(text) == 1 + 3 * 6
    assert "data: digits (paper: CIFAR-10)" in record["deviations"]
