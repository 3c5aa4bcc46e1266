"""What methods on singular values have in common: they are found by an SVD, or by iterations that are faster."""

from __future__ import annotations

from typing import ClassVar

from sparsefw.geometry.views import ExactSVD, Spectrum
from sparsefw.kinds import RANK, Kind
from sparsefw.methods.base import Method


class Spectral(Method):
    """svd    True: by a full SVD of every layer in every step, as published; False: by Newton-Schulz iterations, which agree
    with it for singular values above a thousandth of the largest, and never wait for the device
    """

    removes: ClassVar[Kind | None] = RANK

    svd: bool = False

    @property
    def view(self) -> Spectrum:
        return Spectrum(ExactSVD()) if self.svd else Spectrum()

    @property
    def uncapturable(self) -> str | None:
        return "an SVD waits for the device" if self.svd else None
