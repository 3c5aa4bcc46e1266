"""The size of regions.

From the weights as given (the default): large enough that the steps of a training keep the weights about as long as they are.
By w, as in the paper: w times the norm that PyTorch's default initialisation would give the weight, whatever initialisation the
model itself uses. The model is never touched: that norm has a closed form for convolutions and linear layers, and is measured on
a copy of the module for any other.
"""

from __future__ import annotations

import copy
import math
import numbers

import torch
from torch import Tensor, nn

from sparsefw.kinds import Kind, kind_of
from sparsefw.layer_types import CONVOLUTIONS, TRANSPOSED

FROM_WEIGHTS = "from-weights"
MOMENTUM = 0.9  # SFW's default
_HE = math.sqrt(6)  # the length of He's initialisation, in that of PyTorch's default one
# How long a weight may grow in a deep network without norms, in units of its length at the start. Smaller regions shrink the
# weights of every layer: at 1.2, six layers of a VGG lose half of their length each within 300 steps, and 15 points.
LARGEST_GROWTH = 8.0
# A weight below this share of its default norm starts at zero on purpose, such as the last one of a residual branch.
_NEARLY_ZERO = 0.01

# The paper's CIFAR-10 runs: 100 epochs of 391 steps with w around 20. Under its gradient rule the decay adds up over steps, so
# shorter trainings need smaller regions; no grid of the paper goes beyond 50.
_PAPER_STEPS, _PAPER_W, _LARGEST_W, _UNNORMALISED_W = 39_000, 20.0, 50.0, 3.0
_DRAWS = 20


def checked_momentum(momentum: float) -> float:
    """Return the momentum as a float; ValueError where it is not in [0, 1)."""
    number = isinstance(momentum, numbers.Real) and not isinstance(momentum, bool)
    if not (number and 0 <= momentum < 1):
        raise ValueError(f"momentum must be a number of at least 0 and below 1, got {momentum!r}")
    return float(momentum)


def equilibrium_length(given: float, share: float, momentum: float = MOMENTUM) -> float:
    """Return the L2 radius r at which Frank-Wolfe steps of this share keep a weight of the norm `given` as long as it is.

    theta is the average of vertices v_t of length r, with weights eta (1 - eta)^s. Where the gradient is mostly noise, v_t and
    v_{t-s} have the correlation rho^s of the momentum, and E ||theta||^2 = r^2 (eta / 2) (1 + rho) / (1 - rho). Where it is
    mostly signal, theta may grow up to r. A step has the length eta r = given sqrt(2 eta (1 - rho) / (1 + rho)). Vertices with
    few units are less correlated: their average has 0.4 to 0.9 of this length.
    """
    return given * math.sqrt(2 * (1 - momentum) / ((1 + momentum) * share))


def shortness(start: float, default: float) -> float:
    """Return He's length of a weight in units of its own, and 1 for a longer one.

    >>> round(shortness(start=2.0, default=2.0), 3), shortness(start=6.0, default=2.0)  # PyTorch's initialisation; a longer one
    (2.449, 1.0)

    Args:
        start: the norm of the weight at the start.
        default: its norm under PyTorch's default initialisation.
    """
    return max(1.0, _HE * default / start) if start > 0 else 1.0


def norm_at_start(norm: float, default: float) -> float:
    """Return the norm of a weight, or that of its default initialisation where it starts at (nearly) zero."""
    return norm if norm > _NEARLY_ZERO * default else default


def default_w(steps: int, normalised: bool = True, kind: Kind | str | None = None) -> float:
    """Return about the w that the paper's gradient rule needs for this many steps: 20 at its 39,000, in proportion, at most 50.

    It is at least the kind's least_w, below which trainings of a few epochs hardly learn (digits, 63 to 420 steps: weights 28 to
    87 %, at 0.4 94 to 97 %; filters do learn, and larger regions do not help them). In a network without normalisation layers
    the scale of a weight matters, and regions much smaller than the initial weights keep it from learning: there, as for
    neurons, which norms seldom follow, w is at least 3, which leaves the start inside for k from about 0.1 on.

    >>> default_w(39_000), default_w(390), default_w(390, kind="weights")
    (20.0, 0.2, 0.4)
    """
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or steps < 1:
        raise ValueError(f"steps must be a whole number, of the optimizer steps in the whole training, got {steps!r}")
    least = _UNNORMALISED_W if not normalised else 0.0 if kind is None else kind_of(kind).least_w
    return max(least, min(_PAPER_W * int(steps) / _PAPER_STEPS, _LARGEST_W))


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
