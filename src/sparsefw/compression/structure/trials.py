"""Trials: a change of the network is permitted if, on the example, it computes what it should. What fails is found by halving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.compression.reasons import Reason
from sparsefw.compression.structure.copies import copy_sharing_weights
from sparsefw.compression.structure.gaps import in_double, relative_gap
from sparsefw.compression.structure.layers import call_on_copy, evaluating

T = TypeVar("T")


def offenders(candidates: Sequence[T], problem: Callable[[Sequence[T]], Reason | None]) -> dict[T, Reason]:
    """Return the candidates that cannot be changed, each with the reason, by halving.

    Args:
        candidates: what may be changed.
        problem: tries to change all of these together, and returns what goes wrong; None if nothing does.
    """
    reason = problem(candidates) if candidates else None
    if reason is None:
        return {}
    if len(candidates) == 1:
        return {candidates[0]: reason}
    half = len(candidates) // 2
    found = offenders(candidates[:half], problem) | offenders(candidates[half:], problem)
    # If each half can be changed but not both, neither is safe.
    return found or dict.fromkeys(candidates, reason)


def gap_of_networks(
    expected: Callable[[bool], nn.Module], got: Callable[[bool], nn.Module], example: Any
) -> tuple[float, bool]:
    """Return how far the outputs of two networks are apart, and whether both were computed in float64.

    TF32 or bfloat16 would make equal outputs look different. One network is made at a time: in float64, each takes up to twice
    the memory of the model.

    Args:
        expected: makes the one network. It is told whether this is then converted to float64.
        got: makes the other one.
        example: the input of both.
    """

    def outputs(make: Callable[[bool], nn.Module], inputs: Any, is_double: bool) -> Any:
        model = make(is_double).double() if is_double else make(is_double)
        with evaluating(model):
            return call_on_copy(model, inputs)

    try:
        inputs = in_double(example)
        return relative_gap(outputs(expected, inputs, True), outputs(got, inputs, True)), True
    except Exception:  # a model with a fixed precision, or a device without float64
        return relative_gap(outputs(expected, example, False), outputs(got, example, False)), False


def with_varied_values(example: Any) -> Any:
    """Return the example with random numbers in tensors that have a single value: on zeros everything looks equal."""
    generator = torch.Generator().manual_seed(0)

    def fill(t: Any) -> Any:
        if not isinstance(t, Tensor) or not t.is_floating_point() or t.numel() < 2 or bool((t != t.flatten()[0]).any()):
            return t
        return torch.randn(t.shape, generator=generator).to(t)

    return tree_map(fill, example)


def with_varied_parameters(model: nn.Module) -> nn.Module:
    """Return a copy with random numbers in parameters that have a single value, such as 0 or 1e-6 from their start.

    A last layer or a scale of zeros would make every removal look harmless.
    """
    model = copy_sharing_weights(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            if p.numel() < 2 or not p.is_floating_point() or bool((p != p.flatten()[0]).any()):
                continue
            value = float(p.flatten()[0])
            noise = torch.rand(p.shape, generator=generator).to(p)
            if value == 0:
                p.data = 0.2 * noise - 0.1
            else:
                p.data = (0.5 + noise) * (max(abs(value), 0.1) if value > 0 else value)
    return model
