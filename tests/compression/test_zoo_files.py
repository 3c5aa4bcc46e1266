"""Every architecture of the zoo, compressed by all kinds at once, comes back from disk as it was."""

from __future__ import annotations

import pytest
import torch

from compression.zoo import ZOO, Architecture, outputs
from sparsefw import compress, load, save

FAST = ("resnet18, cifar stem", "mobilenet_v2", "densenet121", "vit", "Llama", "BERT")


def listed() -> list:
    return [
        pytest.param(a, id=a.name, marks=[] if a.name.startswith(FAST) and not a.slow else [pytest.mark.slow])
        for a in ZOO
    ]


@pytest.mark.parametrize("architecture", listed())
def test_save_and_load(architecture: Architecture, tmp_path):
    if architecture.missing:
        pytest.skip(architecture.missing)
    dense, inputs = architecture.make(), architecture.inputs()
    small = compress(dense, example=inputs, **dict.fromkeys(architecture.kinds, 0.3))
    save(small, tmp_path / "a")
    again = load(tmp_path / "a", architecture.build).model
    assert again.training == small.model.training
    for mine, theirs in zip(outputs(again, inputs), outputs(small.model, inputs), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    for name, tensor in small.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
