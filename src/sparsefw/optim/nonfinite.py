"""Non-finite gradients: detected on the device, kept from the weights, counted and named."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefw.geometry.precision import HALF
from sparsefw.text import listed


class NonFiniteGradientError(RuntimeError):
    """A gradient held NaN or inf, or its squared norm overflowed. The step was not taken; the weights are unchanged."""

    def __init__(self, names: Sequence[str], steps: int) -> None:
        self.names = list(names)
        self.where = listed(names)
        times = "the step was" if steps == 1 else f"{steps} steps were"
        super().__init__(
            f"non-finite gradient in {self.where}; {times} not taken, the weights are unharmed (on_nonfinite='skip' only counts)"
        )


class GradientCheck:
    """Checks the gradients of each step, and counts on the device how often each parameter's gradient was not finite."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, ...], Tensor] = {}
        self._counts_on_host: dict[str, int] = {}

    def count(self, names: Sequence[str]) -> None:
        """Count a step in which the host knows these parameters' gradients not to be finite."""
        for name in names:
            self._counts_on_host[name] = self._counts_on_host.get(name, 0) + 1

    def check(self, gradients: Sequence[Tensor], names: Sequence[str]) -> tuple[Tensor | None, list[Tensor]]:
        """Check all gradients.

        Returns:
            Whether all are finite, as a boolean scalar on their device, or None where the host knows that they are; and their
            L2 norms.

        Raises:
            NonFiniteGradientError: a gradient on a CPU is not finite. On other devices, and inside a compiled step, the answer
                stays on the device.
        """
        norms: list[Tensor | None] = [None] * len(gradients)
        verdicts: list[Tensor] = []
        for (device, _), indices in _by_device_and_dtype(gradients).items():
            some_norms = _norms([gradients[i] for i in indices])
            for i, norm in zip(indices, some_norms, strict=True):
                norms[i] = norm
            stacked = torch.stack(some_norms)
            finite = stacked < largest_norm(stacked.dtype)
            if on_host(device):
                if not bool(finite.all()):
                    bad = [names[i] for i, ok in zip(indices, finite.tolist(), strict=True) if not ok]
                    raise NonFiniteGradientError(bad, 1)
                continue
            self.tally(tuple(names[i] for i in indices), finite.device).add_(~finite)
            verdicts.append(finite.all())
        healthy: Tensor | None = None
        for verdict in verdicts:
            healthy = verdict if healthy is None else healthy & verdict.to(healthy.device)
        return healthy, norms  # type: ignore[return-value]

    def tally(self, names: tuple[str, ...], device: torch.device) -> Tensor:
        """Return the counters of these parameters, a tensor on the device to be counted up there."""
        if names not in self._tallies:
            self._tallies[names] = torch.zeros(len(names), dtype=torch.int64, device=device)
        return self._tallies[names]

    def read_counts(self) -> dict[str, int]:
        """Return name -> number of steps with a non-finite gradient since the last call; syncs with the device."""
        counts = self._counts_on_host
        self._counts_on_host = {}
        for names, tally in self._tallies.items():
            for name, count in zip(names, tally.tolist(), strict=True):
                if count:
                    counts[name] = counts.get(name, 0) + count
            tally.zero_()
        return counts

    def raise_if_any(self) -> None:
        """Raise NonFiniteGradientError where a gradient was not finite since the counts were last read."""
        counts = self.read_counts()
        if counts:
            raise NonFiniteGradientError(list(counts), max(counts.values()))


def largest_norm(dtype: torch.dtype) -> float:
    """Return the largest norm of a gradient that counts as finite.

    Momentum adds up 1 / (1 - 0.9) gradients, and its squared norm must not overflow either.
    """
    return torch.finfo(dtype).max ** 0.5 / 64


def on_host(device: torch.device) -> bool:
    """Whether a value on this device can be read without a sync: on a CPU, outside of a compiled step."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def _by_device_and_dtype(tensors: Sequence[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[int]]:
    indices: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(tensors):
        indices.setdefault((tensor.device, tensor.dtype), []).append(i)
    return indices


def _norms(gradients: list[Tensor]) -> list[Tensor]:
    first = gradients[0]
    if first.dtype in HALF:
        return list(torch._foreach_norm(gradients, 2, dtype=torch.float32))
    if first.device.type == "cpu":  # a dot product takes half the time of a norm there
        return [
            torch.dot(g.view(-1), g.view(-1)).sqrt() if g.is_contiguous() else torch.linalg.vector_norm(g)
            for g in gradients
        ]
    return list(torch._foreach_norm(gradients, 2))
