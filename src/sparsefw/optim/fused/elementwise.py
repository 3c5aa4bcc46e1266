"""Kernels that pass over all weights: the check of gradients, momentum, SGD, and the move of rows; and tables of addresses."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.fused.common import piece, pointer_to

SPAN = 1024  # the entries that a program holds at once


@triton.jit
def sfw_write_addresses(table, start, addresses):
    for i in tl.static_range(len(addresses)):
        tl.store(table + start + i, addresses[i])


@triton.jit
def sfw_squares(gradients, tensors, starts, lengths, aligned, bad, partial, SPAN: tl.constexpr):
    """partial[s] = sum of the squares of piece s; clears `bad`, which sfw_verdict then counts up."""
    s = tl.program_id(0)
    if s == 0:
        tl.store(bad, 0)
    if s < aligned:
        total = _squares(gradients, tensors, starts, lengths, s, True, SPAN)
    else:
        total = _squares(gradients, tensors, starts, lengths, s, False, SPAN)
    tl.store(partial + s, total)


@triton.jit
def _squares(gradients, tensors, starts, lengths, s, ALIGNED: tl.constexpr, SPAN: tl.constexpr):
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    g = pointer_to(gradients, tensor, start, ALIGNED)
    sums = tl.zeros((SPAN,), tl.float32)
    for start in range(0, length, SPAN):
        i = start + tl.arange(0, SPAN)
        x = tl.load(g + i, mask=i < length, other=0.0)
        sums += x * x
    return tl.sum(sums)


@triton.jit
def sfw_verdict(partial, first, count, limit, bad, tally, norms, SPAN: tl.constexpr):
    """norms[t] = ||g_t||; where it is not finite or near overflow, tally[t] and `bad` count it."""
    t = tl.program_id(0)
    begin = tl.load(first + t)
    pieces = tl.load(count + t)
    total = tl.zeros((SPAN,), tl.float32)
    for start in range(0, pieces, SPAN):
        i = start + tl.arange(0, SPAN)
        total += tl.load(partial + begin + i, mask=i < pieces, other=0.0)
    norm = tl.sqrt(tl.sum(total))
    tl.store(norms + t, norm)
    if (norm < limit) == 0:  # NaN compares as false
        tl.store(tally + t, tl.load(tally + t) + 1)
        tl.atomic_add(bad, 1)


@triton.jit
def sfw_sgd(
    gradients, momenta, weights, tensors, starts, lengths, aligned, bad, lr, rho, decay,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """d = g + decay theta; m <- rho m + d; theta <- theta - lr m, or - lr (d + rho m) with NESTEROV."""
    if tl.load(bad) == 0:
        s = tl.program_id(0)
        if s < aligned:
            _sgd(
                gradients, momenta, weights, tensors, starts, lengths, s, lr, rho, decay, MOMENTUM, NESTEROV, True, SPAN,
            )  # fmt: skip
        else:
            _sgd(
                gradients, momenta, weights, tensors, starts, lengths, s, lr, rho, decay, MOMENTUM, NESTEROV, False, SPAN,
            )  # fmt: skip


@triton.jit
def _sgd(
    gradients, momenta, weights, tensors, starts, lengths, s, lr, rho, decay,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, ALIGNED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    g = pointer_to(gradients, tensor, start, ALIGNED)
    w = pointer_to(weights, tensor, start, ALIGNED)
    rate = tl.load(lr)
    for begin in range(0, length, SPAN):
        i = begin + tl.arange(0, SPAN)
        live = i < length
        theta = tl.load(w + i, mask=live)
        d = tl.load(g + i, mask=live) + decay * theta
        if MOMENTUM:
            at = pointer_to(momenta, tensor, start, ALIGNED) + i
            m = rho * tl.load(at, mask=live) + d
            tl.store(at, m, mask=live)
            d = d + rho * m if NESTEROV else m
        tl.store(w + i, theta - rate * d, mask=live)


@triton.jit
def sfw_momentum(
    gradients, momenta, weights, tensors, starts, own_starts, lengths, aligned, bad, rho, figures, pieces, SPAN: tl.constexpr
):  # fmt: skip
    """m <- rho m + g (nothing on a bad step); figures[:, s] = (||m||^2, <m, theta>, ||theta||^2) of piece s, in float64."""
    s = tl.program_id(0)
    if s < aligned:
        mm, mt, tt = _momentum(
            gradients, momenta, weights, tensors, starts, own_starts, lengths, s, bad, rho, True, SPAN
        )
    else:
        mm, mt, tt = _momentum(
            gradients, momenta, weights, tensors, starts, own_starts, lengths, s, bad, rho, False, SPAN
        )
    tl.store(figures + s, mm)
    tl.store(figures + pieces + s, mt)
    tl.store(figures + 2 * pieces + s, tt)


@triton.jit
def _momentum(
    gradients, momenta, weights, tensors, starts, own_starts, lengths, s, bad, rho,
    ALIGNED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    g = pointer_to(gradients, tensor, start, ALIGNED)
    at = pointer_to(momenta, tensor, tl.load(own_starts + s), ALIGNED)
    w = pointer_to(weights, tensor, start, ALIGNED)
    fine = tl.load(bad) == 0
    mm = tl.zeros((SPAN,), tl.float64)
    mt = tl.zeros((SPAN,), tl.float64)
    tt = tl.zeros((SPAN,), tl.float64)
    for begin in range(0, length, SPAN):
        i = begin + tl.arange(0, SPAN)
        live = i < length
        m = tl.load(at + i, mask=live, other=0.0)
        step = tl.load(g + i, mask=live, other=0.0)
        theta = tl.load(w + i, mask=live, other=0.0).to(tl.float64)
        if fine:
            m = rho * m + step
            tl.store(at + i, m, mask=live)
        wide = m.to(tl.float64)
        mm += wide * wide
        mt += wide * theta
        tt += theta * theta
    return tl.sum(mm), tl.sum(mt), tl.sum(tt)


@triton.jit
def sfw_move_rows(
    momenta, weights, tensors, starts, own_starts, lengths, aligned, blocks, decay, factor, SPAN: tl.constexpr
):  # fmt: skip
    """theta <- decay theta + factor m: factor[s] is 0 on the rows that the vertex leaves out, whose m is not even read."""
    s = tl.program_id(0)
    if s < aligned:
        _move(momenta, weights, tensors, starts, own_starts, lengths, s, blocks, decay, factor, True, SPAN)
    else:
        _move(momenta, weights, tensors, starts, own_starts, lengths, s, blocks, decay, factor, False, SPAN)


@triton.jit
def _move(
    momenta, weights, tensors, starts, own_starts, lengths, s, blocks, decay, factor,
    ALIGNED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    w = pointer_to(weights, tensor, start, ALIGNED)
    kept = tl.load(decay + tl.load(blocks + tensor))
    towards = tl.load(factor + s)
    for begin in range(0, length, SPAN):
        i = begin + tl.arange(0, SPAN)
        live = i < length
        theta = tl.load(w + i, mask=live) * kept
        if towards != 0:
            theta += towards * tl.load(pointer_to(momenta, tensor, tl.load(own_starts + s), ALIGNED) + i, mask=live)
        tl.store(w + i, theta, mask=live)
