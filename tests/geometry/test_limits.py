"""Regions that are others in the limit, symmetries, and input that has no answer."""

from __future__ import annotations

import math

import pytest
import torch

from catalog import gaussian, regions
from sparsefw import geometry as geo
from sparsefw.geometry import Ball


def same(a: Ball, b: Ball, shape: tuple[int, ...]) -> None:
    for seed in range(3):
        x = gaussian(shape, seed)
        torch.testing.assert_close(a.norm(x), b.norm(x), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a.dual_norm(x), b.dual_norm(x), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(a.lmo(x), b.lmo(x), rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(a.project(5 * x), b.project(5 * x), rtol=1e-7, atol=1e-8)
    assert a.diameter(shape) == pytest.approx(b.diameter(shape))


def test_limits():
    shape = (4, 6)
    same(geo.KSupportBall(1), geo.LpBall(1), shape)
    same(geo.KSupportBall(24), geo.LpBall(2), shape)
    same(geo.KSparsePolytope(1), geo.LpBall(1), shape)
    same(geo.KSparsePolytope(24), geo.LpBall(math.inf), shape)
    same(geo.SpectralKSupportBall(1), geo.NuclearBall(), shape)
    same(geo.SpectralKSupportBall(4), geo.LpBall(2), shape)
    same(geo.SpectralKSparse(1), geo.NuclearBall(), shape)
    same(geo.SpectralKSparse(4), geo.SpectralBall(), shape)
    same(geo.GroupKSupportBall(3, labels=torch.arange(24)), geo.KSupportBall(3), shape)
    same(geo.GroupKSupportBall(1, labels=torch.zeros(24, dtype=torch.long)), geo.LpBall(2), shape)
    same(geo.GroupKSupportBall(1), geo.GroupLassoBall(), shape)
    same(geo.NMBall(6, 6), geo.LpBall(2), shape)
    same(geo.NMBall(2, 6), geo.KSupportBall(2), (1, 6))
    same(geo.LpBall(2.0), geo.LpBall(2), shape)


@pytest.mark.parametrize(
    "make", [geo.KSupportBall, geo.KSparsePolytope, geo.GroupKSupportBall, geo.SpectralKSupportBall]
)
def test_norm_falls_and_dual_norm_rises_with_k(make):
    x = gaussian((5, 7), 0)
    norms = [float(make(k).norm(x)) for k in range(1, 6)]
    duals = [float(make(k).dual_norm(x)) for k in range(1, 6)]
    assert norms == sorted(norms, reverse=True)
    assert duals == sorted(duals)


def test_equivariance():
    x = gaussian((6, 6), 0)
    rows, columns = torch.randperm(6), torch.randperm(6)
    signs = torch.sign(gaussian((6, 6), 1))
    Q, R = torch.linalg.qr(gaussian((6, 6), 2))[0], torch.linalg.qr(gaussian((6, 6), 3))[0]
    for region in regions((6, 6)):
        if isinstance(region.view, geo.Elements) and region.view.axis is None:
            moved, expected = x[rows][:, columns] * signs, region.lmo(x)[rows][:, columns] * signs
        elif region.view == geo.Groups():  # rows of their own: any order of them is as good
            moved, expected = x[rows][:, columns], region.lmo(x)[rows][:, columns]
        elif isinstance(region.view, geo.Spectrum):
            moved, expected = Q @ x @ R, Q @ region.lmo(x) @ R
        else:
            continue
        torch.testing.assert_close(region.lmo(moved), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: geo.KSupportBall(0), "k must be a whole number"),
        (lambda: geo.KSupportBall(0.2), "k must be a whole number"),
        (lambda: geo.KSparsePolytope(True), "k must be a whole number"),
        (lambda: geo.LpBall(0.5), "p must be at least 1"),
        (lambda: geo.LpBall(math.nan), "p must be at least 1"),
        (lambda: geo.NMBall(3, 2), "N <= M"),
        (lambda: geo.LpBall(2, radius=0.0), "positive, finite"),
        (lambda: geo.LpBall(2, radius=math.nan), "positive, finite"),
        (lambda: geo.GroupKSupportBall(9).lmo(torch.ones(4, 2)), "k=9 must be at most 4, the number of magnitudes"),
        (lambda: geo.GroupKSupportBall(1, labels=[0, 2]), "without gaps"),
        (lambda: geo.GroupKSupportBall(1, labels=[0, 1]).lmo(torch.ones(3)), "labels 2 entries, the tensor has 3"),
        (lambda: geo.GroupKSupportBall(1, axis=2).lmo(torch.ones(3, 3)), "axis 2 does not exist"),
        (lambda: geo.GroupKSupportBall(1, axis=1, labels=[0]), "not by both"),
        (lambda: geo.WarmSubspace(iterations=0), "at least one iteration"),
        (lambda: geo.SpectralBall(solver="exact"), "solver must be ExactSVD"),
        (lambda: geo.LpBall("inf"), "p must be at least 1"),
        (lambda: geo.KSupportBall(3, "2"), "positive, finite"),
        (lambda: geo.KSupportBall(1).lmo(torch.tensor(1.0)), "a scalar has no magnitudes"),
        (lambda: Ball(geo.Groups(), geo.NM(2, 4)), "use NMBall"),
        (lambda: Ball.from_plain({"view": {"type": "os.system"}, "gauge": {}, "radius": 1}), "unknown part"),
    ],
)
def test_bad_input_is_one_clear_line(make, message):
    with pytest.raises(ValueError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_integer_tensors_are_refused():
    with pytest.raises(TypeError, match="real floating-point"):
        geo.LpBall(2).lmo(torch.ones(3, dtype=torch.int64))
