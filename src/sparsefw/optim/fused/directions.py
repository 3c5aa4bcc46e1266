"""The update of blocks whose magnitudes are singular values, by the kernels of products.py and factors.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from sparsefw.geometry.subspace import followed_columns
from sparsefw.optim.fused import elementwise, factors, products
from sparsefw.optim.fused.addresses import chunk_tiling, integers, pieces_of
from sparsefw.optim.fused.common import LOAD_NUMBERS, SMALL
from sparsefw.optim.fused.layer_table import ALIGNED_ROWS, STRAIGHT, STRAIGHT_ALIGNED_ROWS, Layer
from sparsefw.optim.fused.products import TILE
from sparsefw.optim.fused.tensor_table import CHUNK, TensorTable
from sparsefw.optim.fused.updates import BlockUpdate, FusedBlock

_PRODUCTS = dict(INNER=32, num_warps=4, num_stages=3)
# P = G V is added up in slices of the long side: enough slices to launch about _PROGRAMS programs, several per SM, but none
# shorter than _SLICE.
_SLICE = 512
_PROGRAMS = 264
_PARTS = 8  # of the short side, at most, in which P^T P is added up


class Scratch:
    """Counts the memory that layers need, in numbers.

    p          for P, and as much for U
    slices     for the slices of P
    double     for A, L and D, in float64
    warm       for the warm starts V
    slots      for the small matrices: pairs of them, one for each program that writes any
    programs   the programs of sfw_coefficients so far
    """

    def __init__(self) -> None:
        self.p = 0
        self.slices = 0
        self.double = 0
        self.warm = 0
        self.slots = 0
        self.programs = 0

    def add_layer(self, tensor: int, shape: tuple[int, int], wanted: int) -> Layer:
        """Reserve the memory of a block of this shape, of which `wanted` directions may grow, and return its row of the table."""
        rows, stride = shape
        n, m = min(shape), max(shape)
        k = followed_columns(wanted, n)
        tiles = _tiles(k)
        row_tiles = _tiles(n)
        most_slices = max(1, _PROGRAMS // (tiles * row_tiles))
        slices = min(-(-m // _SLICE), most_slices)
        length = -(-m // (slices * TILE)) * TILE
        slices = -(-m // length)
        parts = min(row_tiles, _PARTS)
        padded = tiles * TILE
        aligned = rows % LOAD_NUMBERS.value == 0 and stride % LOAD_NUMBERS.value == 0
        factor = self.double + parts * padded**2
        # The warm starts of a stack are stored one after the other: where rows of one are aligned, so are those of the next.
        warm = self.warm + (-self.warm % LOAD_NUMBERS.value) * aligned
        layout = STRAIGHT.value * (rows <= stride) | ALIGNED_ROWS.value * aligned
        layer = Layer(
            tensor=tensor,
            n=n,
            m=m,
            k=k,
            layout=layout,
            stride=stride,
            padded=padded,
            slices=slices,
            slice=length,
            parts=parts,
            at_p=self.p,
            at_slices=self.slices,
            at_a=self.double,
            at_l=factor,
            at_v=warm,
            at_d=factor + padded**2,
            wanted=wanted,
            slot=self.slots - self.programs,
        )
        programs = tiles * _tiles(m)
        self.p += n * padded
        self.slices += slices * n * padded
        self.double = factor + padded**2 + padded
        self.warm = warm + m * k
        self.slots += programs * (wanted < k)
        self.programs += programs
        return layer


def _tiles(length: int) -> int:
    return -(-length // TILE)


class Work(NamedTuple):
    """The programs of every launch, each a row of numbers that the kernel's docstring explains."""

    project: list[tuple[int, ...]]
    gram: list[tuple[int, ...]]
    basis: list[tuple[int, ...]]
    coefficients: list[tuple[int, ...]]
    move: list[tuple[int, ...]]


def work_on(layers: Sequence[Layer]) -> Work:
    """Return the programs for these layers."""
    work = Work([], [], [], [], [])
    for b, layer in enumerate(layers):
        n_tiles = range(_tiles(layer.n))
        m_tiles = range(_tiles(layer.m))
        k_tiles = range(layer.padded // TILE)
        work.project.extend((b, i, c, s) for s in range(layer.slices) for i in n_tiles for c in k_tiles)
        work.gram.extend((b, part, c, d) for part in range(layer.parts) for c in k_tiles for d in range(c + 1))
        work.basis.extend((b, i) for i in n_tiles)
        work.coefficients.extend((b, c, j) for j in m_tiles for c in k_tiles)
        work.move.extend((b, i, j) for i in n_tiles for j in m_tiles)
    return work


class DirectionsUpdate(BlockUpdate):
    """Few directions may grow."""

    def __init__(self, table: TensorTable, blocks: list[FusedBlock]) -> None:
        super().__init__(table, blocks)
        device = self.device
        memory = Scratch()
        layers = []
        for block in blocks:
            (t,) = block.tensors
            rows = block.shape[0]
            layers.append(memory.add_layer(t, (rows, table.params[t].numel() // rows), block.support))
        work = work_on(layers)
        self._layers = integers(layers, device)
        self._work = [integers(lines, device) for lines in work]
        pieces = pieces_of([chunk_tiling(x.tensor, x.n * x.m, CHUNK) for x in layers], device)
        self._pieces = pieces
        self._first = integers(pieces.first, device)
        self._count = integers(pieces.counts, device)
        self._figures = torch.zeros(3, len(pieces.tensors), dtype=torch.float64, device=device)
        programs = Counter(b for b, *_ in work.coefficients)
        counts = [programs[b] for b in range(len(layers))]
        self._programs = integers(counts, device)
        self._first_program = integers(accumulate([0, *counts[:-1]]), device)
        self._sums = torch.zeros(2, len(work.coefficients), dtype=torch.float64, device=device)
        self._with_surplus = integers([b for b, x in enumerate(layers) if x.wanted < x.k], device)
        self._small = torch.zeros(memory.slots * 2 * SMALL.value**2, device=device)
        self._p, self._basis = torch.zeros(2, memory.p, device=device)
        self._slices = torch.zeros(memory.slices, device=device)
        self._double = torch.zeros(memory.double, dtype=torch.float64, device=device)
        self._warm = torch.zeros(memory.warm, device=device)
        self._momentum_norms = torch.zeros(len(layers), dtype=torch.float64, device=device)
        self._factor = torch.zeros(len(layers), device=device)
        for block, x in zip(blocks, layers, strict=True):
            if block.index == 0:
                count = len(block.stack.blocks)
                warm_starts = self._warm[x.at_v : x.at_v + count * x.m * x.k].view(count, x.k, x.m).mT
                block.stack.use_warm_starts(warm_starts)

    def launch(self, table: TensorTable) -> None:
        pieces = self._pieces
        count = len(pieces.tensors)
        tile = TILE
        project, gram, basis, coefficients, move = self._work
        layout_mask = STRAIGHT_ALIGNED_ROWS.value if table.is_aligned else STRAIGHT.value
        half = self.device.type == "cuda"  # the interpreter has no half products
        momenta = table.momenta.table
        weights = table.weights.table
        layers = self._layers
        elementwise.sfw_momentum[(count,)](
            table.gradients.table, momenta, weights, pieces.tensors, pieces.starts, pieces.own_starts, pieces.lengths,
            table.aligned_pieces(pieces), table.bad, self.rho, self._figures, count, SPAN=elementwise.SPAN,
        )  # fmt: skip
        for _ in range(max(stack.iterations for stack in self.stacks)):
            products.sfw_project[(len(project),)](
                project, layers, momenta, self._warm, self._slices, layout_mask, TILE=tile, **_PRODUCTS
            )
            factors.sfw_gram[(len(gram),)](
                gram, layers, self._slices, self._p, self._double, TILE=tile, num_warps=8, num_stages=1
            )
            factors.sfw_factorise[(len(self.blocks),)](
                layers, self._double, self._figures, self._first, self._count, self._momentum_norms, STEP=factors.STEP,
                num_warps=4, num_stages=1,
            )  # fmt: skip
            factors.sfw_basis[(len(basis),)](
                basis, layers, self._p, self._double, self._basis, TILE=tile, STEP=factors.STEP, num_warps=4,
                num_stages=1,
            )  # fmt: skip
            products.sfw_coefficients[(len(coefficients),)](
                coefficients, layers, momenta, weights, self._basis, self._warm, self._double, self._momentum_norms, table.bad,
                self._sums, len(coefficients), self._small, layout_mask, TILE=tile, HALF=half, **_PRODUCTS,
            )  # fmt: skip
        if len(self._with_surplus):
            factors.sfw_lead[(len(self._with_surplus),)](
                self._with_surplus, layers, self._small, self._basis, self._sums, len(coefficients), self._first_program,
                self._programs, TILE=tile, num_stages=1,
            )  # fmt: skip
        factors.sfw_choose_directions[(len(self.blocks),)](
            self._figures, count, self._first, self._count, self._sums, len(coefficients), self._first_program,
            self._programs, self._momentum_norms, self.radii, self.scales, self.rates.table, table.norms, self.part_tensor,
            table.bad, self.decay, self._factor, *self.figures, RULE=self.rule,
        )  # fmt: skip
        products.sfw_move_directions[(len(move),)](
            move, layers, weights, self._basis, self._warm, self.decay, self._factor, layout_mask, TILE=tile, HALF=half,
            **_PRODUCTS,
        )  # fmt: skip
