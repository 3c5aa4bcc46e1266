"""What a run records about itself when it begins: the facts of run.json, and the environment."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

from sparsefw.environment import environment
from sparsefw.methods import Masked
from sparsefw.runfolder import RunFacts, RunKind
from sparsefw.runfolder.schema import EnvironmentRecord, RetrainingPhase, SweepJob
from sparsefw.train.config import RunConfig


def run_facts(
    config: RunConfig, metric: str, phase: RetrainingPhase | None = None, job: SweepJob | None = None
) -> RunFacts:
    """Return what is recorded about a run of this configuration.

    Args:
        metric: the figure of merit of its task.
        phase: of the retraining that makes the run.
        job: of the sweep that makes the run.
    """
    kind = getattr(config.method, "kind", None)
    family = config.method.title if kind is None else f"{config.method.title} {kind}"
    return RunFacts(
        name=config.name,
        kind=RunKind.RETRAINED if isinstance(config.method, Masked) else RunKind.TRAINED,
        label=config.label,
        family=family if config.sizes is None else f"{family} over sizes",
        seed=config.seed,
        metric=metric,
        phase=phase,
        job=job,
    )


def environment_record(data: Path | None) -> EnvironmentRecord:
    """Return the versions and the hardware of this process. data: the folder that the data are read from."""
    return EnvironmentRecord(**environment(), code=code_version(), data=None if data is None else str(data.resolve()))


def code_version() -> dict[str, Any]:
    """Return the package's version, a hash of its sources, and the commit where it runs from a repository."""
    from sparsefw import __version__

    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\n".encode() + file.read_bytes())
    version: dict[str, Any] = {"version": __version__, "sha256": digest.hexdigest()}
    commit = _git(package, "rev-parse", "HEAD")
    if commit is None:
        return version
    changes = _git(package, "status", "--porcelain", "--", ".")
    if changes is None:
        return {**version, "commit": commit}
    return {**version, "commit": commit, "changed": bool(changes)}


def _git(folder: Path, *words: str) -> str | None:
    """Return what a git command prints; None where it fails."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout.strip()
