"""refit="auto": of two recoveries, the one that follows the whole network better on inputs that it was not fitted on."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from compression.conftest import accuracy, train_on_digits
from compression.networks import ROWS, mlp, normed
from compression.zoo import Net
from sparsefw import Sizes, compress, curve, load, save, save_elastic
from sparsefw.compression.pipeline import Pipeline
from sparsefw.compression.recovery import recover as recovery
from sparsefw.compression.recovery.agreement import WORST, agreement
from sparsefw.compression.recovery.calibration import Calibration, Part
from sparsefw.compression.recovery.choice import Choice
from sparsefw.compression.settings import Settings
from sparsefw.data import load_digits
from sparsefw.models import build

CPU = torch.device("cpu")
RATIOS = [0.5, 0.7, 0.9]


class Fixed(nn.Module):
    """A network whose outputs are a function of the number of each input."""

    def __init__(self, answer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.answer = answer

    def forward(self, x: Tensor) -> Any:
        return self.answer(x[:, 0].long())


def table(values: Any) -> Fixed:
    values = torch.as_tensor(values)
    return Fixed(lambda number: values[number])


def numbers(count: int) -> list[Tensor]:
    return list(torch.arange(count).view(-1, 1).split(3))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# How agreement is measured


def test_agreement_by_hand():
    """One output without its second input: (1, 2, 6) and (1, 1, 4), deviations (-2, -1, 3) and (-1, -1, 2)."""
    whole, small = nn.Linear(2, 1, bias=False), nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        whole.weight.copy_(torch.tensor([[1.0, 1.0]]))
        small.weight.copy_(torch.tensor([[1.0, 0.0]]))
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [4.0, 2.0]])
    assert agreement(whole, small, [x]) == pytest.approx(9 / math.sqrt(14 * 6))
    assert agreement(whole, small, x.split(1)) == pytest.approx(9 / math.sqrt(14 * 6))


def test_agreement_of_two_classes_by_hand():
    """Outputs (d, -d) spread by |d| about their mean: e^(3 d / mean |d|) to e^(-3 d / mean |d|) are the odds of the first."""
    d, e = np.array([2.0, -1.0, 3.0]), np.array([1.0, 1.0, 1.0])
    p, q = (1 / (1 + np.exp(-6 * x / np.abs(x).mean())) for x in (d, e))
    divergence = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean()
    whole, small = (torch.tensor(np.stack([x, -x], 1)) for x in (d, e))
    inputs = [torch.arange(3).view(-1, 1)]
    assert agreement(table(whole), table(small), inputs) == pytest.approx(0 - 4 * divergence)
    assert agreement(table(whole), table(2 * whole), inputs) == pytest.approx(1)


@pytest.mark.parametrize("shape", [(4,), (4, 5, 5), (6, 4)])
def test_agreement_is_that_of_a_simple_program(shape):
    """Classes (4,), a map of classes, and a sequence of them; in batches of equal size."""
    y = random(12, *shape) * 5 + random(*shape, seed=2)
    z = y + random(12, *shape, seed=1)
    correlation = np.corrcoef(*((t - t.mean(0)).flatten().numpy() for t in (y, z)))[0, 1]
    axis = 2 if len(shape) == 2 else 1
    divergences = []
    for ys, zs in zip(y.numpy().reshape(4, 3, *shape), z.numpy().reshape(4, 3, *shape), strict=True):
        p, q = (scipy.special.softmax(3 * t / t.std(axis).mean(), axis) for t in (ys, zs))
        divergences.append((p * np.log(p / q)).sum(axis).mean())
    expected = correlation - 4 * np.mean(divergences)
    assert agreement(table(y), table(z), numbers(12)) == pytest.approx(expected, rel=1e-4)


def test_scale_does_not_matter_but_order_does():
    y = random(10, 4)
    assert agreement(table(y), table(0.1 * y), numbers(10)) == pytest.approx(1)
    assert agreement(table(y), table(torch.ones(10, 4)), numbers(10)) < 0
    assert agreement(table(y), table(-y), numbers(10)) < agreement(table(y), table(y.roll(1, 0)), numbers(10)) < 0


def test_values_without_classes_are_compared_by_their_correlation():
    y, z = random(10, 1), random(10, 1, seed=1)
    expected = np.corrcoef(y.flatten(), z.flatten())[0, 1]
    for shape in ((10,), (10, 1), (10, 1, 1, 1)):
        assert agreement(table(y.view(shape)), table(z.view(shape)), numbers(10)) == pytest.approx(expected, abs=1e-5)
    far = torch.tensor([1e4, 0.0])  # coordinates of which one is always the larger
    assert agreement(
        table(torch.cat([y, y], 1) + far), table(torch.cat([z, z], 1) + far), numbers(10)
    ) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("pack", [lambda a, b: (a, b), lambda a, b: {"x": a, "y": [b]}, lambda a, b: [a, None, "b", b]])
def test_several_outputs_count_alike(pack):
    a, b, other = random(10, 4), 1000 * random(10, 2, 2, 2, seed=1), random(10, 2, 2, 2, seed=2)
    single = agreement(table(b), table(other), numbers(10))
    pair = Fixed(lambda i: pack(a[i], b[i])), Fixed(lambda i: pack(a[i], other[i]))
    assert agreement(*pair, numbers(10)) == pytest.approx((1 + single) / 2)


def test_sequences_of_several_lengths():
    def answer(scale: float) -> Fixed:
        return Fixed(
            lambda number: scale * random(len(number), 2 + int(number[0]), 3, seed=int(number[0]))
        )  # 3 classes

    assert agreement(answer(1.0), answer(0.5), numbers(12)) == pytest.approx(1)


def test_whole_numbers_and_entries_that_are_hidden():
    classes = torch.tensor([0, 1, 2, 3, 4, 5])
    changed = torch.tensor([0, 1, 2, 3, 0, 0])
    assert agreement(table(classes), table(changed), numbers(6)) == pytest.approx(4 / 6)
    y = random(6, 3)
    hidden = torch.where(torch.arange(3) == 1, -torch.inf, y)
    both = Fixed(lambda i: (hidden[i], classes[i])), Fixed(lambda i: (hidden[i] * 2, changed[i]))
    assert agreement(*both, numbers(6)) == pytest.approx(1)


def test_outputs_that_are_not_finite_are_the_worst():
    y = random(6, 3)
    z = torch.where(torch.arange(18).view(6, 3) == 4, torch.nan, y)
    assert agreement(table(y), table(z), numbers(6)) == WORST


@pytest.mark.parametrize("answer", [torch.ones(6, 3), "text", None])
def test_what_cannot_be_compared(answer):
    network = Fixed(lambda number: answer[number] if isinstance(answer, Tensor) else answer)
    assert math.isnan(agreement(network, network, numbers(6)))
    assert math.isnan(agreement(table(random(6, 3)), table(random(6, 4)), numbers(6)))


# Which inputs are held out


@pytest.mark.parametrize("sizes", [[64], [1] * 12, [7, 1, 5, 30], [4, 4, 4]])
def test_every_fourth_input_is_held_out(sizes):
    batches = list(torch.arange(sum(sizes)).view(-1, 1).split(sizes))
    calibration = Calibration(batches, CPU)
    fitting, held_out = (torch.cat(list(Part(calibration, held))).flatten().tolist() for held in (False, True))
    assert sorted(fitting + held_out) == list(range(sum(sizes)))
    expected = [int(x) for b, batch in enumerate(batches) for j, x in enumerate(batch) if (b + j + 1) % 4 == 0]
    assert held_out == expected


def test_items_of_a_batch_stay_together():
    batch = {"x": torch.arange(8).view(8, 1), "shared": torch.ones(3), "word": "a", "y": [torch.arange(8) + 100]}
    (part,) = Part(Calibration([batch], CPU), True)
    assert part["x"].flatten().tolist() == [3, 7]
    assert part["y"][0].tolist() == [103, 107]
    assert len(part["shared"]) == 3


def test_nothing_is_fitted_to_inputs_that_are_held_out(monkeypatch):
    fit = recovery.fit_to_dense
    seen = []

    def watched(dense, cuts, order, inputs, *more):
        seen.append(torch.cat(list(inputs)))
        fit(dense, cuts, order, inputs, *more)

    monkeypatch.setattr(recovery, "fit_to_dense", watched)
    small = compress(mlp(), neurons=0.5, calibration=ROWS)
    (fitted,) = seen
    held_out = torch.cat(list(Part(Calibration(ROWS, CPU), True)))
    assert len(fitted) + len(held_out) == len(torch.cat(ROWS))
    assert not (fitted[:, None] == held_out).all(-1).any()
    assert small.plan.request["recovery"]["neurons"]["inputs"] == len(held_out) == 64
    seen.clear()
    compress(mlp(), neurons=0.5, calibration=ROWS, refit=True)
    assert len(seen[0]) == len(torch.cat(ROWS))


# What is chosen


def over_sizes(epochs: int) -> nn.Module:
    torch.manual_seed(0)
    images, labels = load_digits()
    model = build("resnet_digits", width=8).train()
    sizes = Sizes(model, "filters", example=images[:2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [batch for _ in range(epochs) for batch in torch.randperm(len(images)).split(64)]
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = 0.1 * (1 - step / len(batches))
        x, y = images[batch], labels[batch]
        half = len(x) // 2
        optimizer.zero_grad()
        with sizes.smaller(sizes.draw(step)):
            (F.cross_entropy(model(x[:half]), y[:half]) / 2).backward()
        (F.cross_entropy(model(x[half:]), y[half:]) / 2).backward()
        optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def trained() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    usual = build("resnet_digits", width=8)
    train_on_digits(usual, torch.optim.SGD(usual.parameters(), lr=0.1, momentum=0.9), 6)
    return {"usual": usual, "over sizes": over_sizes(30)}


@pytest.fixture(scope="module")
def curves(trained):
    calibration = list(load_digits().images[:512].split(64))
    return {
        name: curve(model, "filters", RATIOS, form="removed", calibration=calibration, evaluate=accuracy)
        for name, model in trained.items()
    }


def test_a_network_that_was_not_trained_to_be_cut_is_refitted(curves):
    assert [point.chosen for point in curves["usual"].points] == ["refit"] * 3
    assert all(point.refit > point.plain + 10 for point in curves["usual"].points)


def test_a_network_that_was_trained_over_sizes_stays_plain_when_little_is_left(curves):
    last = curves["over sizes"].points[-1]
    assert last.plain > last.refit
    assert last.chosen == "plain"


def test_the_choice_is_hardly_worse_than_the_better_recovery(curves):
    for points in (curves["usual"].points, curves["over sizes"].points):
        for point in points:
            assert min(point.plain, point.refit) <= point.metric
            assert point.metric > max(point.plain, point.refit) - 4


def test_curve_and_compress_choose_alike_and_twice_the_same(trained, curves):
    calibration = list(load_digits().images[:512].split(64))
    for name, model in trained.items():
        for point in curves[name].points[::2]:
            small = compress(model, filters=point.ratio, calibration=iter(calibration))
            recovery = small.plan.request["recovery"]["filters"]
            assert recovery["chosen"] == point.chosen
            assert recovery["plain"] == pytest.approx(point.agreements.plain, abs=1e-4)
            assert recovery["refit"] == pytest.approx(point.agreements.refit, abs=1e-4)
            assert small.plan.request["refit"] == (point.chosen == "refit")
            assert accuracy(small.model) == pytest.approx(point.metric, abs=0.6)


def test_plain_is_what_plain_alone_would_be(trained):
    calibration = list(load_digits().images[:512].split(64))
    chosen = compress(trained["over sizes"], filters=0.9, calibration=calibration)
    plain = compress(trained["over sizes"], filters=0.9, calibration=calibration, refit=False)
    for name, value in plain.model.state_dict().items():
        assert torch.equal(chosen.model.state_dict()[name], value), name


def test_statistics_are_those_of_all_inputs(trained):
    """Of a refitted network too: another pass over all of them changes nothing."""
    from sparsefw import recalibrate

    calibration = list(load_digits().images[:512].split(64))
    small = compress(trained["usual"], filters=0.5, calibration=calibration)
    assert small.plan.request["refit"] is True
    for name, value in recalibrate(small.model, calibration).state_dict().items():
        torch.testing.assert_close(small.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_every_kind_is_chosen_for_itself_against_the_whole_network():
    batches = [random(16, 3, 10, 10, seed=i) for i in range(6)]
    small = compress(normed(), filters=0.5, weights=0.5, calibration=batches)
    recovery = small.plan.request["recovery"]
    assert set(recovery) == {"filters", "weights"}
    pipeline = Pipeline(normed(), Settings(batches))
    last = recovery["weights"]
    held_out = Part(Calibration(batches, CPU), True)
    assert agreement(pipeline.dense, small.model, held_out) == pytest.approx(last[last["chosen"]], rel=1e-6)
    assert small.plan.request["refit"] == ("refit" in [choice["chosen"] for choice in recovery.values()])


def test_a_target_is_met_by_the_network_that_is_returned(trained):
    calibration = list(load_digits().images[:256].split(64))
    small = compress(trained["usual"], target="drop=5", calibration=calibration, evaluate=accuracy)
    assert small.plan.request["metric"][1] == pytest.approx(accuracy(small.model))
    assert small.plan.request["metric"][0] - small.plan.request["metric"][1] <= 5


def test_of_equal_recoveries_the_plain_one_is_taken():
    assert Choice(0.9, 0.9, 8).chosen == "plain"
    assert Choice(0.8, 0.9, 8).chosen == "refit"
    assert Choice(0.9, 0.8, 8).chosen == "plain"
    assert Choice(WORST, WORST, 8).chosen == "refit"  # neither can be compared


def test_a_recovery_that_breaks_loses(monkeypatch):
    """A refit whose numbers overflow is not an error as long as plain works."""
    from sparsefw.compression.recovery.calibration import NotFiniteError

    def broken(*_: Any) -> None:
        raise NotFiniteError("too large")

    monkeypatch.setattr(recovery, "fit_to_dense", broken)
    small = compress(mlp(), neurons=0.5, calibration=ROWS)
    assert small.plan.request["refit"] is False
    with pytest.raises(NotFiniteError):
        compress(mlp(), neurons=0.5, calibration=ROWS, refit=True)


# What the user is told


def test_the_plan_says_which_and_why(tmp_path):
    small = compress(mlp(), neurons=0.5, calibration=ROWS)
    choice = small.plan.request["recovery"]["neurons"]
    (line,) = [line for line in small.summary().splitlines() if line.startswith("recovery")]
    best, other = ("plain", "refit") if choice["chosen"] == "plain" else ("refit", "plain")
    of_negative = "; below 0: mostly other answers" if choice[other] < 0 else ""
    assert line == (
        f"recovery: {best}: on 64 held-out inputs, its outputs agree with the dense network's by {choice[best]:.3f} "
        f"(1: the same{of_negative}), those of {other} by {choice[other]:.3f}"
    )
    save(small, tmp_path / "small")
    assert line in load(tmp_path / "small", mlp).summary()


@pytest.mark.parametrize(
    "plain, refit, words",
    [
        (0.5, 0.25, "plain: .* by 0.500 .*, those of refit by 0.250"),
        (0.5, 0.25, r".* \(1: the same\), .*"),
        (-4.368, -5.0, r"plain: .* by -4.368 \(1: the same; below 0: mostly other answers\), those of refit by -5.000"),
        (WORST, 0.25, r"refit: .* by 0.250 \(1: the same\), those of plain cannot be compared"),
        (WORST, WORST, "refit: .* no outputs can be compared"),
    ],
)
def test_words_for_outputs_that_cannot_be_compared(plain, refit, words):
    assert re.fullmatch(words + ".*", str(Choice(plain, refit, 16)))
    assert "1000" not in str(Choice(plain, refit, 16))


def test_several_kinds_have_a_line_each():
    small = compress(mlp(), neurons=0.5, rank=0.5, calibration=ROWS)
    words = [line.split(":")[0] for line in small.summary().splitlines() if line.startswith("recovery")]
    assert words == ["recovery of neurons", "recovery of rank"]


def test_a_curve_shows_both_and_the_choice(curves):
    text = str(curves["usual"])
    header, _, *lines = text.splitlines()
    assert header.split()[2:5] == ["plain", "refit", "chosen"]
    assert [line.split()[3] for line in lines] == ["refit"] * 3
    assert len({len(line) for line in text.splitlines()[1:]}) == 1
    point = json.loads(json.dumps(curves["usual"].to_json()))["points"][0]
    assert point["chosen"] == "refit"
    assert point["agreements"]["plain"] < point["agreements"]["refit"] <= 1


@pytest.mark.parametrize("refit", [True, False])
def test_without_a_choice_nothing_is_said(refit):
    got = curve(mlp(), "neurons", [0.5], calibration=ROWS, evaluate=lambda net: 1.0, refit=refit)
    assert "chosen" not in str(got)
    assert got.points[0].chosen == ("refit" if refit else "plain")
    small = compress(mlp(), neurons=0.5, calibration=ROWS, refit=refit)
    assert "recovery" not in small.plan.request


@pytest.mark.parametrize("count, judged", [(31, False), (32, True)])
def test_few_inputs_cannot_judge(count, judged):
    calibration = [random(count, 8)]
    small = compress(mlp(), neurons=0.5, calibration=calibration)
    said = [u.reason for u in small.plan.untouched if "without asking" in u.reason]
    assert ("recovery" in small.plan.request) == judged
    got = curve(mlp(), "neurons", [0.5], calibration=calibration, evaluate=lambda net: 1.0)
    if judged:
        assert said == []
        assert got.notes == ()
        return
    assert said == [
        "refitted without asking whether plain would be better: 7 inputs can be held out, give some hundred"
    ]
    assert got.notes == (f"note: {said[0]}",)
    assert str(got).splitlines()[-1] == got.notes[0]
    assert small.plan.request["refit"] is True
    fitted = compress(mlp(), neurons=0.5, calibration=calibration, refit=True)
    assert torch.equal(small.model[0].weight, fitted.model[0].weight)


def test_networks_that_take_whole_batches_only_are_refitted():
    net = Net(lambda net, x: net.b(torch.relu(net.a(x.view(64, 8)))), a=nn.Linear(8, 6), b=nn.Linear(6, 2))
    small = compress(net, neurons=0.5, calibration=ROWS, example=ROWS[0])
    said = [u.reason for u in small.plan.untouched if "without asking" in u.reason]
    assert said == [
        "refitted without asking whether plain would be better: the outputs of part of a batch cannot be compared"
    ]
    assert small.plan.request["refit"] is True


def test_an_elastic_folder_holds_both(tmp_path):
    save_elastic(mlp(), tmp_path / "e", "neurons", [0.5], calibration=ROWS)
    assert {load(tmp_path / "e", mlp, neurons=0.5, refit=refit).plan.request["refit"] for refit in (True, False)} == {
        True,
        False,
    }
