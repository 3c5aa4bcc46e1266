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
from sparsefw.compression.structure.removal import removable_channels
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


class Capsules(nn.Module):
    """Scales groups of channels by their norms: nothing in it is a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        capsules = self.first(x).view(len(x), 4, 4)
        return self.last((capsules * capsules.norm(dim=-1, keepdim=True)).flatten(1))


class Grid(nn.Module):
    """Adds positions, half of whose channels are those of a row and half those of a column: nothing in it is shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 3)
        self.row, self.column = nn.Parameter(torch.randn(50, 8)), nn.Parameter(torch.randn(50, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape[2:]
        parts = self.row[:rows, None].expand(-1, columns, -1), self.column[None, :columns].expand(rows, -1, -1)
        return self.last((self.first(x) + torch.cat(parts, -1).permute(2, 0, 1)).relu().mean((2, 3)))


@pytest.mark.parametrize(
    ("net", "x", "cause"),
    [
        (Capsules(), torch.randn(5, 6), Cause.USED_BY_MANY),
        (Grid(), torch.randn(2, 3, 8, 8), Cause.ALL_TOGETHER),
    ],
    ids=["capsules", "grid"],
)
def test_reasons_speak_of_nothing_that_the_network_lacks(net, x, cause):
    """Heads are an example in one sentence, for networks that have them; shuffles are none."""
    (obstacle,) = [found.obstacle for found in removable_channels(net, x) if found.name == "first"]
    assert obstacle.cause is cause
    assert "shuffle" not in obstacle.text
    assert "heads" not in obstacle.text.replace("such as all heads", "")


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
