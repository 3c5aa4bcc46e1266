"""Non-finite gradients: found on the device, kept from the weights, counted, and named."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sparsefw.geometry.precision import HALF


class NonFiniteGradientError(RuntimeError):
    """A gradient held NaN or inf (or its squared norm overflowed). The step was not taken; the weights are as before."""

    def __init__(self, names: Sequence[str], steps: int) -> None:
        self.names = list(names)
        self.where = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        times = "the step was" if steps == 1 else f"{steps} steps were"
        super().__init__(
            f"non-finite gradient in {self.where}; {times} not taken, the weights are unharmed (on_nonfinite='skip' only counts)"
        )


class Health:
    """Checks the gradients of each step and remembers, on the device, which parameter's were bad and how often."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, ...], Tensor] = {}
        self._on_host: dict[str, int] = {}

    def note(self, names: Sequence[str]) -> None:
        """Count a step that the host knows to be bad."""
        for name in names:
            self._on_host[name] = self._on_host.get(name, 0) + 1

    def check(self, gradients: Sequence[Tensor], names: Sequence[str]) -> tuple[Tensor | None, list[Tensor]]:
        """(whether all are healthy, as a boolean scalar on their device, or None where the host knows they are; their L2 norms).

        On a CPU the answer is read at once and a bad step raises; elsewhere, and inside a compiled step, it stays on the device.
        """
        norms: list[Tensor | None] = [None] * len(gradients)
        verdicts: list[Tensor] = []
        for kind, members in _by_kind(gradients).items():
            found = _norms([gradients[i] for i in members])
            for i, norm in zip(members, found, strict=True):
                norms[i] = norm
            stacked = torch.stack(found)
            fine = stacked < largest_norm(stacked.dtype)
            if on_host(kind[0]):
                if not bool(fine.all()):
                    bad = [names[i] for i, ok in zip(members, fine.tolist(), strict=True) if not ok]
                    raise NonFiniteGradientError(bad, 1)
                continue
            self.tally(tuple(names[i] for i in members), fine.device).add_(~fine)
            verdicts.append(fine.all())
        healthy: Tensor | None = None
        for verdict in verdicts:
            healthy = verdict if healthy is None else healthy & verdict.to(healthy.device)
        return healthy, norms  # type: ignore[return-value]

    def tally(self, names: tuple[str, ...], device: torch.device) -> Tensor:
        """How often the gradient of each was bad, to be counted up on the device."""
        if names not in self._tallies:
            self._tallies[names] = torch.zeros(len(names), dtype=torch.int64, device=device)
        return self._tallies[names]

    def read(self) -> dict[str, int]:
        """Name -> number of steps with a non-finite gradient, since the last read; syncs with the device."""
        counts, self._on_host = self._on_host, {}
        for names, tally in self._tallies.items():
            for name, count in zip(names, tally.tolist(), strict=True):
                if count:
                    counts[name] = counts.get(name, 0) + count
            tally.zero_()
        return counts

    def raise_if_any(self) -> None:
        counts = self.read()
        if counts:
            raise NonFiniteGradientError(list(counts), max(counts.values()))


def largest_norm(dtype: torch.dtype) -> float:
    """Of a gradient. Momentum sums up to 1 / (1 - 0.9) of them, and its squared norm must not overflow either: leave room."""
    return torch.finfo(dtype).max ** 0.5 / 64


def on_host(device: torch.device) -> bool:
    """Whether a value on this device can be read without a sync: a CPU, outside of a compiled step."""
    return device.type == "cpu" and not torch.compiler.is_compiling()


def _by_kind(tensors: Sequence[Tensor]) -> dict[tuple[torch.device, torch.dtype], list[int]]:
    kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(tensors):
        kinds.setdefault((tensor.device, tensor.dtype), []).append(i)
    return kinds


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
