"""The same steps fused and plain: on a GPU where there is one, else by Triton's interpreter of the same kernels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from catalog import gaussian
from sparsefw import SFW
from sparsefw import geometry as geo

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 7
# Entry by entry, of the weight's largest. On a GPU the products of the spectral oracle are TF32 and float16.
EXACT, ROUNDED = 5e-6, 5e-6 if DEVICE == "cpu" else 2e-2
ROWS, ENTRIES, FLAT, DIRECTIONS = geo.GroupKSupportBall, geo.KSupportBall, geo.KSparsePolytope, geo.SpectralKSupportBall


def parameters(shapes, scale=0.1):
    return [nn.Parameter((gaussian(shape, i) * scale).float().to(DEVICE)) for i, shape in enumerate(shapes)]


def fused_and_plain(shapes, groups, gradient=gaussian, steps=STEPS, **options):
    """The same steps fused and plain: ((parameters, optimizer), (parameters, optimizer)).

    `groups` makes param groups from a list of parameters, `gradient` the gradient of a shape from a number.
    """
    runs = []
    for wanted in (True, False):
        params = parameters(shapes)
        optimizer = SFW(groups(params), fused=wanted, **{"lr": 0.05, "on_nonfinite": "skip", **options})
        for step in range(steps):
            for i, p in enumerate(params):
                p.grad = gradient(tuple(p.shape), 100 * step + i).float().to(DEVICE)
            optimizer.step()
        runs.append((params, optimizer))
    return runs


def assert_equal(runs, tolerance=EXACT, covered=None):
    (params, optimizer), (twins, plain) = runs
    assert plain._fused_steps.current is None
    assert optimizer._fused_steps.current.covered == frozenset(
        range(len(optimizer.param_groups)) if covered is None else covered
    )
    for p, q in zip(params, twins, strict=True):
        difference = float((p - q).detach().abs().max() / q.detach().abs().max().clamp(min=1e-12))
        assert difference <= tolerance, f"{tuple(p.shape)}: {difference}"
    for a, b in zip(optimizer.diagnostics(), plain.diagnostics(), strict=True):
        assert a.step_size == pytest.approx(b.step_size, rel=max(1e-4, tolerance), abs=1e-7)
        assert a.norm <= 1 + 1e-5
        assert a.quality == pytest.approx(b.quality, abs=tolerance, nan_ok=True)
