"""Defects that were found by attacking the package and are mended: each stays mended."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

from sparsefw import compress, curve, load, recalibrate, save, save_elastic
from sparsefw.compression import ArtifactError, elastic, export_onnx, measure
from sparsefw.compression.export import ExportError
from sparsefw.compression.filters import relative_gap
from sparsefw.compression.weights import global_masks, share_of
from sparsefw.compression.wiring import norms_behind

IMAGES = [torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]
ROWS = [torch.randn(64, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 3))


def error(dense: nn.Module, small: nn.Module, batches: list[Tensor]) -> float:
    with torch.no_grad():
        gaps = [(dense.eval()(x.clone()) - small.eval()(x.clone())).square().sum() for x in batches]
        return float(sum(gaps) / sum(dense(x.clone()).square().sum() for x in batches))


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


def test_a_budget_is_met_also_when_recovery_changes_a_later_stage():
    """Found at 0.3314: sensitivities of the second stage were measured before the first was refitted."""
    torch.manual_seed(16)
    net = nn.Sequential(
        nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10)
    )
    with torch.no_grad():
        for layer in net[::2]:
            layer.weight *= torch.exp(1.5 * torch.randn(layer.out_features, 1))
    g = torch.Generator().manual_seed(16)
    mix = torch.randn(20, 20, generator=g) @ torch.diag(torch.logspace(0, -3, 20))
    batches = [torch.randn(32, 20, generator=g) @ mix for _ in range(4)]
    small = compress(net, target="params=0.3", by="rank", filters=0.5, allocation="sensitivity", calibration=batches)
    assert small.costs.parameters <= 0.3 * small.dense.parameters


class Branch(nn.Module):
    """A layer read by a batch norm and by a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 64), nn.Linear(64, 6, bias=False)
        self.bn, self.o = nn.BatchNorm1d(6), nn.Linear(6, 3, bias=False)
        with torch.no_grad():
            self.a.bias += 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(torch.relu(self.a(x)))
        return self.o(torch.relu(self.bn(y)) + y)


def test_an_offset_is_only_lost_in_a_norm_that_alone_reads_it():
    net = Branch()
    assert norms_behind(net, ROWS[0]) == {}
    net = recalibrate(net, ROWS)
    small = compress(net, filters=0.8, include="a", calibration=ROWS).model
    with torch.no_grad():
        wanted, got = (torch.cat([m.b(torch.relu(m.a(x))) for x in ROWS]) for m in (net, small))
    assert float((wanted - got).square().sum() / wanted.square().sum()) < 0.1  # centred, the mean would be missing


def test_whatever_reads_a_layer_is_counted():
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.layer(x)
            return y, self.norm(y)

    class Twice(Returns):
        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.layer(self.norm(self.layer(x))))

    class Mapped(Returns):
        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(lambda row: self.norm(self.layer(row)))(x.unsqueeze(1)).squeeze(1)

    class Conditional(Returns):
        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.layer(x))
            return torch.cond(y.sum() > 0, lambda t: t * 2, lambda t: t * 3, (y,))

    assert norms_behind(Returns(), ROWS[0]) == {}  # the user reads it too
    assert norms_behind(Twice(), ROWS[0]) == {"layer": "norm"}
    norms_behind(Mapped().eval(), ROWS[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about the age of its modules
        assert norms_behind(Conditional(), ROWS[0]) == {"layer": "norm"}


@pytest.mark.parametrize(
    "between, behind", [(nn.Identity(), {"0": "2"}), (nn.ReLU(inplace=True), {}), (nn.ReLU(), {})], ids=str
)
def test_an_activation_in_place_is_between(between, behind):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), between, nn.BatchNorm2d(4))
    assert norms_behind(net, IMAGES[0]) == behind


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


def test_an_example_without_a_batch_is_saved_too(tmp_path):
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3))
    save(compress(net, filters=0.5, example=torch.randn(3, 8, 8)), tmp_path / "a")


def test_extra_state_is_refused_when_saving(tmp_path):
    class Extra(nn.Identity):
        def get_extra_state(self) -> dict[str, int]:
            return {"k": 1}

        def set_extra_state(self, state: dict[str, int]) -> None:
            pass

    net = nn.Sequential(nn.Conv2d(3, 16, 3), Extra(), nn.Conv2d(16, 4, 3))
    with pytest.raises(ArtifactError, match=r"^1\._extra_state is no tensor: [^\n]*$"):
        save(compress(net, filters=0.5, example=IMAGES[0]), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, "good", None, True])
def test_metrics_are_numbers(value, tmp_path):
    with pytest.raises(ValueError, match=r"^metrics\['acc'\] = [^\n]*: must be a finite number$"):
        save(compress(mlp(), rank=0.5, calibration=ROWS), tmp_path / "a", metrics={"acc": value})


def test_a_broken_point_of_an_elastic_artifact_has_no_metric(tmp_path):
    save_elastic(mlp(), tmp_path / "e", "filters", [0.5], calibration=ROWS, evaluate=lambda net: math.nan)
    assert load(tmp_path / "e", mlp, filters=0.5).certificate["metrics"] == {"compressed": None}


@pytest.mark.parametrize("value, says", [(math.nan, "nan"), (math.inf, "inf"), (None, "None"), ("x", "'x'")])
def test_what_evaluate_may_not_return(value, says):
    for run in (
        lambda: compress(mlp(), target="drop=1", calibration=ROWS, evaluate=lambda net: value),
        lambda: curve(mlp(), "filters", [0.5], calibration=ROWS, evaluate=lambda net: value, form="removed"),
    ):
        with pytest.raises(ValueError, match=rf"^evaluate (gives|returned) {says}[^\n]* larger is better$"):
            run()
    with pytest.raises(ValueError, match=r"^evaluate must be a function from a model to a number"):
        curve(mlp(), "filters", [0.5], calibration=ROWS, evaluate=3)


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


class Normalised(nn.Module):
    """Without any weight left, 0 is divided by 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.o = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.o(torch.relu(self.b(h / h.square().mean().sqrt())))


@pytest.mark.parametrize("refit", [False, True])
def test_where_too_much_is_removed_the_search_goes_on(refit):
    def correct(net: nn.Module) -> float:
        with torch.no_grad():
            return -float((net.eval()(ROWS[0]) - Normalised().eval()(ROWS[0])).square().mean())

    batches = [x.abs() for x in ROWS]
    small = compress(Normalised(), target="drop=0.01", by="weights", calibration=batches, refit=refit, evaluate=correct)
    assert 0.05 < small.plan.request["level"] < 0.999
    points = curve(
        Normalised(), "weights", [0.5, 0.999], calibration=batches, evaluate=correct, allocation="uniform", refit=refit
    ).points
    assert math.isfinite(points[0].plain)


def test_outputs_that_are_whole_numbers(tmp_path):
    class Class(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x).argmax(1)

    save(compress(Class(), rank=0.5, example=ROWS[0]), tmp_path / "a")
    assert load(tmp_path / "a", Class).certificate["parity"]["masked_removed"] == 0


@pytest.mark.parametrize("how", [{"filters": 0.2}, {"weights": 0.8, "exclude": "2"}, {"rank": 0.1}], ids=str)
def test_zeros_that_were_there_stay(how):
    net = nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 5))
    sparse = compress(net, weights=0.8, calibration=ROWS)
    again = compress(sparse.model, calibration=ROWS, **how)
    if "rank" not in how:  # a product of two matrices has none
        assert again.costs.bytes <= sparse.costs.bytes
    if "exclude" in how:
        assert torch.equal(again.model[2].weight == 0, sparse.model[2].weight == 0)


@pytest.mark.parametrize("refit, batches", [(False, 3), (True, 4), (True, 3)])
def test_activations_that_are_not_finite(refit, batches):
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        net[2].weight.fill_(3e38)
    with pytest.raises(ValueError, match=r"^[024]: calibration gives activations that are not finite[^\n]*$"):
        compress(net, weights=0.5, calibration=ROWS[:batches], refit=refit)


def test_statistics_that_are_not_finite():
    net = cnn()
    with torch.no_grad():
        net[0].weight.fill_(3e38)
    with pytest.raises(ValueError, match=r"^calibration gives activations that are not finite[^\n]*$"):
        recalibrate(net, IMAGES)


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


def test_a_weight_computed_from_others_when_masked_and_in_a_curve():
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 1))
    nn.utils.parametrizations.weight_norm(net[2])
    small = compress(net, filters=0.5, form="masked", calibration=IMAGES)
    assert ("2", "its weight is computed from others") in [(u.layer, u.reason) for u in small.plan.untouched]
    curve(net, "rank", [0.5], calibration=IMAGES, evaluate=lambda net: 1.0)


def test_an_elastic_artifact_is_read_as_a_whole(tmp_path, monkeypatch):
    """Another process saves between the reading of two files."""
    first, second = cnn(), cnn()
    with torch.no_grad():
        second[0].weight.neg_()
    how = {"kind": "filters", "at": [0.5], "calibration": IMAGES}

    def output(folder) -> Tensor:
        with torch.no_grad():
            return load(folder, cnn, filters=0.5, refit=False).model.eval()(IMAGES[0])

    save_elastic(second, tmp_path / "second", **how)
    save_elastic(first, tmp_path / "e", **how)
    read, reads = elastic.read_tensors, []

    def interrupted(path):
        reads.append(path)
        if len(reads) == 2:
            save_elastic(second, tmp_path / "e", **how)
        return read(path)

    monkeypatch.setattr(elastic, "read_tensors", interrupted)
    assert torch.equal(output(tmp_path / "e"), output(tmp_path / "second"))


@pytest.mark.parametrize(
    "count, ratio, gone", [(44_500_000, 0.7, 31_150_000), (86_000_000, 0.57, 49_020_000), (3, 1 / 3, 1)]
)
def test_shares_of_large_numbers(count, ratio, gone):
    assert share_of(ratio, count) == gone


def test_exactly_that_many_of_many():
    mask = global_masks({"w": torch.rand(10_000_019, generator=torch.Generator().manual_seed(0))}, 0.7)["w"]
    assert int((~mask).sum()) == 7_000_013


def test_budgets_below_a_hundredth_can_be_reached():
    net = nn.Sequential(nn.Linear(40, 1000), nn.ReLU(), nn.Linear(1000, 10))
    small = compress(net, target="params=0.005", example=torch.randn(2, 40))
    assert small.costs.parameters <= 0.005 * small.dense.parameters


def test_an_offset_of_all_outputs_hides_no_difference():
    class Offset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.o = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.a(x))
            return self.o(h / h.shape[1]) + 1e6

    with pytest.raises(ValueError, match="nothing to compress by filters: a: removing them is not the same"):
        compress(Offset().double(), filters=0.5, example=torch.randn(4, 8).double())


def test_gaps_by_hand():
    a = torch.tensor([1.0, 3.0, -math.inf])
    assert relative_gap(a, torch.tensor([1.0, 2.5, -math.inf])) == 0.25
    assert relative_gap(a, torch.tensor([1.0, 3.0, 0.0])) == math.inf
    assert relative_gap(torch.tensor([2.0]), torch.tensor([1.0])) == 0.5
    assert relative_gap(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 2, 3, 5])) == 0.25
    assert relative_gap(torch.zeros(2), torch.zeros(3)) == math.inf
    assert relative_gap(torch.full((2,), math.nan), torch.full((2,), math.nan)) == math.inf
    big = torch.tensor([6e4, -6e4], dtype=torch.float16)
    assert relative_gap(big, -big) == 1.0
    ones = torch.ones(5) + torch.tensor([0, 1, 0, -1, 0]) * 6e-8  # a norm, say: alike but for rounding
    assert relative_gap(ones, torch.ones(5)) < 1e-6


def test_what_a_tied_weight_is_excluded_for():
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


def test_what_evaluate_does_to_a_model_is_not_stored(tmp_path):
    def freezing(net: nn.Module) -> float:
        net.eval().requires_grad_(False)
        return 1.0

    save_elastic(mlp().train(), tmp_path / "e", "filters", [0.5], calibration=ROWS, evaluate=freezing)
    net = load(tmp_path / "e", mlp, filters=0.5).model
    assert net.training
    assert net[0].weight.requires_grad


@pytest.mark.parametrize("ratio", [math.nan, 2, -0.1, 1.0])
def test_ratios_that_cannot_be_loaded(ratio, tmp_path):
    save_elastic(mlp(), tmp_path / "e", "filters", [0.5], calibration=ROWS)
    with pytest.raises(ArtifactError, match=r"^filters=[^\n]*: the fraction to remove must be in \[0, 1\)$"):
        load(tmp_path / "e", mlp, filters=ratio)


def test_long_names(tmp_path):
    save(compress(mlp(), rank=0.5, example=ROWS[0]), tmp_path / ("n" * 250))


def test_heads_are_rounded_by_their_channels():
    """Two heads of 16 are 32 channels, a multiple of 16; one of 12 is none."""
    block = nn.TransformerEncoderLayer(64, 4, 64, batch_first=True)
    small = compress(block, filters=0.5, round_to=16, example=torch.randn(2, 5, 64))
    assert small.model.self_attn.num_heads == 2
    assert small.model.linear1.out_features == 32
    block = nn.TransformerEncoderLayer(48, 4, 64, batch_first=True)
    small = compress(block, filters=0.3, round_to=16, example=torch.randn(2, 5, 48))
    assert small.model.self_attn.num_heads == 4  # 3 heads would be 36 channels
    assert ("self_attn", "has 48, no more than round_to=16 keeps") in [
        (u.layer, u.reason) for u in small.plan.untouched
    ]
    assert str(small).startswith("removed: 23.5 % of the filters\n")  # 16 neurons of 64, and of 4 heads none


def test_what_is_no_layer_is_listed():
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
    assert "left as it is: cell: LSTM is not a layer that is compressed" in str(small).splitlines()


@pytest.mark.parametrize(
    "wrong, says",
    [
        ({"filters": 0.5, "by": "rank"}, "by='rank' says what a target= is met by, and there is none"),
        ({"rank": 0.5, "form": "masked"}, "form='masked' is a way to remove filters, and none are asked for"),
        ({"filters": 0.5, "refit": "yes"}, "refit='yes': must be True or False"),
        ({"filters": 0.5, "include": 3}, "include and exclude take names with * and ?, or a list of them, got 3"),
        ({"target": "latency=0.5", "by": "weights"}, "zeros stay in place, so latency cannot fall; use bytes="),
        ({"target": "params=0.5", "form": "masked"}, "cannot fall; use bytes=, or form='removed'"),
    ],
    ids=str,
)
def test_nothing_is_ignored(wrong, says):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        compress(cnn(), example=IMAGES[0], **wrong)
    assert says in str(caught.value)


def test_nothing_is_ignored_elsewhere(tmp_path):
    small = compress(cnn(), filters=0.5, example=IMAGES[0])
    with pytest.raises(ValueError, match=r"^backend='tflite': there are eager, onnxruntime$"):
        measure(small.model, IMAGES[0], backend="tflite")
    with pytest.raises(ValueError, match=r"^measure needs a torch.nn.Module, got Compressed; [^\n]*\.model$"):
        measure(small, IMAGES[0])
    with pytest.raises(ValueError, match=r"^a torch.nn.Module is exported, not a Compressed; [^\n]*\.model$"):
        export_onnx(small, IMAGES[0], tmp_path / "x.onnx")
    with pytest.raises(ExportError, match=r"^cannot write [^\n]*: No such file or directory$"):
        export_onnx(small.model, IMAGES[0], tmp_path / "nowhere" / "x.onnx")
    with pytest.raises(ValueError, match=r"^latency=True needs form='removed'"):
        curve(cnn(), "filters", [0.5], calibration=IMAGES, evaluate=lambda net: 1.0, latency=True)
    with pytest.raises(ValueError, match=r"^at=\['2:4'\]: ratios to remove must be in \[0, 1\), at least one$"):
        curve(cnn(), "weights", ["2:4"], calibration=IMAGES, evaluate=lambda net: 1.0)


@pytest.mark.parametrize("empty", [[IMAGES[0], IMAGES[0][:0]], [IMAGES[0][:0]]])
def test_an_empty_batch(empty):
    with pytest.raises(ValueError, match=r"^calibration has an empty batch$"):
        compress(cnn(), filters=0.5, calibration=empty)


def test_what_others_wrap():
    net = cnn().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about the age of TorchScript
        scripted, compiled = torch.jit.trace(net, IMAGES[0]), torch.compile(net, backend="eager")
    small = compress(compiled, filters=0.5, example=IMAGES[0])
    assert list(dict(small.model.named_modules())) == list(dict(net.named_modules()))
    with pytest.raises(ValueError, match=r"^a TorchScript module cannot be taken apart: [^\n]*$"):
        compress(scripted, filters=0.5, example=IMAGES[0])
    prune.l1_unstructured(net[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"^the model cannot be copied[^\n]*first torch.nn.utils.prune.remove"):
        compress(net, filters=0.5, example=IMAGES[0])


def test_a_target_tells_what_was_reached():
    def size(net: nn.Module) -> float:
        return sum(p.numel() for p in net.parameters()) / 1000

    small = compress(cnn(), target="drop=0.5", calibration=IMAGES, evaluate=size)
    before, after = small.plan.request["metric"]
    assert before == pytest.approx(size(cnn()))
    assert after == pytest.approx(size(small.model))
    assert before - after <= 0.5
    assert f"metric      {before:>14.6g} -> {after:>14.6g}" in str(small)
    small = compress(cnn(), target="latency=0.99", example=IMAGES[0])
    assert "sum of the layers at batch 16" in str(small)
