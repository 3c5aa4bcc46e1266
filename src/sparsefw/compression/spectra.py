"""How fast the magnitudes of every layer fall off: the norms of its filters, and its singular values, largest first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.structure.layers import as_matrices, is_layer
from sparsefw.geometry.subspace import gram_values
from sparsefw.kinds import FILTERS, RANK

POINTS = 48  # of every spectrum at most: what a figure can show


def spectra(model: nn.Module) -> dict[str, Any]:
    """Of every convolution and linear layer, as {"layers": {name: {"filters", "singular values"}}, "left_out": {name: why}}.

    A spectrum is {"count", "index", "value"}: how many there are, and some of them, the first and the last always among these.
    A grouped convolution is as many matrices as it has groups, whose singular values are sorted together.
    """
    layers: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, layer in model.named_modules():
        if not is_layer(layer) or not isinstance(layer.weight, nn.Parameter):
            continue
        weight = as_matrices(layer).detach().cpu().double()
        if not bool(weight.isfinite().all()):
            left_out[name] = "its weights are not finite"
            continue
        layers[name] = {
            FILTERS.units: _thinned(weight.flatten(0, 1).norm(dim=1)),
            RANK.units: _thinned(gram_values(weight).flatten()),
        }
    return {"layers": layers, "left_out": left_out}


def _thinned(values: Tensor) -> dict[str, Any]:
    ordered = values.sort(descending=True).values
    count = len(ordered)
    index = torch.linspace(0, count - 1, min(count, POINTS), dtype=torch.float64).round().long().unique()
    return {
        "count": count,
        "index": index.tolist(),
        "value": [float(f"{value:.4g}") for value in ordered[index].tolist()],
    }
