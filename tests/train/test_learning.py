"""What the product promises, on real digits: trained once by SparseFW, networks keep what SGD's lose. Seed 0 is the demo's."""

from __future__ import annotations

import math

import pytest

from sparsefw.train import fit, load_recipe
from sparsefw.train.evaluate_run import TrainedRun

pytestmark = pytest.mark.slow
AT = {
    "filters": (0.5, 0.6, 0.7, 0.8),
    "rank": (0.6, 0.7, 0.8, 0.85, 0.9, 0.95),
    "weights": (0.9, 0.95, 0.97, 0.98, 0.99, 0.995),
}


@pytest.fixture(scope="module")
def trained_runs(tmp_path_factory) -> dict[str, TrainedRun]:
    """The shipped recipes, as they are."""
    found = {}
    for variant in ("sgd", *AT):
        folder = tmp_path_factory.mktemp("runs") / variant
        fit(load_recipe(f"digits-resnet-{variant}", seed=1), folder, quiet=True)
        found[variant] = TrainedRun.open(folder)
    return found


def plain(trained: TrainedRun, kind: str, form: str) -> dict[float, float]:
    """Test accuracy at every ratio: nothing is fitted, BatchNorm statistics are recomputed."""
    return {p.ratio: p.plain for p in trained.curve(kind, AT[kind], form, refit=False, progress=False).points}


@pytest.mark.parametrize("form", ["masked", "removed"])
def test_without_70_percent_of_the_filters(trained_runs, form):
    ours, sgd = (plain(trained_runs[method], "filters", form) for method in ("filters", "sgd"))
    assert ours[0.7] >= 90
    assert sgd[0.7] < 70


@pytest.mark.parametrize("kind", ["rank", "weights"])
def test_where_sgd_falls_below_70_percent_we_are_15_points_higher(trained_runs, kind):
    ours, sgd = (plain(trained_runs[method], kind, "removed") for method in (kind, "sgd"))
    first = next(ratio for ratio in AT[kind] if not sgd[ratio] >= 70)
    assert math.isfinite(ours[first])
    assert ours[first] >= sgd[first] + 15


def test_the_dense_networks_are_good(trained_runs):
    for study in trained_runs.values():
        assert study.metrics(study.model)["accuracy"] >= 92
