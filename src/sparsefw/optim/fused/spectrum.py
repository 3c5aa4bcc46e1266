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
STEP = 32  # the tiles of L: small enough for one warp, whose threads need not wait for those of others
SLICE = 512
# What a line of `layers` holds. lies: 1 where G lies in memory as it is, 0 where its transpose does, + 2 where all rows start at
# multiples of 16 bytes.
LAYER = (
    "tensor", "n", "m", "k", "lies", "stride", "padded", "slices", "row_tiles", "p", "slice_p", "a", "l", "v", "d",
)  # fmt: skip
_WIDTH = tl.constexpr(len(LAYER))
# Of a column of unit length, the square of what is left beside the columns before it: below this it is rounding.
_DEPENDENT = tl.constexpr(1e-10)


@triton.jit
def _layer(layers, b, WHAT: tl.constexpr, UNIT: tl.constexpr = 1):
    """A number of block b, promised to be a multiple of UNIT."""
    number = tl.load(layers + b * _WIDTH + WHAT)
    if UNIT > 1:
        number = tl.multiple_of(number, UNIT)
    return number


@triton.jit
def _matrix(addresses, layers, b, ALIGNED: tl.constexpr):
    """Where the momentum or the weight of block b lies."""
    pointer = tl.load(addresses + _layer(layers, b, 0)).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


@triton.jit
def _dot(a, b, total, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)


@triton.jit
def _tile(matrix, i, j, n, m, stride, TRANSPOSED: tl.constexpr):
    """G[i, j], 0 beyond its edges, from a matrix that lies in memory as G or as its transpose."""
    if TRANSPOSED:
        turned = tl.load(matrix + j[:, None] * stride + i[None, :], mask=(j[:, None] < m) & (i[None, :] < n), other=0.0)
        return tl.trans(turned)
    else:
        return tl.load(matrix + i[:, None] * stride + j[None, :], mask=(i[:, None] < n) & (j[None, :] < m), other=0.0)


@triton.jit
def sfw_project(work, layers, momenta, warm, scratch, aligned, TILE: tl.constexpr, SLICE: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr):
    """scratch: P = G V, one slice of the sum over m; work: (block, tile of rows, tile of columns, slice)."""
    w = tl.program_id(0) * 4
    b, rows, columns, part = tl.load(work + w), tl.load(work + w + 1), tl.load(work + w + 2), tl.load(work + w + 3)
    lies = _layer(layers, b, 4) & aligned
    if lies == 3:
        _project(layers, momenta, warm, scratch, b, rows, columns, part, TILE, SLICE, INNER, PRECISION, False, True)
    elif lies == 2:
        _project(layers, momenta, warm, scratch, b, rows, columns, part, TILE, SLICE, INNER, PRECISION, True, True)
    elif lies == 1:
        _project(layers, momenta, warm, scratch, b, rows, columns, part, TILE, SLICE, INNER, PRECISION, False, False)
    else:
        _project(layers, momenta, warm, scratch, b, rows, columns, part, TILE, SLICE, INNER, PRECISION, True, False)


@triton.jit
def _project(
    layers, momenta, warm, scratch, b, rows, columns, part,
    TILE: tl.constexpr, SLICE: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    UNIT: tl.constexpr = 4 if ALIGNED else 1
    n, m, k = _layer(layers, b, 1, UNIT), _layer(layers, b, 2, UNIT), _layer(layers, b, 3)
    stride, padded = _layer(layers, b, 5, UNIT), _layer(layers, b, 6, TILE)
    G, V = _matrix(momenta, layers, b, ALIGNED), warm + _layer(layers, b, 13, UNIT)
    i, c = rows * TILE + tl.arange(0, TILE), columns * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(part * SLICE, min(part * SLICE + SLICE, m), INNER):
        j = start + tl.arange(0, INNER)
        g = _tile(G, i, j, n, m, stride, TRANSPOSED)
        v = tl.load(V + c[None, :] * m + j[:, None], mask=(c[None, :] < k) & (j[:, None] < m), other=0.0)
        total = _dot(g, v, total, PRECISION)
    P = scratch + _layer(layers, b, 10, TILE) + part * n * padded
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
def _gram_tile(A, left, right, padded, row_tiles, STEP: tl.constexpr):
    """The tile of A, added up over the tiles of rows, two of them on their way at a time."""
    at = A + (left * STEP + tl.arange(0, STEP)[:, None]) * padded + right * STEP + tl.arange(0, STEP)[None, :]
    total = tl.zeros((STEP, STEP), tl.float64)
    everywhere = tl.zeros((STEP, STEP), tl.int32)
    for part in range(0, row_tiles, 2):
        one = tl.load(at + part * padded * padded)
        another = tl.load(at + (part + 1) * padded * padded, mask=everywhere + part + 1 < row_tiles, other=0.0)
        total += one + another
    return total


@triton.jit
def _sum(figures, begin, count):
    total = tl.zeros((1024,), tl.float64)
    for start in range(0, count, 1024):
        i = start + tl.arange(0, 1024)
        total += tl.load(figures + begin + i, mask=i < count, other=0.0)
    return tl.sum(total)


@triton.jit
def sfw_factorise(layers, wide, figures, first, count, lengths, STEP: tl.constexpr):
    """lengths[b] = ||G||, and D A D = L L^T by tiles, one program per block. Kept: L below the diagonal tiles, L^-1 in them, D.

    A column that depends on those before it gets a row of zeros in L^-1, hence 0 in U: a vertex of lower rank is feasible too.
    """
    b = tl.program_id(0)
    tl.store(lengths + b, tl.sqrt(_sum(figures, tl.load(first + b), tl.load(count + b))))
    k, padded, row_tiles = _layer(layers, b, 3), _layer(layers, b, 6, STEP), _layer(layers, b, 8)
    A, L, D = wide + _layer(layers, b, 11), wide + _layer(layers, b, 12), wide + _layer(layers, b, 14)
    r = tl.arange(0, STEP)
    row, column = r[:, None], r[None, :]
    tiles = (k + STEP - 1) // STEP
    for t in range(tiles):
        squares = tl.zeros((STEP,), tl.float64)
        for part in range(row_tiles):
            squares += tl.load(A + part * padded * padded + (t * STEP + r) * (padded + 1))
        tl.store(D + t * STEP + r, tl.where(squares > 0, 1 / tl.sqrt(tl.where(squares > 0, squares, 1.0)), 0.0))
    tl.debug_barrier()  # what this program has written, its other threads read from here on; so below
    for t in range(tiles):
        across = tl.load(D + t * STEP + column)
        block = _gram_tile(A, t, t, padded, row_tiles, STEP) * tl.load(D + t * STEP + row) * across
        for p in range(t):
            left = tl.load(L + (t * STEP + row) * padded + p * STEP + column)
            block -= tl.dot(left, tl.trans(left), out_dtype=tl.float64)
        inverse = _inverse_factor(block, tl.minimum(STEP, k - t * STEP), STEP)
        tl.store(L + (t * STEP + row) * padded + t * STEP + column, inverse)
        for q in range(t + 1, tiles):
            lower = _gram_tile(A, q, t, padded, row_tiles, STEP) * tl.load(D + q * STEP + row) * across
            for p in range(t):
                left = tl.load(L + (q * STEP + row) * padded + p * STEP + column)
                right = tl.load(L + (t * STEP + row) * padded + p * STEP + column)
                lower -= tl.dot(left, tl.trans(right), out_dtype=tl.float64)
            lower = tl.dot(lower, tl.trans(inverse), out_dtype=tl.float64)
            tl.store(L + (q * STEP + row) * padded + t * STEP + column, lower)
        tl.debug_barrier()


@triton.jit
def _inverse_root(x):
    """1 / sqrt(x) in float64 from float32's and two Newton steps: the rounds below wait for it one after the other."""
    root = tl.rsqrt(x.to(tl.float32)).to(tl.float64)
    root = root * (1.5 - 0.5 * x * root * root)
    return root * (1.5 - 0.5 * x * root * root)


@triton.jit
def _inverse_factor(block, width, TILE: tl.constexpr):
    """L^-1 of block = L L^T, by elimination beside the identity; rows of dependent columns are 0.

    Each round fetches a row of both, and no column: block stays symmetric where it is still needed.
    """
    r = tl.arange(0, TILE)
    row, column = r[:, None], r[None, :]
    inverse = tl.where((row == column) & (row < width), 1.0, 0.0).to(tl.float64)
    for c in range(width):
        here = row == c
        across, line = tl.sum(tl.where(here, block, 0.0), axis=0), tl.sum(tl.where(here, inverse, 0.0), axis=0)
        pivot = tl.sum(tl.where(r == c, across, 0.0))
        root = tl.where(pivot > _DEPENDENT, _inverse_root(pivot), 0.0)
        across, line = across * root, line * root
        down = tl.where(r > c, across, 0.0)[:, None]
        block -= down * across[None, :]
        inverse = tl.where(here, line[None, :], inverse - down * line[None, :])
    return inverse


@triton.jit
def sfw_basis(work, layers, scratch, wide, basis, TILE: tl.constexpr, STEP: tl.constexpr):
    """U = P D L^-T, tile after tile of columns; work: (block, tile of rows)."""
    w = tl.program_id(0) * 2
    b, rows = tl.load(work + w), tl.load(work + w + 1)
    n, k, padded = _layer(layers, b, 1), _layer(layers, b, 3), _layer(layers, b, 6, TILE)
    L, D = wide + _layer(layers, b, 12), wide + _layer(layers, b, 14)
    i, r = rows * TILE + tl.arange(0, TILE), tl.arange(0, STEP)
    live = i[:, None] < n
    P = scratch + _layer(layers, b, 9, TILE) + i[:, None] * padded + r[None, :]
    U = basis + _layer(layers, b, 9, TILE) + i[:, None] * padded + r[None, :]
    for t in range((k + STEP - 1) // STEP):
        x = tl.load(P + t * STEP, mask=live, other=0.0).to(tl.float64) * tl.load(D + t * STEP + r)[None, :]
        for p in range(t):
            known = tl.load(U + p * STEP, mask=live, other=0.0).to(tl.float64)
            left = tl.load(L + (t * STEP + r[:, None]) * padded + p * STEP + r[None, :])
            x -= tl.dot(known, tl.trans(left), out_dtype=tl.float64)
        inverse = tl.load(L + (t * STEP + r[:, None]) * padded + t * STEP + r[None, :])
        tl.store(U + t * STEP, tl.dot(x, tl.trans(inverse), out_dtype=tl.float64).to(tl.float32), mask=live)
        tl.debug_barrier()


@triton.jit
def sfw_coefficients(
    work, layers, momenta, weights, basis, warm, wide, lengths, bad, sums, programs, aligned, TILE: tl.constexpr,
    INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """warm <- B / ||G|| with B = U^T G, and for each tile ||B||^2 and <B, U^T theta>; work: (block, tile of k, tile of m)."""
    w = tl.program_id(0)
    b, rows, columns = tl.load(work + 3 * w), tl.load(work + 3 * w + 1), tl.load(work + 3 * w + 2)
    lies = _layer(layers, b, 4) & aligned
    if lies == 3:
        kept, inner = _coefficients(
            layers, momenta, weights, basis, warm, wide, lengths, bad, b, rows, columns, TILE, INNER, PRECISION, False, True
        )
    elif lies == 2:
        kept, inner = _coefficients(
            layers, momenta, weights, basis, warm, wide, lengths, bad, b, rows, columns, TILE, INNER, PRECISION, True, True
        )
    elif lies == 1:
        kept, inner = _coefficients(
            layers, momenta, weights, basis, warm, wide, lengths, bad, b, rows, columns, TILE, INNER, PRECISION, False, False
        )
    else:
        kept, inner = _coefficients(
            layers, momenta, weights, basis, warm, wide, lengths, bad, b, rows, columns, TILE, INNER, PRECISION, True, False
        )
    tl.store(sums + w, kept)
    tl.store(sums + programs + w, inner)


@triton.jit
def _coefficients(
    layers, momenta, weights, basis, warm, wide, lengths, bad, b, rows, columns,
    TILE: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    UNIT: tl.constexpr = 4 if ALIGNED else 1
    n, m, k = _layer(layers, b, 1, UNIT), _layer(layers, b, 2, UNIT), _layer(layers, b, 3)
    stride, padded = _layer(layers, b, 5, UNIT), _layer(layers, b, 6, TILE)
    G, theta = _matrix(momenta, layers, b, ALIGNED), _matrix(weights, layers, b, ALIGNED)
    c, j = rows * TILE + tl.arange(0, TILE), columns * TILE + tl.arange(0, TILE)
    U = basis + _layer(layers, b, 9, TILE)
    product = tl.zeros((TILE, TILE), tl.float32)
    shadow = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, n, INNER):
        i = start + tl.arange(0, INNER)
        u = tl.load(U + i[None, :] * padded + c[:, None], mask=i[None, :] < n, other=0.0)
        product = _dot(u, _tile(G, i, j, n, m, stride, TRANSPOSED), product, PRECISION)
        shadow = _dot(u, _tile(theta, i, j, n, m, stride, TRANSPOSED), shadow, PRECISION)
    length = tl.load(lengths + b).to(tl.float32)
    product = product / tl.where(length > 0, length, 1.0)
    if (length > 0) & (tl.load(bad) == 0):
        # A direction that vanished keeps its old start: a zero gradient must not erase it.
        alive = tl.load(wide + _layer(layers, b, 12) + c * (padded + 1)) > 0
        renewed = alive[:, None] & (c[:, None] < k) & (j[None, :] < m)
        tl.store(warm + _layer(layers, b, 13, UNIT) + c[:, None] * m + j[None, :], product, mask=renewed)
    exact = product.to(tl.float64)
    return tl.sum(exact * exact), tl.sum(exact * shadow.to(tl.float64))


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
def sfw_move_directions(work, layers, weights, basis, warm, decay, factor, aligned, TILE: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr):
    """theta <- decay theta + factor U B; work: (block, tile of n, tile of m)."""
    w = tl.program_id(0) * 3
    b, rows, columns = tl.load(work + w), tl.load(work + w + 1), tl.load(work + w + 2)
    lies = _layer(layers, b, 4) & aligned
    if lies == 3:
        _move(layers, weights, basis, warm, decay, factor, b, rows, columns, TILE, INNER, PRECISION, False, True)
    elif lies == 2:
        _move(layers, weights, basis, warm, decay, factor, b, rows, columns, TILE, INNER, PRECISION, True, True)
    elif lies == 1:
        _move(layers, weights, basis, warm, decay, factor, b, rows, columns, TILE, INNER, PRECISION, False, False)
    else:
        _move(layers, weights, basis, warm, decay, factor, b, rows, columns, TILE, INNER, PRECISION, True, False)


@triton.jit
def _move(
    layers, weights, basis, warm, decay, factor, b, rows, columns,
    TILE: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    UNIT: tl.constexpr = 4 if ALIGNED else 1
    n, m, k = _layer(layers, b, 1, UNIT), _layer(layers, b, 2, UNIT), _layer(layers, b, 3)
    stride, padded = _layer(layers, b, 5, UNIT), _layer(layers, b, 6, TILE)
    theta = _matrix(weights, layers, b, ALIGNED)
    U, V = basis + _layer(layers, b, 9, TILE), warm + _layer(layers, b, 13, UNIT)
    i, j = rows * TILE + tl.arange(0, TILE), columns * TILE + tl.arange(0, TILE)
    if TRANSPOSED:
        at, live = theta + j[:, None] * stride + i[None, :], (j[:, None] < m) & (i[None, :] < n)
    else:
        at, live = theta + i[:, None] * stride + j[None, :], (i[:, None] < n) & (j[None, :] < m)
    kept = tl.load(decay + b) * tl.load(at, mask=live)
    towards = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, k, INNER):
        c = start + tl.arange(0, INNER)
        u = tl.load(U + i[:, None] * padded + c[None, :], mask=i[:, None] < n, other=0.0)
        v = tl.load(V + c[:, None] * m + j[None, :], mask=(c[:, None] < k) & (j[None, :] < m), other=0.0)
        towards = _dot(u, v, towards, PRECISION)
    if TRANSPOSED:
        towards = tl.trans(towards)
    tl.store(at, kept + tl.load(factor + b) * towards, mask=live)
