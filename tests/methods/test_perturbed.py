"""Methods with two passes: the weights of the second pass and its use, on a loss with a known gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from methods.by_hand import Bowl, gradient_of, layer
from sparsefw.config_base import ConfigError
from sparsefw.geometry.select import without_smallest_mask
from sparsefw.methods import SAM, Batch, CrAM, method_from
from train.harness import step_of

START = [[3.0, 0.0], [0.0, 4.0]]
ORIGIN = [[0.0, 0.0], [0.0, 0.0]]


def close(actual, expected) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=1e-5, atol=1e-6)


class TestSAM:
    @pytest.mark.parametrize("scale", [1.0, 1024.0])
    def test_by_hand(self, scale):
        """At (3, 4) the gradient is (3, 4) itself, of norm 5: rho = 0.5 goes on by (0.3, 0.4), where it is (3.3, 4.4)."""
        net = layer(START)
        bowl = Bowl(net, ORIGIN, scale=scale)
        close(gradient_of(SAM(rho=0.5), net, bowl), [[3.3, 0], [0, 4.4]])
        close(bowl.evaluated_at[1], [[3.3, 0], [0, 4.4]])
        close(net[0].weight.detach().flatten(1), START)

    def test_at_a_stationary_point_it_stays(self):
        net = layer(START)
        close(gradient_of(SAM(), net, Bowl(net, START)), ORIGIN)

    def test_without_rho_it_is_the_gradient(self):
        net = layer(START)
        close(gradient_of(SAM(rho=0.0), net, Bowl(net, ORIGIN)), START)


class TestCrAM:
    @pytest.mark.parametrize("scale", [1.0, 1024.0])
    @pytest.mark.parametrize("plus", [False, True])
    @pytest.mark.parametrize("kind", ["weights", "filters", "rank"])
    def test_by_hand(self, kind, plus, scale):
        """From (3, 4) on to (3.3, 4.4); of two, the smaller goes: the second gradient is that of (0, 4.4) where it was left."""
        net = layer([[3.0], [4.0]]) if kind == "weights" else layer(START)
        method = CrAM(kind=kind, ratios=(0.5,), rho=0.1, plus=plus)
        bowl = Bowl(net, [[1.0], [0.0]] if kind == "weights" else [[1.0, 0.0], [0.0, 0.0]], scale=scale)
        gradient = gradient_of(method, net, bowl)  # that of the first pass is (2, 4)
        perturbed = [3.0 + 0.2, 4.4]
        if kind == "weights":
            close(bowl.evaluated_at[1], [[0.0], [perturbed[1]]])
            close(gradient, [[2.0 * plus], [4.4 + 4.0 * plus]])
        else:
            close(bowl.evaluated_at[1], [[0, 0], [0, perturbed[1]]])
            close(gradient, [[2.0 * plus, 0], [0, 4.4 + 4.0 * plus]])

    def test_weights_go_globally_and_filters_and_rank_in_each_layer(self):
        """The second layer is a million times smaller: all of it goes with the smaller half of all weights."""
        torch.manual_seed(0)
        kept = {}
        for kind in ("weights", "filters", "rank"):
            net = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.Conv2d(4, 4, 1, bias=False))
            with torch.no_grad():
                net[1].weight.mul_(1e-6)
            CrAM(kind=kind, ratios=(0.5,))._compress(net)
            kept[kind] = net
        assert [int((m.weight != 0).sum()) for m in kept["weights"]] == [16, 0]
        assert [int((m.weight.flatten(1) != 0).any(-1).sum()) for m in kept["filters"]] == [2, 2]
        assert [int(torch.linalg.matrix_rank(m.weight.flatten(1))) for m in kept["rank"]] == [2, 2]

    def test_weights_of_layers_of_different_shapes_are_ranked_together(self):
        net = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.Conv2d(4, 2, 1, bias=False))
        with torch.no_grad():
            net[1].weight.mul_(1e-6)
        CrAM(kind="weights", ratios=(8 / 24,))._compress(net)
        assert [int((m.weight != 0).sum()) for m in net] == [16, 0]

    def test_filters_are_ranked_by_their_sums_and_not_by_their_lengths(self):
        """(2, 2) has the larger sum, (0, 3) the larger length."""
        net = layer([[2.0, 2.0], [0.0, 3.0]])
        CrAM(kind="filters", ratios=(0.5,))._compress(net)
        close(net[0].weight.detach().flatten(1), [[2.0, 2.0], [0.0, 0.0]])

    def test_gradients_of_a_low_rank_are_projected_onto_the_left_singular_vectors(self):
        """4 u v^T + u' v'^T with u = (.6, .8), v = (1, 0); where u' is gone, the gradient 4 u v^T + (1, 0) (0, 1)^T keeps
        its part along u: u (u^T (1, 0)) (0, 1)^T = .6 u (0, 1)^T."""
        net = layer([[2.4, -0.8], [3.2, 0.6]])
        gradient = gradient_of(
            CrAM(kind="rank", ratios=(0.5,), rho=0.0, plus=False), net, Bowl(net, [[0.0, -1.0], [0.0, 0.0]])
        )
        close(gradient, [[2.4, 0.36], [3.2, 0.48]])

    def test_fractions_are_exact_despite_rounding(self):
        """0.29 * 100 is 28.999999999999996 in floats: 29 go."""
        net = layer([[float(i + 1) for i in range(100)]])
        CrAM(kind="weights", ratios=(0.29,))._compress(net)
        assert int((net[0].weight == 0).sum()) == 29

    def test_exactly_k_go_on_ties_and_one_always_stays(self):
        net = nn.Sequential(nn.Conv2d(3, 5, 1, bias=False))
        nn.init.ones_(net[0].weight)
        CrAM(kind="filters", ratios=(0.6,))._compress(net)
        assert int((net[0].weight != 0).flatten(1).any(-1).sum()) == 2
        CrAM(kind="filters", ratios=(0.99,))._compress(net)
        assert int((net[0].weight != 0).flatten(1).any(-1).sum()) == 1

    @pytest.mark.parametrize("removed", [0, 1, 3, 5])
    def test_on_a_gpu_units_are_chosen_by_sorting(self, removed):
        """A step on a GPU never waits for the number of removed units; of equal ones the first are removed."""
        magnitudes = torch.tensor([[3.0, 1.0, 2.0, 5.0, 4.0, 0.0], [7.0, 7.0, 7.0, 7.0, 7.0, 9.0]])
        order = [[5, 1, 2, 0, 4, 3], [0, 1, 2, 3, 4, 5]]  # from the smallest on
        expected = torch.ones(2, 6)
        for row, places in enumerate(order):
            expected[row, places[:removed]] = 0
        assert torch.equal(without_smallest_mask(magnitudes, torch.tensor(float(removed))).to(expected), expected)

    def test_every_step_draws_a_ratio(self):
        def counts(seed: int) -> list[int]:
            torch.manual_seed(seed)
            kept = []
            for _ in range(20):
                net = nn.Sequential(nn.Conv2d(10, 1, 1, bias=False))
                CrAM(kind="weights", ratios=(0.2, 0.5, 0.9))._compress(net)
                kept.append(int((net[0].weight != 0).sum()))
            return kept

        assert set(counts(0)) == {8, 5, 1}
        assert counts(0) == counts(0) != counts(1)

    @pytest.mark.parametrize("ratios", [[], [1.0], [-0.1]])
    def test_wrong_ratios_are_refused(self, ratios):
        with pytest.raises(ConfigError, match="ratios"):
            method_from({"name": "cram", "ratios": ratios})


class Branches(nn.Module):
    """Uses one branch in odd calls and the other in even ones; a third never; counts its calls in another tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.odd, self.even, self.idle = (nn.Conv2d(1, 4, 3) for _ in range(3))
        self.head = nn.Linear(144, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        branch = self.odd if int(self.calls) % 2 else self.even
        return self.head(branch(x).relu().flatten(1))


@pytest.mark.parametrize("method", [SAM(), CrAM(), CrAM(kind="filters"), CrAM(kind="rank")], ids=str)
def test_layers_that_a_pass_does_not_use(method):
    """Weights without a gradient do not move, gradients stay with their parameters, buffers are those of the first pass."""
    net = Branches()
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    step = step_of(net, method, 3, settings={"momentum": 0.0, "weight_decay": 0.0})
    step(batch())
    after = dict(net.named_parameters())
    moved = {name for name, p in before.items() if not torch.equal(p, after[name])}
    odd = {"odd.weight", "odd.bias"} if isinstance(method, CrAM) else set()  # CrAM+ adds the gradient of the first pass
    assert moved == {"even.weight", "even.bias", "head.weight", "head.bias"} | odd or moved == {
        "head.weight", "head.bias", *odd
    }  # fmt: skip
    assert int(net.calls) == 1


def test_weights_are_restored_where_a_pass_fails():
    net = layer(START)

    class Fails(Bowl):
        def __call__(self, batch):
            if self.evaluated_at:
                raise RuntimeError("in the second pass")
            return super().__call__(batch)

    with pytest.raises(RuntimeError, match="second pass"):
        gradient_of(SAM(rho=0.5), net, Fails(net, ORIGIN))
    close(net[0].weight.detach().flatten(1), START)


def test_an_overflow_in_the_first_pass_shows_in_the_gradient():
    """As GradScaler must see it, to skip the step."""
    net = layer(START)
    gradient = gradient_of(CrAM(kind="rank", ratios=(0.5,), plus=False), net, Bowl(net, [[math.inf, 0.0], [0.0, 0.0]]))
    assert not bool(gradient.isfinite().all())


def noisy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def batch() -> Batch:
    draw = torch.Generator().manual_seed(0)
    return Batch(torch.randn(8, 1, 8, 8, generator=draw), torch.randint(3, (8,), generator=draw))


@pytest.mark.parametrize("method", [SAM(rho=5.0), CrAM(rho=5.0), CrAM(kind="filters"), CrAM(kind="rank")], ids=str)
def test_norms_keep_the_statistics_of_the_first_pass(method):
    plain, twice = noisy(), noisy()
    plain(batch().inputs)
    step_of(twice, method, 3)(batch())
    for (name, a), b in zip(plain.named_buffers(), twice.buffers(), strict=True):
        assert torch.equal(a, b), name


def test_the_second_gradient_is_that_of_an_independent_computation():
    """On a real network, SAM's step agrees with autograd at weights that were moved by hand."""
    net, twin = noisy(), noisy()
    step = step_of(net, SAM(rho=0.2), 3, settings={"momentum": 0.0, "weight_decay": 0.0, "lr": 1.0, "rest_lr": 1.0})
    before = [p.detach().clone() for p in net.parameters()]
    step(batch())
    loss = nn.functional.cross_entropy(twin(batch().inputs), batch().targets)
    g = torch.autograd.grad(loss, list(twin.parameters()))
    length = math.sqrt(sum(float(part.square().sum()) for part in g))
    with torch.no_grad():
        for p, part in zip(twin.parameters(), g, strict=True):
            p.add_(part, alpha=0.2 / length)
    loss = nn.functional.cross_entropy(twin(batch().inputs), batch().targets)
    for b, p, part in zip(before, net.parameters(), torch.autograd.grad(loss, list(twin.parameters())), strict=True):
        torch.testing.assert_close(b - p.detach(), part, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_batch_in_parts_counts_as_a_whole(accumulate):
    """In a network without norms, parts add up, and the second pass is at the weights of the whole batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    step_of(net, SAM(rho=0.5), 3, accumulate=accumulate)(batch())
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    step_of(whole, SAM(rho=0.5), 3)(batch())
    for a, b in zip(net.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
