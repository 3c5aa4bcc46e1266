"""Unconstrained groups: torch's own SGD and AdamW, inside SFW."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from catalog import gaussian
from sparsefw import SFW


def parameters():
    return [
        nn.Parameter(gaussian(shape, seed, torch.float32)) for seed, shape in enumerate([(4, 3), (7,), (2, 3, 3, 3)])
    ]


def run(params, optimizer, steps=12):
    for step in range(steps):
        for i, p in enumerate(params):
            p.grad = gaussian(tuple(p.shape), 100 * step + i, torch.float32)
        optimizer.step()


@pytest.mark.parametrize(
    "options",
    [
        dict(lr=0.1, momentum=0.9),
        dict(lr=0.1, momentum=0.0, weight_decay=0.01),
        dict(lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True),
        dict(lr=0.1, momentum=0.5, dampening=0.3, weight_decay=5e-4),
    ],
    ids=str,
)
def test_sgd_bit_for_bit(options):
    ours, theirs = parameters(), parameters()
    run(ours, SFW(ours, **options))
    run(theirs, torch.optim.SGD(theirs, foreach=True, **options))
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


def test_adamw():
    ours, theirs = parameters(), parameters()
    run(ours, SFW(ours, lr=0.01, rest="adamw", weight_decay=0.05, adam_betas=(0.8, 0.99), adam_eps=1e-7))
    run(theirs, torch.optim.AdamW(theirs, lr=0.01, weight_decay=0.05, betas=(0.8, 0.99), eps=1e-7))
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)


def test_a_late_parameter_makes_its_own_first_step():
    ours, theirs = parameters(), parameters()
    options = dict(lr=0.1, momentum=0.9, dampening=0.5)
    a, b = SFW(ours, **options), torch.optim.SGD(theirs, foreach=True, **options)
    for step in range(5):
        for params in (ours, theirs):
            for i, p in enumerate(params):
                p.grad = gaussian(tuple(p.shape), 10 * step + i, torch.float32) if i or step > 1 else None
        a.step()
        b.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))


def test_the_default_learning_rate_is_that_of_the_rest():
    """A learning rate of 0.1, usual for SGD, would ruin AdamW's steps."""
    groups = [{"params": [nn.Parameter(torch.ones(2))], "region": None}]
    assert [SFW(groups, rest=rest).param_groups[0]["lr"] for rest in ("sgd", "adamw")] == [0.1, 0.002]
    assert SFW(groups, rest="adamw", lr=0.03).param_groups[0]["lr"] == 0.03
    with pytest.raises(ValueError, match="rest must be 'sgd' or 'adamw'"):
        SFW(groups, rest="adam")
