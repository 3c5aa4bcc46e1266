"""SparseFW: Stochastic Frank-Wolfe under norm constraints, so that what can be removed later decays while training.

Zimmer, Spiegel, Pokutta: Compression-aware Training of Neural Networks using Frank-Wolfe, arXiv:2205.11921.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from torch import nn

from sparsefw.geometry import Groups
from sparsefw.methods.base import Method, OptimizerSettings, register
from sparsefw.methods.regions import RegionSchedule, coupled_rules, everything_else, has_more
from sparsefw.optim import KINDS, SFW, Diameter, FastGradient, Gradient, Rule, Unscaled, constrain, default_w
from sparsefw.optim.assign import is_normalised
from sparsefw.words import did_you_mean

RESCALES = {"gradient": Gradient(), "fast_gradient": FastGradient(), "diameter": Diameter(), "none": Unscaled()}


@register
class SparseFW(Method):
    """theta <- (1 - eta) theta + eta v with v = argmin over the region of <v, m>: few of them grow, the rest decay.

    kind      "filters", "rank", "weights", "neurons", or "N:M" such as "2:4": what is to be removed later
    k         how many may grow per layer: an int is a count, a float in (0, 1] a fraction
    w         size of the regions, in units of the layers' default initialisation; None: what the number of steps needs

    The paper is the defaults. Its ablations, and what was tried since:

    gauge       "k-support": what may grow does so in proportion to its gradient; "k-sparse": all by the same amount, the polytope
                of Pokutta, Spiegel, Zimmer 2020 and Miao et al. 2022
    rescale     how lr becomes eta: "gradient" (steps as long as SGD's), "fast_gradient", "diameter", "none"
    anneal      k falls from all to k, in stages; otherwise it is k from the start
    w_start     w goes from here to w, in stages; None: it is w from the start
    over        the fraction of the training that these two take
    coupled     filters that are removed together, with the scales of their norms, decay together: one block per set of channels
    everything  all other tensors are constrained, too, as in the code of the paper's authors: to L2 balls; for "weights" to the
                same kind of region
    stickiness  filters are chosen by their momenta's norms averaged over steps with this decay; 0: by the last
    """

    title: ClassVar[str] = "SparseFW"
    paper: ClassVar[str] = "Zimmer, Spiegel, Pokutta: arXiv:2205.11921"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "filters": {"kind": "filters", "k": 0.2},
        "weights": {"kind": "weights", "k": 0.1},
        "weights-k-sparse": {"kind": "weights", "k": 0.1, "gauge": "k-sparse"},
        "rank-0.1": {"kind": "rank", "k": 0.1},
        "rank-0.3": {"kind": "rank", "k": 0.3},
    }

    name: Literal["sparsefw"] = "sparsefw"
    kind: str = "filters"
    k: int | float | None = 0.2
    w: float | None = Field(default=None, gt=0)
    gauge: Literal["k-support", "k-sparse"] = "k-support"
    rescale: Literal["gradient", "fast_gradient", "diameter", "none"] = "gradient"
    anneal: bool = False
    w_start: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    over: float = Field(default=0.5, gt=0, le=1)
    coupled: bool = False
    everything: bool = False
    stickiness: float = Field(default=0.0, ge=0, lt=1)

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

    @model_validator(mode="after")
    def _meaningful(self) -> Self:
        """An option that would have no effect is refused."""
        rows = self.kind in ("filters", "neurons")
        for option, possible, why in (
            ("gauge", self.k is not None, "N:M has its own"),
            ("anneal", self.k is not None, "N:M has no k"),
            ("anneal", self.k != 1.0 or isinstance(self.k, int), "k=1.0: all may grow from the start"),
            ("w_start", self.w_start != self.w, "it is w"),
            ("over", self.anneal or self.w_start is not None, "neither k nor w changes"),
            ("coupled", self.kind == "filters", "only filters have norms of their own and are removed together"),
            ("stickiness", rows, "only filters and neurons are chosen by the norms of rows"),
        ):
            if not possible and getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option}={getattr(self, option)!r} has no effect here: {why}")
        return self

    @property
    def least_epochs(self) -> int:
        return 2 if self.anneal or self.w_start is not None else 1

    @property
    def prepares(self) -> str:
        return {"neurons": "filters"}.get(self.kind, "weights" if ":" in self.kind else self.kind)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        w = default_w(settings.steps, is_normalised(model), self.kind) if self.w is None else self.w
        rules = coupled_rules(model, settings.example, self.gauge) if self.coupled else []
        if has_more(model, self.kind, rules):
            rules.append(Rule(kind=self.kind, gauge=self.gauge))
        if self.everything:
            rules += everything_else(model, rules, w, self.gauge if self.kind == "weights" else None)
        groups = constrain(model, rules, k=self.k, w=w, report=report)
        for group in groups:
            if group["region"] is not None:
                start = 1.0 if self.w_start is None else self.w_start / w
                group["schedule"] = RegionSchedule.of(group, self.anneal, start).plain()
                group["region"] = RegionSchedule.from_plain(group["schedule"]).at(0.0)
                rows = group["region"].view == Groups() and not any(group.get("axes") or ())
                group["score_momentum"] = self.stickiness if rows else 0.0
        return settings.make(groups, rescale=RESCALES[self.rescale])

    def after_epoch(self, model: nn.Module, optimizer: SFW, epoch: int, epochs: int) -> None:
        if not self.anneal and self.w_start is None:
            return
        done = epoch / min(self.over * epochs, max(1, epochs - 1))  # the last epoch, at least, is trained with the goal
        for group in optimizer.param_groups:
            if group["region"] is not None:
                region = RegionSchedule.from_plain(group["schedule"]).at(done)
                if region != group["region"]:  # a captured step follows the object
                    group["region"] = region
        optimizer.enter_regions()  # now: a checkpoint of this moment holds weights that are inside
