"""What is chosen where nothing is said: how often a training renews its weights, and how many of them may grow.

Two things matter on networks that nobody tuned for (benchmarks/strangers.py): how large a share of a weight one step may
replace, and how many steps each unit (a filter, a direction, a weight) gets to learn in.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from sparsefw.geometry import Groups, Spectrum, View
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED
from sparsefw.optim.rescale import LARGEST_SHARE, Horizon

# How often a training renews its weights. SGD with the usual weight decay does so about 10 times in the paper's CIFAR-10 runs.
# Convolutions before norms lose nothing at 20, and much more of them can be removed (digits, 10,000 steps: the same at 30).
RENEWALS, RENEWALS_OF_SCALES = 20.0, 10.0
# A convolution before a batch norm has no scale of its own: steps only turn it, and it learns on while much of it is replaced.
# Other weights carry the scale of what they compute, and networks of these (a ViT most of all) lose accuracy from 0.0075 on.
SAFE_SHARE, SAFE_SHARE_OF_SCALES = 0.01, 0.005
LARGEST_SHARE_OF_SCALES = 0.01  # asked for by name; at 0.03 a CNN without norms stays at chance
# A unit learns in the steps that choose it, and needs some hundreds of them; whole rows, which stand still meanwhile, need more.
_LEARNING_STEPS, _LEARNING_STEPS_OF_ROWS, _LARGEST_K = 400, 600, 0.8


def has_scale_free_convolutions(model: nn.Module) -> bool:
    """Whether the network has a norm over channels for every other convolution, at least, so that norms follow most of them.

    A group norm of one group is a layer norm, which comes before what it serves.
    """
    modules = list(model.modules())
    norms = sum(
        isinstance(module, nn.modules.batchnorm._NormBase)
        or (isinstance(module, nn.GroupNorm) and module.num_groups > 1)
        for module in modules
    )
    return 2 * norms >= max(1, sum(is_convolution(module) for module in modules))


def is_convolution(module: nn.Module) -> bool:
    return isinstance(module, (*CONVOLUTIONS, *TRANSPOSED))


def horizon_for(
    modules: Sequence[nn.Module], steps: int, renewals: float | None, scale_free_convolutions: bool
) -> Horizon:
    """The rule for a block of these modules' weights: `renewals` of them in `steps`, or as many as are safe."""
    scale_free = scale_free_convolutions and any(is_convolution(module) for module in modules)
    Horizon(steps, RENEWALS if renewals is None else renewals)  # refuses what is out of range
    if renewals is None:
        wanted, share = (RENEWALS, SAFE_SHARE) if scale_free else (RENEWALS_OF_SCALES, SAFE_SHARE_OF_SCALES)
    else:
        wanted, share = float(renewals), LARGEST_SHARE if scale_free else LARGEST_SHARE_OF_SCALES
    return Horizon(steps, min(wanted, share * steps / 2))


def default_k(view: View, steps: int) -> float:
    """The fraction that may grow: 0.1 of the weights, 0.2 of the directions, 0.3 of the rows; more in short trainings."""
    if isinstance(view, Groups):
        goal, learning = 0.3, _LEARNING_STEPS_OF_ROWS
    else:
        goal, learning = 0.2 if isinstance(view, Spectrum) else 0.1, _LEARNING_STEPS
    return max(goal, min(_LARGEST_K, learning / steps))
