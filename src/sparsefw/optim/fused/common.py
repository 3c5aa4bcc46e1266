"""What the kernels share: finding a tensor, and the step-size rules of rescale.py on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.rescale import Diameter, FastGradient, Gradient, Rescale, Unscaled

# Rows of the table of addresses.
GRADIENT, MOMENTUM, WEIGHT = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# What a line of `layers` holds: see directions.Layer.
OF_TENSOR, OF_N, OF_M, OF_K, OF_LIES, OF_STRIDE, OF_PADDED, OF_SLICES = (tl.constexpr(i) for i in range(8))
OF_ROW_TILES, OF_P, OF_SLICE_P, OF_A, OF_L, OF_V, OF_D, OF_WANTED, OF_SLOT = (tl.constexpr(i) for i in range(8, 17))
_WIDTH = tl.constexpr(17)
SMALL = tl.constexpr(32)  # no less than subspace.FOLLOWED: the size of the matrices that choose among directions
# As gauges.negligible: 64 sqrt(tiny) of float32.
_NEGLIGIBLE = tl.constexpr(64 * 2.0**-63)
_UNSCALED, _DIAMETER, _GRADIENT, _FAST_GRADIENT = 0, 1, 2, 3
_RULES = {Unscaled: _UNSCALED, Diameter: _DIAMETER, Gradient: _GRADIENT, FastGradient: _FAST_GRADIENT}


def rule_number(rule: Rescale) -> int | None:
    """The rule as `step_size` below knows it; None for one it does not."""
    number = _RULES.get(type(rule))
    return None if number is None else number + 4 * getattr(rule, "of_batch", False)


@triton.jit
def entries(addresses, tensor, start, ALIGNED: tl.constexpr):
    """Pointer to entry `start` of a tensor. ALIGNED promises multiples of 16 bytes, so that loads are wide."""
    pointer = tl.load(addresses + tensor).to(tl.pointer_type(tl.float32)) + start
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def step_size(lr, momentum, batch, distance, diameter, RULE: tl.constexpr):
    """(eta in [0, 1], whether the clamp cut it): as in rescale.py, in float64."""
    length = batch if RULE >= 4 else momentum
    if RULE % 4 == 0:
        raw = lr
    elif RULE % 4 == 1:
        raw = lr / diameter
    elif RULE % 4 == 2:
        raw = lr * length / tl.where(distance > 0, distance, 1.0)
    else:
        raw = lr * length / (diameter / 2)
    moves = (momentum > _NEGLIGIBLE) & (distance > 0)
    eta = tl.where(moves, tl.minimum(tl.maximum(raw, 0.0), 1.0), 0.0)
    return eta, (moves & (raw > 1)).to(tl.int64)


@triton.jit
def layer(layers, b, WHAT: tl.constexpr, UNIT: tl.constexpr = 1):
    """A number of block b, promised to be a multiple of UNIT."""
    number = tl.load(layers + b * _WIDTH + WHAT)
    if UNIT > 1:
        number = tl.multiple_of(number, UNIT)
    return number
