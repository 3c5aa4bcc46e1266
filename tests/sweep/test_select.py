"""Selection: on validation figures alone, one configuration per row; hand-computed means and deviations."""

from __future__ import annotations

import errno
import math
from types import SimpleNamespace

import pytest
import torch

from sparsefw.config_base import ConfigError
from sparsefw.sweep import worker as module
from sparsefw.sweep.locks import working
from sparsefw.sweep.select import edges, results, spread
from sparsefw.sweep.sweep import final_of
from sparsefw.sweep.worker import is_the_machines_fault, mean
from sparsefw.train.folder import RunFolder
from sweep.sweeps import GRID, begun, fill, fill_finals


def test_the_best_on_validation_images_is_reported_and_not_the_best_on_test_images(tmp_path):
    """0000 has the better test figures; it must not matter, and nobody may even look at them."""
    sweep = begun(tmp_path, seeds=2)
    fill(sweep, "SGD", {"0000": 50.0, "0001": 60.0})
    fill(sweep, "SparseFW", {"0000": 80.0, "0001": 80.0})
    test = {"0000": [99.0, 98.0], "0001": [61.0, 57.0]}  # what each would have on test images
    assert list(sweep.final_jobs("SGD")) == ["0001-seed-0", "0001-seed-1"]
    fill_finals(sweep, "SGD", {0: 90.0, 1: 92.0}, {0: test["0001"], 1: [59.0, 47.0]})
    found = results(sweep)["rows"]["SGD"]
    assert (found["chosen"], found["settings"], found["validation"]) == ("0001", {"train.weight_decay": 5e-3}, 60.0)
    assert found["test"]["dense"] == {"mean": 91.0, "std": pytest.approx(math.sqrt(2))}
    assert [one["mean"] for one in found["test"]["plain"]] == [60.0, 52.0]
    assert found["test"]["plain"][1]["std"] == pytest.approx(5 * math.sqrt(2))
    assert found["test"]["seeds"] == [0, 1]


def test_of_equals_the_first(tmp_path):
    sweep = begun(tmp_path)
    fill(sweep, "SparseFW", {"0000": 80.0, "0001": 80.0})
    assert sweep.chosen("SparseFW").name == "0000"


def test_nothing_is_chosen_before_all_are_there(tmp_path):
    sweep = begun(tmp_path)
    sweep.trials("SGD").post(sweep.plan.jobs("SGD"))
    assert sweep.chosen("SGD") is None
    assert sweep.final_jobs("SGD") == {}
    assert results(sweep)["rows"]["SGD"]["chosen"] is None


def test_failures_are_listed_and_the_rest_is_chosen_from(tmp_path):
    sweep = begun(tmp_path, seeds=1)
    fill(sweep, "SGD", {"0000": 50.0, "0001": ValueError("it diverged")})
    fill(sweep, "SparseFW", {"0000": ValueError("no"), "0001": ValueError("no, too")})
    fill_finals(sweep, "SGD", {0: 90.0}, {0: [60.0, 50.0]})
    found = results(sweep)
    assert found["finished"]
    assert found["rows"]["SGD"]["chosen"] == "0000"
    assert found["rows"]["SGD"]["failed"] == {"0001": "it diverged"}
    assert found["rows"]["SGD"]["test"]["plain"] == [{"mean": 60.0, "std": None}, {"mean": 50.0, "std": None}]
    assert found["rows"]["SparseFW"]["chosen"] is None
    assert found["rows"]["SparseFW"]["failed"] == {"0000": "no", "0001": "no, too"}


def test_networks_that_cannot_be_chosen_any_more_are_removed(tmp_path):
    sweep = begun(tmp_path)
    fill(sweep, "SGD", {"0000": 50.0, "0001": 60.0})
    fill(sweep, "SparseFW", {"0000": 80.0, "0001": ValueError("no")})
    sweep.forget("SGD")
    assert [file.parent.name for file in sweep.folder.glob("SGD/*/model.safetensors")] == ["0001"]
    assert [file.parent.name for file in sweep.folder.glob("SparseFW/*/model.safetensors")] == ["0000"]


def test_a_view_that_lacks_the_best_does_not_remove_it(tmp_path):
    """A worker that reads the ledger, and then is slow, while another one finishes the best configuration of all."""
    sweep = begun(tmp_path)
    fill(sweep, "SGD", {"0000": 50.0, "0001": 60.0})
    old = {name: job for name, job in sweep.trials("SGD").jobs().items() if name == "0000"}
    sweep.trials("SGD").jobs = lambda: old
    sweep.forget("SGD")
    assert (sweep.place("SGD", "0001") / "model.safetensors").exists()


def test_a_collapse_is_not_averaged_away():
    assert math.isnan(spread([90.0, math.nan])["mean"])
    assert math.isnan(spread([90.0, None])["mean"])
    assert spread([90.0]) == {"mean": 90.0, "std": None}


def test_where_nothing_can_be_computed_nothing_is_right():
    """A configuration with one such ratio must not win over one that is bad everywhere."""
    assert mean([90.0, math.nan]) == 45.0


def test_edges():
    tried = [{"k": k, "w": w, "gauge": g} for k in (0.1, 0.2, 0.3) for w in (1,) for g in ("a", "b")]
    assert edges({"k": 0.1, "w": 1, "gauge": "a"}, tried) == ["k"]
    assert edges({"k": 0.2, "w": 1, "gauge": "a"}, tried) == []
    assert edges({"k": 0.3, "w": 1, "gauge": "a"}, tried) == ["k"]


def test_nothing_is_chosen_while_one_is_waited_for(tmp_path):
    sweep = begun(tmp_path)
    ledger = sweep.trials("SGD")
    ledger.post(sweep.plan.jobs("SGD"))
    with working(sweep.folder) as worker:
        ledger.claim(worker).done(50.0, {})
    assert sweep.searched("SGD") is None
    sampled = begun(tmp_path / "b", sampler="tpe", trials=2, text=GRID.replace("[0.2, 0.3]", "0.2..0.3"))
    with working(sampled.folder) as worker:
        sampled.trials("SparseFW").claim(worker).done(50.0, {})
    assert sampled.searched("SparseFW") is None  # one of two


def test_networks_of_failures_are_kept_for_another_try(tmp_path):
    sweep = begun(tmp_path)
    fill(sweep, "SGD", {"0000": 50.0, "0001": ValueError("no memory to measure it")})
    file = sweep.place("SGD", "0001") / "model.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("weights")
    sweep.forget("SGD")
    assert file.exists()


def test_a_final_job_is_about_the_configuration_it_is_named_after():
    assert final_of("0003-seed-12") == ("0003", 12)


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
def test_what_a_configuration_is_blamed_for(error, machine):
    assert is_the_machines_fault(error) == machine


def test_a_folder_that_stays_locked_is_left_alone(tmp_path, monkeypatch):
    """Its process is stopped, and neither ends nor notices."""
    monkeypatch.setattr(module, "POLL", 0.01)
    task = SimpleNamespace(row="SGD", claim=SimpleNamespace(job=SimpleNamespace(name="0000")))
    with RunFolder(tmp_path / "0000").locked():
        assert module._when_free(tmp_path / "0000", 0.05, task) == tmp_path / "0000-again"
    assert module._when_free(tmp_path / "0000", 0.05, task) == tmp_path / "0000"


def test_a_result_without_its_network_is_no_result(tmp_path):
    (tmp_path / "result.json").write_text("{}")
    RunFolder(tmp_path).forget_result_without_model()
    assert not (tmp_path / "result.json").exists()
