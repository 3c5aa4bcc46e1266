"""Several processes, each with its own batches, give the result of one process with all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from compression import worker
from compression.worker import HOW, damage, falling
from sparsefw.compression import compress, recalibrate


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """Nine batches of unequal size dealt to two processes: one of them holds all that are held out, the other none."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.SyncBatchNorm(6), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    ).double()  # fmt: skip
    batches = [torch.randn(5 + i, 2, 15, 14, dtype=torch.float64) * (1 + i) + i for i in range(9)]
    for i, batch in enumerate(batches):
        batch[:, i % 2] = 0  # so that the processes, each for itself, would find other filters important
    torch.save((net, batches), folder / "task.pt")
    ranks = [
        subprocess.Popen(
            [sys.executable, worker.__file__, str(folder), str(rank), "2"], stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for process in ranks:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    return net, batches, [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


def test_processes_find_the_statistics_that_one_would(two_processes):
    net, batches, results = two_processes
    expected = recalibrate(net, batches).state_dict()
    for statistics, *_ in results:
        for name, value in expected.items():
            torch.testing.assert_close(statistics[name], value, rtol=1e-10, atol=1e-12, msg=name)


def products(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a layer that became two their product: each for itself is only determined up to signs."""
    whole = dict(state)
    for name in [n for n in state if n.endswith(".0.weight")]:
        second = name.replace(".0.weight", ".1.weight")
        whole[name] = torch.einsum("nt,t...->n...", whole.pop(second).flatten(1), state[name])
    return whole


@pytest.mark.parametrize("which", range(len(HOW)), ids=map(str, HOW))
def test_processes_refit_to_the_weights_that_one_would(two_processes, which):
    net, batches, results = two_processes
    expected = products(compress(net, calibration=batches, **HOW[which]).model.state_dict())
    for _, refits, *_ in results:
        found = products(refits[which])
        assert list(found) == list(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6, msg=name)
    first, second = (refits[which] for _, refits, *_ in results)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_processes_decide_alike_though_each_measures_for_itself(two_processes):
    """By the mean of what they measured: a drop of 0.5 at slopes of 1 and 4 is one at a slope of 2.5."""
    net, batches, results = two_processes
    expected = compress(net, target="drop=0.5", calibration=batches, evaluate=falling(2.5)).costs.parameters
    assert [size for *_, size, _ in results] == [expected] * 2
    own = [damage(net, batches), damage(net, batches[1:] + batches[:1])]
    assert not torch.allclose(*own, rtol=0.01)
    for *_, found in results:
        torch.testing.assert_close(found, (own[0] + own[1]) / 2, rtol=1e-6, atol=1e-9)
