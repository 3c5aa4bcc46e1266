"""Measuring the steps of a training: few steps where they are slow, one training in memory at a time."""

from __future__ import annotations

import weakref

from sparsefw.bench import measure_training_speed, step_times
from sparsefw.train import load_recipe
from sparsefw.train.sizes import OverSizes

SMALL = ("model.arguments.width=4",)


def test_slow_steps_are_few(monkeypatch):
    """One step to warm up, one to estimate the time of a step, and three that are measured."""
    taken = []
    prepare = step_times.prepare

    def counted(*arguments):
        training = prepare(*arguments)
        advance = training.advance
        training.advance = lambda batch: (taken.append(len(batch.targets)), advance(batch))[1]
        return training

    monkeypatch.setattr(step_times, "prepare", counted)
    times = step_times.time_training(load_recipe("digits-resnet-rank", SMALL), None, 0.0)
    assert len(times.seconds) == 3
    assert taken == [64] * 5


def test_one_training_is_in_memory_at_a_time(monkeypatch):
    seen: list[weakref.ref] = []
    prepare = step_times.prepare

    def watched(*arguments):
        assert all(model() is None for model in seen)
        training = prepare(*arguments)
        seen.append(weakref.ref(training.model))
        return training

    monkeypatch.setattr(step_times, "prepare", watched)
    measure_training_speed("digits-resnet", None, 0.0, SMALL, ["sgd", "filters", "nuc"])
    assert len(seen) == 4


def test_sizes_are_drawn_in_every_step_that_is_measured(monkeypatch):
    """And other ones: as in a training, whose step they are a part of."""
    chosen = []
    choose = OverSizes.choose
    monkeypatch.setattr(OverSizes, "choose", lambda self, step: chosen.append(choose(self, step)))
    step_times.time_training(load_recipe("digits-resnet-sizes", SMALL), None, 0.0)
    assert len(set(chosen)) == len(chosen) == 5
