"""bfloat16 and float16 weights: steps below their resolution must not be lost."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from catalog import gaussian
from sparsefw import SFW
from sparsefw import geometry as geo

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
REGIONS = [geo.GroupKSupportBall(2, 50.0), geo.KSupportBall(5, 50.0), geo.SpectralKSupportBall(2, 50.0), None]


def run(p, optimizer, steps, seed=0):
    for step in steps:
        p.grad = gaussian(tuple(p.shape), 50 * seed + step, torch.float32).to(p.dtype)
        optimizer.step()


@HALVES
@pytest.mark.parametrize("region", REGIONS, ids=str)
def test_small_steps_add_up(dtype, region):
    """1,000 steps of a millionth each: in half precision alone nothing would move."""
    half = nn.Parameter(gaussian((6, 4), 0, torch.float32).to(dtype))
    full = nn.Parameter(half.detach().float())
    start = half.detach().clone()
    for p in (half, full):
        optimizer = SFW([{"params": [p], "region": region}], lr=2e-5, momentum=0.0)
        for _ in range(500):
            p.grad = torch.ones_like(p)
            optimizer.step()
    assert not torch.equal(half, start)
    torch.testing.assert_close(half.float(), full, rtol=1e-2, atol=1e-3)


@HALVES
@pytest.mark.parametrize("region", REGIONS, ids=str)
def test_the_float32_copy_survives_saving_and_loading(dtype, region):
    p = nn.Parameter(gaussian((6, 4), 0, torch.float32).to(dtype))
    optimizer = SFW([{"params": [p], "region": region}], lr=1e-4)
    run(p, optimizer, range(20))
    q = nn.Parameter(p.detach().clone())
    resumed = SFW([{"params": [q], "region": region}], lr=1e-4)
    resumed.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert resumed.state[q]["momentum"].dtype == torch.float32
    run(p, optimizer, range(20, 60))
    run(q, resumed, range(20, 60))
    assert torch.equal(p, q)
    assert torch.equal(optimizer.state[p]["master"], resumed.state[q]["master"])


@HALVES
def test_a_weight_changed_from_outside_is_followed(dtype):
    p = nn.Parameter(gaussian((6, 4), 0, torch.float32).to(dtype))
    optimizer = SFW([{"params": [p], "region": geo.GroupKSupportBall(2, 50.0)}], lr=1e-4)
    run(p, optimizer, range(3))
    with torch.no_grad():
        p.fill_(1.0)
    run(p, optimizer, range(3, 4))
    torch.testing.assert_close(p.detach().float(), torch.ones(6, 4), rtol=0, atol=1e-2)


def test_adamw_counts_beyond_256_in_bfloat16():
    p = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = SFW([p], rest="adamw", lr=1e-4)
    for _ in range(300):
        p.grad = torch.ones_like(p)
        optimizer.step()
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert float(optimizer.state[p]["step"]) == 300
