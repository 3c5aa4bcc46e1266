"""Splitting: layers become two only where the model computes the same with them; otherwise they stay, with the reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsefw import constrain, smaller
from sparsefw.compression import compress
from sparsefw.compression.artifact.plan import Split
from sparsefw.compression.reasons import Cause
from sparsefw.compression.structure.factorisation import split
from sparsefw.compression.structure.splitting import can_compare, gap_of_split, unsplittable_layers
from sparsefw.models.vit import ViT


class Two(nn.Module):
    """Three linear layers, the first of which is used in another way by every subclass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.head = nn.Linear(16, 3)

    def use(self, x: Tensor) -> Tensor:
        return self.first(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.second(torch.relu(self.use(x)))))


class ReadsDtype(Two):
    """As T5 does."""

    def use(self, x: Tensor) -> Tensor:
        weight = self.first.weight
        return self.first(x.to(weight.dtype).to(weight.device)) + self.first.in_features * self.first.bias.sum()


class AlsoMultiplies(Two):
    """Calls the layer, and multiplies by its weight once more."""

    def use(self, x: Tensor) -> Tensor:
        return self.first(x) + F.linear(x, self.first.weight, self.first.bias)


class ChecksType(Two):
    def use(self, x: Tensor) -> Tensor:
        if not isinstance(self.first, nn.Linear):
            raise TypeError("a linear layer, please")
        return self.first(x)


class ReadsByName(Two):
    def use(self, x: Tensor) -> Tensor:
        return self.first(x) * self.first._parameters["weight"].abs().mean()


class ReadsOwnAttribute(Two):
    """An attribute that the layer was given, and that two layers do not have."""

    def __init__(self) -> None:
        super().__init__()
        self.first.gain = 3.0

    def use(self, x: Tensor) -> Tensor:
        return self.first(x) * self.first.gain


class DependsOnType(Two):
    """Runs on, and computes something else."""

    def use(self, x: Tensor) -> Tensor:
        return self.first(x) * (1.0 if type(self.first) is nn.Linear else 2.0)


class WritesWeight(Two):
    def use(self, x: Tensor) -> Tensor:
        self.first.weight.data.clamp_(-0.1, 0.1)
        return self.first(x)


EXAMPLE = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("model", [Two, ReadsDtype, AlsoMultiplies])
def test_reading_a_layer_does_not_keep_it_from_being_split(model):
    net = model().eval()
    small = compress(net, rank=0.75, example=EXAMPLE)
    assert small.plan.edits == (Split("first", 4), Split("second", 4))
    with torch.no_grad():
        U, s, V = torch.linalg.svd(net.first.weight)
        net.first.weight.copy_((U[:, :4] * s[:4]) @ V[:4])
        U, s, V = torch.linalg.svd(net.second.weight)
        net.second.weight.copy_((U[:, :4] * s[:4]) @ V[:4])
        torch.testing.assert_close(small.model(EXAMPLE), net(EXAMPLE), atol=1e-5, rtol=1e-5)
    assert small.parity < 1e-5


@pytest.mark.parametrize(
    "model, reason",
    [
        (ChecksType, "the model does not run with two layers in its place (TypeError)"),
        (ReadsByName, "the model does not run with two layers in its place (KeyError)"),
        (ReadsOwnAttribute, "the model does not run with two layers in its place (AttributeError)"),
        (DependsOnType, "the model does not compute the same with two layers in its place"),
    ],
)
def test_what_the_code_does_otherwise_is_the_reason(model, reason):
    net = model().eval()
    before = net.first.weight.clone()
    small = compress(net, rank=0.75, example=EXAMPLE)
    left = {u.layer: u.reason for u in small.plan.untouched if not u.note}
    assert left == {"first": reason, "head": "the model's output"}
    assert small.plan.edits == (Split("second", 4),)
    assert torch.equal(small.model.first.weight, before)


def test_weights_that_the_model_itself_writes_are_refused():
    """The trial passes, because its small weights are not clamped."""
    with pytest.raises(
        ValueError, match=r"^two layers in place of one do not compute the same \(outputs differ by 0\.\d+\)"
    ):
        compress(WritesWeight().eval(), rank=0.75, example=EXAMPLE)


class Product(nn.Linear):
    """A forward of its own that computes what torch's does, as in Falcon."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


class Centred(nn.Linear):
    """A forward of its own that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight - self.weight.mean(1, keepdim=True), self.bias)


def test_linear_layers_with_a_forward_of_their_own_are_tried():
    net = nn.Sequential(Product(16, 16), nn.ReLU(), Centred(16, 16), nn.ReLU(), nn.Linear(16, 2)).eval()
    small = compress(net, rank=0.75, example=EXAMPLE)
    assert [edit for edit in small.plan.edits if isinstance(edit, Split)] == [Split("0", 4), Split("2", 4)]
    assert any(u.layer == "2" and "Centred became a plain Linear" in u.reason for u in small.plan.untouched)


def test_a_model_that_permits_no_layer_is_refused_in_one_line():
    class Picky(Two):
        def forward(self, x: Tensor) -> Tensor:
            assert {type(layer) for layer in self.children()} == {nn.Linear}
            return super().forward(x)

    with pytest.raises(ValueError, match=r"^there is nothing to compress by rank: .*\(AssertionError\)") as error:
        compress(Picky(), rank=0.75, example=EXAMPLE)
    assert "\n" not in str(error.value)


def test_of_layers_that_are_fine_alone_but_not_together_the_first_is_split():
    class OneOfThem(Two):
        def forward(self, x: Tensor) -> Tensor:
            assert isinstance(self.first, nn.Linear) or isinstance(self.second, nn.Linear)
            return super().forward(x)

    reasons = unsplittable_layers(OneOfThem(), EXAMPLE, ["first", "second"])
    assert {name: reason.cause for name, reason in reasons.items()} == {"second": Cause.FAILS_AS_TWO}


def test_a_last_layer_of_zeros_hides_nothing():
    net = DependsOnType()
    nn.init.zeros_(net.head.weight)
    assert set(unsplittable_layers(net, EXAMPLE, ["first", "second"])) == {"first"}


def test_an_example_of_zeros_hides_nothing():
    class Differs(Two):
        def use(self, x: Tensor) -> Tensor:
            return self.first(x if isinstance(self.first, nn.Linear) else x + 1 - 1 + x)

    assert set(unsplittable_layers(Differs(), torch.zeros(4, 16), ["first", "second"])) == {"first"}


def test_outputs_that_cannot_be_compared_are_only_run():
    class Classes(Two):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            return torch.zeros(len(x), dtype=torch.long)

    assert not can_compare(Classes(), EXAMPLE)
    assert unsplittable_layers(Classes(), EXAMPLE, ["first", "second"]) == {}

    class Raises(Classes, ChecksType):
        pass

    assert set(unsplittable_layers(Raises(), EXAMPLE, ["first", "second"])) == {"first"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_gap_is_that_of_float64(dtype):
    net = Two().to(dtype)
    pairs = {"first": split(net.first, 3), "second": split(net.second, 3)}
    gap, is_exact = gap_of_split(net, pairs, EXAMPLE.to(dtype))
    assert is_exact
    assert gap < 1e-12
    with torch.no_grad():
        pairs["first"][1].weight[0] += 1  # both networks see the same wrong weight
    assert gap_of_split(net, pairs, EXAMPLE.to(dtype))[0] < 1e-12
    assert gap_of_split(DependsOnType().to(dtype), pairs, EXAMPLE.to(dtype))[0] > 0.01


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 12, 3, padding=1, groups=2),
        nn.ConvTranspose2d(8, 12, 3, padding=1, groups=2),
        nn.Conv2d(8, 12, 1, bias=False),
    ],
    ids=["grouped", "transposed", "pointwise"],
)
def test_convolutions_are_tried(layer):
    net = nn.Sequential(layer, nn.ReLU(), nn.Conv2d(12, 2, 1))
    assert unsplittable_layers(net, torch.randn(2, 8, 5, 5), ["0"]) == {}


def test_the_model_is_not_changed():
    net = Two()
    before = {name: p.clone() for name, p in net.state_dict().items()}
    parameters = dict(net.named_parameters())
    unsplittable_layers(net, EXAMPLE, ["first", "second"])
    assert all(torch.equal(p, before[name]) for name, p in net.state_dict().items())
    assert all(p is parameters[name] for name, p in net.named_parameters())


def test_fused_kernels_of_transformer_layers_may_read_the_product():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    net = nn.Sequential(nn.Linear(16, 16), nn.TransformerEncoder(layer, 2), nn.Linear(16, 3)).eval()
    small = compress(net, rank=0.75, example=torch.randn(2, 5, 16))
    assert {e.layer for e in small.plan.edits if isinstance(e, Split)} >= {
        "1.layers.0.linear1",
        "1.layers.1.linear2",
    }
    assert small.parity < 1e-5


def test_constrain_smaller_and_compress_speak_of_the_same_layers():
    torch.manual_seed(0)
    net = ViT(in_channels=1, image=8, patch=2, width=32, depth=1, heads=2, mlp_ratio=2)
    x = torch.randn(4, 1, 8, 8)
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    groups = constrain(net, "rank", steps=1000, report=None)
    constrained = {name for group in groups if group["region"] is not None for name, _ in group["params"]}
    with smaller(net, rank=0.7, example=x):
        lowered = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    split_ = {f"{edit.layer}.weight" for edit in compress(net, rank=0.7, example=x).plan.edits}
    assert constrained == lowered == split_
    assert len(split_) == 5  # patches, qkv, proj, and both layers of the MLP
