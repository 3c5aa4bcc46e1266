"""A run that is killed, wherever that may be, and started again by the same command ends in the same bytes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from train.harness import (
    assert_same_run,
    being_written,
    checkpoint_steps,
    command,
    ended,
    reached,
    send_when,
    start,
    trained,
    untimed,
)

OWN = "model.name=train.networks:group_norm"
# What a training may remember from one step to the next: warm starts, averages, numbers drawn in the network, parts of batches.
VARIANTS = {
    "filters": ("digits-resnet-filters", ("train.mixup=0.2", "engine.accumulate=4")),
    "rank": ("digits-resnet-rank", ("train.ema=0.9",)),
    "weights": ("digits-resnet-weights", ("train.schedule.kind=cosine", "train.schedule.warmup=1", "train.mixup=0.4")),
    "sgd": ("digits-resnet-sgd", ("train.nesterov=true", "data.augment.crop=1", "train.label_smoothing=0.1")),
    "dropout": ("digits-resnet-rank", (OWN, "model.arguments.dropout=0.5", "train.ema=0.99", "engine.accumulate=2")),
    "sizes": ("digits-resnet-sizes", ("engine.accumulate=2", "train.mixup=0.2", "train.ema=0.9")),
    "draws": ("digits-resnet-sgd", ("sizes.draws=3", "sizes.both=true", "sizes.targets=outputs", "train.mixup=0.2")),
    "directions": ("digits-resnet-sgd", ("sizes.kind=rank",)),
    "adamw": ("digits-vit-neurons", ("model.arguments.width=12", "train.evaluate_every=2")),
}
STEPS = 57  # three epochs of nineteen


def words(variant: str, folder: Path) -> list[str]:
    recipe, changes = VARIANTS[variant]
    return command(recipe, folder, *changes, width=None if variant == "adamw" else 8)


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of an uninterrupted run, made once."""
    folders: dict[str, Path] = {}

    def made(variant: str) -> Path:
        if variant not in folders:
            folders[variant] = tmp_path_factory.mktemp("reference") / variant
            trained(words(variant, folders[variant]))
        return folders[variant]

    return made


def killed(variant: str, folder: Path, when: Callable[[], bool], delay: float = 0.0) -> bool:
    """Start, and kill when the moment has come; False where the run ended before."""

    def moment() -> bool:
        if when():
            time.sleep(delay)
            return True
        return False

    process = start(words(variant, folder))
    hit = send_when(process, moment)
    ended(process, code=None)
    assert hit or process.returncode == 0
    return process.returncode != 0


@pytest.mark.slow
def test_killed_in_a_step_in_a_checkpoint_and_in_an_evaluation_a_run_ends_in_the_same_bytes(reference, tmp_path):
    """With warm starts of the oracle and an average of the weights."""
    folder = tmp_path / "run"
    assert killed("rank", folder, lambda: being_written(folder) and reached(folder, 5)())
    assert killed("rank", folder, reached(folder, 18), delay=0.02)  # the epoch ends after step 19
    assert killed("rank", folder, reached(folder, 30))
    assert max(checkpoint_steps(folder)) >= 30
    said = trained(words("rank", folder))
    assert f"of {STEPS}" in said
    assert "resuming from step" in said
    assert_same_run(folder, reference("rank"))


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_kind_of_training_goes_on_as_if_nothing_had_been(reference, tmp_path, variant):
    folder = tmp_path / "run"
    assert killed(variant, folder, reached(folder, 7))
    assert killed(variant, folder, lambda: being_written(folder) and reached(folder, 25)())
    trained(words(variant, folder))
    assert_same_run(folder, reference(variant))


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "seed"), [("filters", 1), ("rank", 2), ("dropout", 3), ("sgd", 4)])
def test_twenty_kills_at_random_points_change_nothing(reference, tmp_path, variant, seed):
    """Five in each of four runs, a little later each time: in a step, while a file is written, between the two."""
    folder, draw, kills, step = tmp_path / "run", random.Random(seed), 0, 0
    while kills < 5:
        step = min(step + draw.randint(1, 10), STEPS - 2)
        writing, delay = draw.random() < 0.4, draw.choice([0.0, draw.random() * 0.02])
        due = reached(folder, step)
        kills += killed(variant, folder, lambda w=writing, d=due: d() and (being_written(folder) or not w), delay)
        assert not (folder / "result.json").exists(), "it ended before it could be killed five times"
    trained(words(variant, folder))
    assert_same_run(folder, reference(variant))


def test_killed_before_the_first_checkpoint_it_starts_from_the_beginning(reference, tmp_path):
    folder = tmp_path / "run"
    assert killed("rank", folder, (folder / "config.yaml").exists)
    trained(words("rank", folder))
    assert_same_run(folder, reference("rank"))


@pytest.mark.slow
def test_killed_after_the_last_step_it_goes_on_too(reference, tmp_path):
    """While the last evaluations and the network are written."""
    folder = tmp_path / "run"
    assert killed("rank", folder, lambda: len(untimed(folder)) == 3)
    trained(words("rank", folder))
    assert_same_run(folder, reference("rank"))


@pytest.mark.slow
def test_with_a_damaged_newest_checkpoint_the_one_before_leads_to_the_same_end(reference, tmp_path):
    folder = tmp_path / "run"
    assert killed("rank", folder, reached(folder, 24))
    newest = sorted((folder / "checkpoints").glob("step-*"))[-1]
    content = bytearray(newest.read_bytes())
    content[-1] ^= 128
    newest.write_bytes(content)
    assert f"{newest.name} is damaged" in trained(words("rank", folder))
    assert_same_run(folder, reference("rank"))


@pytest.mark.slow
def test_stopped_before_its_first_checkpoint_it_starts_again_and_says_so(reference, tmp_path):
    folder = tmp_path / "run"
    assert killed("rank", folder, reached(folder, 24))
    for file in (folder / "checkpoints").glob("step-*"):
        file.unlink()
    assert "stopped before its first checkpoint (engine.checkpoint_seconds=0): starting again" in trained(
        words("rank", folder)
    )
    assert_same_run(folder, reference("rank"))


@pytest.mark.slow
def test_with_all_checkpoints_damaged_it_starts_again_and_says_so(reference, tmp_path):
    folder = tmp_path / "run"
    assert killed("rank", folder, reached(folder, 24))
    files = list((folder / "checkpoints").glob("step-*"))
    for file in files:
        file.write_bytes(b"")
    said = trained(words("rank", folder))
    assert said.count("is damaged") == len(files) in (2, 3)  # three where the kill came before the oldest was removed
    assert "no whole checkpoint is left: starting again" in said
    assert "going on" not in said
    assert_same_run(folder, reference("rank"))


@pytest.mark.slow
def test_the_engine_may_change_on_the_way(tmp_path):
    """Other readers, other times of checkpoints: the same run."""
    folder = tmp_path / "run"
    own = ("digits-resnet-sgd", folder, OWN)
    process = start(command(*own))
    assert send_when(process, reached(folder, 20))
    ended(process, code=None)
    trained(command(*own, "engine.workers=1", "engine.checkpoint_seconds=60"))
    trained(command("digits-resnet-sgd", tmp_path / "whole", OWN))
    for found, expected in zip(untimed(folder), untimed(tmp_path / "whole"), strict=True):
        assert found["train"] == pytest.approx(expected["train"], rel=1e-4)
