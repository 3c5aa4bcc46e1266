"""The size of regions.

From the weights as given (the default): large enough that the steps of a training keep the norms of the weights about the same.
By w, as in the paper: w times the norm that PyTorch's default initialisation would give the weight, whatever initialisation the
model itself uses. The model is never touched: that norm has a closed form for convolutions and linear layers, and is measured on
a copy of the module for any other.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from sparsefw.kinds import Kind, kind_of
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED
from sparsefw.scalars import is_number, is_whole

FROM_WEIGHTS = "from-weights"
MOMENTUM = 0.9  # SFW's default
_HE = math.sqrt(6)  # the norm of a weight under He's initialisation, relative to PyTorch's default one
# How large the norm of a weight may become in a deep network without normalisation, relative to the start. Smaller regions shrink
# the weights of every layer: at 1.2, each of six layers of a VGG halves its norm within 300 steps, and accuracy falls 15 points.
LARGEST_GROWTH = 8.0
# A weight whose norm is below this share of the default starts near zero on purpose, such as the last of a residual branch.
_NEARLY_ZERO = 0.01

# Beyond these sizes, the outputs of a layer vanish beside the eps of a norm, or their squares overflow: nothing is learned.
LEAST_W = 1e-4
LARGEST_W = 1e4

# The paper's CIFAR-10 runs: 100 epochs of 391 steps with w around 20. Under its gradient rule the decay adds up over steps, so
# shorter trainings need smaller regions; no grid of the paper goes beyond 50.
_PAPER_STEPS = 39_000
_PAPER_W = 20.0
_LARGEST_DEFAULT_W = 50.0
_UNNORMALISED_W = 3.0  # at least this in a network without normalisation layers
_DRAWS = 20


def checked_momentum(momentum: float) -> float:
    """Return the momentum as a float; ValueError where it is not in [0, 1)."""
    if not (is_number(momentum) and 0 <= momentum < 1):
        raise ValueError(f"momentum must be a number of at least 0 and below 1, got {momentum!r}")
    return float(momentum)


def equilibrium_radius(given: float, share: float, momentum: float = MOMENTUM) -> float:
    """Return the L2 radius r at which Frank-Wolfe steps of this share keep the norm of a weight at `given`.

    theta is the average of vertices v_t of norm r, with weights eta (1 - eta)^s. If the gradient is mostly noise, v_t and
    v_{t-s} have the correlation rho^s of the momentum, and E ||theta||^2 = r^2 (eta / 2) (1 + rho) / (1 - rho). If it is mostly
    signal, theta may grow up to r. A step has the norm eta r = given sqrt(2 eta (1 - rho) / (1 + rho)). Vertices with few units
    are less correlated: their average has 0.4 to 0.9 of this norm.
    """
    return given * math.sqrt(2 * (1 - momentum) / ((1 + momentum) * share))


def he_norm_ratio(start: float, default: float) -> float:
    """Return how many times larger the norm of the weight would be under He's initialisation; at least 1.

    >>> round(he_norm_ratio(start=2.0, default=2.0), 3)  # PyTorch's own initialisation
    2.449
    >>> he_norm_ratio(start=6.0, default=2.0)  # a larger one than He's
    1.0

    Args:
        start: the norm of the weight at the start.
        default: its norm under PyTorch's default initialisation.
    """
    return max(1.0, _HE * default / start) if start > 0 else 1.0


def norm_at_start(norm: float, default: float) -> float:
    """Return the norm of a weight, or that of its default initialisation where it starts at (nearly) zero."""
    return norm if norm > _NEARLY_ZERO * default else default


def default_w(steps: int, normalised: bool = True, kind: Kind | str | None = None) -> float:
    """Return about the w that the paper's gradient rule needs for this many steps: 20 for 39,000, in proportion, at most 50.

    It is at least the kind's least_w. Below that, trainings of a few epochs hardly learn: on digits, with 63 to 420 steps, sparse
    weights reach 28 to 87 %, but 94 to 97 % with w = 0.4. (Filters do learn, and larger regions do not help them.) In a network
    without normalisation layers w is at least 3, since the scale of a weight matters there, and regions much smaller than the
    initial weights keep it from learning. The same holds for neurons, which are seldom followed by normalisation. With w = 3
    the initial weights are inside the region for k from about 0.1 on.

    >>> default_w(39_000), default_w(390), default_w(390, kind="weights")
    (20.0, 0.2, 0.4)
    """
    if not is_whole(steps) or steps < 1:
        raise ValueError(
            f"steps must be an int of at least 1, the number of steps of the whole training, got {steps!r}"
        )
    least = 0.0 if kind is None else kind_of(kind).least_w
    if not normalised:
        least = _UNNORMALISED_W
    return max(least, min(_PAPER_W * int(steps) / _PAPER_STEPS, _LARGEST_DEFAULT_W))


def initial_norm(module: nn.Module, name: str, parameter: Tensor) -> float:
    """Return sqrt(E ||p||^2) of the parameter `name` of `module` under its default initialisation; 0 for one that starts at 0.

    Convolutions and linear layers draw uniformly from +-1/sqrt(fan_in), so that E ||p||^2 = entries / (3 fan_in).

    >>> layer = nn.Linear(3, 4)
    >>> round(initial_norm(layer, "weight", layer.weight), 3)
    1.155
    """
    if isinstance(module, (*CONVOLUTIONS, *TRANSPOSED, nn.Linear)) and name in ("weight", "bias"):
        fan_in = math.prod(module.weight.shape[1:])
        return math.sqrt(parameter.numel() / (3 * fan_in)) if fan_in else 0.0
    reset = getattr(type(module), "reset_parameters", None)
    if reset is None:
        raise ValueError(
            f"{type(module).__name__} has no reset_parameters, so the norm of its initial {name!r} is unknown: give a radius"
        )
    return _measured(module, name)


def _measured(module: nn.Module, name: str) -> float:
    """Return the root mean square of the norm over some initialisations of a copy of the module."""
    twin = copy.deepcopy(module).to("cpu", torch.float32)
    squares = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for _ in range(_DRAWS):
            twin.reset_parameters()  # type: ignore[operator]
            squares.append(float(twin.get_parameter(name).square().sum()))
    return math.sqrt(sum(squares) / len(squares))
