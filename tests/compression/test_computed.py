"""Computed tensors: found by name, valued as in evaluation, and stored without a trace in other modules."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from sparsefw.compression.structure.computed import computed_by, computed_tensors, sources_of, store, value_of


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


class Shifted(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight + 1


def old(register):
    def make(module: nn.Module, *args: object) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own: deprecated
            return register(module, *args)

    return make


MAKERS = {
    "weight_norm": parametrizations.weight_norm,
    "old weight_norm": old(nn.utils.weight_norm),
    "spectral_norm": parametrizations.spectral_norm,
    "old spectral_norm": old(nn.utils.spectral_norm),
    "orthogonal": parametrizations.orthogonal,
    "own": lambda module: parametrize.register_parametrization(module, "weight", Doubled()) or module,
    "pruned": lambda module: prune.l1_unstructured(module, "weight", 0.5),
    "pruned twice": lambda module: prune.random_structured(
        prune.l1_unstructured(module, "weight", 0.5), "weight", 1, 0
    ),
}
EVERY = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def stored(module: nn.Module) -> nn.Module:
    for tensor in computed_tensors(module):
        store(module, tensor, nn.Parameter(value_of(module, tensor)))
    return module


@EVERY
def test_the_stored_value_computes_the_same(make):
    layer = make(nn.Linear(6, 4)).eval()
    x = torch.randn(3, 6)
    expected = layer(x)
    assert computed_tensors(layer) == ["weight"]
    stored(layer)
    assert type(layer) is nn.Linear
    assert set(layer.state_dict()) == {"weight", "bias"}
    assert [*layer.children(), *layer._forward_pre_hooks, *layer.buffers()] == []
    assert torch.equal(layer(x), expected)
    nn.Linear(6, 4).load_state_dict(layer.state_dict())
    layer.load_state_dict(nn.Linear(6, 4).state_dict())


@EVERY
def test_copies_and_the_class_are_left_alone(make):
    layer = make(nn.Linear(6, 4)).eval()
    x = torch.randn(3, 6)
    with torch.no_grad():
        expected = layer(x)
        other = copy.deepcopy(layer)
        stored(layer)
        assert torch.equal(other(x), expected)
        assert computed_tensors(other) == ["weight"]


def test_values_by_hand():
    layer = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.register_parametrization(layer, "weight", Shifted())
    assert computed_by(layer, "weight") == "Doubled, Shifted"
    assert value_of(layer, "weight").tolist() == [[7, 9], [1, 5]]
    assert [tuple(p.shape) for p in sources_of(layer, "weight")] == [(2, 2)]


def test_one_of_two_tensors_of_a_module():
    layer = nn.Linear(3, 2)
    for tensor in ("weight", "bias"):
        parametrize.register_parametrization(layer, tensor, Doubled())
    other = copy.deepcopy(layer)
    x = torch.randn(4, 3)
    expected = layer(x)
    assert computed_tensors(layer) == ["weight", "bias"]
    store(layer, "weight", nn.Parameter(value_of(layer, "weight")))
    assert computed_tensors(layer) == ["bias"]
    assert torch.equal(layer(x), expected)
    assert torch.equal(other(x), expected)
    stored(layer)
    assert type(layer) is nn.Linear
    assert torch.equal(layer(x), expected)


def test_pruning_what_weight_norm_computes_from():
    layer = old(nn.utils.weight_norm)(nn.Linear(6, 4))
    prune.l1_unstructured(layer, "weight_v", 0.5)
    layer._forward_pre_hooks.move_to_end(next(iter(layer._forward_pre_hooks)))  # the mask first, as in torch's docs
    x = torch.randn(3, 6)
    expected = layer(x)
    assert computed_tensors(layer) == ["weight_v", "weight"]
    assert torch.equal(stored(layer)(x), expected)
    assert set(layer.state_dict()) == {"weight", "bias"}


def test_spectral_norm_is_read_as_in_evaluation():
    """In training, every access is a step of the power iteration, which changes the value."""
    layer = parametrizations.spectral_norm(nn.Linear(6, 4)).train()
    u = layer.parametrizations.weight[0]._u.clone()
    value = value_of(layer, "weight")
    assert torch.equal(layer.parametrizations.weight[0]._u, u)
    assert layer.training
    assert torch.equal(value, layer.eval().weight)


def test_hooks_of_others_compute_nothing_known():
    layer = nn.Linear(3, 2)
    layer.name = "weight"
    layer.register_forward_pre_hook(lambda module, args: None)
    assert computed_tensors(layer) == []
