"""Sparse tensors in files: a mask and values, bit for bit, and never larger than the tensor."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsefw.compression.artifact.packing import MASK, SHAPE, VALUES, pack, packed_bytes, unique_tensors, unpack

DTYPES = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def sparse(shape: tuple[int, ...], dtype: torch.dtype, density: float = 0.1) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    values, keep = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) < density
    return (values * keep).to(dtype) + 0.0  # no -0.0


def stored(packed: dict[str, Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in packed.values())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(50, 40), (7, 5, 3, 3), (1001,)])
def test_bits_come_back(shape, dtype):
    tensor = sparse(shape, dtype)
    packed = pack({"layer.weight": tensor})
    assert set(packed) == {"layer.weight" + part for part in (MASK, VALUES, SHAPE)}
    (back,) = unpack(packed).values()
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back.view(DTYPES[dtype]), tensor.view(DTYPES[dtype]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.0, 1.0, -2.5, 1e-45, 3e38, float("inf")]), max_size=80),
    st.sampled_from(list(DTYPES)),
)
def test_any_values_of_any_length(values, dtype):
    """Denormals and infinities too, and lengths that do not fill the last byte of the mask."""
    tensor = torch.tensor(values, dtype=torch.float32).to(dtype)
    (back,) = unpack(pack({"x": tensor})).values()
    assert torch.equal(back.view(DTYPES[dtype]), tensor.view(DTYPES[dtype]))
    assert stored(pack({"x": tensor})) <= tensor.numel() * tensor.element_size()


def test_negative_zero_comes_back_as_zero():
    tensor = torch.zeros(100)
    tensor[::2] = -0.0
    (back,) = unpack(pack({"x": tensor})).values()
    assert torch.equal(back, tensor)
    assert not torch.signbit(back).any()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 5),
        torch.tensor(3.0),
        torch.empty(0),
        torch.empty(3, 0, 2),
        torch.zeros(100, dtype=torch.int64),
        torch.zeros(100, dtype=torch.bool),
        torch.tensor(0),
        torch.zeros(4, dtype=torch.float16),  # 8 bytes either way
    ],
    ids=lambda t: f"{tuple(t.shape)}-{t.dtype}",
)
def test_tensors_that_would_not_be_smaller_are_stored_unpacked(tensor):
    packed = pack({"x": tensor})
    assert set(packed) == {"x"}
    assert torch.equal(unpack(packed)["x"], tensor)
    assert unpack(packed)["x"].shape == tensor.shape


def test_a_single_zero_is_one_bit():
    packed = pack({"x": torch.tensor(0.0)})
    assert stored(packed) == 1
    back = unpack(packed)["x"]
    assert back.shape == ()
    assert float(back) == 0.0


def test_size_is_the_values_one_bit_each_and_the_shape():
    tensor = torch.zeros(30, 20)
    tensor.view(-1)[:17] = 1.0
    assert stored(pack({"x": tensor})) == 17 * 4 + 75 + 2 * 8
    assert stored(pack({"x": tensor.bfloat16()})) == 17 * 2 + 75 + 2 * 8


@pytest.mark.parametrize("nonzero", [0, 100, 590, 596, 597, 598, 620])
def test_packed_bytes_are_the_bytes_stored(nonzero):
    """Up to where mask and shape cost more than they save: 620 floats are 2,480 bytes, the mask and shape 78 + 16."""
    net = nn.Linear(20, 31, bias=False)
    with torch.no_grad():
        net.weight.zero_().view(-1)[:nonzero] = 1.0
    assert packed_bytes(net) == stored(pack(net.state_dict())) == min(2480, 4 * nonzero + 94)


def test_other_memory_formats_come_back_equal():
    tensor = sparse((8, 6, 3, 3), torch.float32).contiguous(memory_format=torch.channels_last)
    assert torch.equal(unpack(pack({"x": tensor}))["x"], tensor)


def test_parameters_are_stored_without_their_graph():
    packed = pack({"x": nn.Parameter(sparse((30, 30), torch.float32)), "y": nn.Parameter(torch.randn(3))})
    assert not any(t.requires_grad for t in packed.values())


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: p.update({"x" + VALUES: p["x" + VALUES][:-1]}),
        lambda p: p.update({"x" + VALUES: torch.cat([p["x" + VALUES]] * 2)}),
        lambda p: p.update({"x" + MASK: p["x" + MASK] ^ 1}),
        lambda p: p.update({"x" + MASK: p["x" + MASK][:-1]}),
        lambda p: p.update({"x" + SHAPE: torch.tensor([40, 41])}),
        lambda p: p.update({"x" + SHAPE: torch.tensor([-40, -40])}),
        lambda p: p.pop("x" + VALUES),
        lambda p: p.pop("x" + SHAPE),
    ],
)
def test_damaged_entries_are_refused(damage):
    packed = pack({"x": sparse((40, 40), torch.float32)})
    damage(packed)
    with pytest.raises(ValueError, match=r"^x: .*$"):
        unpack(packed)


def test_shared_tensors_are_stored_once():
    net = nn.ModuleDict({"a": nn.Linear(8, 8, bias=False), "b": nn.Linear(8, 8, bias=False)})
    net["b"].weight = net["a"].weight
    assert list(unique_tensors(net)) == ["a.weight"]
    assert packed_bytes(net) == 8 * 8 * 4


def test_views_that_differ_are_not_taken_for_the_same():
    net = nn.Module()
    net.w = nn.Parameter(torch.randn(4, 4))
    net.register_buffer("turned", net.w.detach().t())
    net.register_buffer("row", net.w.detach()[0])
    for name in ("none", "nothing"):
        net.register_buffer(name, torch.empty(0))
    assert list(unique_tensors(net)) == ["w", "turned", "row", "none", "nothing"]
