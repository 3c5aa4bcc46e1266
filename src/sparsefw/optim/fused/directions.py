"""Blocks of all layers whose magnitudes are singular values, stepped together by the kernels of products.py and factors.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from sparsefw.geometry.subspace import columns
from sparsefw.optim.fused import elementwise, factors, products
from sparsefw.optim.fused.addresses import chunk_cut, integers, pieces_of
from sparsefw.optim.fused.bundles import Bundle, Member
from sparsefw.optim.fused.common import SMALL
from sparsefw.optim.fused.network import CHUNK, Network
from sparsefw.optim.fused.products import TILE

_PRODUCTS = dict(INNER=32, num_warps=4, num_stages=3)
_SLICE = (
    512  # at least so long, and so many that with all tiles there are _PROGRAMS, which is some for every multiprocessor
)
_PROGRAMS = 264
_PARTS = 8


class Layer(NamedTuple):
    """What kernels know of one block: G (n, m) with n <= m is its momentum or the transpose of it."""

    tensor: int
    n: int
    m: int
    k: int  # directions that are followed
    lies: int  # 1 where G lies in memory as it is, 0 where its transpose does; + 2 where all rows start at multiples of 16 bytes
    stride: int  # from row to row in memory
    padded: int  # k, in whole tiles
    slices: int  # of the long side, in which P = G V is added up
    slice: int  # their length
    parts: int  # of the short side, in which P^T P is added up
    # Offsets in memory, of numbers:
    p: int
    slice_p: int
    a: int
    l: int  # noqa: E741
    v: int
    d: int
    wanted: int  # directions that may grow
    slot: int  # from the number of a program of sfw_coefficients to the place of its small matrices


class Scratch:
    """Memory given away piece by piece, counted in numbers: for P, its slices, what is in float64, and warm starts."""

    def __init__(self) -> None:
        self.p, self.slices, self.double, self.warm, self.slots, self.programs = 0, 0, 0, 0, 0, 0

    def layer(self, tensor: int, shape: tuple[int, int], wanted: int) -> Layer:
        high, long = shape
        n, m = min(shape), max(shape)
        k = columns(wanted, n)
        tiles, row_tiles = -(-k // TILE), -(-n // TILE)
        slices = min(-(-m // _SLICE), max(1, _PROGRAMS // (tiles * row_tiles)))
        length = -(-m // (slices * TILE)) * TILE
        slices, parts = -(-m // length), min(row_tiles, _PARTS)
        padded, aligned = tiles * TILE, high % 4 == 0 and long % 4 == 0
        # Warm starts of a stack lie one after the other: where rows of one are aligned, so are those of the next.
        factor, v = self.double + parts * padded**2, self.warm + (-self.warm % 4) * aligned
        found = Layer(
            tensor, n, m, k, (high <= long) + 2 * aligned, long, padded, slices, length, parts,
            self.p, self.slices, self.double, factor, v, factor + padded**2, wanted, self.slots - self.programs,
        )  # fmt: skip
        programs = tiles * -(-m // TILE)
        self.p += n * padded
        self.slices += slices * n * padded
        self.double = factor + padded**2 + padded
        self.warm = v + m * k
        self.slots, self.programs = self.slots + programs * (wanted < k), self.programs + programs
        return found


class Work(NamedTuple):
    """The programs of every launch, each a line of numbers that say what it does: see the kernels."""

    project: list[tuple[int, ...]]
    gram: list[tuple[int, ...]]
    basis: list[tuple[int, ...]]
    coefficients: list[tuple[int, ...]]
    move: list[tuple[int, ...]]


def work_on(layers: Sequence[Layer]) -> Work:
    work = Work([], [], [], [], [])
    for b, layer in enumerate(layers):
        rows, columns, length = range(-(-layer.n // TILE)), range(layer.padded // TILE), range(-(-layer.m // TILE))
        work.project.extend((b, r, c, s) for s in range(layer.slices) for r in rows for c in columns)
        work.gram.extend((b, r, c, d) for r in range(layer.parts) for c in columns for d in range(c + 1))
        work.basis.extend((b, r) for r in rows)
        work.coefficients.extend((b, c, j) for j in length for c in columns)
        work.move.extend((b, r, j) for r in rows for j in length)
    return work


class Directions(Bundle):
    def __init__(self, network: Network, members: list[Member]) -> None:
        super().__init__(network, members)
        device, memory = self.device, Scratch()
        layers = []
        for member in members:
            (t,), high = member.tensors, member.shape[0]
            layers.append(memory.layer(t, (high, network.params[t].numel() // high), member.support))
        work = work_on(layers)
        self._layers, self._work = integers(layers, device), [integers(lines, device) for lines in work]
        self._pieces = cut = pieces_of([chunk_cut(x.tensor, x.n * x.m, CHUNK) for x in layers], device)
        self._first, self._count = integers(cut.first, device), integers(cut.counts, device)
        self._figures = torch.zeros(3, len(cut.tensors), dtype=torch.float64, device=device)
        programs = Counter(b for b, *_ in work.coefficients)
        counts = [programs[b] for b in range(len(layers))]
        self._programs, self._first_program = integers(counts, device), integers(accumulate([0, *counts[:-1]]), device)
        self._sums = torch.zeros(2, len(work.coefficients), dtype=torch.float64, device=device)
        ample = [b for b, x in enumerate(layers) if x.wanted < x.k]
        self._ample = integers(ample, device)
        self._small = torch.zeros(memory.slots * 2 * SMALL.value**2, device=device)
        self._p, self._basis = torch.zeros(2, memory.p, device=device)
        self._slices = torch.zeros(memory.slices, device=device)
        self._double = torch.zeros(memory.double, dtype=torch.float64, device=device)
        self._warm = torch.zeros(memory.warm, device=device)
        self._lengths = torch.zeros(len(layers), dtype=torch.float64, device=device)
        self._factor = torch.zeros(len(layers), device=device)
        for member, x in zip(members, layers, strict=True):
            if member.index == 0:
                count = len(member.stack.blocks)
                member.stack.own_warm(self._warm[x.v : x.v + count * x.m * x.k].view(count, x.k, x.m).mT)

    def launch(self, network: Network) -> None:
        cut, count, tile = self._pieces, len(self._pieces.tensors), TILE
        project, gram, basis, coefficients, move = self._work
        aligned = 3 if network.aligned else 1
        half = self.device.type == "cuda"  # the interpreter has no half products
        momenta, weights, layers = network.momenta.table, network.weights.table, self._layers
        elementwise.sfw_momentum[(count,)](
            network.gradients.table, momenta, weights, cut.tensors, cut.starts, cut.own_starts, cut.lengths,
            network.wide(cut), network.bad, self.rho, self._figures, count, BLOCK=elementwise.BLOCK,
        )  # fmt: skip
        for _ in range(max(stack.iterations for stack in self.stacks)):
            products.sfw_project[(len(project),)](
                project, layers, momenta, self._warm, self._slices, aligned, TILE=tile, **_PRODUCTS
            )
            factors.sfw_gram[(len(gram),)](
                gram, layers, self._slices, self._p, self._double, TILE=tile, num_warps=8, num_stages=1
            )
            factors.sfw_factorise[(len(self.members),)](
                layers, self._double, self._figures, self._first, self._count, self._lengths, STEP=factors.STEP,
                num_warps=4, num_stages=1,
            )  # fmt: skip
            factors.sfw_basis[(len(basis),)](
                basis, layers, self._p, self._double, self._basis, TILE=tile, STEP=factors.STEP, num_warps=4,
                num_stages=1,
            )  # fmt: skip
            products.sfw_coefficients[(len(coefficients),)](
                coefficients, layers, momenta, weights, self._basis, self._warm, self._double, self._lengths, network.bad,
                self._sums, len(coefficients), self._small, aligned, TILE=tile, HALF=half, **_PRODUCTS,
            )  # fmt: skip
        if len(self._ample):
            factors.sfw_lead[(len(self._ample),)](
                self._ample, layers, self._small, self._basis, self._sums, len(coefficients), self._first_program,
                self._programs, TILE=tile, num_stages=1,
            )  # fmt: skip
        factors.sfw_choose_directions[(len(self.members),)](
            self._figures, count, self._first, self._count, self._sums, len(coefficients), self._first_program,
            self._programs, self._lengths, self.radii, self.scales, self.rates.table, network.norms, self.part_tensor,
            network.bad, self.decay, self._factor, *self.figures, RULE=self.rule,
        )  # fmt: skip
        products.sfw_move_directions[(len(move),)](
            move, layers, weights, self._basis, self._warm, self.decay, self._factor, aligned, TILE=tile, HALF=half, **_PRODUCTS,
        )  # fmt: skip
