"""PSPNet: the published widths, logits of the input's size, an auxiliary head while training, context from everywhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsefw.models import BasicBlock, PSPNet, build
from sparsefw.models.pspnet import PyramidPooling


def small(**arguments) -> PSPNet:
    torch.manual_seed(0)
    return PSPNet(BasicBlock, (1, 1, 1, 1), **{"classes": 5, "width": 8, **arguments})


def test_the_published_size_with_a_resnet101():
    """About 68 million weights with 19 classes: 42.5 in the ResNet, 4.2 in the pyramid, 18.9 and 2.4 in the heads."""
    with torch.device("meta"):
        net = build("pspnet_resnet101")
    sizes = {name: round(sum(p.numel() for p in part.parameters()) / 1e6, 1) for name, part in net.named_children()}
    assert sizes == {"backbone": 42.5, "pyramid": 4.2, "head": 18.9, "auxiliary": 2.4}
    assert abs(sum(p.numel() for p in net.parameters()) - 68e6) < 1e6
    assert [branch[1].weight.shape for branch in net.pyramid.branches] == [(512, 2048, 1, 1)] * 4
    assert (net.head[0].weight.shape, net.auxiliary[0].weight.shape) == ((512, 4096, 3, 3), (256, 1024, 3, 3))


@pytest.mark.parametrize("size", [(65, 65), (96, 128), (17, 40)])
def test_logits_have_the_size_of_the_input(size):
    net, x = small(), torch.randn(2, 3, *size)
    output, auxiliary = net.train()(x)
    assert output.shape == auxiliary.shape == (2, 5, *size)
    with torch.no_grad():
        assert net.eval()(x).shape == (2, 5, *size)
        assert net(x[:1]).shape == (1, 5, *size)


def test_features_are_eight_times_smaller_and_the_auxiliary_head_reads_the_third_stage():
    net = small()
    seen = {}
    for name in ("pyramid", "auxiliary", "backbone.layer3"):
        module = net.get_submodule(name)
        module.register_forward_hook(lambda _, inputs, output, name=name: seen.update({name: (inputs[0], output)}))
    net.train()(torch.randn(2, 3, 65, 65))
    assert seen["pyramid"][0].shape == (2, 64, 9, 9)
    assert seen["auxiliary"][0] is seen["backbone.layer3"][1]
    del seen["auxiliary"]
    net.eval()(torch.randn(2, 3, 65, 65))
    assert "auxiliary" not in seen


def test_the_auxiliary_head_changes_nothing_in_evaluation():
    net, x = small().eval(), torch.randn(1, 3, 33, 33)
    with torch.no_grad():
        before = net(x)
        for p in net.auxiliary.parameters():
            p.normal_()
        assert torch.equal(net(x), before)


def test_a_pyramid_is_the_features_and_their_means():
    pyramid = PyramidPooling(8).eval()
    for branch in pyramid.branches:
        nn.init.dirac_(branch[1].weight)  # passes the first two channels
    x = torch.rand(1, 8, 12, 12)
    with torch.no_grad():
        y = pyramid(x)
    assert y.shape == (1, 16, 12, 12)
    assert torch.equal(y[:, :8], x)
    scale = (1 + pyramid.branches[0][2].eps) ** -0.5
    mean = x[:, :2].mean((2, 3), keepdim=True) * scale
    torch.testing.assert_close(y[:, 8:10], mean.expand(1, 2, 12, 12))
    # Corners coincide, so the first pixel of the 6 x 6 means is the mean of the first 2 x 2 pixels.
    torch.testing.assert_close(y[0, 14:16, 0, 0], x[0, :2, :2, :2].mean((1, 2)) * scale)


def test_every_pixel_sees_the_whole_image():
    net = small(width=4).double().eval()
    x = torch.randn(1, 3, 129, 129, dtype=torch.float64, requires_grad=True)
    net(x)[0, :, 0, 0].sum().backward()
    assert x.grad[0, :, 112:, 112:].abs().sum() > 0
