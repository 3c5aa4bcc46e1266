"""NUC: the nuclear norm and its gradient by hand, what it does to a training, and that without strength it is SGD."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsefw.methods import NUC, SGD, Batch, method_from
from sparsefw.train import RunFolder, fit, load_recipe
from sparsefw.train.engine import _hindrance, engine_for
from sparsefw.typed import ConfigError
from train.harness import step_of

ROWS = torch.tensor([[1.0, 2.0, 2.0], [2.0, 1.0, -2.0]])  # orthogonal, both of length 3


def conv(weight: torch.Tensor) -> nn.Conv2d:
    layer = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2:], bias=False)
    layer.weight = nn.Parameter(weight.clone())
    return layer


def by_autograd(net: nn.Module, strength: float = 1.0) -> tuple[float, torch.Tensor]:
    value = NUC(strength=strength).penalty(net)
    value.backward()
    return value.item(), net[0].weight.grad.flatten(1)


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 1, 1, 3)], ids=str)
@pytest.mark.parametrize("scale", [(1.0, 2.0), (1.0, 1.0)], ids=["different", "equal"])
def test_value_and_gradient_by_hand(scale, shape):
    """Orthogonal rows: the singular values are their lengths, and U V^T is the rows divided by them."""
    weight = torch.tensor(scale)[:, None] * ROWS
    value, gradient = by_autograd(nn.Sequential(conv(weight.view(shape))), strength=0.5)
    assert value == pytest.approx(0.5 * 3 * sum(scale))
    torch.testing.assert_close(gradient, 0.5 * ROWS / 3)


def test_where_singular_values_are_zero_the_gradient_is_a_subgradient():
    """On the row that is not 0 as by hand; on all others of no more than spectral norm 1, and finite."""
    weight = torch.cat([ROWS[:1], torch.zeros(1, 3)])
    value, gradient = by_autograd(nn.Sequential(conv(weight.view(2, 3, 1, 1))))
    assert value == pytest.approx(3)
    torch.testing.assert_close(gradient[0], ROWS[0] / 3)
    assert float(torch.linalg.matrix_norm(gradient, 2)) <= 1 + 1e-5
    _, gradient = by_autograd(nn.Sequential(conv(torch.zeros(2, 3, 1, 1))))
    assert float(torch.linalg.matrix_norm(gradient, 2)) <= 1 + 1e-5


def test_sums_over_trained_convolutions_only():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 2, 3), nn.Conv2d(2, 2, 1), nn.Linear(2, 2))
    net[2].requires_grad_(False)
    expected = torch.linalg.matrix_norm(net[0].weight.flatten(1), "nuc")
    expected = expected + torch.linalg.matrix_norm(net[1].weight.transpose(0, 1).flatten(1), "nuc")
    torch.testing.assert_close(NUC(strength=2.0).penalty(net), 2 * expected)


def test_a_network_without_convolutions_is_refused_in_one_line():
    with pytest.raises(ValueError, match="Conv2d"):
        step_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), NUC(), 2)


@pytest.mark.parametrize("strength", [-1.0, float("inf"), float("nan")])
def test_strengths_that_make_no_sense(strength):
    with pytest.raises(ConfigError, match=r"method: strength"):
        method_from({"name": "nuc", "strength": strength})


def test_without_strength_it_is_sgd_bit_for_bit():
    nets = []
    for method in (SGD(), NUC(strength=0.0)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        step = step_of(net, method, 3)
        for i in range(5):
            draw = torch.Generator().manual_seed(i)
            step(Batch(torch.randn(8, 1, 8, 8, generator=draw), torch.randint(3, (8,), generator=draw)))
        nets.append(net)
    assert all(torch.equal(a, b) for a, b in zip(*(net.parameters() for net in nets), strict=True))


def test_learns_digits_with_smaller_singular_values_than_sgd(tmp_path):
    nuclear = {}
    for name, changes in (("sgd", []), ("nuc", ["method.name=nuc", "method.strength=1e-2"])):
        fixed = ["train.epochs=6", "model.arguments.width=8", "data.validation=0", "engine.device=cpu"]
        found = fit(load_recipe("digits-resnet-sgd", [*fixed, *changes]), tmp_path / name, quiet=True)
        assert found["test"]["accuracy"] > 80
        model, _ = RunFolder(tmp_path / name).load_model()
        nuclear[name] = NUC(strength=1.0).penalty(model).item()
    assert nuclear["nuc"] < 0.8 * nuclear["sgd"]


def test_its_steps_are_not_captured_in_a_graph():
    nuc, sgd = (load_recipe("digits-resnet-sgd", changes) for changes in (["method.name=nuc"], []))
    assert "nuc wait for the device" in _hindrance(nuc, True, 1, torch.bfloat16)
    assert _hindrance(sgd, True, 1, torch.bfloat16) is None
    assert not engine_for(nuc, 10_000).cuda_graph
