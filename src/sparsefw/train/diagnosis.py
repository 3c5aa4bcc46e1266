"""Diagnoses a training by its epochs so far: what goes wrong, and which settings of its recipe to change.

Pure: from records to records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sparsefw.runfolder.schema import ConstraintFigures, EpochRecord

OFTEN = 0.5  # share of the steps: weights that are replaced in every other step do not learn
SOON = 0.2  # share of the epochs, and at least FIRST of them, in which a training may learn nothing
FIRST = 2
DEVIATIONS = 3  # standard deviations of guessing on as many images, and at least one POINT of accuracy
POINT = 1.0
VAGUE = 10.0  # points of accuracy: where guessing varies by more, the images are too few to tell whether anything was learned
LEARNED = 0.1  # share of the first epoch's loss: a larger gain is more than noise, and can be lost
LOST = 0.5  # share of that gain
SOLVED = 99.0  # accuracy in %
FEW = 0.5  # share of the planned renewals
HARDLY = 0.1  # share of the units: where fewer have decayed, there is hardly one that can go for nothing
EARLY = 4  # the first one of so many parts of a training
STUCK = 0.02  # share of what was gained early: what all the rest gained, if a training has stopped to learn
LONG = 8  # epochs that a training needs before it is judged by its parts


@dataclass(frozen=True)
class Aim:
    """What a training is meant to reach.

    images           in an epoch
    chance           accuracy in % of always answering the most frequent class; None where the metric is not an accuracy
    renewals         planned; None where nothing is constrained, or the rule plans none
    may_renew_less   whether fewer renewals than planned are in order
    dials            settings of the method that can be changed
    over_sizes       whether smaller networks were trained too, which need not wait for units to decay
    """

    epochs: int
    images: int
    chance: float | None
    lr: float
    renewals: float | None = None
    may_renew_less: bool = False
    dials: frozenset[str] = frozenset()
    over_sizes: bool = False


@dataclass(frozen=True)
class Epoch:
    """The training figures of an epoch: accuracy in %, of classifiers only; the constraint where it was measured."""

    number: int
    loss: float
    accuracy: float | None = None
    renewed: float | None = None
    decayed: float | None = None
    clamped: float | None = None


@dataclass(frozen=True)
class Trouble:
    """Something that goes wrong, in one sentence."""

    key: Literal["clamped", "chance", "relapse", "plateau", "renewals", "unreached"]
    text: str


def epochs_of(records: Iterable[EpochRecord]) -> list[Epoch]:
    """Return the figures of recorded epochs; lines that lost their loss say nothing."""
    epochs = []
    for record in records:
        train = record.figures.train
        if "loss" not in train:
            continue
        constraint = record.figures.constraint or ConstraintFigures()
        epochs.append(
            Epoch(
                number=record.epoch,
                loss=train["loss"],
                accuracy=train.get("accuracy"),
                renewed=constraint.renewed,
                decayed=constraint.decayed,
                clamped=constraint.clamped,
            )
        )
    return epochs


def troubles(aim: Aim, history: Sequence[Epoch]) -> list[Trouble]:
    """Return everything that is wrong after these epochs; a finished training is also judged by its end."""
    if not history:
        return []
    checks = (
        _clamped(aim, history),
        _at_chance(aim, history),
        _relapsed(aim, history) or _stuck(aim, history),
        _renewed(aim, history[-1]),
    )
    return [trouble for trouble in checks if trouble is not None]


def hint(aim: Aim, history: Sequence[Epoch]) -> str | None:
    """Return what would let a finished training lose less when it is compressed; None where nothing is to be said.

    It is no trouble: the network may be as accurate as it was meant to be.
    """
    if not history or aim.over_sizes:
        return None
    last = history[-1]
    if last.renewed is None or last.decayed is None or last.decayed >= HARDLY or _renewed(aim, last) is not None:
        return None
    ways = [f"method.renewals above {max(1.0, last.renewed):.2g}"] * ("renewals" in aim.dials)
    ways += ["more train.epochs", *["sizes={}"] * ("k" in aim.dials)]  # patterns such as 2:4 have one size
    return (
        f"weights were renewed {last.renewed:.1f} times, and {100 * last.decayed:.0f} % of what can be removed has decayed: "
        f"compressed, the network depends on refit; if that is not enough, try {_either(ways)}"
    )


def _clamped(aim: Aim, history: Sequence[Epoch]) -> Trouble | None:
    """Check the share of steps cut at 1, unless the training learns: the paper's rule cuts steps until the rate is small."""
    share = next((epoch.clamped for epoch in reversed(history) if epoch.clamped is not None), 0.0)
    over = history[-1].number >= aim.epochs
    if share <= OFTEN or not (over or _learns_nothing(aim, history)):
        return None
    others = {"w": "a larger method.w", "rescale": "method.rescale=horizon"}
    return Trouble(
        "clamped",
        f"the step size was cut at 1 in {100 * share:.0f} % of the steps: weights are replaced rather than trained; "
        f"try {_smaller_lr(aim, [text for dial, text in others.items() if dial in aim.dials])}",
    )


def _at_chance(aim: Aim, history: Sequence[Epoch]) -> Trouble | None:
    last = history[-1]
    if aim.chance is None or last.accuracy is None or not _learns_nothing(aim, history):
        return None
    return Trouble(
        "chance",
        f"after {last.number} of {aim.epochs} epochs the training accuracy is {last.accuracy:.1f} %, where chance is "
        f"{aim.chance:.1f} %: nothing was learned; try {_gentler(aim)}",
    )


def _learns_nothing(aim: Aim, history: Sequence[Epoch]) -> bool:
    """Judge by the accuracy, or by the loss where there is none; no training is judged in its first epochs."""
    last = history[-1]
    if last.number < min(max(FIRST, math.ceil(SOON * aim.epochs)), aim.epochs):
        return False
    if aim.chance is None or last.accuracy is None:
        return last.loss >= (1 - LEARNED) * history[0].loss
    share = aim.chance / 100
    noise = 100 * DEVIATIONS * math.sqrt(share * (1 - share) / aim.images)
    if noise > VAGUE:
        return False
    # If nearly all images are of one class, half of the way to 100 % is enough.
    margin = min(max(noise, POINT), (100 - aim.chance) / 2)
    return last.accuracy <= aim.chance + margin and aim.chance < 100


def _relapsed(aim: Aim, history: Sequence[Epoch]) -> Trouble | None:
    """Check whether the loss of the last two epochs is far above the best one: a single bad epoch is no relapse.

    Nor is a loss that rises where nearly all images are classified right, as when a trained network is tuned.
    """
    if len(history) < 4:
        return None
    *before, last_but_one, last = history
    best = min(before, key=lambda epoch: epoch.loss)
    gained = before[0].loss - best.loss
    if gained <= LEARNED * before[0].loss or min(last_but_one.loss, last.loss) <= best.loss + LOST * gained:
        return None
    if min(last_but_one.accuracy or 0.0, last.accuracy or 0.0) >= SOLVED:
        return None
    return Trouble(
        "relapse",
        f"the training loss is {last.loss:.3g} after epoch {last.number}, and was {best.loss:.3g} after epoch {best.number}: "
        f"what was learned is being lost; try {_gentler(aim)}",
    )


def _stuck(aim: Aim, history: Sequence[Epoch]) -> Trouble | None:
    """Check whether the loss has hardly fallen since the first quarter of a training whose images are not all learned."""
    last = history[-1]
    if last.number < aim.epochs or len(history) < LONG or (last.accuracy or 0.0) >= SOLVED:
        return None
    early, late = history[: len(history) // EARLY], history[len(history) // EARLY :]
    best = min(epoch.loss for epoch in early)
    gained = early[0].loss - best
    if gained <= LEARNED * early[0].loss or best - min(epoch.loss for epoch in late) > STUCK * gained:
        return None
    return Trouble(
        "plateau",
        f"the training loss was {best:.3g} after epoch {early[-1].number}, and is {last.loss:.3g} at the end: "
        f"nothing was learned since; try {_either(['another train.lr', *_fewer_renewals(aim)])}",
    )


def _renewed(aim: Aim, last: Epoch) -> Trouble | None:
    over = last.number >= aim.epochs
    if (
        not over
        or aim.may_renew_less
        or aim.renewals is None
        or last.renewed is None
        or last.renewed >= FEW * aim.renewals
    ):
        return None
    return Trouble(
        "renewals",
        f"weights were renewed {last.renewed:.1f} times instead of the planned {aim.renewals:.1f}, and "
        f"{100 * (last.decayed or 0):.0f} % of them have decayed: the learning rate was small for too long; "
        "try train.schedule.kind=linear and no train.schedule.warmup",
    )


def _gentler(aim: Aim) -> str:
    return _smaller_lr(aim, _fewer_renewals(aim))


def _fewer_renewals(aim: Aim) -> list[str]:
    """Return the settings by which a method changes the weights less."""
    ways = []
    if aim.renewals is not None and "renewals" in aim.dials:
        ways.append(f"method.renewals below {aim.renewals:.2g}")
    return ways + ["a larger method.k"] * ("k" in aim.dials) + ["a smaller method.strength"] * ("strength" in aim.dials)


def _smaller_lr(aim: Aim, others: Sequence[str]) -> str:
    return _either([f"train.lr below {aim.lr:g}", *others])


def _either(ways: Sequence[str]) -> str:
    return ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])} or {ways[-1]}"
