"""A sweep in progress: its plan and its ledgers are in a storage, its runs in a folder.

sweep.json             the identity of the sweep that owns the folder
ledger.db              the storage, unless it is a server
ROW/0003               the run of a configuration; its network is kept only while the configuration may be chosen
ROW/0003-seed-1        the run of the chosen configuration with a further seed
results.json           the chosen configurations and their test figures
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from sparsefw.atomic_io import is_leftover, parse_json, write_json
from sparsefw.config_base import ConfigError, parse
from sparsefw.data.fingerprint import Fingerprint, difference
from sparsefw.limits import RECORD_BYTES, read_bounded
from sparsefw.runfolder import RunWriter
from sparsefw.sweep.files import IDENTITY_FILE, LEDGER_FILE, run_folder, sweep_folder_of
from sparsefw.sweep.jobs import Job, JobState
from sparsefw.sweep.ledger import Ledger
from sparsefw.sweep.storage import damage_named, open_storage, url_without_password
from sparsefw.sweep.sweep_plan import SELECTION_SEED, SweepPlan, folder_name
from sparsefw.text import did_you_mean
from sparsefw.train.config import RunConfig

SWEEP = "sweep"  # the attribute of an Optuna study that holds the plan, the token and the home folder of a sweep
DATA = "data"  # the attribute that holds the fingerprint of its data
PLAN = "plan"
TOKEN = "token"
HOME = "home"
CONFIGURATION = "configuration"  # the parameters of a job that trains a seed: the name of the chosen job, and the seed
SEED = "seed"


@dataclass(frozen=True, eq=False)
class Sweep:
    """A sweep; its random token distinguishes it from other sweeps of the same name, in storages and in folders."""

    plan: SweepPlan
    storage: optuna.storages.RDBStorage
    folder: Path
    token: str
    trust: bool = False  # whether code that the plan names may be imported

    @classmethod
    def begin(cls, plan: SweepPlan, url: str, folder: Path, trust: bool = False) -> Sweep:
        """Store the plan of a new sweep, or continue a sweep that has the same plan."""
        plan.import_code(trust)
        storage = open_storage(url)
        record = _store_record(storage, plan, folder)
        plan.check_same(record.plan)
        sweep = cls(plan, storage, folder, record.token, trust)
        sweep._claim_folder(url)
        for row in plan.rows:  # create the studies now, before several workers try to
            sweep.configuration_ledger(row)
            sweep.seed_ledger(row)
        return sweep

    @classmethod
    def join(cls, url: str, name: str | None, folder: Path | None, trust: bool = False) -> Sweep:
        """Open a sweep that another process began.

        Args:
            url: the storage
            name: of the sweep; None if the storage holds only one
            folder: where to train; None: in the folder of that process, if it is on this machine
            trust: whether Python code that the plan in the storage names may be imported, which runs it
        """
        storage = open_storage(url, must_exist=True)
        with damage_named(storage):
            names = [study.study_name for study in optuna.get_all_study_summaries(storage) if SWEEP in study.user_attrs]
        if not names:
            raise ConfigError(
                f"storage {url_without_password(url)} holds no sweep; `sparsefw sweep GRID --storage URL` begins one"
            )
        if name is None and len(names) > 1:
            raise ConfigError(
                f"storage {url_without_password(url)} holds the sweeps {', '.join(names)}; choose one with --name"
            )
        name = names[0] if name is None else name
        if name not in names:
            raise ConfigError(f"--name {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}")
        record = _read_record(storage, name)
        record.plan.import_code(trust)
        if folder is None:
            is_here = _token_of_folder(record.home) == record.token
            folder = record.home if is_here else Path("runs") / f"sweep-{name}"
        sweep = cls(record.plan, storage, folder, record.token, trust)
        sweep._claim_folder(url)
        return sweep

    def _claim_folder(self, url: str) -> None:
        """Write the identity file into the folder; refuse a folder that holds something else."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is a file; choose another --out")
        token = _token_of_folder(self.folder)
        if token == self.token:
            return
        if token is not None:
            raise ConfigError(f"{self.folder} belongs to another sweep; choose another --out")
        names = [file.name for file in self.folder.iterdir()] if self.folder.exists() else []
        if any(not name.startswith(LEDGER_FILE) and not is_leftover(name) for name in names):
            raise ConfigError(f"{self.folder} holds files, but no sweep; choose another --out")
        identity = {TOKEN: self.token, "name": self.plan.name, "storage": url_without_password(url)}
        write_json(self.folder / IDENTITY_FILE, identity)

    def check_data(self, now: Fingerprint) -> None:
        """Record the data of the sweep, or refuse others: all trainings must see the same, or they could not be compared."""
        study = optuna.load_study(study_name=self.plan.name, storage=self.storage)
        if DATA not in study.user_attrs:
            study.set_user_attr(DATA, now)
        what = difference(study.user_attrs[DATA], now)
        if what is not None:
            raise ConfigError(
                f"the sweep {self.plan.name} was begun with other data: {what}; give those by --data, or begin another sweep"
            )

    @functools.cache  # noqa: B019  (sweeps are few and live as long as their process)
    def configuration_ledger(self, row: str) -> Ledger:
        """Return the ledger of the configurations of a row."""
        return self._ledger(f"{self.plan.name}: {row}", self.plan.space(row), self.plan.budget(row))

    @functools.cache  # noqa: B019
    def seed_ledger(self, row: str) -> Ledger:
        """Return the ledger of the seeds of a row's chosen configuration."""
        return self._ledger(f"{self.plan.name}, seeds: {row}", {})

    def _ledger(self, name: str, space: Mapping[str, Any], budget: int | None = None) -> Ledger:
        study = optuna.create_study(
            study_name=name,
            storage=self.storage,
            sampler=self.plan.optuna_sampler(),
            pruner=optuna.pruners.MedianPruner() if self.plan.prune else optuna.pruners.NopPruner(),
            direction="maximize",
            load_if_exists=True,
        )
        return Ledger(study, self.storage, self.folder, self.plan.grace, space, budget)

    def finished_configurations(self, row: str) -> dict[str, Job] | None:
        """Return all configurations of a row; None until all of them are finished."""
        jobs = self.configuration_ledger(row).jobs()
        finished = len(jobs) >= self.plan.count(row) and all(job.finished for job in jobs.values())
        return jobs if finished else None

    def chosen(self, row: str) -> Job | None:
        """Return the configuration of a row that is reported; None until all are finished, or if all failed."""
        return best_job(self.finished_configurations(row) or {})

    def seed_jobs(self, row: str) -> dict[str, dict[str, Any]]:
        """Return the jobs that train the chosen configuration on every seed: name -> configuration and seed."""
        chosen = self.chosen(row)
        if chosen is None:
            return {}
        return {f"{chosen.name}-seed-{seed}": {CONFIGURATION: chosen.name, SEED: seed} for seed in self.seeds}

    @property
    def seeds(self) -> range:
        return range(SELECTION_SEED, SELECTION_SEED + self.plan.seeds)

    def finished(self) -> bool:
        return all(self._row_finished(row) for row in self.plan.rows)

    def _row_finished(self, row: str) -> bool:
        if self.finished_configurations(row) is None:
            return False
        jobs = self.seed_ledger(row).jobs()
        return all(name in jobs and jobs[name].finished for name in self.seed_jobs(row))

    def config(self, row: str, job: Job, seed: int = SELECTION_SEED) -> RunConfig:
        return self.plan.config(row, job.name, job.params, seed)

    def job_folder(self, row: str, name: str) -> Path:
        """Return the folder of a job on this machine."""
        return run_folder(self.folder, folder_name(row), name)

    def started_folder(self, row: str, job: Job) -> Path | None:
        """Return the folder in which a job was last started; None if it was not, or if this machine cannot see it.

        The ledger names the folder, and files in it are deleted: it must be that of this job in a folder of this sweep.
        """
        if job.start is None:
            return None
        folder = Path(job.start.folder)
        home = sweep_folder_of(folder)
        if folder != run_folder(home, folder_name(row), job.name) or _token_of_folder(home) != self.token:
            return None
        return folder if folder.is_dir() else None

    def remove_unneeded_models(self, row: str) -> None:
        """Delete the networks of finished configurations that cannot be chosen any more.

        A worker may call this with an outdated view of the ledger: the best configuration of all is also the best of every
        view that contains it, and a view that does not contain it does not touch it.
        """
        jobs = self.configuration_ledger(row).jobs()
        best = best_job(jobs)
        for job in jobs.values():
            folder = self.started_folder(row, job)
            if job.state in (JobState.DONE, JobState.PRUNED) and job is not best and folder is not None:
                RunWriter(folder).forget_model()


def best_job(jobs: Mapping[str, Job]) -> Job | None:
    """Return the finished job with the largest value, the mean validation metric over all ratios; of equals the first."""
    done = [job for job in jobs.values() if job.state is JobState.DONE and job.value is not None]
    return max(done, key=lambda job: job.value or 0.0, default=None)


@dataclass(frozen=True)
class _Record:
    """A sweep as its storage describes it; home: the folder of the process that began it."""

    plan: SweepPlan
    token: str
    home: Path


def _store_record(storage: optuna.storages.RDBStorage, plan: SweepPlan, folder: Path) -> _Record:
    """Return the record of the sweep. The first process writes it; others wait five seconds for it, then write it themselves."""
    try:
        optuna.create_study(study_name=plan.name, storage=storage)
    except optuna.exceptions.DuplicatedStudyError:
        for _ in range(50):
            if SWEEP in storage.get_study_user_attrs(storage.get_study_id_from_name(plan.name)):
                return _read_record(storage, plan.name)
            time.sleep(0.1)  # the first process may have been killed before it wrote the record
    study = optuna.load_study(study_name=plan.name, storage=storage)
    record = {TOKEN: uuid.uuid4().hex, HOME: str(folder.resolve()), PLAN: plan.model_dump(mode="json")}
    study.set_user_attr(SWEEP, record)  # one attribute, so that nobody reads half a record
    return _read_record(storage, plan.name)


def _read_record(storage: optuna.storages.RDBStorage, name: str) -> _Record:
    with damage_named(storage):
        record = storage.get_study_user_attrs(storage.get_study_id_from_name(name))[SWEEP]
        plan = parse(SweepPlan, record[PLAN], f"sweep {name}")
        token = str(record[TOKEN])
        home = Path(record[HOME])
    if plan.name != name:  # names of plans are checked: they name folders
        raise ConfigError(f"sweep {name!r}: the plan in the storage is that of {plan.name!r}")
    return _Record(plan, token, home)


def _token_of_folder(folder: Path) -> str | None:
    """Return the token of the sweep that owns a folder; None if there is none."""
    try:
        return str(parse_json(read_bounded(folder / IDENTITY_FILE, RECORD_BYTES).decode())[TOKEN])
    except (OSError, ValueError, KeyError, TypeError):
        return None
