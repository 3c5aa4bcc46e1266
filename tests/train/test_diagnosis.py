"""What counts as trouble, on histories made by hand; and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparsefw.runfolder.parse import parse_epoch
from sparsefw.train.diagnosis import Aim, Epoch, epochs_of, hint, troubles

# 900 images at chance 10 %: a standard deviation is sqrt(0.1 * 0.9 / 900) = 1 point.
AIM = Aim(epochs=20, images=900, chance=10.0, lr=0.1)
SPARSE = replace(AIM, renewals=4.0, dials=frozenset({"name", "k", "w", "renewals", "rescale"}))


def history(*losses: float, accuracy: float | None = 50.0, **constraint: float) -> list[Epoch]:
    return [Epoch(i, loss, accuracy, **constraint) for i, loss in enumerate(losses, 1)]


def keys(aim: Aim, epochs: list[Epoch]) -> list[str]:
    return [trouble.key for trouble in troubles(aim, epochs)]


def text(aim: Aim, epochs: list[Epoch]) -> str:
    (only,) = troubles(aim, epochs)
    return only.text


def test_a_healthy_training_is_in_no_trouble():
    whole = [Epoch(i, 2.0 / i, 40.0 + 3 * i, 0.2 * i, 0.02 * i, 0.0) for i in range(1, 21)]
    assert not any(troubles(SPARSE, whole[:count]) for count in range(21))


@pytest.mark.parametrize(
    ("accuracy", "images", "chance", "found"),
    [
        (12.9, 900, 10.0, True),  # within three standard deviations
        (13.1, 900, 10.0, False),
        (9.0, 900, 10.0, True),
        (10.9, 1_000_000, 10.0, True),  # three are 0.09 points here: at least one point
        (11.1, 1_000_000, 10.0, False),
        (19.8, 82, 10.0, True),  # three are 9.9 points here
        (10.0, 80, 10.0, False),  # 10.1 points: too few images to tell
        (50.0, 40, 50.0, False),
        (99.4, 900, 99.0, True),  # one point more cannot be surpassed: half of it
        (99.6, 900, 99.0, False),
        (100.0, 900, 100.0, False),  # there is but one class
        (0.0, 900, None, False),  # the metric is no accuracy
    ],
)
def test_at_chance_is_what_guessing_may_reach_on_as_many_images(accuracy, images, chance, found):
    aim = replace(AIM, images=images, chance=chance)
    assert keys(aim, history(2.3, 2.3, 2.3, 2.3, accuracy=accuracy)) == ["chance"] * found


@pytest.mark.parametrize(("epochs", "first"), [(20, 4), (18, 4), (10, 2), (3, 2), (2, 2), (1, 1)])
def test_a_fifth_of_the_epochs_and_at_least_two_may_be_at_chance_but_not_the_last(epochs, first):
    aim = replace(AIM, epochs=epochs)
    said = [bool(troubles(aim, history(*[2.3] * count, accuracy=10.0))) for count in range(1, epochs + 1)]
    assert said.index(True) + 1 == first


def test_at_chance_the_next_thing_to_try_is_what_the_method_has():
    still = history(2.3, 2.3, 2.3, 2.3, accuracy=10.0)
    assert text(AIM, still) == (
        "after 4 of 20 epochs the training accuracy is 10.0 %, where chance is 10.0 %: nothing was learned; "
        "try train.lr below 0.1"
    )
    assert text(SPARSE, still).endswith("; try train.lr below 0.1, method.renewals below 4 or a larger method.k")
    pattern = replace(SPARSE, renewals=None, dials=frozenset({"name", "renewals", "strength"}))
    assert text(pattern, still).endswith("; try train.lr below 0.1 or a smaller method.strength")


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ((2.0, 1.0, 1.6, 1.6), True),  # of 1.0 that was gained, more than half is lost, twice in a row
        ((2.0, 1.0, 1.6, 1.4), False),
        ((2.0, 1.0, 1.4, 1.6), False),
        ((2.0, 1.0, 1.6), False),
        ((2.0, 1.0, 0.4, 1.3, 1.3), True),
        ((2.0, 1.0, 0.4, 1.3, 1.3, 0.5), False),  # it has recovered
        ((2.0, 1.9, 2.2, 2.2), False),  # nothing was gained that could be lost
        ((0.1, 0.3, 0.5, 0.5), False),
    ],
)
def test_a_relapse_is_two_epochs_above_half_of_what_was_gained(losses, found):
    assert keys(AIM, history(*losses)) == ["relapse"] * found


def test_a_loss_that_rises_beside_nearly_perfect_accuracy_is_no_relapse():
    """Fine-tuning a trained network: 0.001 became 0.004, and all images are still classified right."""
    assert keys(AIM, history(0.005, 0.001, 0.004, 0.004, accuracy=99.5)) == []
    assert keys(AIM, history(0.005, 0.001, 0.004, 0.004, accuracy=98.5)) == ["relapse"]


def test_a_relapse_tells_what_was_lost():
    assert text(SPARSE, history(2.0, 1.0, 1.6, 1.7)) == (
        "the training loss is 1.7 after epoch 4, and was 1 after epoch 2: what was learned is being lost; "
        "try train.lr below 0.1, method.renewals below 4 or a larger method.k"
    )


def test_steps_that_are_cut_in_more_than_half_of_the_cases():
    aim, scion = replace(SPARSE, epochs=1), replace(SPARSE, epochs=1, dials=frozenset({"name", "w"}))
    assert keys(aim, history(2.0, clamped=0.5)) == []
    assert text(aim, history(2.0, clamped=0.51)) == (
        "the step size was cut at 1 in 51 % of the steps: weights are replaced rather than trained; "
        "try train.lr below 0.1, a larger method.w or method.rescale=horizon"
    )
    assert text(scion, history(2.0, clamped=1.0)).endswith("try train.lr below 0.1 or a larger method.w")


def test_while_a_training_learns_steps_may_be_cut_but_not_in_all_of_it():
    """Of 20 epochs the first three are not judged."""

    def found(count: int, accuracy: float) -> list[str]:
        return keys(SPARSE, history(*[2.0] * count, accuracy=accuracy, clamped=0.9, renewed=4.0))

    assert (found(3, 10.0), found(4, 10.0)) == ([], ["clamped", "chance"])
    assert (found(19, 50.0), found(20, 50.0)) == ([], ["clamped"])


def test_what_has_no_accuracy_learns_if_its_loss_has_fallen_by_a_tenth():
    aim = replace(SPARSE, chance=None)
    assert keys(aim, history(2.0, 2.0, 2.0, 1.81, accuracy=None, clamped=0.9)) == ["clamped"]
    assert keys(aim, history(2.0, 2.0, 2.0, 1.79, accuracy=None, clamped=0.9)) == []


def test_between_evaluations_the_last_figure_holds():
    looked_at = history(2.0, 2.0, 2.0, clamped=0.9)
    assert keys(SPARSE, [*looked_at, Epoch(4, 2.0, 10.0)]) == ["clamped", "chance"]


def test_half_of_the_planned_renewals_are_enough_and_only_the_end_counts():
    assert keys(SPARSE, [Epoch(19, 1.0, 50.0, 1.0, 0.1, 0.0)]) == []
    assert keys(SPARSE, [Epoch(20, 1.0, 50.0, 2.0, 0.1, 0.0)]) == []
    assert keys(replace(SPARSE, renewals=None), [Epoch(20, 1.0, 50.0, 1.0, 0.1, 0.0)]) == []
    assert keys(replace(SPARSE, may_renew_less=True), [Epoch(20, 1.0, 50.0, 1.0, 0.1, 0.0)]) == []
    assert text(SPARSE, [Epoch(20, 1.0, 50.0, 1.9, 0.13, 0.0)]) == (
        "weights were renewed 1.9 times instead of the planned 4.0, and 13 % of them have decayed: the learning rate was small "
        "for too long; try train.schedule.kind=linear and no train.schedule.warmup"
    )


EARLY = (2.0, 1.5, 1.2, 1.1, 1.0)  # the first quarter of 20 epochs: a gain of 1.0


@pytest.mark.parametrize(
    ("late", "accuracy", "found"),
    [
        (0.99, 50.0, True),
        (0.97, 50.0, False),  # more than 2 % of the early gain
        (1.2, 50.0, True),  # what was learned is not being lost either
        (1.0, 99.5, False),  # nothing is left to learn
        (1.0, None, True),
    ],
)
def test_a_training_that_gains_nothing_after_its_first_quarter_is_stuck(late, accuracy, found):
    epochs = history(*EARLY, *[late] * 15, accuracy=accuracy)
    assert keys(AIM, epochs) == ["plateau"] * found
    assert keys(AIM, epochs[:19]) == []  # only the end counts
    assert keys(replace(AIM, epochs=7), history(2.0, *[1.0] * 6, accuracy=accuracy)) == []  # too short to tell


def test_where_it_is_stuck_the_next_thing_to_try_is_what_the_method_has():
    epochs = history(*EARLY, *[1.0] * 15, renewed=4.0)
    assert text(SPARSE, epochs) == (
        "the training loss was 1 after epoch 5, and is 1 at the end: nothing was learned since; "
        "try another train.lr, method.renewals below 4 or a larger method.k"
    )
    assert text(AIM, epochs).endswith("; try another train.lr")


def test_where_hardly_anything_has_decayed_it_says_what_would_make_it():
    end = [Epoch(20, 1.0, 90.0, 2.5, 0.09, 0.0)]
    assert hint(SPARSE, end) == (
        "weights were renewed 2.5 times, and 9 % of what can be removed has decayed: compressed, the network depends on refit; "
        "if that is not enough, try method.renewals above 2.5, more train.epochs or sizes={}"
    )
    assert hint(replace(SPARSE, dials=frozenset()), end).endswith("try more train.epochs")
    assert troubles(SPARSE, end) == []


@pytest.mark.parametrize(
    ("aim", "end"),
    [
        (SPARSE, Epoch(20, 1.0, 90.0, 2.5, 0.1, 0.0)),  # enough has decayed
        (SPARSE, Epoch(20, 1.0, 90.0, 1.9, 0.0, 0.0)),  # the training says already that it was renewed too rarely
        (replace(SPARSE, over_sizes=True), Epoch(20, 1.0, 90.0, 2.5, 0.0, 0.0)),
        (AIM, Epoch(20, 1.0, 90.0)),  # nothing is constrained
    ],
)
def test_otherwise_there_is_nothing_to_say(aim, end):
    assert hint(aim, [end]) is None


def test_label_maps_have_no_chance_but_losses_and_constraints():
    aim = replace(SPARSE, chance=None)
    epochs = history(2.0, 1.0, 1.9, 1.9, accuracy=None, clamped=0.8)  # 1.9 is more than 0.9 of the first
    assert keys(aim, epochs) == ["clamped", "relapse"]


def test_rows_of_metrics_are_read_as_far_as_they_go():
    rows = [
        {"epoch": 1, "train": {"loss": 2.0, "mean_iou": 7.0}},
        {
            "epoch": 2,
            "train": {"loss": 1.0, "accuracy": 60.0},
            "constraint": {"renewed": 1.5, "decayed": 0.25, "compressible": 0.9, "clamped": 0.0},
        },
    ]
    assert epochs_of(map(parse_epoch, rows)) == [Epoch(1, 2.0), Epoch(2, 1.0, 60.0, 1.5, 0.25, 0.0)]
