"""The step: the fast path against the reference, feasibility, the identities that define the rules."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from catalog import CASES, IDS, RULES, gaussian, regions
from sparsefw import SFW
from sparsefw import geometry as geo
from sparsefw.optim import RESCALES, Diameter, FastGradient, Gradient, ReferenceSFW, Unscaled

each = pytest.mark.parametrize(("shape", "region"), CASES, ids=IDS)
every_rule = pytest.mark.parametrize("rule", RULES, ids=str)
# Every region on every shape under the default rule, and on two shapes under the others.
combinations = pytest.mark.parametrize(
    ("shape", "region", "rule"),
    [
        (shape, region, rule)
        for shape, region in CASES
        for rule in RULES
        if rule == RULES[0] or shape in ((5, 4), (6, 3, 2, 2))
    ],
    ids=lambda value: str(value),
)


def parameters(shape, count=3, dtype=torch.float64, scale=0.3):
    params = [nn.Parameter(gaussian(shape, seed, dtype) * scale) for seed in range(count)]
    if len(shape) == 4:
        params.append(nn.Parameter((gaussian(shape, 77, dtype) * scale).to(memory_format=torch.channels_last)))
    return params


def set_gradients(params, seed):
    for i, p in enumerate(params):
        p.grad = gaussian(tuple(p.shape), 1000 * seed + i, p.dtype)


def test_every_rule_is_in_the_catalog_of_tests():
    assert {type(rule) for rule in RULES} == set(RESCALES.values())


@combinations
def test_fast_and_reference_are_one_function(shape, region, rule):
    fast, slow = parameters(shape), parameters(shape)
    settings = dict(lr=0.2, momentum=0.8, dampening=0.3, rescale=rule)
    optimizer = SFW([{"params": fast, "region": region}], **settings)
    with torch.no_grad():
        for p in slow:
            p.copy_(region.pull_inside(p))
    reference = ReferenceSFW([{"params": slow, "region": region}], **settings)
    for step in range(12):
        set_gradients(fast, step)
        set_gradients(slow, step)
        optimizer.step()
        reference.step()
        for p, q in zip(fast, slow, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


def test_fast_and_reference_agree_on_a_network_with_a_warm_spectral_oracle():
    """With enough iterations from the warm start the subspace oracle is the exact one."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 5)
    ).double()
    twin = copy.deepcopy(net)
    solver = geo.WarmSubspace(iterations=300, first_iterations=300)
    x, y = gaussian((16, 3, 8, 8), 0), torch.arange(16) % 5

    def train(model, make, region):
        convs = [m.weight for m in model if isinstance(m, nn.Conv2d)]
        rest = [p for p in model.parameters() if all(p is not c for c in convs)]
        optimizer = make([{"params": convs, "region": region}, {"params": rest}], lr=0.05, weight_decay=1e-3)
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    train(net, SFW, geo.SpectralKSupportBall(2, 4.0, solver))
    train(twin, ReferenceSFW, geo.SpectralKSupportBall(2, 4.0, geo.ExactSVD()))
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 4), (6, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("steps", [40, pytest.param(300, marks=pytest.mark.slow)])
@every_rule
def test_feasible_over_many_steps(shape, steps, rule):
    """float32, every region, warm-started spectral oracles as in training, a learning rate that often hits the clamp."""
    for region in regions(shape, exact=False):
        params = parameters(shape, count=1, dtype=torch.float32)
        optimizer = SFW([{"params": params, "region": region}], lr=0.5, rescale=rule)
        for step in range(steps):
            set_gradients(params, step)
            optimizer.step()
            if step % 20 == 0 or step == steps - 1:
                for p in params:
                    assert float(region.norm(p.detach())) <= region.radius * (1 + 1e-5), region


def test_l2_ball_with_fast_gradient_is_sgd_with_decay_from_the_gradient():
    """theta <- (1 - lr ||m|| / r) theta - lr m: SGD with momentum and decoupled decay ||m|| / r, exactly."""
    p, radius, lr, rho = parameters((4, 3), 1)[0], 50.0, 0.1, 0.9
    optimizer = SFW([{"params": [p], "region": geo.LpBall(2, radius)}], lr=lr, momentum=rho, rescale=FastGradient())
    theta, m = p.detach().clone(), torch.zeros_like(p)
    for step in range(30):
        set_gradients([p], step)
        m = rho * m + p.grad
        theta = (1 - lr * m.norm() / radius) * theta - lr * m
        optimizer.step()
        torch.testing.assert_close(p.detach(), theta, rtol=1e-12, atol=1e-12)


@each
def test_gradient_rule_moves_by_lr_times_the_momentum(shape, region):
    for p in parameters(shape, 2):
        optimizer = SFW([{"params": [p], "region": region.with_radius(100.0)}], lr=1e-3)
        m = torch.zeros_like(p)
        for step in range(5):
            set_gradients([p], step)
            m = 0.9 * m + p.grad
            before = p.detach().clone()
            optimizer.step()
            assert float((p.detach() - before).norm()) == pytest.approx(1e-3 * float(m.norm()), rel=1e-9)


def test_diameter_and_unscaled_rules_by_hand():
    """One row of two, k = 1: v = (-2, 0) for the gradient (3, 1); D = 4."""
    for rule, eta in ((Diameter(), 0.2 / 4), (Unscaled(), 0.2)):
        p = nn.Parameter(torch.tensor([0.5, 1.0], dtype=torch.float64))
        optimizer = SFW([{"params": [p], "region": geo.KSupportBall(1, 2.0)}], lr=0.2, rescale=rule)
        p.grad = torch.tensor([3.0, 1.0], dtype=torch.float64)
        optimizer.step()
        assert p.tolist() == pytest.approx([(1 - eta) * 0.5 + eta * -2.0, (1 - eta) * 1.0])


def test_gradient_rule_by_hand():
    """theta = (0, 1), g = (3, 4), k = 1, r = 2: v = (0, -2), ||v - theta|| = 3, ||g|| = 5, eta = 0.1 * 5 / 3."""
    p = nn.Parameter(torch.tensor([0.0, 1.0], dtype=torch.float64))
    optimizer = SFW([{"params": [p], "region": geo.KSupportBall(1, 2.0)}], lr=0.1)
    p.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    optimizer.step()
    assert p.tolist() == pytest.approx([0.0, 1 - 0.5])
    # Second step, same gradient: m = 1.9 g, still the second entry, displacement 0.1 * 9.5 = 0.95.
    optimizer.step()
    assert p.tolist() == pytest.approx([0.0, 0.5 - 0.95])


def test_the_clamp_ends_at_the_vertex():
    p = nn.Parameter(torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=torch.float64))
    region = geo.GroupKSupportBall(1, 1.0)
    optimizer = SFW([{"params": [p], "region": region}], lr=1e6)
    p.grad = torch.tensor([[1.0, 0.0], [3.0, 4.0]], dtype=torch.float64)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.tensor([[0.0, 0.0], [-0.6, -0.8]], dtype=torch.float64))
    assert optimizer.diagnostics()[0].clamped == 1.0
    optimizer.step()  # at the vertex already: 0 / 0 in the rule must not become NaN
    torch.testing.assert_close(p.detach(), torch.tensor([[0.0, 0.0], [-0.6, -0.8]], dtype=torch.float64))


@combinations
def test_zero_gradient_moves_nothing(shape, region, rule):
    params = parameters(shape, 2)
    optimizer = SFW([{"params": params, "region": region}], lr=0.5, rescale=rule)
    before = [p.detach().clone() for p in params]
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True))


def test_few_filters_grow_and_the_others_decay():
    """The point of it all: a gradient that always prefers one filter leaves the others to decay by the same factor."""
    p = nn.Parameter(torch.ones(4, 6, dtype=torch.float64))
    optimizer = SFW([{"params": [p], "region": geo.GroupKSupportBall(1, 100.0)}], lr=0.1)
    g = torch.full((4, 6), 0.1, dtype=torch.float64)
    g[2] = -1.0
    for _ in range(100):
        p.grad = g.clone()
        optimizer.step()
    norms = p.detach().norm(dim=1)
    assert norms.argmax() == 2
    torch.testing.assert_close(norms[[0, 1, 3]], norms[0].expand(3))
    assert norms[0] < 0.5 * 6**0.5 < norms[2]


def test_momentum_and_batch_length_differ_as_documented():
    for rule, length in ((Gradient(), 1.9), (Gradient(of_batch=True), 1.0)):
        p = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        optimizer = SFW([{"params": [p], "region": geo.LpBall(2, 10.0)}], lr=0.01, rescale=rule)
        g = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
        for _ in range(2):
            before = p.detach().clone()
            p.grad = g.clone()
            optimizer.step()
        assert float((p.detach() - before).norm()) == pytest.approx(0.01 * length)
