"""ResNets: equal to torchvision's, and dilated stages that compute what strided ones would."""

from __future__ import annotations

import copy

import pytest
import torch

from sparsefw.models import BasicBlock, Bottleneck, ResNet, build, import_torchvision
from sparsefw.models.resnet import PLANS

try:
    torchvision = import_torchvision()
except ModuleNotFoundError:
    torchvision = None
needs_torchvision = pytest.mark.skipif(torchvision is None, reason="torchvision is not installed")
NAMES = ["resnet18", "resnet34", "resnet50", pytest.param("resnet101", marks=pytest.mark.slow)]


@needs_torchvision
@pytest.mark.parametrize("name", PLANS)
def test_names_and_shapes_of_torchvision(name):
    with torch.device("meta"):
        theirs, ours = torchvision.models.get_model(name), build(name)
    assert [(k, v.shape) for k, v in ours.state_dict().items()] == [
        (k, v.shape) for k, v in theirs.state_dict().items()
    ]


@needs_torchvision
@pytest.mark.parametrize("name", NAMES)
def test_same_as_torchvision(name):
    """From the same seed the same weights; from the same weights the same outputs, gradients and running statistics."""
    torch.manual_seed(1)
    theirs = torchvision.models.get_model(name, num_classes=7)
    torch.manual_seed(1)
    ours = build(name, classes=7)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))
    theirs.fc.weight.data.normal_()  # not what a new network has
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(2, 3, 64, 64)
    for training in (True, False):
        ours.train(training), theirs.train(training)
        outputs = ours(x), theirs(x)
        assert torch.equal(*outputs)
        if training:
            for y in outputs:
                y.square().sum().backward()
    for (key, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=key)
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), theirs.buffers(), strict=True))


@needs_torchvision
def test_dilated_as_in_torchvision():
    theirs = torchvision.models.resnet50(num_classes=7, replace_stride_with_dilation=[False, True, True]).eval()
    ours = build("resnet50", classes=7, dilated_stages=2).eval()
    ours.load_state_dict(theirs.state_dict(), strict=True)
    x = torch.randn(1, 3, 65, 65)
    with torch.no_grad():
        assert torch.equal(ours(x), theirs(x))


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
@pytest.mark.parametrize("dilated", [1, 2, 3])
def test_dilated_features_contain_the_strided_ones(block, dilated):
    torch.manual_seed(0)
    strided = ResNet(block, (2, 1, 2, 2), stem="cifar", width=4).double().eval()
    dense = ResNet(block, (2, 1, 2, 2), stem="cifar", width=4, dilated_stages=dilated).double().eval()
    dense.load_state_dict(strided.state_dict())
    features = []
    with torch.no_grad():
        for net in (strided, dense):
            x = net.stem(torch.linspace(-1, 1, 3 * 33 * 40, dtype=torch.float64).sin().view(1, 3, 33, 40))
            for stage in net.stages():
                x = stage(x)
            features.append(x)
    step = 2**dilated
    assert features[0].shape[-2:] == (5, 5)
    torch.testing.assert_close(features[1][..., ::step, ::step], features[0])


@pytest.mark.parametrize(
    ("stem", "dilated", "shape"), [("imagenet", 0, (7, 7)), ("imagenet", 2, (28, 28)), ("cifar", 0, (28, 28))]
)
def test_how_much_smaller_the_features_are(stem, dilated, shape):
    with torch.device("meta"):
        net = build("resnet18", stem=stem, dilated_stages=dilated)
        x = net.stem(torch.empty(1, 3, 224, 224))
        for stage in net.stages():
            x = stage(x)
    assert x.shape == (1, 512, *shape)


def test_stages_and_widths_are_arguments():
    net = ResNet(BasicBlock, (1, 2), stem="cifar", classes=4, in_channels=2, width=6)
    assert [len(stage) for stage in net.stages()] == [1, 2]
    assert (net.conv1.weight.shape, net.layer2[1].conv2.weight.shape) == ((6, 2, 3, 3), (12, 12, 3, 3))
    assert net(torch.randn(3, 2, 8, 8)).shape == (3, 4)
    digits = build("resnet_digits")
    assert [stage[0].conv2.out_channels for stage in digits.stages()] == [32, 64, 128]


def test_initialisation():
    torch.manual_seed(0)
    net = build("resnet18", stem="cifar")
    weight = net.layer3[1].conv1.weight
    assert abs(weight.std().item() / (2 / (256 * 9)) ** 0.5 - 1) < 0.01
    assert all((m.weight == 1).all() and (m.bias == 0).all() for m in net.modules() if hasattr(m, "running_mean"))


def test_copies_are_independent():
    net = build("resnet_digits")
    other = copy.deepcopy(net)
    other.conv1.weight.data.zero_()
    assert net.conv1.weight.abs().sum() > 0
