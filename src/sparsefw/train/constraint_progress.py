"""The progress of the constraint in a training: how far it has come, and how far it is planned to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from sparsefw.optim import SFW, ConstraintProgress, Horizon
from sparsefw.optim.diagnostics import mean_progress
from sparsefw.runfolder.schema import ConstraintFigures


def constraint_figures(optimizer: SFW) -> tuple[ConstraintFigures | None, Mapping[str, ConstraintFigures]]:
    """Return the figures over all constrained weights, None where there are none, and those of each layer. Reads the device."""
    parts = optimizer.progress_of_layers()
    layers = {name: _figures(progress) for name, (_, progress) in parts.items()}
    return (_figures(mean_progress(list(parts.values()))) if parts else None), layers


def _figures(progress: ConstraintProgress) -> ConstraintFigures:
    return ConstraintFigures(**asdict(progress))


def planned_renewals(optimizer: SFW) -> float | None:
    """Return how often the whole training is to renew its weights; None where a rule plans nothing.

    It is the mean over the constrained groups, weighted by their size.
    """
    constrained = [group for group in optimizer.param_groups if group["region"] is not None]
    rules = [group["rescale"] for group in constrained]
    if not rules or not all(isinstance(rule, Horizon) for rule in rules):
        return None
    sizes = [sum(p.numel() for p in group["params"]) for group in constrained]
    return sum(size * rule.renewals for size, rule in zip(sizes, rules, strict=True)) / sum(sizes)


def may_renew_less(optimizer: SFW) -> bool:
    """Whether small gradients may shorten steps, so that weights are renewed less often than planned."""
    return any(
        group["region"] is not None and getattr(group["rescale"], "reach", None) for group in optimizer.param_groups
    )


def progress_text(figures: ConstraintFigures, planned: float | None) -> str:
    """Return the figures in words.

    >>> progress_text(ConstraintFigures(renewed=1.2, decayed=0.43), planned=3.0)
    'renewed 1.2 of 3.0  decayed 43 %'
    """
    of_planned = "" if planned is None else f" of {planned:.1f}"
    return f"renewed {figures.renewed:.1f}{of_planned}  decayed {100 * (figures.decayed or 0):.0f} %"
