"""CrAM: the gradient where the network will be after compression.

Peste, Vladu, Kurtic, Lampert, Alistarh: CrAM: A Compression-Aware Minimizer, ICLR 2023.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, distributed, nn

from sparsefw.config_base import KindName
from sparsefw.geometry import Elements, Groups, Spectrum
from sparsefw.geometry.select import top_k_mask
from sparsefw.geometry.subspace import svd
from sparsefw.kinds import FILTERS, RANK, WEIGHTS, Kind, kind_of
from sparsefw.methods.base import Backward, Batch, Method, OptimizerSettings, register
from sparsefw.methods.layers import Layers, layers_of
from sparsefw.methods.perturbed import elsewhere
from sparsefw.optim import SFW


@register
class CrAM(Method):
    """SGD with the gradient at C(theta + rho g), g the gradient at theta, which `plus` (CrAM+) adds to it.

    C removes a ratio, drawn anew in every step from `ratios`. kind says of what: "weights", the smallest of all layers together
    (published); "filters", those of smallest L1 norm in every layer; "rank", the smallest singular values in every layer. The
    gradient there counts for what C left: it is multiplied by the mask, or projected onto the left singular vectors that stayed.
    """

    title: ClassVar[str] = "CrAM+"
    paper: ClassVar[str] = "Peste, Vladu, Kurtic, Lampert, Alistarh: ICLR 2023, arXiv:2207.14200"
    looks: ClassVar[int] = 2
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"cram-{kind.name}": {"kind": kind.name} for kind in (FILTERS, RANK, WEIGHTS)
    }

    name: Literal["cram"] = "cram"
    kind: KindName = WEIGHTS.name
    ratios: tuple[float, ...] = (0.5, 0.7, 0.9)
    rho: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    plus: bool = True

    @model_validator(mode="after")
    def _fractions(self) -> Self:
        if not self.ratios or any(not 0 <= ratio < 1 for ratio in self.ratios):
            raise ValueError(f"ratios={list(self.ratios)}: must be in [0, 1), at least one")
        if not (self.prepares.takes_k and self.prepares.view in (Elements(), Groups(), Spectrum())):
            raise ValueError(f"kind={self.kind!r}: CrAM removes rows, singular values or weights")
        return self

    @property
    def uncapturable(self) -> str | None:
        return "an SVD waits for the device" if isinstance(self.prepares.view, Spectrum) else None

    @property
    def prepares(self) -> Kind:
        return kind_of(self.kind)

    def optimizer(self, model: nn.Module, settings: OptimizerSettings, report: Callable[[str], Any] | None) -> SFW:
        layers_of(model, self.prepares)  # refused where there are none
        return super().optimizer(model, settings, report)

    def gradients(self, model: nn.Module, batch: Batch, backward: Backward) -> Tensor:
        sums = backward(batch)
        with elsewhere(model) as (parameters, g):
            with torch.no_grad():
                torch._foreach_add_(parameters, torch._foreach_mul(g, self.rho / backward.scale))
            restrictions = self._compress(model)
            backward(batch)
            with torch.no_grad():
                for layers, restrict in restrictions:
                    layers.change_gradients(restrict)
                for p, dense in zip(parameters, g, strict=True) if self.plus else ():
                    p.grad = dense if p.grad is None else p.grad.add_(dense)
        return sums

    @torch.no_grad()
    def _compress(self, model: nn.Module) -> list[Restriction]:
        """Compress the weights in place. What comes back restricts gradients to what was left."""
        stacks = layers_of(model, self.prepares)
        weights = [layers.weights() for layers in stacks]
        ratio = _drawn(self.ratios, weights[0].device)
        view = self.prepares.view
        if isinstance(view, Spectrum):
            left = [_low_rank(matrices, ratio) for matrices in weights]
        elif isinstance(view, Groups):
            left = [_masked(matrices, _largest(matrices.abs().sum(-1), ratio).unsqueeze(-1)) for matrices in weights]
        else:
            mask = _largest(torch.cat([matrices.abs().flatten() for matrices in weights]), ratio)
            masks = mask.split([matrices.numel() for matrices in weights])
            left = [_masked(matrices, part.view_as(matrices)) for matrices, part in zip(weights, masks, strict=True)]
        for layers, (compressed, _) in zip(stacks, left, strict=True):
            layers.write(compressed)
        return [(layers, restrict) for layers, (_, restrict) in zip(stacks, left, strict=True)]


Change = Callable[[Tensor], Tensor]
Restriction = tuple[Layers, Change]


def _masked(weights: Tensor, mask: Tensor) -> tuple[Tensor, Change]:
    return weights * mask, lambda gradient: gradient * mask


def _low_rank(weights: Tensor, ratio: Tensor) -> tuple[Tensor, Change]:
    U, s, Vh = svd(weights.nan_to_num(0.0, 0.0, 0.0))
    U = U * _largest(s, ratio).unsqueeze(-2)
    nothing = weights - weights  # NaN where the gradient overflowed: the second one is then not finite either
    return (U * s.unsqueeze(-2)) @ Vh + nothing, lambda gradient: U @ (U.mT @ gradient)


def _drawn(ratios: tuple[float, ...], device: torch.device) -> Tensor:
    """One of them, on the device, where a captured step draws anew whenever it is replayed; the same in all processes."""
    which = torch.randint(len(ratios), (), device=device)
    if distributed.is_initialized():
        distributed.broadcast(which, 0)
    return _on(device, ratios).take(which)  # an index would be read by the host


@functools.cache
def _on(device: torch.device, ratios: tuple[float, ...]) -> Tensor:
    """Kept: a step that is captured cannot copy from the host, and was taken before without being captured."""
    return torch.tensor(ratios, dtype=torch.float64, device=device)


def _largest(magnitudes: Tensor, ratio: Tensor) -> Tensor:
    """1 for the largest along the last axis, 0 for floor(ratio * count) others, exactly so many on ties; at least one stays."""
    count = magnitudes.shape[-1]
    removed = (ratio * count + 1e-9).floor().clamp(max=count - 1)
    if magnitudes.is_cuda:
        return _largest_without_waiting(magnitudes, removed)
    return top_k_mask(magnitudes, count - int(removed)).to(magnitudes.dtype)


def _largest_without_waiting(magnitudes: Tensor, removed: Tensor) -> Tensor:
    """The same where the host must not look at how many: all are sorted."""
    order = magnitudes.argsort(dim=-1, stable=True)
    kept = (torch.arange(magnitudes.shape[-1], device=magnitudes.device) >= removed).to(magnitudes.dtype)
    return torch.zeros_like(magnitudes).scatter_(-1, order, kept.expand_as(magnitudes))
