"""nn.MultiheadAttention loses in place what compress removes from it."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compression.test_sizes import is_unchanged, state
from sparsefw import SFW, Sizes, compress, constrain, smaller
from sparsefw.compression.in_place.attention import plain_view
from sparsefw.compression.structure.gaps import relative_gap

KINDS = ("heads", "filters", "neurons", "rank", "weights")


def awake(model: nn.Module) -> nn.Module:
    """Biases that are not 0 and layers that are not equal, as after training."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += torch.rand_like(p) if p.ndim == 1 else 0.02 * torch.randn_like(p)
    return model.double()


def encoder(**arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, **{"dropout": 0.0, "batch_first": True, **arguments})
    return awake(
        nn.Sequential(nn.Linear(8, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 5))
    )


class Crossing(nn.Module):
    """Keys and values of other widths than the queries, so that each has a weight of its own."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.inputs = nn.Linear(8, 16)
        self.attention = nn.MultiheadAttention(16, 4, kdim=6, vdim=4, batch_first=True, **arguments)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.attention(self.inputs(x), x[..., :6], x[..., :4], need_weights=False)
        return self.last(torch.relu(y))


def crossing(**arguments: Any) -> nn.Module:
    torch.manual_seed(0)
    return awake(Crossing(**arguments))


NETWORKS = {
    "encoder": encoder,
    "no bias": lambda: encoder(bias=False),
    "sequence first": lambda: encoder(batch_first=False),
    "widths": crossing,
    "widths, no bias": lambda: crossing(bias=False),
}
X = torch.randn(8, 8, 8, generator=torch.Generator().manual_seed(0)).double()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("training", [True, False])
def test_it_computes_what_the_compressed_network_does(network, kind, training):
    model = NETWORKS[network]().train(training)
    if kind == "neurons" and network.startswith("widths"):
        return  # it has none
    small = compress(model, example=X[:2], refit=False, **{kind: 0.5}).model
    before = state(model)
    with smaller(model, example=X[:2], **{kind: 0.5}):
        torch.testing.assert_close(model(X), small(X), rtol=1e-9, atol=1e-9)
    assert is_unchanged(model, before)
    assert relative_gap(small(X), model(X)) > 0.01


def test_gradients_of_silent_heads_are_zero_and_others_those_of_the_compressed_network():
    model = encoder()
    small = compress(model, example=X, heads=0.5).model
    with smaller(model, example=X, heads=0.5):
        model(X).square().sum().backward()
    small(X).square().sum().backward()
    attention, plain = model[1].layers[0].self_attn, small[1].layers[0].self_attn
    layers = (plain.query, plain.key, plain.value)
    for whole, parts in (
        (attention.in_proj_weight.grad, [layer.weight.grad for layer in layers]),
        (attention.in_proj_bias.grad[:, None], [layer.bias.grad[:, None] for layer in layers]),
        (attention.out_proj.weight.grad.T, [plain.proj.weight.grad.T]),
    ):
        stays = whole.any(1)
        assert int(stays.sum()) == len(whole) // 2
        torch.testing.assert_close(whole[stays], torch.cat(parts))


@pytest.mark.parametrize("block", ["smaller", "mixed"])
def test_everything_is_as_before_after_an_exception(block):
    model = encoder()
    sizes = Sizes(model, "heads", example=X[:2])
    before, modules = (
        state(model),
        [(name, type(module), sorted(vars(module))) for name, module in model.named_modules()],
    )
    assert model(X).isfinite().all()
    with pytest.raises(KeyError), sizes.smaller(0.5) if block == "smaller" else sizes.mixed(0):
        model({}["no input"])
    assert is_unchanged(model, before)
    assert modules == [(name, type(module), sorted(vars(module))) for name, module in model.named_modules()]


@pytest.mark.parametrize("kind", ["heads", "filters", "neurons", "rank"])
@pytest.mark.parametrize("network", ["encoder", "no bias", "widths"])
def test_one_pass_computes_and_learns_what_a_pass_for_each_size_does(network, kind):
    if kind == "neurons" and network == "widths":
        return
    model = NETWORKS[network]()
    apart = copy.deepcopy(model)
    sizes = Sizes(model, kind, example=X[:2])
    assert sizes.needs_passes is None
    sizes.choose(0.3, 0.8)
    with sizes.side_by_side([0.25, 0.5]):
        found = model(X)
        found.square().sum().backward()
    one_by_one = Sizes(apart, kind, example=X[:2])
    expected = []
    for part, ratio in ((X[:2], 0.3), (X[2:4], 0.8)):
        with one_by_one.smaller(ratio):
            expected.append(apart(part))
            expected[-1].square().sum().backward()
    expected.append(apart(X[4:]))
    expected[-1].square().sum().backward()
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-6, atol=1e-6)
    for (name, p), q in zip(model.named_parameters(), apart.parameters(), strict=True):
        if kind != "rank":  # whose gradients of a small network alone are projected once more
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-8, atol=1e-8, msg=name)


class Relative(nn.Module):
    """Attention with a table of biases by distance and a scale for every head, neither of which has a batch axis."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.qkv, self.proj, self.last = (nn.Linear(*s) for s in ((8, 16), (16, 48), (16, 16), (16, 5)))
        self.table, self.scale = nn.Embedding(15, 4), nn.Parameter(torch.rand(4, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        q, k, v = self.qkv(x).unflatten(-1, (3, -1, 4)).permute(2, 0, 3, 1, 4)
        place = torch.arange(x.shape[1])
        bias = self.table(place[:, None] - place + 7).permute(2, 0, 1)
        mixed = torch.softmax((q @ k.mT) * self.scale + bias, -1) @ v
        return self.last(x + self.proj(mixed.transpose(1, 2).flatten(2)))


def test_tables_of_heads_need_no_masks_in_one_pass():
    torch.manual_seed(0)
    model = awake(Relative())
    sizes = Sizes(model, "heads", example=X[:2])
    assert sizes.needs_passes is None
    sizes.choose(0.5)
    with sizes.side_by_side([0.25]):
        found = model(X)
    with sizes.smaller(0.5):
        expected = model(X[:2])
    torch.testing.assert_close(found, torch.cat([expected, model(X[2:])]), rtol=1e-9, atol=1e-9)
    assert relative_gap(model(X[:2]), expected) > 0.01


def test_a_step_of_an_optimizer_in_the_block_is_refused():
    model = encoder()
    attention = model[1].layers[0].self_attn
    optimizer = torch.optim.SGD([attention.in_proj_weight], lr=0.1)
    with smaller(model, example=X, heads=0.5), pytest.raises(RuntimeError, match="call it behind the block"):
        optimizer.step()


def test_scores_and_masks_are_of_the_weights_as_they_are_also_in_another_precision():
    model = encoder()
    sizes = Sizes(model, "heads", example=X[:2])
    with torch.no_grad():  # the other heads are now the small ones
        for layer in model[1].layers:
            layer.self_attn.out_proj.weight.mul_(1 + 9 * torch.rand(16).double().sort().values)
    small = compress(model, example=X[:2], heads=0.5).model
    with sizes.smaller(0.5):
        torch.testing.assert_close(model(X), small(X), rtol=1e-9, atol=1e-9)
    model.float()
    with smaller(model, example=X[:2].float(), heads=0.5):
        torch.testing.assert_close(model(X.float()), small.float()(X.float()), rtol=1e-4, atol=1e-4)


def test_training_over_sizes_makes_a_network_without_heads_better():
    losses = {}
    target = torch.randn(8, 8, 5, generator=torch.Generator().manual_seed(2))
    for over_sizes in (False, True):
        model, x = encoder().float(), X.float()
        optimizer = SFW(constrain(model, "heads", example=x[:2], steps=60, report=None), lr=0.01, rest="adamw")
        sizes = Sizes(model, "heads", example=x[:2], between=(0.5, 0.5))
        for step in range(60):
            optimizer.zero_grad()
            with sizes.mixed(step) if over_sizes else contextlib.nullcontext():
                (model(x) - target).square().mean().backward()
            optimizer.step()
        small = compress(model, example=x[:2], heads=0.5, refit=False).model
        losses[over_sizes] = float((small.eval()(x) - target).square().mean().detach())
    assert losses[True] < 0.9 * losses[False]


def test_a_view_is_the_network_itself_where_there_is_no_attention():
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU()))
    assert plain_view(net).plain is net
    model = encoder()
    view = plain_view(model)
    assert view.plain[0] is model[0]
    assert view.plain[1].layers[0].linear1 is model[1].layers[0].linear1
    torch.testing.assert_close(view.plain.eval()(X), model.eval()(X))
