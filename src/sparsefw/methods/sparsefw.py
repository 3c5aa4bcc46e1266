"""SparseFW: Stochastic Frank-Wolfe under norm constraints, so that what can be removed later decays while training.

Zimmer, Spiegel, Pokutta: Compression-aware Training of Neural Networks using Frank-Wolfe, arXiv:2205.11921.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from sparsefw.config_base import ConfigError, KindName
from sparsefw.geometry import Groups
from sparsefw.kinds import FILTERS, RANK, WEIGHTS, Kind, kind_of
from sparsefw.methods.base import Method, OptimizerSettings, register
from sparsefw.methods.regions import RegionSchedule, coupled_filters, everything_else
from sparsefw.optim import SFW, Diameter, FastGradient, Gradient, Rule, Unscaled, constrain, default_w
from sparsefw.optim.assign import is_normalised
from sparsefw.optim.radius import FROM_WEIGHTS
from sparsefw.optim.rescale import MOST_RENEWALS, Rescale

PAPER_K = 0.2
# Without the horizon rule, which constrain gives to each group.
RESCALES: dict[str, Rescale] = {
    "gradient": Gradient(),
    "fast_gradient": FastGradient(),
    "diameter": Diameter(),
    "none": Unscaled(),
}


@register
class SparseFW(Method):
    """theta <- (1 - eta) theta + eta v with v = argmin over the region of <v, m>: few of them grow, the rest decay.

    kind      what is to be removed later: "filters", "rank", "weights", "neurons", "2:4", ... (`sparsefw list kinds`)
    renewals  the dial: how often the training renews its weights. More of them leave less of what can be removed later, and cost
              dense accuracy at some point. None: 20 for convolutions before norms, 10 for others, fewer in short trainings
    k         how many may grow per layer: an int is a count, a float in (0, 1] a fraction. None: what the number of steps allows

    The paper is `rescale: gradient` with a k and a w, as in the recipes named *-paper. Its ablations, and what was tried since:

    rescale     how lr becomes eta: "horizon" (in units of the training's length), "gradient" (the paper's: steps as long as
                SGD's), "fast_gradient", "diameter", "none"
    w           size of the regions, in units of the layers' default initialisation. None: with "horizon" as the weights as given
                need, with the other rules as the number of steps does
    gauge       "k-support": what may grow does so in proportion to its gradient; "k-sparse": all by the same amount, the polytope
                of Pokutta, Spiegel, Zimmer 2020 and Miao et al. 2022
    anneal      k falls from all to k, in stages; otherwise it is k from the start
    w_start     w goes from here to w, in stages; None: it is w from the start
    over        the fraction of the training that these two take
    coupled     filters that are removed together, with the scales of their norms, decay together: one block per set of channels.
                None: with "horizon" they do
    everything  all other tensors are constrained, too, as in the code of the paper's authors: to L2 balls; for "weights" to the
                same kind of region
    stickiness  filters are chosen by their momenta's norms averaged over steps with this decay; 0: by the last
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
    w: float | None = Field(default=None, gt=0)
    gauge: Literal["k-support", "k-sparse"] = "k-support"
    anneal: bool = False
    w_start: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    over: float = Field(default=0.5, gt=0, le=1)
    coupled: bool | None = None
    everything: bool = False
    stickiness: float = Field(default=0.0, ge=0, lt=1)

    @field_validator("k", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError("must be an int (a count) or a float in (0, 1] (a fraction)")
        return value

    @model_validator(mode="after")
    def _meaningful(self) -> Self:
        """An option that would have no effect is refused."""
        kind, horizon = kind_of(self.kind), self.rescale == "horizon"
        for option, possible, why in (
            ("renewals", horizon, f"only rescale=horizon counts renewals, not {self.rescale}"),
            ("k", kind.takes_k, f"{kind.name} says itself how many may grow"),
            ("gauge", kind.takes_k, f"{kind.name} has its own"),
            ("anneal", kind.takes_k, f"{kind.name} has no k"),
            ("anneal", self.k != 1.0 or isinstance(self.k, int), "k=1.0: all may grow from the start"),
            ("w_start", self.w is not None or not horizon, "there is no w to go to; give one"),
            ("w_start", self.w_start != self.w, "it is w"),
            ("over", self.anneal or self.w_start is not None, "neither k nor w changes"),
            ("coupled", kind is FILTERS, "only filters have norms of their own and are removed together"),
            ("stickiness", kind.view == Groups(), "only filters and neurons are chosen by the norms of rows"),
        ):
            if not possible and getattr(self, option) != type(self).model_fields[option].default:
                raise ValueError(f"{option}={getattr(self, option)!r} has no effect here: {why}")
        return self

    @property
    def least_epochs(self) -> int:
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
            rules += everything_else(model, rules, w, self.gauge if kind_of(self.kind) is WEIGHTS else None)
        steps, k = (settings.steps, self.k) if horizon else (None, PAPER_K if self.k is None else self.k)
        groups = constrain(
            model, rules, steps=steps, renewals=self.renewals, k=k, w=w, momentum=settings.momentum, report=report
        )
        for group in groups:
            if group["region"] is not None:
                start = 1.0 if self.w_start is None else self.w_start / w
                group["schedule"] = RegionSchedule.of(group, self.anneal, start).plain()
                group["region"] = RegionSchedule.from_plain(group["schedule"]).at(0.0)
                rows = group["region"].view == Groups() and not any(group.get("axes") or ())
                group["score_momentum"] = self.stickiness if rows else 0.0
        return settings.make(groups, rescale=RESCALES.get(self.rescale))

    def _rules(self, model: nn.Module, example: Tensor | None, report: Callable[[str], Any] | None) -> list[Rule]:
        """What is constrained; filters together with those that they are removed with, where that is wanted and possible."""
        # Named one by one, parameters are all constrained; the word alone would leave the output layer free.
        names = tuple(glob.escape(name) for name, _ in model.named_parameters()) if self.everything else "*"
        alone = [Rule(names, kind=self.kind, gauge=self.gauge)]
        if self.coupled and example is None:
            raise ConfigError("method.coupled: needs an example of what the network gets, to follow its channels")
        together = kind_of(self.kind) is FILTERS and self.rescale == "horizon" if self.coupled is None else self.coupled
        if not together or example is None:
            return alone
        try:
            return coupled_filters(model, example, self.gauge)
        except ValueError as error:
            if self.coupled:
                raise
            if report is not None:
                report(f"filters decay one by one, not with those that they are removed with: {error}")
            return alone

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
