"""The base of methods that act on singular values."""

from __future__ import annotations

from typing import ClassVar

from sparsefw.geometry.views import ExactSVD, Spectrum
from sparsefw.kinds import RANK, Kind
from sparsefw.methods.base import Method


class Spectral(Method):
    """A method on the singular values of convolutions, seen as matrices with one row per filter.

    svd   True: a full SVD of every layer in every step, as published. False: Newton-Schulz iterations, which agree with it for
          singular values above a thousandth of the largest, and never wait for the device
    """

    removes: ClassVar[Kind | None] = RANK

    svd: bool = False

    @property
    def view(self) -> Spectrum:
        return Spectrum(ExactSVD()) if self.svd else Spectrum()

    @property
    def uncapturable(self) -> str | None:
        return "an SVD waits for the device" if self.svd else None
