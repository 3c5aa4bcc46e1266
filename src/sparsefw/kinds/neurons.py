"""Neurons: outputs of linear layers, but for those that attention reads or writes."""

from __future__ import annotations

from torch import nn

from sparsefw.geometry import View
from sparsefw.kinds.heads import attention_of
from sparsefw.kinds.kind import Kind


class Neurons(Kind):
    """A neuron is an output of a linear layer. Queries, keys and values go by the head, and are no neurons of their own."""

    @property
    def requirement(self) -> str:
        return "Linear that is no part of attention"

    @property
    def sought(self) -> str:
        return "linear layer that is no part of attention"

    def views(self, model: nn.Module) -> dict[str, View]:
        views = super().views(model)
        for name, module in model.named_modules(remove_duplicate=False):
            attention = attention_of(module)
            if attention is not None:
                for layer in (attention.projection, *attention.inputs):
                    views.pop(".".join(filter(None, (name, layer, "weight"))), None)
        return views
