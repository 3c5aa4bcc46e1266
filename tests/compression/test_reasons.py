"""Reasons are types with a text, and no decision depends on the text."""

from __future__ import annotations

import string

import pytest
import torch
from torch import nn

from compression.networks import IMAGES
from sparsefw.compression import compress
from sparsefw.compression.artifact.plan import Plan, Untouched
from sparsefw.compression.kinds.filters import _ends
from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.structure.trace import find_channels

REQUESTS = [
    {"filters": 0.5},
    {"filters": 0.5, "form": "masked"},
    {"neurons": 0.5},
    {"neurons": 0.5, "form": "masked"},
    {"rank": 0.5},
    {"weights": 0.7},
    {"filters": 0.4, "rank": 0.3, "weights": 0.5},
]


def network() -> nn.Module:
    """Layers that must stay for several reasons: groups, a mean over channels, one name too many, the output."""
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(2, 8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), shared, nn.ReLU(), shared, nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4),
    )  # fmt: skip


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_text_and_takes_its_details(cause):
    details = {name: name.upper() for _, name, _, _ in string.Formatter().parse(cause.text) if name}
    text = because(cause, **details).text
    assert text.strip() == text != ""
    assert all(value in text for value in details.values())
    assert "{" not in text


def test_texts_are_different():
    assert len({cause.text for cause in Cause}) == len(list(Cause))


@pytest.mark.parametrize("asked", REQUESTS, ids=str)
def test_edits_are_the_same_with_other_texts(asked, monkeypatch):
    """Whoever branches on a sentence fails here."""
    before = compress(network(), calibration=IMAGES, **asked)
    for i, cause in enumerate(Cause):
        monkeypatch.setattr(cause, "text", f"sentence {i}")
    after = compress(network(), calibration=IMAGES, **asked)
    assert after.plan.edits == before.plan.edits
    assert after.plan.untouched != before.plan.untouched
    assert [entry.cause for entry in after.plan.untouched] == [entry.cause for entry in before.plan.untouched]


def test_the_output_is_recognised_by_its_cause(monkeypatch):
    model = network()
    monkeypatch.setattr(Cause.OUTPUT, "text", "something else")
    ends = _ends(find_channels(model, IMAGES[0]))
    assert ends["12"].cause is Cause.OUTPUT
    assert str(ends["12"]) == "something else"


def test_a_file_holds_the_text_only():
    entry = Untouched.because("fc", because(Cause.OUTPUT))
    plan = Plan(untouched=(entry,))
    assert plan.to_json()["untouched"] == [{"layer": "fc", "reason": "the model's output", "note": False}]
    (read,) = Plan.from_json(plan.to_json()).untouched
    assert read == entry
    assert read.cause is None
    assert Untouched.because("a", because(Cause.NOT_FITTED_SHARED)).note
