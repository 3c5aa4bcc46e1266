"""Real trainings on digits: the schema declares every file that they write, and the facts are those of the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sparsefw.cli.curve_run import curve_run
from sparsefw.cli.train_run import train_run
from sparsefw.runfolder import RunKind, RunStatus, read_run
from sparsefw.runfolder.files import is_declared
from sparsefw.runfolder.schema import RetrainingPhase, SweepJob
from sparsefw.train import fit, load_recipe
from sparsefw.train.evaluate_run import TrainedRun
from sparsefw.train.recorder import Recorder
from sparsefw.train.retrain import retrain

SMALL = ["train.epochs=1", "model.arguments.width=4", "data.batch_size=400", "engine.device=cpu"]
QUICK = {"calibration": 64, "refit": False, "progress": False}


def undeclared(folder: Path) -> list[Path]:
    files = [Path(path, name).relative_to(folder) for path, _, names in os.walk(folder) for name in names]
    assert files
    return [file for file in files if not is_declared(file)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Trained, drawn, and evaluated on both splits."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_run(load_recipe("digits-resnet-filters", SMALL, seed=4), folder, None, quiet=True)
    run = TrainedRun.open(folder, device="cpu")
    for split in ("test", "validation"):
        curve_run(run, "filters", [0.5], "removed", split, dict(QUICK))
    return folder


def test_every_file_is_declared(trained):
    assert undeclared(trained) == []
    (trained / "stranger.txt").write_text("")
    assert undeclared(trained) == [Path("stranger.txt")]
    (trained / "stranger.txt").unlink()


def test_every_file_of_a_training_that_was_stopped_is_declared(tmp_path, monkeypatch):
    """While it trains, there are checkpoints and a lock."""
    seen = []

    def judge(training):
        seen.extend(undeclared(tmp_path))
        assert (tmp_path / "checkpoints").is_dir()
        raise KeyError("stop")

    checkpoint = Recorder._checkpoint_if_due
    monkeypatch.setattr(Recorder, "stepped", lambda self, training, lr: checkpoint(self, training))
    with pytest.raises(KeyError):
        fit(
            load_recipe("digits-resnet-filters", [*SMALL, "engine.checkpoint_seconds=0"]),
            tmp_path,
            judge=judge,
            quiet=True,
        )
    assert seen == []


def test_the_facts_of_a_training(trained):
    run = read_run(trained)
    facts = run.facts
    config = load_recipe("digits-resnet-filters", SMALL)
    assert (facts.name, facts.label, facts.family) == (config.name, config.label, "SparseFW filters")
    assert (facts.kind, facts.seed, facts.metric) == (RunKind.TRAINED, 4, "accuracy")
    assert (facts.phase, facts.job) == (None, None)
    assert (run.status, run.problems) == (RunStatus.FINISHED, ())
    assert {(curve.kind, curve.form, curve.split, curve.settings.calibration) for curve in run.curves} == {
        ("filters", "removed", "test", 64),
        ("filters", "removed", "validation", 64),
    }


def test_the_facts_of_a_retraining(trained, tmp_path):
    phases = retrain(trained, tmp_path / "out", weights=0.5, epochs=1, phases=2, quiet=True)
    facts = [read_run(phase.folder).facts for phase in phases]
    assert [one.kind for one in facts] == [RunKind.RETRAINED] * 2
    source = str(trained.resolve())
    assert facts[0].phase == RetrainingPhase(source, pytest.approx(1 - 0.5**0.5), "llr", 1, 2)
    assert facts[1].phase == RetrainingPhase(source, 0.5, "llr", 2, 2)
    assert undeclared(phases[0].folder) == []


def test_the_facts_of_a_job_of_a_sweep(tmp_path):
    job = SweepJob("tiny", "SGD", "0003", final=False)
    fit(load_recipe("digits-resnet-sgd", SMALL), tmp_path, quiet=True, job=job)
    assert read_run(tmp_path).facts.job == job
    assert undeclared(tmp_path) == []
