"""Few entries may grow (Elements): kernels that choose exactly the k largest of millions without sorting.

The bits of magnitudes, read as integers, have the order of the magnitudes. They are split into three digits; three passes find
the digits of the k-th largest one after the other: each counts the values of the next digit among the entries that share the
digits known so far. Of the entries that equal the k-th largest, the first ones are taken until there are k. The vertex is a
multiple of u, which on the chosen entries is m, or with FLAT their sign.

A piece has at most SPAN entries here, all of which one program holds at once. `counts` has COUNTS numbers per block: those of the
three passes, one after the other.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.fused.common import piece, pointer_to, step_factor

SPAN = 4096  # the entries that a program holds at once
# The bits of each digit of a magnitude, the leading digit first: 31, all bits of a float32 but the sign.
_DIGIT_BITS = (8, 12, 11)
_BITS_1 = tl.constexpr(_DIGIT_BITS[1])
_BITS_2 = tl.constexpr(_DIGIT_BITS[2])
_BINS_0 = tl.constexpr(1 << _DIGIT_BITS[0])
_BINS_1 = tl.constexpr(1 << _DIGIT_BITS[1])
_BINS_2 = tl.constexpr(1 << _DIGIT_BITS[2])
COUNTS = sum(1 << bits for bits in _DIGIT_BITS)
_COUNTS = tl.constexpr(COUNTS)
_ALL_BUT_SIGN = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _magnitude_bits(m):
    return m.to(tl.int32, bitcast=True) & _ALL_BUT_SIGN


@triton.jit
def _vertex_entry(m, FLAT: tl.constexpr):
    """Return the entry of u at a chosen entry of m."""
    return (m > 0).to(m.dtype) - (m < 0).to(m.dtype) if FLAT else m


@triton.jit
def sfw_narrow_entries(supports, counts, threshold, needed, PASS: tl.constexpr):
    """Append one digit per pass to threshold[b], the known digits of the k-th largest.

    needed[b] <- its rank among the entries that share these digits: in the end, how many entries equal to it are taken.
    """
    b = tl.program_id(0)
    counts += b * _COUNTS
    if PASS == 0:
        bins = tl.arange(0, _BINS_0)
        prefix = 0
        wanted = tl.load(supports + b)
    elif PASS == 1:
        bins = tl.arange(0, _BINS_1)
        prefix = tl.load(threshold + b) << _BITS_1
        wanted = tl.load(needed + b)
        counts += _BINS_0
    else:
        bins = tl.arange(0, _BINS_2)
        prefix = tl.load(threshold + b) << _BITS_2
        wanted = tl.load(needed + b)
        counts += _BINS_0 + _BINS_1
    in_bin = tl.load(counts + bins)
    at_least = tl.sum(in_bin) - tl.cumsum(in_bin, 0) + in_bin
    digit = tl.max(tl.where(at_least >= wanted, bins, 0))
    tl.store(threshold + b, prefix | digit)
    tl.store(needed + b, wanted - tl.sum(tl.where(bins > digit, in_bin, 0)))


@triton.jit
def sfw_entry_momentum(
    gradients, momenta, tensors, starts, lengths, aligned, blocks, bad, rho, figures, counts, SPAN: tl.constexpr
):
    """m <- rho m + g (unchanged on a bad step); figures[s] = ||m||^2 of piece s; counts the values of the leading digit."""
    s = tl.program_id(0)
    if s < aligned:
        _entry_momentum(gradients, momenta, tensors, starts, lengths, s, blocks, bad, rho, figures, counts, True, SPAN)
    else:
        _entry_momentum(gradients, momenta, tensors, starts, lengths, s, blocks, bad, rho, figures, counts, False, SPAN)


@triton.jit
def _entry_momentum(
    gradients, momenta, tensors, starts, lengths, s, blocks, bad, rho, figures, counts,
    ALIGNED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    i = tl.arange(0, SPAN)
    live = i < length
    at = pointer_to(momenta, tensor, start, ALIGNED) + i
    m = tl.load(at, mask=live, other=0.0)
    if tl.load(bad) == 0:
        m = rho * m + tl.load(pointer_to(gradients, tensor, start, ALIGNED) + i, mask=live, other=0.0)
        tl.store(at, m, mask=live)
    tl.store(figures + s, tl.sum(m.to(tl.float64) * m.to(tl.float64)))
    # Magnitudes share a few exponents: count within the piece first, since atomic additions to one address run one at a time.
    bins = tl.arange(0, _BINS_0)
    leading = _magnitude_bits(m) >> (_BITS_1 + _BITS_2)
    in_bin = tl.histogram(leading, _BINS_0) - tl.where(bins == 0, SPAN - length, 0)
    tl.atomic_add(counts + tl.load(blocks + tensor) * _COUNTS + bins, in_bin, mask=in_bin > 0)


@triton.jit
def sfw_count_entries(
    momenta, tensors, starts, lengths, aligned, blocks, threshold, counts, PASS: tl.constexpr, SPAN: tl.constexpr
):
    """Count the values of the next digit among the entries that share the known digits of the k-th largest."""
    s = tl.program_id(0)
    if s < aligned:
        _count(momenta, tensors, starts, lengths, s, blocks, threshold, counts, PASS, True, SPAN)
    else:
        _count(momenta, tensors, starts, lengths, s, blocks, threshold, counts, PASS, False, SPAN)


@triton.jit
def _count(
    momenta, tensors, starts, lengths, s, blocks, threshold, counts,
    PASS: tl.constexpr, ALIGNED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    i = tl.arange(0, SPAN)
    bits = _magnitude_bits(tl.load(pointer_to(momenta, tensor, start, ALIGNED) + i, mask=i < length, other=0.0))
    b = tl.load(blocks + tensor)
    counts += b * _COUNTS
    if PASS == 1:
        known = bits >> (_BITS_1 + _BITS_2)
        at = _BINS_0 + ((bits >> _BITS_2) & (_BINS_1 - 1))
    else:
        known = bits >> _BITS_2
        at = _BINS_0 + _BINS_1 + (bits & (_BINS_2 - 1))
    tl.atomic_add(counts + at, 1, mask=(i < length) & (known == tl.load(threshold + b)), sem="relaxed")


@triton.jit
def sfw_weigh_entries(
    momenta, weights, tensors, starts, lengths, aligned, blocks, threshold, figures, pieces,
    FLAT: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """figures[1:, s] <- sums over piece s.

    1, 2: ||u||^2 and <u, theta> of the entries above the threshold; 3: ||theta||^2; 4, 5: the number of entries equal to the
    threshold, and <u, theta> of these.
    """
    s = tl.program_id(0)
    if s < aligned:
        _weigh(momenta, weights, tensors, starts, lengths, s, blocks, threshold, figures, pieces, FLAT, True, SPAN)
    else:
        _weigh(momenta, weights, tensors, starts, lengths, s, blocks, threshold, figures, pieces, FLAT, False, SPAN)


@triton.jit
def _weigh(
    momenta, weights, tensors, starts, lengths, s, blocks, threshold, figures, pieces,
    FLAT: tl.constexpr, ALIGNED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    i = tl.arange(0, SPAN)
    m = tl.load(pointer_to(momenta, tensor, start, ALIGNED) + i, mask=i < length, other=0.0)
    theta = tl.load(pointer_to(weights, tensor, start, ALIGNED) + i, mask=i < length, other=0.0).to(tl.float64)
    limit = tl.load(threshold + tl.load(blocks + tensor))
    above = _magnitude_bits(m) > limit
    equal = (_magnitude_bits(m) == limit) & (i < length)
    wide = _vertex_entry(m, FLAT).to(tl.float64)
    tl.store(figures + pieces + s, tl.sum(tl.where(above, wide * wide, 0.0)))
    tl.store(figures + 2 * pieces + s, tl.sum(tl.where(above, wide * theta, 0.0)))
    tl.store(figures + 3 * pieces + s, tl.sum(theta * theta))
    tl.store(figures + 4 * pieces + s, tl.sum(equal.to(tl.int32)).to(tl.float64))
    tl.store(figures + 5 * pieces + s, tl.sum(tl.where(equal, wide * theta, 0.0)))


@triton.jit
def sfw_choose_entries(
    momenta, weights, starts, lengths, first, count, threshold, needed, figures, pieces,
    radii, scales, rates, norms, part_tensor, bad, allowed, decay, factor, eta, progress,
    RULE: tl.constexpr, FLAT: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Compute the step size of each block; allowed[s] <- how many entries equal to the threshold are taken from piece s."""
    b = tl.program_id(0)
    limit = tl.load(threshold + b)
    wanted = tl.load(needed + b)
    begin = tl.load(first + b)
    n = tl.load(count + b)
    mm = tl.zeros((1024,), tl.float64)
    kept = mm
    inner = mm
    tt = mm
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
    if split >= 0:  # the only piece of which some, but not all entries equal to the threshold are taken: the first ones
        i = tl.arange(0, SPAN)
        at = tl.load(starts + split) + i
        live = i < tl.load(lengths + split)
        m = tl.load(pointer_to(momenta, tl.load(part_tensor + b), 0, False) + at, mask=live, other=0.0)
        theta = tl.load(pointer_to(weights, tl.load(part_tensor + b), 0, False) + at, mask=live, other=0.0)
        equal = live & (_magnitude_bits(m) == limit)
        equals_taken = tl.load(allowed + split)
        taken = equal & (tl.cumsum(equal.to(tl.int32), 0) <= equals_taken)
        product += tl.sum(tl.where(taken, _vertex_entry(m, FLAT).to(tl.float64) * theta.to(tl.float64), 0.0))
    edge = _vertex_entry(limit.to(tl.float32, bitcast=True), FLAT).to(tl.float64)
    vertex_norm = tl.sqrt(tl.sum(kept) + wanted * edge * edge)
    momentum_norm = tl.sqrt(tl.sum(mm))
    gradient = tl.load(norms + tl.load(part_tensor + b))
    towards = step_factor(
        b, momentum_norm, vertex_norm, product, tl.sum(tt), gradient * gradient, radii, scales, rates, bad, decay, eta, progress,
        RULE, FLAT,
    )  # fmt: skip
    tl.store(factor + b, towards.to(tl.float32))


@triton.jit
def sfw_move_entries(
    momenta, weights, tensors, starts, lengths, aligned, blocks, threshold, allowed, decay, factor,
    FLAT: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """theta <- decay theta + factor u on the chosen entries, decay theta on the others."""
    s = tl.program_id(0)
    if s < aligned:
        _move(
            momenta, weights, tensors, starts, lengths, s, blocks, threshold, allowed, decay, factor, FLAT, True, SPAN
        )
    else:
        _move(
            momenta, weights, tensors, starts, lengths, s, blocks, threshold, allowed, decay, factor, FLAT, False, SPAN
        )


@triton.jit
def _move(
    momenta, weights, tensors, starts, lengths, s, blocks, threshold, allowed, decay, factor,
    FLAT: tl.constexpr, ALIGNED: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    tensor, start, length = piece(tensors, starts, lengths, s, ALIGNED)
    i = tl.arange(0, SPAN)
    live = i < length
    b = tl.load(blocks + tensor)
    w = pointer_to(weights, tensor, start, ALIGNED) + i
    m = tl.load(pointer_to(momenta, tensor, start, ALIGNED) + i, mask=live, other=0.0)
    bits = _magnitude_bits(m)
    limit = tl.load(threshold + b)
    equals_taken = tl.load(allowed + s)
    chosen = bits > limit
    if equals_taken > 0:
        equal = live & (bits == limit)
        chosen = chosen | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= equals_taken))
    theta = tl.load(w, mask=live) * tl.load(decay + b)
    tl.store(w, theta + tl.where(chosen, tl.load(factor + b) * _vertex_entry(m, FLAT), 0.0), mask=live)
