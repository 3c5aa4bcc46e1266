"""VGG networks: equal to torchvision's with the imagenet head; small with the other one."""

from __future__ import annotations

import pytest
import torch

from sparsefw.models import VGG, build, import_torchvision

try:
    torchvision = import_torchvision()
except ModuleNotFoundError:
    torchvision = None
needs_torchvision = pytest.mark.skipif(torchvision is None, reason="torchvision is not installed")
NAMES = ["vgg11_bn", "vgg13_bn", "vgg16_bn", "vgg19_bn"]


@needs_torchvision
@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_of_torchvision(name):
    with torch.device("meta"):
        theirs, ours = torchvision.models.get_model(name), build(name)
    assert [(k, v.shape) for k, v in ours.state_dict().items()] == [
        (k, v.shape) for k, v in theirs.state_dict().items()
    ]


@needs_torchvision
@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg11_bn", "vgg16_bn"])
def test_same_as_torchvision(name):
    """From the same seed the same weights; from the same weights the same outputs and running statistics."""
    torch.manual_seed(1)
    theirs = torchvision.models.get_model(name, num_classes=7)
    torch.manual_seed(1)
    ours = build(name, classes=7)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    theirs.classifier[6].weight.data.normal_()  # not what a new network has
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 3, 64, 64)
    for training in (True, False):
        outputs = []
        for net in (ours, theirs):
            torch.manual_seed(2)  # the same dropout
            with torch.no_grad():
                outputs.append(net.train(training)(x))
        assert torch.equal(*outputs)
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), theirs.buffers(), strict=True))


@needs_torchvision
def test_same_features_as_torchvision():
    """The part of the comparison that is small enough for every day."""
    theirs = torchvision.models.vgg16_bn(num_classes=7).features
    ours = VGG((2, 2, 3, 3, 3), head="cifar").features
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 3, 32, 32)
    for training in (True, False):
        assert torch.equal(ours.train(training)(x), theirs.train(training)(x))


def test_the_small_head():
    with torch.device("meta"):
        net = build("vgg16_bn", head="cifar", classes=10)
    assert sum(p.numel() for p in net.parameters()) == 14_728_266
    assert net.classifier.weight.shape == (10, 512)


def test_initialisation():
    torch.manual_seed(0)
    net = build("vgg11_bn", width=8)
    assert all((m.bias == 0).all() for m in net.features if hasattr(m, "kernel_size") and hasattr(m, "bias"))
    assert abs(net.classifier[0].weight.std().item() / 0.01 - 1) < 0.01


def test_wrong_head():
    with pytest.raises(ValueError, match="head must be one of imagenet, cifar, got 'none'"):
        build("vgg11_bn", head="none")
