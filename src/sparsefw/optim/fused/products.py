"""Few directions may grow (Spectrum): kernels for the matrix products of a block power iteration, one launch for all layers each.

geometry/subspace.py states the algorithm. Here, in tiles of TILE x TILE:

    P = G V                     sfw_project        in slices of the long side, so that all multiprocessors have work
    A = P^T P in float64        sfw_gram           adds up the slices of P, and A in parts of the rows
    D A D = L L^T               sfw_factorise      D makes the columns of P unit vectors; dependent columns are dropped
    U = P D L^-T                sfw_basis
    B = U^T G, U^T theta        sfw_coefficients
    U Z Z^T in place of U       sfw_lead           where more directions are followed than may grow: Z spans the leading ones
    eta                         sfw_choose_directions
    theta <- (1 - eta) theta - eta radius U B / ||B||      sfw_move_directions

The small factors are computed in factors.py. G (n, m) is a block's momentum, or its transpose, with n <= m. V^T = B / ||G|| of
the last step: its scale does not matter, since D removes it.

With HALF, B is rounded to float16 before its norm is computed, and U is split into two float16 numbers where the vertex is
formed. So the norm of the vertex equals the radius to 1e-6, and its rank is k, whatever rounding does to its direction (5e-4).
"""

from __future__ import annotations

import triton
import triton.language as tl

from sparsefw.optim.fused.common import LOAD_NUMBERS, SMALL, pointer_to
from sparsefw.optim.fused.layer_table import (
    ALIGNED_ROWS,
    AT_L,
    AT_P,
    AT_SLICES,
    AT_V,
    OF_K,
    OF_LAYOUT,
    OF_M,
    OF_N,
    OF_PADDED,
    OF_SLICE,
    OF_SLOT,
    OF_STRIDE,
    OF_TENSOR,
    OF_WANTED,
    STRAIGHT,
    STRAIGHT_ALIGNED_ROWS,
    layer,
)

TILE = 64


@triton.jit
def _tile(matrix, i, j, n, m, stride, TRANSPOSED: tl.constexpr):
    """Return G[i, j], 0 beyond its edges, from a matrix that is stored as G or as its transpose."""
    if TRANSPOSED:
        turned = tl.load(matrix + j[:, None] * stride + i[None, :], mask=(j[:, None] < m) & (i[None, :] < n), other=0.0)
        return tl.trans(turned)
    else:
        return tl.load(matrix + i[:, None] * stride + j[None, :], mask=(i[:, None] < n) & (j[None, :] < m), other=0.0)


@triton.jit
def sfw_project(work, layers, momenta, warm, slices_of_p, layout_mask, TILE: tl.constexpr, INNER: tl.constexpr):
    """slices_of_p: P = G V, one slice of the sum over m; work: (block, tile of rows, tile of columns, slice)."""
    w = work + tl.program_id(0) * 4
    b = tl.load(w)
    layout = layer(layers, b, OF_LAYOUT) & layout_mask
    if layout == STRAIGHT_ALIGNED_ROWS:
        _project(w, b, layers, momenta, warm, slices_of_p, TILE, INNER, False, True)
    elif layout == ALIGNED_ROWS:
        _project(w, b, layers, momenta, warm, slices_of_p, TILE, INNER, True, True)
    elif layout == STRAIGHT:
        _project(w, b, layers, momenta, warm, slices_of_p, TILE, INNER, False, False)
    else:
        _project(w, b, layers, momenta, warm, slices_of_p, TILE, INNER, True, False)


@triton.jit
def _project(
    w, b, layers, momenta, warm, slices_of_p,
    TILE: tl.constexpr, INNER: tl.constexpr, TRANSPOSED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    UNIT: tl.constexpr = LOAD_NUMBERS if ALIGNED else 1
    rows = tl.load(w + 1)
    columns = tl.load(w + 2)
    part = tl.load(w + 3)
    n = layer(layers, b, OF_N, UNIT)
    m = layer(layers, b, OF_M, UNIT)
    k = layer(layers, b, OF_K)
    stride = layer(layers, b, OF_STRIDE, UNIT)
    padded = layer(layers, b, OF_PADDED, TILE)
    length = layer(layers, b, OF_SLICE, TILE)
    G = pointer_to(momenta, layer(layers, b, OF_TENSOR), 0, ALIGNED)
    V = warm + layer(layers, b, AT_V, UNIT)
    i = rows * TILE + tl.arange(0, TILE)
    c = columns * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), tl.float32)
    for start in range(part * length, min(part * length + length, m), INNER):
        j = start + tl.arange(0, INNER)
        v = tl.load(V + c[None, :] * m + j[:, None], mask=(c[None, :] < k) & (j[:, None] < m), other=0.0)
        total = tl.dot(_tile(G, i, j, n, m, stride, TRANSPOSED), v, total, input_precision="tf32")
    P = slices_of_p + layer(layers, b, AT_SLICES, TILE) + part * n * padded
    tl.store(P + i[:, None] * padded + c[None, :], total, mask=i[:, None] < n)


@triton.jit
def sfw_coefficients(
    work, layers, momenta, weights, basis, warm, wide, momentum_norms, bad, sums, programs, small, layout_mask,
    TILE: tl.constexpr, INNER: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """warm <- B / ||G|| with B = U^T G, and for each tile ||B||^2 and <B, U^T theta>; work: (block, tile of k, tile of m)."""
    w = tl.program_id(0)
    b = tl.load(work + 3 * w)
    c = tl.load(work + 3 * w + 1) * TILE + tl.arange(0, TILE)
    j = tl.load(work + 3 * w + 2) * TILE + tl.arange(0, TILE)
    momentum_norm = tl.load(momentum_norms + b).to(tl.float32)
    scale = 1 / tl.where(momentum_norm > 0, momentum_norm, 1.0)
    layout = layer(layers, b, OF_LAYOUT) & layout_mask
    if layout == STRAIGHT_ALIGNED_ROWS:
        product, shadow = _both_products(
            layers, momenta, weights, basis, b, c, j, scale, TILE, INNER, HALF, False, True
        )
    elif layout == ALIGNED_ROWS:
        product, shadow = _both_products(layers, momenta, weights, basis, b, c, j, scale, TILE, INNER, HALF, True, True)
    elif layout == STRAIGHT:
        product, shadow = _both_products(
            layers, momenta, weights, basis, b, c, j, scale, TILE, INNER, HALF, False, False
        )
    else:
        product, shadow = _both_products(
            layers, momenta, weights, basis, b, c, j, scale, TILE, INNER, HALF, True, False
        )
    exact = product.to(tl.float64)
    tl.store(sums + w, tl.sum(exact * exact))
    tl.store(sums + programs + w, tl.sum(exact * shadow.to(tl.float64)))
    m = layer(layers, b, OF_M)
    k = layer(layers, b, OF_K)
    padded = layer(layers, b, OF_PADDED, TILE)
    if layer(layers, b, OF_WANTED) < k:
        _keep_small(small, w + layer(layers, b, OF_SLOT), product, shadow, TILE)
    if (momentum_norm > 0) & (tl.load(bad) == 0):
        # A direction that vanished keeps its old start: a zero gradient must not erase it.
        alive = tl.load(wide + layer(layers, b, AT_L) + c * (padded + 1)) > 0
        renewed = alive[:, None] & (c[:, None] < k) & (j[None, :] < m)
        tl.store(warm + layer(layers, b, AT_V) + c[:, None] * m + j[None, :], product, mask=renewed)


@triton.jit
def _both_products(
    layers, momenta, weights, basis, b, c, j, scale,
    TILE: tl.constexpr, INNER: tl.constexpr, HALF: tl.constexpr, TRANSPOSED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Return tiles of U^T G scale and of U^T theta; of the latter bfloat16 is exact enough, since only a step size needs it."""
    UNIT: tl.constexpr = LOAD_NUMBERS if ALIGNED else 1
    tensor = layer(layers, b, OF_TENSOR)
    n = layer(layers, b, OF_N, UNIT)
    m = layer(layers, b, OF_M, UNIT)
    stride = layer(layers, b, OF_STRIDE, UNIT)
    padded = layer(layers, b, OF_PADDED, TILE)
    G = pointer_to(momenta, tensor, 0, ALIGNED)
    theta = pointer_to(weights, tensor, 0, ALIGNED)
    U = basis + layer(layers, b, AT_P, TILE)
    product = tl.zeros((TILE, TILE), tl.float32)
    shadow = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, n, INNER):
        i = start + tl.arange(0, INNER)
        u = tl.load(U + i[None, :] * padded + c[:, None], mask=i[None, :] < n, other=0.0)
        g = _tile(G, i, j, n, m, stride, TRANSPOSED) * scale
        t = _tile(theta, i, j, n, m, stride, TRANSPOSED)
        if HALF:
            product = tl.dot(u.to(tl.float16), g.to(tl.float16), product)
            shadow = tl.dot(u.to(tl.bfloat16), t.to(tl.bfloat16), shadow)
        else:
            product = tl.dot(u, g, product, input_precision="ieee")
            shadow = tl.dot(u, t, shadow, input_precision="ieee")
    if HALF:
        product = product.to(tl.float16).to(tl.float32)
    return product, shadow


@triton.jit
def _keep_small(small, slot, product, shadow, TILE: tl.constexpr):
    """Store B B^T and B (U^T theta)^T of this tile, for the few directions among which sfw_lead chooses."""
    c = tl.arange(0, TILE)
    live = (c[:, None] < SMALL) & (c[None, :] < SMALL)
    at = small + slot * 2 * SMALL * SMALL + c[:, None] * SMALL + c[None, :]
    tl.store(at, tl.dot(product, tl.trans(product), input_precision="tf32x3"), mask=live)
    tl.store(at + SMALL * SMALL, tl.dot(product, tl.trans(shadow), input_precision="tf32x3"), mask=live)


@triton.jit
def sfw_move_directions(
    work, layers, weights, basis, warm, decay, factor, layout_mask,
    TILE: tl.constexpr, INNER: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """theta <- decay theta + factor U B; work: (block, tile of n, tile of m)."""
    w = work + tl.program_id(0) * 3
    b = tl.load(w)
    layout = layer(layers, b, OF_LAYOUT) & layout_mask
    if layout == STRAIGHT_ALIGNED_ROWS:
        _move(w, b, layers, weights, basis, warm, decay, factor, TILE, INNER, HALF, False, True)
    elif layout == ALIGNED_ROWS:
        _move(w, b, layers, weights, basis, warm, decay, factor, TILE, INNER, HALF, True, True)
    elif layout == STRAIGHT:
        _move(w, b, layers, weights, basis, warm, decay, factor, TILE, INNER, HALF, False, False)
    else:
        _move(w, b, layers, weights, basis, warm, decay, factor, TILE, INNER, HALF, True, False)


@triton.jit
def _move(
    w, b, layers, weights, basis, warm, decay, factor,
    TILE: tl.constexpr, INNER: tl.constexpr, HALF: tl.constexpr, TRANSPOSED: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    UNIT: tl.constexpr = LOAD_NUMBERS if ALIGNED else 1
    n = layer(layers, b, OF_N, UNIT)
    m = layer(layers, b, OF_M, UNIT)
    k = layer(layers, b, OF_K)
    stride = layer(layers, b, OF_STRIDE, UNIT)
    padded = layer(layers, b, OF_PADDED, TILE)
    theta = pointer_to(weights, layer(layers, b, OF_TENSOR), 0, ALIGNED)
    U = basis + layer(layers, b, AT_P, TILE)
    V = warm + layer(layers, b, AT_V, UNIT)
    i = tl.load(w + 1) * TILE + tl.arange(0, TILE)
    j = tl.load(w + 2) * TILE + tl.arange(0, TILE)
    if TRANSPOSED:
        at = theta + j[:, None] * stride + i[None, :]
        live = (j[:, None] < m) & (i[None, :] < n)
    else:
        at = theta + i[:, None] * stride + j[None, :]
        live = (i[:, None] < n) & (j[None, :] < m)
    kept = tl.load(decay + b) * tl.load(at, mask=live)
    towards = tl.zeros((TILE, TILE), tl.float32)
    for start in range(0, k, INNER):
        c = start + tl.arange(0, INNER)
        u = tl.load(U + i[:, None] * padded + c[None, :], mask=i[:, None] < n, other=0.0)
        v = tl.load(V + c[:, None] * m + j[None, :], mask=(c[:, None] < k) & (j[None, :] < m), other=0.0)
        if HALF:
            high = u.to(tl.float16)
            towards = tl.dot(high, v.to(tl.float16), towards)
            towards = tl.dot((u - high.to(tl.float32)).to(tl.float16), v.to(tl.float16), towards)
        else:
            towards = tl.dot(u, v, towards, input_precision="ieee")
    if TRANSPOSED:
        towards = tl.trans(towards)
    tl.store(at, kept + tl.load(factor + b) * towards, mask=live)
