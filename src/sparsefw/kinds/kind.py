"""A kind of sparsity, such as filters or rank: users constrain, compress and plot a network by its name.

    kind = a view of a weight (geometry) + the layers whose weights it applies to + the unit that is removed, with its words

Training, compression, recipes, reports and the command line read this record; none of them compares names. The stage in
compression/kinds that is registered under the kind's family zeroes or removes its units, refits the layers that read them, and
lists these edits in a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from sparsefw.geometry import Ball, Gauge, KSparse, KSupport, View
from sparsefw.layer_types import TRANSPOSED

# k-support lets the chosen units grow in proportion to their gradients, k-sparse all by the same amount.
GAUGES: dict[str, Callable[[int], Gauge]] = {"k-support": KSupport, "k-sparse": KSparse}
DEFAULT_GAUGE = "k-support"


def ball_maker(view: View, gauge: str) -> Callable[[int], Ball]:
    """Return the function from k to the unit ball of the view and the gauge of this name.

    >>> from sparsefw.geometry import Elements
    >>> ball_maker(Elements(), "k-sparse")(3)
    KSparsePolytope(k=3, radius=1)
    """
    return lambda k: Ball(view, GAUGES[gauge](k))


@dataclass(frozen=True)
class Kind:
    """A name for a view, the layers that it applies to, and the units that are removed.

    name         as users type it
    units        the words for the removed units, in tables and figures
    view         what counts as one magnitude of a weight
    layers       module types whose weights it constrains
    gauge        which regions it constrains weights to, unless the user says otherwise: a name in GAUGES
    adamw_gauge  the same where AdamW trains the rest and regions are sized from the weights as given; None: gauge
    allocation   how much each layer loses, unless the user says otherwise: "uniform", the same fraction; "global", one threshold
                 for all layers
    score        by which units are ranked for removal, unless the user says otherwise; None: by their magnitudes in the view
    of_channels  units are outputs of layers, removed with everything that reads them; form="masked" zeroes them in place instead
    shrinks      removing units makes tensors smaller; if not, zeros stay in place and only bytes fall
    most_drawn   the largest share that a training over sizes removes, unless the user says otherwise
    drawn        what is uniform among the sizes that it draws: the kept "width", or the "logarithm" of the width
    least_w      below this w short trainings under the paper's rule hardly learn
    """

    name: str
    units: str
    view: View
    layers: tuple[type[nn.Module], ...]
    gauge: str = DEFAULT_GAUGE
    adamw_gauge: str | None = None
    allocation: str = "uniform"
    score: str | None = None
    of_channels: bool = False
    shrinks: bool = True
    most_drawn: float = 0.95
    drawn: str = "width"
    least_w: float = 0.0

    @property
    def takes_k(self) -> bool:
        """Whether the user chooses how many units may grow."""
        return True

    @property
    def family(self) -> str:
        """The name under which compression registers its stage: that of the kind, but for patterns N:M."""
        return self.name

    @property
    def only_ratio(self) -> float | None:
        """The only ratio that it can remove; None: any."""
        return None

    @property
    def leaves_output_free(self) -> bool:
        """Whether training by this kind leaves out the layer that writes the output."""
        return True

    def frees_output(self, module: nn.Module) -> bool:
        """Return whether this layer, where it writes the output, is left out by every step-size rule, also by the paper's."""
        return False

    @property
    def hint(self) -> str:
        """What to try where no layer is known by its type, as the end of a message."""
        return ""

    @property
    def requirement(self) -> str:
        """The layers that a network must have for this kind, in words."""
        return " or ".join(layer.__name__ for layer in self.layers)

    @property
    def sought(self) -> str:
        """What compression looks for in a network, in words."""
        return "layer"

    def compress_arguments(self, ratio: float) -> dict[str, Any]:
        """Return the keyword arguments of `compress` that remove this ratio."""
        return {self.name: ratio}

    def views(self, model: nn.Module) -> dict[str, View]:
        """Return name -> view for every parameter that it constrains."""
        return {
            f"{name}.weight" if name else "weight": self.view
            for name, module in model.named_modules(remove_duplicate=False)
            if isinstance(module, self.layers)
        }

    def region_maker(self, view: View, gauge: str | None, output_axis: int) -> Callable[..., Ball]:
        """Return the function that makes the unit ball for a weight, from k where the kind takes one.

        Args:
            view: how the kind sees this weight.
            gauge: the name of a gauge; None: the kind's own.
            output_axis: the axis of the weight that counts output channels.
        """
        return ball_maker(view, gauge or self.gauge)

    def unfit_reason(self, module: nn.Module, weight: Tensor) -> str | None:
        """Return why this layer gets no region although its type fits; None if it gets one."""
        is_grouped = isinstance(module, TRANSPOSED) and module.groups > 1
        return "grouped transposed convolution: no axis of its weight counts all outputs" if is_grouped else None
