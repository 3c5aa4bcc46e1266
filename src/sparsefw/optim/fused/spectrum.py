"""Few directions may grow (Spectrum): one block power iteration for all layers, by grouped matrix products.

geometry/subspace.py states the algorithm; here every line of it is one launch over all layers, cut into tiles of TILE x TILE:

    P = G V                     sfw_project     (in slices of the long side, so that all multiprocessors have work)
    A = P^T P in float64        sfw_gram        (adds up the slices of P, and A in slices of rows)
    D A D = L L^T               sfw_factorise   (D makes the columns of P unit vectors; dependent columns are dropped)
    U = P D L^-T                sfw_basis
    B = U^T G, U^T theta        sfw_coefficients
    eta                         sfw_choose_directions
    theta <- (1 - eta) theta - eta radius U B / ||B||      sfw_move_directions

G (n, m) is a block's momentum, or its transpose, with n <= m. V^T = B / ||G|| of the last step: its scale does not matter, since D
removes it. `layers` has a line of LAYER numbers per block; scratch memory is addressed by offsets in them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.fused.common import step_size

TILE = 64
SLICE = 512
# What a line of `layers` holds.
LAYER = (
    "tensor", "n", "m", "k", "transposed", "stride", "padded", "slices", "row_tiles", "p", "slice_p", "a", "l", "v", "d",
)  # fmt: skip
_WIDTH = tl.constexpr(len(LAYER))
# Of a column of unit length, the square of what is left beside the columns before it: below this it is rounding.
_DEPENDENT = tl.constexpr(1e-10)


@triton.jit
def _layer(layers, b, WHAT: tl.constexpr):
    return tl.load(layers + b * _WIDTH + WHAT)


@triton.jit
def _tile(base, i, j, n, m, transposed, stride):
    """G[i, j], 0 beyond its edges, from a matrix that lies in memory as G or as its transpose, by coalesced loads either way."""
    if transposed:
        turned = tl.load(base + j[:, None] * stride + i[None, :], mask=(j[:, None] < m) & (i[None, :] < n), other=0.0)
        found = tl.trans(turned)
    else:
        found = tl.load(base + i[:, None] * stride + j[None, :], mask=(i[:, None] < n) & (j[None, :] < m), other=0.0)
    return found


@triton.jit
def sfw_project(work, layers, momenta, warm, scratch, TILE: tl.constexpr, SLICE: tl.constexpr):
    """scratch: P = G V, one slice of the sum over m; work: (block, tile of rows, tile of columns, slice)."""
    w = tl.program_id(0) * 4
    b, rows, columns, part = tl.load(work + w), tl.load(work + w + 1), tl.load(work + w + 2), tl.load(work + w + 3)
    n, m, k = _layer(layers, b, 1), _layer(layers, b, 2), _layer(layers, b, 3)
    transposed, stride, padded = _layer(layers, b, 4), _layer(layers, b, 5), _layer(layers, b, 6)
    base = tl.load(momenta + _layer(layers, b, 0)).to(tl.pointer_type(tl.float32))
    V = warm + _layer(layers, b, 13)
    i, c = rows * TILE + tl.arange(0, TILE), columns * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(part * SLICE, min(part * SLICE + SLICE, m), TILE):
        j = start + tl.arange(0, TILE)
        g = _tile(base, i, j, n, m, transposed, stride)
        v = tl.load(V + c[None, :] * m + j[:, None], mask=(c[None, :] < k) & (j[:, None] < m), other=0.0)
        total = tl.dot(g, v, total)
    P = scratch + _layer(layers, b, 10) + part * n * padded
    tl.store(P + i[:, None] * padded + c[None, :], total, mask=i[:, None] < n)


@triton.jit
def sfw_gram(work, layers, scratch, wide, TILE: tl.constexpr):
    """P added up, and A = P^T P of one tile of rows; work: (block, tile of rows, tile of columns, another before or equal)."""
    w = tl.program_id(0) * 4
    b, rows, left, right = tl.load(work + w), tl.load(work + w + 1), tl.load(work + w + 2), tl.load(work + w + 3)
    n, padded, slices = _layer(layers, b, 1), _layer(layers, b, 6), _layer(layers, b, 7)
    i, c = rows * TILE + tl.arange(0, TILE), tl.arange(0, TILE)
    live = i[:, None] < n
    pieces = scratch + _layer(layers, b, 10) + i[:, None] * padded + c[None, :]
    x = tl.zeros((TILE, TILE), tl.float32)
    y = tl.zeros((TILE, TILE), tl.float32)
    for part in range(slices):
        x += tl.load(pieces + part * n * padded + left * TILE, mask=live, other=0.0)
        if left != right:
            y += tl.load(pieces + part * n * padded + right * TILE, mask=live, other=0.0)
    if left == right:
        y = x
        P = scratch + _layer(layers, b, 9) + i[:, None] * padded + c[None, :] + left * TILE
        tl.store(P, x, mask=live)
    product = tl.dot(tl.trans(x.to(tl.float64)), y.to(tl.float64), out_dtype=tl.float64)
    A = wide + _layer(layers, b, 11) + rows * padded * padded
    tl.store(A + (left * TILE + c[:, None]) * padded + right * TILE + c[None, :], product)


@triton.jit
def _gram_tile(A, left, right, padded, row_tiles, TILE: tl.constexpr):
    """The tile of A, added up over the tiles of rows."""
    at = A + (left * TILE + tl.arange(0, TILE)[:, None]) * padded + right * TILE + tl.arange(0, TILE)[None, :]
    total = tl.zeros((TILE, TILE), tl.float64)
    for part in range(row_tiles):
        total += tl.load(at + part * padded * padded)
    return total


@triton.jit
def _sum(figures, begin, count):
    total = tl.zeros((1024,), tl.float64)
    for start in range(0, count, 1024):
        i = start + tl.arange(0, 1024)
        total += tl.load(figures + begin + i, mask=i < count, other=0.0)
    return tl.sum(total)


@triton.jit
def sfw_factorise(layers, wide, figures, first, count, lengths, TILE: tl.constexpr):
    """lengths[b] = ||G||, and D A D = L L^T by tiles, one program per block. Kept: L below the diagonal tiles, L^-1 in them, and D.

    A column that depends on those before it gets D = 0 there, and 0 in U: a vertex of lower rank is feasible too.
    """
    b = tl.program_id(0)
    tl.store(lengths + b, tl.sqrt(_sum(figures, tl.load(first + b), tl.load(count + b))))
    k, padded, row_tiles = _layer(layers, b, 3), _layer(layers, b, 6), _layer(layers, b, 8)
    A, L, D = wide + _layer(layers, b, 11), wide + _layer(layers, b, 12), wide + _layer(layers, b, 14)
    r = tl.arange(0, TILE)
    row, column = r[:, None], r[None, :]
    tiles = (k + TILE - 1) // TILE
    for t in range(tiles):
        block = _gram_tile(A, t, t, padded, row_tiles, TILE)
        squares = tl.sum(tl.where(row == column, block, 0.0), axis=1)
        scale = tl.where(squares > 0, 1 / tl.sqrt(tl.where(squares > 0, squares, 1.0)), 0.0)
        tl.store(D + t * TILE + r, scale)
        tl.debug_barrier()
        block = block * scale[:, None] * tl.load(D + t * TILE + column)
        for p in range(t):
            left = tl.load(L + (t * TILE + row) * padded + p * TILE + column)
            block -= tl.dot(left, tl.trans(left), out_dtype=tl.float64)
        inverse = _inverse_factor(block, tl.minimum(TILE, k - t * TILE), TILE)
        tl.store(L + (t * TILE + row) * padded + t * TILE + column, inverse)
        for q in range(t + 1, tiles):
            lower = _gram_tile(A, q, t, padded, row_tiles, TILE)
            squares = tl.zeros((TILE,), tl.float64)
            for part in range(row_tiles):
                at = q * TILE + r
                squares += tl.load(A + part * padded * padded + at * padded + at)
            scale = tl.where(squares > 0, 1 / tl.sqrt(tl.where(squares > 0, squares, 1.0)), 0.0)
            lower = lower * scale[:, None] * tl.load(D + t * TILE + column)
            for p in range(t):
                left = tl.load(L + (q * TILE + row) * padded + p * TILE + column)
                right = tl.load(L + (t * TILE + row) * padded + p * TILE + column)
                lower -= tl.dot(left, tl.trans(right), out_dtype=tl.float64)
            lower = tl.dot(lower, tl.trans(inverse), out_dtype=tl.float64)
            tl.store(L + (q * TILE + row) * padded + t * TILE + column, lower)
        tl.debug_barrier()  # what this program has written, its other threads read in the next round


@triton.jit
def _inverse_factor(block, width, TILE: tl.constexpr):
    """L^-1 of block = L L^T, by elimination beside the identity; rows of dependent columns are 0."""
    r = tl.arange(0, TILE)
    row, column = r[:, None], r[None, :]
    inverse = tl.where((row == column) & (row < width), 1.0, 0.0).to(tl.float64)
    for c in range(width):
        across = tl.sum(tl.where(row == c, block, 0.0), axis=0)
        down = tl.sum(tl.where(column == c, block, 0.0), axis=1)
        pivot = tl.sum(tl.where(r == c, down, 0.0))
        root = tl.where(pivot > _DEPENDENT, 1 / tl.sqrt(tl.where(pivot > _DEPENDENT, pivot, 1.0)), 0.0)
        across, down = across * root, down * root
        line = tl.sum(tl.where(row == c, inverse, 0.0), axis=0) * root
        inverse = tl.where(row == c, line[None, :], inverse - tl.where(row > c, down[:, None], 0.0) * line[None, :])
        block -= down[:, None] * across[None, :]
    return inverse


@triton.jit
def sfw_basis(work, layers, scratch, wide, basis, TILE: tl.constexpr):
    """U = P D L^-T, tile after tile of columns; work: (block, tile of rows)."""
    w = tl.program_id(0) * 2
    b, rows = tl.load(work + w), tl.load(work + w + 1)
    n, k, padded = _layer(layers, b, 1), _layer(layers, b, 3), _layer(layers, b, 6)
    L, D = wide + _layer(layers, b, 12), wide + _layer(layers, b, 14)
    i, r = rows * TILE + tl.arange(0, TILE), tl.arange(0, TILE)
    live = i[:, None] < n
    P = scratch + _layer(layers, b, 9) + i[:, None] * padded + r[None, :]
    U = basis + _layer(layers, b, 9) + i[:, None] * padded + r[None, :]
    for t in range((k + TILE - 1) // TILE):
        x = tl.load(P + t * TILE, mask=live, other=0.0).to(tl.float64) * tl.load(D + t * TILE + r)[None, :]
        for p in range(t):
            known = tl.load(U + p * TILE, mask=live, other=0.0).to(tl.float64)
            left = tl.load(L + (t * TILE + r[:, None]) * padded + p * TILE + r[None, :])
            x -= tl.dot(known, tl.trans(left), out_dtype=tl.float64)
        inverse = tl.load(L + (t * TILE + r[:, None]) * padded + t * TILE + r[None, :])
        tl.store(U + t * TILE, tl.dot(x, tl.trans(inverse), out_dtype=tl.float64).to(tl.float32), mask=live)
        tl.debug_barrier()


@triton.jit
def sfw_coefficients(
    work, layers, momenta, weights, basis, warm, lengths, bad, sums, programs, TILE: tl.constexpr
):  # fmt: skip
    """warm <- B / ||G|| with B = U^T G, and for each tile ||B||^2 and <B, U^T theta>; work: (block, tile of k, tile of m)."""
    w = tl.program_id(0)
    b, rows, columns = tl.load(work + 3 * w), tl.load(work + 3 * w + 1), tl.load(work + 3 * w + 2)
    n, m, k = _layer(layers, b, 1), _layer(layers, b, 2), _layer(layers, b, 3)
    transposed, stride, padded = _layer(layers, b, 4), _layer(layers, b, 5), _layer(layers, b, 6)
    tensor = _layer(layers, b, 0)
    G = tl.load(momenta + tensor).to(tl.pointer_type(tl.float32))
    theta = tl.load(weights + tensor).to(tl.pointer_type(tl.float32))
    c, j = rows * TILE + tl.arange(0, TILE), columns * TILE + tl.arange(0, TILE)
    U = basis + _layer(layers, b, 9)
    product = tl.zeros((TILE, TILE), tl.float32)
    shadow = tl.zeros((TILE, TILE), tl.float32)
    norms = tl.zeros((TILE,), tl.float32)
    for start in range(0, n, TILE):
        i = start + tl.arange(0, TILE)
        u = tl.load(U + i[None, :] * padded + c[:, None], mask=(i[None, :] < n) & (c[:, None] < k), other=0.0)
        product = tl.dot(u, _tile(G, i, j, n, m, transposed, stride), product)
        shadow = tl.dot(u, _tile(theta, i, j, n, m, transposed, stride), shadow)
        norms += tl.sum(u * u, axis=1)
    length = tl.load(lengths + b).to(tl.float32)
    product = product / tl.where(length > 0, length, 1.0)
    tl.store(sums + w, tl.sum(product.to(tl.float64) * product.to(tl.float64)))
    tl.store(sums + programs + w, tl.sum(product.to(tl.float64) * shadow.to(tl.float64)))
    # A direction that vanished keeps its old start: a zero gradient must not erase it.
    if (length > 0) & (tl.load(bad) == 0):
        renewed = (norms[:, None] > 0) & (c[:, None] < k) & (j[None, :] < m)
        tl.store(warm + _layer(layers, b, 13) + c[:, None] * m + j[None, :], product, mask=renewed)


@triton.jit
def sfw_choose_directions(
    figures, pieces, first, count, sums, programs, first_program, program_count, lengths,
    radii, diameters, rates, norms, part_tensor, bad, decay, factor, gained, eta, clamped, steps, RULE: tl.constexpr,
):  # fmt: skip
    """Step size of each block: v = -radius U B / ||B||, hence <v, theta> = -radius <B, U^T theta> / ||B|| and <v, G> = -radius ||B||."""
    b = tl.program_id(0)
    length = tl.load(lengths + b)
    tt = _sum(figures + 2 * pieces, tl.load(first + b), tl.load(count + b))
    begin, n = tl.load(first_program + b), tl.load(program_count + b)
    kept = tl.sqrt(_sum(sums, begin, n))
    inner = _sum(sums + programs, begin, n)
    radius = tl.load(radii + b).to(tl.float64)
    towards = tl.where(kept > 0, radius / tl.where(kept > 0, kept, 1.0), 0.0)
    square = tt + 2 * towards * inner + (towards * kept) * (towards * kept)
    distance = tl.sqrt(tl.maximum(square, 0.0))
    lr = tl.load(tl.load(rates + b).to(tl.pointer_type(tl.float32))).to(tl.float64)
    batch = tl.load(norms + tl.load(part_tensor + b)).to(tl.float64)
    share, cut = step_size(lr, length, batch, distance, tl.load(diameters + b).to(tl.float64), RULE)
    fine = tl.load(bad) == 0
    share = tl.where(fine, share, 0.0)
    tl.store(decay + b, (1 - share).to(tl.float32))
    tl.store(factor + b, (-share * towards).to(tl.float32))
    tl.store(gained + b, (kept * length).to(tl.float32))
    tl.store(eta + b, share.to(tl.float32))
    tl.store(clamped + b, tl.load(clamped + b) + tl.where(fine, cut, 0))
    tl.store(steps + b, tl.load(steps + b) + 1)


@triton.jit
def sfw_move_directions(work, layers, weights, basis, warm, decay, factor, TILE: tl.constexpr):
    """theta <- decay theta + factor U B; work: (block, tile of n, tile of m)."""
    w = tl.program_id(0) * 3
    b, rows, columns = tl.load(work + w), tl.load(work + w + 1), tl.load(work + w + 2)
    n, m, k = _layer(layers, b, 1), _layer(layers, b, 2), _layer(layers, b, 3)
    transposed, stride, padded = _layer(layers, b, 4), _layer(layers, b, 5), _layer(layers, b, 6)
    theta = tl.load(weights + _layer(layers, b, 0)).to(tl.pointer_type(tl.float32))
    U, V = basis + _layer(layers, b, 9), warm + _layer(layers, b, 13)
    i, j = rows * TILE + tl.arange(0, TILE), columns * TILE + tl.arange(0, TILE)
    towards = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, k, 32):
        c = start + tl.arange(0, 32)
        u = tl.load(U + i[:, None] * padded + c[None, :], mask=(i[:, None] < n) & (c[None, :] < k), other=0.0)
        v = tl.load(V + c[:, None] * m + j[None, :], mask=(c[:, None] < k) & (j[None, :] < m), other=0.0)
        towards = tl.dot(u, v, towards)
    kept, share = tl.load(decay + b), tl.load(factor + b)
    if transposed:
        at, live = theta + j[:, None] * stride + i[None, :], (j[:, None] < m) & (i[None, :] < n)
        tl.store(at, kept * tl.load(at, mask=live) + share * tl.trans(towards), mask=live)
    else:
        at, live = theta + i[:, None] * stride + j[None, :], (i[:, None] < n) & (j[None, :] < m)
        tl.store(at, kept * tl.load(at, mask=live) + share * towards, mask=live)
