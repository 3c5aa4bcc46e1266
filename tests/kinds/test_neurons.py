"""Neurons: what attention reads and writes goes by the head."""

from __future__ import annotations

import pytest
from torch import nn

from sparsefw import constrain
from sparsefw.kinds import NEURONS
from sparsefw.models import build


def test_queries_keys_values_and_projections_are_no_neurons():
    model = build("vit_tiny", classes=10, in_channels=1, image=8, patch=2, width=16, depth=2, heads=4)
    names = set(NEURONS.views(model))
    linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    attention = {
        name for name in linear if ".attn." in name or ".attention." in name or "qkv" in name or "proj." in name
    }
    assert attention
    assert names == linear - attention


def test_nor_are_those_of_torchs_own_attention():
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    assert set(NEURONS.views(layer)) == {"linear1.weight", "linear2.weight"}
    assert set(NEURONS.views(nn.MultiheadAttention(16, 4))) == set()
    with pytest.raises(ValueError, match="is the weight of a Linear that is no part of attention"):
        constrain(nn.MultiheadAttention(16, 4), "neurons", steps=100)
