"""The table `layers` of the kernels in products.py and factors.py: one row of integers per block, with the fields of Layer."""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl


class Layer(NamedTuple):
    """The integers of one block: G (n, m) with n <= m is its momentum or the transpose of it.

    tensor     the number of its tensor
    n, m       the size of G
    k          directions that are followed
    layout     STRAIGHT, ALIGNED_ROWS, both or neither
    stride     from row to row in memory
    padded     k, rounded up to whole tiles
    slices     the number of slices of the long side
    slice      their length
    parts      the number of parts of the short side
    at_...     where its matrices start in memory, counted in numbers: P, the slices of P, A, L, V and D of products.py
    wanted     directions that may grow
    slot       added to the number of a program of sfw_coefficients, the place of its small matrices
    """

    tensor: int
    n: int
    m: int
    k: int
    layout: int
    stride: int
    padded: int
    slices: int
    slice: int
    parts: int
    at_p: int
    at_slices: int
    at_a: int
    at_l: int
    at_v: int
    at_d: int
    wanted: int
    slot: int


# The flags of Layer.layout.
STRAIGHT = tl.constexpr(1)  # G is stored as it is, not as its transpose
ALIGNED_ROWS = tl.constexpr(2)  # all rows start at multiples of 16 bytes
STRAIGHT_ALIGNED_ROWS = tl.constexpr(1 | 2)


def _column(field: str) -> tl.constexpr:
    return tl.constexpr(Layer._fields.index(field))


OF_TENSOR = _column("tensor")
OF_N = _column("n")
OF_M = _column("m")
OF_K = _column("k")
OF_LAYOUT = _column("layout")
OF_STRIDE = _column("stride")
OF_PADDED = _column("padded")
OF_SLICES = _column("slices")
OF_SLICE = _column("slice")
OF_PARTS = _column("parts")
AT_P = _column("at_p")
AT_SLICES = _column("at_slices")
AT_A = _column("at_a")
AT_L = _column("at_l")
AT_V = _column("at_v")
AT_D = _column("at_d")
OF_WANTED = _column("wanted")
OF_SLOT = _column("slot")
_WIDTH = tl.constexpr(len(Layer._fields))


@triton.jit
def layer(layers, b, FIELD: tl.constexpr, UNIT: tl.constexpr = 1):
    """Return a field of block b, which the caller promises to be a multiple of UNIT."""
    number = tl.load(layers + b * _WIDTH + FIELD)
    if UNIT > 1:
        number = tl.multiple_of(number, UNIT)
    return number
