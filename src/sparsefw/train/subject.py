"""A subject: a trained network with the inputs that it is calibrated on and the images that it is evaluated on.

It is the network of a run folder (evaluate_run.py), or one that was trained elsewhere (given_network.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from sparsefw.compression import Compressed, Curve, compress, curve
from sparsefw.compression.target import is_drop
from sparsefw.config_base import ConfigError
from sparsefw.data.batches import DataPart
from sparsefw.kinds import Kind
from sparsefw.runfolder import Split
from sparsefw.train.engine import Engine
from sparsefw.train.loop import evaluate
from sparsefw.train.tasks import Classification, Task

STANDARD_ERRORS = 3  # by which an accuracy must exceed that of guessing to be more than chance


class Subject(ABC):
    """A trained network, on its device."""

    model: nn.Module
    task: Task
    engine: Engine

    @property
    @abstractmethod
    def name(self) -> str:
        """How messages call the network."""

    @property
    def title(self) -> str:
        """How tables call the network."""
        return self.name

    @abstractmethod
    def curve(self, kind: Kind | str | None, at: Sequence[float] | None, form: str, split: str, **how: Any) -> Curve:
        """Compute a curve, accuracy against ratio; see measured_curve."""

    @abstractmethod
    def inputs(self, calibration: Any) -> dict[str, Any]:
        """Return the arguments calibration= and example= of compress.

        Args:
            calibration: what the user asked for; None: the default.
        """

    @abstractmethod
    def part(self, split: str) -> DataPart:
        """Return the test or the validation images; ConfigError if there are none."""

    @property
    @abstractmethod
    def reported(self) -> str | None:
        """The split that figures of this network are reported on; None if there are no images with labels."""

    def metrics(self, model: nn.Module, split: str = Split.TEST) -> dict[str, float]:
        """Evaluate a model on the test or the validation images; ConfigError if there are none."""
        if split not in list(Split):
            raise ConfigError(f"split={split!r}: must be one of {', '.join(Split)}")
        return evaluate(model, self.part(split), self.task, self.engine)

    def metric(self, split: str = Split.TEST) -> Callable[[nn.Module], float]:
        """Return the function that computes a model's figure of merit, in percent."""
        return lambda model: self.metrics(model, split)[self.task.metric]

    def compress(self, calibration: Any = None, **how: Any) -> Compressed:
        """Make a smaller network. A target drop= is met on the validation images, never on the test images.

        Args:
            calibration: see inputs.
            how: further arguments of `sparsefw.compress`.
        """
        if is_drop(how.get("target")):
            how["evaluate"] = self._choosing_metric()
        return compress(self.model, **self.inputs(calibration), **how)

    def measured_curve(
        self, kind: Kind, at: Sequence[float], form: str, split: str, calibration: Any, **how: Any
    ) -> Curve:
        """Compute a curve, accuracy against ratio; `how` are further arguments of `sparsefw.curve`."""
        metric = self.metric(split)
        self.part(split)  # now, not after minutes of work
        return curve(self.model, kind, list(at), form=form, evaluate=metric, **self.inputs(calibration), **how)

    def _choosing_metric(self) -> Callable[[nn.Module], float]:
        """Return the metric on the validation images, which refuses a dense network that is no better than chance."""
        part = self.part(Split.VALIDATION)
        metric = self.metric(Split.VALIDATION)
        seen: list[float] = []

        def checked(model: nn.Module) -> float:
            seen.append(metric(model))
            if len(seen) == 1 and isinstance(self.task, Classification):
                require_better_than_chance(seen[0], self.task.classes, len(part), part.largest_class)
            return seen[-1]

        return checked


def require_better_than_chance(accuracy: float, classes: int, images: int, largest_class: float | None) -> None:
    """Raise ConfigError if an accuracy, in percent, is one that guessing may reach on so many images.

    Args:
        accuracy: of the dense network.
        classes: among which it chooses.
        images: that it was measured on.
        largest_class: the share of the most frequent class, where it is known.
    """
    guessed = max(1 / classes, largest_class or 0.0)
    chance = 100 * (guessed + STANDARD_ERRORS * math.sqrt(guessed * (1 - guessed) / images))
    if accuracy <= chance:
        raise ConfigError(
            f"the network is right on {accuracy:.1f} % of {images} images, no more than guessing may be ({chance:.1f} %): "
            "there is no accuracy to hold; check the weights, how images are normalised, and the order of the classes"
        )
