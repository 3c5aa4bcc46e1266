"""The fused step against its plain twin: on a GPU where there is one, else by Triton's interpreter of the same kernels."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from catalog import RULES, gaussian
from sparsefw import SFW
from sparsefw import geometry as geo
from sparsefw.data import load_digits
from sparsefw.optim import Diameter, Gradient, fused

tables = pytest.importorskip("sparsefw.optim.fused.tables")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
STEPS = 7
KERNEL = re.compile(r"^def (sfw_\w+)", re.MULTILINE)
# Entry by entry, of the weight's largest. On a GPU the products of the spectral oracle are TF32 and float16.
EXACT, ROUNDED = 5e-6, 5e-6 if DEVICE == "cpu" else 2e-2


def parameters(shapes, scale=0.1):
    return [nn.Parameter((gaussian(shape, i) * scale).float().to(DEVICE)) for i, shape in enumerate(shapes)]


def both(shapes, groups, gradient=gaussian, steps=STEPS, **options):
    """The same steps fused and plain: ((parameters, optimizer), (parameters, optimizer)).

    `groups` makes param groups from a list of parameters, `gradient` the gradient of a shape from a number.
    """
    runs = []
    for wanted in (True, False):
        params = parameters(shapes)
        optimizer = SFW(groups(params), fused=wanted, **{"lr": 0.05, "on_nonfinite": "skip", **options})
        for step in range(steps):
            for i, p in enumerate(params):
                p.grad = gradient(tuple(p.shape), 100 * step + i).float().to(DEVICE)
            optimizer.step()
        runs.append((params, optimizer))
    return runs


def assert_equal(runs, tolerance=EXACT, covered=None):
    (params, optimizer), (twins, plain) = runs
    assert plain._planner._plan is None
    assert optimizer._planner._plan.covered == frozenset(
        range(len(optimizer.param_groups)) if covered is None else covered
    )
    for p, q in zip(params, twins, strict=True):
        difference = float((p - q).detach().abs().max() / q.detach().abs().max().clamp(min=1e-12))
        assert difference <= tolerance, f"{tuple(p.shape)}: {difference}"
    for a, b in zip(optimizer.diagnostics(), plain.diagnostics(), strict=True):
        assert a.step_size == pytest.approx(b.step_size, rel=max(1e-4, tolerance), abs=1e-7)
        assert a.norm <= 1 + 1e-5
        assert a.quality == pytest.approx(b.quality, abs=tolerance, nan_ok=True)


ROWS, ENTRIES, FLAT, DIRECTIONS = geo.GroupKSupportBall, geo.KSupportBall, geo.KSparsePolytope, geo.SpectralKSupportBall
SHAPES = [(6, 3, 2, 2), (5, 7), (12, 3, 3, 3), (12, 3, 3, 3)]


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("make", [ROWS, ENTRIES, FLAT, DIRECTIONS])
def test_every_rule_on_every_view(make, rule):
    runs = both(
        SHAPES, lambda ps: [{"params": [p], "region": make(2, 1.0 + i)} for i, p in enumerate(ps)], rescale=rule
    )
    assert_equal(runs, ROUNDED if make is DIRECTIONS else EXACT)


@pytest.mark.parametrize("make", [ROWS, ENTRIES, FLAT, DIRECTIONS])
@pytest.mark.parametrize("k", [1, 4, 5])
def test_k_at_both_ends(make, k):
    """Rank 5 of a 5 x 7 matrix needs no subspace: that group is left to the plain step."""
    runs = both([(5, 7)], lambda ps: [{"params": ps, "region": make(k, 2.0)}])
    assert_equal(runs, ROUNDED if make is DIRECTIONS else EXACT, covered=() if make is DIRECTIONS and k == 5 else None)


@pytest.mark.parametrize(
    "region",
    [geo.LpBall(2, 1.5), geo.LpBall(1, 1.5), geo.LpBall(math.inf, 0.5), geo.GroupLassoBall(1.5), geo.NuclearBall(1.5)],
)
def test_other_gauges_whose_vertices_are_the_largest_magnitudes(region):
    spectral = isinstance(region.view, geo.Spectrum)
    assert_equal(both([(5, 7)], lambda ps: [{"params": ps, "region": region}]), ROUNDED if spectral else EXACT)


@pytest.mark.parametrize(
    "region",
    [geo.SpectralKSparse(3, 1.5), geo.NMBall(2, 4, 1.5), geo.GroupKSupportBall(2, axis=1), geo.SpectralBall(1.5)],
)
def test_what_no_kernel_can_do_takes_its_plain_step_beside_fused_ones(region):
    runs = both(
        [(5, 8), (5, 8)], lambda ps: [{"params": ps[:1], "region": region}, {"params": ps[1:], "region": ROWS(2)}]
    )
    assert_equal(runs, covered=[1])


def test_layers_of_every_size_in_one_launch():
    """More entries than a piece has, lengths that are no multiple of four, channels_last, a single row, a single column."""
    shapes = [(70, 131), (8, 16, 3, 3), (1, 9), (9, 1), (33, 4, 1, 1)]

    def groups(ps, make):
        ps[1].data = ps[1].data.contiguous(memory_format=torch.channels_last)
        return [{"params": [p], "region": make(max(1, min(p.shape[0], p[0].numel()) // 3), 1.0)} for p in ps]

    def gradient(shape, seed):
        g = gaussian(shape, seed)
        return g.contiguous(memory_format=torch.channels_last) if shape == (8, 16, 3, 3) else g

    for make in (ROWS, ENTRIES, FLAT):
        assert_equal(both(shapes, lambda ps, make=make: groups(ps, make), gradient, steps=3))
    # Of one row or one column all rank there is may grow.
    assert_equal(both(shapes, lambda ps: groups(ps, DIRECTIONS), gradient, steps=3), ROUNDED, covered=[0, 1, 4])


def test_an_oracle_of_more_directions_than_one_tile_has():
    runs = both([(68, 90), (90, 67)], lambda ps: [{"params": [p], "region": DIRECTIONS(66, 3.0)} for p in ps], steps=2)
    assert_equal(runs, ROUNDED)


@pytest.mark.parametrize(("shape", "k"), [((5, 7), 1), ((7, 5), 3), ((21, 13), 3), ((5, 7), 3)])
def test_blocks_of_one_stack(shape, k):
    """Also their warm starts, where numbers of entries are no multiple of four."""
    runs = both([shape] * 3, lambda ps: [{"params": ps, "region": DIRECTIONS(k, 3.0)}])
    assert_equal(runs, ROUNDED)
    for p, q in zip(runs[0][0], runs[1][0], strict=True):
        spans = (torch.linalg.qr(run.state[x]["warm"].double())[0] for run, x in ((runs[0][1], p), (runs[1][1], q)))
        assert float(torch.linalg.svdvals(next(spans).mT @ next(spans)).min()) > 0.98


def wide_gap(shape, seed):
    """One direction fifty times as long as the others."""
    U, _, Vh = torch.linalg.svd(gaussian(shape, seed), full_matrices=False)
    return (U * torch.tensor([1.0] + [0.02] * (min(shape) - 1))) @ Vh


def test_small_directions_beside_a_large_one():
    runs = both([(64, 70)], lambda ps: [{"params": ps, "region": DIRECTIONS(15, 3.0)}], wide_gap, steps=3)
    assert runs[0][1].diagnostics()[0].norm <= 1 + 1e-5
    assert runs[0][1].oracle_quality() == pytest.approx(runs[1][1].oracle_quality(), abs=max(ROUNDED, 1e-3))


def equal_entries(shape, seed):
    """Every magnitude is the same: of all ties, exactly k are to be taken."""
    return gaussian(shape, seed).sign()


@pytest.mark.parametrize(("make", "longest"), [(ENTRIES, lambda k: 1.0), (FLAT, math.sqrt)])
@pytest.mark.parametrize("k", [1, 7, 5000])
def test_exactly_k_entries_on_ties(k, make, longest):
    ((p,), optimizer), _ = both(
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
    runs = both([(6, 9)], lambda ps: [{"params": ps, "region": make(5, 1.0)}], lambda *_: values, steps=1, lr=1e9)
    assert_equal(runs)
    found = runs[0][0][0].detach().cpu()
    direction = values / values.norm() if make is ENTRIES else values.sign()
    torch.testing.assert_close(found, -direction, rtol=1e-5, atol=1e-7)


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
    runs = both([(6, 9)] * 4, lambda ps: [{"params": [p], "region": r} for p, r in zip(ps, regions, strict=True)])
    assert_equal(runs)


@pytest.mark.parametrize("make", [ENTRIES, FLAT])
def test_at_a_vertex_nothing_moves_any_more(make):
    """The distance is 0, and so is the step: neither is it 1, nor is it counted as cut."""
    values = torch.zeros(6, 9)
    values[2, 3] = 1.0
    runs = both([(6, 9)], lambda ps: [{"params": ps, "region": make(1, 0.3)}], lambda *_: values, lr=1e9)
    assert_equal(runs)
    for _, optimizer in runs:
        assert optimizer.diagnostics()[0].step_size == 0
        assert optimizer.diagnostics()[0].clamped <= 2 / STEPS + 1e-9  # on the way there


def test_exactly_k_rows_on_ties():
    ((p,), _), _ = both([(40, 12)], lambda ps: [{"params": ps, "region": ROWS(9, 1.0)}], equal_entries, steps=1, lr=1e9)
    assert int(p.detach().norm(dim=1).gt(0).sum()) == 9


@pytest.mark.parametrize("apart", [1, 2791, 100_000], ids=["last bits", "all of one exponent", "many exponents"])
def test_the_kth_largest_is_found_whatever_digit_decides(apart):
    """3,000 magnitudes whose 31 bits differ by so much from one to the next: three passes must look at all of them."""
    bits = torch.full((3000,), 0x3F800000, dtype=torch.int32) - 1500 * apart * (apart > 2791)
    values = (bits + apart * torch.arange(3000, dtype=torch.int32)).view(torch.float32)
    values = values[torch.randperm(3000, generator=torch.Generator().manual_seed(0))]
    ((p,), _), _ = both(
        [(3000,)], lambda ps: [{"params": ps, "region": ENTRIES(941, 1.0)}], lambda *_: values, steps=1, lr=1e9
    )
    assert set(p.detach().nonzero().flatten().tolist()) == set(values.topk(941).indices.tolist())


@pytest.mark.parametrize("make", [ROWS, ENTRIES, FLAT, DIRECTIONS])
def test_zero_gradients_move_nothing(make):
    ((p,), optimizer), _ = both(
        [(6, 9)], lambda ps: [{"params": ps, "region": make(2, 30.0)}], lambda s, _: torch.zeros(s)
    )
    torch.testing.assert_close(p.detach().cpu(), (gaussian((6, 9), 0) * 0.1).float(), rtol=1e-6, atol=0)
    assert optimizer.diagnostics()[0].step_size == 0


def low_rank(shape, seed):
    return gaussian((shape[0], 1), seed) @ gaussian((1, shape[1]), seed + 1)


def test_gradients_of_lower_rank_than_k():
    runs = both([(8, 12)], lambda ps: [{"params": ps, "region": DIRECTIONS(3, 3.0)}], low_rank, steps=2, momentum=0.0)
    assert all(torch.isfinite(p).all() for p in runs[0][0])
    assert runs[0][1].diagnostics()[0].quality == pytest.approx(1, abs=1e-3)


def test_a_step_with_nan_changes_nothing_and_is_counted():
    def gradient(shape, seed):
        g = gaussian(shape, seed)
        if seed == 601:
            g.view(-1)[2] = float("nan")
        return g

    def groups(ps):
        regions = (ROWS(2), ENTRIES(5), DIRECTIONS(2))
        named = [{"params": [(f"w{i}", ps[i])], "region": region} for i, region in enumerate(regions)]
        return [*named, {"params": [("rest", ps[3])], "region": None}]

    # Not in the first steps, which are more careful: the host does not know that one of them was in vain.
    runs = both([(6, 9)] * 4, groups, gradient, steps=8)
    assert_equal(runs, ROUNDED)
    assert runs[0][1].nonfinite_counts() == {"w1": 1}


@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1}, {"nesterov": True, "weight_decay": 0.1}, {"momentum": 0.0}]
)
def test_the_rest_by_sgd(options):
    assert_equal(both([(6, 9), (5,), (2500,)], lambda ps: [{"params": ps, "region": None}], **options))


def test_coupled_tensors_are_one_block():
    """Fused where all rows are stretches of memory; the columns of a third tensor are none."""
    runs = both(
        [(8, 3, 3, 3), (8,), (5, 8, 1, 1)],
        lambda ps: [{"params": ps, "region": ROWS(3, 2.0), "coupled": True, "axes": [0, 0, 1]}],
    )
    assert_equal(runs, covered=[])
    runs = both([(8, 3, 3, 3), (8,)], lambda ps: [{"params": ps, "region": ROWS(3, 2.0), "coupled": True}])
    assert_equal(runs)


def test_learning_rates_change_without_a_new_plan():
    """Numbers, and tensors that somebody else fills."""
    params = parameters([(6, 9), (6, 9)])
    rate = torch.tensor(0.1, device=DEVICE)
    groups = [{"params": params[:1], "region": ROWS(2), "lr": rate}, {"params": params[1:], "region": ROWS(2)}]
    optimizer = SFW(groups, lr=0.2, fused=True, rescale=Diameter())
    plans = []
    for factor in (1.0, 0.5):
        rate.fill_(0.1 * factor)
        optimizer.param_groups[1]["lr"] = 0.2 * factor
        for p in params:
            p.grad = gaussian((6, 9), 1).float().to(DEVICE)
        optimizer.step()
        torch.testing.assert_close(optimizer.step_sizes().cpu(), torch.tensor([0.05, 0.1]) * factor)  # lr / 2
        plans.append(optimizer._planner._plan)
    assert plans[0] is plans[1]


def test_gradients_may_lie_elsewhere_in_every_step():
    """As they do in training: the table of addresses must follow."""
    runs = both([(6, 9)], lambda ps: [{"params": ps, "region": ROWS(2)}], steps=3)
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
    addresses = tables.Addresses(1, torch.device(DEVICE), fleeting=True)
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
    found = []
    for wanted in (True, False):
        params = parameters([(6, 4, 3, 3)])
        optimizer = SFW([{"params": params, "region": region}], lr=0.05, fused=wanted)
        stepped(optimizer, params, 0)
        change(params, optimizer)
        stepped(optimizer, params, 10)
        stepped(optimizer, params, 20)
        assert optimizer.state[params[0]]["momentum"].any()
        found.append(params[0].detach())
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_a_schedule_of_momenta_needs_no_new_plan():
    params = parameters([(6, 9), (7,)])
    optimizer = SFW([{"params": params[:1], "region": ROWS(2)}, {"params": params[1:]}], fused=True)
    plans = []
    for momentum in (0.9, 0.8):
        for group in optimizer.param_groups:
            group["momentum"] = momentum
        stepped(optimizer, params, 0)
        plans.append(optimizer._planner._plan)
    assert plans[0] is plans[1]


def test_state_moves_between_fused_and_plain_steps():
    """A run saved by the one goes on by the other."""
    regions = (ROWS(2), ENTRIES(5), DIRECTIONS(2))

    def groups(ps):
        return [{"params": [p], "region": region} for p, region in zip(ps, regions, strict=True)]

    (params, optimizer), (twins, _) = both([(6, 9)] * 3, groups, steps=4)
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
    kernels = {name for file in Path(fused.__file__).parent.glob("*.py") for name in KERNEL.findall(file.read_text())}
    assert kernels - {"sfw_write_addresses"} == set(done.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("make", [ROWS, ENTRIES, DIRECTIONS])
def test_two_hundred_steps_end_at_the_same_accuracy(make):
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
        optimizer = SFW(groups, lr=0.02, fused=wanted)
        for step in range(200):
            batch = torch.randint(len(images), (64,), generator=torch.Generator().manual_seed(step)).to(DEVICE)
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
        accuracies.append(float((net(test_images).argmax(1) == test_labels).float().mean()))
    assert accuracies[1] > 0.85
    assert abs(accuracies[0] - accuracies[1]) <= 0.02
