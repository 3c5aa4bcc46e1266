"""How large a region should be.

From the weights as given (the default): so large that the steps of a training keep weights about as long as they are.
By w, as in the paper: w times the norm that PyTorch's default initialisation would give the weight, whatever initialisation the
model itself uses. The live model is never touched: that norm has a closed form for convolutions and linear layers, and is
measured on a copy of the module for any other.
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
# MLPs and plain CNNs without norms: where each layer may grow 4.6-fold, 7 layers lose 15 points and more; where it may grow
# 1.3-fold, 4 layers lose 4. So 4 layers may grow 2.7-fold, 5 1.7-fold, 7 and more 1.2-fold.
_GROWTH, _LEAST_ROOM = 45.0, 1.2
# A weight below this share of a usual start is one that starts at zero on purpose, such as the last of a residual branch.
_NOTHING = 0.01

# The paper's CIFAR-10 runs: 100 epochs of 391 steps with w around 20. With its gradient rule the decay adds up over steps, so
# that shorter trainings need a smaller region; no grid of the paper goes beyond 50.
_PAPER_STEPS, _PAPER_W, _LARGEST_W, _UNNORMALISED_W = 39_000, 20.0, 50.0, 3.0
_DRAWS = 20


def checked_momentum(momentum: float) -> float:
    number = isinstance(momentum, numbers.Real) and not isinstance(momentum, bool)
    if not (number and 0 <= momentum < 1):
        raise ValueError(f"momentum must be a number of at least 0 and below 1, got {momentum!r}")
    return float(momentum)


def equilibrium_length(given: float, share: float, momentum: float = MOMENTUM) -> float:
    """The L2 radius r at which Frank-Wolfe steps of this share keep a weight of the norm `given` as long as it is.

    theta is the average of vertices v_t of length r, with weights eta (1 - eta)^s. Where the gradient is mostly noise, v_t and
    v_{t-s} have the correlation rho^s of the momentum, and E ||theta||^2 = r^2 (eta / 2) (1 + rho) / (1 - rho). Where it is
    mostly signal, theta may grow up to r. A step has the length eta r = given sqrt(2 eta (1 - rho) / (1 + rho)). Vertices of few
    units are less alike than that, and settle at 0.4 to 0.9 of it.
    """
    return given * math.sqrt(2 * (1 - momentum) / ((1 + momentum) * share))


def longest_in_stack(given: float, usual: float, layers: int) -> float:
    """How long a weight may become in a network of so many layers without any norm.

    There lengths multiply from layer to layer. Growth up to He's initialisation is healthy; beyond it, the deeper the stack, the
    less.
    """
    healthy = max(given, _HE * usual)
    return healthy * max(_LEAST_ROOM, 1 + _GROWTH / max(layers - 1, 1) ** 3)


def given_norm(norm: float, usual: float) -> float:
    """What counts as the norm of a weight: its own, or that of a usual start where it starts at (nearly) zero."""
    return norm if norm > _NOTHING * usual else usual


def default_w(steps: int, normalised: bool = True, kind: Kind | str | None = None) -> float:
    """About the w that the paper's gradient rule needs for this many steps: 20 at its 39,000, in proportion, at most 50.

    It is at least the kind's least_w, without which trainings of a few epochs hardly learn (digits, 63 to 420 steps: weights 28
    to 87 %, at 0.4 94 to 97 %; filters do, and larger regions do not help them). In a network without normalisation layers the
    scale of a weight matters, and regions that are much smaller than the initial weights keep it from learning: there, as for
    neurons, which norms seldom follow, w is at least 3, which leaves the start inside for k from about 0.1 on.
    """
    if isinstance(steps, bool) or not isinstance(steps, numbers.Integral) or steps < 1:
        raise ValueError(f"steps must be a whole number, of the optimizer steps in the whole training, got {steps!r}")
    least = _UNNORMALISED_W if not normalised else 0.0 if kind is None else kind_of(kind).least_w
    return max(least, min(_PAPER_W * int(steps) / _PAPER_STEPS, _LARGEST_W))


def initial_norm(module: nn.Module, name: str, parameter: Tensor) -> float:
    """sqrt(E ||p||^2) of parameter `name` of `module` under its default initialisation; 0 for one that starts at 0.

    Convolutions and linear layers draw uniformly from +-1/sqrt(fan_in), so that E ||p||^2 = entries / (3 fan_in).
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
    twin = copy.deepcopy(module).to("cpu", torch.float32)
    squares = []
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for _ in range(_DRAWS):
            twin.reset_parameters()  # type: ignore[operator]
            squares.append(float(twin.get_parameter(name).square().sum()))
    return math.sqrt(sum(squares) / len(squares))
