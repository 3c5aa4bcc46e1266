"""The vertices of a fused step: exactly k entries and rows on ties, and step sizes computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from catalog import gaussian
from optim.twins import DEVICE, DIRECTIONS, ENTRIES, FLAT, ROWS, STEPS, assert_equal, fused_and_plain
from sparsefw import SFW
from sparsefw import geometry as geo
from sparsefw.optim import Gradient


def equal_entries(shape, seed):
    """Every magnitude is the same: of all ties, exactly k are to be taken."""
    return gaussian(shape, seed).sign()


@pytest.mark.parametrize(("make", "longest"), [(ENTRIES, lambda k: 1.0), (FLAT, math.sqrt)])
@pytest.mark.parametrize("k", [1, 7, 5000])
def test_exactly_k_entries_on_ties(k, make, longest):
    ((p,), optimizer), _ = fused_and_plain(
        [(80, 110)], lambda ps: [{"params": ps, "region": make(k, 1.0)}], equal_entries, steps=1, lr=1e9
    )
    assert optimizer.diagnostics()[0].step_size == 1  # so the weight is the vertex
    assert int((p != 0).sum()) == k
    assert float(p.detach().norm()) == pytest.approx(longest(k), rel=1e-5)


@pytest.mark.parametrize("make", [ENTRIES, FLAT])
def test_of_fewer_than_k_entries_that_move_no_other_is_taken(make):
    """A vertex is 0 where the gradient is, though k would allow more."""
    values = torch.zeros(6, 9)
    values[2, 3], values[4, 1] = 2.0, -0.5
    runs = fused_and_plain(
        [(6, 9)], lambda ps: [{"params": ps, "region": make(5, 1.0)}], lambda *_: values, steps=1, lr=1e9
    )
    assert_equal(runs)
    moved = runs[0][0][0].detach().cpu()
    direction = values / values.norm() if make is ENTRIES else values.sign()
    torch.testing.assert_close(moved, -direction, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("k", [7, 5000])
@pytest.mark.parametrize("make", [ENTRIES, FLAT])
def test_the_step_size_where_all_are_equal_by_hand(make, k):
    """8,800 weights of 0.1 with gradients of 1: the vertex v is -a on k of them, a = 1 or 1 / sqrt(k), and its square distance
    8800 * 0.01 + 2 * 0.1 k a + k a^2."""
    p = nn.Parameter(torch.full((80, 110), 0.1, device=DEVICE))
    radius = 1000.0  # the start is inside
    optimizer = SFW([{"params": [p], "region": make(k, radius)}], lr=0.05, fused=True, rescale=Gradient())
    p.grad = torch.ones_like(p)
    optimizer.step()
    a = radius if make is FLAT else radius / math.sqrt(k)
    distance = math.sqrt(88 + 0.2 * k * a + k * a * a)
    assert optimizer.diagnostics()[0].step_size == pytest.approx(0.05 * math.sqrt(8800) / distance, rel=1e-5)


def test_vertices_of_both_kinds_in_one_optimizer():
    regions = [ENTRIES(5, 1.5), FLAT(5, 0.5), ENTRIES(9, 1.0), geo.LpBall(math.inf, 0.3)]
    runs = fused_and_plain(
        [(6, 9)] * 4, lambda ps: [{"params": [p], "region": r} for p, r in zip(ps, regions, strict=True)]
    )
    assert_equal(runs)


@pytest.mark.parametrize("make", [ENTRIES, FLAT])
def test_at_a_vertex_nothing_moves_any_more(make):
    """The distance is 0, and so is the step: neither is it 1, nor is it counted as cut."""
    values = torch.zeros(6, 9)
    values[2, 3] = 1.0
    runs = fused_and_plain([(6, 9)], lambda ps: [{"params": ps, "region": make(1, 0.3)}], lambda *_: values, lr=1e9)
    assert_equal(runs)
    for _, optimizer in runs:
        assert optimizer.diagnostics()[0].step_size == 0
        assert optimizer.diagnostics()[0].clamped <= 3 / STEPS + 1e-9  # on the way, and where rounding left it beside


def test_exactly_k_rows_on_ties():
    ((p,), _), _ = fused_and_plain(
        [(40, 12)], lambda ps: [{"params": ps, "region": ROWS(9, 1.0)}], equal_entries, steps=1, lr=1e9
    )
    assert int(p.detach().norm(dim=1).gt(0).sum()) == 9


@pytest.mark.parametrize("apart", [1, 2791, 100_000], ids=["last bits", "all of one exponent", "many exponents"])
def test_the_kth_largest_is_found_whatever_digit_decides(apart):
    """3,000 magnitudes whose 31 bits differ by so much from one to the next: three passes must look at all of them."""
    bits = torch.full((3000,), 0x3F800000, dtype=torch.int32) - 1500 * apart * (apart > 2791)
    values = (bits + apart * torch.arange(3000, dtype=torch.int32)).view(torch.float32)
    values = values[torch.randperm(3000, generator=torch.Generator().manual_seed(0))]
    ((p,), _), _ = fused_and_plain(
        [(3000,)], lambda ps: [{"params": ps, "region": ENTRIES(941, 1.0)}], lambda *_: values, steps=1, lr=1e9
    )
    assert set(p.detach().nonzero().flatten().tolist()) == set(values.topk(941).indices.tolist())


@pytest.mark.parametrize("make", [ROWS, ENTRIES, FLAT, DIRECTIONS])
def test_zero_gradients_move_nothing(make):
    ((p,), optimizer), _ = fused_and_plain(
        [(6, 9)], lambda ps: [{"params": ps, "region": make(2, 30.0)}], lambda s, _: torch.zeros(s)
    )
    torch.testing.assert_close(p.detach().cpu(), (gaussian((6, 9), 0) * 0.1).float(), rtol=1e-6, atol=0)
    assert optimizer.diagnostics()[0].step_size == 0
