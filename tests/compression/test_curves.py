"""curve: several sizes of one model, each equal to the result of compress."""

from __future__ import annotations

import json

import pytest
import torch

from sparsefw import compress, curve, recalibrate
from sparsefw.compression.curves import distance
from sparsefw.compression.recovery import passes as recovering
from sparsefw.compression.recovery.tape import Playback

RATIOS = [0.3, 0.6]


def summary(model: torch.nn.Module) -> float:
    """Any number that depends on all of the model's outputs."""
    with torch.no_grad():
        return float(model(torch.linspace(-1, 1, 320).view(5, 1, 8, 8)).square().sum())


@pytest.mark.parametrize("kind", ["filters", "rank", "weights"])
@pytest.mark.parametrize("form", ["masked", "removed"])
def test_every_point_equals_the_result_of_compress(kind, form, small_resnet, batches):
    got = curve(small_resnet, kind, RATIOS, calibration=batches, evaluate=summary, form=form, refit=True)
    assert got.dense == pytest.approx(summary(recalibrate(small_resnet, batches)))
    for point, ratio in zip(got.points, RATIOS, strict=True):
        how = {kind: ratio, **({"form": form} if kind == "filters" else {})}
        plain = compress(small_resnet, calibration=batches, refit=False, **how)
        fitted = compress(small_resnet, calibration=batches, refit=True, **how)
        assert point.plain == pytest.approx(summary(plain.model), rel=1e-4)
        assert point.refit == pytest.approx(summary(fitted.model), rel=1e-3)
        assert (point.chosen, point.metric, point.agreements) == ("refit", point.refit, None)
        assert (point.costs is None) == (form == "masked")
        if form == "removed":
            assert point.costs == plain.costs
    json.dumps(got.to_json())


def test_dense_forward_is_shared_between_points(small_resnet, batches, monkeypatch):
    """Twice as many points cost no more passes of the dense network."""
    passes = []

    class Counting(Playback):
        def __init__(self, tape, inputs):
            super().__init__(tape, inputs)
            passes.append(tape)

    monkeypatch.setattr(recovering, "Playback", Counting)
    for ratios in ([0.5], [0.3, 0.5, 0.7]):
        passes.clear()
        curve(small_resnet, "filters", ratios, calibration=batches, evaluate=summary)
        assert len(passes) == 4 * (1 + len(ratios))  # batches times the dense network and the cuts


def test_distance_by_hand(small_resnet, batches):
    """Masked: the norm of what is zeroed; low rank: the tail of the singular values."""
    masked = compress(small_resnet, filters=0.5, form="masked", calibration=batches, refit=False)
    weights = {
        n: m.weight.detach() for n, m in small_resnet.named_modules() if hasattr(m, "weight") and m.weight.ndim > 1
    }
    total = sum(float(w.square().sum()) for w in weights.values())
    lost = 0.0
    for edit in masked.plan.edits:
        lost += float(weights[edit.layer][list(edit.filters)].square().sum())
    assert distance(small_resnet, masked.model) == pytest.approx((lost / total) ** 0.5, rel=1e-5)
    ranked = compress(small_resnet, rank=0.5, calibration=batches, refit=False)
    tail = sum(
        float(torch.linalg.svdvals(weights[e.layer].flatten(1))[e.rank :].square().sum()) for e in ranked.plan.edits
    )
    assert distance(small_resnet, ranked.model) == pytest.approx((tail / total) ** 0.5, rel=1e-4)


def test_table_and_latency(small_resnet, batches):
    got = curve(
        small_resnet,
        "filters",
        RATIOS,
        calibration=batches,
        evaluate=summary,
        form="removed",
        latency=True,
        refit=False,
    )
    assert got.dense_milliseconds is not None
    assert all(p.milliseconds is not None and p.milliseconds > 0 for p in got.points)
    lines = str(got).splitlines()
    assert len(lines) == 4
    assert lines[2].split()[:1] == ["30%"]
    assert len({len(line) for line in lines[1:]}) == 1  # columns line up


def test_bad_requests(small_resnet, batches):
    for at in ([], [1.0], [-0.1], [0.5, 1.5]):
        with pytest.raises(ValueError, match="ratios to remove must be in"):
            curve(small_resnet, "filters", at, calibration=batches, evaluate=summary)
    with pytest.raises(ValueError, match="unknown kind 'colour'; there are filters, neurons, heads, rank, weights"):
        curve(small_resnet, "colour", [0.5], calibration=batches, evaluate=summary)
    with pytest.raises(ValueError, match="calibration is empty"):
        curve(small_resnet, "filters", [0.5], calibration=[], evaluate=summary)
