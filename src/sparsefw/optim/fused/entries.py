"""Few entries may grow (Elements): kernels that choose exactly the k largest of millions without sorting.

Magnitudes are read as integers, since the bits of floats order as the floats do. They are counted by their leading 8 bits; those
that share the leading bits of the k-th largest, by the next 12; and those among them by the last 11. Three passes find the k-th
largest exactly. Of the entries that equal it, the first are taken until there are k. The vertex is a multiple of u, which on the
chosen entries is m, or with FLAT their sign.

A piece is at most one BLOCK here. `counts` has COUNTS numbers per block of weights, those of the three passes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.fused.common import piece, pointer_to, step_factor

BLOCK = 4096
COUNTS = 256 + 4096 + 2048
_COUNTS = tl.constexpr(COUNTS)
_SIGN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _bits(m):
    return m.to(tl.int32, bitcast=True) & _SIGN


@triton.jit
def _tip(m, FLAT: tl.constexpr):
    return (m > 0).to(m.dtype) - (m < 0).to(m.dtype) if FLAT else m


@triton.jit
def sfw_narrow_entries(supports, counts, threshold, needed, PASS: tl.constexpr):
    """threshold[b] <- the leading digits of the k-th largest, one more per pass; needed[b] <- its rank among their entries."""
    b = tl.program_id(0)
    counts += b * _COUNTS
    if PASS == 0:
        bins, prefix, wanted = tl.arange(0, 256), 0, tl.load(supports + b)
    elif PASS == 1:
        bins, prefix, wanted = tl.arange(0, 4096), tl.load(threshold + b) << 12, tl.load(needed + b)
        counts += 256
    else:
        bins, prefix, wanted = tl.arange(0, 2048), tl.load(threshold + b) << 11, tl.load(needed + b)
        counts += 256 + 4096
    in_bin = tl.load(counts + bins)
    at_least = tl.sum(in_bin) - tl.cumsum(in_bin, 0) + in_bin
    digit = tl.max(tl.where(at_least >= wanted, bins, 0))
    tl.store(threshold + b, prefix | digit)
    tl.store(needed + b, wanted - tl.sum(tl.where(bins > digit, in_bin, 0)))


@triton.jit
def sfw_entry_momentum(
    gradients, momenta, tensors, starts, lengths, aligned, blocks, bad, rho, figures, counts, BLOCK: tl.constexpr
):
    """m <- rho m + g (nothing on a bad step); figures[s] = ||m||^2 of piece s; counts the leading 8 bits."""
    s = tl.program_id(0)
    if s < aligned:
        _entry_momentum(gradients, momenta, tensors, starts, lengths, s, blocks, bad, rho, figures, counts, True, BLOCK)
    else:
        _entry_momentum(
            gradients, momenta, tensors, starts, lengths, s, blocks, bad, rho, figures, counts, False, BLOCK
        )


@triton.jit
def _entry_momentum(
    gradients, momenta, tensors, starts, lengths, s, blocks, bad, rho, figures, counts,
    ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    i = tl.arange(0, BLOCK)
    live = i < length
    at = pointer_to(momenta, tensor, start, ALIGNED) + i
    m = tl.load(at, mask=live, other=0.0)
    if tl.load(bad) == 0:
        m = rho * m + tl.load(pointer_to(gradients, tensor, start, ALIGNED) + i, mask=live, other=0.0)
        tl.store(at, m, mask=live)
    tl.store(figures + s, tl.sum(m.to(tl.float64) * m.to(tl.float64)))
    # Magnitudes share a few exponents: they are counted here first, since atomic additions to one address run one at a time.
    bins = tl.arange(0, 256)
    in_bin = tl.histogram(_bits(m) >> 23, 256) - tl.where(bins == 0, BLOCK - length, 0)
    tl.atomic_add(counts + tl.load(blocks + tensor) * _COUNTS + bins, in_bin, mask=in_bin > 0)


@triton.jit
def sfw_count_entries(
    momenta, tensors, starts, lengths, aligned, blocks, threshold, counts, PASS: tl.constexpr, BLOCK: tl.constexpr
):
    """Count the next digit of the entries that share all known digits of the k-th largest."""
    s = tl.program_id(0)
    if s < aligned:
        _count(momenta, tensors, starts, lengths, s, blocks, threshold, counts, PASS, True, BLOCK)
    else:
        _count(momenta, tensors, starts, lengths, s, blocks, threshold, counts, PASS, False, BLOCK)


@triton.jit
def _count(
    momenta, tensors, starts, lengths, s, blocks, threshold, counts,
    PASS: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    i = tl.arange(0, BLOCK)
    bits = _bits(tl.load(pointer_to(momenta, tensor, start, ALIGNED) + i, mask=i < length, other=0.0))
    b = tl.load(blocks + tensor)
    counts += b * _COUNTS
    if PASS == 1:
        shared, at = bits >> 23, 256 + ((bits >> 11) & 4095)
    else:
        shared, at = bits >> 11, 256 + 4096 + (bits & 2047)
    tl.atomic_add(counts + at, 1, mask=(i < length) & (shared == tl.load(threshold + b)), sem="relaxed")


@triton.jit
def sfw_weigh_entries(
    momenta, weights, tensors, starts, lengths, aligned, blocks, threshold, figures, pieces,
    FLAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """figures[1:, s] <- ||u||^2, <u, theta> above the threshold; ||theta||^2; the number of entries at it, <u, theta> there."""
    s = tl.program_id(0)
    if s < aligned:
        _weigh(momenta, weights, tensors, starts, lengths, s, blocks, threshold, figures, pieces, FLAT, True, BLOCK)
    else:
        _weigh(momenta, weights, tensors, starts, lengths, s, blocks, threshold, figures, pieces, FLAT, False, BLOCK)


@triton.jit
def _weigh(
    momenta, weights, tensors, starts, lengths, s, blocks, threshold, figures, pieces,
    FLAT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    i = tl.arange(0, BLOCK)
    m = tl.load(pointer_to(momenta, tensor, start, ALIGNED) + i, mask=i < length, other=0.0)
    theta = tl.load(pointer_to(weights, tensor, start, ALIGNED) + i, mask=i < length, other=0.0).to(tl.float64)
    limit = tl.load(threshold + tl.load(blocks + tensor))
    above, equal = _bits(m) > limit, (_bits(m) == limit) & (i < length)
    wide = _tip(m, FLAT).to(tl.float64)
    tl.store(figures + pieces + s, tl.sum(tl.where(above, wide * wide, 0.0)))
    tl.store(figures + 2 * pieces + s, tl.sum(tl.where(above, wide * theta, 0.0)))
    tl.store(figures + 3 * pieces + s, tl.sum(theta * theta))
    tl.store(figures + 4 * pieces + s, tl.sum(equal.to(tl.int32)).to(tl.float64))
    tl.store(figures + 5 * pieces + s, tl.sum(tl.where(equal, wide * theta, 0.0)))


@triton.jit
def sfw_choose_entries(
    momenta, weights, starts, lengths, first, count, threshold, needed, figures, pieces,
    radii, scales, rates, norms, part_tensor, bad, allowed, decay, factor, eta, progress,
    RULE: tl.constexpr, FLAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Compute the step size of each block, and for every piece how many entries equal to the threshold it takes."""
    b = tl.program_id(0)
    limit, wanted = tl.load(threshold + b), tl.load(needed + b)
    begin, n = tl.load(first + b), tl.load(count + b)
    mm = tl.zeros((1024,), tl.float64)
    kept, inner, tt = mm, mm, mm
    equals = tl.zeros((), tl.float64)
    split = -1
    for position in range(0, n, 1024):
        s = begin + position + tl.arange(0, 1024)
        live = s < begin + n
        mm += tl.load(figures + s, mask=live, other=0.0)
        kept += tl.load(figures + pieces + s, mask=live, other=0.0)
        inner += tl.load(figures + 2 * pieces + s, mask=live, other=0.0)
        tt += tl.load(figures + 3 * pieces + s, mask=live, other=0.0)
        ties = tl.load(figures + 4 * pieces + s, mask=live, other=0.0)
        before = equals + tl.cumsum(ties, 0) - ties
        take = tl.minimum(tl.maximum(wanted - before, 0.0), ties)
        tl.store(allowed + s, take.to(tl.int32), mask=live)
        inner += tl.where(take == ties, tl.load(figures + 5 * pieces + s, mask=live, other=0.0), 0.0)
        split = tl.maximum(split, tl.max(tl.where((take > 0) & (take < ties), s, -1)))
        equals += tl.sum(ties)
    product = tl.sum(inner)
    tl.debug_barrier()  # wait for what other threads have written
    if split >= 0:  # the only piece that takes some of its equal entries, the first ones
        i = tl.arange(0, BLOCK)
        at, live = tl.load(starts + split) + i, i < tl.load(lengths + split)
        m = tl.load(pointer_to(momenta, tl.load(part_tensor + b), 0, False) + at, mask=live, other=0.0)
        theta = tl.load(pointer_to(weights, tl.load(part_tensor + b), 0, False) + at, mask=live, other=0.0)
        equal = live & (_bits(m) == limit)
        mine = tl.load(allowed + split)
        taken = equal & (tl.cumsum(equal.to(tl.int32), 0) <= mine)
        product += tl.sum(tl.where(taken, _tip(m, FLAT).to(tl.float64) * theta.to(tl.float64), 0.0))
    edge = _tip(limit.to(tl.float32, bitcast=True), FLAT).to(tl.float64)
    norm = tl.sqrt(tl.sum(kept) + wanted * edge * edge)
    length = tl.sqrt(tl.sum(mm))
    gradient = tl.load(norms + tl.load(part_tensor + b))
    towards = step_factor(
        b, length, norm, product, tl.sum(tt), gradient * gradient, radii, scales, rates, bad, decay, eta, progress,
        RULE, FLAT,
    )  # fmt: skip
    tl.store(factor + b, towards.to(tl.float32))


@triton.jit
def sfw_move_entries(
    momenta, weights, tensors, starts, lengths, aligned, blocks, threshold, allowed, decay, factor,
    FLAT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """theta <- decay theta + factor u on the chosen entries, decay theta on the others."""
    s = tl.program_id(0)
    if s < aligned:
        _move(
            momenta, weights, tensors, starts, lengths, s, blocks, threshold, allowed, decay, factor, FLAT, True, BLOCK
        )
    else:
        _move(
            momenta, weights, tensors, starts, lengths, s, blocks, threshold, allowed, decay, factor, FLAT, False, BLOCK
        )


@triton.jit
def _move(
    momenta, weights, tensors, starts, lengths, s, blocks, threshold, allowed, decay, factor,
    FLAT: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    i = tl.arange(0, BLOCK)
    live = i < length
    b = tl.load(blocks + tensor)
    w = pointer_to(weights, tensor, start, ALIGNED) + i
    m = tl.load(pointer_to(momenta, tensor, start, ALIGNED) + i, mask=live, other=0.0)
    bits, limit, mine = _bits(m), tl.load(threshold + b), tl.load(allowed + s)
    chosen = bits > limit
    if mine > 0:
        equal = live & (bits == limit)
        chosen = chosen | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= mine))
    theta = tl.load(w, mask=live) * tl.load(decay + b)
    tl.store(w, theta + tl.where(chosen, tl.load(factor + b) * _tip(m, FLAT), 0.0), mask=live)
