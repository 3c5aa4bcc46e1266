"""A name in a file runs no code: every verb refuses it in one line, unless --trust is given; --show never runs any."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
import yaml
from typer.testing import CliRunner

from runfolder.records import change_record
from sparsefw.atomic_io import file_digest
from sparsefw.cli import app
from sparsefw.methods import METHODS
from sparsefw.models import build_named
from sparsefw.reproduce import find_experiment
from sparsefw.reproduce.experiment import ExperimentOptions
from sparsefw.sweep import sweep as sweep_module
from sparsefw.sweep.grids import load_grid
from sparsefw.sweep.storage import open_storage
from sparsefw.sweep.sweep_plan import SweepPlan
from sparsefw.train import RunFolder, fit, load_recipe

ROOT = Path(__file__).parents[2]
FOREIGN = """
from pathlib import Path
from typing import ClassVar, Literal

from torch import nn

from sparsefw.methods import SGD
from sparsefw.methods.base import register
from sparsefw.models import model_factory

(Path(__file__).parent / "was-run").touch()

@model_factory
def net(width=4):
    return nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(36 * width, 10))

def undeclared():
    (Path(__file__).parent / "was-called").touch()

@register
class Fast(SGD):
    'SGD under another name.'

    name: Literal["{module}:Fast"] = "{module}:Fast"
"""
RECIPE = """
data: {{name: digits}}
model: {{name: {model}, arguments: {{width: 4}}}}
method: {{name: {method}}}
train: {{epochs: 1}}
engine: {{device: cpu}}
"""
GRID = """
recipe: digits-resnet
kind: filters
at: [0.5]
train: {{epochs: 1}}
methods:
  Own: {{method: {{name: {method}}}}}
"""
SMALL = ["train.epochs=1", "model.arguments.width=4", "engine.device=cpu"]


@pytest.fixture
def foreign(tmp_path, monkeypatch) -> Iterator[Path]:
    """The current folder, with a module of its own name, which leaves a file behind when it is imported."""
    name = name_of(tmp_path)
    (tmp_path / f"{name}.py").write_text(FOREIGN.replace("{module}", name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])  # importable even without the flag
    registered = dict(METHODS)
    yield tmp_path
    METHODS.clear()
    METHODS.update(registered)


def name_of(folder: Path) -> str:
    """Return the name of the module in a folder: each test has its own, because a module is imported only once."""
    return f"foreign_{folder.name}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    fit(load_recipe("digits-resnet-sgd", SMALL), folder, quiet=True)
    return folder


def invoke(*words: str):
    return CliRunner().invoke(app, [str(word) for word in words])


def refused(folder: Path, name: str, *words: str) -> None:
    """The command ends in one line that says what would have run and which flag allows it; nothing has run."""
    result = invoke(*words)
    assert result.exit_code == 2, result.output
    module, _, attribute = name.partition(":")
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert f"{name!r} would import the Python module {module!r} and run its {attribute!r}; add --trust" in line
    assert not (folder / "was-run").exists()
    assert module not in sys.modules or module == "os"


def recipe(folder: Path, model: str = "resnet_digits", method: str = "sgd") -> str:
    (folder / "recipe.yaml").write_text(RECIPE.format(model=f'"{model}"', method=f'"{method}"'))
    return "recipe.yaml"


def grid(folder: Path, method: str = "sgd") -> str:
    (folder / "grid.yaml").write_text(GRID.format(method=f'"{method}"'))
    return "grid.yaml"


def run_from_elsewhere(folder: Path, trained: Path, model: str | None = None, method: str | None = None) -> Path:
    """Return a copy of a run folder whose files name code as its network or its method, and agree with each other."""
    run = folder / "shipped"
    run.mkdir()
    for name in ("config.yaml", "run.json", "data.json", "environment.json", "model.safetensors", "result.json"):
        (run / name).write_bytes((trained / name).read_bytes())
    network, record = RunFolder(run).load_model()
    values = yaml.safe_load((run / "config.yaml").read_text())
    if model is not None:
        values["model"]["name"] = model
    if method is not None:
        values["method"] = {"name": method}
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    forged = replace(record, name=model or record.name, run=RunFolder(run).identity)
    RunFolder(run).writer.model(network.state_dict(), forged)
    change_record(run / "result.json", model=file_digest(run / "model.safetensors"), run=forged.run)
    return run


def verbs(command=None, words: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """Return the options of every verb, such as "bench train"."""
    command = typer.main.get_command(app) if command is None else command
    if hasattr(command, "commands"):
        return {name: opts for key, sub in command.commands.items() for name, opts in verbs(sub, (*words, key)).items()}
    return {" ".join(words): {option for parameter in command.params for option in parameter.opts}}


def test_every_verb_that_may_load_a_network_or_a_method_has_the_flag():
    """The demo trains what is shipped, and a report builds nothing: these need none."""
    assert {verb for verb, options in verbs().items() if "--trust" not in options} == {"demo", "report"}


@pytest.mark.parametrize("what", ["model", "method"])
def test_a_recipe_runs_no_code(foreign, what):
    for name in (f"{name_of(foreign)}:net", "os:system"):
        file = recipe(foreign, **{what: name})
        refused(foreign, name, "train", file, "--out", "run")
        assert not (foreign / "run").exists()
        refused(foreign, name, "bench", "data", file, "--seconds", "0")


@pytest.mark.parametrize("what", ["model", "method"])
def test_show_runs_no_code_even_with_trust(foreign, trained, what):
    name = f"{name_of(foreign)}:Fast"
    run = run_from_elsewhere(foreign, trained, **{what: name})
    own_grid = grid(foreign, name) if what == "method" else grid(foreign)
    for words in (
        ("train", recipe(foreign, **{what: name})),
        ("finetune", str(run)),
        ("sweep", own_grid),
        ("sweep", own_grid, "--set", f"model.name={name}"),
        ("reproduce", "filters-cifar10", "--quick", "--set", f"model.name={name}"),
        ("reproduce", "retraining", "--quick", "--set", f"{what}.name={name}"),
    ):
        result = invoke(*words, "--show", "--trust")
        assert result.exit_code == 0, result.output
        assert not (foreign / "was-run").exists(), words
    assert name in invoke("train", "recipe.yaml", "--show").stdout


def test_show_refuses_a_name_that_is_nothing(foreign):
    assert invoke("train", recipe(foreign, method="sgdd"), "--show").exit_code == 2


@pytest.mark.parametrize("what", ["model", "method"])
def test_a_name_on_the_command_line_needs_the_flag_as_well(foreign, what):
    """Commands are copied from pages and reports: typing a name is no sign of trust in it."""
    name = f"{name_of(foreign)}:{'net' if what == 'model' else 'Fast'}"
    change = ("--set", f"{what}.name={name}")
    refused(foreign, name, "train", "digits-resnet-sgd", "--out", "run", *change)
    refused(foreign, name, "bench", "train", "digits-resnet", "--seconds", "0", "--rows", "sgd", *change)
    refused(foreign, name, "bench", "methods", "digits-resnet", "--seconds", "0", *change)
    refused(foreign, name, "bench", "data", "digits-resnet-sgd", "--seconds", "0", *change)
    if what == "model":  # the methods of a sweep are those of its grid
        refused(foreign, name, "sweep", grid(foreign), "--out", "sweep", *change)
        refused(foreign, name, "reproduce", "filters-cifar10", "--quick", "--out", "paper", *change)


def test_a_method_is_not_imported_to_be_listed(foreign):
    name = f"{name_of(foreign)}:Fast"
    refused(foreign, name, "list", "methods", name)
    assert invoke("list", "methods", name, "--trust").exit_code == 0
    assert (foreign / "was-run").exists()


def test_a_run_folder_runs_no_code(foreign, trained):
    name = f"{name_of(foreign)}:net"
    run = run_from_elsewhere(foreign, trained, model=name)
    before = {path.name for path in run.iterdir()}
    refused(foreign, name, "curve", run, "--at", "0.5")
    refused(foreign, name, "compress", run, "--filters", "0.5")
    refused(foreign, name, "retrain", run, "--weights", "0.5", "--epochs", "1")
    refused(foreign, name, "finetune", run)
    refused(foreign, name, "train", run / "config.yaml", "--out", "again")
    assert {path.name for path in run.iterdir()} == before


def test_the_method_of_a_run_folder_is_not_imported(foreign, trained):
    name = f"{name_of(foreign)}:Fast"
    run = run_from_elsewhere(foreign, trained, method=name)
    refused(foreign, name, "finetune", run)
    refused(foreign, name, "train", run / "config.yaml", "--out", "again")
    # These need its network only, which comes with the package.
    result = invoke("curve", run, "--at", "0.5", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert invoke("retrain", run, "--weights", "0.5", "--epochs", "1", "--quiet").exit_code == 0
    assert invoke("report", run).exit_code == 0
    assert not (foreign / "was-run").exists()


def test_a_grid_runs_no_code(foreign):
    name = f"{name_of(foreign)}:Fast"
    refused(foreign, name, "sweep", grid(foreign, name), "--out", "sweep")
    assert not (foreign / "sweep" / "sweep.json").exists()


@pytest.mark.parametrize("what", ["model", "method"])
def test_a_ledger_from_elsewhere_runs_no_code(foreign, what):
    """The plan in a storage names the network in its changes, and methods in its grid."""
    name = f"{name_of(foreign)}:Fast"
    changes = (f"model.name={name}",) if what == "model" else ()
    table = load_grid(grid(foreign, name if what == "method" else "sgd"))
    plan = SweepPlan(name="shipped", grid=table, changes=changes)
    sweep_module._store_record(open_storage(f"sqlite:///{foreign / 'ledger.db'}"), plan, foreign / "elsewhere")
    refused(foreign, name, "sweep", "--join", "ledger.db", "--out", "here")
    assert not (foreign / "here").exists()


def test_reproductions_hand_the_flag_on(tmp_path):
    def commands(trust: bool) -> list[str]:
        given = dict(seeds=None, data=None, workers=None, storage=None, log=print, changes=("model.name=a:b",))
        options = ExperimentOptions(folder=tmp_path, quick=True, trust=trust, **given)
        return list(map(str, find_experiment("retraining").commands(options)))

    assert all(command.endswith("--trust") for command in commands(True))
    assert not any("--trust" in command for command in commands(False))


def test_trusted_code_is_trained_and_evaluated(foreign):
    module = name_of(foreign)
    file = recipe(foreign, f"{module}:net", f"{module}:Fast")
    trained = invoke("train", file, "--out", "run", "--trust", "--quiet")
    assert trained.exit_code == 0, trained.output
    assert (foreign / "was-run").exists()
    assert trained.stdout.rstrip().endswith("next, `sparsefw curve run --trust`")
    assert invoke("curve", "run", "--trust", "--at", "0.5", "--quiet").exit_code == 0
    assert invoke("train", file, "--out", "run", "--trust", "--quiet").exit_code == 0  # it is over
    retrained = invoke("retrain", "run", "--weights", "0.5", "--epochs", "1", "--trust", "--quiet")
    assert retrained.exit_code == 0, retrained.output
    again = invoke("finetune", "run", "--epochs", "1", "--trust", "--quiet")
    assert again.exit_code == 0, again.output


def test_the_network_of_the_documentation_is_built(tmp_path, monkeypatch):
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "train.md").read_text(), flags=re.DOTALL)
    (tmp_path / "documented_network.py").write_text(snippet)
    monkeypatch.syspath_prepend(tmp_path)
    network = build_named("documented_network:make", {"width": 5}, trust=True)
    assert network(torch.zeros(2, 3, 16, 16)).shape == (2, 10)


def test_trust_does_not_call_what_is_not_declared(foreign):
    module = name_of(foreign)
    for name in (f"{module}:undeclared", "os:system", "os:getcwd"):
        result = invoke("train", recipe(foreign, name), "--trust", "--out", "run", "--quiet")
        assert result.exit_code == 2
        assert "was not called; it must be a subclass of torch.nn.Module" in result.stderr
    assert not (foreign / "was-called").exists()
    result = invoke("train", recipe(foreign, method="os:system"), "--trust", "--out", "run", "--quiet")
    assert result.exit_code == 2
    assert "registers no method of this name" in result.stderr


def test_python_is_asked_for_trust_as_well(foreign):
    module = name_of(foreign)
    config = load_recipe(recipe(foreign, f"{module}:net", f"{module}:Fast"))
    with pytest.raises(ValueError, match="trust=True"):
        fit(config, foreign / "run", quiet=True)
    assert not (foreign / "was-run").exists()
    assert fit(config, foreign / "run", trust=True, quiet=True)["steps"] > 0


def test_the_current_folder_is_searched_with_trust_only(tmp_path, monkeypatch):
    """A file there must not stand in for a package that is not installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "only_here.py").write_text("raise AssertionError")
    invoke("list", "recipes")
    assert str(tmp_path) not in sys.path
    refused(tmp_path, "only_here:net", "train", recipe(tmp_path, "only_here:net"))
    invoke("train", "recipe.yaml", "--trust", "--out", "run")
    assert str(tmp_path) in sys.path
