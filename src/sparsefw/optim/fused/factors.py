"""Kernels for the small factors of the power iteration in products.py, in float64: bases, leading directions, step sizes."""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.fused.common import SMALL, step_factor
from sparsefw.optim.fused.layer_table import (
    AT_A,
    AT_D,
    AT_L,
    AT_P,
    AT_SLICES,
    OF_K,
    OF_N,
    OF_PADDED,
    OF_PARTS,
    OF_SLICES,
    OF_SLOT,
    OF_WANTED,
    layer,
)

STEP = 32  # the tiles of L
_ROUNDS = tl.constexpr(3)
# A column of norm 1 counts as dependent on those before it if the square of its remainder is below this: the rounding of P in
# float32, and of the small matrices in float64.
_DEPENDENT = tl.constexpr(1e-10)
_SMALL_DEPENDENT = tl.constexpr(1e-12)


@triton.jit
def sfw_gram(work, layers, slices_of_p, p, wide, TILE: tl.constexpr):
    """Add up P, and A = P^T P over a part of the rows; work: (block, part, tile of columns, tile of columns before or equal)."""
    w = tl.program_id(0) * 4
    b = tl.load(work + w)
    part = tl.load(work + w + 1)
    left = tl.load(work + w + 2)
    right = tl.load(work + w + 3)
    n = layer(layers, b, OF_N)
    padded = layer(layers, b, OF_PADDED, TILE)
    slices = layer(layers, b, OF_SLICES)
    c = tl.arange(0, TILE)
    product = tl.zeros((TILE, TILE), tl.float64)
    for start in range(part * TILE, n, layer(layers, b, OF_PARTS) * TILE):
        i = start + c
        live = i[:, None] < n
        pieces = slices_of_p + layer(layers, b, AT_SLICES, TILE) + i[:, None] * padded + c[None, :]
        x = tl.zeros((TILE, TILE), tl.float32)
        y = tl.zeros((TILE, TILE), tl.float32)
        for slice_number in range(slices):
            x += tl.load(pieces + slice_number * n * padded + left * TILE, mask=live, other=0.0)
            if left != right:
                y += tl.load(pieces + slice_number * n * padded + right * TILE, mask=live, other=0.0)
        if left == right:
            y = x
            tl.store(p + layer(layers, b, AT_P, TILE) + i[:, None] * padded + c[None, :] + left * TILE, x, mask=live)
        product += tl.dot(tl.trans(x.to(tl.float64)), y.to(tl.float64), out_dtype=tl.float64)
    A = wide + layer(layers, b, AT_A) + part * padded * padded
    tl.store(A + (left * TILE + c[:, None]) * padded + right * TILE + c[None, :], product)


@triton.jit
def _gram_tile(A, left, right, padded, parts, STEP: tl.constexpr):
    """Return a tile of A, added up over the parts of the rows, of which four are loaded at a time."""
    at = A + (left * STEP + tl.arange(0, STEP)[:, None]) * padded + right * STEP + tl.arange(0, STEP)[None, :]
    total = tl.zeros((STEP, STEP), tl.float64)
    number = tl.zeros((STEP, STEP), tl.int32)
    for part in range(0, parts, 4):
        first = tl.load(at + part * padded * padded)
        second = tl.load(at + (part + 1) * padded * padded, mask=number + part + 1 < parts, other=0.0)
        third = tl.load(at + (part + 2) * padded * padded, mask=number + part + 2 < parts, other=0.0)
        fourth = tl.load(at + (part + 3) * padded * padded, mask=number + part + 3 < parts, other=0.0)
        total += (first + second) + (third + fourth)
    return total


@triton.jit
def _sum(figures, begin, count):
    total = tl.zeros((1024,), tl.float64)
    for start in range(0, count, 1024):
        i = start + tl.arange(0, 1024)
        total += tl.load(figures + begin + i, mask=i < count, other=0.0)
    return tl.sum(total)


@triton.jit
def sfw_factorise(layers, wide, figures, first, count, momentum_norms, STEP: tl.constexpr):
    """momentum_norms[b] <- ||G||, and D A D = L L^T by tiles, one program per block.

    Stores D, the tiles of L below the diagonal, and on the diagonal the inverses of its tiles.

    A column that depends on those before it gets a row of zeros in L^-1, hence 0 in U: a vertex of lower rank is feasible, too.
    """
    b = tl.program_id(0)
    tl.store(momentum_norms + b, tl.sqrt(_sum(figures, tl.load(first + b), tl.load(count + b))))
    k = layer(layers, b, OF_K)
    padded = layer(layers, b, OF_PADDED, STEP)
    parts = layer(layers, b, OF_PARTS)
    A = wide + layer(layers, b, AT_A)
    L = wide + layer(layers, b, AT_L)
    D = wide + layer(layers, b, AT_D)
    r = tl.arange(0, STEP)
    row, column = r[:, None], r[None, :]
    tiles = (k + STEP - 1) // STEP
    for t in range(tiles):
        squares = tl.zeros((STEP,), tl.float64)
        for part in range(parts):
            squares += tl.load(A + part * padded * padded + (t * STEP + r) * (padded + 1))
        tl.store(D + t * STEP + r, tl.where(squares > 0, 1 / tl.sqrt(tl.where(squares > 0, squares, 1.0)), 0.0))
    tl.debug_barrier()  # here and below, wait for what other threads have written
    for t in range(tiles):
        across = tl.load(D + t * STEP + column)
        block = _gram_tile(A, t, t, padded, parts, STEP) * tl.load(D + t * STEP + row) * across
        for p in range(t):
            left = tl.load(L + (t * STEP + row) * padded + p * STEP + column)
            block -= tl.dot(left, tl.trans(left), out_dtype=tl.float64)
        inverse = _inverse_factor(block, tl.minimum(STEP, k - t * STEP), STEP, _DEPENDENT)
        tl.store(L + (t * STEP + row) * padded + t * STEP + column, inverse)
        for q in range(t + 1, tiles):
            lower = _gram_tile(A, q, t, padded, parts, STEP) * tl.load(D + q * STEP + row) * across
            for p in range(t):
                left = tl.load(L + (q * STEP + row) * padded + p * STEP + column)
                right = tl.load(L + (t * STEP + row) * padded + p * STEP + column)
                lower -= tl.dot(left, tl.trans(right), out_dtype=tl.float64)
            lower = tl.dot(lower, tl.trans(inverse), out_dtype=tl.float64)
            tl.store(L + (q * STEP + row) * padded + t * STEP + column, lower)
        tl.debug_barrier()


@triton.jit
def _inverse_root(x, DEPENDENT: tl.constexpr):
    """Return 1 / sqrt(x) in float64, fast by float32 and two Newton steps; 0 for a dependent column."""
    safe = tl.where(x > DEPENDENT, x, 1.0)
    root = tl.rsqrt(safe.to(tl.float32)).to(tl.float64)
    root = root * (1.5 - 0.5 * safe * root * root)
    root = root * (1.5 - 0.5 * safe * root * root)
    return tl.where(x > DEPENDENT, root, 0.0)


@triton.jit
def _inverse_factor(block, width, STEP: tl.constexpr, DEPENDENT: tl.constexpr):
    """Return L^-1 of block = L L^T, by elimination beside the identity; rows of dependent columns are 0.

    A round eliminates two columns, since latency and not arithmetic limits it, and reads them as rows, since the block stays
    symmetric where it is still needed.
    """
    r = tl.arange(0, STEP)
    row, column = r[:, None], r[None, :]
    inverse = tl.where((row == column) & (row < width), 1.0, 0.0).to(tl.float64)
    for c in range(0, width, 2):
        here, next_one = row == c, row == c + 1
        x = tl.sum(tl.where(here, block, 0.0), axis=0)
        y = tl.sum(tl.where(next_one, block, 0.0), axis=0)
        u = tl.sum(tl.where(here, inverse, 0.0), axis=0)
        v = tl.sum(tl.where(next_one, inverse, 0.0), axis=0)
        pivot = tl.sum(tl.where(r == c, x, 0.0))
        beside = tl.sum(tl.where(r == c + 1, x, 0.0))
        corner = tl.sum(tl.where(r == c + 1, y, 0.0))
        root = _inverse_root(pivot, DEPENDENT)
        x = x * root
        u = u * root
        beside = beside * root
        root = _inverse_root(corner - beside * beside, DEPENDENT)
        y = (y - beside * x) * root
        v = (v - beside * u) * root
        down = tl.where(r > c + 1, x, 0.0)[:, None]
        down_next = tl.where(r > c + 1, y, 0.0)[:, None]
        block -= down * x[None, :] + down_next * y[None, :]
        inverse -= down * u[None, :] + down_next * v[None, :]
        inverse = tl.where(here, u[None, :], tl.where(next_one, v[None, :], inverse))
    return inverse


@triton.jit
def sfw_basis(work, layers, p, wide, basis, TILE: tl.constexpr, STEP: tl.constexpr):
    """U = P D L^-T, tile after tile of columns; work: (block, tile of rows)."""
    w = tl.program_id(0) * 2
    b = tl.load(work + w)
    rows = tl.load(work + w + 1)
    n = layer(layers, b, OF_N)
    k = layer(layers, b, OF_K)
    padded = layer(layers, b, OF_PADDED, TILE)
    L = wide + layer(layers, b, AT_L)
    D = wide + layer(layers, b, AT_D)
    i = rows * TILE + tl.arange(0, TILE)
    r = tl.arange(0, STEP)
    live = i[:, None] < n
    P = p + layer(layers, b, AT_P, TILE) + i[:, None] * padded + r[None, :]
    U = basis + layer(layers, b, AT_P, TILE) + i[:, None] * padded + r[None, :]
    for t in range((k + STEP - 1) // STEP):
        x = tl.load(P + t * STEP, mask=live, other=0.0).to(tl.float64) * tl.load(D + t * STEP + r)[None, :]
        for q in range(t):
            known = tl.load(U + q * STEP, mask=live, other=0.0).to(tl.float64)
            left = tl.load(L + (t * STEP + r[:, None]) * padded + q * STEP + r[None, :])
            x -= tl.dot(known, tl.trans(left), out_dtype=tl.float64)
        inverse = tl.load(L + (t * STEP + r[:, None]) * padded + t * STEP + r[None, :])
        tl.store(U + t * STEP, tl.dot(x, tl.trans(inverse), out_dtype=tl.float64).to(tl.float32), mask=live)
        tl.debug_barrier()


@triton.jit
def _orthonormal(Y, width, SIZE: tl.constexpr):
    norms = tl.sqrt(tl.sum(Y * Y, axis=0))
    Y = Y * tl.where(norms > 0, 1 / tl.where(norms > 0, norms, 1.0), 0.0)[None, :]
    inverse = _inverse_factor(tl.dot(tl.trans(Y), Y, out_dtype=tl.float64), width, SIZE, _SMALL_DEPENDENT)
    return tl.dot(Y, tl.trans(inverse), out_dtype=tl.float64)


@triton.jit
def sfw_lead(blocks, layers, small, basis, sums, programs, first_program, program_count, TILE: tl.constexpr):
    """U <- U Z Z^T for the listed blocks, with Z as in subspace.leading; sums <- ||Z^T B||^2 and <Z^T B, Z^T U^T theta>."""
    b = tl.load(blocks + tl.program_id(0))
    begin = tl.load(first_program + b)
    count = tl.load(program_count + b)
    wanted = layer(layers, b, OF_WANTED)
    r = tl.arange(0, SMALL)
    row, column = r[:, None], r[None, :]
    at = small + (begin + layer(layers, b, OF_SLOT)) * 2 * SMALL * SMALL + row * SMALL + column
    H = tl.zeros((SMALL, SMALL), tl.float64)
    X = tl.zeros((SMALL, SMALL), tl.float64)
    for p in range(count):
        H += tl.load(at + p * 2 * SMALL * SMALL).to(tl.float64)
        X += tl.load(at + p * 2 * SMALL * SMALL + SMALL * SMALL).to(tl.float64)
    axes = tl.sum(tl.where(row == column, H, 0.0), axis=1)
    across = tl.sum(tl.where(row == column, H, 0.0), axis=0)
    longer = (across[None, :] > axes[:, None]) | ((across[None, :] == axes[:, None]) & (column < row))
    rank = tl.sum(longer.to(tl.int32), axis=1)
    Z = tl.where((rank[:, None] == column) & (column < wanted), 1.0, 0.0).to(tl.float64)
    trace = tl.sum(axes)
    unit = H / tl.where(trace > 0, trace, 1.0)
    square = tl.dot(unit, unit, out_dtype=tl.float64)
    for _ in range(_ROUNDS):
        Z = _orthonormal(tl.dot(square, Z, out_dtype=tl.float64), wanted, SMALL)
    Z = _orthonormal(Z, wanted, SMALL)  # again, against rounding
    projector = tl.dot(Z, tl.trans(Z), out_dtype=tl.float64)
    for start in range(0, count, 1024):
        q = start + tl.arange(0, 1024)
        tl.store(sums + begin + q, tl.where(q == 0, tl.sum(projector * H), 0.0), mask=q < count)
        tl.store(sums + programs + begin + q, tl.where(q == 0, tl.sum(projector * X), 0.0), mask=q < count)
    n = layer(layers, b, OF_N)
    padded = layer(layers, b, OF_PADDED, TILE)
    for start in range(0, n, TILE):
        i = start + tl.arange(0, TILE)[:, None]
        U = basis + layer(layers, b, AT_P, TILE) + i * padded + column
        turned = tl.dot(tl.load(U, mask=i < n, other=0.0).to(tl.float64), projector, out_dtype=tl.float64)
        tl.store(U, turned.to(tl.float32), mask=i < n)


@triton.jit
def sfw_choose_directions(
    figures, pieces, first, count, sums, programs, first_program, program_count, momentum_norms,
    radii, scales, rates, norms, part_tensor, bad, decay, factor, eta, gained, progress, RULE: tl.constexpr,
):  # fmt: skip
    """Compute the step size of each block.

    v = -radius U B / ||B||, <v, theta> = -radius <B, U^T theta> / ||B||, <v, G> = -radius ||B||.
    """
    b = tl.program_id(0)
    momentum_norm = tl.load(momentum_norms + b)
    tt = _sum(figures + 2 * pieces, tl.load(first + b), tl.load(count + b))
    begin = tl.load(first_program + b)
    n = tl.load(program_count + b)
    kept = tl.sqrt(_sum(sums, begin, n))
    inner = _sum(sums + programs, begin, n)
    gradient = tl.load(norms + tl.load(part_tensor + b))
    towards = step_factor(
        b, momentum_norm, kept, inner, tt, gradient * gradient, radii, scales, rates, bad, decay, eta, progress, RULE
    )
    tl.store(factor + b, towards.to(tl.float32))
    tl.store(gained + b, (kept * momentum_norm).to(tl.float32))
