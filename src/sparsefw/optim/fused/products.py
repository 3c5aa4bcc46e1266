"""Few directions may grow (Spectrum): the matrix products of one block power iteration, each of them one launch for all layers.

geometry/subspace.py states the algorithm. Here, cut into tiles of TILE x TILE:

    P = G V                     sfw_project        in slices of the long side, so that all multiprocessors have work
    A = P^T P in float64        sfw_gram           adds up the slices of P, and A in slices of rows
    D A D = L L^T               sfw_factorise      D makes the columns of P unit vectors; dependent columns are dropped
    U = P D L^-T                sfw_basis
    B = U^T G, U^T theta        sfw_coefficients
    U Z Z^T in place of U       sfw_lead           where more directions are followed than wanted: Z spans the leading ones
    eta                         sfw_choose_directions
    theta <- (1 - eta) theta - eta radius U B / ||B||      sfw_move_directions

What is not a large product is in factors.py. G (n, m) is a block's momentum, or its transpose, with n <= m. V^T = B / ||G|| of
the last step: its scale does not matter, since D removes it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.fused.common import (
    OF_K,
    OF_L,
    OF_LIES,
    OF_M,
    OF_N,
    OF_P,
    OF_PADDED,
    OF_SLICE_P,
    OF_SLOT,
    OF_STRIDE,
    OF_TENSOR,
    OF_V,
    OF_WANTED,
    SMALL,
    layer,
)

TILE = 64
SLICE = 512


@triton.jit
def _matrix(addresses, layers, b, ALIGNED: tl.constexpr):
    """Where the momentum or the weight of block b lies."""
    pointer = tl.load(addresses + layer(layers, b, OF_TENSOR)).to(tl.pointer_type(tl.float32))
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
def sfw_project(
    work,
    layers,
    momenta,
    warm,
    slices_of_p,
    aligned,
    TILE: tl.constexpr,
    SLICE: tl.constexpr,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """slices_of_p: P = G V, one slice of the sum over m; work: (block, tile of rows, tile of columns, slice)."""
    w = tl.program_id(0) * 4
    b, rows, columns, part = tl.load(work + w), tl.load(work + w + 1), tl.load(work + w + 2), tl.load(work + w + 3)
    lies = layer(layers, b, OF_LIES) & aligned
    if lies == 3:
        _project(layers, momenta, warm, slices_of_p, b, rows, columns, part, TILE, SLICE, INNER, PRECISION, False, True)
    elif lies == 2:
        _project(layers, momenta, warm, slices_of_p, b, rows, columns, part, TILE, SLICE, INNER, PRECISION, True, True)
    elif lies == 1:
        _project(
            layers, momenta, warm, slices_of_p, b, rows, columns, part, TILE, SLICE, INNER, PRECISION, False, False
        )
    else:
        _project(layers, momenta, warm, slices_of_p, b, rows, columns, part, TILE, SLICE, INNER, PRECISION, True, False)


@triton.jit
def _project(
    layers, momenta, warm, slices_of_p, b, rows, columns, part,
    TILE: tl.constexpr, SLICE: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr,
    TRANSPOSED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    UNIT: tl.constexpr = 4 if ALIGNED else 1
    n, m, k = layer(layers, b, OF_N, UNIT), layer(layers, b, OF_M, UNIT), layer(layers, b, OF_K)
    stride, padded = layer(layers, b, OF_STRIDE, UNIT), layer(layers, b, OF_PADDED, TILE)
    G, V = _matrix(momenta, layers, b, ALIGNED), warm + layer(layers, b, OF_V, UNIT)
    i, c = rows * TILE + tl.arange(0, TILE), columns * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(part * SLICE, min(part * SLICE + SLICE, m), INNER):
        j = start + tl.arange(0, INNER)
        g = _tile(G, i, j, n, m, stride, TRANSPOSED)
        v = tl.load(V + c[None, :] * m + j[:, None], mask=(c[None, :] < k) & (j[:, None] < m), other=0.0)
        total = _dot(g, v, total, PRECISION)
    P = slices_of_p + layer(layers, b, OF_SLICE_P, TILE) + part * n * padded
    tl.store(P + i[:, None] * padded + c[None, :], total, mask=i[:, None] < n)


@triton.jit
def sfw_coefficients(
    work, layers, momenta, weights, basis, warm, wide, lengths, bad, sums, programs, small, aligned, TILE: tl.constexpr,
    INNER: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """warm <- B / ||G|| with B = U^T G, and for each tile ||B||^2 and <B, U^T theta>; work: (block, tile of k, tile of m)."""
    w = tl.program_id(0)
    b, rows, columns = tl.load(work + 3 * w), tl.load(work + 3 * w + 1), tl.load(work + 3 * w + 2)
    lies = layer(layers, b, OF_LIES) & aligned
    if lies == 3:
        kept, inner = _coefficients(
            layers,
            momenta,
            weights,
            basis,
            warm,
            wide,
            lengths,
            bad,
            small,
            w,
            b,
            rows,
            columns,
            TILE,
            INNER,
            PRECISION,
            False,
            True,
        )
    elif lies == 2:
        kept, inner = _coefficients(
            layers,
            momenta,
            weights,
            basis,
            warm,
            wide,
            lengths,
            bad,
            small,
            w,
            b,
            rows,
            columns,
            TILE,
            INNER,
            PRECISION,
            True,
            True,
        )
    elif lies == 1:
        kept, inner = _coefficients(
            layers,
            momenta,
            weights,
            basis,
            warm,
            wide,
            lengths,
            bad,
            small,
            w,
            b,
            rows,
            columns,
            TILE,
            INNER,
            PRECISION,
            False,
            False,
        )
    else:
        kept, inner = _coefficients(
            layers,
            momenta,
            weights,
            basis,
            warm,
            wide,
            lengths,
            bad,
            small,
            w,
            b,
            rows,
            columns,
            TILE,
            INNER,
            PRECISION,
            True,
            False,
        )
    tl.store(sums + w, kept)
    tl.store(sums + programs + w, inner)


@triton.jit
def _keep_small(small, slot, product, shadow, TILE: tl.constexpr):
    """B B^T and B (U^T theta)^T of this tile, for the few directions of which sfw_lead takes the best."""
    c = tl.arange(0, TILE)
    live = (c[:, None] < SMALL) & (c[None, :] < SMALL)
    at = small + slot * 2 * SMALL * SMALL + c[:, None] * SMALL + c[None, :]
    tl.store(at, tl.dot(product, tl.trans(product), input_precision="tf32x3"), mask=live)
    tl.store(at + SMALL * SMALL, tl.dot(product, tl.trans(shadow), input_precision="tf32x3"), mask=live)


@triton.jit
def _coefficients(
    layers, momenta, weights, basis, warm, wide, lengths, bad, small, w, b, rows, columns,
    TILE: tl.constexpr, INNER: tl.constexpr, PRECISION: tl.constexpr, TRANSPOSED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    UNIT: tl.constexpr = 4 if ALIGNED else 1
    n, m, k = layer(layers, b, OF_N, UNIT), layer(layers, b, OF_M, UNIT), layer(layers, b, OF_K)
    stride, padded = layer(layers, b, OF_STRIDE, UNIT), layer(layers, b, OF_PADDED, TILE)
    G, theta = _matrix(momenta, layers, b, ALIGNED), _matrix(weights, layers, b, ALIGNED)
    c, j = rows * TILE + tl.arange(0, TILE), columns * TILE + tl.arange(0, TILE)
    U = basis + layer(layers, b, OF_P, TILE)
    product = tl.zeros((TILE, TILE), tl.float32)
    shadow = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, n, INNER):
        i = start + tl.arange(0, INNER)
        u = tl.load(U + i[None, :] * padded + c[:, None], mask=i[None, :] < n, other=0.0)
        product = _dot(u, _tile(G, i, j, n, m, stride, TRANSPOSED), product, PRECISION)
        shadow = _dot(u, _tile(theta, i, j, n, m, stride, TRANSPOSED), shadow, PRECISION)
    length = tl.load(lengths + b).to(tl.float32)
    product = product / tl.where(length > 0, length, 1.0)
    if layer(layers, b, OF_WANTED) < k:
        _keep_small(small, w + layer(layers, b, OF_SLOT), product, shadow, TILE)
    if (length > 0) & (tl.load(bad) == 0):
        # A direction that vanished keeps its old start: a zero gradient must not erase it.
        alive = tl.load(wide + layer(layers, b, OF_L) + c * (padded + 1)) > 0
        renewed = alive[:, None] & (c[:, None] < k) & (j[None, :] < m)
        tl.store(warm + layer(layers, b, OF_V, UNIT) + c[:, None] * m + j[None, :], product, mask=renewed)
    exact = product.to(tl.float64)
    return tl.sum(exact * exact), tl.sum(exact * shadow.to(tl.float64))


@triton.jit
def sfw_move_directions(
    work,
    layers,
    weights,
    basis,
    warm,
    decay,
    factor,
    aligned,
    TILE: tl.constexpr,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """theta <- decay theta + factor U B; work: (block, tile of n, tile of m)."""
    w = tl.program_id(0) * 3
    b, rows, columns = tl.load(work + w), tl.load(work + w + 1), tl.load(work + w + 2)
    lies = layer(layers, b, OF_LIES) & aligned
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
    n, m, k = layer(layers, b, OF_N, UNIT), layer(layers, b, OF_M, UNIT), layer(layers, b, OF_K)
    stride, padded = layer(layers, b, OF_STRIDE, UNIT), layer(layers, b, OF_PADDED, TILE)
    theta = _matrix(weights, layers, b, ALIGNED)
    U, V = basis + layer(layers, b, OF_P, TILE), warm + layer(layers, b, OF_V, UNIT)
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
