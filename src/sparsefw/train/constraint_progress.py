"""The constraint as a training sees it: how far it has come, and how far it is planned to come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from sparsefw.optim import SFW, Horizon


def constraint_figures(optimizer: SFW) -> dict[str, float] | None:
    """What metrics.jsonl keeps of it, over all constrained weights; None where none are. Reads the device."""
    found = optimizer.progress()
    return None if found is None else asdict(found)


def planned_renewals(optimizer: SFW) -> float | None:
    """How often the whole training is to renew its weights, groups counted by their size; None where a rule plans nothing."""
    constrained = [group for group in optimizer.param_groups if group["region"] is not None]
    rules = [group["rescale"] for group in constrained]
    if not rules or not all(isinstance(rule, Horizon) for rule in rules):
        return None
    sizes = [sum(p.numel() for p in group["params"]) for group in constrained]
    return sum(size * rule.renewals for size, rule in zip(sizes, rules, strict=True)) / sum(sizes)


def told(figures: Mapping[str, float], planned: float | None) -> str:
    """ "renewed 1.2 of 3.0  decayed 43 %"."""
    of = "" if planned is None else f" of {planned:.1f}"
    return f"renewed {figures['renewed']:.1f}{of}  decayed {100 * figures['decayed']:.0f} %"
