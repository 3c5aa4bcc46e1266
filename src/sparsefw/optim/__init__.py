"""Stochastic Frank-Wolfe: the optimizer, its step-size rules, and the assignment of regions to a model's parameters."""

from sparsefw.optim.assign import ParamGroups, as_rules, assign_regions
from sparsefw.optim.diagnostics import ConstraintProgress, LayerReport, LayerReports
from sparsefw.optim.nonfinite import NonFiniteGradientError
from sparsefw.optim.radius import default_w, initial_norm
from sparsefw.optim.reference import ReferenceSFW
from sparsefw.optim.rescale import RESCALES, Diameter, FastGradient, Gradient, Horizon, Rescale, Unscaled
from sparsefw.optim.rules import Rule
from sparsefw.optim.sfw import SFW
from sparsefw.optim.training_warnings import SFWWarning

__all__ = [
    "RESCALES", "SFW", "Diameter", "FastGradient", "Gradient", "Horizon", "LayerReport", "LayerReports",
    "NonFiniteGradientError", "ParamGroups", "ConstraintProgress",
    "ReferenceSFW", "Rescale", "Rule", "SFWWarning", "Unscaled", "as_rules", "assign_regions", "default_w", "initial_norm",
]  # fmt: skip
