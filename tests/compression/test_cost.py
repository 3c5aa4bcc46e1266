"""Costs: parameters, multiply-accumulates by hand, bytes as they are on disk."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from sparsefw.compression import compress
from sparsefw.compression.artifact.packing import pack, packed_bytes, unique_tensors
from sparsefw.compression.cost import Costs, costs, macs, macs_by_module, parameters, parameters_by_module
from sparsefw.compression.recovery.batches import batch_size


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    "layer, shape, expected",
    [
        (nn.Linear(6, 5), (6,), 30),
        (nn.Linear(6, 5, bias=False), (7, 6), 7 * 30),
        (nn.Conv1d(4, 6, 3), (4, 10), 8 * 4 * 6 * 3),
        (nn.Conv2d(4, 6, 3, padding=1), (4, 8, 8), 64 * 4 * 6 * 9),
        (nn.Conv2d(4, 6, (3, 2), stride=2), (4, 8, 8), 3 * 4 * 4 * 6 * 6),
        (nn.Conv2d(4, 6, 3, groups=2, dilation=2), (4, 8, 8), 16 * 2 * 6 * 9),
        (nn.Conv2d(4, 8, 3, groups=4, padding="same"), (4, 8, 8), 64 * 8 * 9),
        (nn.Conv3d(2, 3, 2), (2, 4, 4, 4), 27 * 2 * 3 * 8),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (4, 5, 5), 25 * 4 * 6 * 9),  # every input is spread over the kernel
        (nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2), (4, 5, 5), 25 * 4 * 3 * 4),
        (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2)), (1, 4, 4), 16 * 2),
    ],
    ids=lambda v: str(v) if isinstance(v, nn.Module) else None,
)
def test_multiply_accumulates_of_layers(layer, shape, expected, batch):
    assert macs(layer, torch.randn(batch, *shape)) == expected


class Attention(nn.Module):
    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention, self.need_weights = nn.MultiheadAttention(8, 2, batch_first=True), need_weights

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        return self.attention(x, memory, memory, need_weights=self.need_weights)[0]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention(need_weights, training, batch):
    """Four projections of 5 x 8 x 8, and twice 5 x 5 products of length 8 (two heads of 4)."""
    block, x = Attention(need_weights).train(training), torch.randn(batch, 5, 8)
    assert macs(block, x) == 4 * 5 * 64 + 2 * 25 * 8
    memory = torch.randn(batch, 7, 8)
    assert macs(block, (x, memory)) == 2 * 5 * 64 + 2 * 7 * 64 + 2 * 5 * 7 * 8
    assert block.training == training


@pytest.mark.parametrize("training", [True, False])
def test_a_transformer_layer_is_counted_though_it_would_be_fused(training):
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).train(training)
    for fused in (False, True):
        torch.backends.mha.set_fastpath_enabled(fused)
        assert macs(layer, torch.randn(3, 5, 8)) == 4 * 5 * 64 + 2 * 25 * 8 + 2 * 5 * 8 * 16
        assert torch.backends.mha.get_fastpath_enabled() == fused


def test_counting_changes_nothing():
    """In training mode batch norms would learn from the example, and refuse a single one."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    assert macs(net, torch.randn(1, 3)) == 12
    assert int(net[1].num_batches_tracked) == 0
    assert net[1].training


def test_a_token_that_is_learnt():
    """torch's own counter fails on modules that are given a view of a parameter, as class tokens are."""

    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.layer = nn.Parameter(torch.zeros(1, 3)), nn.Linear(3, 4)
            self.layer.bias.requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.layer(self.token.expand(len(x), -1))

    net = Token()
    assert macs(net, torch.randn(2, 3)) == 24
    assert [p.requires_grad for p in net.parameters()] == [True, True, False]


def test_products_outside_of_layers_count():
    class Products(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = functional.scaled_dot_product_attention(x, x, x)
            return torch.einsum("bhnd,bhmd->bhnm", y, x) @ x

    assert macs(Products(), torch.randn(2, 3, 5, 4)) == 4 * 3 * 25 * 4


def test_inputs_by_position_and_by_name():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(5, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.a(x) + self.b(y)

    x, y = torch.randn(6, 3), torch.randn(6, 5)
    assert macs(Sum(), (x, y)) == macs(Sum(), {"x": x, "y": y}) == 12 + 20
    assert batch_size({"x": x, "y": y}) == 6
    assert batch_size((torch.tensor(1.0), x)) == 6
    assert batch_size(()) == 1


def test_parameters_are_all_entries_and_shared_ones_once():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False))
    assert parameters(net) == 16 + 4 + 8 + 16
    net[0].weight.data.zero_()  # zeros are entries too
    net[2].weight = net[0].weight
    assert parameters(net) == 16 + 4 + 8


@pytest.mark.parametrize(
    "how", [{}, {"weights": 0.9}, {"weights": "2:4"}, {"filters": 0.5}, {"rank": 0.7, "weights": 0.5}]
)
def test_bytes_are_the_file_without_its_header(how, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.Flatten(), nn.Linear(256, 5)
    )
    x = torch.randn(8, 3, 8, 8)
    small = compress(net, calibration=[x], refit=False, **(how or {"filters": 0.0}))
    path = tmp_path / "model.safetensors"
    save_file(pack(unique_tensors(small.model)), path)
    header = int.from_bytes(path.read_bytes()[:8], "little")
    assert small.costs.bytes == packed_bytes(small.model) == path.stat().st_size - 8 - header
    assert small.costs == costs(small.model, x[:1])


def test_costs_of_a_small_network():
    net = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(8, 3))
    nn.init.constant_(net[2].bias, 1.0)
    assert costs(net, torch.randn(5, 1, 4, 4)) == Costs(18 + 24 + 3, 4 * 18 + 24, 4 * (18 + 24 + 3))


def test_zeros_are_packed_and_shared_weights_counted_once():
    net = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.Linear(8, 8, bias=False))
    net[2].weight = net[0].weight
    net[0].weight.data.zero_()
    assert costs(net, torch.randn(2, 8)).bytes < 4 * 64


def test_costs_by_module_add_up():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.Sequential(nn.Conv1d(5, 5, 3, padding=1), layer, nn.Linear(8, 3)), torch.randn(2, 5, 8)
    of_modules = macs_by_module(model, x)
    assert of_modules["0"] == 8 * 5 * 5 * 3
    assert of_modules["1.linear1"] == 5 * 8 * 16
    assert sum(of_modules.values()) == macs(model, x)
    assert parameters_by_module(model)["2"] == 27
    assert sum(parameters_by_module(model).values()) == parameters(model)
