"""The table that constrain prints: short, and nothing of the network is missing."""

from __future__ import annotations

import pytest
from torch import nn

from sparsefw import constrain
from sparsefw.optim.region_table import MOST_LINES


def stage(width: int, depth: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Sequential(nn.Conv2d(width, width, 3, bias=False), nn.BatchNorm2d(width)) for _ in range(depth))
    )


def test_equal_layers_are_one_line_with_their_number():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), stage(8, 4), nn.Flatten(), nn.Linear(8, 2))
    lines = str(constrain(net, "filters", k=0.25, w=1.0, report=None)).splitlines()
    assert lines[0].split() == ["parameter", "shape", "region", "k", "radius"]
    assert lines[1].split() == ["0.weight", "8x3x3x3", "GroupKSupportBall", "2", "of", "8", "1.633"]
    assert lines[2].split() == ["1.*.0.weight", "x4", "8x8x3x3", "GroupKSupportBall", "2", "of", "8", "1.633"]
    assert (
        lines[3] == f"regions cover {(216 + 4 * 576) / (224 + 4 * 592 + 18):.1%} of the {224 + 4 * 592 + 18:,} weights"
    )
    assert lines[4] == "free, by SGD or AdamW: 10 biases and norms; 3.weight"


def test_radii_of_equal_layers_are_a_range():
    net = nn.Sequential(*(nn.Conv2d(4, 4, 1) for _ in range(3)))
    for i, layer in enumerate(net):
        nn.init.constant_(layer.weight, 1.0 + i)
    table = str(constrain(net, "filters", k=4, w="from-weights", steps=100, report=None))
    radii = [
        group["region"].radius for group in constrain(net, "filters", k=4, steps=100, report=None) if group["region"]
    ]
    assert min(radii) < max(radii)
    assert f"*.weight x2  4x4x1x1  GroupKSupportBall  4 of 4  {min(radii):.4g} to {max(radii):.4g}" in table


def test_what_a_kind_leaves_out_is_named_with_its_reason():
    net = nn.Sequential(nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 2))
    groups = constrain(net, "neurons", steps=100, report=None)
    assert "free, by SGD or AdamW: 1 embedding; 4 biases and norms; 3.weight (taken for the output)" in str(groups)
    assert [entry.reason for entry in groups.free if entry.name == "3.weight"] == ["taken for the output"]


def test_a_network_of_many_shapes_has_a_table_of_one_screen():
    widths = range(3, 63)
    net = nn.Sequential(*(nn.Conv2d(width, width + 1, 1) for width in widths))
    groups = constrain(net, "filters", k=0.5, w=1.0, report=None)
    lines = str(groups).splitlines()
    assert f"... and {len(widths) - MOST_LINES} more blocks" in lines
    assert len(lines) <= 25
    assert len(groups.blocks) == len(widths)


def test_a_frozen_network_but_for_one_layer_is_covered_by_it():
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.Conv2d(8, 4, 3))
    net[1].requires_grad_(False)
    assert constrain(net, "filters", k=0.5, w=1.0, report=None).coverage == pytest.approx(1.0)
