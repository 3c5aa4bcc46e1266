"""Scores of channels, by hand on layers of two filters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from sparsefw.compression import compress
from sparsefw.compression.artifact.plan import Keep
from sparsefw.compression.recovery.calibration import Calibration
from sparsefw.compression.score import Observed, observe, readers_of, scores_of
from sparsefw.compression.structure.attention import PlainAttention
from sparsefw.compression.structure.channels import Channels, Side, Site
from sparsefw.compression.structure.trace import find_channels

NOTHING = Observed({}, {})
CPU = torch.device("cpu")


def each(count: int) -> tuple[tuple[int, ...], ...]:
    return tuple((i,) for i in range(count))


def score(name: str, model: nn.Module, *sites: Site, observed: Observed = NOTHING) -> list[float]:
    (scores,) = scores_of(name, model, [Channels(sites, (0,) * len(sites[0].slots))], observed)
    return scores.tolist()


def with_weight(layer: nn.Module, values: list) -> nn.Module:
    layer = layer.double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(values, dtype=torch.float64).view(layer.weight.shape))
    return layer


def model(**layers: nn.Module) -> nn.Module:
    return nn.ModuleDict(layers)


WRITES = Site("a", Side.OUT, each(2))


@pytest.mark.parametrize(
    "layer, values",
    [
        (nn.Linear(2, 2), [[3, -4], [1, 0]]),
        (nn.Conv2d(1, 2, (1, 2)), [[3, -4], [1, 0]]),
        (nn.Conv1d(2, 2, 2, groups=2), [[3, -4], [1, 0]]),
        (nn.ConvTranspose1d(2, 2, 1), [[3, 1], [-4, 0]]),  # stored as (inputs, outputs, kernel)
        (nn.ConvTranspose1d(2, 2, 2, groups=2), [[3, -4], [1, 0]]),
    ],
    ids=lambda v: str(v),
)
def test_norms_of_filters(layer, values):
    net = model(a=with_weight(layer, values))
    assert score("l1", net, WRITES) == [7, 1]
    assert score("l2", net, WRITES) == [5, 1]


def test_biases_do_not_count():
    layer = with_weight(nn.Linear(2, 2), [[3, -4], [1, 0]])
    nn.init.constant_(layer.bias, 100.0)
    assert score("l1", model(a=layer), WRITES) == [7, 1]


def normed(**options) -> nn.Module:
    norm = nn.BatchNorm1d(2, eps=1.0, **options).double()
    if norm.affine:
        norm.weight.data = torch.tensor([4.0, -6.0], dtype=torch.float64)
    if norm.running_var is not None:
        norm.running_var = torch.tensor([3.0, 8.0], dtype=torch.float64)
    return model(a=with_weight(nn.Linear(2, 2), [[3, -4], [1, 0]]), n=norm)


@pytest.mark.parametrize(
    "options, expected",
    [
        (dict(), [5 * 4 / 2, 1 * 6 / 3]),
        (dict(affine=False), [5 / 2, 1 / 3]),
        (dict(track_running_stats=False), [4, 6]),  # always of deviation 1, whatever the filter
    ],
)
def test_norms_of_filters_are_scaled_by_batch_norm(options, expected):
    behind = Observed({"a": "n"}, {})
    assert score("bn", normed(**options), WRITES, observed=behind) == pytest.approx(expected)
    assert score("bn", normed(**options), WRITES) == [5, 1]  # no batch norm follows


def test_several_writers_are_put_on_one_scale():
    net = model(a=with_weight(nn.Linear(1, 2), [1, 3]), b=with_weight(nn.Linear(1, 2), [100, 100]))
    assert score("l1", net, WRITES, Site("b", Side.OUT, each(2))) == [0.5 + 1, 1.5 + 1]
    crossed = Site("b", Side.OUT, ((1,), (0,)))
    net["b"].weight.data[0] = 300
    assert score("l1", net, WRITES, crossed) == [0.5 + 0.5, 1.5 + 1.5]


def test_a_silent_writer_divides_nothing_by_zero():
    net = model(a=with_weight(nn.Linear(1, 2), [1, 3]), b=with_weight(nn.Linear(1, 2), [0, 0]))
    assert score("l1", net, WRITES, Site("b", Side.OUT, each(2))) == [0.5, 1.5]


def test_activation_is_the_share_in_the_readers_inputs():
    """||W[:, j]||^2 E[x_j^2]: columns 1 and 5, mean squares 5 and 4, so 5 and 20 of 25."""
    net = model(a=nn.Linear(2, 2), r=with_weight(nn.Linear(2, 2), [[1, 2], [0, 1]]))
    seen = Observed({}, {"r": torch.tensor([5.0, 4.0], dtype=torch.float64)})
    reads = Site("r", Side.IN, each(2))
    assert score("activation", net, WRITES, reads, observed=seen) == pytest.approx([0.2, 0.8])


def test_shares_of_several_readers_are_added():
    net = model(
        a=nn.Linear(2, 2),
        r=with_weight(nn.Linear(2, 1), [1, 3]),
        s=with_weight(nn.Conv2d(4, 2, 1, groups=2), [[1, 1], [2, 1]]),
    )
    energy = {"r": torch.tensor([1.0, 1.0]).double(), "s": torch.tensor([1.0, 2.0, 3.0, 4.0]).double()}
    reads = Site("r", Side.IN, each(2)), Site("s", Side.IN, ((0, 3), (1, 2)))  # each channel arrives at two inputs of s
    got = score("activation", net, WRITES, *reads, observed=Observed({}, energy))
    assert got == pytest.approx([1 / 10 + 5 / 19, 9 / 10 + 14 / 19])


def test_transposed_readers():
    """Stored as (inputs, outputs, kernel)."""
    net = model(a=nn.Linear(2, 2), r=with_weight(nn.ConvTranspose1d(2, 1, 2), [[1, 1], [1, 2]]))
    seen = Observed({}, {"r": torch.ones(2, dtype=torch.float64)})
    assert score("activation", net, WRITES, Site("r", Side.IN, each(2)), observed=seen) == pytest.approx([2 / 7, 5 / 7])


def test_channels_that_no_layer_reads_are_scored_by_their_norm():
    net = model(a=with_weight(nn.Linear(2, 2), [[3, -4], [1, 0]]))
    assert score("activation", net, WRITES) == [5, 1]


@pytest.mark.parametrize("name, expected", [("l1", [6, 14]), ("l2", [math.sqrt(10) + 2, math.sqrt(41) + 5])])
def test_heads_are_scored_by_their_columns_of_the_projection(name, expected):
    block = PlainAttention(2, 2, 2).double()
    with_weight(block.proj, [[1, 2, 4, 5], [3, 0, 5, 0]])
    rows = Site("b.value", Side.OUT, ((0, 1), (2, 3)))
    heads = Channels((rows, Site("b.proj", Side.IN, rows.slots)), (0, 0), is_heads=True)
    (scores,) = scores_of(name, model(b=block), [heads], Observed({}, {}))
    assert scores.tolist() == pytest.approx(expected)


# What is observed


def test_the_norm_behind_a_layer_and_the_mean_square_of_inputs():
    net = nn.Sequential(
        nn.Linear(2, 2, bias=False), nn.BatchNorm1d(2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU(), nn.BatchNorm1d(2)
    ).double()
    with_weight(net[0], [[1, 0], [0, 2]])
    net.eval()
    net[1].eps = 0.0
    batches = [torch.tensor([[1.0, 1.0]]).double(), torch.tensor([[3.0, -1.0], [0.0, 0.0]]).double()]
    seen = observe(net, batches[0], Calibration(batches, CPU))
    assert seen.batch_norm == {"0": "1"}  # the second one follows an activation
    assert seen.energy["0"].tolist() == pytest.approx([10 / 3, 2 / 3])
    assert seen.energy["3"].tolist() == pytest.approx([10 / 3, 4 / 3])  # after ReLU: 1, 3, 0 and 2, 0, 0
    assert observe(net, batches[0], None).energy == {}
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())


def test_positions_of_a_feature_map_count_alike():
    net = nn.Sequential(nn.Conv2d(2, 1, 1)).double()
    x = torch.zeros(1, 2, 2, 2).double()
    x[0, 0] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    x[0, 1, 0, 0] = 2.0
    assert observe(net, x, Calibration([x], CPU)).energy["0"].tolist() == [30 / 4, 4 / 4]


class TwoHalves(nn.Module):
    """The halves of one layer's output go to different readers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Conv2d(1, 4, 1), nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 1)
        self.head = nn.Conv2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.stem(x).chunk(2, dim=1)
        return self.head(torch.relu(self.left(left) + self.right(right)))


def test_readers_of_parts_of_a_layer():
    x = torch.randn(2, 1, 4, 4)
    found = {site.layer: site.slots for site in readers_of(find_channels(TwoHalves(), x), "stem", 4)}
    assert found == {"left": ((0,), (1,), (), ()), "right": ((), (), (0,), (1,))}
    small = compress(TwoHalves(), filters=0.5, form="masked", score="activation", calibration=[x], refit=False)
    assert int((small.model.stem.weight.flatten(1).norm(dim=1) == 0).sum()) == 2


def test_rows_that_are_added_arrive_at_the_same_place():
    added = Channels((Site("a", Side.OUT, ((0, 2), (1, 3))), Site("r", Side.IN, ((0,), (1,)))), (0, 0))
    assert readers_of([added], "a", 4) == (Site("r", Side.IN, ((0,), (1,), (0,), (1,))),)
    assert readers_of([added], "r", 4) == ()


# What is removed first


@pytest.mark.parametrize("form", ["removed", "masked"])
def test_channels_with_small_scores_go_first(form):
    """By size the first filter matters most; what its reader makes of it matters least."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), nn.ReLU(), nn.Conv2d(3, 2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([3.0, 2.0, 1.0]).view(3, 1, 1, 1))
        net[2].weight.copy_(torch.tensor([[0.01, 1.0, 3.0]] * 2).view(2, 3, 1, 1))
    x = [torch.rand(4, 1, 2, 2)]

    def kept(name: str) -> list[int]:
        small = compress(net, filters=0.34, form=form, score=name, calibration=x, refit=False)
        if form == "masked":
            return small.model[0].weight.flatten().nonzero().flatten().tolist()
        return next(list(e.kept) for e in small.plan.edits if isinstance(e, Keep) and e.side == "out")

    assert kept("l1") == kept("l2") == kept("bn") == [0, 1]
    assert kept("activation") == [1, 2]


def test_activation_needs_data():
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(ValueError, match=r"^score='activation' needs calibration=$"):
        compress(net, filters=0.5, score="activation", example=torch.zeros(1, 2))
