"""Scion: Frank-Wolfe on spectral balls, the constrained relative of Muon. All directions grow alike: the opposite of low rank.

    theta <- (1 - eta) theta - eta radius U V^T,   momentum = U S V^T,   eta = lr / diameter

Pethick, Xie, Antonakopoulos, Zhu, Silveti-Falls, Cevher: Training Deep Learning Models with Norm-Constrained LMOs, ICML 2025;
Jordan et al.: Muon, 2024.
"""

from __future__ import annotations

import glob
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import nn

from sparsefw.constraints import constrain
from sparsefw.geometry import SpectralBall
from sparsefw.kinds import RANK, Kind
from sparsefw.methods.base import Method, OptimizerSettings, register
from sparsefw.methods.weight_stacks import candidates_of
from sparsefw.optim import SFW, Diameter, Rule
from sparsefw.optim.radius import LARGEST_W, LEAST_W


@register
class Scion(Method):
    """theta <- (1 - eta) theta + eta v with v = argmin over ||V||_2 <= radius of <V, m> = -radius U V^T, m = U S V^T.

    On convolutions and linear layers, seen as matrices. As in Muon, eta = lr / diameter does not depend on the length of the
    gradient.

    w   size of the balls as in SparseFW: their diameter is 2 w times the norm of the default initialisation
    """

    title: ClassVar[str] = "Scion"
    paper: ClassVar[str] = "Pethick et al.: ICML 2025, arXiv:2502.07529; Jordan et al.: Muon, 2024"
    removes: ClassVar[Kind | None] = RANK

    name: Literal["scion"] = "scion"
    w: float = Field(default=1.0, ge=LEAST_W, le=LARGEST_W)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        names = tuple(glob.escape(c.alias.name) for c in candidates_of(model, RANK))
        rule = Rule(names, kind=SpectralBall, w=self.w)
        return settings.make(constrain(model, rule, report=report), rescale=Diameter())
