"""SparseFW: Stochastic Frank-Wolfe under norm constraints, under which units that are not needed decay while training.

    theta <- (1 - eta) theta + eta v,   v = argmin over the region of <v, momentum>

Zimmer, Spiegel, Pokutta: Compression-aware Training of Neural Networks using Frank-Wolfe, arXiv:2205.11921.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from sparsefw.config_base import ConfigError, KindName
from sparsefw.constraints import constrain, removable_units
from sparsefw.geometry import Groups
from sparsefw.kinds import FILTERS, RANK, WEIGHTS, Kind, kind_of
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED
from sparsefw.methods.base import Method, OptimizerSettings, register
from sparsefw.methods.region_rules import rules_for_other_tensors
from sparsefw.methods.region_schedule import RegionSchedule
from sparsefw.optim import SFW, Diameter, FastGradient, Gradient, Rule, Unscaled, default_w
from sparsefw.optim.defaults import is_normalised
from sparsefw.optim.radius import FROM_WEIGHTS, LARGEST_W, LEAST_W, MOMENTUM
from sparsefw.optim.rescale import MOST_RENEWALS, Rescale

PAPER_K = 0.2
# All rules but "horizon", which `constrain` sets in each group.
RESCALES: dict[str, Rescale] = {
    "gradient": Gradient(),
    "fast_gradient": FastGradient(),
    "diameter": Diameter(),
    "none": Unscaled(),
}


@register
class SparseFW(Method):
    """theta <- (1 - eta) theta + eta v with v = argmin over the region of <v, m>: in each step k units grow, the others decay.

    kind      the units to remove later: "filters", "rank", "weights", "neurons", "2:4", ... (`sparsefw list kinds`)
    renewals  the dial: how often the training renews its weights. More renewals make removable units smaller and, from some
              point on, cost dense accuracy. None: 20 for convolutions before norms, 10 for others, fewer in short trainings
    k         units per layer that may grow: an int is a count, a float in (0, 1] a fraction. None: by the number of steps

    The paper is `rescale: gradient` with a k and a w, as in the recipes named *-paper. Its ablations, and later variants:

    rescale     how lr becomes eta: "horizon" (in units of the length of the training), "gradient" (the paper's: steps as long as
                those of SGD), "fast_gradient", "diameter", "none"
    w           size of the regions, in units of the default initialisation. None: under "horizon" by the initial weights, under
                the other rules by the number of steps
    gauge       "k-support": units grow in proportion to their gradients; "k-sparse": all by the same amount, the polytope of
                Pokutta, Spiegel, Zimmer 2020 and Miao et al. 2022. None: k-support; for filters and rank beside AdamW
                k-sparse, unless w is given or k is annealed
    anneal      lower k in stages, from all units to k
    w_start     change w in stages, from this to w; None: w is constant
    over        fraction of the training that these changes take
    coupled     only what can be removed is constrained: channels that are removed together decay together, with the scales of
                their norms; neurons with the weights that read them. None: only under "horizon"
    everything  constrain all other tensors, too, as in the code of the paper's authors: to L2 balls, or for "weights" to
                regions of the same gauge
    stickiness  choose filters by the norms of their momenta, averaged over steps with this decay; 0: by the last norms
    """

    title: ClassVar[str] = "SparseFW"
    paper: ClassVar[str] = "Zimmer, Spiegel, Pokutta: arXiv:2205.11921"
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "filters": {"kind": FILTERS.name, "k": 0.2},
        "weights": {"kind": WEIGHTS.name, "k": 0.1},
        "weights-k-sparse": {"kind": WEIGHTS.name, "k": 0.1, "gauge": "k-sparse"},
        "rank-0.1": {"kind": RANK.name, "k": 0.1},
        "rank-0.3": {"kind": RANK.name, "k": 0.3},
    }

    name: Literal["sparsefw"] = "sparsefw"
    kind: KindName = FILTERS.name
    renewals: float | None = Field(default=None, gt=0, le=MOST_RENEWALS)
    k: int | float | None = None
    rescale: Literal["horizon", "gradient", "fast_gradient", "diameter", "none"] = "horizon"
    w: float | None = Field(default=None, ge=LEAST_W, le=LARGEST_W)
    gauge: Literal["k-support", "k-sparse", None] = None
    anneal: bool = False
    w_start: float | None = Field(default=None, ge=LEAST_W, le=LARGEST_W)
    over: float = Field(default=0.5, gt=0, le=1)
    coupled: bool | None = None
    everything: bool = False
    stickiness: float = Field(default=0.0, ge=0, lt=1)

    @field_validator("k", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("must be an int (a count) or a float in (0, 1] (a fraction)")
        return value

    @model_validator(mode="after")
    def _refuse_options_without_effect(self) -> Self:
        kind = self.prepares
        horizon = self.rescale == "horizon"
        for option, has_effect, reason in (
            ("renewals", horizon, f"only rescale=horizon counts renewals, not {self.rescale}"),
            ("k", kind.takes_k, f"{kind.name} itself defines how many may grow"),
            ("gauge", kind.takes_k, f"{kind.name} has its own"),
            ("anneal", kind.takes_k, f"{kind.name} has no k"),
            ("anneal", self.k != 1.0 or isinstance(self.k, int), "k=1.0: all may grow from the start"),
            ("w_start", self.w is not None or not horizon, "it needs a w to end at"),
            ("w_start", self.w_start != self.w, "it equals w"),
            ("over", self.anneal or self.w_start is not None, "neither k nor w changes"),
            ("coupled", kind.of_channels, "only channels are removed together"),
            ("stickiness", kind.view == Groups(), "only filters and neurons are chosen by the norms of rows"),
        ):
            if not has_effect and getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option}={getattr(self, option)!r} has no effect here: {reason}")
        return self

    @property
    def min_epochs(self) -> int:
        return 2 if self.anneal or self.w_start is not None else 1

    @property
    def prepares(self) -> Kind:
        return kind_of(self.kind)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        horizon = self.rescale == "horizon"
        w: Any = self.w
        if w is None:
            w = FROM_WEIGHTS if horizon else default_w(settings.steps, is_normalised(model), self.kind)
        rules = self._rules(model, settings.example, report)
        if self.everything:
            own = self.gauge or self.prepares.gauge
            rules += rules_for_other_tensors(model, rules, w, own if self.prepares is WEIGHTS else None)
        default_k = None if horizon else PAPER_K
        groups = constrain(
            model,
            rules,
            steps=settings.steps if horizon else None,
            renewals=self.renewals,
            k=default_k if self.k is None else self.k,
            w=w,
            momentum=settings.momentum if horizon else MOMENTUM,
            report=report,
        )
        for group in groups:
            if group["region"] is not None:
                start = 1.0 if self.w_start is None else self.w_start / w
                schedule = RegionSchedule.of(group, self.anneal, start)
                group["schedule"] = schedule.plain()
                group["region"] = schedule.at(0.0)
                has_rows = group["region"].view == Groups() and not any(group.get("axes") or ())
                group["score_momentum"] = self.stickiness if has_rows else 0.0
        return settings.make(groups, rescale=RESCALES.get(self.rescale))

    def _rules(self, model: nn.Module, example: Tensor | None, report: Callable[[str], Any] | None) -> list[Rule]:
        """Return the rules for the kind: by what compress can remove, where that is wanted and possible."""
        # A rule that names parameters constrains all of them; the kind alone would leave the output layer free.
        names = tuple(glob.escape(name) for name, _ in model.named_parameters()) if self.everything else "*"
        # The code of the paper's authors constrains the singular values of convolutions, and linear layers to L2 balls.
        types = (*CONVOLUTIONS, *TRANSPOSED) if self.everything and self.prepares is RANK else None
        # Stages of k are those of one gauge.
        gauge = self.prepares.gauge if self.anneal and self.gauge is None else self.gauge
        uncoupled = [Rule(names, kind=self.kind, gauge=gauge, types=types)]
        if self.coupled and example is None:
            raise ConfigError("method.coupled: needs an example batch, to follow the channels of the network")
        coupled = self.coupled
        if coupled is None:
            coupled = self.prepares.of_channels and self.rescale == "horizon"
        if not coupled or example is None:
            return uncoupled
        try:
            units = removable_units(model, Rule(kind=self.kind, gauge=gauge), example)
        except ValueError as error:
            if self.coupled:
                raise
            if report is not None:
                report(f"{self.kind} that are removed together do not decay together: {error}")
            return uncoupled
        if report is not None and units.lines:
            report("\n".join(units.lines))
        return list(units.rules)

    def after_epoch(self, model: nn.Module, optimizer: SFW, epoch: int, epochs: int) -> None:
        if not self.anneal and self.w_start is None:
            return
        # At least the last epoch is trained with the final regions.
        epochs_of_change = min(self.over * epochs, max(1, epochs - 1))
        progress = epoch / epochs_of_change
        for group in optimizer.param_groups:
            if group["region"] is not None:
                region = RegionSchedule.from_plain(group["schedule"]).at(progress)
                if region != group["region"]:  # a new object makes a captured step be captured again
                    group["region"] = region
        optimizer.enter_regions()  # now, before a checkpoint is written: its weights must be inside
