"""Grids: the paper's numbers of configurations counted by hand, what a list means, and mistakes in one line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sparsefw.cli import app
from sparsefw.config_base import ConfigError
from sparsefw.kinds import kind_of
from sparsefw.methods import METHODS
from sparsefw.sweep.grids import grid_names, load_grid

# k x w, strengths x trade-offs, ..., each with two weight decays; the paper's appendix.
PAPER = {
    "filters-cifar10": {
        "SGD": 2,
        "SparseFW": 2 * 3 * 3,
        "SSL": 2 * 6,
        "GLT": 2 * 6 * 2,
        "ABFP": 2 * 4 * 6,
        "SFP": 2 * 4 * 3,
    },
    "rank-cifar10": {"SGD": 2, "SparseFW": 2 * 5 * 3, "NUC": 2 * 9, "SVDEnergy": 2 * 9, "FR": 2 * 9, "TRP": 2 * 4 * 2},
    "rank-cifar100": {"SGD": 2, "SparseFW": 30, "NUC": 2 * 10, "SVDEnergy": 3 * 9, "FR": 18, "TRP": 2 * 6 * 2},
    "filters-imagenet": {"SGD": 1, "SparseFW": 5 * 4, "SSL": 6, "GLT": 5 * 2, "ABFP": 3 * 6, "SFP": 6 * 3},
    "weights-cifar10": {"k-support": 25, "k-sparse": 25},
}


@pytest.mark.parametrize("name", PAPER)
def test_as_many_configurations_as_the_paper_tried(name):
    grid = load_grid(name)
    assert {method: len(grid.points(method)) for method in grid.methods} == PAPER[name]


@pytest.mark.parametrize("name", grid_names())
def test_every_point_is_a_training_of_its_own(name):
    grid = load_grid(name)
    for method in grid.methods:
        points = grid.points(method, ["train.epochs=90"], seed=7)
        assert len({point.config.model_dump_json() for point in points}) == len(points)
        for point in points:
            assert (point.config.train.epochs, point.config.seed) == (90, 7)
            assert (point.config.curve.kind, point.config.curve.at) == (grid.kind, grid.at)
            for key, value in point.chosen.items():
                part, _, field = key.partition(".")
                found = getattr(getattr(point.config, part), field)
                assert (list(found) if isinstance(found, tuple) else found) == value


def test_one_setting_by_name():
    points = load_grid("filters-cifar10").points("GLT")
    first = points[0].config
    assert points[0].chosen == {"train.weight_decay": 1e-4, "method.strength": 1e-5, "method.lasso": 0}
    assert (first.method.name, first.method.strength, first.method.lasso) == ("glt", 1e-5, 0.0)
    assert (first.train.weight_decay, first.train.epochs) == (1e-4, 100)


def test_all_methods_that_prepare_for_a_kind_are_in_its_grid_of_digits():
    for kind in ("filters", "rank", "weights"):
        grid = load_grid(f"{kind}-digits")
        used = {entry.method["name"] for entry in grid.methods.values()}
        assert used >= {n for n, m in METHODS.items() if m.removes is kind_of(kind) and n != "masked"} | {
            "sgd",
            "sparsefw",
        }


def test_a_list_of_lists_is_a_choice_of_lists(tmp_path):
    file = tmp_path / "own.yaml"
    text = "recipe: digits-resnet\nkind: weights\nat: [0.5]\nmethods:\n  C: {method: {name: cram, ratios: [[0.5], [0.7, 0.9]]}}\n"
    file.write_text(text)
    assert [point.config.method.ratios for point in load_grid(str(file)).points("C")] == [(0.5,), (0.7, 0.9)]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("kind: filters\nat: [0.5]\nmethods: {}\n", "recipe is missing"),
        ("recipe: digits-resnet\nkind: filters\nat: [0.5]\nmethods: {}\n", "methods"),
        (
            "recipe: digits\nkind: filters\nat: [0.5]\nmethods: {A: {method: {name: ssl}}}\n",
            r"grid own: recipe='digits'; did you mean 'digits-resnet'",
        ),
        ("recipe: digits-resnet\nkind: filters\nat: [1.0]\nmethods: {A: {method: {name: ssl}}}\n", "grid own, A: .*at"),
        (
            "recipe: digits-resnet\nkind: filters\nat: [0.5]\nmethods: {A: {method: {name: ssl, strength: []}}}\n",
            "empty",
        ),
        (
            "recipe: digits-resnet\nkind: filter\nat: [0.5]\nmethods: {}\n",
            "unknown kind 'filter'; did you mean 'filters'",
        ),
        ("recipe: digits-resnet\nkind: filters\nat: [0.5]\nmethods: {A: {method: {name: sgd}, trian: {}}}\n", "trian"),
        (
            "recipe: digits-resnet\nkind: filters\nat: [0.5]\nmethods: {A: {method: {name: ssl, strenght: 1}}}\n",
            "strenght",
        ),
    ],
)
def test_mistakes_are_named(tmp_path, text, named):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ConfigError, match=named):
        load_grid(str(tmp_path / "own.yaml"))


@pytest.mark.parametrize("name", ["filters-cifar", "nothing.yaml"])
def test_what_is_not_there(name):
    with pytest.raises(ConfigError, match="there is no such"):
        load_grid(name)


@pytest.mark.parametrize(
    ("what", "some"), [("grids", "rank-cityscapes"), ("rows", "nuc-svd"), ("methods", "svdenergy")]
)
def test_they_are_listed(what, some):
    done = CliRunner().invoke(app, ["list", what])
    assert done.exit_code == 0
    assert some in done.stdout


def test_what_a_grid_varies_cannot_be_set_from_outside():
    """It would be trained once per value that it does not have."""
    with pytest.raises(ConfigError, match=r"train\.weight_decay: the grid filters-cifar10 tries"):
        load_grid("filters-cifar10").points("SSL", ["train.weight_decay=0.01"])


def test_tables_within_tables(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "{recipe: digits-resnet, kind: rank, at: [0.5], methods: {A: {method: {name: sgd}, train: {schedule: "
        "{kind: cosine, warmup: [0, 1]}}}}}"
    )
    points = load_grid(str(file)).points("A")
    assert [p.config.train.schedule.warmup for p in points] == [0, 1]
    assert {p.config.train.schedule.kind for p in points} == {"cosine"}
    assert [p.chosen for p in points] == [{"train.schedule.warmup": 0}, {"train.schedule.warmup": 1}]


def test_a_value_that_stands_twice_in_a_list_is_refused(tmp_path):
    text = "recipe: digits-resnet\nkind: filters\nat: [0.5]\nmethods:\n  SSL: {method: {name: ssl, strength: [5e-3, 5e-3]}}\n"
    (tmp_path / "twice.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"grid twice, SSL: method.strength: 0.005 is in its list twice"):
        load_grid(str(tmp_path / "twice.yaml")).check()
