"""Results: one configuration per row, chosen on validation figures alone; means and deviations computed by hand."""

from __future__ import annotations

import errno
import math
from types import SimpleNamespace

import pytest
import torch

from sparsefw.config_base import ConfigError
from sparsefw.sweep import worker as worker_module
from sparsefw.sweep.locks import registered_worker
from sparsefw.sweep.results import mean_and_std, settings_at_edge, sweep_results
from sparsefw.sweep.worker import is_machine_failure, mean_over_ratios
from sparsefw.train.folder import RunFolder
from sweep.sweeps import GRID, begin_sweep, finish_finals, finish_trials


def test_the_reported_configuration_is_the_best_on_validation_images(tmp_path):
    """0000 would have better test figures, but they must not matter."""
    sweep = begin_sweep(tmp_path, seeds=2)
    finish_trials(sweep, "SGD", {"0000": 50.0, "0001": 60.0})
    finish_trials(sweep, "SparseFW", {"0000": 80.0, "0001": 80.0})
    assert sweep.seed_jobs("SGD") == {
        "0001-seed-0": {"configuration": "0001", "seed": 0},
        "0001-seed-1": {"configuration": "0001", "seed": 1},
    }
    finish_finals(sweep, "SGD", {0: 90.0, 1: 92.0}, {0: [61.0, 57.0], 1: [59.0, 47.0]})
    row = sweep_results(sweep)["rows"]["SGD"]
    assert (row["chosen"], row["settings"], row["validation"]) == ("0001", {"train.weight_decay": 5e-3}, 60.0)
    assert row["test"]["dense"] == {"mean": 91.0, "std": pytest.approx(math.sqrt(2))}
    assert [figure["mean"] for figure in row["test"]["plain"]] == [60.0, 52.0]
    assert row["test"]["plain"][1]["std"] == pytest.approx(5 * math.sqrt(2))
    assert row["test"]["seeds"] == [0, 1]


def test_of_equal_configurations_the_first_is_chosen(tmp_path):
    sweep = begin_sweep(tmp_path)
    finish_trials(sweep, "SparseFW", {"0000": 80.0, "0001": 80.0})
    assert sweep.chosen("SparseFW").name == "0000"


def test_nothing_is_chosen_before_any_is_finished(tmp_path):
    sweep = begin_sweep(tmp_path)
    sweep.configuration_ledger("SGD").post(sweep.plan.jobs("SGD"))
    assert sweep.chosen("SGD") is None
    assert sweep.seed_jobs("SGD") == {}
    assert sweep_results(sweep)["rows"]["SGD"]["chosen"] is None


def test_failures_are_listed_and_the_choice_is_made_among_the_others(tmp_path):
    sweep = begin_sweep(tmp_path, seeds=1)
    finish_trials(sweep, "SGD", {"0000": 50.0, "0001": ValueError("it diverged")})
    finish_trials(sweep, "SparseFW", {"0000": ValueError("no"), "0001": ValueError("no, too")})
    finish_finals(sweep, "SGD", {0: 90.0}, {0: [60.0, 50.0]})
    found = sweep_results(sweep)
    assert found["finished"]
    assert found["rows"]["SGD"]["chosen"] == "0000"
    assert found["rows"]["SGD"]["failed"] == {"0001": "it diverged"}
    assert found["rows"]["SGD"]["test"]["plain"] == [{"mean": 60.0, "std": None}, {"mean": 50.0, "std": None}]
    assert found["rows"]["SparseFW"]["chosen"] is None
    assert found["rows"]["SparseFW"]["failed"] == {"0000": "no", "0001": "no, too"}


def test_networks_that_cannot_be_chosen_any_more_are_removed(tmp_path):
    sweep = begin_sweep(tmp_path)
    finish_trials(sweep, "SGD", {"0000": 50.0, "0001": 60.0})
    finish_trials(sweep, "SparseFW", {"0000": 80.0, "0001": ValueError("no")})
    sweep.remove_unneeded_models("SGD")
    assert [file.parent.name for file in sweep.folder.glob("SGD/*/model.safetensors")] == ["0001"]
    assert [file.parent.name for file in sweep.folder.glob("SparseFW/*/model.safetensors")] == ["0000"]


def test_a_worker_with_an_outdated_ledger_does_not_remove_the_best_network(tmp_path):
    """Another worker finished the best configuration after this one read the ledger."""
    sweep = begin_sweep(tmp_path)
    finish_trials(sweep, "SGD", {"0000": 50.0, "0001": 60.0})
    outdated = {name: job for name, job in sweep.configuration_ledger("SGD").jobs().items() if name == "0000"}
    sweep.configuration_ledger("SGD").jobs = lambda: outdated
    sweep.remove_unneeded_models("SGD")
    assert (sweep.job_folder("SGD", "0001") / "model.safetensors").exists()


def test_the_mean_does_not_hide_a_run_that_collapsed():
    assert math.isnan(mean_and_std([90.0, math.nan])["mean"])
    assert math.isnan(mean_and_std([90.0, None])["mean"])
    assert mean_and_std([90.0]) == {"mean": 90.0, "std": None}


def test_a_ratio_without_finite_outputs_counts_as_zero():
    """It must not make its configuration win."""
    assert mean_over_ratios([90.0, math.nan]) == 45.0


def test_settings_at_the_edge_of_the_grid_are_found():
    tried = [{"k": k, "w": w, "gauge": g} for k in (0.1, 0.2, 0.3) for w in (1,) for g in ("a", "b")]
    assert settings_at_edge({"k": 0.1, "w": 1, "gauge": "a"}, tried) == ["k"]
    assert settings_at_edge({"k": 0.2, "w": 1, "gauge": "a"}, tried) == []
    assert settings_at_edge({"k": 0.3, "w": 1, "gauge": "a"}, tried) == ["k"]


def test_nothing_is_chosen_while_a_configuration_is_unfinished(tmp_path):
    sweep = begin_sweep(tmp_path)
    ledger = sweep.configuration_ledger("SGD")
    ledger.post(sweep.plan.jobs("SGD"))
    with registered_worker(sweep.folder) as worker:
        ledger.claim(worker).done(50.0, {})
    assert sweep.finished_configurations("SGD") is None
    sampled = begin_sweep(tmp_path / "b", sampler="tpe", trials=2, text=GRID.replace("[0.2, 0.3]", "0.2..0.3"))
    with registered_worker(sampled.folder) as worker:
        sampled.configuration_ledger("SparseFW").claim(worker).done(50.0, {})
    assert sampled.finished_configurations("SparseFW") is None  # one of two


def test_networks_of_failed_configurations_are_kept_for_a_retry(tmp_path):
    sweep = begin_sweep(tmp_path)
    finish_trials(sweep, "SGD", {"0000": 50.0, "0001": ValueError("no memory to measure it")})
    file = sweep.job_folder("SGD", "0001") / "model.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("weights")
    sweep.remove_unneeded_models("SGD")
    assert file.exists()


@pytest.mark.parametrize(
    ("error", "machine"),
    [
        (OSError(errno.ENOSPC, "full"), True),
        (FileNotFoundError(errno.ENOENT, "weights.safetensors"), False),
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (ConfigError("no"), False),
    ],
)
def test_failures_of_the_machine_are_recognized(error, machine):
    assert is_machine_failure(error) == machine


def test_a_job_whose_folder_stays_locked_gets_another_folder(tmp_path, monkeypatch):
    """The process that holds the lock is suspended."""
    monkeypatch.setattr(worker_module, "POLL_SECONDS", 0.01)
    task = SimpleNamespace(row="SGD", claim=SimpleNamespace(job=SimpleNamespace(name="0000")))
    with RunFolder(tmp_path / "0000").locked():
        assert worker_module._wait_for_lock(tmp_path / "0000", 0.05, task) == tmp_path / "0000-again"
    assert worker_module._wait_for_lock(tmp_path / "0000", 0.05, task) == tmp_path / "0000"


def test_a_result_without_its_network_is_removed(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    RunFolder(tmp_path).forget_result_without_model()
    assert not (tmp_path / "result.json").exists()
