"""The lists that tests run over, and a network to train: a region, a rule or a shape is tested by being listed here."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from sparsefw import SFW, constrain
from sparsefw import geometry as geo
from sparsefw.geometry import Ball
from sparsefw.optim import Diameter, FastGradient, Gradient, Horizon, Unscaled

SHAPES = [(7,), (1,), (5, 4), (4, 5), (6, 3, 2, 2), (1, 5), (5, 1)]
RULES = [
    Gradient(), FastGradient(), Diameter(), Unscaled(), Gradient(of_batch=True), Horizon(steps=30, renewals=0.4),
    Horizon(steps=30, renewals=0.4, reach=0.02), Horizon(steps=30, renewals=0.4, reach=0.02, beside="adamw"),
]  # fmt: skip


def regions(shape: tuple[int, ...], radius: float = 1.5, exact: bool = True) -> list[Ball]:
    """Every named region on this shape, with k at both ends and in between."""
    entries, rows = math.prod(shape), shape[0]
    rank = min(rows, entries // rows)
    solver = geo.ExactSVD() if exact else geo.WarmSubspace()
    balls = [geo.LpBall(p, radius) for p in (1, 1.4, 2, 3.0, math.inf)]
    for k in sorted({1, max(1, entries // 3), entries}):
        balls += [geo.KSparsePolytope(k, radius), geo.KSupportBall(k, radius)]
    balls += [geo.GroupLassoBall(radius), geo.NuclearBall(radius, solver), geo.SpectralBall(radius, solver)]
    for k in sorted({1, max(1, rows // 2), rows}):
        balls.append(geo.GroupKSupportBall(k, radius))
    for k in sorted({1, max(1, rank // 2), rank}):
        balls += [geo.SpectralKSupportBall(k, radius, solver), geo.SpectralKSparse(k, radius, solver)]
    if len(shape) > 1:
        balls += [geo.NMBall(2, 4, radius), geo.NMBall(1, 2, radius), geo.NMBall(3, 3, radius)]
        balls.append(geo.GroupKSupportBall(max(1, shape[1] // 2), radius, axis=1))
        balls += [Ball(geo.Groups(1, width=2), geo.KSupport(1), radius)] if shape[1] % 2 == 0 else []  # attention heads
    labels = torch.arange(entries) % min(entries, 3)
    balls.append(geo.GroupKSupportBall(1 if entries == 1 else min(2, int(labels.max()) + 1), radius, labels=labels))
    return balls


CASES = [(shape, region) for shape in SHAPES for region in regions(shape)]
IDS = [f"{'x'.join(map(str, shape))}-{region}" for shape, region in CASES]


def gaussian(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def random_points(region: Ball, shape: tuple[int, ...], count: int, seed: int = 0) -> torch.Tensor:
    """Feasible points: Gaussian directions scaled to random norms up to the radius, and averages of two vertices."""
    points = gaussian((count, *shape), seed)
    scale = torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * region.radius
    norms = region.norm(points, stacked=True)
    scaled = points * (scale / norms).view(-1, *[1] * len(shape))
    vertices = region.lmo(gaussian((2 * count, *shape), seed + 1), stacked=True)
    return torch.cat([scaled, (vertices[:count] + vertices[count:]) / 2])


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def optimizer_of(net: nn.Module, kind: str = "filters", **options) -> SFW:
    k = None if ":" in kind else 0.25
    return SFW(constrain(net, kind, k=k, w=1.0, report=None), **{"lr": 0.1, "weight_decay": 1e-3, **options})


def backward(net: nn.Module, step: int, scale: float = 1.0) -> torch.Tensor:
    x, y = gaussian((8, 3, 6, 6), step, torch.float32), torch.arange(8) % 4
    loss = F.cross_entropy(net(x), y)
    (loss * scale).backward()
    return loss


def train(net: nn.Module, optimizer: SFW, steps: range, scheduler=None) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(net, step)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.state_dict().values(), b.state_dict().values(), strict=True))
