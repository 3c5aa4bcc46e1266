"""The weights that methods act on: those that are currently trained."""

from __future__ import annotations

import torch
from torch import nn

from sparsefw.methods import SSL
from sparsefw.methods.weight_stacks import weight_stacks


def parameter_ids(net: nn.Module, kind: str = "filters") -> set[int]:
    return {id(p) for stack in weight_stacks(net, kind) for p in stack.parameters}


def test_changes_of_the_model_are_noticed():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3))
    assert parameter_ids(net) == {id(net[0].weight), id(net[1].weight)}
    net[0].requires_grad_(False)
    assert parameter_ids(net) == {id(net[1].weight)}
    net[1].weight = nn.Parameter(torch.ones(2, 2, 3, 3))
    assert parameter_ids(net) == {id(net[1].weight)}


def test_grouped_transposed_convolutions_have_no_filters():
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ConvTranspose2d(4, 4, 3, groups=2))
    assert parameter_ids(net) == {id(net[0].weight)}


def test_weights_that_a_step_did_not_use_get_no_gradient():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(1, 2, 3))
    net[0].weight.grad = torch.zeros_like(net[0].weight)
    SSL(strength=1.0).adjust(net)
    assert net[0].weight.grad.any()
    assert net[1].weight.grad is None


def test_channels_last_weights():
    torch.manual_seed(0)
    nets = [nn.Sequential(nn.Conv2d(3, 4, 3)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    nets[1].to(memory_format=torch.channels_last)
    for net in nets:
        net[0].weight.grad = torch.zeros_like(net[0].weight)
        SSL(strength=1.0).adjust(net)
    torch.testing.assert_close(nets[0][0].weight.grad, nets[1][0].weight.grad)
