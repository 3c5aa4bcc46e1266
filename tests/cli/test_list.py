"""`sparsefw list`: the content of the registries, as text and as JSON."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sparsefw.cli import app
from sparsefw.cli.catalog import CATALOGS
from sparsefw.data import DATASETS
from sparsefw.kinds import KINDS, PATTERN
from sparsefw.methods import METHODS
from sparsefw.models import MODELS
from sparsefw.train import recipe_descriptions


def sparsefw(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("models", [*MODELS, "timm:NAME"]),
        ("datasets", list(DATASETS)),
        ("methods", list(METHODS)),
        ("kinds", [*KINDS, PATTERN]),
        ("regions", ["GroupKSupportBall", "KSupportBall", "NuclearBall", "SpectralKSupportBall", "LpBall"]),
        ("recipes", list(recipe_descriptions())),
    ],
)
def test_list_reads_the_registries(what, names):
    listed = json.loads(sparsefw("list", what, "--json"))
    assert set(names) <= set(listed)
    assert all(listed.values())
    assert all(name in sparsefw("list", what) for name in names)


def test_without_a_word_the_lists_themselves_are_listed():
    lists = json.loads(sparsefw("list", "--json"))
    assert list(lists) == list(CATALOGS)
    assert [line.split(maxsplit=1) for line in sparsefw("list").splitlines()] == [list(line) for line in lists.items()]


def test_methods_are_listed_with_kind_paper_and_measured_costs():
    listed = json.loads(sparsefw("list", "methods", "--json"))
    assert listed["nuc"]["removes"] == "rank"
    assert listed["nuc"]["paper"].startswith("Denton")
    assert set(listed["nuc"]["costs"]) == {"nuc", "nuc-svd"}
    assert listed["sgd"]["costs"] == {"sgd": 1.0}
    assert all(cost > 0.5 for method in listed.values() for cost in method["costs"].values())
    lines = {line.split()[0]: line.split() for line in sparsefw("list", "methods").splitlines()}
    assert lines["sgd"][:4] == ["sgd", "any", "1.0x", "SGD:"]
    for name, method in METHODS.items():
        assert lines[name][1] == ("any" if method.removes is None else method.removes.name)
        assert lines[name][2].endswith("x")
        assert method.paper.split()[-1] in lines[name][-1]


def test_one_grid_is_listed_with_the_values_that_it_tries():
    grid = json.loads(sparsefw("list", "grids", "filters-cifar10", "--json"))
    assert grid["methods"]["SSL"]["method"]["strength"] == [1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3]
    (line,) = [line for line in sparsefw("list", "grids", "filters-cifar10").splitlines() if line.startswith("SSL ")]
    assert "12 configurations: train.weight_decay=[0.0001, 0.0005] method.name=ssl method.strength=[1e-05, " in line


def test_one_method_is_listed_with_its_settings():
    method = json.loads(sparsefw("list", "methods", "ssl", "--json"))
    assert method["settings"] == {"strength": {"type": "float", "default": METHODS["ssl"]().strength}}
    text = sparsefw("list", "methods", "sparsefw")
    assert "gauge      = null  (k-support, k-sparse, None)" in text
    assert "arXiv:2205.11921" in text


def test_kinds_are_listed_with_their_units():
    listed = json.loads(sparsefw("list", "kinds", "--json"))
    assert list(listed) == [*KINDS, PATTERN]
    assert listed["heads"] == "attention heads"
    assert listed["rank"] == "singular values"
    lines = sparsefw("list", "kinds").splitlines()
    assert lines == [f"{name:7}  {removes}" for name, removes in listed.items()]
