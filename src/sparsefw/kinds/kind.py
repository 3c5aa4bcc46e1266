"""A kind: what users constrain, cut, plot and ask for, by one word.

    kind = a view of a weight (geometry) + the layers whose weights it looks at + the unit that is removed, with its words

Training, compression, recipes, reports and the command line ask this record; none of them spells a name. What a kind does to a
network is in compression/kinds, registered for it there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sparsefw.geometry import Ball, Gauge, KSparse, KSupport, View
from sparsefw.layer_types import TRANSPOSED

# The other half of a region: k-support lets what it chooses grow in proportion to its gradient, k-sparse all by the same amount.
GAUGES: dict[str, Callable[[int], Gauge]] = {"k-support": KSupport, "k-sparse": KSparse}
DEFAULT_GAUGE = "k-support"


def region_maker(view: View, gauge: str) -> Callable[[int], Ball]:
    """k -> the unit ball of the view and the gauge of this name."""
    return lambda k: Ball(view, GAUGES[gauge](k))


@dataclass(frozen=True)
class Kind:
    """A word for a view, the layers that it is meant for, and what is removed.

    name         the word, as users type it
    units        what is removed, in tables and figures
    view         what counts as one magnitude of a weight
    layers       module types whose weights it constrains
    allocation   how much each layer loses where nothing is said: "uniform", the same fraction; "global", one threshold for all
    of_channels  the units are outputs of layers, removed with all that reads them; form="masked" zeroes them in place instead
    shrinks      removing them makes tensors smaller; where it does not, zeros stay in place and only bytes fall
    least_w      below this w short trainings under the paper's rule hardly learn
    """

    name: str
    units: str
    view: View
    layers: tuple[type[nn.Module], ...]
    allocation: str = "uniform"
    of_channels: bool = False
    shrinks: bool = True
    least_w: float = 0.0

    @property
    def takes_k(self) -> bool:
        """Whether users say how many may grow."""
        return True

    @property
    def family(self) -> str:
        """The name under which compression knows it: its own, but for N:M."""
        return self.name

    @property
    def only_ratio(self) -> float | None:
        """The one ratio that it removes; None: any."""
        return None

    @property
    def looks_for(self) -> str:
        """What a network must have for it, in words."""
        return " or ".join(layer.__name__ for layer in self.layers)

    def request(self, ratio: float) -> dict[str, Any]:
        """What `compress` is asked for this ratio, as keyword arguments."""
        return {self.name: ratio}

    def views(self, model: nn.Module) -> dict[str, View]:
        """Name of every parameter that it constrains -> how it sees that one."""
        return {
            f"{name}.weight" if name else "weight": self.view
            for name, module in model.named_modules(remove_duplicate=False)
            if isinstance(module, self.layers)
        }

    def region(self, view: View, gauge: str, transposed: bool) -> Callable[..., Ball]:
        """The function that makes the unit ball for a weight, from k where the kind takes one."""
        return region_maker(view, gauge)

    def unfit(self, module: nn.Module, weight: Tensor) -> str:
        """Why a region makes no sense on this layer although its type fits; empty where it does."""
        grouped = isinstance(module, TRANSPOSED) and module.groups > 1
        return "grouped transposed: no axis of filters" if grouped else ""
