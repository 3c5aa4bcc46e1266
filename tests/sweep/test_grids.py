"""Grids: the paper's numbers of configurations counted by hand, the meaning of lists, and mistakes in one line."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sparsefw.cli import app
from sparsefw.config_base import ConfigError
from sparsefw.kinds import kind_of
from sparsefw.methods import METHODS
from sparsefw.sweep.grids import Grid, grid_descriptions, load_grid
from sparsefw.train.config import RunConfig

# From the paper's appendix: k x w, strengths x trade-offs, ..., each with two weight decays.
CONFIGURATIONS = {
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


def configs(grid: Grid, row: str, changes=(), **fields) -> list[RunConfig]:
    """Return all configurations of a row."""
    return [
        grid.config(row, settings, changes, f"{row}-{i}", **fields) for i, settings in enumerate(grid.combinations(row))
    ]


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_as_many_configurations_as_in_the_paper(name):
    grid = load_grid(name)
    assert {row: len(configs(grid, row)) for row in grid.methods} == CONFIGURATIONS[name]


@pytest.mark.parametrize("name", grid_descriptions())
def test_all_configurations_of_a_row_differ_in_the_varied_settings(name):
    grid = load_grid(name)
    for row in grid.methods:
        combinations = grid.combinations(row)
        row_configs = configs(grid, row, ["train.epochs=90"], seed=7)
        assert len({config.model_dump_json() for config in row_configs}) == len(combinations)
        for config, settings in zip(row_configs, combinations, strict=True):
            assert (config.train.epochs, config.seed) == (90, 7)
            assert (config.curve.kind, config.curve.at) == (grid.kind, grid.at)
            for key, value in settings.items():
                section, _, field = key.partition(".")
                configured = getattr(getattr(config, section), field)
                assert (list(configured) if isinstance(configured, tuple) else configured) == value


def test_the_first_configuration_has_the_first_value_of_every_list():
    grid = load_grid("filters-cifar10")
    assert grid.combinations("GLT")[0] == {"train.weight_decay": 1e-4, "method.strength": 1e-5, "method.lasso": 0}
    first = configs(grid, "GLT")[0]
    assert (first.method.name, first.method.strength, first.method.lasso) == ("glt", 1e-5, 0.0)
    assert (first.train.weight_decay, first.train.epochs) == (1e-4, 100)


def test_the_digits_grid_of_a_kind_has_all_of_its_methods():
    for kind in ("filters", "rank", "weights"):
        grid = load_grid(f"{kind}-digits")
        used = {row.method["name"] for row in grid.methods.values()}
        of_kind = {name for name, method in METHODS.items() if method.removes is kind_of(kind) and name != "masked"}
        assert used >= of_kind | {"sgd", "sparsefw"}


def test_a_list_of_lists_is_a_choice_of_lists(tmp_path):
    file = tmp_path / "own.yaml"
    text = "recipe: digits-resnet\nkind: weights\nat: [0.5]\nmethods:\n  C: {method: {name: cram, ratios: [[0.5], [0.7, 0.9]]}}\n"
    file.write_text(text)
    assert [config.method.ratios for config in configs(load_grid(str(file)), "C")] == [(0.5,), (0.7, 0.9)]


@pytest.mark.parametrize(
    ("text", "message"),
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
def test_bad_grids_are_refused(tmp_path, text, message):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_grid(str(tmp_path / "own.yaml"))


@pytest.mark.parametrize("name", ["filters-cifar", "nothing.yaml"])
def test_an_unknown_grid_is_refused(name):
    with pytest.raises(ConfigError, match="there is no such"):
        load_grid(name)


@pytest.mark.parametrize(
    ("what", "some"), [("grids", "rank-cityscapes"), ("rows", "nuc-svd"), ("methods", "svdenergy")]
)
def test_grids_rows_and_methods_are_listed(what, some):
    done = CliRunner().invoke(app, ["list", what])
    assert done.exit_code == 0
    assert some in done.stdout


def test_a_setting_that_a_grid_varies_cannot_be_changed():
    """The same configuration would be trained once per value of the grid."""
    with pytest.raises(ConfigError, match=r"train\.weight_decay: the grid filters-cifar10 tries"):
        configs(load_grid("filters-cifar10"), "SSL", ["train.weight_decay=0.01"])


def test_settings_of_nested_sections_are_varied(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(
        "{recipe: digits-resnet, kind: rank, at: [0.5], methods: {A: {method: {name: sgd}, train: {schedule: "
        "{kind: cosine, warmup: [0, 1]}}}}}"
    )
    grid = load_grid(str(file))
    assert grid.combinations("A") == [{"train.schedule.warmup": 0}, {"train.schedule.warmup": 1}]
    schedules = [config.train.schedule for config in configs(grid, "A")]
    assert [schedule.warmup for schedule in schedules] == [0, 1]
    assert {schedule.kind for schedule in schedules} == {"cosine"}


def test_a_value_that_is_twice_in_a_list_is_refused(tmp_path):
    text = "recipe: digits-resnet\nkind: filters\nat: [0.5]\nmethods:\n  SSL: {method: {name: ssl, strength: [5e-3, 5e-3]}}\n"
    (tmp_path / "twice.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"grid twice, SSL: method.strength: 0.005 is listed twice"):
        load_grid(str(tmp_path / "twice.yaml")).check()
