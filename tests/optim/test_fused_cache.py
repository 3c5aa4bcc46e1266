"""When a fused step is built again: rates, addresses and state that change; and every kernel compiled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from catalog import gaussian
from optim.twins import DEVICE, DIRECTIONS, ENTRIES, ROUNDED, ROWS, assert_equal, fused_and_plain, parameters
from sparsefw import SFW
from sparsefw.compression.fused import row_norms
from sparsefw.data import load_digits
from sparsefw.optim import Diameter, fused
from sparsefw.optim.fused.addresses import Addresses

KERNEL = re.compile(r"^def (sfw_\w+)", re.MULTILINE)


def test_learning_rates_change_without_a_new_fused_step():
    """Numbers, and tensors that somebody else fills."""
    params = parameters([(6, 9), (6, 9)])
    rate = torch.tensor(0.1, device=DEVICE)
    groups = [{"params": params[:1], "region": ROWS(2), "lr": rate}, {"params": params[1:], "region": ROWS(2)}]
    optimizer = SFW(groups, lr=0.2, fused=True, rescale=Diameter())
    steps_built = []
    for factor in (1.0, 0.5):
        rate.fill_(0.1 * factor)
        optimizer.param_groups[1]["lr"] = 0.2 * factor
        for p in params:
            p.grad = gaussian((6, 9), 1).float().to(DEVICE)
        optimizer.step()
        torch.testing.assert_close(optimizer.step_sizes().cpu(), torch.tensor([0.05, 0.1]) * factor)  # lr / 2
        steps_built.append(optimizer._fused_steps.current)
    assert steps_built[0] is steps_built[1]


def test_gradients_may_lie_elsewhere_in_every_step():
    """As they do in training: the table of addresses must follow."""
    runs = fused_and_plain([(6, 9)], lambda ps: [{"params": ps, "region": ROWS(2)}], steps=3)
    (params, optimizer), (twins, plain) = runs
    kept = []
    for step in range(3):
        for p, q in zip(params, twins, strict=True):
            g = gaussian((6, 9), 50 + step).float().to(DEVICE)
            kept.append(g)  # so that no memory is used again
            p.grad, q.grad = g, g.clone()
        optimizer.step()
        plain.step()
    assert_equal(runs)


def test_addresses_are_written_again_once_a_graph_has_its_own():
    """A replay writes those that were captured, so what was written before is no longer there."""
    addresses = Addresses(1, torch.device(DEVICE), fleeting=True)
    addresses.update([16])
    addresses._captured = True
    addresses.table.fill_(64)  # as a replay would
    addresses.update([16])
    assert int(addresses.table[0]) == 16


def stepped(optimizer, params, seed):
    for i, p in enumerate(params):
        p.grad = torch.empty_like(p).copy_(gaussian(tuple(p.shape), seed + i))
    optimizer.step()


def changed_layout(params, optimizer):
    params[0].data = params[0].data.contiguous(memory_format=torch.channels_last)


def forgotten_state(params, optimizer):
    optimizer.state.clear()


def another_group(params, optimizer):
    optimizer.param_groups[0] = {**optimizer.param_groups[0], "lr": 0.3}


def another_momentum(params, optimizer):
    optimizer.param_groups[0]["momentum"] = 0.5


@pytest.mark.parametrize("change", [changed_layout, forgotten_state, another_group, another_momentum])
@pytest.mark.parametrize("region", [None, ROWS(2, 5.0)], ids=["rest", "rows"])
def test_what_changes_from_outside_is_noticed(change, region):
    results = []
    for wanted in (True, False):
        params = parameters([(6, 4, 3, 3)])
        optimizer = SFW([{"params": params, "region": region}], lr=0.05, fused=wanted)
        stepped(optimizer, params, 0)
        change(params, optimizer)
        stepped(optimizer, params, 10)
        stepped(optimizer, params, 20)
        assert optimizer.state[params[0]]["momentum"].any()
        results.append(params[0].detach())
    torch.testing.assert_close(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_a_schedule_of_momenta_needs_no_new_plan():
    params = parameters([(6, 9), (7,)])
    optimizer = SFW([{"params": params[:1], "region": ROWS(2)}, {"params": params[1:]}], fused=True)
    steps_built = []
    for momentum in (0.9, 0.8):
        for group in optimizer.param_groups:
            group["momentum"] = momentum
        stepped(optimizer, params, 0)
        steps_built.append(optimizer._fused_steps.current)
    assert steps_built[0] is steps_built[1]


def test_state_moves_between_fused_and_plain_steps():
    """A run saved by the one goes on by the other."""
    regions = (ROWS(2), ENTRIES(5), DIRECTIONS(2))

    def groups(ps):
        return [{"params": [p], "region": region} for p, region in zip(ps, regions, strict=True)]

    (params, optimizer), (twins, _) = fused_and_plain([(6, 9)] * 3, groups, steps=4)
    resumed = SFW(groups(twins), lr=0.05, fused=False)
    resumed.load_state_dict(optimizer.state_dict())
    for p, q in zip(params, twins, strict=True):
        q.data.copy_(p.data)
        p.grad = gaussian((6, 9), 77).float().to(DEVICE)
        q.grad = p.grad.clone()
    optimizer.step()
    resumed.step()
    for p, q in zip(params, twins, strict=True):
        assert float((p - q).detach().abs().max()) <= ROUNDED


def test_true_is_refused_where_there_are_no_kernels(monkeypatch):
    monkeypatch.setattr("sparsefw.optim.fused.available", lambda device: False)
    (p,) = parameters([(3, 4)])
    p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="fused=True needs Triton"):
        SFW([p], fused=True).step()


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles_for_gpus_that_are_not_here(capability):
    script, environment = Path(__file__).with_name("compile_kernels.py"), {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, script, str(capability)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    folders = [Path(package.__file__).parent for package in (fused, row_norms)]
    files = [file for folder in folders for file in folder.glob("*.py")]
    kernels = {name for file in files for name in KERNEL.findall(file.read_text())}
    assert kernels - {"sfw_write_addresses"} == set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("make", [ROWS, ENTRIES, DIRECTIONS])
def test_a_hundred_steps_end_at_the_same_accuracy(make):
    """A choice among nearly equal gradients may fall otherwise, and with it the weights; what is learnt must not."""
    (images, labels), (test_images, test_labels) = (
        (x.flatten(1).to(DEVICE), y.to(DEVICE)) for x, y in (load_digits("train"), load_digits("test"))
    )
    accuracies = []
    for wanted in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10)).to(DEVICE)
        (hidden, *rest) = net.parameters()
        groups = [{"params": [hidden], "region": make(4, 20.0)}, {"params": rest, "region": None}]
        optimizer = SFW(groups, lr=0.04, fused=wanted)
        for step in range(100):
            batch = torch.randint(len(images), (64,), generator=torch.Generator().manual_seed(step)).to(DEVICE)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
        accuracies.append(float((net(test_images).argmax(1) == test_labels).float().mean()))
    assert accuracies[1] > 0.75
    assert abs(accuracies[0] - accuracies[1]) <= 0.02
