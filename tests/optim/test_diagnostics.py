"""Diagnostics: numbers that can be computed by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from catalog import gaussian
from sparsefw import SFW
from sparsefw import geometry as geo


def test_by_hand():
    """theta = (0, 1), g = (3, 4), k = 1, r = 2: v = (0, -2), eta = 0.1 * 5 / 3, theta = (0, 0.5)."""
    p = nn.Parameter(torch.tensor([0.0, 1.0], dtype=torch.float64))
    optimizer = SFW([{"params": [("w", p)], "region": geo.KSupportBall(1, 2.0)}], lr=0.1)
    p.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    optimizer.step()
    (report,) = optimizer.diagnostics()
    assert report.name == "w"
    assert report.gap == pytest.approx(0.5 * 4 + 2 * 4)  # <theta, g> + r max|g|
    assert report.gradient_norm == pytest.approx(5)
    assert report.step_size == pytest.approx(0.5 / 3)
    assert report.clamped == 0
    assert report.norm == report.length == pytest.approx(0.25)
    assert report.quality == report.compressible == 1


def test_compressible_is_the_energy_of_the_k_largest():
    p = nn.Parameter(torch.diag(torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)))
    optimizer = SFW([{"params": [p], "region": geo.GroupKSupportBall(1, 100.0)}], lr=0.0)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert optimizer.diagnostics()[0].compressible == pytest.approx(0.8)


def test_quality_of_the_warm_oracle_in_training():
    """A small network on noise, where momentum turns fast: one iteration a step is near exact on average, never far off."""
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()]
    net = nn.Sequential(*body, nn.Flatten(), nn.Linear(512, 4))
    convs = [net[0].weight, net[3].weight]
    rest = [p for p in net.parameters() if all(p is not c for c in convs)]
    optimizer = SFW([{"params": convs, "region": geo.SpectralKSupportBall(3, 5.0)}, {"params": rest}], lr=0.05)
    qualities = []
    for step in range(60):
        x = gaussian((32, 3, 8, 8), step, torch.float32)
        y = (x.mean((1, 2, 3)) * 50).long().clamp(-2, 1) + 2
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        reports = optimizer.diagnostics()
        assert all(0 < report.certified <= report.quality + 1e-5 for report in reports)
        qualities += [report.quality for report in reports]
    assert max(qualities) <= 1 + 1e-5
    assert min(qualities) > 0.95
    assert sum(qualities) / len(qualities) > 0.99


def test_before_the_first_step_and_without_gradients():
    p = nn.Parameter(gaussian((4, 4), 0))
    optimizer = SFW(
        [{"params": [p], "region": geo.SpectralKSupportBall(2, 3.0)}, {"params": [nn.Parameter(torch.ones(2))]}]
    )
    (report,) = optimizer.diagnostics()
    assert report.step_size == report.gap == 0
    assert report.norm <= 1


def test_certificate_of_every_step_bounds_the_quality_of_every_spectral_gauge():
    for make in (geo.SpectralKSupportBall, geo.SpectralKSparse):
        p = nn.Parameter(torch.zeros(20, 30))
        optimizer = SFW([{"params": [p], "region": make(4, 9.0)}], lr=0.1)
        for step in range(8):
            p.grad = gaussian((20, 2), step, torch.float32) @ gaussian((2, 30), step + 50, torch.float32)
            optimizer.step()
            (report,) = optimizer.diagnostics()
            assert 0.3 < report.certified <= report.quality + 1e-5
