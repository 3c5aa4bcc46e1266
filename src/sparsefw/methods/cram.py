"""CrAM: SGD with the gradient at the compressed weights, C(theta + rho g) for a compression C drawn in every step.

    theta <- theta - lr (g + C' grad(C(theta + rho g))),   g = grad(theta)

C' restricts a gradient to the units that C keeps: it multiplies by the mask, or projects onto the left singular vectors.
Without `plus` the first term is left out.

Peste, Vladu, Kurtic, Lampert, Alistarh: CrAM: A Compression-Aware Minimizer, ICLR 2023.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, distributed, nn

from sparsefw.config_base import KindName
from sparsefw.geometry import Elements, Groups, Spectrum
from sparsefw.geometry.select import without_smallest_mask
from sparsefw.geometry.subspace import svd
from sparsefw.kinds import FILTERS, RANK, WEIGHTS, Kind, kind_of
from sparsefw.methods.base import Backward, Batch, Method, OptimizerSettings, register
from sparsefw.methods.perturbed import perturbed_weights
from sparsefw.methods.weight_stacks import weight_stacks
from sparsefw.optim import SFW


@register
class CrAM(Method):
    """SGD with the gradient at C(theta + rho g), g the gradient at theta, which `plus` (CrAM+) adds to it.

    In every step C removes a ratio drawn from `ratios`.

    kind    the units that C removes: "weights", the smallest of all layers together (published); "filters", those of smallest
            L1 norm in every layer; "rank", the smallest singular values in every layer
    """

    title: ClassVar[str] = "CrAM+"
    paper: ClassVar[str] = "Peste, Vladu, Kurtic, Lampert, Alistarh: ICLR 2023, arXiv:2207.14200"
    passes: ClassVar[int] = 2
    forms: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        f"cram-{kind.name}": {"kind": kind.name} for kind in (FILTERS, RANK, WEIGHTS)
    }

    name: Literal["cram"] = "cram"
    kind: KindName = WEIGHTS.name
    ratios: tuple[float, ...] = (0.5, 0.7, 0.9)
    rho: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    plus: bool = True

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        if not self.ratios or any(not 0 <= ratio < 1 for ratio in self.ratios):
            raise ValueError(f"ratios={list(self.ratios)}: must be one or more ratios in [0, 1)")
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
        weight_stacks(model, self.prepares)  # raises where the network has no such weights
        return super().optimizer(model, settings, report)

    def gradients(self, model: nn.Module, batch: Batch, backward: Backward) -> Tensor:
        sums = backward(batch)
        with perturbed_weights(model) as (parameters, g):
            with torch.no_grad():
                torch._foreach_add_(parameters, torch._foreach_mul(g, self.rho / backward.scale))
            restrictions = self._compress(model)
            backward(batch)
            with torch.no_grad():
                for stack, restrict in zip(weight_stacks(model, self.prepares), restrictions, strict=True):
                    stack.map_gradients(restrict)
                for p, first_gradient in zip(parameters, g, strict=True) if self.plus else ():
                    p.grad = first_gradient if p.grad is None else p.grad.add_(first_gradient)
        return sums

    @torch.no_grad()
    def _compress(self, model: nn.Module) -> list[Restrict]:
        """Compress the weights in place. Return for each stack the restriction of gradients to the kept units."""
        stacks = weight_stacks(model, self.prepares)
        weights = [stack.weights() for stack in stacks]
        ratio = _draw(self.ratios, weights[0].device)
        view = self.prepares.view
        if isinstance(view, Spectrum):
            compressed = [_low_rank(matrices, ratio) for matrices in weights]
        else:
            masks = _row_masks(weights, ratio) if isinstance(view, Groups) else _global_masks(weights, ratio)
            compressed = [_masked(matrices, mask) for matrices, mask in zip(weights, masks, strict=True)]
        for stack, part in zip(stacks, compressed, strict=True):
            stack.write(part.weights)
        return [part.restrict for part in compressed]


Restrict = Callable[[Tensor], Tensor]


class _Compressed(NamedTuple):
    weights: Tensor
    restrict: Restrict


def _masked(weights: Tensor, mask: Tensor) -> _Compressed:
    return _Compressed(weights * mask, lambda gradient: gradient * mask)


def _row_masks(weights: list[Tensor], ratio: Tensor) -> list[Tensor]:
    return [_largest(matrices.abs().sum(-1), ratio).unsqueeze(-1) for matrices in weights]


def _global_masks(weights: list[Tensor], ratio: Tensor) -> list[Tensor]:
    mask = _largest(torch.cat([matrices.abs().flatten() for matrices in weights]), ratio)
    parts = mask.split([matrices.numel() for matrices in weights])
    return [part.view_as(matrices) for matrices, part in zip(weights, parts, strict=True)]


def _low_rank(weights: Tensor, ratio: Tensor) -> _Compressed:
    U, s, Vh = svd(weights.nan_to_num(0.0, 0.0, 0.0))
    U = U * _largest(s, ratio).unsqueeze(-2)
    # NaN where the gradient overflowed: then the second gradient must not be finite either.
    zero_or_nan = weights - weights
    return _Compressed((U * s.unsqueeze(-2)) @ Vh + zero_or_nan, lambda gradient: U @ (U.mT @ gradient))


def _draw(ratios: tuple[float, ...], device: torch.device) -> Tensor:
    """Draw a ratio on the device, where every replay of a captured step draws another; the same in all processes."""
    index = torch.randint(len(ratios), (), device=device)
    if distributed.is_initialized():
        distributed.broadcast(index, 0)
    return _on_device(ratios, device).take(index)  # indexing would make the host wait for the index


@functools.cache
def _on_device(ratios: tuple[float, ...], device: torch.device) -> Tensor:
    """Return the ratios as a tensor, cached: a captured step cannot copy from the host, but the steps before it could."""
    return torch.tensor(ratios, dtype=torch.float64, device=device)


def _largest(magnitudes: Tensor, ratio: Tensor) -> Tensor:
    """Return 0 for exactly floor(ratio * count) smallest along the last axis, at most count - 1, and 1 for the others."""
    count = magnitudes.shape[-1]
    removed = (ratio * count + 1e-9).floor().clamp(max=count - 1)
    return without_smallest_mask(magnitudes, removed).to(magnitudes.dtype)
