"""The choice between two recoveries of one cut, plain and refit: by agreement with the whole network on inputs held out.

Refit helps networks that were not trained to be cut, and harms those that were: it aims at features that these have learnt to do
without. Nobody has to know which is the case. Three of four calibration inputs serve to fit, the fourth to judge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.recovery.agreement import WORST, agreement
from sparsefw.compression.recovery.batches import batch_size
from sparsefw.compression.recovery.calibration import Calibration, Part, mean_over_ranks, rank_of
from sparsefw.recovery_words import PLAIN, REFIT

FEWEST = 8  # inputs to judge on, of 32


@dataclass(frozen=True)
class Choice:
    """Two recoveries of one cut, and the better one.

    plain, refit   agreement of their outputs with the whole network's, at most 1
    inputs         number of held-out inputs that it was measured on
    """

    plain: float
    refit: float
    inputs: int

    @property
    def chosen(self) -> str:
        """REFIT if it agrees better; also if plain cannot be compared."""
        return REFIT if self.refit > self.plain or self.plain == WORST else PLAIN

    def to_json(self) -> dict[str, Any]:
        return {"chosen": self.chosen, **asdict(self)}

    def __str__(self) -> str:
        agreements = {PLAIN: self.plain, REFIT: self.refit}
        best = agreements.pop(self.chosen)
        ((other, less),) = agreements.items()
        if best == WORST:
            return (
                f"{self.chosen}: on {self.inputs} held-out inputs, no outputs can be compared with the dense network's"
            )
        of_other = f"those of {other} " + ("cannot be compared" if less == WORST else f"by {less:.3f}")
        below_0 = any(WORST < value < 0 for value in (best, less))
        scale = "1: the same" + "; below 0: mostly other answers" * below_0
        return (
            f"{self.chosen}: on {self.inputs} held-out inputs, its outputs agree with the dense network's by {best:.3f} "
            f"({scale}), {of_other}"
        )


def recovery_in_words(recovery: Mapping[str, Any]) -> list[str]:
    """Return a line for every kind whose recovery was chosen, from the content of a plan's request."""
    several = len(recovery) > 1
    return [
        f"recovery{f' of {kind}' if several else ''}: {Choice(**{f.name: choice[f.name] for f in fields(Choice)})}"
        for kind, choice in recovery.items()
    ]


@dataclass(frozen=True)
class Judge:
    """Compares small networks with the whole one.

    fitting    the calibration inputs to fit on
    held_out   the others
    inputs     how many these are, in all processes together
    """

    whole: nn.Module
    fitting: Part
    held_out: Part
    inputs: int

    def agreement(self, small: nn.Module) -> float:
        """Return the agreement of a small network's outputs, the mean over all processes; WORST if it cannot be compared."""
        value = mean_over_ranks(agreement(self.whole, small, self.held_out))
        return WORST if math.isnan(value) else value

    def choice(self, plain: float, refit: float) -> Choice:
        return Choice(plain, refit, self.inputs)


def judge_of(whole: nn.Module, calibration: Calibration) -> Judge | Reason:
    """Return the judge of cuts of a network, or the reason why there is none."""
    held_out = Part(calibration, held_out=True)
    inputs = round(mean_over_ranks(sum(map(batch_size, held_out))) * rank_of()[1])
    if inputs < FEWEST:
        return because(Cause.NOT_JUDGED_FEW, count=inputs)
    try:
        itself = agreement(whole, whole, held_out)
    except ValueError:  # the network takes whole batches only, such as the nodes of a graph
        itself = math.nan
    if math.isnan(mean_over_ranks(itself)):  # alike in all processes
        return because(Cause.NOT_JUDGED)
    return Judge(whole, Part(calibration, held_out=False), held_out, inputs)
