"""SparseFW: Stochastic Frank-Wolfe under norm constraints, so that what can be removed later decays while training.

Zimmer, Spiegel, Pokutta: Compression-aware Training of Neural Networks using Frank-Wolfe, arXiv:2205.11921.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from torch import nn

from sparsefw.methods.base import Method, OptimizerSettings, register
from sparsefw.optim import KINDS, SFW, constrain
from sparsefw.words import did_you_mean


@register
class SparseFW(Method):
    """theta <- (1 - eta) theta + eta v with v = argmin over the region of <v, m>: few of them grow, the rest decay.

    kind    "filters", "rank", "weights", "neurons", or "N:M" such as "2:4": what is to be removed later
    k       how many may grow per layer: an int is a count, a float in (0, 1] a fraction
    w       size of the regions, in units of the layers' default initialisation; None: what the number of steps needs
    """

    title: ClassVar[str] = "SparseFW"
    paper: ClassVar[str] = "Zimmer, Spiegel, Pokutta: arXiv:2205.11921"

    name: Literal["sparsefw"] = "sparsefw"
    kind: str = "filters"
    k: int | float | None = 0.2
    w: float | None = Field(default=None, gt=0)

    @field_validator("kind")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in KINDS and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", value):
            raise ValueError(f"{value!r}{did_you_mean(value, KINDS)}; there are {', '.join(KINDS)} and N:M such as 2:4")
        return value

    @field_validator("k", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("must be an int (a count) or a float in (0, 1] (a fraction)")
        return value

    @model_validator(mode="before")
    @classmethod
    def _pattern_without_k(cls, values: Any) -> Any:
        if isinstance(values, dict) and ":" in str(values.get("kind")):
            if values.get("k") is not None:
                raise ValueError(f"k: {values['kind']} says itself how many may grow; leave it out")
            return {**values, "k": None}
        return values

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        size = {"steps": settings.steps} if self.w is None else {"w": self.w}
        return settings.make(constrain(model, self.kind, k=self.k, report=report, **size))
