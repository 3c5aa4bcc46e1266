"""What people do with a torch optimizer, done with SFW."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from catalog import backward, equal, gaussian, network, optimizer_of, train
from sparsefw import SFW, constrain
from sparsefw import geometry as geo


def test_schedulers_drive_the_learning_rate():
    net = network()
    optimizer = optimizer_of(net)
    linear = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=1.0, end_factor=0.0, total_iters=10)
    train(net, optimizer, range(10), linear)
    before = copy.deepcopy(net)
    assert optimizer.param_groups[0]["lr"] == 0
    train(net, optimizer, range(10, 12))
    for p, q in zip(net.parameters(), before.parameters(), strict=True):
        assert torch.equal(p, q)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer_of(net), max_lr=0.1, total_steps=10)
    assert cycle.optimizer.param_groups[0]["momentum"] != 0.9  # it found the key it cycles
    torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).step(1.0)


def test_learning_rate_as_a_tensor():
    plain, tensor = network(), network()
    train(plain, optimizer_of(plain), range(5))
    train(tensor, optimizer_of(tensor, lr=torch.tensor(0.1)), range(5))
    for p, q in zip(plain.parameters(), tensor.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_grad_scaler_skips_overflows_and_scales_otherwise():
    net, twin = network(), network()
    optimizer, plain = optimizer_of(net), optimizer_of(twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(6):
        optimizer.zero_grad()
        loss = backward(net, step, scale=0.0)
        optimizer.zero_grad()
        loss = F.cross_entropy(net(gaussian((8, 3, 6, 6), step, torch.float32)), torch.arange(8) % 4)
        scaler.scale(loss).backward()
        if step == 3:
            net[0].weight.grad.view(-1)[0] = float("inf")
            before = copy.deepcopy(net.state_dict())
        scaler.step(optimizer)
        scaler.update()
        if step == 3:
            assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
            assert scaler.get_scale() == 2.0**9
    for step in (0, 1, 2, 4, 5):
        train(twin, plain, range(step, step + 1))
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-2, atol=1e-3)


def test_accumulated_gradients_are_the_gradient_of_the_sum():
    once, twice = network(), network()
    a, b = optimizer_of(once), optimizer_of(twice)
    for net, optimizer, parts in ((once, a, 1), (twice, b, 2)):
        net.eval()  # batch statistics would differ between one batch and two halves
        optimizer.zero_grad()
        x, y = gaussian((8, 3, 6, 6), 0, torch.float32), torch.arange(8) % 4
        for xs, ys in zip(x.chunk(parts), y.chunk(parts), strict=True):
            (F.cross_entropy(net(xs), ys) / parts).backward()
        optimizer.step()
    for p, q in zip(once.parameters(), twice.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_clipped_gradients_bound_the_step():
    net = network()
    optimizer = optimizer_of(net, momentum=0.0, weight_decay=0.0)
    before = [p.detach().clone() for p in net.parameters()]
    backward(net, 0, scale=1e3)
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()
    moved = torch.cat([(p.detach() - q).flatten() for p, q in zip(net.parameters(), before, strict=True)]).norm()
    assert float(moved) == pytest.approx(0.1 * 0.5, rel=1e-3)


def test_closure_is_called_with_gradients_on_and_its_loss_returned():
    net = network()
    optimizer = optimizer_of(net)

    def closure():
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        return backward(net, 0)

    with torch.no_grad():
        first, second = optimizer.step(closure), optimizer.step(closure)
    assert second.item() < first.item()


def test_a_parameter_without_gradient_leaves_the_others_alone():
    """The second of three equal convolutions has no gradient on every other step; the other two must not notice."""
    weights = [nn.Parameter(gaussian((8, 8, 3, 3), seed)) for seed in range(3)]
    alone = [nn.Parameter(p.detach().clone()) for p in (weights[0], weights[2])]
    for region in (geo.GroupKSupportBall(2, 5.0), geo.SpectralKSupportBall(2, 5.0), geo.KSupportBall(9, 5.0)):
        a, b = SFW([{"params": weights, "region": region}]), SFW([{"params": alone, "region": region}])
        for step in range(6):
            for i, p in enumerate(weights):
                p.grad = gaussian((8, 8, 3, 3), 10 * step + i) if i != 1 or step % 2 else None
            alone[0].grad, alone[1].grad = weights[0].grad.clone(), weights[2].grad.clone()
            before = weights[1].detach().clone()
            a.step()
            b.step()
            assert step % 2 or torch.equal(weights[1], before)
            torch.testing.assert_close(weights[0], alone[0], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(weights[2], alone[1], rtol=1e-10, atol=1e-12)


def test_no_gradient_at_all_is_a_no_op():
    net = network()
    before = copy.deepcopy(net)
    optimizer = optimizer_of(net)
    pulled = copy.deepcopy(net)
    optimizer.step()
    assert equal(net, pulled)
    optimizer.zero_grad()
    assert isinstance(before, nn.Module)


def test_frozen_parameters_are_not_trained():
    net = network()
    net[0].weight.requires_grad_(False)
    groups = constrain(net, "filters", k=0.25, w=1.0, report=None)
    assert "frozen, not trained: 0.weight" in str(groups)
    before = net[0].weight.clone()
    train(net, SFW(groups, lr=0.1), range(3))
    assert torch.equal(net[0].weight, before)


def test_add_param_group_later():
    net = network()
    convs = [net[0].weight, net[3].weight]
    optimizer = SFW([{"params": convs, "region": geo.GroupKSupportBall(2, 3.0)}], lr=0.1)
    train(net, optimizer, range(2))
    optimizer.add_param_group({"params": [net[5].weight], "region": geo.SpectralKSupportBall(2, 3.0)})
    optimizer.add_param_group({"params": net[8].parameters(), "rest": "adamw", "lr": 1e-3})
    before = copy.deepcopy(net)
    train(net, optimizer, range(2, 4))
    for i in (0, 3, 5, 8):
        assert not torch.equal(net[i].weight, before[i].weight)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": [net[5].weight]})


def test_named_optimizers_take_unnamed_groups():
    net = network()
    optimizer = SFW(constrain(net[:5], "filters", k=0.5, w=1.0, report=None))
    optimizer.add_param_group({"params": [net[8].weight]})
    assert optimizer.param_groups[-1]["param_names"] == [f"group{len(optimizer.param_groups) - 1}.0"]


def test_parameters_swapped_from_outside_are_followed():
    """`p.data = ...` gives a parameter new memory and perhaps another layout; the momentum goes on."""
    a, b = network(), network()
    first, second = optimizer_of(a), optimizer_of(b)
    train(a, first, range(3))
    train(b, second, range(3))
    for p in b.parameters():
        p.data = p.data.clone().to(memory_format=torch.channels_last) if p.ndim == 4 else p.data.clone()
    train(a, first, range(3, 6))
    train(b, second, range(3, 6))
    for p, q in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)


def test_weights_outside_of_their_region_are_pulled_in_once():
    p = nn.Parameter(torch.full((4, 4), 10.0))
    region = geo.GroupKSupportBall(1, 2.0)
    SFW([{"params": [p], "region": region}])
    assert float(region.norm(p.detach())) == pytest.approx(2.0)
    assert bool((p == p[0, 0]).all())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler itself warns of its own past
@pytest.mark.parametrize("kind", ["filters", "rank", "weights"])
def test_compiled_step(kind):
    net, twin = network(), network()
    compiled, eager = optimizer_of(net, kind), optimizer_of(twin, kind)
    step = torch.compile(compiled.step)
    for i in range(8):
        for model, optimizer, run in ((net, compiled, step), (twin, eager, eager.step)):
            optimizer.zero_grad()
            backward(model, i)
            run()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)


def test_a_group_given_another_region_enters_it():
    net = network()
    optimizer = optimizer_of(net)
    train(net, optimizer, range(3))
    smaller = optimizer.param_groups[0]["region"].with_radius(0.05)
    optimizer.param_groups[0]["region"] = smaller
    train(net, optimizer, range(3, 4))
    assert all(report.norm <= 1 + 1e-5 for report in optimizer.diagnostics())
    optimizer.param_groups[0]["region"] = geo.GroupKSupportBall(999)
    with pytest.raises(ValueError, match="k=999 must be at most"):
        train(net, optimizer, range(4, 5))


def test_rest_has_its_own_learning_rate():
    optimizer = optimizer_of(network(), rest="adamw", rest_lr=1e-3)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1] * (len(optimizer.param_groups) - 1) + [1e-3]
