"""The horizon rule and its defaults: shares by hand, regions around the weights as given, what is chosen and what is said."""

from __future__ import annotations

import copy
import io
import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from catalog import gaussian
from sparsefw import SFW, Rule, constrain
from sparsefw import geometry as geo
from sparsefw.optim import Gradient, Horizon, SFWWarning, Unscaled, initial_norm
from sparsefw.optim.defaults import default_k, has_scale_free_convolutions
from sparsefw.optim.radius import equilibrium_length

KINDS = ["filters", "rank", "weights", "neurons", "2:4"]


def cnn(width: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip


def train(model: nn.Module, optimizer: SFW, steps: int, start: int = 0) -> None:
    for step in range(start, start + steps):
        optimizer.zero_grad()
        x, y = gaussian((8, 3, 6, 6), step, torch.float32), torch.arange(8) % 10
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


def one(region: geo.Ball, rule: Horizon, theta: torch.Tensor, lr: float = 0.1) -> tuple[nn.Parameter, SFW]:
    p = nn.Parameter(theta.clone())
    return p, SFW([{"params": [p], "region": region, "rescale": rule}], lr=lr)


# --- the rule -----------------------------------------------------------------------------------------------------------


def test_shares_fall_to_zero_and_add_up_to_the_renewals():
    """T = 200, R = 1: eta_t = 0.01 (1 - t / 200), which sums to 1.005; what is never chosen decays by their product."""
    p, optimizer = one(geo.KSupportBall(1, 2.0), Horizon(200, 1.0), torch.tensor([0.0, 1.0], dtype=torch.float64))
    left = 1.0
    for t in range(200):
        p.grad = torch.tensor([3.0, 1.0], dtype=torch.float64)
        optimizer.step()
        eta = 0.01 * (1 - t / 200)
        left *= 1 - eta
        assert optimizer.diagnostics()[0].step_size == pytest.approx(eta, rel=1e-12)
        assert p.tolist() == pytest.approx([-2 * (1 - left), left], rel=1e-12)
    assert optimizer.progress().renewed == pytest.approx(1.005)
    assert left == pytest.approx(math.exp(-1.005), rel=0.01)


def test_gradients_of_any_scale_give_the_same_steps():
    ends = []
    for scale in (1.0, 1e6, 1e-6):
        p, optimizer = one(geo.GroupKSupportBall(2, 3.0), Horizon(20, 0.3), gaussian((5, 4), 0))
        for t in range(20):
            p.grad = scale * gaussian((5, 4), t + 1)
            optimizer.step()
        ends.append(p.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(ends[0], ends[2], rtol=1e-9, atol=1e-12)


def test_the_lower_of_schedule_and_horizon_counts():
    """A warm-up and a fast decay are followed; a learning rate above the first one is not."""
    p, optimizer = one(geo.LpBall(2, 3.0), Horizon(100, 1.0), gaussian((4,), 0), lr=0.2)
    for t, lr, expected in ((0, 0.02, 0.1), (1, 0.2, 0.99), (2, 5.0, 0.98), (3, 0.1, 0.5), (4, 0.0, 0.0)):
        optimizer.param_groups[0]["lr"] = lr
        p.grad = gaussian((4,), t)
        optimizer.step()
        assert optimizer.diagnostics()[0].step_size == pytest.approx(0.02 * expected, rel=1e-9), t


def test_the_first_learning_rate_is_that_of_the_group_and_must_be_above_0():
    p = nn.Parameter(gaussian((4,), 0))
    group = {"params": [p], "region": geo.LpBall(2, 9.0), "rescale": Horizon(10, 0.1), "lr": 0.5}
    optimizer = SFW([group], lr=0.1)
    assert optimizer.param_groups[0]["rescale"].full_lr == 0.5
    with pytest.raises(
        ValueError, match=r"lr=0\.0: must be above 0, since step sizes are counted from it; give SFW the highest"
    ):
        SFW([{"params": [p], "region": geo.LpBall(2, 9.0), "rescale": Horizon(10, 0.1)}], lr=0.0)


def test_masked_steps_use_up_no_horizon(monkeypatch):
    monkeypatch.setattr("sparsefw.optim.nonfinite.on_host", lambda device: False)
    p = nn.Parameter(torch.ones(2, 2))
    group = {"params": [p], "region": geo.GroupKSupportBall(1, 9.0), "rescale": Horizon(10, 0.1)}
    optimizer = SFW([group], on_nonfinite="skip")
    for value, expected in ((1.0, 0.02), (float("nan"), 0.0), (1.0, 0.018)):
        p.grad = torch.full((2, 2), value)
        optimizer.step()
        assert float(optimizer.step_sizes()[0]) == pytest.approx(expected)


def test_more_steps_than_announced_are_told_once_and_the_rate_stays():
    p, optimizer = one(geo.LpBall(2, 3.0), Horizon(5, 0.05), gaussian((4,), 0))
    said = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for t in range(12):
            p.grad = gaussian((4,), t)
            optimizer.step()
            said.append(len(caught))
    assert said == [0] * 5 + [1] * 7
    assert "more than the announced steps=5" in str(caught[0].message)
    assert optimizer.diagnostics()[0].step_size == pytest.approx(0.02 / 5)  # as in the last announced step


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_in_the_middle_it_goes_on_bit_for_bit(kind):
    torch.manual_seed(0)
    model = cnn()
    twin = copy.deepcopy(model)
    whole = SFW(constrain(model, kind, steps=12, report=None))
    train(model, whole, 12)
    first = SFW(constrain(twin, kind, steps=12, report=None))
    groups = [list(group["params"]) for group in first.param_groups]
    train(twin, first, 6)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    second = SFW([{"params": g, "region": None} for g in groups])
    second.load_state_dict(torch.load(buffer, weights_only=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SFWWarning)  # twelve steps were announced, and twelve are taken
        train(twin, second, 6, start=6)
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
    assert second.progress() == whole.progress()


# --- regions around the weights as given ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "rho"), [(0.002, 0.9), (0.01, 0.9), (0.01, 0.5), (0.01, 0.0)])
def test_weights_under_noise_stay_as_long_as_they_are(share, rho):
    """White gradients, a constant share: E ||theta||^2 settles at the norm that the radius was made for."""
    given = 2.0
    region = geo.LpBall(2, equilibrium_length(given, share, rho))
    theta = gaussian((400,), 0)
    p = nn.Parameter(given * theta / theta.norm())
    optimizer = SFW([{"params": [p], "region": region, "rescale": Unscaled()}], lr=share, momentum=rho)
    lengths = []
    for t in range(int(8 / share)):
        p.grad = gaussian((400,), t + 1)
        optimizer.step()
        if t > 3 / share:
            lengths.append(float(p.detach().norm()))
    assert sum(lengths) / len(lengths) == pytest.approx(given, rel=0.08)


@pytest.mark.parametrize("steps", [1, 150, 40_000])
@pytest.mark.parametrize("kind", KINDS)
def test_building_the_optimizer_changes_nothing(kind, steps):
    """Of networks that have been trained, or start from tiny or huge weights, with any k."""
    for scale in (1.0, 0.05, 40.0):
        model = cnn()
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(scale)
        before = copy.deepcopy(model.state_dict())
        with warnings.catch_warnings():
            warnings.simplefilter("error", SFWWarning)
            groups = constrain(model, kind, steps=steps, k=None if ":" in kind else 1, report=None)
            SFW(groups, lr=0.1)
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_regions_grow_with_the_weights_and_shrink_with_the_share():
    small, large = nn.Sequential(nn.Linear(40, 30)), nn.Sequential(nn.Linear(40, 30))
    with torch.no_grad():
        large[0].weight.copy_(8 * small[0].weight)
    radius = [constrain(m, "neurons", steps=4000, report=None)[0]["region"].radius for m in (small, large)]
    assert radius[1] == pytest.approx(8 * radius[0])
    longer = constrain(small, "neurons", steps=64_000, report=None)[0]["region"].radius
    assert longer == pytest.approx(4 * radius[0])  # sixteen times as many steps, the same renewals
    given = float(small[0].weight.detach().norm())
    assert radius[0] == pytest.approx(given * math.sqrt(2 * 0.1 / (1.9 * 0.005)))  # eta = 2 * 10 / 4000, rho = 0.9


def test_which_layers_form_a_group_does_not_depend_on_their_weights():
    """Or the state of an optimizer would not fit one that is built anew around the trained weights, to go on."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(12, 12) for _ in range(5)))
    first = SFW(constrain(model, "neurons", steps=40, report=None))
    with torch.no_grad():
        for i, layer in enumerate(model):
            layer.weight.mul_(1 + i)
    names = [group["param_names"] for group in first.param_groups]
    again = SFW(constrain(model, "neurons", steps=40, report=None))
    assert [group["param_names"] for group in again.param_groups] == names
    again.load_state_dict(first.state_dict())
    assert [g["region"] for g in again.param_groups] == [g["region"] for g in first.param_groups]


def test_a_state_of_other_layers_is_refused():
    one, other = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Identity(), nn.Linear(4, 4))
    saved = SFW(constrain(one, "neurons", steps=9, report=None)).state_dict()
    with pytest.raises(ValueError, match=r"param group 0 of the state_dict is of 0\.weight"):
        SFW(constrain(other, "neurons", steps=9, report=None)).load_state_dict(saved)


def test_a_layer_that_starts_at_zero_gets_a_usual_region():
    model = nn.Sequential(nn.Linear(40, 30))
    usual = constrain(model, "neurons", steps=4000, report=None)[0]["region"].radius
    with torch.no_grad():
        model[0].weight.zero_()
    zero = constrain(model, "neurons", steps=4000, report=None)[0]["region"].radius
    assert zero == pytest.approx(usual, rel=0.05)
    assert zero == pytest.approx(equilibrium_length(initial_norm(model[0], "weight", model[0].weight), 0.005))

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 3))

    with pytest.raises(
        ValueError, match="weight: starts at zero, and nothing is known of a usual start: give the rule"
    ):
        constrain(Own(), lambda: geo.LpBall(2), steps=10, report=None)


# --- defaults -----------------------------------------------------------------------------------------------------------


def test_how_often_weights_are_renewed_where_nothing_is_said():
    """20 or 10 times, at most 0.01 a step in convolutions before norms and 0.005 elsewhere: a linear decay sums to T / 2."""

    def renewals(steps, **options):
        model = nn.Sequential(*cnn(), nn.Linear(10, 10), nn.Linear(10, 10))  # the last one is left free
        groups = constrain(model, "weights", steps=steps, report=None, **options)
        found = {name: group["rescale"].renewals for group in groups if group["region"] for name, _ in group["params"]}
        return found["3.weight"], found["11.weight"]

    assert renewals(40_000) == (20, 10)
    assert renewals(1_000) == (5, 2.5)
    assert renewals(150) == (0.75, 0.375)
    assert renewals(1_000, renewals=3) == (3, 3)
    assert renewals(1_000, renewals=50) == (15, 5)  # 0.03 and 0.01 a step are the most


def test_which_convolutions_have_no_scale():
    assert has_scale_free_convolutions(cnn())
    for norm, expected in ((nn.GroupNorm(4, 8), True), (nn.GroupNorm(1, 8), False), (nn.LayerNorm(8), False)):
        assert has_scale_free_convolutions(nn.Sequential(nn.Conv2d(1, 8, 1), norm)) is expected
    convolutions = [nn.Conv2d(8, 8, 1) for _ in range(3)]
    assert not has_scale_free_convolutions(nn.Sequential(*convolutions, nn.Flatten(), nn.BatchNorm1d(8)))


def test_more_may_grow_in_short_trainings():
    assert [default_k(geo.Groups(), steps) for steps in (100, 1_000, 5_000)] == [0.8, 0.6, 0.3]
    assert [default_k(geo.Spectrum(), steps) for steps in (100, 1_000, 5_000)] == [0.8, 0.4, 0.2]
    assert [default_k(geo.Elements(), steps) for steps in (100, 1_000, 5_000)] == [0.8, 0.4, 0.1]


def test_rules_leave_open_what_is_chosen_for_them():
    rules = [
        Rule("0.weight", "filters", k=2, radius=5.0),
        Rule("3.weight", geo.GroupKSupportBall),
        Rule("*", "rank", k=0.5),
    ]
    said = []
    groups = constrain(cnn(), rules, steps=4000, renewals=2, report=said.append)
    found = {name: group for group in groups for name, _ in group["params"]}
    assert found["0.weight"]["region"] == geo.GroupKSupportBall(2, 5.0)
    assert found["3.weight"]["region"].gauge.k == 4  # 0.3 of 16
    assert found["6.weight"]["region"].gauge.k == 8
    assert all(group["rescale"] == Horizon(4000, 2) for group in groups if group["region"] is not None)
    assert "weights are renewed 2 times in 4000 steps\nregions are sized from the weights as given" in said[0]
    constrain(cnn(), "filters", steps=4000, w=3.0, report=said.append)
    assert "w = 3 (of little effect here: norms take the scale of these weights away)" in said.pop()
    constrain(cnn(), "weights", steps=4000, w=3.0, report=said.append)
    assert said.pop().endswith("w = 3")  # the classifier is among them
    constrain(cnn(), "filters", steps=100, renewals=20, report=said.append)
    assert "weights are renewed 1.5 times in 100 steps (renewals=20 is more than so few steps have room for)" in said[1]


# --- what is said unasked ---------------------------------------------------------------------------------------------------


def test_an_optimizer_without_regions_says_that_it_is_plain_sgd():
    model = cnn()
    with pytest.warns(SFWWarning, match="nothing is constrained: without regions SFW is plain SGD"):
        SFW(model.parameters())
    with pytest.warns(SFWWarning, match="nothing is constrained"):
        SFW([{"params": list(model.parameters()), "lr": 0.2}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SFW([{"params": list(model.parameters()), "region": None}])  # says so itself


def test_scaling_weights_onto_regions_is_told_once_for_all_layers():
    with pytest.warns(SFWWarning) as caught:
        SFW(constrain(cnn(), "filters", k=0.2, w=0.01, report=None))
    assert len(caught) == 1
    assert "3 of 3 weights lay outside of their regions and were scaled onto them" in str(caught[0].message)
    assert "constrain(..., steps=...)" in str(caught[0].message)


def test_steps_that_are_always_cut_at_1_are_told():
    """The gradient rule, a tiny region and a large learning rate: every step replaces the weights."""
    torch.manual_seed(0)
    model = cnn()
    optimizer = SFW(constrain(model, "filters", k=0.3, w=1e-3, report=None), lr=0.5, rest_lr=1e-3, check_every=10)
    with pytest.warns(SFWWarning, match=r"the step size was cut at 1 in most steps of \S+ and 2 more of 3 layers"):
        train(model, optimizer, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SFWWarning)
        train(model, optimizer, 10, start=10)  # once is enough


def test_a_rule_for_all_groups_that_none_would_follow_is_refused():
    groups = constrain(cnn(), "filters", steps=100, report=None)
    with pytest.raises(ValueError, match="has no effect: the groups have a rule of their own, Horizon"):
        SFW(groups, rescale=Gradient())
    SFW(constrain(cnn(), "filters", k=0.2, w=20.0, report=None), rescale=Gradient())


def test_a_schedule_that_leaves_too_little_to_renew_is_told():
    p, optimizer = one(geo.LpBall(2, 3.0), Horizon(20, 0.2), gaussian((4,), 0), lr=0.1)
    optimizer.param_groups[0]["lr"] = 0.01
    for t in range(19):
        p.grad = gaussian((4,), t)
        optimizer.step()
    with pytest.warns(
        SFWWarning, match=r"weights were renewed 0\.0\d+ times, where 0\.2 were planned.*lr=0\.1"
    ) as caught:
        optimizer.step()
    assert len(caught) == 1


def test_steps_are_counted_group_by_group_and_copies_keep_the_count():
    p, optimizer = one(geo.LpBall(2, 3.0), Horizon(30, 0.2), gaussian((4,), 0))
    q = nn.Parameter(gaussian((4,), 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SFWWarning)
        for t in range(25):
            p.grad = gaussian((4,), t)
            optimizer.step()
        optimizer.add_param_group({"params": [q], "region": geo.LpBall(2, 3.0), "rescale": Horizon(10, 0.1)})
        for t in range(5):
            p.grad, q.grad = gaussian((4,), t), gaussian((4,), t)
            optimizer.step()
        twin = copy.deepcopy(optimizer)
    for group in twin.param_groups:
        for parameter in group["params"]:
            parameter.grad = gaussian((4,), 9)
    with pytest.warns(SFWWarning, match="more than the announced steps=30"):
        twin.step()


def test_numbers_of_numpy_are_numbers():
    model = nn.Sequential(nn.Linear(8, 16))
    groups = constrain(model, "neurons", k=np.int64(1), steps=np.int32(100), renewals=np.float64(0.5), report=None)
    assert groups[0]["region"].gauge.k == 1
    assert [type(value) for value in groups[0]["rescale"].plain().values()] == [str, int, float, type(None)]


def test_what_cannot_be_sized_is_refused_in_one_line():
    model = nn.Sequential(nn.Linear(4, 4))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=r"^0\.weight: holds NaN or inf before the first step$"):
        constrain(model, "neurons", steps=10, report=None)
    with pytest.raises(ValueError, match=r"^0\.weight: is a lazy parameter without a shape yet"):
        constrain(nn.Sequential(nn.LazyLinear(4)), "neurons", steps=10, report=None)


def test_a_table_without_regions_says_that_nothing_is_constrained():
    assert constrain(nn.Sequential(nn.Linear(2, 4)), "2:4", steps=10, report=None).notes == ["nothing is constrained"]


def test_progress_of_the_whole_counts_layers_by_their_size():
    """Two L1 balls of 3 and 1 entries: (0, 0, 4) has two of three below 5 % of its largest, (2,) has none."""
    p, q = (nn.Parameter(torch.tensor(v, dtype=torch.float64)) for v in ([0.0, 0.1, 4.0], [2.0]))
    groups = [{"params": [t], "region": geo.KSupportBall(1, 100.0)} for t in (p, q)]
    optimizer = SFW(groups, lr=0.0)
    found = optimizer.progress()
    assert found.decayed == pytest.approx((3 * 2 / 3 + 0) / 4)
    assert found.compressible == pytest.approx((3 * 4 / math.hypot(0.1, 4) + 1) / 4)
    assert found.renewed == found.clamped == 0
    assert optimizer.diagnostics().total == found
    assert str(optimizer.diagnostics()).splitlines()[-1].startswith("all layers: renewed 0.00 times, 50% decayed")
    assert SFW([{"params": [q], "region": None}]).progress() is None


def test_regions_depend_on_the_momentum_and_both_are_told_the_same():
    model = cnn()
    sized = {rho: constrain(model, "filters", steps=1000, momentum=rho, report=None) for rho in (0.0, 0.9)}
    shrunk = math.sqrt(
        (1 - 0.9) / (1 + 0.9)
    )  # of the length, by the formula; rounded up where weights would be outside
    assert sized[0.9][0]["region"].radius == pytest.approx(shrunk * sized[0.0][0]["region"].radius, rel=0.05)
    assert SFW(sized[0.0], momentum=0.0).param_groups[0]["momentum"] == 0.0
    with pytest.raises(ValueError, match=r"momentum=0\.9, but regions were sized for 0: give constrain"):
        SFW(sized[0.0])
    with pytest.raises(ValueError, match=r"momentum must be a number of at least 0 and below 1, got 1\.5"):
        constrain(model, "filters", steps=1000, momentum=1.5, report=None)


def test_weights_that_are_loaded_before_the_first_step_enter_their_regions_and_say_so():
    model, larger = cnn(), cnn()
    optimizer = SFW(constrain(model, "filters", steps=100, report=None))
    with torch.no_grad():
        for p in larger.parameters():
            p.mul_(50)
    model.load_state_dict(larger.state_dict())
    with pytest.warns(SFWWarning, match="lay outside of their regions and were scaled onto them"):
        train(model, optimizer, 1)
    group = optimizer.param_groups[0]
    assert group["region"].contains(group["params"][0].detach())


def test_weights_that_are_loaded_and_fit_are_taken_as_they_are(recwarn):
    model, other = cnn(), cnn()
    optimizer = SFW(constrain(model, "filters", steps=100, report=None))
    model.load_state_dict(other.state_dict())
    optimizer.enter_regions()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert not [w for w in recwarn if issubclass(w.category, SFWWarning)]


def test_a_layer_that_is_unfrozen_late_is_as_far_as_all_others():
    model = cnn()
    optimizer = SFW(constrain(model, "filters", steps=20, report=None))
    model[3].weight.requires_grad_(False)
    train(model, optimizer, 15)
    model[3].weight.requires_grad_(True)
    train(model, optimizer, 5, start=15)
    shares = {layer.name: layer.step_size for layer in optimizer.diagnostics()}
    assert shares["3.weight"] == shares["0.weight"] > 0


def test_a_group_that_is_added_later_has_a_horizon_of_its_own():
    model, head = cnn(), nn.Linear(10, 4)
    optimizer = SFW(constrain(model, "filters", steps=20, report=None))
    train(model, optimizer, 15)
    (added, *_) = constrain(head, "neurons", steps=20, report=None)
    optimizer.add_param_group(added)
    head.weight.grad = torch.ones_like(head.weight)
    train(model, optimizer, 1, start=15)  # zero_grad leaves the head out
    head.weight.grad = torch.ones_like(head.weight)
    optimizer.step()
    taken = {name: stack.figures.taken for _, stack, names in optimizer._labelled_stacks() for name in names}
    assert taken["weight"].item() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"adam_betas": 5}, r"adam_betas must be two numbers in \[0, 1\), got 5"),
        ({"adam_betas": (0.9,)}, "adam_betas must be two numbers"),
        ({"check_every": "often"}, "check_every must be a whole number of at least 1, got 'often'"),
        ({"check_every": 1.5}, "check_every must be a whole number of at least 1, got 1.5"),
        ({"fused": "yes"}, "fused must be True, False or None, got 'yes'"),
    ],
)
def test_arguments_of_a_wrong_type_get_one_line(arguments, message):
    with pytest.raises(ValueError, match=message):
        SFW(constrain(cnn(), "filters", steps=100, report=None), **arguments)


def test_what_is_no_list_of_parameters_is_named():
    for wrong in (None, 5, cnn()):
        with pytest.raises(TypeError, match=f"params must be those of constrain.*got {type(wrong).__name__}"):
            SFW(wrong)
    with pytest.raises(ValueError, match="axes must be a list of 1 here"):
        SFW([{"params": [nn.Parameter(torch.ones(3, 3))], "region": geo.GroupKSupportBall(1, 1.0), "axes": 5}])


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_a_layer_without_inputs_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"^weight: "):
        constrain(nn.Linear(0, 4), "weights", steps=10, report=None)


# --- networks without norms, outputs, and trainings that go nowhere ------------------------------------------------------------


def stack_of(layers: int, gain: float = 1.0) -> nn.Sequential:
    parts = [part for _ in range(layers - 1) for part in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(*parts, nn.Linear(32, 4))
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(gain)
    return model


@pytest.mark.parametrize(
    ("layers", "room"), [(4, 1 + 45 / 27), (5, 1 + 45 / 64), (7, 1 + 45 / 216), (8, 1.2), (40, 1.2)]
)
def test_the_deeper_a_stack_without_norms_the_less_it_may_grow_beyond_a_healthy_start(layers, room):
    healthy = math.sqrt(2 * 32)  # He: entries of variance 2 / fan_in
    groups = constrain(stack_of(layers), "neurons", steps=40_000, report=None)
    radii = [group["region"].radius for group in groups if group["region"] is not None]
    assert radii == [pytest.approx(healthy * room, rel=1e-6)] * (layers - 1)


def test_norms_lift_the_limit():
    plain = constrain(stack_of(12), "neurons", steps=40_000, report=None)[0]["region"].radius
    normed = constrain(nn.Sequential(stack_of(12), nn.LayerNorm(4)), "neurons", steps=40_000, report=None)[0][
        "region"
    ].radius
    assert normed > 3 * plain


def test_a_word_leaves_the_output_free_and_a_rule_that_names_it_does_not():
    model = stack_of(3)
    names = lambda groups: [n for group in groups if group["region"] is not None for n, _ in group["params"]]  # noqa: E731
    assert names(constrain(model, "neurons", steps=100, report=None)) == ["0.weight", "2.weight"]
    assert "taken for the output" in str(constrain(model, "weights", steps=100, report=None))
    assert names(constrain(model, Rule("4.weight", "neurons"), steps=100, report=None)) == ["4.weight"]
    assert names(constrain(model, "neurons", k=0.5, w=1.0, report=None)) == [
        "0.weight",
        "2.weight",
        "4.weight",
    ]  # the paper's
    assert names(constrain(nn.Linear(4, 4), "neurons", steps=100, report=None)) == ["weight"]  # all there is


def test_outputs_of_any_scale_can_be_learned():
    """A regression on raw targets: a region around the last layer would keep the network from their size."""
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    y = 300 * x[:, :1] + 1000
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = SFW(constrain(model, "neurons", steps=400, report=None), lr=0.01, rest="adamw", rest_lr=3.0)
    for _ in range(400):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        assert float((model(x) - y).var() / y.var()) < 0.2


def test_a_network_in_which_nothing_fires_is_told():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.fill_(-1.0)
    optimizer = SFW(constrain(model, "neurons", steps=100, report=None), lr=0.1, check_every=5)

    def twenty_steps() -> None:
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            optimizer.step()

    with pytest.warns(SFWWarning, match="no gradient reaches a constrained layer") as caught:
        twenty_steps()
    assert len(caught) == 1


def test_an_optimizer_that_is_made_anew_every_epoch_is_told():
    model = cnn()
    with warnings.catch_warnings():
        warnings.simplefilter("error", SFWWarning)
        for _ in range(2):  # a training and its sequel
            train(model, SFW(constrain(model, "filters", steps=10, report=None)), 2)
    with pytest.warns(SFWWarning, match="make one SFW for the whole training"):
        SFW(constrain(model, "filters", steps=10, report=None))


def test_forgotten_steps_are_asked_for_first():
    with pytest.raises(
        ValueError, match="give steps, the optimizer steps of the whole training, and nothing else is needed"
    ):
        constrain(cnn(), "filters", report=None)
