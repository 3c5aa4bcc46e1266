"""What a cut does to the layers of a network so that every slice of a batch sees a size of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn


class OnePassError(ValueError):
    """Why a network cannot have several sizes in one pass."""


class InSlices(ABC):
    """How one kind gives several sizes to one network in one pass.

    modules     the layers that compute something else for the first slices
    followed    tensors that change from block to block, and that a training which resumes must have
    """

    modules: Sequence[nn.Module]
    followed: Sequence[Tensor] = ()

    @abstractmethod
    def attributes(self, numbers: Tensor, slice_of_part: Tensor) -> Mapping[nn.Module, dict[str, Any]]:
        """Return the attributes of sliced_layers.Sliced that these layers have in a block.

        Args:
            numbers: Of units, as of InPlaceCut.numbers, a row for each of the slices but the last, which sees the whole network.
            slice_of_part: Of the parts of equal length into which a batch is divided.
        """
