"""The pace of a training: by which step-size rule each block is renewed, and how fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from sparsefw.optim.block_norms import block_norms
from sparsefw.optim.defaults import (
    DEEP_WITHOUT_NORMS,
    RENEWALS,
    SAFE_SHARE_OF_SCALES,
    convolutions_before_norms,
    has_scale_free_convolutions,
    horizon_for,
    is_convolution,
    leaves_gates_free,
    leaves_stacks_free,
    safe_share_without_norms,
    unnormalised_depth,
)
from sparsefw.optim.radius import checked_momentum, he_norm_ratio
from sparsefw.optim.rescale import Horizon
from sparsefw.optim.rules import TAKEN_FOR_OUTPUT, Candidate, Rule


class Pace:
    """How fast a training of a known length renews the weights of a model.

    steps              optimizer steps of the whole training; None: unknown, and blocks take the paper's steps
    renewals           how often weights are to be renewed; None: the default
    momentum           that of SFW
    depth              how many layers stand in a row without a norm
    """

    def __init__(self, model: nn.Module, steps: int | None, renewals: float | None, momentum: float) -> None:
        self.steps = None if steps is None else int(Horizon(steps, RENEWALS).steps)
        self.renewals = renewals
        self.momentum = checked_momentum(momentum)
        self._scale_free = has_scale_free_convolutions(model)
        self._before_norms = convolutions_before_norms(model) if self._scale_free else set()
        self.depth = unnormalised_depth(model)
        self._horizons: dict[tuple[int, ...], Horizon] = {}

    def horizon_of(self, members: Sequence[Candidate]) -> Horizon | None:
        """Return the step-size rule of a block of these parameters; None where the length of the training is unknown."""
        if self.steps is None:
            return None
        block = tuple(id(c.parameter) for c in members)
        if block not in self._horizons:
            scale_free = any(self.only_turns(c) for c in members)
            safe_share = self._safe_share(members) if self.multiplies(members) else SAFE_SHARE_OF_SCALES
            self._horizons[block] = horizon_for(
                self.steps, self.renewals, scale_free, safe_share, self._is_gate(members)
            )
        return self._horizons[block]

    def multiplies(self, members: Sequence[Candidate]) -> bool:
        """Whether changes of this block multiply with those of many other layers, without a norm between them."""
        return self.depth >= DEEP_WITHOUT_NORMS and not any(self.only_turns(c) for c in members)

    def _is_gate(self, members: Sequence[Candidate]) -> bool:
        """Whether these are convolutions without a norm, in a network where others have one."""
        return self._scale_free and all(
            is_convolution(c.alias.module) and c.alias.module not in self._before_norms for c in members
        )

    def _safe_share(self, members: Sequence[Candidate]) -> float:
        """Return the largest safe share of a block in a deep row of layers without norms.

        Only where the region is sized from the weights as given does the share depend on them: such a block has a group of its
        own. Other blocks share groups, and a saved state would not fit if the rule of a group depended on its weights.
        """
        rule = members[0].rule
        if rule is None or not rule.sized_from_weights:
            return SAFE_SHARE_OF_SCALES  # the user chose the size of the region, and with it the size of steps
        norms = block_norms(rule, members)
        return safe_share_without_norms(self.depth, he_norm_ratio(norms.start, norms.default))

    def group_keys(self, horizon: Horizon | None) -> dict[str, Any]:
        """Return the keys of a param group that takes steps by this rule."""
        return {} if horizon is None else {"rescale": horizon, "momentum": self.momentum}

    def reason_left_free(self, member: Candidate, candidates: Sequence[Candidate]) -> str | None:
        """Return why this layer is left free where a kind means all layers; None if it is not.

        The outputs of the last layer have the scale of the targets, which no region knows, and none of them can be removed.
        Layers that would hardly decay in so few steps would lose accuracy for nothing.
        """
        rule = member.rule
        if self.steps is None or rule is None or (rule.names_layers and not rule.of_kind):
            return None
        if member.writes_output:
            return TAKEN_FOR_OUTPUT
        if self.renewals is not None or not rule.sized_from_weights:
            return None
        block = [c for c in candidates if c.rule is rule] if rule.coupled else [member]
        if self.multiplies(block) and leaves_stacks_free(self.steps, self.depth):
            return f"one of {self.depth} layers without a norm between them, hardly decays in {self.steps} steps"
        alike = [c for c in candidates if _means_the_same(c.rule, rule) and not c.unfit_reason]
        has_others = not all(self._is_gate([c]) for c in alike)
        if has_others and self._is_gate([member]) and leaves_gates_free(self.steps):
            return f"without a norm of its own, hardly decays in {self.steps} steps"
        return None

    def only_turns(self, member: Candidate) -> bool:
        """Whether steps only turn this weight, because the normalisation behind it removes its scale."""
        return self.steps is not None and member.alias.module in self._before_norms


def _means_the_same(rule: Rule | None, other: Rule) -> bool:
    """Whether both rules stand for the layers that one kind means."""
    return rule is other or (rule is not None and rule.of_kind and other.of_kind)
