"""Elastic folders at any size: the same network as compress gives, without data."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

from compression.networks import BATCHES, ROWS, mlp, normed, unnormed
from compression.zoo import Net
from sparsefw import compress, load, save_elastic
from sparsefw.compression import ArtifactError
from sparsefw.kinds import KINDS, kind_of
from sparsefw.models import build

STATISTICS = ("running_mean", "running_var")
HOW = [
    ("filters", {}),
    ("filters", {"allocation": "global"}),
    ("filters", {"allocation": "energy", "score": "bn"}),
    ("filters", {"allocation": "sensitivity", "score": "activation"}),
    ("filters", {"allocation": "worst", "round_to": 4, "exclude": "layer1.*"}),
    ("rank", {}),
    ("rank", {"allocation": "energy", "round_to": 2}),
    ("weights", {}),
    ("weights", {"allocation": "uniform", "include": "layer*"}),
]


@pytest.fixture(autouse=True)
def _without_warnings():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is not stored")
        yield


def random_ratios(count: int) -> list[float]:
    return torch.rand(count, generator=torch.Generator().manual_seed(0)).mul(0.95).tolist()


def without_statistics(model: nn.Module) -> dict[str, Tensor]:
    return {name: t for name, t in model.state_dict().items() if not name.endswith(STATISTICS)}


def assert_equal(mine: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert list(mine) == list(other)
    assert [name for name in mine if not torch.equal(mine[name], other[name])] == []


@pytest.mark.parametrize("kind, how", HOW, ids=str)
def test_any_ratio_is_cut_as_compress_cuts_it(kind, how, small_resnet, batches, tmp_path):
    """Bit for bit, but for the statistics of the batch norms; at stored ratios these too."""
    how = {**how, "calibration": batches, "refit": False}
    save_elastic(small_resnet, tmp_path / "e", kind, [0.25, 0.6], **how)
    for ratio in (0.25, 0.6, *random_ratios(4)):
        again, direct = load(tmp_path / "e", **{kind: ratio}), compress(small_resnet, **how, **{kind: ratio})
        assert again.plan.edits == direct.plan.edits
        assert_equal(without_statistics(again.model), without_statistics(direct.model))
        assert again.costs == direct.costs
        assert again.model.training == direct.model.training
        if ratio in (0.25, 0.6):
            assert_equal(again.model.state_dict(), direct.model.state_dict())


@pytest.mark.parametrize("word", [*KINDS, "2:4"])
def test_networks_without_batch_norm_store_a_factor_and_a_bias_per_channel(word, tmp_path):
    kind = kind_of(word)
    ratio = kind.only_ratio or 0.5
    torch.manual_seed(0)
    model = build("vit_tiny", classes=10, in_channels=1, image=8, patch=2, width=16, depth=2, heads=4)
    images = [torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))]
    save_elastic(model, tmp_path / "e", word, [ratio], calibration=images, refit=False)
    direct = compress(model, calibration=images, refit=False, **kind.compress_arguments(ratio))
    again = load(tmp_path / "e", **{word: ratio})
    assert_equal(again.model.state_dict(), direct.model.state_dict())
    assert again.plan.edits == direct.plan.edits
    assert {path.name for path in (tmp_path / "e").iterdir()} == {"plan.json", "model.safetensors"}
    if kind.only_ratio is None:
        other = load(tmp_path / "e", **{word: 0.3})
        assert other.plan.edits == compress(model, example=images[0], **{word: 0.3}).plan.edits
        assert other.model(images[0]).isfinite().all()


class Attending(nn.Module):
    """A network that is in no registry, with attention that is taken apart, a batch norm and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.encode, self.decode = nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False)
        self.decode.weight = self.encode.weight
        self.hidden, self.head = nn.Linear(16, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return self.head(torch.relu(self.hidden(self.decode(self.encode(x)))).mean(1))


@pytest.mark.parametrize("kind", ["filters", "heads", "neurons", "rank", "weights"])
def test_attention_tied_weights_frozen_layers_and_modes_come_back(kind, tmp_path):
    torch.manual_seed(0)
    model, x = Attending().train(), torch.randn(32, 5, 8)
    model.attention.eval()
    model.hidden.weight.requires_grad_(False)
    model.attention.in_proj_weight.requires_grad_(False)
    save_elastic(model, tmp_path / "e", kind, [0.5], calibration=[x], refit=False)
    for ratio in (0.5, 0.25):
        small = compress(model, calibration=[x], refit=False, **{kind: ratio})
        loaded = load(tmp_path / "e", Attending, **{kind: ratio})
        assert loaded.plan.edits == small.plan.edits
        direct, again = small.model, loaded.model
        assert_equal(without_statistics(again), without_statistics(direct))
        assert again.decode.weight is again.encode.weight
        for mine, other in zip(again.named_parameters(), direct.named_parameters(), strict=True):
            assert (mine[0], mine[1].requires_grad) == (other[0], other[1].requires_grad)
        for mine, other in zip(again.named_modules(), direct.named_modules(), strict=True):
            assert (mine[0], mine[1].training) == (other[0], other[1].training)


def test_channels_last_comes_back(small_resnet, batches, tmp_path):
    model = small_resnet.to(memory_format=torch.channels_last)
    save_elastic(model, tmp_path / "e", "filters", [0.5], calibration=batches, refit=False)
    weight = load(tmp_path / "e", filters=0.3).model.layer1[0].conv1.weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(weight, compress(model, filters=0.3, example=batches[0]).model.layer1[0].conv1.weight)


def test_statistics_between_two_sizes_are_on_the_line_between_theirs(tmp_path):
    """Channels that the smaller size lacks have those of the larger. (The inputs of the second norm depend on the size.)"""
    model = normed()
    save_elastic(model, tmp_path / "e", "filters", [0.25, 0.75], calibration=BATCHES, refit=False)
    at = {ratio: load(tmp_path / "e", normed, filters=ratio) for ratio in (0.25, 0.375, 0.75)}
    kept = {r: next(e.kept for e in small.plan.edits if e.layer == "4" and e.side == "each") for r, small in at.items()}
    for field in STATISTICS:
        of = {r: dict(zip(kept[r], getattr(small.model[4], field).double(), strict=True)) for r, small in at.items()}
        for channel, value in of[0.375].items():
            end = of[0.75].get(channel, of[0.25][channel])
            torch.testing.assert_close(value, 0.75 * of[0.25][channel] + 0.25 * end, rtol=1e-6, atol=1e-6)
        assert any(abs(of[0.25][channel] - value) > 1e-4 for channel, value in of[0.75].items())


@pytest.mark.parametrize(
    "ratio, says",
    [
        (0.1, "interpolated between those stored for the ratios 0 and 0.25"),
        (0.5, "interpolated between those stored for the ratios 0.25 and 0.75"),
        (0.9, "those stored for the ratio 0.75, the nearest"),
    ],
)
def test_a_size_that_is_not_stored_says_where_its_statistics_are_from(ratio, says, tmp_path):
    save_elastic(normed(), tmp_path / "e", "filters", [0.25, 0.75], calibration=BATCHES, refit=False)
    with pytest.warns(UserWarning, match=rf"^filters={ratio} is not stored: its statistics are {says}$") as caught:
        small = load(tmp_path / "e", normed, filters=ratio)
    assert caught[0].filename == __file__
    assert [(entry.layer, entry.reason, entry.note) for entry in small.plan.untouched][-1] == ("statistics", says, True)
    assert says in str(small)
    assert small.certificate["metrics"] == {"compressed": None}


@pytest.mark.parametrize("ratio", [0.0, 0.001, 0.25, 0.26])
def test_a_ratio_that_keeps_the_units_of_a_stored_one_is_that_one(ratio, tmp_path):
    save_elastic(normed(), tmp_path / "e", "filters", [0.25], calibration=BATCHES, refit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small = load(tmp_path / "e", normed, filters=ratio)
    direct = compress(normed(), filters=ratio, calibration=BATCHES, refit=False)
    assert_equal(small.model.state_dict(), direct.model.state_dict())


@pytest.mark.parametrize("target", ["params=0.37", "macs=0.5", "bytes=0.21", "params=1"])
@pytest.mark.parametrize("kind", ["filters", "rank"])
def test_a_target_is_met_as_by_compress(kind, target, small_resnet, batches, tmp_path):
    save_elastic(small_resnet, tmp_path / "e", kind, [0.5], calibration=batches, refit=False)
    found = load(tmp_path / "e", target=target)
    direct = compress(small_resnet, target=target, by=kind, example=batches[0][:2])
    assert found.plan.edits == direct.plan.edits
    assert f"for {target}" in str(found)
    cost = {"params": "parameters"}.get(target.split("=")[0], target.split("=")[0])
    assert found.certificate["costs"]["compressed"][cost] == getattr(direct.costs, cost)


def test_a_target_of_bytes_counts_zeros(tmp_path):
    save_elastic(mlp(), tmp_path / "e", "weights", [0.5], calibration=ROWS, refit=False)
    assert (
        load(tmp_path / "e", mlp, target="bytes=0.4").costs.bytes
        <= 0.4 * load(tmp_path / "e", mlp, weights=0).costs.bytes
    )
    with pytest.raises(
        ArtifactError, match=r"^[^\n]*target params=0.4 cannot be reached: [^\n]* smallest is 1 of[^\n]*$"
    ):
        load(tmp_path / "e", mlp, target="params=0.4")


def test_a_pattern_has_one_size(tmp_path):
    save_elastic(mlp(), tmp_path / "e", "2:4", [0.5], calibration=ROWS, refit=False)
    assert load(tmp_path / "e", mlp, target="bytes=0.9").plan.request["weights"] == "2:4"
    with pytest.raises(
        ArtifactError, match=r"^[^\n]*target bytes=0.1 cannot be reached: the smallest stored plain size"
    ):
        load(tmp_path / "e", mlp, target="bytes=0.1")
    with pytest.raises(ArtifactError, match=r"2:4 removes 0.5 of the weights, no other share$"):
        load(tmp_path / "e", mlp, **{"2:4": 0.3})


def test_refit_sizes_are_at_their_ratios_only(tmp_path):
    save_elastic(normed(), tmp_path / "e", "filters", [0.25, 0.75], calibration=BATCHES)
    fitted = compress(normed(), filters=0.75, calibration=BATCHES, refit=True).model
    plain = compress(normed(), filters=0.75, calibration=BATCHES, refit=False).model
    for refit, expected in ((None, fitted), (True, fitted), (False, plain)):
        assert_equal(load(tmp_path / "e", normed, filters=0.75, refit=refit).model.state_dict(), expected.state_dict())
    with pytest.raises(ArtifactError, match=r"has refit points at filters = 0.25, 0.75 only; refit=False cuts to any"):
        load(tmp_path / "e", normed, filters=0.5, refit=True)
    with pytest.warns(
        UserWarning, match="between those stored for the ratios 0.25 and 0.75; weights were fitted at 0.25, 0.75"
    ):
        again = load(tmp_path / "e", normed, filters=0.5).model
    assert_equal(
        without_statistics(again), without_statistics(compress(normed(), filters=0.5, example=BATCHES[0]).model)
    )
    assert load(tmp_path / "e", normed, target="params=0.5", refit=True).plan.request["filters"] == 0.75
    with pytest.raises(
        ArtifactError, match=r"target params=0.01 cannot be reached: the smallest stored refit size is 0\.\d+"
    ):
        load(tmp_path / "e", normed, target="params=0.01", refit=True)


def test_a_network_whose_costs_depend_on_values(tmp_path):
    """Its MACs cannot be counted on shapes: those of stored sizes are known, and others say whose they show."""
    torch.manual_seed(0)
    parts = dict(a=nn.Linear(8, 16), b=nn.Linear(16, 4))
    model = Net(lambda n, x: n.b(torch.relu(n.a(x))) * (1 if float(x.sum()) > 1e9 else 2), **parts)
    save_elastic(model, tmp_path / "e", "neurons", [0.25, 0.75], calibration=ROWS, refit=False)
    build_again = lambda: copy.deepcopy(model)  # noqa: E731
    stored = load(tmp_path / "e", build_again, neurons=0.25)
    between = load(tmp_path / "e", build_again, neurons=0.5)
    assert between.costs.macs == stored.costs.macs
    assert between.costs.parameters < stored.costs.parameters
    assert "counted at the ratio 0.25" in str(between)
    assert load(tmp_path / "e", build_again, target="macs=0.6").plan.request["neurons"] == 0.75
    assert load(tmp_path / "e", build_again, target="params=0.6").plan.request["neurons"] not in (0.25, 0.75)


@pytest.mark.parametrize(
    "how", [{"kind": "filters"}, {"kind": "filters", "form": "masked"}, {"kind": "weights"}], ids=str
)
def test_whatever_happens_to_a_loaded_network_the_file_stays(how, tmp_path):
    """Weights that are not cut off are mapped into memory from it."""
    save_elastic(unnormed(), tmp_path / "e", at=[0.5], calibration=BATCHES, refit=False, **how)
    before = (tmp_path / "e" / "model.safetensors").read_bytes()
    small = load(tmp_path / "e", unnormed, **{how["kind"]: 0.5}).model
    with torch.no_grad():
        for tensor in small.state_dict().values():
            tensor.zero_()
    assert (tmp_path / "e" / "model.safetensors").read_bytes() == before
