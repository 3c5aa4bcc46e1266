"""Blocks of all layers whose magnitudes are singular values, stepped together by the kernels of spectrum.py."""

from __future__ import annotations

import torch

from sparsefw.optim.fused import elementwise
from sparsefw.optim.fused import spectrum as spectral
from sparsefw.optim.fused.bundles import Bundle, Member
from sparsefw.optim.fused.network import CHUNK, Network
from sparsefw.optim.fused.tables import chunk_cut, integers, pieces_of

_PRODUCTS = dict(INNER=32, num_warps=4, num_stages=3)


class Directions(Bundle):
    def __init__(self, network: Network, members: list[Member]) -> None:
        super().__init__(network, members)
        tile, slice_length = spectral.TILE, spectral.SLICE
        layers: list[list[int]] = []
        project: list[tuple[int, ...]] = []
        gram: list[tuple[int, ...]] = []
        basis: list[tuple[int, ...]] = []
        coefficients: list[tuple[int, ...]] = []
        move: list[tuple[int, ...]] = []
        narrow, wide, warm = 0, 0, 0  # how much memory is given away
        for b, member in enumerate(members):
            high = member.shape[0]
            long = network.params[member.tensors[0]].numel() // high
            n, m, k = min(high, long), max(high, long), member.support
            tiles, row_tiles, slices = -(-k // tile), -(-n // tile), -(-m // slice_length)
            padded = tiles * tile
            lies = int(high <= long) + 2 * (high % 4 == 0 and long % 4 == 0)
            warm += -warm % 4  # so that aligned layers start aligned whatever came before
            layers.append(
                [member.tensors[0], n, m, k, lies, long, padded, slices, row_tiles]
                + [narrow, narrow + n * padded, wide, wide + row_tiles * padded**2, warm, wide + (row_tiles + 1) * padded**2]
            )
            narrow, wide = narrow + (1 + slices) * n * padded, wide + (row_tiles + 1) * padded**2 + padded
            warm += m * k
            of_rows, of_columns, of_length = range(row_tiles), range(tiles), range(-(-m // tile))
            project += [(b, r, c, s) for s in range(slices) for r in of_rows for c in of_columns]
            gram += [(b, r, c, d) for r in of_rows for c in of_columns for d in range(c + 1)]
            basis += [(b, r) for r in of_rows]
            coefficients += [(b, c, j) for j in of_length for c in of_columns]
            move += [(b, r, j) for r in of_rows for j in of_length]
        self._layers = integers(layers, self.device)
        self._work = [integers(work, self.device) for work in (project, gram, basis, coefficients, move)]
        chunks = [chunk_cut(m.tensors[0], network.params[m.tensors[0]].numel(), CHUNK) for m in members]
        self._pieces = cut = pieces_of(chunks, self.device)
        self._first, self._count = integers(cut.first, self.device), integers(cut.count, self.device)
        self._figures = torch.zeros(3, len(cut.tensors), dtype=torch.float64, device=self.device)
        starts = [[b for b, *_ in coefficients].index(b) for b in range(len(members))]
        self._first_program = integers(starts, self.device)
        self._programs = integers([sum(c[0] == b for c in coefficients) for b in range(len(members))], self.device)
        self._sums = torch.zeros(2, len(coefficients), dtype=torch.float64, device=self.device)
        self._narrow = torch.zeros(narrow, device=self.device)
        self._basis = torch.zeros(narrow, device=self.device)
        self._wide = torch.zeros(wide, dtype=torch.float64, device=self.device)
        self._warm = torch.zeros(warm, device=self.device)
        self._lengths = torch.zeros(len(members), dtype=torch.float64, device=self.device)
        self._factor = torch.zeros(len(members), device=self.device)
        for member, layer in zip(members, layers, strict=True):
            if member.index == 0:
                _, _, m, k, *_ = layer
                count = len(member.stack.blocks)
                memory = self._warm[layer[13] : layer[13] + count * m * k].view(count, k, m)
                member.stack.own_warm(memory.mT)

    def launch(self, network: Network) -> None:
        cut, count, tile = self._pieces, len(self._pieces.tensors), spectral.TILE
        project, gram, basis, coefficients, move = self._work
        aligned = 3 if network.aligned else 1
        # Rounding U and B costs 1e-5 of the vertex's quality; the interpreter has no bfloat16 products.
        rounded = "bf16" if self.device.type == "cuda" else "ieee"
        momenta, weights, layers = network.momenta.table, network.weights.table, self._layers
        elementwise.sfw_momentum[(count,)](
            network.gradients.table, momenta, weights, cut.tensors, cut.starts, cut.own_starts, cut.lengths,
            network.wide(cut), network.bad, self.rho, self._figures, count, BLOCK=elementwise.BLOCK,
        )  # fmt: skip
        for _ in range(max(member.stack.iterations(member.index) for member in self.members)):
            spectral.sfw_project[(len(project),)](
                project, layers, momenta, self._warm, self._narrow, aligned, TILE=tile, SLICE=spectral.SLICE,
                PRECISION="tf32", **_PRODUCTS,
            )
            spectral.sfw_gram[(len(gram),)](gram, layers, self._narrow, self._wide, TILE=tile, num_warps=8, num_stages=1)
            spectral.sfw_factorise[(len(self.members),)](
                layers, self._wide, self._figures, self._first, self._count, self._lengths,
                STEP=spectral.STEP, num_warps=1, num_stages=1,
            )
            spectral.sfw_basis[(len(basis),)](
                basis, layers, self._narrow, self._wide, self._basis, TILE=tile, STEP=spectral.STEP, num_warps=4,
                num_stages=1,
            )
            spectral.sfw_coefficients[(len(coefficients),)](
                coefficients, layers, momenta, weights, self._basis, self._warm, self._wide, self._lengths, network.bad,
                self._sums, len(coefficients), aligned, TILE=tile, PRECISION=rounded, **_PRODUCTS,
            )  # fmt: skip
        spectral.sfw_choose_directions[(len(self.members),)](
            self._figures, count, self._first, self._count, self._sums, len(coefficients), self._first_program,
            self._programs, self._lengths, self.radii, self.diameters, self.rates.table, network.norms, self.part_tensor,
            network.bad, self.decay, self._factor, self.figures.gained, self.figures.eta, self.figures.clamped, self.figures.steps, RULE=self.rule,
        )  # fmt: skip
        spectral.sfw_move_directions[(len(move),)](
            move, layers, weights, self._basis, self._warm, self.decay, self._factor, aligned, TILE=tile, PRECISION=rounded, **_PRODUCTS
        )
