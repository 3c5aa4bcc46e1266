"""compress: several kinds together, the choice of layers, and everything that must stay as it was."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from compression.networks import BATCHES, X
from compression.networks import normed as network
from sparsefw.compression import Compressed, compress
from sparsefw.compression.artifact.plan import Keep, Split, Thin, Truncate, Untouched, Zero, in_words
from sparsefw.compression.structure.factorisation import Factors

KINDS = [
    {"filters": 0.5},
    {"filters": 0.5, "form": "masked"},
    {"rank": 0.7},
    {"weights": 0.8},
    {"weights": "2:4"},
    {"filters": 0.5, "rank": 0.5},
    {"filters": 0.5, "weights": 0.5},
    {"rank": 0.7, "weights": 0.5},
    {"filters": 0.25, "rank": 0.7, "weights": 0.5},
    {"filters": 0.5, "form": "masked", "rank": 0.7, "weights": 0.8},
]


def same_state(a: nn.Module | dict, b: nn.Module | dict) -> bool:
    first, second = (m if isinstance(m, dict) else m.state_dict() for m in (a, b))
    return list(first) == list(second) and all(
        torch.equal(x, y) and x.dtype == y.dtype and x.stride() == y.stride()
        for x, y in zip(first.values(), second.values(), strict=True)
    )


# What comes back


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("how", KINDS, ids=str)
def test_every_kind_and_all_together(how, calibrated):
    net = network()
    before, modes = copy.deepcopy(net.state_dict()), [m.training for m in net.modules()]
    state = torch.random.get_rng_state()
    small = compress(net, example=X, calibration=BATCHES if calibrated else None, **how)
    assert isinstance(small, Compressed)
    assert torch.equal(torch.random.get_rng_state(), state)

    # the given model is as it was
    assert small.source is net
    assert same_state(before, net)
    assert [m.training for m in net.modules()] == modes

    # the new one is made of plain modules and pairs of them, without hooks, of nothing that belongs to the given one
    model = small.model
    assert all(type(m).__module__.startswith("torch.nn.modules") or type(m) is Factors for m in model.modules())
    for m in (*model.modules(), *net.modules()):
        assert not m._forward_hooks
        assert not m._forward_pre_hooks
        assert "forward" not in vars(m)
    pointers = {t.data_ptr() for t in net.state_dict().values()}
    assert not any(t.data_ptr() in pointers for t in model.state_dict().values())
    assert model.training
    with torch.no_grad():
        out = model.eval()(X)
    assert out.shape == (4, 5)
    assert out.isfinite().all()
    model.train()(X).sum().backward()
    assert all(p.grad is not None for p in model.parameters())

    words = [e.word for e in small.plan.edits]
    expected = {"filters": "zero" if how.get("form") == "masked" else "keep", "rank": "split", "weights": "thin"}
    for kind, word in expected.items():
        assert (word in words) == (kind in how)
    order = [["keep", "zero"], ["split", "truncate"], ["thin"]]
    ranks = [next(i for i, group in enumerate(order) if word in group) for word in words]
    assert ranks == sorted(ranks)
    assert small.costs.bytes < small.dense.bytes


def test_filters_then_rank_then_weights():
    """Each on the result of the one before."""
    small = compress(network(), filters=0.5, rank=0.5, weights=0.5, example=X)
    first = {e.layer: len(e.kept) for e in small.plan.edits if isinstance(e, Keep) and e.side == "out"}
    assert first == {"0": 8, "3": 8, "8": 6}
    ranks = {e.layer: e.rank for e in small.plan.edits if isinstance(e, (Split, Truncate))}
    assert ranks == {"0": 4, "3": 4, "8": 3}  # of 8 x 27, 8 x 72 and 6 x 8
    thin = {e.layer: e.of for e in small.plan.edits if isinstance(e, Thin)}
    assert thin == {"0.0": 4 * 27, "0.1": 8 * 4, "3.0": 4 * 72, "3.1": 8 * 4, "8.0": 24, "8.1": 18, "10": 30}
    zeros = sum(int((small.model.get_submodule(n).weight == 0).sum()) for n in thin)
    assert zeros == math.floor(0.5 * sum(thin.values()))


def test_nothing_asked_nothing_done():
    net = network()
    small = compress(net, filters=0.0, rank=0.0, weights=0, example=X)
    assert small.plan.edits == ()
    assert same_state(net, small.model)
    assert small.model is not net
    assert small.costs.parameters == small.dense.parameters


def test_without_calibration_a_note_says_that_statistics_are_old():
    small = compress(network(), filters=0.5, example=X)
    (reason,) = [u.reason for u in small.plan.untouched if u.layer == "calibration"]
    assert reason == "none was given: neither the remaining weights nor BatchNorm statistics were fitted"
    small = compress(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), filters=0.5, example=torch.randn(2, 3))
    (reason,) = [u.reason for u in small.plan.untouched if u.layer == "calibration"]
    assert reason == "none was given: the remaining weights were not fitted"
    small = compress(network(), filters=0.5, calibration=[torch.cat(BATCHES * 2)])
    assert "calibration" not in [u.layer for u in small.plan.untouched]


def test_the_request_is_in_the_plan():
    request = compress(network(), rank=0.5, calibration=BATCHES, refit=False, allocation="energy").plan.request
    assert request["rank"] == 0.5
    assert request["filters"] is None
    assert request["allocation"] == "energy"
    assert request["refit"] is False
    assert compress(network(), rank=0.5, example=X).plan.request["refit"] is False  # nothing to fit to
    assert compress(network(), rank=0.5, calibration=BATCHES, refit=True).plan.request["refit"] is True


def test_in_words():
    small = compress(network(), filters=0.5, weights="2:4", example=X)
    assert repr(small) == str(small)
    first, parameters, macs, size, *rest = str(small).splitlines()
    assert first == "removed: 50 % of the filters, 2:4 of the weights"
    assert parameters == "parameters           3,101 ->            929  (30.0%)"
    assert macs.startswith("MACs ")
    assert size.startswith("bytes ")
    assert rest == [
        "left as it is: 10: the model's output",
        "note: calibration: none was given: neither the remaining weights nor BatchNorm statistics were fitted",
    ]
    met = str(compress(network(), target="params=0.3", example=X))
    assert met.startswith("removed: 50 % of the filters, for params=0.3\n")


def test_layers_with_the_same_reason_share_a_line():
    entries = [Untouched(f"layer{i}", "excluded") for i in range(5)] + [Untouched("fc", "the model's output")]
    assert in_words(entries) == [
        "left as it is: layer0, layer1, layer2 and 2 more: excluded",
        "left as it is: fc: the model's output",
    ]


def test_twice_is_the_same():
    first, second = (compress(network(), filters=0.5, weights=0.5, calibration=BATCHES) for _ in range(2))
    assert same_state(first.model, second.model)
    assert first.plan == second.plan


def test_a_compressed_model_can_be_compressed_again():
    once = compress(network(), filters=0.5, rank=0.5, example=X).model
    twice = compress(once, filters=0.5, rank=0.5, weights=0.5, example=X)
    assert twice.costs.parameters < twice.dense.parameters
    with torch.no_grad():
        assert twice.model.eval()(X).shape == (4, 5)


# Which layers


def touched(small: Compressed) -> set[str]:
    kinds = (Split, Truncate, Thin, Zero)
    return {e.layer for e in small.plan.edits if isinstance(e, kinds) or (isinstance(e, Keep) and e.side == "out")}


@pytest.mark.parametrize(
    "how", [{"filters": 0.5}, {"filters": 0.5, "form": "masked"}, {"rank": 0.7}, {"weights": 0.8}], ids=str
)
@pytest.mark.parametrize(
    "choice, layers",
    [
        ({"include": "0"}, {"0"}),
        ({"include": ["0", "3"]}, {"0", "3"}),
        ({"include": "[03]", "exclude": "3"}, {"0"}),
        ({"exclude": "3"}, {"0", "8", "10"}),
        ({"exclude": ["0", "8"]}, {"3", "10"}),
        ({"include": "*", "exclude": "?"}, {"10"}),
    ],
    ids=range(6),  # a set is printed in another order in every process
)
def test_globs_choose_layers(how, choice, layers):
    possible = {"filters": {"0", "3", "8"}, "rank": {"0", "3", "8"}, "weights": {"0", "3", "8", "10"}}[next(iter(how))]
    if how.get("form") == "masked":
        possible = {"0", "3"}
    if not layers & possible:
        with pytest.raises(ValueError, match=r"^there is nothing to compress by [^\n]*$"):
            compress(network(), example=X, **how, **choice)
        return
    net = network()
    small = compress(net, example=X, **how, **choice)
    assert touched(small) == layers & possible
    for name in {"0", "3", "8", "10"} - layers:
        assert small.model.get_submodule(name).weight.shape[0] == net.get_submodule(name).weight.shape[0]


def test_the_layer_that_writes_the_output_keeps_its_outputs():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 5, 1), nn.Softmax(dim=1))
    for form in ("removed", "masked"):
        small = compress(net, filters=0.5, form=form, example=X)
        assert touched(small) == {"0"}
        assert small.model[2].out_channels == 5
        assert small.model[2].weight.flatten(1).norm(dim=1).min() > 0
        assert "2" in [u.layer for u in small.plan.untouched]
    small = compress(net, rank=0.7, example=X)
    assert touched(small) == {"0"}


# What a model is stays


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_frozen_layers_stay_frozen(how):
    net = network()
    for p in net[3].parameters():
        p.requires_grad_(False)
    net[8].bias.requires_grad_(False)
    small = compress(net, calibration=BATCHES, **how).model
    assert not any(p.requires_grad for p in small[3].parameters())
    assert all(p.requires_grad for n, p in small[8].named_parameters() if "weight" in n)
    assert not any(p.requires_grad for n, p in small[8].named_parameters() if "bias" in n)
    assert all(p.requires_grad for p in small[0].parameters())


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_stays(training):
    for how in KINDS[:4]:
        small = compress(network().train(training), calibration=BATCHES, **how).model
        assert all(m.training == training for m in small.modules())


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_float64(how):
    net, data = network(dtype=torch.float64), [b.double() for b in BATCHES]
    small = compress(net, calibration=data, **how)
    assert {p.dtype for p in small.model.parameters()} == {torch.float64}
    single = compress(network(), calibration=BATCHES, **how)
    with torch.no_grad():
        wide, narrow = small.model.eval()(data[0]), single.model.eval()(BATCHES[0]).double()
    torch.testing.assert_close(wide, narrow, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("how", [k for k in KINDS if "form" not in k], ids=str)
def test_half_precision(how, dtype, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)  # some CPUs lack the instructions that it would use
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)).to(dtype)
    x = torch.randn(8, 16).to(dtype)
    small = compress(net, example=x, **how)
    assert {p.dtype for p in small.model.parameters()} == {dtype}
    wide = compress(copy.deepcopy(net).float(), example=x.float(), **how)
    with torch.no_grad():
        torch.testing.assert_close(small.model(x).float(), wide.model(x.float()), rtol=0.1, atol=0.1)
    assert small.costs.parameters == wide.costs.parameters


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("how", KINDS, ids=str)
def test_channels_last_stays(how, calibrated):
    net = network(memory_format=torch.channels_last)
    small = compress(net, example=X, calibration=BATCHES if calibrated else None, **how).model
    for m in small.modules():
        if isinstance(m, nn.Conv2d) and m.kernel_size != (1, 1):
            assert m.weight.is_contiguous(memory_format=torch.channels_last)
            assert not m.weight.is_contiguous()
    plain = compress(network(), example=X, calibration=BATCHES if calibrated else None, **how).model
    assert all(m.weight.is_contiguous() for m in plain.modules() if isinstance(m, nn.Conv2d))
    with torch.no_grad():
        torch.testing.assert_close(small.eval()(X), plain.eval()(X), rtol=1e-3, atol=1e-4)


def test_inputs_by_name_and_by_position():
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.head = nn.Linear(4, 12), nn.Linear(6, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.head(torch.relu(self.a(x) + self.b(y)))

    torch.manual_seed(0)
    net, x, y = TwoInputs(), torch.randn(8, 4), torch.randn(8, 6)
    expected = compress(net, filters=0.5, example=(x, y)).model
    for given in (
        {"example": {"y": y, "x": x}},
        {"calibration": [{"x": x, "y": y}], "refit": False},
        {"calibration": [((x, y), 0)], "refit": False},
    ):
        small = compress(net, filters=0.5, **given).model
        assert small.a.out_features == small.b.out_features == small.head.in_features == 6
        assert [p.shape for p in small.parameters()] == [p.shape for p in expected.parameters()]


def test_other_attributes_of_a_model_are_copied():
    class Named(nn.Module):
        """Buffers, attributes, methods and a parameter outside of layers."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 3)
            self.register_buffer("mean", torch.arange(6.0))
            self.temperature, self.labels = nn.Parameter(torch.tensor(2.0)), ("cat", "dog", "bird")

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(self.body(x - self.mean))) / self.temperature

        def name(self, i: int) -> str:
            return self.labels[i]

    small = compress(Named(), filters=0.5, example=torch.randn(2, 6)).model
    assert type(small) is Named
    assert small.name(1) == "dog"
    assert torch.equal(small.mean, torch.arange(6.0))
    assert float(small.temperature.detach()) == 2.0
    assert small.body.out_features == 4
