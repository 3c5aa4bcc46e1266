"""Views, gauges, and the feasible regions that they form: pure functions of tensors, no modules, no configuration."""

from sparsefw.geometry.gauges import NM, Gauge, KSparse, KSupport, Lp
from sparsefw.geometry.regions import (
    REGIONS,
    Ball,
    GroupKSupportBall,
    GroupLassoBall,
    KSparsePolytope,
    KSupportBall,
    LpBall,
    NMBall,
    NuclearBall,
    Simplex,
    SpectralBall,
    SpectralKSparse,
    SpectralKSupportBall,
)
from sparsefw.geometry.views import Elements, ExactSVD, Groups, Partition, Spectrum, View, WarmSubspace

__all__ = [
    "NM", "REGIONS", "Ball", "Elements", "ExactSVD", "Gauge", "GroupKSupportBall", "GroupLassoBall", "Groups", "KSparse",
    "KSparsePolytope", "KSupport", "KSupportBall", "Lp", "LpBall", "NMBall", "NuclearBall", "Partition", "Simplex",
    "SpectralBall", "SpectralKSparse", "SpectralKSupportBall", "Spectrum", "View", "WarmSubspace",
]  # fmt: skip
