"""Pairs of a layer and the batch norm that alone reads it: only there does the norm cancel an offset."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from compression.networks import IMAGES, ROWS
from sparsefw import compress, recalibrate
from sparsefw.compression.structure.batchnorm_pairs import norms_behind


class Branch(nn.Module):
    """A layer read by a batch norm and by a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(8, 64), nn.Linear(64, 6, bias=False)
        self.bn, self.o = nn.BatchNorm1d(6), nn.Linear(6, 3, bias=False)
        with torch.no_grad():
            self.a.bias += 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(torch.relu(self.a(x)))
        return self.o(torch.relu(self.bn(y)) + y)


def test_an_offset_is_only_lost_in_a_norm_that_alone_reads_it():
    net = Branch()
    assert norms_behind(net, ROWS[0]) == {}
    net = recalibrate(net, ROWS)
    small = compress(net, filters=0.8, include="a", calibration=ROWS).model
    with torch.no_grad():
        wanted, got = (torch.cat([m.b(torch.relu(m.a(x))) for x in ROWS]) for m in (net, small))
    assert float((wanted - got).square().sum() / wanted.square().sum()) < 0.1  # centred, the mean would be missing


def test_whatever_reads_a_layer_is_counted():
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.layer(x)
            return y, self.norm(y)

    class Twice(Returns):
        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.layer(self.norm(self.layer(x))))

    class Mapped(Returns):
        def forward(self, x: Tensor) -> Tensor:
            return torch.func.vmap(lambda row: self.norm(self.layer(row)))(x.unsqueeze(1)).squeeze(1)

    class Conditional(Returns):
        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(self.layer(x))
            return torch.cond(y.sum() > 0, lambda t: t * 2, lambda t: t * 3, (y,))

    assert norms_behind(Returns(), ROWS[0]) == {}  # the user reads it too
    assert norms_behind(Twice(), ROWS[0]) == {"layer": "norm"}
    norms_behind(Mapped().eval(), ROWS[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about the age of its modules
        assert norms_behind(Conditional(), ROWS[0]) == {"layer": "norm"}


@pytest.mark.parametrize(
    "between, behind", [(nn.Identity(), {"0": "2"}), (nn.ReLU(inplace=True), {}), (nn.ReLU(), {})], ids=str
)
def test_an_activation_in_place_is_between(between, behind):
    net = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), between, nn.BatchNorm2d(4))
    assert norms_behind(net, IMAGES[0]) == behind
