"""The factor on the learning rate, at the first step, at the last, and at every turn between."""

from __future__ import annotations

import math

import pytest

from sparsefw.config_base import ConfigError, parse
from sparsefw.train.schedule import Schedule

KINDS = ("linear", "cosine", "step", "constant")


def factors(steps: int, per_epoch: int = 1, **settings) -> list[float]:
    schedule = Schedule(**settings)
    return [schedule.at(step, steps, per_epoch) for step in range(steps)]


def test_linear_falls_by_equal_parts_and_would_be_zero_after_the_last_step():
    assert factors(4, kind="linear") == [1.0, 0.75, 0.5, 0.25]


def test_cosine_is_one_at_the_start_one_half_in_the_middle_and_flat_at_both_ends():
    found = factors(4, kind="cosine")
    assert found == pytest.approx([1.0, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4])
    assert factors(1000, kind="cosine")[-1] == pytest.approx(0, abs=1e-5)


def test_step_multiplies_at_each_milestone_and_not_before():
    found = factors(8, kind="step", milestones=[0.5, 0.75], factor=0.1)
    assert found == pytest.approx([1, 1, 1, 1, 0.1, 0.1, 0.01, 0.01])


def test_constant_stays():
    assert factors(5, kind="constant") == [1.0] * 5


def test_warmup_counts_epochs_and_rises_by_equal_parts_to_the_full_rate_once():
    """Two epochs of two steps: fifths, then the whole rate, and the rest of the training for the way down."""
    found = factors(8, per_epoch=2, kind="linear", warmup=2)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 0.75, 0.5, 0.25])
    assert found.count(1.0) == 1


def test_milestones_are_fractions_of_what_follows_the_warmup():
    found = factors(10, kind="step", warmup=2, milestones=[0.5], factor=0.5)
    assert found == pytest.approx([1 / 3, 2 / 3, 1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5])


def test_a_warmup_of_half_an_epoch_is_half_its_steps():
    assert factors(8, per_epoch=4, kind="constant", warmup=0.5)[:3] == pytest.approx([1 / 3, 2 / 3, 1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("warmup", [0, 1, 3, 100])
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_every_factor_is_above_zero_and_never_above_one(kind, warmup, steps):
    found = factors(steps, per_epoch=3, kind=kind, warmup=warmup)
    assert all(0 < factor <= 1 for factor in found)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_what_falls_to_zero_is_almost_there_in_the_last_step_of_a_long_training(kind):
    assert 0 < factors(10_000, kind=kind)[-1] < 1.1e-4


def test_a_warmup_longer_than_the_training_only_rises():
    found = factors(4, kind="cosine", warmup=50)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8])


def test_one_single_step_has_the_full_rate():
    assert [factors(1, kind=kind) for kind in KINDS] == [[1.0]] * 4


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"kind": "exponential"}, "kind='exponential'"),
        ({"milestones": [0.75, 0.5]}, "milestones=[0.75, 0.5]"),
        ({"milestones": [0.5, 0.5]}, "milestones"),
        ({"milestones": [0.5, 1.0]}, "milestones"),
        ({"milestones": [30, 60]}, "fractions between 0 and 1"),
        ({"factor": 1.5}, "factor=1.5"),
        ({"factor": 0}, "factor=0"),
        ({"warmup": -1}, "warmup=-1"),
        ({"warm_up": 1}, "unknown key 'warm_up'; did you mean 'warmup'?"),
    ],
)
def test_a_setting_that_makes_no_sense_is_named_in_one_line(settings, named):
    with pytest.raises(ConfigError) as error:
        parse(Schedule, settings, "schedule")
    assert named in str(error.value)
    assert "\n" not in str(error.value)
