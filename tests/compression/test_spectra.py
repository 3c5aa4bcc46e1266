"""Spectra of layers, against values by hand."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from sparsefw.compression.spectra import POINTS, spectra


def test_by_hand():
    layer = nn.Linear(2, 3, bias=False)
    layer.weight.data = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, -4.0]])
    found = spectra(nn.Sequential(layer, nn.BatchNorm1d(3)))
    assert found["layers"] == {
        "0": {
            "filters": {"count": 3, "index": [0, 1, 2], "value": [4.0, 3.0, 0.0]},
            "rank": {"count": 2, "index": [0, 1], "value": [4.0, 3.0]},
        }
    }
    assert found["left_out"] == {}


@pytest.mark.parametrize(
    "layer", [nn.Conv2d(8, 12, 3), nn.Conv2d(8, 12, 3, groups=4), nn.ConvTranspose2d(6, 8, 2), nn.Conv1d(8, 4, 1)]
)
def test_singular_values_are_those_of_torch(layer):
    found = spectra(layer)["layers"][""]["rank"]
    outputs = layer.out_channels
    weight = layer.weight.transpose(0, 1) if isinstance(layer, nn.ConvTranspose2d) else layer.weight
    matrices = weight.reshape(layer.groups, outputs // layer.groups, -1)
    expected = torch.linalg.svdvals(matrices).flatten().sort(descending=True).values
    assert found["count"] == len(expected)
    assert found["value"] == pytest.approx(expected.tolist(), rel=1e-3)


def test_many_are_thinned_with_both_ends():
    layer = nn.Linear(4, 1000)
    layer.weight.data = torch.arange(1000.0)[:, None].repeat(1, 4) / 2  # of norm 0, 1, ..., 999
    found = spectra(layer)["layers"][""]["filters"]
    assert found["count"] == 1000
    assert len(found["index"]) == len(found["value"]) == POINTS
    assert (found["index"][0], found["index"][-1]) == (0, 999)
    assert (found["value"][0], found["value"][-1]) == (999.0, 0.0)


def test_layers_that_are_not_finite_are_left_out_with_a_reason():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].weight.data[0, 0] = torch.nan
    found = spectra(model.to(torch.bfloat16))
    assert list(found["layers"]) == ["1"]
    assert found["left_out"] == {"0": "its weights are not finite"}
    json.dumps(found, allow_nan=False)
