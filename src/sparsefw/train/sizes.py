"""Training over sizes: the objective  minimise over theta  E_r [ L(C_r(theta)) ],  for any method that passes once over a batch.

In every step a part of the batch sees the network without the share r of its units, drawn for the step, and the rest sees it
whole; the losses of all images have the same weight. Nothing is remembered from step to step: r is a function of seed and step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sparsefw.compression.sizes import Sizes
from sparsefw.config_base import ConfigError
from sparsefw.kinds import Kind
from sparsefw.methods import Batch
from sparsefw.train.config import SizesConfig


class OverSizes:
    """The part of every batch that sees a smaller network, and that network."""

    def __init__(
        self,
        config: SizesConfig,
        model: nn.Module,
        kind: Kind,
        *,
        shape: tuple[int, ...],
        images: int,
        parts: int = 1,
        seed: int = 0,
    ) -> None:
        """Find out what the network can lose.

        Args:
            kind: of the units that go.
            shape: of an image.
            images: of a batch, in this process.
            parts: in which the batch is processed.
            seed: of the draws.
        """
        self._config = config
        device = next(model.parameters()).device
        self._small = images if config.both else parts * small_images(config.share, images // parts)
        try:
            self._sizes = Sizes(
                model,
                kind,
                example=torch.zeros((2, *shape), device=device),
                between=config.between,
                distribution=config.distribution,
                form=config.form,
                score=config.score,
                seed=seed,
            )
        except ValueError as error:
            raise ConfigError(f"sizes: {error}") from error

    @property
    def share(self) -> float:
        """The weight of the smaller network's loss."""
        return self._config.share

    def choose(self, step: int) -> float:
        """Set the size of a step; return the share that is removed. Outside of captured steps, which read it."""
        ratio = self._sizes.draw(step)
        self._sizes.choose(ratio)
        return ratio

    @contextmanager
    def smaller(self) -> Iterator[None]:
        """Give the network the chosen size, for forward and backward passes."""
        with self._sizes.smaller():
            yield

    def divide(self, inputs: Tensor, targets: Tensor) -> tuple[Batch, Batch]:
        """Return the images that see the smaller network, the first of the batch, and those that see the whole one."""
        n = self._small
        rest = 0 if self._config.both else n
        return Batch(inputs[:n], targets[:n]), Batch(inputs[rest:], targets[rest:])


def small_images(share: float, images: int) -> int:
    """Return how many of these images see the smaller network; ConfigError where a network would see fewer than two."""
    small = round(share * images)
    if min(small, images - small) < 2:
        raise ConfigError(
            f"sizes.share={share:g} of {images} images that are processed at once: each network needs two at least; "
            "take a larger data.batch_size, or sizes.both=true"
        )
    return small
