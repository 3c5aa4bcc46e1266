"""A network made smaller in place computes, and learns, what the network that is cut out of it would."""

from __future__ import annotations

import copy
import io
import pickle
from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from compression.conftest import accuracy
from compression.networks import ROWS, X, mlp, normed, unnormed
from compression.zoo import ZOO, Architecture, Net, outputs
from sparsefw import SFW, Sizes, compress, smaller
from sparsefw.compression.artifact.plan import Replace
from sparsefw.compression.sizes import CHECKED_EVERY
from sparsefw.compression.structure.gaps import relative_gap
from sparsefw.compression.structure.layers import call_on_copy
from sparsefw.models import build


def grouped() -> nn.Module:
    """Groups, depthwise layers with two outputs each, a bias behind them, and a transposed convolution."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 12, 3), nn.ReLU(), nn.Conv2d(12, 12, 3, groups=3), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 24, 3, groups=12), nn.ReLU(), nn.Conv2d(24, 8, 1), nn.ReLU(),
        nn.ConvTranspose2d(8, 8, 2, groups=2), nn.PReLU(8), nn.BatchNorm2d(8, affine=False), nn.Conv2d(8, 4, 1),
    )  # fmt: skip


def scaled() -> nn.Module:
    """A bare scale behind a convolution, and an instance norm with parameters."""
    torch.manual_seed(0)
    return Net(
        lambda net, x: net.last(torch.relu(net.norm(net.conv(x) * net.scale))),
        conv=nn.Conv2d(3, 8, 3),
        scale=nn.Parameter(torch.rand(8, 1, 1) + 0.5),
        norm=nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        last=nn.Conv2d(8, 4, 3),
    )


def vit() -> nn.Module:
    torch.manual_seed(0)
    return build("vit_tiny", image=10, patch=5, width=24, heads=4, depth=2, classes=5)


NETWORKS = {"normed": normed, "unnormed": unnormed, "grouped": grouped, "scaled": scaled}


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_unchanged(model: nn.Module, before: dict[str, Tensor]) -> bool:
    return all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


# What it computes


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("form", ["removed", "masked"])
@pytest.mark.parametrize("ratio", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_it_computes_what_the_compressed_network_does(network, form, ratio, training):
    model, inputs = NETWORKS[network]().double(), X.double()
    small = compress(model, example=inputs, filters=ratio, form=form).model.train(training)
    model.train(training)
    before = state(model)
    with smaller(model, filters=ratio, form=form):
        torch.testing.assert_close(model(inputs), small(inputs), rtol=1e-9, atol=1e-9)
    assert is_unchanged(model, before)


@pytest.mark.parametrize("amounts", [{"weights": 0.7}, {"rank": 0.5}], ids=str)
@pytest.mark.parametrize("network", ["normed", "unnormed", "grouped"])
def test_other_kinds(amounts, network):
    model, inputs = NETWORKS[network]().double().eval(), X.double()
    small = compress(model, example=inputs, **amounts).model
    with smaller(model, **amounts):
        torch.testing.assert_close(model(inputs), small(inputs), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["neurons", "heads"])
@pytest.mark.parametrize("form", ["removed", "masked"])
def test_transformers(kind, form):
    model, inputs = vit().double().eval(), X.double()
    small = compress(model, example=inputs, form=form, **{kind: 0.5}).model
    with smaller(model, form=form, **{kind: 0.5}):
        torch.testing.assert_close(model(inputs), small(inputs), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_transformer_layers_that_would_be_fused():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, x = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(16, 4)).eval(), torch.randn(4, 5, 16)
    small = compress(model, example=x, neurons=0.5).model
    with smaller(model, neurons=0.5):
        torch.testing.assert_close(model(x), small(x), rtol=1e-4, atol=1e-5)


FAST = ("resnet18, cifar stem", "mobilenet_v2", "densenet121", "shufflenet")


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(a, id=a.name, marks=[] if a.name.startswith(FAST) and not a.slow else [pytest.mark.slow])
        for a in ZOO
        if "filters" in a.kinds
    ],
)
def test_the_zoo(architecture: Architecture):
    if architecture.missing:
        pytest.skip(architecture.missing)
    model, inputs = architecture.make(), architecture.inputs()
    small = compress(model, example=inputs, filters=0.4)
    if any(isinstance(edit, Replace) for edit in small.plan.edits):
        pytest.skip("compress replaces some of its layers, so that more channels can be removed")
    before = state(model)
    with smaller(model, filters=0.4, example=inputs):
        assert relative_gap(outputs(small.model, inputs), outputs(model, inputs)) < 1e-4
    assert is_unchanged(model, before)


# How it learns


def squared_norm(model: nn.Module) -> float:
    return sum(float(p.detach().square().sum()) for p in model.parameters())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_gradients_are_those_of_the_compressed_network_and_zero_elsewhere(network, training):
    model, inputs = NETWORKS[network]().double(), X.double()
    compressed = compress(model, example=inputs, filters=0.5)
    small = compressed.model.train(training)
    model.train(training)
    small(inputs).square().mean().backward()
    with smaller(model, filters=0.5):
        model(inputs).square().mean().backward()
    gradients = copy.deepcopy(model)
    for p, trained in zip(gradients.parameters(), model.parameters(), strict=True):
        p.data = torch.zeros_like(p) if trained.grad is None else trained.grad.clone()
    total = squared_norm(gradients)
    compressed.plan.apply(gradients)
    for (name, mine), theirs in zip(gradients.named_parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(
            mine.data, theirs.grad, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert total == pytest.approx(squared_norm(gradients), rel=1e-12)


def test_gradients_of_low_rank_stay_in_the_leading_directions():
    """Singular values 3 and 1: the second direction goes, and with it the gradient's second row."""
    model = nn.Sequential(nn.Linear(3, 2, bias=False), nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        model[1].weight.fill_(1.0)
    with smaller(model, rank=0.5, example=torch.ones(1, 3).double()):
        assert torch.allclose(model[0].weight, torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]).double())
        model(torch.tensor([[1.0, 2.0, 5.0]]).double()).sum().backward()
    assert torch.allclose(model[0].weight.grad, torch.tensor([[1.0, 2.0, 5.0], [0.0, 0.0, 0.0]]).double())


def test_gradients_add_to_those_that_are_there():
    model = mlp()
    model(ROWS[0]).sum().backward()
    first = model[0].weight.grad.clone()
    with smaller(model, neurons=0.75, example=ROWS[0]):
        gone = model[0].weight.abs().sum(1) == 0
        model(ROWS[1]).sum().backward()
    assert gone.sum() == 24
    assert torch.equal(model[0].weight.grad[gone], first[gone])
    assert not torch.equal(model[0].weight.grad[~gone], first[~gone])


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters()]


def test_gradients_that_the_block_clears_do_not_come_back():
    model = normed()
    with smaller(model, filters=0.5):
        model(X).square().sum().backward()
    expected = gradients(model)
    with smaller(model, filters=0.5):
        model.zero_grad()
        model(X).square().sum().backward()
    for gradient, wanted in zip(gradients(model), expected, strict=True):
        assert torch.equal(gradient, wanted)
    with smaller(model, filters=0.5):
        model.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_with_a_graph_add_to_those_that_are_there():
    model = normed()
    expected = []
    for _ in range(2):
        with smaller(model, filters=0.5):
            model(X).square().sum().backward(create_graph=True)
        expected.append([p.grad.detach().clone() for p in model.parameters()])
    once, twice = expected
    for gradient, wanted in zip(twice, once, strict=True):
        assert torch.allclose(gradient, 2 * wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, SFW])
def test_a_step_in_the_block_is_refused_since_it_would_be_undone(optimizer):
    model, other = normed(), nn.Linear(2, 2)
    moves, others = optimizer(model.parameters(), lr=0.1), optimizer(other.parameters(), lr=0.1)
    before = state(model)
    with smaller(model, filters=0.5, example=X):
        model(X).sum().backward()
        other(torch.ones(2)).sum().backward()
        others.step()
        with pytest.raises(RuntimeError, match="call it behind the block"):
            moves.step()
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    moves.step()
    assert not is_unchanged(model, before)


def test_a_backward_pass_behind_the_block_is_refused():
    model = normed().train()
    with smaller(model, filters=0.5):
        loss = model(X).sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_both_looks_under_one_autocast():
    """Autocast keeps weights in half precision; it must not keep those of the smaller network."""
    model = mlp()
    with torch.autocast("cpu", torch.bfloat16):
        whole = model(ROWS[0])
        with smaller(model, neurons=0.5):
            small = model(ROWS[0])
        assert torch.equal(model(ROWS[0]), whole)
    assert not torch.equal(small, whole)


# How it ends


def test_everything_is_as_before_after_an_error():
    model = normed().train()
    before = state(model)
    with pytest.raises(RuntimeError), smaller(model, filters=0.9, example=X):
        model(X[:, :1])
    assert is_unchanged(model, before)
    model(X).sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in model.parameters() if p.ndim > 1)


def test_nothing_happens_in_a_block_without_a_call():
    model = normed()
    with smaller(model, filters=0.5):
        pass
    assert not model._forward_pre_hooks


def test_blocks_within_blocks():
    model = normed().eval()
    whole = model(X)
    with smaller(model, filters=0.5, example=X):
        half = model(X)
        with smaller(model, filters=0.8, example=X):
            assert not torch.equal(model(X), half)
        assert torch.equal(model(X), half)
    assert torch.equal(model(X), whole)


@pytest.mark.parametrize("inner", ["smaller", "Sizes"])
def test_a_block_within_one_that_has_not_begun_is_refused(inner):
    model = normed().eval()
    sizes = Sizes(model, "filters", example=X)
    before = state(model)
    with smaller(model, filters=0.2):
        block = sizes.smaller(0.7) if inner == "Sizes" else smaller(model, filters=0.7, example=X)
        with pytest.raises(ValueError, match="example="), block:
            model(X)
        model(X)
        with sizes.smaller(0.7):
            model(X)
    assert is_unchanged(model, before)


def test_statistics_of_the_block_are_thrown_away_and_can_be_recomputed(small_resnet, batches):
    small = compress(small_resnet, calibration=batches, filters=0.5, refit=False).model
    before = state(small_resnet)
    with smaller(small_resnet, filters=0.5, calibration=batches):
        assert accuracy(small_resnet) == accuracy(small)
        assert not is_unchanged(small_resnet, before)
    assert is_unchanged(small_resnet, before)


def test_copies_and_files_of_the_network_know_nothing_of_it():
    model = normed().eval()
    with smaller(model, filters=0.5):
        half = model(X)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with smaller(again, filters=0.5):
            assert torch.equal(again(X), half)
    torch.save(model, io.BytesIO())
    assert set(model.state_dict()) == set(normed().state_dict())


def test_a_network_that_changes_is_searched_again():
    model = normed().eval()
    with smaller(model, filters=0.5):
        model(X)
    model[0] = nn.Conv2d(3, 16, 3)
    double = copy.deepcopy(model).double()
    model.double()
    with smaller(model, filters=0.5), smaller(double, filters=0.5):
        assert torch.equal(model(X.double()), double(X.double()))


def test_wrapped_networks():
    model = normed().eval()
    compiled = torch.compile(model, backend="eager")
    with smaller(model, filters=0.5):
        half = model(X)
    with smaller(compiled, filters=0.5):
        torch.testing.assert_close(compiled(X), half)
    torch.testing.assert_close(compiled(X), model(X))


@pytest.mark.parametrize("calls_before", [0, 1])
def test_compiled_networks(calls_before):
    torch._dynamo.reset()
    model = normed().eval()
    with smaller(copy.deepcopy(model), filters=0.5, example=X) as alone:
        expected = alone(X)
    compiled = torch.compile(model, backend="eager")
    for _ in range(calls_before):
        compiled(X)
    with smaller(compiled, filters=0.5):
        assert torch.allclose(compiled(X), expected, atol=1e-6)
    assert not model._forward_pre_hooks
    assert not compiled._forward_pre_hooks


def test_norms_whose_buffers_were_replaced_since():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    nn.init.normal_(model[1].running_mean)
    sizes = Sizes(model, "filters", example=X)
    model.double()
    expected = compress(model, filters=0.5, example=X.double()).model(X.double())
    with sizes.smaller(0.5):
        assert torch.allclose(model(X.double()), expected)


def test_inputs_in_half_precision_under_autocast():
    model = normed().eval()
    with smaller(copy.deepcopy(model), filters=0.5, example=X) as alone, torch.autocast("cpu", torch.bfloat16):
        expected = alone(X)
    with smaller(model, filters=0.5), torch.autocast("cpu", torch.bfloat16):
        assert torch.allclose(model(X.bfloat16()), expected)


def test_buffers_of_every_kind():
    def forward(net: Net, x: Tensor) -> Tensor:
        y = net.last(torch.relu(net.first(x)))
        net.mean = 0.9 * net.mean + 0.1 * y.detach().mean()  # in evaluation mode too
        return y + net.expanded

    model = Net(forward, first=nn.Conv2d(3, 8, 3), last=nn.Conv2d(8, 4, 3))
    model.register_buffer("mean", torch.zeros(()))
    model.register_buffer("expanded", torch.ones(1).expand(4, 1, 1))
    buffers = dict(model.named_buffers())
    sizes = Sizes(model, "filters", example=X)
    assert dict(model.named_buffers()) == buffers
    with sizes.smaller(0.5):
        model(X)
    assert dict(model.named_buffers()) == buffers
    assert buffers["mean"] == 0


def test_keyword_arguments():
    net = Net(lambda net, x: net.b(torch.relu(net.a(x))), a=nn.Linear(8, 6), b=nn.Linear(6, 2))
    with smaller(net, neurons=0.5):
        half = net(x=ROWS[0])
    assert torch.allclose(half, compress(net, example=ROWS[0], neurons=0.5).model(ROWS[0]))
    both = Net(lambda net, x, scale: net.b(torch.relu(net.a(x))) * scale, a=nn.Linear(8, 6), b=nn.Linear(6, 2))
    with pytest.raises(ValueError, match="give smaller\\(\\) an example="), smaller(both, neurons=0.5):
        both(ROWS[0], scale=2)


# What it refuses


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "of one kind, such as filters=0.7"),
        ({"filters": 0.5, "weights": 0.5}, "of one kind, such as filters=0.7"),
        ({"filters": 1.0}, "filters=1.0: the fraction to remove must be in"),
        ({"filter": 0.5}, "unknown kind 'filter'; did you mean 'filters'"),
        ({"heads": 0.5, "example": X}, "nothing to compress by heads"),
        ({"weights": "2:4", "example": X}, "2:4 has one size"),
        ({"filters": 0.5, "score": "activation", "example": X}, "score='activation' needs data"),
        ({"filters": 0.5, "form": "gone"}, "form='gone': there are"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_bad_arguments(arguments, message):
    with pytest.raises((ValueError, TypeError)) as caught, smaller(normed(), **arguments):
        pass
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"between": (0.5, 0.2)}, "between=(0.5, 0.2)"),
        ({"between": 0.5}, "between=0.5"),
        ({"between": (0, 1)}, "both in [0, 1)"),
        ({"distribution": "normal"}, "distribution='normal': there are width, parameters, logarithm"),
        ({"seed": -1}, "seed=-1"),
        ({"kind": "colours"}, "unknown kind 'colours'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_bad_sizes(arguments, message):
    with pytest.raises(ValueError) as caught:
        Sizes(normed(), example=X, **arguments)
    assert message in str(caught.value)


def test_sizes_refuse_a_ratio_and_a_network_that_has_changed():
    model = normed()
    sizes = Sizes(model, example=X)
    with pytest.raises(ValueError, match=r"must be in \[0, 1\), got 1"), sizes.smaller(1):
        pass
    model[0] = nn.Conv2d(3, 16, 3)
    with pytest.raises(ValueError, match="make it again"), sizes.smaller(0.5):
        pass


def test_a_network_that_changes_in_the_middle_of_a_training_is_noticed():
    model = normed()
    sizes = Sizes(model, example=X)
    for _ in range(CHECKED_EVERY):
        sizes.choose(0.5)
    model[0] = nn.Conv2d(3, 16, 3)
    with pytest.raises(ValueError, match="make it again"):
        sizes.choose(0.5)


# Which sizes


def test_draws_are_a_function_of_seed_and_step():
    first, again, other = (Sizes(normed(), example=X, seed=seed) for seed in (0, 0, 1))
    assert [first.draw(step) for step in (5, 0, 5)] == [again.draw(step) for step in (5, 0, 5)]
    assert first.draw(0) != first.draw(1) != other.draw(1)


@pytest.mark.parametrize(
    "distribution, uniform",
    [("width", lambda w: w), ("parameters", lambda w: w**2), ("logarithm", lambda w: torch.log(w))],
)
def test_the_named_function_of_the_width_is_uniform(distribution, uniform):
    sizes = Sizes(normed(), example=X, between=(0.2, 0.9), distribution=distribution)
    kept = 1 - torch.tensor([sizes.draw(step) for step in range(2000)], dtype=torch.float64)
    assert kept.min() >= 0.1 - 1e-12
    assert kept.max() <= 0.8
    ends = uniform(torch.tensor([0.1, 0.8], dtype=torch.float64))
    shares = (uniform(kept) - ends[0]) / (ends[1] - ends[0])
    counts = Counter((shares.clamp(max=1 - 1e-9) * 5).long().tolist())
    assert all(abs(counts[fifth] - 400) < 80 for fifth in range(5)), counts


def test_one_size_only():
    assert Sizes(normed(), example=X, between=(0.7, 0.7)).draw(3) == pytest.approx(0.7)


def test_twelve_lines_train_over_sizes(small_resnet, batches):
    """The loop of the module's docstring: what is cut afterwards was seen in training, and holds."""
    from sparsefw.data import load_digits

    images, labels = load_digits()

    def trained(over_sizes: bool) -> nn.Module:
        torch.manual_seed(0)
        model = build("resnet_digits", width=8).train()
        sizes = Sizes(model, "filters", example=images[:2])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step, batch in enumerate(b for _ in range(6) for b in torch.randperm(len(images)).split(64)):
            x, y = images[batch], labels[batch]
            half = len(x) // 2 if over_sizes else 0
            optimizer.zero_grad()
            if half:
                with sizes.smaller(sizes.draw(step)):
                    (nn.functional.cross_entropy(model(x[:half]), y[:half]) / 2).backward()
            (nn.functional.cross_entropy(model(x[half:]), y[half:]) / (2 if half else 1)).backward()
            optimizer.step()
        return model

    plain, over = (
        accuracy(compress(trained(over_sizes), calibration=batches, filters=0.6, refit=False).model)
        for over_sizes in (False, True)
    )
    assert over > plain + 20, (plain, over)


def test_the_same_units_go_as_in_compress(small_resnet):
    """Also where scores are tied: a network of equal filters."""
    with torch.no_grad():
        for p in small_resnet.parameters():
            p.copy_(p.sign() + 2) if p.ndim == 4 else None
    example = torch.randn(2, 1, 8, 8)
    small = compress(small_resnet, example=example, filters=0.37).model
    with smaller(small_resnet, filters=0.37, example=example):
        assert relative_gap(call_on_copy(small, example), call_on_copy(small_resnet, example)) < 1e-6
