"""Spectra: the filter norms and the singular values of every layer, largest first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.structure.layers import as_matrices, is_layer
from sparsefw.geometry.subspace import gram_values
from sparsefw.kinds import FILTERS, RANK

POINTS = 48  # of every spectrum at most, which is as many as a figure can show


def spectra(model: nn.Module) -> dict[str, Any]:
    """Return the spectra of all layers as {"layers": {name: {"filters", "rank"}}, "left_out": {name: reason}}.

    A spectrum is {"count", "index", "value"}: the number of magnitudes, and some of them, always with the first and the last.
    A grouped convolution has one matrix per group; their singular values are sorted together.
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
            FILTERS.name: _thinned(weight.flatten(0, 1).norm(dim=1)),
            RANK.name: _thinned(gram_values(weight).flatten()),
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
