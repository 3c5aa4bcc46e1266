"""Few rows may grow (Groups): the choice of the k longest rows of every block, and its step size, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.fused.common import step_size


@triton.jit
def sfw_choose_rows(
    figures, pieces, rows, supports, parts, first_part, part_piece, part_tensor,
    radii, diameters, rates, norms, bad, decay, factor, eta, clamped, steps,
    RULE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """decay and factor for sfw_move_rows, one program per block.

    The vertex is -radius m_S / ||m_S|| on the set S of the k longest rows. Of rows of equal length the first are taken, so S has
    exactly k. ||v - theta||^2 = radius^2 + 2 radius <m_S, theta_S> / ||m_S|| + ||theta||^2, in float64.
    """
    b = tl.program_id(0)
    n, k = tl.load(rows + b), tl.load(supports + b)
    i = tl.arange(0, ROWS)
    live = i < n
    mm, mt, tt = tl.zeros((ROWS,), tl.float64), tl.zeros((ROWS,), tl.float64), tl.zeros((ROWS,), tl.float64)
    batch = 0.0
    for p in range(tl.load(first_part + b), tl.load(first_part + b) + tl.load(parts + b)):
        piece = tl.load(part_piece + p) + i
        mm += tl.load(figures + piece, mask=live, other=0.0)
        mt += tl.load(figures + pieces + piece, mask=live, other=0.0)
        tt += tl.load(figures + 2 * pieces + piece, mask=live, other=0.0)
        norm = tl.load(norms + tl.load(part_tensor + p))
        batch += norm * norm
    chosen = _longest(mm, live, k)
    kept = tl.sqrt(tl.sum(tl.where(chosen, mm, 0.0)))
    length = tl.sqrt(tl.sum(mm))
    inner = tl.sum(tl.where(chosen, mt, 0.0))
    radius = tl.load(radii + b).to(tl.float64)
    towards = tl.where(length > 0, radius / tl.where(kept > 0, kept, 1.0), 0.0)
    square = tl.sum(tt) + 2 * towards * inner + (towards * kept) * (towards * kept)
    distance = tl.sqrt(tl.maximum(square, 0.0))
    lr = tl.load(tl.load(rates + b).to(tl.pointer_type(tl.float32))).to(tl.float64)
    share, cut = step_size(
        lr, length, tl.sqrt(batch).to(tl.float64), distance, tl.load(diameters + b).to(tl.float64), RULE
    )
    fine = tl.load(bad) == 0
    share = tl.where(fine, share, 0.0)
    tl.store(decay + b, (1 - share).to(tl.float32))
    tl.store(eta + b, share.to(tl.float32))
    tl.store(clamped + b, tl.load(clamped + b) + tl.where(fine, cut, 0))
    tl.store(steps + b, tl.load(steps + b) + 1)
    for p in range(tl.load(first_part + b), tl.load(first_part + b) + tl.load(parts + b)):
        piece = tl.load(part_piece + p) + i
        tl.store(factor + piece, tl.where(chosen, -share * towards, 0.0).to(tl.float32), mask=live)


@triton.jit
def _longest(squares, live, k):
    """Which k of the live entries are largest: bit by bit the largest threshold that at least k of them reach."""
    bits = tl.where(live, squares.to(tl.float32).to(tl.int32, bitcast=True), -1)
    threshold = 0
    for position in range(31):
        raised = threshold | (1 << (30 - position))
        threshold = tl.where(tl.sum((bits >= raised).to(tl.int32)) >= k, raised, threshold)
    above = bits > threshold
    ties = live & (bits == threshold)
    taken = tl.cumsum(ties.to(tl.int32), 0) <= k - tl.sum(above.to(tl.int32))
    return above | (ties & taken)
