"""Training over sizes: which loss is minimised, which images see which network, what it goes with, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from methods.forms import FORMS
from sparsefw import smaller
from sparsefw.compression import compress
from sparsefw.config_base import ConfigError
from sparsefw.kinds import FILTERS, NEURONS, RANK, WEIGHTS, Kind
from sparsefw.methods import SGD, Batch, Method, SparseFW, method_from
from sparsefw.models import build
from sparsefw.runfolder.read import read_epochs
from sparsefw.train import load_recipe
from sparsefw.train.config import SizesConfig
from sparsefw.train.display import Display
from sparsefw.train.loop import train
from sparsefw.train.run import prepare
from sparsefw.train.sizes import OverSizes
from sparsefw.train.step import Step
from train.harness import command, step_of, trained

SHAPE = (1, 8, 8)


def network() -> nn.Module:
    """Without norms, so that images do not see each other."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 16),
        nn.ReLU(), nn.Linear(16, 10),
    )  # fmt: skip


def batch(images: int = 16, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(images, *SHAPE, generator=draw), torch.randint(10, (images,), generator=draw))


def over(model: nn.Module, kind: Kind = FILTERS, *, images: int = 16, parts: int = 1, **config) -> OverSizes:
    return OverSizes(SizesConfig(**config), model, kind, shape=SHAPE, images=images, parts=parts)


def step_over(model: nn.Module, method: Method, sizes: OverSizes, **how) -> Step:
    step = step_of(model, method, 10, **how)
    step.sizes = sizes
    return step


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters()]


# Which loss


@pytest.mark.parametrize("kind", [FILTERS, NEURONS, WEIGHTS, RANK], ids=lambda kind: kind.name)
def test_the_gradient_is_that_of_the_mean_over_the_images_of_both_networks(kind):
    model, data = network(), batch()
    sizes = over(model, kind, share=0.25, between=(0.5, 0.7))
    (ratio,) = sizes.choose(3)
    step_over(model, SGD(), sizes).backward(data)
    found = gradients(model)
    model.zero_grad()
    with smaller(model, **kind.compress_arguments(ratio)):
        (0.25 * F.cross_entropy(model(data.inputs[:4]), data.targets[:4])).backward()
    (0.75 * F.cross_entropy(model(data.inputs[4:]), data.targets[4:])).backward()
    torch.testing.assert_close(found, gradients(model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [FILTERS, WEIGHTS], ids=lambda kind: kind.name)
@pytest.mark.parametrize("parts", [1, 2])
def test_several_sizes_in_a_step_share_the_images(kind, parts):
    model, data = network(), batch()
    sizes = over(model, kind, draws=2, parts=parts)
    ratios = sizes.choose(3)
    step_over(model, SGD(), sizes, accumulate=parts).backward(data)
    found = gradients(model)
    model.zero_grad()
    for images, targets in zip(data.inputs[:8].chunk(parts), data.targets[:8].chunk(parts), strict=True):
        for ratio, x, y in zip(ratios, images.chunk(2), targets.chunk(2), strict=True):
            with smaller(model, **kind.compress_arguments(ratio)):
                (F.cross_entropy(model(x), y) / (4 * parts)).backward()
    (F.cross_entropy(model(data.inputs[8:]), data.targets[8:]) / 2).backward()
    torch.testing.assert_close(found, gradients(model), rtol=1e-4, atol=1e-6)


def test_smaller_networks_may_learn_the_outputs_of_the_whole_one():
    model, data = network(), batch()
    sizes = over(model, both=True, targets="outputs", share=0.4)
    (ratio,) = sizes.choose(0)
    step_over(model, SGD(), sizes).backward(data)
    found = gradients(model)
    model.zero_grad()
    output = model(data.inputs)
    (0.6 * F.cross_entropy(output, data.targets)).backward()
    probabilities = output.detach().softmax(1)
    with smaller(model, filters=ratio):
        (-0.4 * (probabilities * model(data.inputs).log_softmax(1)).sum(1).mean()).backward()
    torch.testing.assert_close(found, gradients(model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("parts", "draws"), [(1, 3), (2, 3)])
def test_outputs_are_learnt_from_those_of_the_same_images(parts, draws):
    """Also where the images that smaller networks see are fewer: 3 sizes of 16 images, or of 8 in each of two parts."""
    model, data = network(), batch()
    sizes = over(model, both=True, targets="outputs", draws=draws, parts=parts)
    ratios = sizes.choose(0)
    step_over(model, SGD(), sizes, accumulate=parts).backward(data)
    found = gradients(model)
    model.zero_grad()
    few = 16 // parts // draws
    for part, labels in zip(data.inputs.chunk(parts), data.targets.chunk(parts), strict=True):
        output = model(part)
        (F.cross_entropy(output, labels) / (2 * parts)).backward()
        for i, ratio in enumerate(ratios):
            rows = slice(i * few, (i + 1) * few)
            with smaller(model, filters=ratio):
                imitated = (output.detach().softmax(1)[rows] * model(part[rows]).log_softmax(1)).sum(1).mean()
                (-imitated / (2 * parts * draws)).backward()
    torch.testing.assert_close(found, gradients(model), rtol=1e-4, atol=1e-6)


def test_with_both_every_image_counts_twice():
    model, data = network(), batch()
    sizes = over(model, share=0.3, both=True)
    (ratio,) = sizes.choose(0)
    step_over(model, SGD(), sizes).backward(data)
    found = gradients(model)
    model.zero_grad()
    with smaller(model, filters=ratio):
        (0.3 * F.cross_entropy(model(data.inputs), data.targets)).backward()
    (0.7 * F.cross_entropy(model(data.inputs), data.targets)).backward()
    torch.testing.assert_close(found, gradients(model))


def test_where_nothing_is_removed_it_is_the_ordinary_loss():
    model, data = network(), batch()
    sizes = over(model, between=(0.0, 0.0))
    assert sizes.choose(0) == (0,)
    step_over(model, SGD(), sizes).backward(data)
    found = gradients(model)
    model.zero_grad()
    F.cross_entropy(model(data.inputs), data.targets).backward()
    torch.testing.assert_close(found, gradients(model))


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("both", [False, True])
def test_a_batch_in_parts_moves_the_weights_as_the_whole_does(parts, both):
    nets = network(), network()
    steps = [
        step_over(net, SparseFW(kind="filters", k=0.5), over(net, parts=count, both=both), accumulate=count)
        for net, count in zip(nets, (1, parts), strict=True)
    ]
    for i in range(3):
        for step in steps:
            step.sizes.choose(i)
            step(batch(seed=i))
    torch.testing.assert_close(list(nets[0].parameters()), list(nets[1].parameters()), rtol=1e-4, atol=1e-6)


def test_a_scaled_loss_gives_the_same_step():
    nets = network(), network()
    for net, scale in zip(nets, (None, 1024.0), strict=True):
        step = step_over(net, SGD(), over(net), loss_scale=scale)
        step.sizes.choose(0)
        step(batch())
    torch.testing.assert_close(list(nets[0].parameters()), list(nets[1].parameters()), rtol=1e-5, atol=1e-6)


def test_statistics_are_those_of_the_whole_network_and_its_images():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10)).train()
    alone, data = copy.deepcopy(model), batch()
    sizes = over(model)
    sizes.choose(0)
    step_over(model, SGD(), sizes).backward(data)
    alone(data.inputs[8:])
    torch.testing.assert_close(list(model.buffers()), list(alone.buffers()))


def test_metrics_are_those_of_the_whole_network():
    model, data = network(), batch()
    sizes = over(model)
    sizes.choose(0)
    loss, *_, count = step_over(model, SGD(), sizes)(data).tolist()
    with torch.no_grad():
        expected = F.cross_entropy(network()(data.inputs[8:]), data.targets[8:])
    assert count == 8
    assert loss == pytest.approx(8 * float(expected), rel=1e-5)


# What it goes with


@pytest.mark.parametrize("form", [form for form in FORMS if method_from(FORMS[form]).passes == 1])
def test_every_method_that_passes_once_trains_over_sizes(form):
    method = method_from(FORMS[form])
    torch.manual_seed(0)
    model = build("resnet_digits", width=8).train()
    before = copy.deepcopy(model)
    step = step_of(model, method, 10, settings={"example": torch.zeros(2, *SHAPE)})
    step.sizes = OverSizes(SizesConfig(), model, method.prepares, shape=SHAPE, images=16)
    for i in range(2):
        step.sizes.choose(i)
        assert bool(step(batch(seed=i)).isfinite().all())
    method.after_epoch(model, step.optimizer, 1, 2)
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), before.parameters(), strict=True))


def test_the_size_of_a_step_is_drawn_for_that_step():
    """Two trainings from different steps on choose the same sizes: nothing has to be remembered."""
    first, second = over(network()), over(network())
    chosen = [first.choose(step) for step in range(6)]
    assert [second.choose(step) for step in (3, 4, 5)] == chosen[3:]
    assert len(set(chosen)) == 6


def test_what_training_over_sizes_is_for(tmp_path):
    """Without 70 % of its filters, never retrained: the network that saw its sizes holds, the other one does not."""
    accuracies = []
    for sizes in ("null", "{}"):
        changes = ["model.arguments.width=8", "train.epochs=12", f"sizes={sizes}", "data.validation=0"]
        training = prepare(load_recipe("digits-resnet-sgd", changes), None, Display("", quiet=True))
        train(training, Silent())
        batches = list(training.data.train.sample(1024))
        small = compress(training.model.eval(), filters=0.7, calibration=batches, refit=False).model
        images = next(iter(training.data.test.evaluation()))
        accuracies.append(100 * float((small(images.inputs).argmax(1) == images.targets).float().mean()))
    assert accuracies[1] > accuracies[0] + 30, accuracies


class Silent:
    def stepped(self, *_) -> None: ...

    def epoch_ended(self, *_) -> None: ...


def test_a_run_says_what_it_was_trained_over(tmp_path):
    trained(command("digits-resnet-sgd", tmp_path / "run", "sizes={}", epochs=1))
    assert "digits-resnet-sgd-sizes" in (tmp_path / "run" / "config.yaml").read_text()
    assert '"SGD over sizes"' in (tmp_path / "run" / "run.json").read_text()
    assert len(read_epochs(tmp_path / "run")) == 1


def test_names_tell_apart_what_was_added():
    assert load_recipe("digits-resnet-sgd", ["sizes.share=0.3"]).name == "digits-resnet-sgd-sizes"
    assert load_recipe("digits-resnet-sizes", ["sizes.share=0.3"]).name == "digits-resnet-sizes"
    assert load_recipe("digits-resnet-sgd", ["sizes=null"]).name == "digits-resnet-sgd"


# What is refused


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["sizes.shares=0.5"], "unknown key 'sizes.shares'; did you mean 'share'"),
        (["sizes.share=1"], "sizes.share=1"),
        (["sizes.share=0"], "sizes.share=0"),
        (["sizes.between=[0.9,0.5]"], "between=(0.9, 0.5): needs the least and the largest share"),
        (["sizes.between=[0,1]"], "both in [0, 1)"),
        (["sizes.distribution=normal"], "there are width, parameters, logarithm"),
        (["sizes.draws=0"], "sizes.draws=0"),
        (
            ["sizes.targets=outputs"],
            "targets=outputs are those of the whole network for the same images: it needs both",
        ),
        (["sizes.targets=teacher"], "sizes.targets"),
        (["sizes.kind=2:4"], "sizes.kind=2:4: it removes a fixed share"),
        (["sizes.kind=colours"], "unknown kind 'colours'"),
        (["sizes={kind: weights, form: masked}"], "sizes.form=masked is for filters, neurons and heads"),
        (["sizes={kind: rank, score: l1}"], "rank are ranked by their magnitudes"),
        (["sizes={}", "method.name=cram"], "method.name=cram passes 2 times over a batch"),
        (["sizes={}", "method.name=sam"], "method.name=sam passes 2 times over a batch"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ConfigError) as caught:
        load_recipe("digits-resnet-sgd", changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["sizes.share=0.01"],
            "sizes.share=0.01 and sizes.draws=1 of 64 images that are processed at once: each network",
        ),
        (["sizes.draws=20"], "sizes.share=0.5 and sizes.draws=20 of 64 images"),
        (
            ["sizes={kind: weights, both: true, targets: outputs}"],
            "sizes.targets=outputs needs all sizes in one pass: only",
        ),
        (["sizes={}", "engine.accumulate=32"], "sizes.share=0.5 and sizes.draws=1 of 2 images"),
        (["sizes={kind: heads}"], "sizes: there is nothing to compress by heads"),
    ],
)
def test_what_a_network_or_a_batch_does_not_allow(changes, message):
    with pytest.raises(ConfigError) as caught:
        prepare(load_recipe("digits-resnet-sgd", changes), None, Display("", quiet=True))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
