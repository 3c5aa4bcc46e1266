"""Stochastic Frank-Wolfe: the optimizer, its step-size rules, and the assignment of regions to a model's parameters."""

from sparsefw.optim.assign import ParamGroups, constrain
from sparsefw.optim.diagnostics import LayerReport, LayerReports
from sparsefw.optim.health import NonFiniteGradientError
from sparsefw.optim.radius import default_w, initial_norm
from sparsefw.optim.reference import ReferenceSFW
from sparsefw.optim.rescale import RESCALES, Diameter, FastGradient, Gradient, Rescale, Unscaled
from sparsefw.optim.rules import KINDS, Rule
from sparsefw.optim.sfw import SFW

__all__ = [
    "KINDS", "RESCALES", "SFW", "Diameter", "FastGradient", "Gradient", "LayerReport", "LayerReports",
    "NonFiniteGradientError", "ParamGroups",
    "ReferenceSFW", "Rescale", "Rule", "Unscaled", "constrain", "default_w", "initial_norm",
]  # fmt: skip
