"""timm: SFW as an optimizer of its registry, and param groups by its rules of weight decay.

register()
groups = partial(constrained, kind="filters", example=x, steps=epochs * updates_per_epoch)
optimizer = create_optimizer_v2(model, opt="sfw", lr=0.1, weight_decay=5e-4, param_group_fn=groups)
"""

from __future__ import annotations

from typing import Any

from torch import nn

from sparsefw.constraints import constrain
from sparsefw.integrations.requirements import not_installed, prepare_torchvision
from sparsefw.optim import SFW, ParamGroups

try:
    prepare_torchvision()
    from timm.optim import OptimInfo, list_optimizers
    from timm.optim._optim_factory import default_registry
except ModuleNotFoundError as error:
    raise not_installed(error, "timm", "vision") from error


def register() -> None:
    """Let create_optimizer_v2(model, opt="sfw", param_group_fn=...) make an SFW."""
    if list_optimizers("sfw"):
        return
    default_registry.register(
        OptimInfo(
            name="sfw",
            opt_class=_sfw,
            description="Stochastic Frank-Wolfe; needs param_group_fn, such as sparsefw.integrations.timm.constrained",
            has_eps=False,
            has_momentum=True,
        )
    )


def constrained(model: nn.Module, kind: str, **arguments: Any) -> ParamGroups:
    """Return the param groups of constrain, in which biases, norms and what the model names have no weight decay.

    Args:
        model: The network.
        kind: What is constrained.
        arguments: As of constrain: example, steps and so on.
    """
    named: set[str] = getattr(model, "no_weight_decay", set)()
    undecayed = [name for name, p in model.named_parameters() if p.requires_grad and (p.ndim <= 1 or name in named)]
    return constrain(model, kind, **arguments).without_decay(undecayed)


def _sfw(params: Any, **arguments: Any) -> SFW:
    groups = list(params)
    if not any("region" in group for group in groups if isinstance(group, dict)):
        raise ValueError(
            "opt='sfw' needs param_group_fn=, such as partial(constrained, kind='filters', example=x, steps=steps)"
        )
    return SFW(groups, **arguments)
