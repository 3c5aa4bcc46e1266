"""Every registered method does what the engine relies on; and the engine calls each hook with what it promises."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

from sparsefw.config_base import ConfigError
from sparsefw.methods import METHODS, SGD, Batch, Method, SparseFW, base, method_from
from sparsefw.train import fit, load_recipe
from train.harness import settings, step_of


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, 12), nn.Linear(12, 4)
    )


def batch(images: int = 8, seed: int = 0) -> Batch:
    draw = torch.Generator().manual_seed(seed)
    return Batch(torch.randn(images, 1, 8, 8, generator=draw), torch.randint(4, (images,), generator=draw))


@pytest.mark.parametrize("name", METHODS)
class TestEveryMethod:
    def test_has_a_title_a_paper_and_a_docstring(self, name):
        kind = METHODS[name]
        assert kind.title
        assert kind.paper
        assert kind.__doc__

    def test_is_made_from_its_name_alone_and_says_all_of_itself(self, name):
        method = method_from({"name": name})
        assert type(method) is METHODS[name]
        assert method_from(method.model_dump()) == method

    def test_optimizes_all_that_is_not_frozen_and_nothing_else(self, name):
        net = small()
        net[0].bias.requires_grad_(False)
        optimizer = method_from({"name": name}).optimizer(net, settings(), None)
        moved = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
        assert moved == {id(p) for p in net.parameters() if p.requires_grad}

    def test_takes_steps_that_lower_the_loss(self, name):
        net, method = small(), method_from({"name": name})
        step = step_of(net, method, 4, settings={"lr": 0.03})
        losses = [float(step(batch())[0]) for _ in range(20)]
        method.after_epoch(net, step.optimizer, 1, 1)
        assert losses[-1] < losses[0]

    def test_refuses_a_setting_it_does_not_have(self, name):
        with pytest.raises(ConfigError, match=r"^method: unknown key 'strenght'"):
            method_from({"name": name, "strenght": 1})


@pytest.mark.parametrize("values", [{}, {"name": None}, None, 3, {"kind": "filters"}], ids=str)
def test_a_method_without_a_name_is_told_which_there_are(values):
    with pytest.raises(ConfigError, match=r"needs a name, one of .*sgd.*sparsefw"):
        method_from(values)


def test_a_name_in_place_of_the_table_is_told_where_it_goes():
    with pytest.raises(ConfigError, match=r"a name is given as method\.name=sgd"):
        method_from("sgd")


def test_a_misspelt_method_is_told_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'sparsefw'"):
        method_from({"name": "sparsfw"})


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"kind": "filter"}, "did you mean 'filters'"),
        ({"kind": "0:4"}, "0:4"),
        ({"k": True}, "k: must be an int"),
        ({"w": 0}, "w=0"),
    ],
)
def test_wrong_settings_of_sparsefw_are_named(values, named):
    with pytest.raises(ConfigError, match=named):
        method_from({"name": "sparsefw", **values})


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 5e-4])
def test_sgd_is_torchs_sgd_bit_for_bit(nesterov, weight_decay):
    ours, theirs = small(), small()
    step = step_of(ours, SGD(), 4, settings={"nesterov": nesterov, "weight_decay": weight_decay})
    optimizer = torch.optim.SGD(theirs.parameters(), 0.1, 0.9, weight_decay=weight_decay, nesterov=nesterov)
    for i in range(5):
        step(batch(seed=i))
        optimizer.zero_grad()
        nn.functional.cross_entropy(theirs(batch(seed=i).inputs), batch(seed=i).targets).backward()
        optimizer.step()
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("kind", ["filters", "rank", "weights", "neurons", "2:4"])
def test_sparsefw_keeps_every_constrained_weight_inside_its_region(kind):
    net = small()
    step = step_of(net, SparseFW(kind=kind, k=None if ":" in kind else 0.5, w=1.0), 4, settings={"lr": 0.5})
    for i in range(10):
        step(batch(seed=i))
    constrained = [(g["region"], p) for g in step.optimizer.param_groups if g["region"] for p in g["params"]]
    assert constrained
    for region, p in constrained:
        assert float(region.norm(p.detach())) <= region.radius * (1 + 1e-5)


class Toy(Method):
    """For tests: looks twice, has a penalty, and notes when it is called."""

    title: ClassVar[str] = "Toy"
    paper: ClassVar[str] = "none"
    calls: ClassVar[list[tuple]] = []

    name: Literal["toy"] = "toy"

    def optimizer(self, model, settings, report):
        return SGD().optimizer(model, settings, report)

    def after_step(self, model, optimizer):
        self.calls.append(("step", round(optimizer.param_groups[0]["lr"], 3)))

    def after_epoch(self, model, optimizer, epoch, epochs):
        self.calls.append(("epoch", epoch, epochs))


class Twice(Toy):
    """The gradient at the weights, plus the gradient at weights that were all moved by 0.1."""

    def gradients(self, model, batch, backward):
        first = backward(batch)
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.1)
        backward(batch)
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1)
        return first


class Penalised(Toy):
    """The gradient of 3/2 ||theta||^2 is three times the weights."""

    def adjust(self, model) -> None:
        for p in model.parameters():
            p.grad.add_(p.detach(), alpha=3)


def gradient(net: nn.Module, data: Batch) -> list[Tensor]:
    loss = nn.functional.cross_entropy(net(data.inputs), data.targets)
    return list(torch.autograd.grad(loss, list(net.parameters())))


def taken(method: Method, **how) -> list[Tensor]:
    """What the optimizer is given by one step: with lr 1 and no momentum, the way that the weights moved."""
    net = small()
    before = [p.detach().clone() for p in net.parameters()]
    step_of(net, method, 4, settings={"lr": 1.0, "rest_lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}, **how)(batch())
    return [b - p.detach() for b, p in zip(before, net.parameters(), strict=True)]


def test_a_method_may_look_twice():
    moved = copy.deepcopy(small())
    with torch.no_grad():
        for p in moved.parameters():
            p.add_(0.1)
    expected = [a + b for a, b in zip(gradient(small(), batch()), gradient(moved, batch()), strict=True)]
    torch.testing.assert_close(taken(Twice()), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_penalty_is_in_the_gradient_once_however_many_parts_a_batch_has_and_not_in_the_reported_loss(accumulate):
    expected = [g + 3 * p.detach() for g, p in zip(gradient(small(), batch()), small().parameters(), strict=True)]
    torch.testing.assert_close(taken(Penalised(), accumulate=accumulate), expected, rtol=1e-4, atol=1e-6)
    plain, penalised = (step_of(small(), method, 4)(batch())[0] for method in (SGD(), Penalised()))
    assert float(plain) == float(penalised)


def test_only_what_a_method_writes_itself_counts_as_overridden():
    assert Penalised().overrides("adjust")
    assert not Twice().overrides("adjust")
    assert not SGD().overrides("after_step")


def test_the_example_of_the_documentation_is_weight_decay(monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    monkeypatch.setattr(base, "METHODS", {})
    names: dict = {}
    exec(compile(code, "docs/methods.md", "exec", dont_inherit=True), names)
    decayed = [g + 0.5 * p.detach() for g, p in zip(gradient(small(), batch()), small().parameters(), strict=True)]
    torch.testing.assert_close(taken(names["Decay"](strength=0.5)), decayed, rtol=1e-4, atol=1e-6)


def test_hooks_are_told_how_far_training_is(tmp_path, monkeypatch):
    """Two epochs of three batches of 400 out of 1400 images, at rates that fall to zero; epochs count from one."""
    monkeypatch.setitem(METHODS, "toy", Toy)
    monkeypatch.setattr(Toy, "calls", [])
    changes = ["method.name=toy", "train.epochs=2", "data.batch_size=400", "data.validation=0", "engine.device=cpu"]
    fit(load_recipe("digits-resnet-sgd", [*changes, "model.arguments.width=4"]), tmp_path / "run", quiet=True)
    expected = [
        *(("step", round(0.1 * i / 6, 3)) for i in (6, 5, 4)),
        ("epoch", 1, 2),
        *(("step", round(0.1 * i / 6, 3)) for i in (3, 2, 1)),
        ("epoch", 2, 2),
    ]
    assert Toy.calls == expected


@pytest.mark.parametrize(
    ("changes", "kind", "label"),
    [
        (["method.name=nuc"], "rank", "NUC strength=0.001"),
        (["method.name=ssl", "method.strength=0.02"], "filters", "SSL strength=0.02"),
        (["method.name=cram", "method.kind=rank"], "rank", "CrAM+ rank"),
        (["method.name=sparsefw", "method.kind=2:4"], "2:4", "SparseFW 2:4"),
        (["method.name=sparsefw", "method.coupled=true"], "filters", "SparseFW filters coupled"),
        (["train.rest=adamw"], "filters", "AdamW"),
        (["method.name=nuc", "curve.kind=weights"], "weights", "NUC strength=0.001"),
    ],
)
def test_what_a_run_is_called_and_what_is_removed_from_it(changes, kind, label):
    config = load_recipe("digits-resnet-sgd", changes)
    assert (config.curve_kind.name, config.label) == (kind, label)
