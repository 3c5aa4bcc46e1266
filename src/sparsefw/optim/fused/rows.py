"""Few rows may grow (Groups): the kernel that chooses the k rows of largest norm of every block, and its step size."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.fused.common import step_factor


@triton.jit
def sfw_choose_rows(
    figures, pieces, rows, supports, parts, first_part, part_piece, part_tensor,
    radii, scales, rates, norms, bad, decay, factor, eta, progress,
    RULE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute decay and factor for sfw_move_rows, one program per block.

    The vertex is -radius m_S / ||m_S|| on the set S of exactly k rows of largest norm; of rows with equal norms, the first.
    """
    b = tl.program_id(0)
    n = tl.load(rows + b)
    k = tl.load(supports + b)
    i = tl.arange(0, ROWS)
    live = i < n
    mm = tl.zeros((ROWS,), tl.float64)
    mt = tl.zeros((ROWS,), tl.float64)
    tt = tl.zeros((ROWS,), tl.float64)
    batch = 0.0
    for p in range(tl.load(first_part + b), tl.load(first_part + b) + tl.load(parts + b)):
        piece = tl.load(part_piece + p) + i
        mm += tl.load(figures + piece, mask=live, other=0.0)
        mt += tl.load(figures + pieces + piece, mask=live, other=0.0)
        tt += tl.load(figures + 2 * pieces + piece, mask=live, other=0.0)
        norm = tl.load(norms + tl.load(part_tensor + p))
        batch += norm * norm
    chosen = _k_largest(mm, live, k)
    kept = tl.sqrt(tl.sum(tl.where(chosen, mm, 0.0)))
    momentum_norm = tl.sqrt(tl.sum(mm))
    inner = tl.sum(tl.where(chosen, mt, 0.0))
    towards = step_factor(
        b, momentum_norm, kept, inner, tl.sum(tt), batch, radii, scales, rates, bad, decay, eta, progress, RULE
    )
    for p in range(tl.load(first_part + b), tl.load(first_part + b) + tl.load(parts + b)):
        piece = tl.load(part_piece + p) + i
        tl.store(factor + piece, tl.where(chosen, towards, 0.0).to(tl.float32), mask=live)


@triton.jit
def _k_largest(squares, live, k):
    """Return a mask of the k largest live entries, by the largest threshold that k of them reach, found bit by bit."""
    bits = tl.where(live, squares.to(tl.float32).to(tl.int32, bitcast=True), -1)
    threshold = 0
    for position in range(31):
        raised = threshold | (1 << (30 - position))
        threshold = tl.where(tl.sum((bits >= raised).to(tl.int32)) >= k, raised, threshold)
    above = bits > threshold
    ties = live & (bits == threshold)
    taken = tl.cumsum(ties.to(tl.int32), 0) <= k - tl.sum(above.to(tl.int32))
    return above | (ties & taken)
