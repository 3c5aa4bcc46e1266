"""SGD with momentum (or AdamW, by train.rest): the baseline, which does not prepare for compression.

    m <- momentum m + gradient + weight_decay theta,   theta <- theta - lr m

Robbins, Monro: A Stochastic Approximation Method, Annals of Mathematical Statistics 22, 1951.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from sparsefw.methods.base import Method, register


@register
class SGD(Method):
    """theta <- theta - lr m, with m <- momentum m + gradient + weight_decay theta."""

    title: ClassVar[str] = "SGD"
    paper: ClassVar[str] = "Robbins, Monro: A Stochastic Approximation Method, 1951"

    name: Literal["sgd"] = "sgd"
