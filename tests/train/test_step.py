"""One training step: batches in parts, averages of the weights, mixed images, half precision."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sparsefw.methods import SGD, Batch, SparseFW
from sparsefw.runfolder.read import read_epochs
from sparsefw.train import load_recipe
from sparsefw.train.average import Average
from sparsefw.train.display import Display
from sparsefw.train.loop import mixed
from sparsefw.train.run import prepare
from train.harness import command, step_of, trained, untimed
from train.networks import group_norm


def network() -> nn.Module:
    torch.manual_seed(0)
    return group_norm()


def batch(images: int = 16, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(images, 1, 8, 8, generator=draw), torch.randint(10, (images,), generator=draw))


def weights(net: nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("method", [SGD(), SparseFW(kind="filters", k=0.5), SparseFW(kind="rank", k=0.5)], ids=str)
@pytest.mark.parametrize("parts", [2, 4, 16])
def test_a_batch_in_parts_moves_the_weights_as_the_whole_does(method, parts):
    whole, cut = network(), network()
    steps = step_of(whole, method, 10), step_of(cut, method, 10, accumulate=parts)
    for i in range(3):
        first, second = (step(batch(seed=i)) for step in steps)
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights(whole), weights(cut), rtol=1e-5, atol=1e-6)


def test_label_smoothing_reaches_the_gradient():
    """At equal scores the gradient with respect to a bias is 1/10 minus the mean target."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    nn.init.zeros_(net[1].weight)
    nn.init.zeros_(net[1].bias)
    data = Batch(torch.randn(4, 1, 8, 8), torch.tensor([3, 3, 3, 3]))
    plain = {"lr": 1.0, "rest_lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    step_of(net, SGD(), 10, smoothing=0.5, settings=plain)(data)
    expected = torch.full((10,), 0.05 - 0.1)
    expected[3] = 0.55 - 0.1
    torch.testing.assert_close(net[1].bias.detach(), expected)


def test_the_average_is_the_weighted_mean_of_the_iterates_alone():
    """With decay d the iterates of steps 1, 2, 3 have the weights d^2, d, 1, divided by their sum; the start has none."""
    net = network()
    step = step_of(net, SGD(), 10, ema=0.75)
    iterates = []
    for i in range(3):
        step(batch(seed=i))
        iterates.append([p.double() for p in weights(net)])
    shares = [0.75**2, 0.75, 1.0]
    expected = [sum(s * p for s, p in zip(shares, ps, strict=True)) / sum(shares) for ps in zip(*iterates, strict=True)]
    shadow = copy.deepcopy(net)
    step.average.write_to(shadow, 3)
    torch.testing.assert_close(weights(shadow), [p.float() for p in expected], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weights(net), [p.float() for p in iterates[-1]])


def test_after_one_step_even_a_slow_average_is_the_iterate():
    net = network()
    average = Average(net, 0.9999)
    average.update()
    shadow = copy.deepcopy(net)
    average.write_to(shadow, 1)
    torch.testing.assert_close(weights(shadow), weights(net), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["filters", "rank", "weights"])
def test_the_average_of_feasible_weights_is_feasible(kind):
    net = network()
    step = step_of(net, SparseFW(kind=kind, k=0.5, w=1.0), 10, ema=0.9, settings={"lr": 0.5})
    for i in range(12):
        step(batch(seed=i))
    names = {p: name for name, p in net.named_parameters()}
    regions = {names[p]: g["region"] for g in step.optimizer.param_groups if g["region"] for p in g["params"]}
    shadow = copy.deepcopy(net)
    step.average.write_to(shadow, 12)
    averaged = dict(shadow.named_parameters())
    assert regions
    for name, region in regions.items():
        assert float(region.norm(averaged[name].detach())) <= region.radius * (1 + 1e-5)
        assert not torch.equal(averaged[name], dict(net.named_parameters())[name])


def mixing(alpha: float, seed: int = 0):
    return load_recipe("digits-resnet-sgd", [f"train.mixup={alpha}"], seed=seed)


def test_without_mixup_a_batch_stays_as_it_is():
    data = batch()
    assert mixed(data, mixing(0), 10, step=3) is data


def test_mixup_blends_every_image_and_label_with_its_neighbour_by_one_share():
    data = batch()
    blend = mixed(data, mixing(0.4), 10, step=7)
    one, two = data.targets[1].item(), data.targets[0].item()
    assert one != two
    share = blend.targets[1, one].item()
    assert 0 <= share <= 1
    assert blend.targets[1, two].item() == pytest.approx(1 - share, abs=1e-6)
    torch.testing.assert_close(blend.inputs[1], share * data.inputs[1] + (1 - share) * data.inputs[0])
    torch.testing.assert_close(blend.inputs[0], share * data.inputs[0] + (1 - share) * data.inputs[-1])
    torch.testing.assert_close(blend.targets.sum(1), torch.ones(16))


def test_the_share_belongs_to_the_step_and_the_seed():
    data = batch()
    first = mixed(data, mixing(1.0), 10, step=7).inputs
    assert torch.equal(first, mixed(data, mixing(1.0), 10, step=7).inputs)
    assert not torch.equal(first, mixed(data, mixing(1.0), 10, step=8).inputs)
    assert not torch.equal(first, mixed(data, mixing(1.0, seed=1), 10, step=7).inputs)


def test_mixed_targets_train():
    net = network()
    step = step_of(net, SGD(), 10)
    sums = step(mixed(batch(), mixing(0.4), 10, step=0))
    assert bool(sums.isfinite().all())
    assert float(sums[3]) == 16


@pytest.mark.slow
def test_bfloat16_is_for_the_forward_pass_only(tmp_path):
    """In a process of its own, and by AVX2: virtual machines claim instructions for bfloat16 that they then refuse."""
    words = command("digits-resnet-filters", tmp_path / "half", "engine.precision=bf16", epochs=2)
    assert "bfloat16" in trained(words, ONEDNN_MAX_CPU_ISA="AVX2")
    trained(command("digits-resnet-filters", tmp_path / "whole", epochs=2))
    half, whole = (untimed(tmp_path / name) for name in ("half", "whole"))
    assert half[0]["train"]["loss"] == pytest.approx(whole[0]["train"]["loss"], rel=0.05)
    assert half[0]["train"]["loss"] != whole[0]["train"]["loss"]
    assert half[1]["train"]["loss"] < half[0]["train"]["loss"]
    assert {t.dtype for t in load_file(tmp_path / "half" / "model.safetensors").values()} == {
        torch.float32,
        torch.int64,
    }


def test_observed_gradients_are_the_means_of_the_norms_over_an_epoch(tmp_path):
    """By hand, with a step for every batch of the first epoch; a run that is resumed in the middle tells the same."""
    words = command("digits-resnet-filters", tmp_path / "a", "observe.gradients=true", "observe.distance=0.7", epochs=2)
    trained(words)
    rows = [epoch.figures.to_json()["observed"] for epoch in read_epochs(tmp_path / "a")]
    config = load_recipe("digits-resnet-filters", ["train.epochs=2", "model.arguments.width=8", "engine.device=cpu"])
    t = prepare(config, None, Display("x", quiet=True))
    t.model.train()
    total = 0.0
    for batch in t.data.train.training(0, 0, config.data.batch_size):
        t.rates.scale(config.train.schedule.at(t.step, t.steps, t.steps_per_epoch))
        t.advance(batch)
        total += sum(float(p.grad.double().square().sum()) for p in t.model.parameters()) ** 0.5
        t.step += 1
    assert rows[0]["gradient_norm"] == pytest.approx(total / t.steps_per_epoch, rel=1e-5)
    weights = {
        n: m.weight.detach().double() for n, m in t.model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)
    }
    lost = 0.0
    for weight in weights.values():
        if weight.ndim == 4:  # 70 % of the filters of every convolution, those with the smallest l1 norms
            norms = weight.abs().sum((1, 2, 3))
            smallest = norms.argsort()[: round(0.7 * len(norms))]
            lost += float(weight[smallest].square().sum())
    total = sum(float(weight.square().sum()) for weight in weights.values())
    assert rows[0]["distance"] == pytest.approx((lost / total) ** 0.5, rel=0.02)
