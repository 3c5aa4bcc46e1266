"""Splitting: which layers can become two, checked on the numbers.

Model code may do more with a layer than call it: read its weight, its type, its parameters by name. A layer is split only if the
model, run on the example with two layers in its place, computes what it does with the product of their weights in one layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.structure.copies import copy_sharing_weights
from sparsefw.compression.structure.factorisation import Factors, empty_pair, full_rank, is_standard
from sparsefw.compression.structure.layers import as_matrices, bias_of, replace_module, set_weight
from sparsefw.compression.structure.trials import (
    Comparison,
    offenders,
    with_varied_parameters,
    with_varied_values,
)

_RANK = 4  # of the trial: what model code does with two layers does not depend on their rank


def unsplittable_layers(model: nn.Module, example: Any, names: Sequence[str]) -> dict[str, Reason]:
    """Return why layers of these names cannot become two, for those that cannot."""
    varied = with_varied_parameters(model)
    inputs = with_varied_values(example)

    def problem(some: Sequence[str], /, briefly: bool = False) -> Reason | None:
        return _problem(varied, inputs, some)

    reasons = offenders(names, problem)
    types = {name: type(model.get_submodule(name)).__name__ for name in reasons}
    own = {name for name in reasons if not is_standard(model.get_submodule(name))}
    return reasons | {name: because(Cause.OWN_FORWARD, type=types[name]) for name in own}


def gap_of_split(model: nn.Module, pairs: Mapping[str, Factors], example: Any) -> tuple[float, bool]:
    """Return how far the model with these pairs of layers is from the model with their products, each in one layer.

    Returns:
        The largest difference of the outputs, relative to them, and whether it is that of float64.
    """

    def with_products(is_double: bool) -> nn.Module:
        one = copy_sharing_weights(model)
        for name, pair in pairs.items():
            exact: Any = copy_sharing_weights(pair).double() if is_double else pair
            layer: Any = one.get_submodule(name)
            layer.weight = nn.Parameter(exact.weight.detach())
            layer.bias = None if exact.bias is None else nn.Parameter(exact.bias.detach())
        return one

    def with_pairs(is_double: bool) -> nn.Module:
        two = copy_sharing_weights(model)
        for name, pair in pairs.items():
            replace_module(two, name, copy_sharing_weights(pair))
        return two

    return Comparison(with_products, with_pairs, example).gap()


def can_compare(model: nn.Module, example: Any) -> bool:
    """Return whether the model's outputs can be compared; if not, as empty lists of boxes, one only sees that it runs."""

    def same(_: bool) -> nn.Module:
        return copy_sharing_weights(model)

    return math.isfinite(Comparison(same, same, example).gap()[0])


def _problem(model: nn.Module, example: Any, names: Sequence[str]) -> Reason | None:
    """Return what goes wrong when these layers become two; None if the model computes the same."""
    try:
        gap, is_exact = gap_of_split(model, {name: _trial(model.get_submodule(name)) for name in names}, example)
    except Exception as error:  # an error of the model's own code on two layers is the result of the trial
        return because(Cause.FAILS_AS_TWO, error=type(error).__name__)
    if gap < (1e-5 if is_exact else 1e-4) or (math.isinf(gap) and not can_compare(model, example)):
        return None
    return because(Cause.DIFFERS_AS_TWO)


def _trial(layer: nn.Module) -> Factors:
    """Return two layers whose product is exact and about as large as the weight: its rows are a few of them, halved or not."""
    rank = min(_RANK, full_rank(layer) - 1)
    first, last = empty_pair(layer, rank)
    weight = as_matrices(layer).detach()
    generator = torch.Generator().manual_seed(0)
    shape = (*weight.shape[:2], 1)
    chosen = torch.randint(rank, shape, generator=generator)
    factors = torch.tensor([-1.0, -0.5, 0.5, 1.0])[torch.randint(4, shape, generator=generator)]
    set_weight(first, weight[:, :rank])
    set_weight(last, torch.zeros(*shape[:2], rank).scatter(2, chosen, factors))
    bias, new_bias = bias_of(layer), bias_of(last)
    if bias is not None and new_bias is not None:
        new_bias.data.copy_(bias)
    return Factors(first, last).train(layer.training)
