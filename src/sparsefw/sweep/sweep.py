"""A sweep under way: its plan and its ledgers in a storage, its runs in a folder.

sweep.json             which sweep this folder belongs to
ledger.db              the storage, where it is not a server
ROW/0003               the run of a configuration; its network is kept only while it may still be chosen
ROW/0003-seed-1        the chosen one, on a further seed
results.json           what was chosen, and its test figures
"""

from __future__ import annotations

import functools
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from sparsefw.atomic_io import is_leftover, write_json
from sparsefw.config_base import ConfigError, parse
from sparsefw.sweep.ledger import Job, Ledger
from sparsefw.sweep.storage import LEDGER, open_storage, shown_url
from sparsefw.sweep.sweep_plan import FIRST, SweepPlan, slug
from sparsefw.text import did_you_mean
from sparsefw.train.config import RunConfig

SWEEP, PLAN, TOKEN, HOME = "sweep", "plan", "token", "home"
MARK = "sweep.json"


@dataclass(frozen=True, eq=False)
class Sweep:
    """token: what tells this sweep from another of the same name, in storages and folders."""

    plan: SweepPlan
    storage: optuna.storages.RDBStorage
    folder: Path
    token: str

    @classmethod
    def begin(cls, plan: SweepPlan, url: str, folder: Path) -> Sweep:
        """Write the plan down, or go on with a sweep that has this very plan."""
        storage = open_storage(url)
        found = _begun(storage, plan, folder)
        plan.same_as(found.plan)
        sweep = cls(plan, storage, folder, found.token)
        sweep._mark(url)
        for row in plan.rows:  # once, before several workers may try
            sweep.trials(row), sweep.finals(row)
        return sweep

    @classmethod
    def join(cls, url: str, name: str | None, folder: Path | None) -> Sweep:
        """Help with a sweep that another process began. folder: where to train; by default where that one does, if it is here."""
        storage = open_storage(url, must_exist=True)
        names = [study.study_name for study in optuna.get_all_study_summaries(storage) if SWEEP in study.user_attrs]
        if not names:
            raise ConfigError(
                f"storage {shown_url(url)} holds no sweep; `sparsefw sweep GRID --storage URL` begins one"
            )
        if name is None and len(names) > 1:
            raise ConfigError(f"storage {shown_url(url)} holds the sweeps {', '.join(names)}; choose one with --name")
        name = names[0] if name is None else name
        if name not in names:
            raise ConfigError(f"--name {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}")
        found = _read(storage, name)
        if folder is None:
            folder = found.home if _token(found.home) == found.token else Path("runs") / f"sweep-{name}"
        sweep = cls(found.plan, storage, folder, found.token)
        sweep._mark(url)
        return sweep

    def _mark(self, url: str) -> None:
        """Claim the folder, or see that it is this sweep's."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"{self.folder} is a file; choose another --out")
        before = _token(self.folder)
        if before not in (None, self.token):
            raise ConfigError(f"{self.folder} belongs to another sweep; choose another --out")
        if before is None:
            there = [file.name for file in self.folder.iterdir()] if self.folder.exists() else []
            if any(not name.startswith(LEDGER) and not is_leftover(name) for name in there):
                raise ConfigError(f"{self.folder} holds files, but no sweep; choose another --out")
            about = {TOKEN: self.token, "name": self.plan.name, "storage": shown_url(url)}
            write_json(self.folder / MARK, about)

    @functools.cache  # noqa: B019  (sweeps are few and live as long as their process)
    def trials(self, row: str) -> Ledger:
        """The configurations of a row."""
        return self._ledger(f"{self.plan.name}: {row}", self.plan.space(row), self.plan.budget(row))

    @functools.cache  # noqa: B019
    def finals(self, row: str) -> Ledger:
        """The seeds of the configuration that was chosen."""
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
        return Ledger(study, self.storage, self.plan.grace, space, budget)

    def searched(self, row: str) -> dict[str, Job] | None:
        """All configurations of a row, once none of them is waited for."""
        jobs = self.trials(row).jobs()
        over = len(jobs) >= self.plan.count(row) and all(job.settled for job in jobs.values())
        return jobs if over else None

    def chosen(self, row: str) -> Job | None:
        """Of a row that was searched, the ONE configuration that is reported; None where there is none (yet)."""
        return best(self.searched(row) or {})

    def final_jobs(self, row: str) -> dict[str, dict[str, Any]]:
        chosen = self.chosen(row)
        return {} if chosen is None else {final_name(chosen.name, seed): {} for seed in self.seeds}

    @property
    def seeds(self) -> range:
        return range(FIRST, FIRST + self.plan.seeds)

    def finished(self) -> bool:
        return all(self._row_finished(row) for row in self.plan.rows)

    def _row_finished(self, row: str) -> bool:
        if self.searched(row) is None:
            return False
        jobs = self.finals(row).jobs()
        return all(name in jobs and jobs[name].settled for name in self.final_jobs(row))

    def config(self, row: str, job: Job, seed: int = FIRST) -> RunConfig:
        return self.plan.config(row, job.name, job.params, seed)

    def place(self, row: str, name: str) -> Path:
        """Where a job is done on this machine."""
        return self.folder / slug(row) / name

    def reachable(self, path: str | None) -> Path | None:
        """The folder, where it is one of this sweep's and can be seen from here."""
        if path is None:
            return None
        folder = Path(path)
        return folder if _token(folder.parents[1]) == self.token and folder.is_dir() else None

    def forget(self, row: str) -> None:
        """Remove the networks that will not be chosen any more.

        Whichever worker does this, with however old a view of the ledger: the best of all is the best of any view that has it,
        and views that do not have it do not touch it.
        """
        jobs = self.trials(row).jobs()
        kept = best(jobs)
        for job in jobs.values():
            folder = self.reachable(job.begun.get("folder"))
            if job.state in ("done", "pruned") and job is not kept and folder is not None:
                (folder / "model.safetensors").unlink(missing_ok=True)


def best(jobs: Mapping[str, Job]) -> Job | None:
    """The one with the largest mean validation metric over all ratios; of equals the first."""
    done = [job for job in jobs.values() if job.state == "done" and job.value is not None]
    return max(done, key=lambda job: job.value or 0.0, default=None)


def final_name(job: str, seed: int) -> str:
    return f"{job}-seed-{seed}"


def final_of(name: str) -> tuple[str, int]:
    """The configuration and the seed that a final job is about."""
    job, _, seed = name.rpartition("-seed-")
    return job, int(seed)


def _begun(storage: optuna.storages.RDBStorage, plan: SweepPlan, folder: Path) -> _Found:
    """The plan in the storage, written by whichever process is the first; a second one waits for it, but not for ever."""
    try:
        optuna.create_study(study_name=plan.name, storage=storage)
    except optuna.exceptions.DuplicatedStudyError:
        for _ in range(50):
            if SWEEP in storage.get_study_user_attrs(storage.get_study_id_from_name(plan.name)):
                return _read(storage, plan.name)
            time.sleep(0.1)  # its first process may have been killed right here
    study = optuna.load_study(study_name=plan.name, storage=storage)
    about = {TOKEN: uuid.uuid4().hex, HOME: str(folder.resolve()), PLAN: plan.model_dump(mode="json")}
    study.set_user_attr(SWEEP, about)  # all at once
    return _read(storage, plan.name)


@dataclass(frozen=True)
class _Found:
    plan: SweepPlan
    token: str
    home: Path


def _read(storage: optuna.storages.RDBStorage, name: str) -> _Found:
    attributes = storage.get_study_user_attrs(storage.get_study_id_from_name(name))[SWEEP]
    return _Found(parse(SweepPlan, attributes[PLAN], f"sweep {name}"), attributes[TOKEN], Path(attributes[HOME]))


def _token(folder: Path) -> str | None:
    try:
        return str(json.loads((folder / MARK).read_text())[TOKEN])
    except (OSError, ValueError, KeyError):
        return None


def settled_count(sweep: Sweep) -> tuple[int, int]:
    """Jobs that are settled, and all, as far as they are known."""
    done = wanted = 0
    for row in sweep.plan.rows:
        finals, names = sweep.finals(row).jobs(), sweep.final_jobs(row)
        done += sum(job.settled for job in sweep.trials(row).jobs().values())
        done += sum(name in finals and finals[name].settled for name in names)
        wanted += sweep.plan.count(row) + (len(names) or sweep.plan.seeds)
    return done, wanted
