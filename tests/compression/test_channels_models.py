"""Channels of whole models: modules used twice, tied or computed weights, several inputs, code that only training reaches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compression.following import SILENCE, check, image
from compression.zoo import OUTPUT, Net, awake, table
from sparsefw.compression import compress
from sparsefw.compression.structure.removal import removable_channels, removal_edits
from sparsefw.compression.structure.trace import find_channels
from sparsefw.models import build


def test_a_module_called_twice_has_one_set_of_channels():
    model = Net(
        lambda m, x: m.head(m.block(m.block(m.stem(x)).relu()).relu()),
        stem=nn.Conv2d(3, 8, 1),
        block=nn.Conv2d(8, 8, 3, padding=1),
        head=nn.Conv2d(8, 4, 1),
    )
    check(model, image(), {"block.in block.out head.in stem.out": (8, ""), "head.out": (4, OUTPUT)})


def test_a_head_over_several_maps_couples_them():
    model = Net(
        lambda m, x: (m.head(m.a(x)), m.head(m.b(x))),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(3, 8, 1),
        head=nn.Conv2d(8, 4, 1),
    )
    check(model, image(), {"a.out b.out head.in": (8, ""), "head.out": (4, OUTPUT)})


def test_a_module_under_two_names_is_one_module():
    conv = nn.Conv2d(8, 8, 1)
    model = Net(
        lambda m, x: m.head(m.two(m.one(m.stem(x)))),
        stem=nn.Conv2d(3, 8, 1),
        one=conv,
        two=conv,
        head=nn.Conv2d(8, 4, 1),
    )
    check(model, image(), {"head.in one.in one.out stem.out": (8, ""), "head.out": (4, OUTPUT)})


def test_tied_weights_lose_channels_together():
    """What goes from the rows of one goes from those of the other, and so for their columns."""
    model = Net(
        lambda m, x: m.head(m.two(m.one(m.stem(x)).relu())),
        stem=nn.Conv2d(3, 8, 1),
        one=nn.Conv2d(8, 8, 1),
        two=nn.Conv2d(8, 8, 1),
        head=nn.Conv2d(8, 4, 1),
    )
    model.two.weight = model.one.weight
    (channels, _) = check(
        model,
        image(),
        {"head.in one.in one.out stem.out two.in two.out": (8, ""), "head.out": (4, OUTPUT)},
    )
    small = compress(model, filters=0.5, example=image()).model
    assert channels.count == 8
    assert small.two.weight is small.one.weight
    assert small.one.weight.shape == (4, 4, 1, 1)


class Gained(nn.Conv2d):
    """A convolution with a factor per filter, as networks without norms have."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.gain = nn.Parameter(torch.rand(self.out_channels, 1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self._conv_forward(x, self.weight * self.gain, self.bias)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 8, 1)),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 8, 1)),
        lambda: Gained(3, 8, 1),
    ],
    ids=["weight norm", "spectral norm", "gain"],
)
def test_computed_weights_stay(make):
    model = awake(nn.Sequential(make(), nn.ReLU(), nn.Conv2d(8, 4, 1))).eval()
    reason = "0 computes its weight from other parameters"
    check(model, image(), {"0.out 2.in": (8, reason), "2.out": (4, OUTPUT)})


def test_weights_used_directly_stay():
    model = Net(
        lambda m, x: m.b(F.conv2d(m.a(x), m.direct.weight)),
        a=nn.Conv2d(3, 8, 1),
        direct=nn.Conv2d(8, 6, 1, bias=False),
        b=nn.Conv2d(6, 4, 1),
    )
    check(
        model,
        image(),
        {
            "a.out": (8, "what the operation convolution does to channels is not known"),
            "b.out": (4, OUTPUT),
            "direct.out": (
                6,
                "never called as a layer: the example leaves it unused, or code takes its weight in a way that is not followed",
            ),
        },
    )


def test_recurrent_layers_keep_their_width():
    model = Net(
        lambda m, x: m.head(m.hidden(m.rnn(m.words(x))[0]).relu()),
        words=nn.Embedding(10, 6),
        rnn=nn.GRU(6, 5, batch_first=True),
        hidden=nn.Linear(5, 8),
        head=nn.Linear(8, 2),
    )
    check(
        model,
        torch.randint(10, (2, 4)),
        {
            "words.each": (6, "rnn (GRU) reads them"),
            "hidden.inx5": (1, "rnn (GRU) writes them"),
            "head.in hidden.out": (8, ""),
            "head.out": (2, OUTPUT),
        },
    )


def test_several_inputs_by_position_and_by_name():
    parts = dict(a=nn.Linear(3, 6), b=nn.Linear(4, 6), head=nn.Linear(6, 2))
    model = Net(lambda m, x, *, y: {"logits": m.head(m.a(input=x) + m.b(y))}, **parts)
    expected = {"a.out b.out head.in": (6, ""), "head.out": (2, OUTPUT)}
    check(model, {"x": torch.randn(2, 3), "y": torch.randn(2, 4)}, expected)
    by_position = Net(lambda m, x, y: (m.head(m.a(x) + m.b(y)), None), **parts)
    check(by_position, (torch.randn(2, 3), torch.randn(2, 4)), expected)


def test_layers_that_only_training_reaches_belong_too():
    """An auxiliary head reads what the next stage reads: forgotten, the small network could not be trained."""

    def run(m: Net, x: Tensor) -> Any:
        x = m.a(x)
        return (m.b(x), m.aux(m.norm(x).relu())) if m.training else m.b(x)

    model = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1), norm=nn.BatchNorm2d(8), aux=nn.Conv2d(8, 4, 1))
    check(model, image(), {"a.out aux.in b.in norm.each": (8, ""), "b.out": (4, OUTPUT), "aux.out": (4, OUTPUT)})
    small = compress(model, filters=0.5, example=image()).model.train()
    assert [t.shape for t in small(image())] == [(2, 4, 6, 6)] * 2


def test_layers_that_nothing_reaches_say_so():
    """Also where training wants more than the example has."""

    def run(m: Net, x: Tensor, target: Tensor | None = None) -> Tensor:
        if m.training:
            return m.aux(m.a(x)) - target
        return m.b(m.a(x))

    model = Net(run, a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1), aux=nn.Conv2d(8, 4, 1))
    reason = (
        "never called as a layer: the example leaves it unused, or code takes its weight in a way that is not followed"
    )
    check(model, image(), {"a.out b.in": (8, ""), "b.out": (4, OUTPUT), "aux.out": (4, reason)})


def test_sizes_in_code_that_only_training_reaches_are_found():
    model = Net(
        lambda m, x: m.aux(m.a(x).reshape(2, 8, 36).mean(2)) if m.training else m.b(m.a(x)),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 4, 1),
        aux=nn.Linear(8, 4),
    )
    rows = table(removable_channels(model, image()))
    count, reason = rows["a.out aux.in b.in"]
    assert count == 8
    assert reason.startswith("the model's code does not run with fewer of them: shape '[2, 8, 36]' is invalid")


def test_a_model_that_insists_on_its_precision():
    """float64, in which comparisons are made, would stop at the second layer."""
    model = Net(lambda m, x: m.b(m.a(x).float().relu()), a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1))
    check(model, image(), {"a.out b.in": (8, ""), "b.out": (4, OUTPUT)})


def test_small_leaks_are_found():
    """A network that computes something else by 1e-4 of a channel is not the same."""
    model = Net(lambda m, x: m.b(m.a(x)) + 1e-4 * m.a(x).shape[1], a=nn.Conv2d(3, 8, 1), b=nn.Conv2d(8, 4, 1))
    check(model, image(), {"a.out b.in": (8, SILENCE), "b.out": (4, OUTPUT)})


def test_of_sets_that_can_go_only_one_at_a_time_the_first_goes():
    def run(m: Net, x: Tensor) -> Tensor:
        a, b = m.a(x), m.b(x)
        if a.shape[1] < 8 and b.shape[1] < 8:
            raise RuntimeError("one of them has to be whole")
        return m.c(a) + m.d(b)

    parts = {name: nn.Conv2d(*sizes, 1) for name, sizes in dict(a=(3, 8), b=(3, 8), c=(8, 4), d=(8, 4)).items()}
    place = "in Net.forward: return self.run(self, *args, **kwargs)"
    reason = f"the model's code does not run with fewer of them: one of them has to be whole, {place}"
    check(
        Net(run, **parts),
        image(),
        {"a.out c.in": (8, ""), "b.out d.in": (8, reason), "c.out d.out": (4, OUTPUT)},
    )


def test_following_leaves_the_random_numbers_alone():
    model = Net(
        lambda m, x: m.b(F.dropout(m.a(x), 0.5, m.training)) if not m.training else m.c(F.dropout(m.a(x))),
        a=nn.Conv2d(3, 8, 1),
        b=nn.Conv2d(8, 4, 1),
        c=nn.Conv2d(8, 4, 1),
    )
    x = image()
    before = torch.random.get_rng_state()
    removable_channels(model, x)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_modes_of_every_module_are_kept():
    """A model in training with some norms frozen in evaluation."""
    model = build("resnet_digits", width=8).train()
    model.bn1.eval()
    model.layer2.eval()
    before = {name: m.training for name, m in model.named_modules()}
    found = find_channels(model, torch.randn(2, 1, 8, 8))
    assert {name: m.training for name, m in model.named_modules()} == before
    for edit in removal_edits(model, {channels: [0] for channels in found if not channels.obstacle}):
        edit.apply(model)
    assert {name: m.training for name, m in model.named_modules()} == before
