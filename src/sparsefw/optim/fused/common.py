"""Functions that kernels share: pointers to tensors, and the step-size rules of rescale.py on the device."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.rescale import Diameter, FastGradient, Gradient, Horizon, Rescale, Unscaled

# The widest load, and how many numbers it has: can_fuse takes tensors of float32 only.
LOAD_BYTES = tl.constexpr(16)
LOAD_NUMBERS = tl.constexpr(4)
SMALL = tl.constexpr(32)  # the size of the matrices that choose among directions: at least subspace.FOLLOWED
# 64 sqrt(tiny) of float32, as in gauges.negligible.
_NEGLIGIBLE = tl.constexpr(64 * 2.0**-63)
_UNSCALED = tl.constexpr(0)
_DIAMETER = tl.constexpr(1)
_GRADIENT = tl.constexpr(2)
_FAST_GRADIENT = tl.constexpr(3)
_HORIZON = tl.constexpr(4)
_RULES = {
    Unscaled: _UNSCALED,
    Diameter: _DIAMETER,
    Gradient: _GRADIENT,
    FastGradient: _FAST_GRADIENT,
    Horizon: _HORIZON,
}
_OF_BATCH = tl.constexpr(5)  # added to the number of a rule that depends on the batch's gradient


def rule_number(rule: Rescale) -> int | None:
    """Return the number of a rule in `step_size` below; None if no kernel computes it."""
    number = _RULES.get(type(rule))
    return None if number is None else number.value + _OF_BATCH.value * getattr(rule, "of_batch", False)


SCALES = tl.constexpr(7)  # numbers that `rule_scales` gives for a block


def rule_scales(rule: Rescale, diameter: float, entries: int) -> tuple[float, ...]:
    """Return the numbers from which `step_size` below computes a share.

    They are the diameter, and of Horizon the rate, full lr, steps, reach, sure share and the length of AdamW's step on a block
    of so many entries. The reach is 0 where there is none, and the length is 0 beside SGD.
    """
    if isinstance(rule, Horizon):
        assert rule.full_lr is not None
        bounds = (rule.reach or 0.0, rule.sure_share, rule.adamw_length(entries) or 0.0)
        return diameter, rule.rate, rule.full_lr, float(rule.steps), *bounds
    return diameter, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0


@triton.jit
def piece(tensors, starts, lengths, s, ALIGNED: tl.constexpr):
    """Return (tensor, start, length) of piece s."""
    length = tl.load(lengths + s)
    if ALIGNED:
        length = tl.multiple_of(length, LOAD_NUMBERS)
    return tl.load(tensors + s), tl.load(starts + s), length


@triton.jit
def pointer_to(addresses, tensor, start, ALIGNED: tl.constexpr):
    """Return a pointer to entry `start` of a tensor. ALIGNED promises multiples of LOAD_BYTES, so that loads are wide."""
    pointer = tl.load(addresses + tensor).to(tl.pointer_type(tl.float32))
    if ALIGNED:  # promised twice: the compiler drops a sum with 0, and with it the promise
        return tl.multiple_of(tl.multiple_of(pointer, LOAD_BYTES) + start, LOAD_BYTES)
    else:
        return pointer + start


@triton.jit
def step_size(lr, momentum, batch, distance, taken, scales, RULE: tl.constexpr):
    """Return eta in [0, 1] and whether the clamp cut it, as in rescale.py, in float64."""
    norm = batch if RULE >= _OF_BATCH else momentum
    KIND: tl.constexpr = RULE - _OF_BATCH if RULE >= _OF_BATCH else RULE
    if KIND == _UNSCALED:
        raw = lr
    elif KIND == _DIAMETER:
        raw = lr / tl.load(scales)
    elif KIND == _GRADIENT:
        raw = lr * norm / tl.where(distance > 0, distance, 1.0)
    elif KIND == _FAST_GRADIENT:
        raw = lr * norm / (tl.load(scales) / 2)
    else:
        rate = tl.load(scales + 1)
        full_lr = tl.load(scales + 2)
        steps = tl.load(scales + 3)
        reach = tl.load(scales + 4)
        raw = rate * tl.minimum(lr / full_lr, tl.maximum(1 - taken / steps, 1 / steps))
        sure_share = tl.load(scales + 5)
        adamw_length = tl.load(scales + 6)
        length = tl.where(adamw_length > 0, adamw_length, momentum)
        bound = tl.maximum(reach * lr * length / tl.where(distance > 0, distance, 1.0), sure_share)
        raw = tl.where(reach > 0, tl.minimum(raw, bound), raw)
    moves = (momentum > _NEGLIGIBLE) & (distance > 0)
    eta = tl.where(moves, tl.minimum(tl.maximum(raw, 0.0), 1.0), 0.0)
    return eta, (moves & (raw > 1)).to(tl.float64)


@triton.jit
def step_factor(
    b, momentum_norm, kept, inner, theta, batch, radii, scales, rates, bad, decay, eta, progress,
    RULE: tl.constexpr, FLAT: tl.constexpr = False,
):  # fmt: skip
    """Compute and record the step size of block b for the vertex v = -radius u / ||u||, or with FLAT v = -radius u.

    momentum_norm = ||m||, kept = ||u||, inner = <u, theta>, theta = ||theta||^2, batch = ||g||^2. Returns the factor of u.
    ||v - theta||^2 = ||v||^2 - 2 <v, theta> + ||theta||^2 is summed in float64, where the expansion loses nothing.
    """
    towards = tl.load(radii + b)
    if not FLAT:
        towards = tl.where(kept > 0, towards / tl.where(kept > 0, kept, 1.0), 0.0)
    square = theta + 2 * towards * inner + (towards * kept) * (towards * kept)
    distance = tl.sqrt(tl.maximum(square, 0.0))
    lr = tl.load(tl.load(rates + b).to(tl.pointer_type(tl.float32))).to(tl.float64)
    taken = tl.load(progress + 3 * b)
    share, clamped = step_size(
        lr, momentum_norm, tl.sqrt(batch).to(tl.float64), distance, taken, scales + SCALES * b, RULE
    )
    fine = tl.load(bad) == 0
    share = tl.where(fine, share, 0.0)
    tl.store(decay + b, (1 - share).to(tl.float32))
    tl.store(eta + b, share.to(tl.float32))
    tl.store(progress + 3 * b, taken + tl.where(fine, 1.0, 0.0))
    tl.store(progress + 3 * b + 1, tl.load(progress + 3 * b + 1) + share)
    tl.store(progress + 3 * b + 2, tl.load(progress + 3 * b + 2) + tl.where(fine, clamped, 0.0))
    return -share * towards
