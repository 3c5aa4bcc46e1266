"""constrain: who gets which region, how large, and what is said about it."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from sparsefw import SFW, Rule, constrain
from sparsefw import geometry as geo
from sparsefw.optim import default_w, initial_norm


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3)
        self.bn = nn.BatchNorm2d(16)
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, groups=4), nn.Conv2d(16, 8, 1))
        self.up = nn.ConvTranspose2d(8, 6, 2)
        self.fc = nn.Linear(6, 10)


def regions_by_name(groups) -> dict[str, geo.Ball | None]:
    return {name: group["region"] for group in groups for name, _ in group["params"]}


CONVS = ["stem.weight", "body.0.weight", "body.1.weight", "up.weight"]


@pytest.mark.parametrize(
    ("what", "constrained", "name"),
    [
        ("filters", CONVS, "GroupKSupportBall"),
        ("rank", CONVS, "SpectralKSupportBall"),
        ("weights", [*CONVS, "fc.weight"], "KSupportBall"),
        ("neurons", ["fc.weight"], "GroupKSupportBall"),
        ("2:4", [*CONVS, "fc.weight"], "NMBall"),
    ],
)
def test_words_name_regions_and_layers(what, constrained, name):
    net = Net()
    regions = regions_by_name(constrain(net, what, k=None if ":" in what else 0.5, w=2.0, report=None))
    assert set(regions) == {n for n, _ in net.named_parameters()}
    assert [n for n, region in regions.items() if region is not None and region.name == name] == constrained or (
        sorted(n for n, r in regions.items() if r is not None) == sorted(constrained)
    )
    assert all(regions[n].name == name for n in constrained)


def test_k_as_count_and_as_fraction():
    net = Net()
    by_fraction = regions_by_name(constrain(net, "filters", k=0.3, w=1.0, report=None))
    assert [by_fraction[n].gauge.k for n in CONVS] == [4, 4, 2, 1]  # floor(.3 * 16), .., floor(.3 * 6)
    by_count = regions_by_name(constrain(net, "filters", k=1, w=1.0, report=None))
    assert [by_count[n].gauge.k for n in CONVS] == [1, 1, 1, 1]
    whole = regions_by_name(constrain(net, "filters", k=1.0, w=1.0, report=None))
    assert [whole[n].gauge.k for n in CONVS] == [16, 16, 8, 6]
    tenths = nn.Sequential(nn.Conv2d(1, 10, 1))
    assert regions_by_name(constrain(tenths, "filters", k=0.3, w=1.0, report=None))["0.weight"].gauge.k == 3


def test_radius_is_w_times_the_norm_of_the_default_initialisation():
    """16 filters: sqrt(16 / 3) whatever the model's own initialisation; and the model is not touched."""
    net = Net()
    nn.init.constant_(net.stem.weight, 7.0)
    before = copy.deepcopy(net.state_dict())
    state = torch.random.get_rng_state()
    regions = regions_by_name(constrain(net, "filters", k=0.5, w=3.0, report=None))
    assert regions["stem.weight"].radius == pytest.approx(3 * math.sqrt(16 / 3))
    assert regions["body.0.weight"].radius == pytest.approx(3 * math.sqrt(16 / 3))
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(6, 32, 3),
        nn.Conv2d(8, 32, 3, groups=2),
        nn.ConvTranspose2d(32, 8, 3),
        nn.Conv1d(4, 64, 5),
        nn.Linear(40, 60),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_closed_form_matches_what_pytorch_draws(module, name):
    torch.manual_seed(0)
    squares = []
    for _ in range(200):
        module.reset_parameters()
        squares.append(float(module.get_parameter(name).detach().square().sum()))
    assert initial_norm(module, name, module.get_parameter(name)) == pytest.approx(
        math.sqrt(sum(squares) / 200), rel=0.05
    )


def test_other_layers_are_measured_on_a_copy():
    embedding, norm = nn.Embedding(50, 20), nn.BatchNorm2d(9)
    nn.init.zeros_(embedding.weight)
    assert initial_norm(embedding, "weight", embedding.weight) == pytest.approx(math.sqrt(1000), rel=0.05)
    assert bool((embedding.weight == 0).all())
    assert initial_norm(norm, "weight", norm.weight) == pytest.approx(3.0)
    assert initial_norm(norm, "bias", norm.bias) == 0  # not the weight's, although their shapes are equal
    with pytest.raises(ValueError, match="no reset_parameters"):
        initial_norm(nn.PReLU.__mro__[1](), "weight", torch.ones(1))


def test_k_sparse_radius_follows_from_the_diameter():
    """D = 2 w ||theta_init|| = 2 r sqrt(k): the radius of the k-sparse polytope shrinks with k, of k-support it does not."""
    net = nn.Sequential(nn.Linear(10, 12))
    for k in (4, 9):
        polytope = regions_by_name(constrain(net, geo.KSparsePolytope, k=k, w=1.0, report=None))
        assert polytope["0.weight"].radius == pytest.approx(math.sqrt(12 / 3) / math.sqrt(k))
        support = regions_by_name(constrain(net, geo.KSupportBall, k=k, w=1.0, report=None))
        assert support["0.weight"].radius == pytest.approx(math.sqrt(12 / 3))


def test_w_of_the_papers_rule_grows_with_the_number_of_steps():
    assert default_w(39_000) == pytest.approx(20)
    assert default_w(390) == pytest.approx(0.2)
    assert default_w(10**6) == 50
    assert [default_w(39, kind=kind) for kind in ("filters", "rank", "weights")] == pytest.approx([0.02, 0.2, 0.4])
    assert default_w(39, normalised=False, kind="weights") == 3


def test_the_table_says_of_every_weight_where_it_is():
    said = []
    net = Net()
    net.fc.bias.requires_grad_(False)
    groups = constrain(net, "filters", k=0.25, w=1.0, report=said.append)
    assert said == [str(groups)]
    lines = said[0].splitlines()
    line = next(row for row in lines if row.startswith("stem.weight"))
    assert line.split() == ["stem.weight", "16x3x3x3", "GroupKSupportBall", "4", "of", "16", "2.309"]
    assert (
        "free, by SGD or AdamW: 6 biases and norms; fc.weight" in lines
    )  # four biases, a scale and an offset of a norm
    assert "frozen, not trained: fc.bias" in lines
    constrained = 16 * 27 + 16 * 4 * 9 + 8 * 16 + 8 * 6 * 4
    free = 16 + 16 * 2 + 16 + 8 + 6 + 60
    assert groups.coverage == pytest.approx(constrained / (constrained + free))
    assert f"regions cover {groups.coverage:.1%} of the {constrained + free:,} weights" in lines


def test_rules_first_match_wins():
    net = Net()
    rules = [
        Rule("stem.*", None),
        Rule("body.*", "rank", k=2, w=5.0),
        Rule("fc.weight", geo.KSparsePolytope, k=3, radius=0.5),
        Rule("bn.weight", geo.KSupportBall, k=0.5),
        Rule("*", "filters"),
    ]
    regions = regions_by_name(constrain(net, rules, k=0.5, w=1.0, report=None))
    assert regions["stem.weight"] is None
    assert regions["body.0.weight"].name == "SpectralKSupportBall"
    assert regions["body.0.weight"].gauge.k == 2
    assert regions["fc.weight"] == geo.KSparsePolytope(3, 0.5)
    assert regions["bn.weight"].radius == pytest.approx(4.0)
    assert regions["up.weight"].name == "GroupKSupportBall"
    assert regions["bn.bias"] is None


def test_transposed_convolutions_are_grouped_by_output_channel():
    net = nn.Sequential(nn.ConvTranspose2d(5, 3, 2))
    groups = constrain(net, "filters", k=1, w=100.0, report=None)
    optimizer = SFW(groups, lr=0.1)
    before = net[0].weight.detach().clone()
    net[0].weight.grad = torch.zeros_like(net[0].weight)
    net[0].weight.grad[:, 1] = 1.0
    net[0].bias.grad = torch.zeros(3)
    optimizer.step()
    eta = optimizer.diagnostics()[0].step_size
    for channel in (0, 2):
        torch.testing.assert_close(net[0].weight.detach()[:, channel], (1 - eta) * before[:, channel])
    assert not torch.allclose(net[0].weight.detach()[:, 1], (1 - eta) * before[:, 1])


def test_tied_weights_are_listed_once():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    groups = constrain(net, "neurons", k=1, w=1.0, report=None)
    assert [name for g in groups for name, _ in g["params"]] == ["0.weight", "0.bias", "1.bias"]
    SFW(groups)


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("filter", dict(k=0.2, w=1.0), "did you mean 'filters'"),
        ("filters", dict(k=0.2), "give steps, .*or w"),
        ("filters", dict(w=1.0), "give steps"),
        ("filters", dict(k=0.0, w=1.0), r"k=0.0 as a fraction must be in \(0, 1\]"),
        ("filters", dict(k=1.5, w=1.0), "write an int for a count"),
        ("filters", dict(k=17, w=1.0), "between 1 and the 16"),
        ("filters", dict(k=0, w=1.0), "between 1 and the 16"),
        ("filters", dict(k=True, w=1.0), "k must be an int"),
        ("filters", dict(k="0.2", w=1.0), "k must be an int"),
        ("filters", dict(k=0.2, steps=0), "steps must be an int"),
        ("3:2", dict(w=1.0), "a pattern is N:M with 0 < N < M"),
        ([Rule("bodi.*", "filters")], dict(k=0.2, w=1.0), "did you mean 'body"),
        ([Rule("bn.*", "filters")], dict(k=0.2, w=1.0), "none of bn.weight, bn.bias is the weight of a Conv1d"),
        ([Rule("bn.bias", geo.KSupportBall)], dict(k=0.2, w=1.0), "starts at zero"),
        ([Rule("body.*weight", "filters", coupled=True)], dict(k=0.2, w=1.0), "same length along their group axis"),
    ],
)
def test_bad_requests_are_one_clear_line(what, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        SFW(constrain(Net(), what, report=None, **options))
    assert "\n" not in str(caught.value)


def test_a_model_without_such_layers_is_an_error():
    with pytest.raises(ValueError, match="is the weight of a Conv1d"):
        constrain(nn.Sequential(nn.Linear(3, 3)), "filters", k=0.2, w=1.0)


def test_n_m_blocks_run_along_the_inputs_also_of_transposed_convolutions():
    net = nn.Sequential(nn.ConvTranspose2d(8, 12, 3))
    region = regions_by_name(constrain(net, "2:4", w=1.0, report=None))["0.weight"]
    v = region.lmo(torch.randn(8, 12, 3, 3))
    assert bool(((v != 0).unflatten(0, (2, 4)).sum(1) == 2).all())


def test_layers_on_which_a_word_makes_no_sense_are_left_out_and_listed():
    net = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1), nn.ConvTranspose2d(8, 16, 3, groups=4))
    groups = constrain(net, "2:4", w=1.0, report=None)
    regions = regions_by_name(groups)
    assert regions["0.weight"] is None
    assert regions["1.weight"] is not None
    assert "1 input channels: nothing to choose" in str(groups)
    groups = constrain(net, "filters", k=0.25, w=1.0, report=None)
    assert regions_by_name(groups)["2.weight"] is None
    assert "grouped transposed" in str(groups)


def test_a_word_means_weights_whatever_the_types():
    net = nn.Sequential(nn.Linear(6, 5))
    regions = regions_by_name(constrain(net, [Rule("*", "rank", k=2, types=(nn.Linear,))], w=1.0, report=None))
    assert regions["0.weight"].name == "SpectralKSupportBall"
    assert regions["0.bias"] is None


def test_rank_means_the_layers_that_compression_splits():
    """Convolutions and linear layers, but for the output and for matrices of rank 1, with every step-size rule."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(8, 6), nn.Linear(6, 1), nn.Linear(1, 4)
    )  # fmt: skip
    for how in (dict(steps=10_000), dict(k=0.5, w=1.0)):
        groups = constrain(net, "rank", report=None, **how)
        constrained = {name for name, region in regions_by_name(groups).items() if region is not None}
        assert constrained == {"0.weight", "3.weight"}
        reasons = {free.name: free.reason for free in groups.free}
        assert reasons["1.weight"] == reasons["4.weight"]
        assert "rank 1" in reasons["1.weight"]
        assert reasons["5.weight"] == "taken for the output"


def test_the_only_linear_layer_of_a_rule_is_not_taken_for_the_output():
    assert regions_by_name(constrain(nn.Linear(6, 5), "rank", k=2, w=1.0, report=None))["weight"] is not None
    named = [Rule("fc.weight", "rank", k=2), Rule("*", "rank", k=1)]
    assert regions_by_name(constrain(Net(), named, w=1.0, report=None))["fc.weight"] is not None


def test_tied_weights_are_found_under_every_name():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10, 6)
            self.out = nn.Linear(6, 10, bias=False)
            self.out.weight = self.embedding.weight

    net = Tied()
    for what in ("neurons", [Rule("out.weight", "neurons")]):
        groups = constrain(net, what, k=0.5, w=1.0, report=None)
        assert groups[0]["region"].radius == pytest.approx(math.sqrt(10 / 3))
        assert "embedding.weight = out.weight" in str(groups)


def test_footer_names_the_w_that_was_used():
    mixed = constrain(Net(), [Rule("stem.*", "filters", w=2.0), Rule("*", "filters")], k=0.2, w=9.0, report=None)
    assert mixed.notes == ["w = 2 and 9"]
    only = constrain(Net(), [Rule("*", "filters", w=2.0)], k=0.2, w=9.0, report=None)
    assert only.notes == ["w = 2"]


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("2:4", dict(k=0.3, w=1.0), "2:4 takes no k"),
        ("filters", dict(renewals=3, w=1.0), "renewals=3 has no effect without steps"),
        ("filters", dict(k=0.5, w="from-weights"), "has no effect without steps"),
        ("filters", dict(steps=0), "steps must be an int of at least 1"),
        ("filters", dict(steps=True), "steps must be an int"),
        ("filters", dict(steps=10, renewals=0), "renewals must be a number above 0"),
        ("filters", dict(steps=10, renewals=101), "at most 100"),
        ("filters", dict(steps=10, renewals=float("nan")), "renewals must be a number"),
        ("filters", dict(steps=10, renewals="5"), "renewals must be a number"),
        ("filters", dict(k=0.2, steps="100"), "steps must be an int"),
        ("filters", dict(k=0.2, w=-1.0), "w must be a positive"),
        ("filters", dict(k=0.2, w="2"), "w must be a positive"),
        (None, dict(k=0.2, w=1.0), "what to constrain must be one of"),
        (["filters"], dict(k=0.2, w=1.0), "what to constrain must be one of"),
        ([], dict(k=0.2, w=1.0), "what to constrain must be one of"),
        (geo.KSupportBall(3), dict(w=1.0), "kind is a region already"),
        (geo.LpBall, dict(w=1.0), "LpBall needs p too"),
        ([Rule("fc.weight", geo.Simplex)], dict(w=1.0), "Simplex makes no ball"),
        ([Rule("*", None), Rule("stem.weight", "filters", k=0.2)], dict(w=1.0), "an earlier rule takes everything"),
    ],
)
def test_requests_that_would_be_ignored_or_fail_late_are_refused(what, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        constrain(Net(), what, report=None, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rule("a", None, k=0.2), "has no kind"),
        (lambda: Rule("a", "filters", w=1.0, radius=2.0), "give one"),
        (lambda: Rule("a", geo.GroupLassoBall, k=0.3), "takes no k"),
        (lambda: Rule("a", "filters", types="Linear"), "tuple of module classes"),
    ],
)
def test_contradictory_rules_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rule_alone_and_a_model_that_is_none():
    assert (
        regions_by_name(constrain(Net(), Rule("stem.*", "filters"), k=0.5, w=1.0, report=None))["stem.weight"]
        is not None
    )
    with pytest.raises(ValueError, match=r"needs a torch\.nn\.Module"):
        constrain(Net().parameters(), "filters", k=0.2, w=1.0)
    frozen = Net().requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        constrain(frozen, "filters", k=0.2, w=1.0)


def test_chosen_free_parameters_have_no_decay():
    net = Net()
    groups = constrain(net, "filters", steps=1000, report=None)
    split = groups.without_decay(name for name, p in net.named_parameters() if p.ndim == 1)
    assert regions_by_name(split) == regions_by_name(groups)
    assert str(split) == str(groups)
    optimizer = SFW(split, weight_decay=0.1)
    decay = {name: group["weight_decay"] for group in optimizer.param_groups for name in group["param_names"]}
    assert decay["fc.weight"] == 0.1
    assert {decay[name] for name in ("fc.bias", "bn.weight", "stem.bias")} == {0.0}
    with pytest.raises(ValueError, match=r"^no parameter of these groups is named fc\.bais$"):
        groups.without_decay(["fc.bais"])
