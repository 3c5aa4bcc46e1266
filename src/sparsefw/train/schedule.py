"""Learning-rate schedules: the factor on the learning rate as a function of the finished fraction of training."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from sparsefw.config_base import Section


class Schedule(Section):
    """The factor on the learning rate before every step.

    kind          "linear" to zero (the paper's), "cosine" to zero, "step": times `factor` at each of `milestones`, "constant"
    milestones    fractions of the training
    warmup        epochs in which the rate first grows linearly from zero; the schedule fills the rest of the training
    begin         the fraction of the schedule that is skipped at its start
    floor         the factor at which "linear" and "cosine" end, instead of zero
    """

    kind: Literal["linear", "cosine", "step", "constant"] = "linear"
    milestones: tuple[float, ...] = (0.5, 0.75)
    factor: float = Field(default=0.1, gt=0, lt=1)
    warmup: float = Field(default=0.0, ge=0)
    begin: float = Field(default=0.0, ge=0, lt=1)
    floor: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if any(not 0 < m < 1 for m in self.milestones) or list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones={list(self.milestones)}: must be fractions between 0 and 1, in rising order")
        if self.floor and self.kind not in ("linear", "cosine"):
            raise ValueError(f"floor: only schedules of kind 'linear' and 'cosine' have one, this one is {self.kind!r}")
        idle = {"milestones", "factor"} & self.model_fields_set if self.kind != "step" else set()
        if idle and any(getattr(self, name) != type(self).model_fields[name].default for name in idle):
            raise ValueError(f"{sorted(idle)[0]}: only a schedule of kind 'step' has it, this one is {self.kind!r}")
        return self

    def at(self, step: int, steps: int, steps_per_epoch: int) -> float:
        """Return the factor for step 0 <= step < steps."""
        warmup_steps = min(round(self.warmup * steps_per_epoch), steps)
        if step < warmup_steps:
            return (step + 1) / (warmup_steps + 1)  # neither a step of length zero nor the full rate twice
        return self.factor_at(self.begin + (1 - self.begin) * (step - warmup_steps) / max(1, steps - warmup_steps))

    def factor_at(self, done: float) -> float:
        """Return the factor after the fraction `done` of the schedule, without warm-up."""
        if self.kind == "linear":
            return self.floor + (1 - self.floor) * (1 - done)
        if self.kind == "cosine":
            return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done))
        if self.kind == "step":
            return self.factor ** sum(done >= m for m in self.milestones)
        return 1.0
