"""A ledger may come from anywhere: what it says deletes, opens and makes nothing outside the folder of the sweep."""

from __future__ import annotations

import os
import socket

import pytest

from sparsefw.config_base import ConfigError
from sparsefw.sweep import sweep as sweep_module
from sparsefw.sweep.jobs import TrainingProgress
from sparsefw.sweep.locks import reap_if_dead, registered_worker
from sparsefw.sweep.storage import open_storage
from sparsefw.sweep.sweep import Sweep
from sweep.ledgers import ledger_in
from sweep.sweeps import GRID, begin_sweep


@pytest.mark.parametrize("field", ["lock", "name"])
@pytest.mark.parametrize("place", ["precious.txt", "sweep/precious.txt", "sweep/workers/precious.lock"])
def test_the_holder_of_a_trial_deletes_no_file(tmp_path, field, place):
    """The path of a lock, or a name that leads out of the folder; every form in which the file might be reached."""
    victim = tmp_path / place
    victim.parent.mkdir(parents=True, exist_ok=True)
    victim.write_text("mine")
    sweep = tmp_path / "sweep"
    (sweep / "workers").mkdir(parents=True, exist_ok=True)
    relative = os.path.relpath(victim, sweep / "workers")
    for value in (str(victim), relative, relative.removesuffix(".lock"), str(victim).removesuffix(".lock")):
        assert not reap_if_dead({"name": "0123456789ab", "host": socket.gethostname(), field: value}, sweep)
    assert victim.read_text() == "mine"


def test_a_ledger_whose_holders_name_files_deletes_none(tmp_path):
    victim = tmp_path / "precious.txt"
    victim.write_text("mine")
    ledger = ledger_in(tmp_path)
    ledger.post({"a": {}})
    trial = ledger.study.ask()
    trial.set_user_attr("holder", {"name": "x", "host": socket.gethostname(), "lock": str(victim)})
    ledger.recover_jobs()
    assert victim.exists()


@pytest.mark.parametrize("holder", [None, [], "x", {}, {"host": 3}, {"name": ["x"]}, {"name": "0123456789ab\n"}])
def test_a_holder_of_another_form_counts_as_alive(tmp_path, holder):
    record = {"host": socket.gethostname(), **holder} if isinstance(holder, dict) else holder
    assert not reap_if_dead(record, tmp_path)


@pytest.mark.parametrize("name", ["../../precious", "/tmp/precious", "..", ".", "", "a/b", "a\n"])
def test_a_job_is_named_by_no_path(tmp_path, name):
    """Its name is that of its folder."""
    ledger = ledger_in(tmp_path)
    ledger.post({"0000": {}})
    ledger._post(name, {}, after=-1)
    with pytest.raises(ConfigError, match="must have a name such as 0003"):
        ledger.jobs()
    with registered_worker(tmp_path) as worker, pytest.raises(ConfigError, match="must have a name such as 0003"):
        ledger.claim(worker)


@pytest.mark.parametrize(
    "place", ["{sweep}/../..", "{sweep}/SGD/..", "{sweep}/SGD/0001", "{sweep}/SparseFW/0000", "{out}"]
)
def test_the_folder_of_a_job_is_its_own(tmp_path, place):
    """Two levels below the folder of the sweep, but not the job's: its network would be deleted as not needed."""
    sweep = begin_sweep(tmp_path)
    for path in (tmp_path / "model.safetensors", *((sweep.folder / row / "0001") for row in ("SGD", "SparseFW"))):
        path.mkdir(parents=True) if path.suffix == "" else path.write_text("mine")
    (sweep.folder / "SparseFW" / "0000").mkdir()
    ledger = sweep.configuration_ledger("SGD")
    ledger.post(sweep.plan.jobs("SGD"))
    with registered_worker(sweep.folder) as worker:
        claim = ledger.claim(worker)
        folder = place.format(sweep=sweep.folder, out=tmp_path)
        progress = {"step": 0, "trained": False}
        claim.trial.set_user_attr("start", {"folder": folder, "host": socket.gethostname(), "progress": progress})
        claim.done(1.0, {})
        other = ledger.claim(worker)
        other.done(2.0, {})
    job = ledger.jobs()[claim.job.name]
    assert (claim.job.name, job.start.folder) == ("0000", folder)
    assert sweep.started_folder("SGD", job) is None
    sweep.remove_unneeded_models("SGD")
    assert (tmp_path / "model.safetensors").read_text() == "mine"


def test_the_folder_of_a_job_in_another_folder_of_the_sweep_is_seen(tmp_path):
    """Several processes of a machine may each have their own folder."""
    sweep = begin_sweep(tmp_path)
    other = Sweep.join(f"sqlite:///{tmp_path / 'ledger.db'}", None, tmp_path / "other")
    folder = other.job_folder("SGD", "0000")
    folder.mkdir(parents=True)
    ledger = sweep.configuration_ledger("SGD")
    ledger.post(sweep.plan.jobs("SGD"))
    with registered_worker(other.folder) as worker:
        ledger.claim(worker).record_start(folder, TrainingProgress(0))
    assert sweep.started_folder("SGD", ledger.jobs()["0000"]) == folder


def test_a_sweep_whose_name_is_not_that_of_its_plan_is_refused(tmp_path):
    """The name of the study would be that of the folder to write, and only names of plans are checked."""
    sweep = begin_sweep(tmp_path, GRID)
    url = f"sqlite:///{tmp_path / 'foreign.db'}"
    storage = open_storage(url)
    sweep_module._store_record(storage, sweep.plan, tmp_path)
    study_id = storage.get_study_id_from_name("tiny")
    record = storage.get_study_user_attrs(study_id)["sweep"]
    storage.delete_study(study_id)
    study = sweep_module.optuna.create_study(study_name="../../escaped", storage=storage)
    study.set_user_attr("sweep", record)
    with pytest.raises(ConfigError, match="the plan in the storage is that of 'tiny'"):
        Sweep.join(url, None, None)
