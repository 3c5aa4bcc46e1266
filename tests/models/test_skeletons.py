"""Networks that a file names take no memory out of proportion to the weights that the file has."""

from __future__ import annotations

import pytest
import torch

from fuzz.memory import at_most
from sparsefw.models import build_for, build_skeleton, skeletons
from vision import require_vision


def vision(name: str, **arguments):
    require_vision(name)
    return {"name": name, "arguments": arguments}


@pytest.mark.parametrize(
    "name", ["timm:resnet18", "timm:vit_tiny_patch16_224", "torchvision:vgg16", "torchvision:swin_t"]
)
def test_skeletons_have_the_shapes_of_the_network_and_take_no_memory(name):
    record = vision(name)
    skeleton = build_skeleton(record)
    assert all(tensor.is_meta for tensor in skeleton.state_dict().values())
    network = build_for(record, {})
    assert {n: t.shape for n, t in skeleton.state_dict().items()} == {
        n: t.shape for n, t in network.state_dict().items()
    }
    assert skeleton.built_from == network.built_from == record


def test_a_network_that_reads_values_while_it_is_built_has_no_skeleton():
    record = vision("torchvision:regnet_x_400mf", num_classes=5)
    assert build_skeleton(record) is None
    assert build_for(record, {}).fc.out_features == 5


def test_a_network_is_built_for_its_weights_only(monkeypatch):
    record = {"name": "resnet18", "arguments": {"width": 4, "classes": 25_000}}  # 32 * 25,000 weights in its last layer
    monkeypatch.setattr(skeletons, "NETWORK_NUMBERS", 500_000)
    with pytest.raises(ValueError, match="has more than 500,000 numbers, for far fewer weights"):
        build_for(record, {})
    assert build_for(record, {"fc.weight": torch.zeros(10_000)}).fc.out_features == 25_000


def test_a_network_of_billions_is_refused_before_its_memory_is_taken():
    record = vision("timm:resnet18", channels=[25_000, 64, 64, 64])
    with at_most(1 << 30), pytest.raises(ValueError, match="has more than 200,000,000 numbers"):
        build_for(record, {})
