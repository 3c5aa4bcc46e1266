"""Unusual models and inputs: compressed like others, or left and listed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compression.networks import BATCHES, IMAGES, ROWS, X, mlp, normed
from sparsefw import compress, curve, load, save
from sparsefw.compression.artifact.plan import Keep


class InPlace(nn.Module):
    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.net = in_place, mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.sub_(0.5).div_(2) if self.in_place else (x - 0.5) / 2)


@pytest.mark.parametrize("how", [{"weights": 0.5}, {"filters": 0.5}, {"rank": 0.5}], ids=str)
def test_a_model_that_works_on_its_inputs_in_place(how):
    before = [x.clone() for x in ROWS]
    results = [
        compress(InPlace(in_place), calibration=ROWS, example=ROWS[0], **how).model for in_place in (False, True)
    ]
    assert all(torch.equal(a, b) for a, b in zip(before, ROWS, strict=True))
    pairs = zip(results[0].parameters(), results[1].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.block, self.out = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.out(self.block(x, src_mask=mask))


def test_inputs_that_are_not_along_the_batch(tmp_path):
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    small = compress(Masked(), filters=0.5, example=(torch.randn(2, 6, 16), mask))
    save(small, tmp_path / "mask")
    small = compress(Masked(), filters=0.5, calibration=[{"x": torch.randn(8, 6, 16), "mask": mask}] * 5)
    assert small.example["x"].shape == (2, 6, 16)
    assert small.example["mask"].shape == (6, 6)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, x: Tensor, *, scale: Tensor, shift: Tensor) -> Tensor:
        return self.net(x * scale) + shift


@pytest.mark.parametrize("how", [{"neurons": 0.5}, {"rank": 0.5}, {"weights": 0.5}], ids=str)
def test_positional_and_keyword_arguments_together(how, tmp_path):
    names = {"shift": torch.full((64, 1), 0.5), "scale": torch.full((64, 1), 2.0)}
    batches = [(((rows,), names), "labels") for rows in ROWS]
    by_name = [{"x": rows, **names} for rows in ROWS]
    small, other = (compress(Scaled(), calibration=batches, **how) for batches in (batches, by_name))
    assert all(torch.equal(a, b) for a, b in zip(small.model.parameters(), other.model.parameters(), strict=True))
    save(small, tmp_path / "a", onnx=True, program=True)
    assert load(tmp_path / "a", Scaled).certificate["parity"]["onnxruntime"] < 1e-4


class Branching(nn.Module):
    """A branch for small inputs, which the example does not take."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.large = nn.Linear(8, 16), nn.Linear(16, 4)
        self.small = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 4))
        self.attention = nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.attention(torch.relu(self.stem(x)).unsqueeze(1)).squeeze(1)
        return self.large(y) if bool(x.abs().max() > 1) else self.small(y)


@pytest.mark.parametrize("how", [{"neurons": 0.5}, {"rank": 0.5}, {"weights": 0.5}, {"weights": "2:4"}], ids=str)
def test_branches_that_the_example_misses_are_listed(how):
    plan = compress(Branching(), example=ROWS[0], **how).plan
    (reason,) = {u.reason for u in plan.untouched if u.layer == "small"}
    assert reason.startswith("not run by the example")
    small = compress(mlp(), example=ROWS[0], **how).plan
    assert not any("not run" in entry.reason for entry in small.untouched)


def test_an_example_without_a_batch_is_saved_too(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3))
    save(compress(net, filters=0.5, example=torch.randn(3, 8, 8)), tmp_path / "a")
    assert (tmp_path / "a" / "model.safetensors").exists()


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(2), torch.tensor(0.5), 3])
def test_numbers_of_other_packages(number, tmp_path):
    small = compress(mlp(), target="drop=10", calibration=ROWS, evaluate=lambda net: number)
    save(small, tmp_path / "a", metrics={"acc": number})
    assert load(tmp_path / "a", mlp).certificate["metrics"] == {"acc": float(number)}
    ratios = np.array([0.25, 0.5], "float32"), torch.tensor([0.25, 0.5])
    for at in ratios:
        points = curve(mlp(), "rank", at, calibration=ROWS, evaluate=lambda net: number).points
        assert [p.ratio for p in points] == [0.25, 0.5]
    compress(mlp(), rank=0.5, example=ROWS[0], exclude={"2"})


@pytest.mark.parametrize("how", [{"filters": 0.2}, {"weights": 0.8, "exclude": "2"}, {"rank": 0.1}], ids=str)
def test_zeros_that_were_there_stay(how):
    net = nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))
    sparse = compress(net, weights=0.8, calibration=ROWS)
    again = compress(sparse.model, calibration=ROWS, **how)
    if "rank" not in how:  # a product of two matrices has none
        assert again.costs.bytes <= sparse.costs.bytes
    if "exclude" in how:
        assert torch.equal(again.model[2].weight == 0, sparse.model[2].weight == 0)


def test_layers_called_by_keyword():
    class Named(nn.Module):
        def __init__(self, norm: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.o = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 4, 3)
            self.bn: nn.Module = nn.BatchNorm2d(16) if norm else nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.o(input=torch.relu(self.bn(input=self.a(input=x))))

    for norm in (True, False):
        small = compress(Named(norm), filters=0.5, score="activation", calibration=IMAGES)
        assert small.model.a.out_channels == 8
    compress(Named(True), target="latency=0.99", example=IMAGES[0])


def test_a_head_that_only_runs_in_training():
    class Auxiliary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.o, self.aux = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 4, 3), nn.Conv2d(16, 2, 1)

        def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
            h = torch.relu(self.a(x))
            return (self.o(h), self.aux(h)) if self.training else self.o(h)

    small = compress(Auxiliary(), filters=0.5, score="activation", calibration=IMAGES)
    assert small.model.aux.in_channels == 8


def computing(layer: nn.Module) -> None:
    """Give a layer a weight that a hook computes, of a kind that nobody else knows."""
    values = layer.weight.detach()
    del layer.weight
    layer.raw = nn.Parameter(values)
    layer.register_forward_pre_hook(lambda module, _: setattr(module, "weight", 2 * module.raw))
    layer.weight = 2 * values


def test_a_weight_computed_from_others_when_masked_and_in_a_curve():
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 1))
    computing(net[2])
    small = compress(net, filters=0.5, form="masked", calibration=IMAGES)
    assert ("2", "its weight is computed from others") in [(u.layer, u.reason) for u in small.plan.untouched]
    curve(net, "rank", [0.5], calibration=IMAGES, evaluate=lambda net: 1.0)


def test_a_weight_tied_to_an_excluded_layer_is_left():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.o = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
            self.c = nn.Linear(8, 8)
            self.b.weight = self.c.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.o(torch.relu(self.c(torch.relu(self.b(torch.relu(self.a(x)))))))

    small = compress(Tied(), weights=0.5, exclude="a", example=ROWS[0])
    assert int((small.model.a.weight == 0).sum()) == 0
    small = compress(Tied(), weights=0.5, exclude="c", example=ROWS[0])
    assert int((small.model.c.weight == 0).sum()) == 0
    small = compress(Tied(), weights=0.5, exclude="a", example=ROWS[0])
    assert ("b", "shares its weight with a, which is excluded") in [(u.layer, u.reason) for u in small.plan.untouched]


def test_heads_are_rounded_by_their_channels():
    """Two heads of 16 are 32 channels, a multiple of 16; one of 12 is none."""
    block = nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)
    small = compress(block, filters=0.5, round_to=16, example=torch.randn(2, 5, 64))
    assert small.model.self_attn.num_heads == 2
    assert small.model.linear1.out_features == 32
    block = nn.TransformerEncoderLayer(48, 4, 64, batch_first=True)
    small = compress(block, filters=0.3, round_to=16, example=torch.randn(2, 5, 48))
    assert small.model.self_attn.num_heads == 4  # 3 heads would be 36 channels
    layers = "self_attn.query + self_attn.key + self_attn.value"
    assert (layers, "has 48, and round_to=16 keeps all of them") in [(u.layer, u.reason) for u in small.plan.untouched]
    assert str(small).startswith("removed: 23.5 % of the filters\n")  # 16 neurons of 64, and of 4 heads none


def test_modules_that_are_not_layers_are_listed():
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = nn.LSTM(8, 32, batch_first=True), nn.Linear(32, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.cell(x)[0][:, -1])

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(16, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    small = compress(nn.Sequential(nn.Conv2d(3, 16, 3), Scale(), nn.Conv2d(16, 4, 3)), filters=0.5, example=IMAGES[0])
    assert small.model[1].scale.shape == (8, 1, 1)
    assert [u.layer for u in small.plan.untouched if not u.note] == ["2"]
    small = compress(Recurrent(), weights=0.5, example=torch.randn(2, 5, 8))
    assert "left as it is: cell: LSTM is neither a convolution nor a linear layer" in str(small).splitlines()


@pytest.mark.parametrize("how", [{"filters": 0.5}, {"rank": 0.5}, {"weights": 0.5}], ids=str)
def test_a_weight_computed_from_others_is_left_and_listed(how):
    net = normed()
    computing(net[3])
    small = compress(net, calibration=BATCHES, **how)
    assert any(u.layer == "3" for u in small.plan.untouched)
    assert all(edit.layer != "3" or (isinstance(edit, Keep) and edit.side == "in") for edit in small.plan.edits)
    assert small.costs.bytes < small.dense.bytes


@pytest.mark.parametrize("how", [{"filters": 0.5}, {"rank": 0.5}], ids=str)
def test_rounding_that_leaves_nothing_to_remove_is_listed(how):
    small = compress(normed(), example=X, round_to=16, **how)
    stuck = {u.layer: u.reason for u in small.plan.untouched if "round_to=16" in u.reason}
    assert stuck == {
        name: f"has {count}, and round_to=16 keeps all of them" for name, count in {"0": 16, "3": 16, "8": 12}.items()
    }
