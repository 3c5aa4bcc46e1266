"""Defaults: how often a training renews its weights, and how many of them may grow.

Two things matter on networks that nobody tuned for (benchmarks/untuned_defaults.py): how large a share of a weight one step may
replace, and in how many steps each unit (a filter, a direction, a weight) is chosen and learns.
"""

from __future__ import annotations

from torch import nn

from sparsefw.geometry import Groups, Spectrum, View
from sparsefw.kinds import WEIGHTS
from sparsefw.layer_types import CONVOLUTIONS, NORMALISATION, TRANSPOSED
from sparsefw.optim.radius import LARGEST_GROWTH
from sparsefw.optim.rescale import LARGEST_SHARE, SURE_SHARE, Horizon

# How often a training renews its weights. SGD with the usual weight decay does so about 10 times in the paper's CIFAR-10 runs.
# Convolutions before norms lose nothing at 20, and much more of them can be removed (digits, 10,000 steps: the same at 30).
RENEWALS = 20.0
RENEWALS_OF_SCALES = 10.0  # of weights whose scale matters
# The scale of a convolution before a batch norm does not matter: steps only turn it, and it keeps learning while much of it is
# replaced. The scale of other weights matters, and networks of these (a ViT most of all) lose accuracy from a share of 0.0075 on.
SAFE_SHARE = 0.01
SAFE_SHARE_OF_SCALES = 0.005
# A step of the default length moves weights no further than SGD or AdamW would: what is as long as theirs trains as theirs do. At
# twice that, a U-Net with group norms has 54 % of digits after 150 steps where AdamW has 66; 74 % at REACH 1 (by k-support).
REACH = 1.0
# A convolution without a norm of its own, in a network where others have one, is mostly a gate that multiplies activations. The
# scale of its weights matters, and its gradients are small: in trainings below this number of steps even a share of SURE_SHARE is
# too much for it.
_SURE_STEPS_OF_GATES = 10_000
# A weight that is renewed R times keeps exp(-R) of itself where it is never chosen. Layers that are sure to be renewed no more
# often than this are left free: nothing decays, and only the steps are others than those of SGD or AdamW.
_LEAST_RENEWALS = 0.1
LARGEST_SHARE_OF_SCALES = 0.01  # where the user gives renewals; at 0.03 a CNN without norms stays at chance
# Layers in a row without normalisation multiply each other's changes. There a step may change a weight by this share of its norm
# under He's initialisation, divided by the number of other layers: MLPs and VGGs of 5 to 11 layers lose 5 to 20 points at 0.01
# per step, and learn too slowly in a few hundred steps below 0.001.
DEEP_WITHOUT_NORMS = 4
_RELATIVE_STEP_OF_DEEP = 0.018
# A unit learns in the steps that choose it, and needs some hundreds of them; rows, which only decay in the others, need more.
_LEARNING_STEPS = 400
_LEARNING_STEPS_OF_ROWS = 600
_LARGEST_K = 0.8


def has_scale_free_convolutions(model: nn.Module) -> bool:
    """Whether the network has at least one norm over channels for every two convolutions, so that norms follow most of them.

    A group norm of one group does not count: it is a layer norm, which precedes a layer instead of following it.
    """
    modules = list(model.modules())
    norms = sum(
        isinstance(module, nn.modules.batchnorm._NormBase)
        or (isinstance(module, nn.GroupNorm) and module.num_groups > 1)
        for module in modules
    )
    return 2 * norms >= max(1, sum(is_convolution(module) for module in modules))


def convolutions_before_norms(model: nn.Module) -> set[nn.Module]:
    """Return the convolutions that a norm follows, before any other layer of weights, by their order in the model.

    Some models define their norms after all convolutions of a block: there as many norms as convolutions are enough.
    """
    found: set[nn.Module] = set()
    last: nn.Module | None = None
    for module in model.modules():
        parts = list(module.children())
        convolutions = {part for part in parts if is_convolution(part)}
        if sum(_is_norm(part) for part in parts) >= len(convolutions):
            found |= convolutions
        if isinstance(module, WEIGHTS.layers):
            last = module
        elif last is not None and _is_norm(module):
            found |= {last} if is_convolution(last) else set()
            last = None
    return found


def is_normalised(model: nn.Module) -> bool:
    """Whether the network has any normalisation layer."""
    return any(isinstance(module, NORMALISATION) for module in model.modules())


def unnormalised_depth(model: nn.Module) -> int:
    """Return how many layers stand in a row without a norm between them, by their order in the model.

    Returns 0 if the network has a norm for every four layers at least: some models define their norms after all their layers.
    Parallel layers, such as experts, are counted as a row: only a forward pass could tell, and small steps harm no accuracy.
    """
    layers = 0
    norms = 0
    depth = 0
    longest = 0
    for module in model.modules():
        if isinstance(module, WEIGHTS.layers):
            layers += 1
            depth += 1
            longest = max(longest, depth)
        elif _is_norm(module):
            norms += 1
            depth = 0
    return 0 if 4 * norms >= layers else longest


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, NORMALISATION) or _is_norm_by_name(module)


def _is_norm_by_name(module: nn.Module) -> bool:
    """Whether this is a user's own normalisation layer. torch's own classes of such names, as of weight_norm, act on weights."""
    kind = type(module)
    return "norm" in kind.__name__.lower() and not kind.__module__.startswith("torch.")


def is_convolution(module: nn.Module) -> bool:
    return isinstance(module, (*CONVOLUTIONS, *TRANSPOSED))


def safe_share_without_norms(depth: int, he_norm_ratio: float) -> float:
    """Return the largest share that a step may replace of a weight in a deep row of layers without norms.

    Args:
        depth: how many layers stand in the row.
        he_norm_ratio: how many times larger the norm of the weight would be under He's initialisation; at least 1.
    """
    relative_step = _RELATIVE_STEP_OF_DEEP * he_norm_ratio / (depth - 1)
    return min(SAFE_SHARE_OF_SCALES, relative_step / LARGEST_GROWTH)


def horizon_for(
    steps: int,
    renewals: float | None,
    scale_free: bool,
    safe_share: float = SAFE_SHARE_OF_SCALES,
    is_gate: bool = False,
) -> Horizon:
    """Return the step-size rule for a block of weights.

    Args:
        steps: optimizer steps of the whole training.
        renewals: how often the weights are to be renewed, by steps of at most the largest share; None: at most as often as usual,
            by steps of at most the safe share that do not move weights further than SGD or AdamW would.
        scale_free: whether norms remove the scale of these weights.
        safe_share: of weights whose scale matters.
        is_gate: whether these are convolutions without a norm, in a network where others have one.
    """
    Horizon(steps, RENEWALS if renewals is None else renewals)  # raises where one of them is out of range
    if renewals is None:
        wanted = RENEWALS if scale_free else RENEWALS_OF_SCALES
        largest_share = SAFE_SHARE if scale_free else safe_share
        reach: float | None = REACH
    else:
        wanted = float(renewals)
        largest_share = LARGEST_SHARE if scale_free else LARGEST_SHARE_OF_SCALES
        reach = None
    sure_share = _sure_share_of_gates(steps) if is_gate else SURE_SHARE
    return Horizon(steps, min(wanted, largest_share * steps / 2), reach=reach, sure_share=sure_share)


def leaves_gates_free(steps: int) -> bool:
    """Whether a training of so few steps would renew gates too seldom to make anything of them decay.

    >>> leaves_gates_free(1_400), leaves_gates_free(1_500)
    (True, False)
    """
    return _sure_share_of_gates(steps) * steps / 2 < _LEAST_RENEWALS


def leaves_stacks_free(steps: int, depth: int) -> bool:
    """Whether a training of so few steps would renew layers in so deep a row without norms too seldom.

    By the share of weights under He's initialisation: that of the weights as given must not decide, or the groups of a training
    that is resumed would be others.

    >>> leaves_stacks_free(500, depth=7), leaves_stacks_free(600, depth=7)
    (True, False)
    """
    return safe_share_without_norms(depth, he_norm_ratio=1) * steps / 2 < _LEAST_RENEWALS


def _sure_share_of_gates(steps: int) -> float:
    return SURE_SHARE * min(steps / _SURE_STEPS_OF_GATES, 1)


def default_k(view: View, steps: int) -> float:
    """Return the fraction that may grow: 0.1 of the weights, 0.2 of the directions, 0.3 of the rows; more in short trainings.

    >>> default_k(Groups(), steps=10_000), default_k(Groups(), steps=1_000)
    (0.3, 0.6)
    """
    if isinstance(view, Groups):
        return max(0.3, min(_LARGEST_K, _LEARNING_STEPS_OF_ROWS / steps))
    usual = 0.2 if isinstance(view, Spectrum) else 0.1
    return max(usual, min(_LARGEST_K, _LEARNING_STEPS / steps))
