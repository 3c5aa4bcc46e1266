"""Augmentation of batches, on the device that holds the images.

The changes of an image are a function of its six random numbers u in [0, 1):

    u[0], u[1]    vertical and horizontal position of a crop
    u[2]          mirrored if below 1/2
    u[3], u[4]    area (or zoom) and aspect ratio of a crop
    u[5]          angle of a rotation
"""

from __future__ import annotations

import math
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor
from torch.nn import functional

from sparsefw.config_base import Section

AREA = (0.08, 1.0)  # of a resized crop, as a fraction of the image
ASPECT = (3 / 4, 4 / 3)  # of a resized crop
CENTRE = 224 / 256  # the part of the shorter side that evaluation uses after training on resized crops
OUTSIDE = 255  # the label of pixels outside of the image


class Augment(Section):
    """Random changes of training images.

    crop            pad with this number of black pixels on each side, then crop to the original size
    flip            mirror left to right with probability 1/2
    rotation        rotate by up to this number of degrees in either direction
    resized_crop    crop 8 to 100 % of the area with an aspect ratio of 3/4 to 4/3, then resize to the network's input
    zoom            for label maps: enlarge by a factor between these two, then crop to the network's input
    """

    crop: int = Field(default=0, ge=0)
    flip: bool = False
    rotation: float = Field(default=0.0, ge=0, le=180)
    resized_crop: bool = False
    zoom: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.zoom is not None and not 0 < self.zoom[0] <= self.zoom[1] < math.inf:
            raise ValueError(f"zoom={list(self.zoom)}: must be two positive factors, the smaller first")
        if (self.resized_crop or self.zoom is not None) and self.crop:
            raise ValueError("crop: cannot be combined with resized_crop or zoom, which crop already")
        if self.resized_crop and self.zoom is not None:
            raise ValueError("zoom: cannot be combined with resized_crop; take one")
        return self

    @property
    def resizes(self) -> bool:
        """Whether images are resized to the network's input."""
        return self.resized_crop or self.zoom is not None


def augment_images(augment: Augment, images: Tensor, u: Tensor, size: tuple[int, int], fill: float = 0.0) -> Tensor:
    """Return augmented images of `size`.

    Args:
        augment: the changes.
        images: (n, c, h, w), uint8 or float; or label maps (n, h, w), for which the nearest label is taken.
        u: random numbers (n, 6).
        size: height and width of the result.
        fill: value of pixels outside of an image; in label maps it is OUTSIDE.
    """
    is_label_map = images.ndim == 3
    x = images.unsqueeze(1) if is_label_map else images
    fill = OUTSIDE if is_label_map else fill
    if augment.resizes or x.shape[-2:] != size:
        windows = _crop_windows(augment, u, (x.shape[-2], x.shape[-1]), size)
        x = _resample(x, windows, size, fill, nearest=is_label_map)
    elif augment.crop or augment.flip:
        x = _shift_and_mirror(x, augment, u, int(fill))
    if augment.rotation:
        x = _resample(x, _rotations(augment.rotation, u, x), size, fill, nearest=True)
    return x.squeeze(1) if is_label_map else x


def centre_crop_sides(full: tuple[int, int], size: tuple[int, int], fraction: float) -> tuple[float, float]:
    """Return height and width in pixels of a central crop: `fraction` of the largest one with the aspect ratio of `size`.

    >>> centre_crop_sides((100, 200), (50, 50), fraction=0.5)
    (50.0, 50.0)
    """
    scale = fraction * min(full[0] / size[0], full[1] / size[1])
    return scale * size[0], scale * size[1]


def centre_crop(images: Tensor, size: tuple[int, int], fraction: float) -> Tensor:
    """Return the central crop of images (see centre_crop_sides), resized to `size`: the inputs of evaluation."""
    n, _, height, width = images.shape
    crop_height, crop_width = centre_crop_sides((height, width), size, fraction)
    window = torch.tensor([[crop_width / width, 0, 0], [0, crop_height / height, 0]], device=images.device)
    return _resample(images, window.expand(n, 2, 3), size, 0.0, nearest=False)


def _shift_and_mirror(x: Tensor, augment: Augment, u: Tensor, fill: int) -> Tensor:
    """Crop and mirror by whole pixels: exact, and as cheap as a copy."""
    n, channels, height, width = x.shape
    pad = augment.crop
    padded = functional.pad(x, (pad, pad, pad, pad), value=fill) if pad else x
    i = torch.arange(height, device=x.device)
    j = torch.arange(width, device=x.device)
    top, left = ((u[:, axis, None] * (2 * pad + 1)).long() for axis in (0, 1))
    mirrored = (u[:, 2, None] < 0.5) if augment.flip else torch.zeros_like(u[:, 2, None], dtype=torch.bool)
    rows = top + i
    columns = left + torch.where(mirrored, width - 1 - j, j)
    positions = (rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]).view(n, 1, -1)
    return padded.flatten(2).gather(2, positions.expand(-1, channels, -1)).view(n, channels, height, width)


def _crop_windows(augment: Augment, u: Tensor, full: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Return affine maps (n, 2, 3) from the result to the image, both with coordinates from -1 to 1."""
    height, width = crop_fractions(augment, u, full, size)
    # The largest distance of the centre of a crop from the middle; negative where the crop is larger than the image.
    reach_y = 1 - height
    reach_x = 1 - width
    y = (2 * u[:, 0] - 1) * reach_y
    x = (2 * u[:, 1] - 1) * reach_x
    sign = torch.where(u[:, 2] < 0.5, -1.0, 1.0) if augment.flip else torch.ones_like(x)
    zero = torch.zeros_like(x)
    return torch.stack([torch.stack([sign * width, zero, x], -1), torch.stack([zero, height, y], -1)], 1)


def crop_fractions(augment: Augment, u: Tensor, full: tuple[int, int], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return height and width of the crops, as fractions of those of the image.

    First the aspect ratio of a resized crop is drawn, then an area with which it fits into the image.
    """
    if augment.resized_crop:
        low, high = map(math.log, ASPECT)
        aspect = torch.exp(low + (high - low) * u[:, 4]) * full[0] / full[1]  # of fractions, not of pixels
        largest = torch.minimum(aspect, 1 / aspect).clamp(max=AREA[1])
        smallest = largest.clamp(max=AREA[0])
        area = smallest + (largest - smallest) * u[:, 3]
        return torch.sqrt(area / aspect).clamp(max=1), torch.sqrt(area * aspect).clamp(max=1)
    factor = torch.ones_like(u[:, 3])
    if augment.zoom is not None:
        factor = augment.zoom[0] + (augment.zoom[1] - augment.zoom[0]) * u[:, 3]
    return size[0] / (factor * full[0]), size[1] / (factor * full[1])


def _rotations(degrees: float, u: Tensor, x: Tensor) -> Tensor:
    """Return affine maps (n, 2, 3) from the result to the image."""
    angle = (2 * u[:, 5] - 1) * math.radians(degrees)
    sine = torch.sin(angle)
    cosine = torch.cos(angle)
    zero = torch.zeros_like(angle)
    ratio = x.shape[-2] / x.shape[-1]
    return torch.stack(
        [torch.stack([cosine, -sine * ratio, zero], -1), torch.stack([sine / ratio, cosine, zero], -1)], 1
    )


def _resample(x: Tensor, windows: Tensor, size: tuple[int, int], fill: float, nearest: bool) -> Tensor:
    grid = functional.affine_grid(windows, [len(x), x.shape[1], *size], align_corners=False)
    mode = "nearest" if nearest else "bilinear"
    # Between the centre and the edge of an outermost pixel, that pixel is repeated: blending it with `fill` would frame every
    # enlarged image, and images and labels would end at different places.
    sampled = functional.grid_sample(x.float(), grid, mode=mode, padding_mode="border", align_corners=False)
    sampled = torch.where((grid.abs() <= 1).all(-1).unsqueeze(1), sampled, fill)
    return sampled.to(x.dtype) if nearest else sampled
