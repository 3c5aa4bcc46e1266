"""Plans, storages and folders of sweeps: what is drawn, which names are refused, and mistakes in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import optuna
import pytest
from typer.testing import CliRunner

from data.dataset_writers import idx_bytes, put
from junk import NOT_JSON
from sparsefw.cli import app
from sparsefw.config_base import ConfigError, parse
from sparsefw.sweep import processes, supervisor, worker
from sparsefw.sweep import sweep as sweep_module
from sparsefw.sweep.grids import Grid, Range, load_grid
from sparsefw.sweep.progress import duration_text
from sparsefw.sweep.storage import open_storage, storage_url, url_without_password
from sparsefw.sweep.sweep import Sweep
from sparsefw.sweep.sweep_plan import SweepPlan, folder_name
from sweep.sweeps import GRID, begin_sweep, write_grid

RANGES = """
recipe: digits-resnet
kind: rank
at: [0.5]
methods:
  SparseFW: {method: {name: sparsefw, kind: rank, k: 0.05..0.5, w: 1e-1..10 log}}
  CrAM+: {method: {name: cram, kind: rank, ratios: [[0.5], [0.7, 0.9]]}, train: {epochs: 2..9}}
"""


def plan_of(tmp_path, text=GRID, **options) -> SweepPlan:
    grid = load_grid(str(write_grid(tmp_path, text)))
    return parse(SweepPlan, {"name": "tiny", "grid": grid, **options}, "sweep")


def test_ranges_are_parsed():
    assert Range.of("0.05..0.5") == Range(0.05, 0.5, False)
    assert Range.of("1e-5..1e-2 log") == Range(1e-5, 1e-2, True)
    assert Range.of("2..9").integers
    assert Range.of("cosine") is None
    with pytest.raises(ConfigError, match="the low end must be below the high end"):
        Range.of("0.5..0.1")
    with pytest.raises(ConfigError, match="above 0 for log"):
        Range.of("0..1 log")


def test_sampled_settings_reach_the_configuration(tmp_path):
    plan = plan_of(tmp_path, RANGES, sampler="random", trials=5)
    space = plan.space("SparseFW")
    assert (space["method.k"].low, space["method.k"].high, space["method.k"].log) == (0.05, 0.5, False)
    assert space["method.w"].log
    config = plan.config("SparseFW", "0003", {"method.k": 0.123, "method.w": 3.5})
    assert (config.method.k, config.method.w, config.seed) == (0.123, 3.5, 0)
    assert plan.count("SparseFW") == 5
    assert plan.jobs("SparseFW") == {}


def test_values_that_are_lists_survive_the_storage(tmp_path):
    plan = plan_of(tmp_path, RANGES, sampler="tpe", trials=5)
    choices = plan.space("CrAM+")["method.ratios"].choices
    config = plan.config("CrAM+", "0000", {"method.ratios": json.loads(json.dumps(choices))[1], "train.epochs": 4})
    assert (config.method.ratios, config.train.epochs) == ((0.7, 0.9), 4)


def test_a_grid_becomes_one_job_per_configuration(tmp_path):
    plan = plan_of(tmp_path)
    assert plan.jobs("SGD") == {"0000": {"train.weight_decay": 1e-4}, "0001": {"train.weight_decay": 5e-3}}
    assert plan.config("SGD", "0001", plan.jobs("SGD")["0001"], seed=2).seed == 2


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (GRID, {"sampler": "random"}, "the number of configurations per row"),
        (GRID, {"trials": 3}, "a grid tries all of its configurations"),
        (GRID, {"sampler": "genetic", "trials": 3}, "sampler='genetic'"),
        (GRID, {"seeds": 0}, "seeds=0"),
        (RANGES, {}, "SparseFW: a range cannot be enumerated; add --sampler random"),
        (GRID, {"changes": ("data.validation=0",)}, "chosen on validation images"),
        (GRID, {"changes": ("train.epoch=3",)}, "SGD: .*epoch"),
        (
            GRID,
            {"changes": ("train.weight_decay=0.5",)},
            r"SGD: train\.weight_decay: the grid tiny tries \[0.0001, 0.005\]",
        ),
    ],
)
def test_bad_plans_are_refused(tmp_path, text, options, message):
    with pytest.raises(ConfigError, match=message):
        plan_of(tmp_path, text, **options)


def test_a_sweep_of_the_same_name_is_continued_if_its_plan_is_the_same(tmp_path):
    begun = begin_sweep(tmp_path)
    assert begin_sweep(tmp_path).token == begun.token
    with pytest.raises(
        ConfigError, match=r"--seeds 5: the sweep tiny was begun with 3; for another sweep choose another --out"
    ):
        begin_sweep(tmp_path, seeds=5)


def test_another_grid_or_setting_is_refused_for_the_same_sweep(tmp_path):
    begin_sweep(tmp_path)
    with pytest.raises(ConfigError, match=r"--set \['train.epochs=3'\]: the sweep tiny was begun with \[\]"):
        begin_sweep(tmp_path, changes=("train.epochs=3",))
    with pytest.raises(ConfigError, match=r"grid\.at"):
        begin_sweep(tmp_path, GRID.replace("at: [0.5, 0.8]", "at: [0.5, 0.7]"))
    # A worker with a longer grace period beats too slowly for the others.
    with pytest.raises(ConfigError, match=r"--grace 7.0: the sweep tiny was begun with 60.0"):
        begin_sweep(tmp_path, grace=7.0)


def test_files_of_a_killed_process_do_not_make_a_folder_foreign(tmp_path):
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / ".sweep.json.0123abcd.new").mkdir()
    (tmp_path / "sweep" / "ledger.db-journal").touch()
    assert begin_sweep(tmp_path).folder == tmp_path / "sweep"


@pytest.mark.parametrize("content", NOT_JSON)
def test_a_folder_whose_identity_is_damaged_is_refused_in_one_line(tmp_path, content):
    sweep = begin_sweep(tmp_path)
    (sweep.folder / "sweep.json").write_bytes(content)
    with pytest.raises(ConfigError, match="holds files, but no sweep; choose another --out"):
        begin_sweep(tmp_path)


@pytest.mark.parametrize("content", [b"\xff" * 5000, b"SQLite format 3\0" + bytes(3000)], ids=["binary", "cut off"])
def test_a_damaged_ledger_is_named_in_one_line(tmp_path, content):
    (tmp_path / "ledger.db").write_bytes(content)
    with pytest.raises(ValueError, match=r"storage sqlite:///\S+ledger\.db cannot be opened") as error:
        begin_sweep(tmp_path)
    assert "\n" not in str(error.value)


def test_a_sweep_whose_first_process_died_before_it_wrote_the_plan_can_be_begun(tmp_path, monkeypatch):
    storage = open_storage(f"sqlite:///{tmp_path / 'ledger.db'}")
    optuna.create_study(study_name="tiny", storage=storage)
    monkeypatch.setattr(sweep_module.time, "sleep", lambda seconds: None)
    assert begin_sweep(tmp_path).plan.name == "tiny"


def test_random_configurations_of_lists_are_all_different(tmp_path):
    text = GRID.replace("k: [0.2, 0.3]", "k: [0.1, 0.2, 0.3, 0.4], w: [1, 2]")
    plan = plan_of(tmp_path, text, sampler="random", trials=5)
    jobs = plan.jobs("SparseFW")
    assert len({tuple(params.items()) for params in jobs.values()}) == 5 == plan.count("SparseFW")
    assert plan.jobs("SparseFW") == jobs  # the same for every worker
    assert plan.count("SGD") == 2  # there are no more
    assert plan.budget("SGD") is None
    assert plan_of(tmp_path, text, sampler="tpe", trials=5).budget("SparseFW") == 5


@pytest.mark.parametrize(
    "rows", [("A B", "A-B"), ("x", "X"), ("..", "b"), ("workers", "b"), ("curves", "b"), ("Ä", "b")]
)
def test_rows_that_would_share_a_folder_are_refused(tmp_path, rows):
    methods = {row: {"method": {"name": "sgd"}} for row in rows}
    grid = Grid(name="g", recipe="digits-resnet", kind="filters", at=(0.5,), methods=methods)
    with pytest.raises(ConfigError, match="give the row another name"):
        parse(SweepPlan, {"name": "g", "grid": grid}, "sweep")


def test_a_folder_belongs_to_one_sweep(tmp_path):
    sweep = begin_sweep(tmp_path)
    plan = sweep.plan.model_copy(update={"name": "other"})
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with pytest.raises(ConfigError, match="belongs to another sweep"):
        Sweep.begin(plan, url, tmp_path / "sweep")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="holds files, but no sweep"):
        Sweep.begin(plan, url, tmp_path / "full")


def test_a_sweep_is_joined_by_its_storage_and_name(tmp_path):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with pytest.raises(ConfigError, match="there is no such file"):
        Sweep.join(url, None, None)
    open_storage(url)
    with pytest.raises(ConfigError, match="holds no sweep"):
        Sweep.join(url, None, None)
    sweep = begin_sweep(tmp_path)
    joined = Sweep.join(url, None, None)
    assert (joined.plan, joined.folder, joined.token) == (sweep.plan, sweep.folder.resolve(), sweep.token)
    with pytest.raises(ConfigError, match="'tinny'; did you mean 'tiny'"):
        Sweep.join(url, "tinny", None)
    other = Sweep.begin(sweep.plan.model_copy(update={"name": "other"}), url, tmp_path / "other")
    with pytest.raises(ConfigError, match="holds the sweeps tiny, other; choose one with --name"):
        Sweep.join(url, None, None)
    assert Sweep.join(url, "other", None).token == other.token


@pytest.mark.parametrize("url", ["nonsense://x", "postgresql://tester:secret@127.0.0.1:1/none"])
def test_a_storage_that_cannot_be_opened_is_refused_in_one_line_without_the_password(url):
    with pytest.raises(ConfigError) as caught:
        open_storage(url)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_storage_urls(tmp_path):
    assert storage_url(None, tmp_path) == f"sqlite:///{tmp_path}/ledger.db"
    assert storage_url(str(tmp_path / "a.db"), tmp_path) == f"sqlite:///{tmp_path}/a.db"
    assert storage_url(str(tmp_path), tmp_path / "other") == f"sqlite:///{tmp_path}/ledger.db"  # a sweep's folder
    assert url_without_password("postgresql://me:secret@host/db") == "postgresql://me:***@host/db"


def test_rows_have_folders_named_after_them():
    assert folder_name("SparseFW k-sparse, 50 %") == "SparseFW-k-sparse-50"
    assert "/" not in folder_name("../up")


def test_grids_survive_json():
    assert Grid.model_validate(load_grid("filters-digits").model_dump(mode="json")) == load_grid("filters-digits")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a GRID of"),
        (["nothing"], "there is no such grid"),
        (["filters-digits", "--rows", "SparseFv"], "did you mean 'SparseFW'"),
        (["filters-digits", "--join", "x.db"], "leave GRID out"),
        (["--join", "x.db", "--seeds", "2", "--prune", "--set", "train.epochs=1"], "leave --set, --seeds, --prune out"),
        (["--join", "x.db", "--grace", "5"], "leave --grace out"),
        (["filters-digits", "--name", "a/b"], "name='a/b'"),
        (["filters-digits", "--grace", "nan"], "grace"),
        (["filters-digits", "--grace", "inf"], "grace"),
        (["--join", "x.db", "--show"], "--show lists the trainings of a GRID"),
        (["--join", "no.db"], "there is no such file"),
        (["filters-digits", "--workers", "0"], "--workers 0: must be at least 1"),
        (["filters-digits", "--seeds", "0"], "--seeds 0: must be at least 1"),
    ],
)
def test_bad_options_are_refused_in_one_line(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["sweep", *words])
    assert done.exit_code == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert message in line


def test_workers_share_the_cores_unless_the_environment_says_otherwise(monkeypatch, tmp_path):
    environments = []
    monkeypatch.setattr(supervisor.subprocess, "Popen", lambda words, env, **options: environments.append(env))
    monkeypatch.setattr(processes, "usable_cores", lambda: 8)
    sweep = begin_sweep(tmp_path)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    supervisor.WorkerProcess(sweep, "sqlite://", None, 0, workers=3)
    assert (environments[0]["OMP_NUM_THREADS"], environments[0]["OMP_WAIT_POLICY"]) == ("2", "PASSIVE")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    supervisor.WorkerProcess(sweep, "sqlite://", None, 0, workers=16)
    assert environments[1]["OMP_NUM_THREADS"] == "5"
    monkeypatch.delenv("OMP_NUM_THREADS")
    supervisor.WorkerProcess(sweep, "sqlite://", None, 0, workers=16)
    assert environments[2]["OMP_NUM_THREADS"] == "1"


def test_remaining_time_is_rounded():
    texts = [duration_text(seconds) for seconds in (0.0, 34.0, 89.0, 90.0, 3540.0, 7800.0)]
    assert texts == ["10 s", "30 s", "90 s", "2 min", "59 min", "2 h 10 min"]


def write_digits(folder: Path, images: int) -> None:
    """Images in the format of MNIST, in three classes."""
    for prefix in ("train", "t10k"):
        pixels = np.arange(images * 16, dtype=np.uint8).reshape(images, 4, 4)
        put(folder / f"{prefix}-images-idx3-ubyte", idx_bytes(pixels))
        put(folder / f"{prefix}-labels-idx1-ubyte", idx_bytes(np.arange(images, dtype=np.uint8) % 3))


def test_every_worker_of_a_sweep_sees_the_same_data(tmp_path, monkeypatch):
    """Otherwise its configurations could not be compared: there is no option to go on with others."""
    write_digits(tmp_path / "data", 200)
    write_digits(tmp_path / "other", 190)
    plan = plan_of(tmp_path, GRID, changes=("data.name=mnist", "data.batch_size=50"))
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    for _ in range(2):
        supervisor.begin_sweep(plan, url, tmp_path / "sweep", tmp_path / "data")
    message = "the sweep tiny was begun with other data: the train part has 190 images instead of 200"
    with pytest.raises(ConfigError, match=message):
        supervisor.begin_sweep(plan, url, tmp_path / "sweep", tmp_path / "other")
    assignment = {"url": url, "name": "tiny", "folder": str(tmp_path / "sweep"), "data": str(tmp_path / "other")}
    assignment["trust"] = False
    monkeypatch.setenv(worker.WORKER_VARIABLE, json.dumps({**assignment, "parent": os.getppid()}))
    with pytest.raises(SystemExit) as error:
        worker.main()
    assert error.value.code == worker.BAD_INPUT
