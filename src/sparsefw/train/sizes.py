"""Training over sizes: the objective  minimise over theta  E_r [ L(C_r(theta)) ],  for any method that passes once over a batch.

In every step a part of the batch sees the network without the share r of its units, drawn for the step, and the rest sees it
whole; the losses of all images have the same weight. r is a function of seed and step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sparsefw.compression.kinds import STAGES
from sparsefw.compression.sizes import Sizes
from sparsefw.config_base import ConfigError
from sparsefw.kinds import Kind
from sparsefw.methods import Batch
from sparsefw.train.config import SizesConfig


class OverSizes:
    """The part of every batch that sees smaller networks, and these networks.

    in_one_pass    whether they and the whole network see their images in the same pass
    from_outputs   whether they learn the outputs of the whole network
    waits          whether a step waits for the device, so that it cannot be captured
    """

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
        self._parts = parts
        self._images = images // parts
        self._small = small_images(config, self._images)
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
        self.in_one_pass = self._sizes.needs_passes is None
        self.from_outputs = config.targets == "outputs"
        if self.from_outputs and not self.in_one_pass:
            raise ConfigError(f"sizes.targets=outputs needs all sizes in one pass: {self._sizes.needs_passes}")
        self.waits = not (self.in_one_pass or STAGES[kind.family].cuts_without_waiting)
        self._sizes.choose(*[0.0] * config.draws)

    def state_dict(self) -> dict[str, list[Tensor]]:
        """Return what changes from step to step."""
        return self._sizes.state_dict()

    def load_state_dict(self, state: Mapping[str, Sequence[Tensor]]) -> None:
        """Restore what state_dict() returned."""
        self._sizes.load_state_dict(state)

    @property
    def share(self) -> float:
        """The weight of the smaller networks' loss."""
        return self._config.share

    @property
    def draws(self) -> int:
        """The number of smaller networks in a step."""
        return self._config.draws

    def __str__(self) -> str:
        passes = "in one pass" if self.in_one_pass else f"in a pass each, because {self._sizes.needs_passes}"
        return f"over sizes {passes}"

    def choose(self, step: int) -> tuple[float, ...]:
        """Set the sizes of a step; return the shares that are removed. Outside of captured steps, which read them."""
        ratios = tuple(self._sizes.draws(step, self.draws))
        self._sizes.choose(*ratios)
        return ratios

    @contextmanager
    def smaller(self, chosen: int) -> Iterator[None]:
        """Give the network one of the chosen sizes, for forward and backward passes."""
        with self._sizes.smaller(chosen=chosen):
            yield

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """Give the first images of a part of a batch, which `divide` chose, the chosen sizes, and the rest the whole network."""
        total = self._small + (self._images if self._config.both else self._images - self._small)
        with self._sizes.side_by_side([self._small * (i + 1) / (self.draws * total) for i in range(self.draws)]):
            yield

    def divide(self, batch: Batch) -> list[tuple[Batch, Batch]]:
        """Divide a batch into parts: in each the images that see smaller networks, and those that see the whole one.

        If some see both, they come first in their part.
        """
        n = self._small
        if self._config.both:
            return [(Batch(part.inputs[:n], part.targets[:n]), part) for part in chunks(batch, self._parts)]
        small, whole = (Batch(batch.inputs[rows], batch.targets[rows]) for rows in halves(self._parts * n))
        return list(zip(chunks(small, self._parts), chunks(whole, self._parts), strict=True))


def halves(n: int) -> tuple[slice, slice]:
    """Return the first n rows, and the others."""
    return slice(n), slice(n, None)


def chunks(batch: Batch, count: int) -> Iterator[Batch]:
    """Return a batch in parts of equal length."""
    for inputs, targets in zip(batch.inputs.chunk(count), batch.targets.chunk(count), strict=True):
        yield Batch(inputs, targets)


def small_images(config: SizesConfig, images: int) -> int:
    """Return how many of these images see smaller networks, equally many each; ConfigError where one sees fewer than two."""
    small = images if config.both else round(config.share * images)
    small -= small % config.draws
    if small < 2 * config.draws or (not config.both and images - small < 2):
        raise ConfigError(
            f"sizes.share={config.share:g} and sizes.draws={config.draws} of {images} images that are processed at once: "
            f"each network needs two at least; take a larger data.batch_size, or {_remedy(config)}"
        )
    return small


def _remedy(config: SizesConfig) -> str:
    return "fewer sizes.draws" if config.both else "sizes.both=true"
