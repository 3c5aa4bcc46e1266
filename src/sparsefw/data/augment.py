"""Augmentation in batches, on the device that holds the images.

Every image of an epoch comes with six random numbers u in [0, 1), and what happens to it is a function of them:

    u[0], u[1]    where a crop lies, vertically and horizontally
    u[2]          mirrored where below 1/2
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

AREA, ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)  # of a resized crop
CENTRE = 224 / 256  # of the shorter side, when images that were trained on resized crops are evaluated
OUTSIDE = 255  # the label of what lies outside of the image


class Augment(Section):
    """Random changes of training images.

    crop            images are padded by so many black pixels and cropped back to their size
    flip            mirrored left to right, every other time
    rotation        turned by up to so many degrees either way
    resized_crop    a part of 8 to 100 % of the area and an aspect of 3/4 to 4/3, resized to the network's input
    zoom            for label maps: enlarged by a factor between these two, then cropped to the network's input
    """

    crop: int = Field(default=0, ge=0)
    flip: bool = False
    rotation: float = Field(default=0.0, ge=0, le=180)
    resized_crop: bool = False
    zoom: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.zoom is not None and not 0 < self.zoom[0] <= self.zoom[1] < math.inf:
            raise ValueError(f"zoom={list(self.zoom)}: must be two positive factors, the smaller first")
        if (self.resized_crop or self.zoom is not None) and self.crop:
            raise ValueError("crop: cannot be combined with resized_crop or zoom, which crop already")
        if self.resized_crop and self.zoom is not None:
            raise ValueError("zoom: cannot be combined with resized_crop; take one")
        return self

    @property
    def resizes(self) -> bool:
        return self.resized_crop or self.zoom is not None


def augmented(augment: Augment, images: Tensor, u: Tensor, size: tuple[int, int], fill: float = 0.0) -> Tensor:
    """Images (n, c, h, w), uint8 or float, changed as u (n, 6) says and of `size`; outside of them is `fill`.

    Label maps (n, h, w) are changed alike, by the nearest label, with the label OUTSIDE outside.
    """
    labels = images.ndim == 3
    x = images.unsqueeze(1) if labels else images
    fill = OUTSIDE if labels else fill
    if augment.resizes or x.shape[-2:] != size:
        x = _sampled(x, _windows(augment, u, (x.shape[-2], x.shape[-1]), size), size, fill, nearest=labels)
    elif augment.crop or augment.flip:
        x = _shifted(x, augment, u, int(fill))
    if augment.rotation:
        x = _sampled(x, _rotations(augment.rotation, u, x), size, fill, nearest=True)
    return x.squeeze(1) if labels else x


def centre_sides(full: tuple[int, int], size: tuple[int, int], share: float) -> tuple[float, float]:
    """Height and width, in pixels, of the middle `share` of the largest part of an image that has the shape of `size`."""
    scale = share * min(full[0] / size[0], full[1] / size[1])
    return scale * size[0], scale * size[1]


def centred(images: Tensor, size: tuple[int, int], share: float) -> Tensor:
    """The middle `share`, as evaluation sees it, resized to `size`."""
    n, _, height, width = images.shape
    tall, wide = centre_sides((height, width), size, share)
    window = torch.tensor([[wide / width, 0, 0], [0, tall / height, 0]], device=images.device)
    return _sampled(images, window.expand(n, 2, 3), size, 0.0, nearest=False)


def _shifted(x: Tensor, augment: Augment, u: Tensor, fill: int) -> Tensor:
    """Crop and mirror by whole pixels: exact, and as cheap as a copy."""
    n, channels, height, width = x.shape
    pad = augment.crop
    padded = functional.pad(x, (pad, pad, pad, pad), value=fill) if pad else x
    i, j = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    top, left = ((u[:, axis, None] * (2 * pad + 1)).long() for axis in (0, 1))
    mirrored = (u[:, 2, None] < 0.5) if augment.flip else torch.zeros_like(u[:, 2, None], dtype=torch.bool)
    rows, columns = top + i, left + torch.where(mirrored, width - 1 - j, j)
    at = (rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]).view(n, 1, -1)
    return padded.flatten(2).gather(2, at.expand(-1, channels, -1)).view(n, channels, height, width)


def _windows(augment: Augment, u: Tensor, full: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """(n, 2, 3): where in the image, whose coordinates go from -1 to 1, the corners of the result come from."""
    height, width = box_sides(augment, u, full, size)
    # How far a window's centre may lie from the middle; negative: the window sticks out.
    reach_y, reach_x = 1 - height, 1 - width
    y, x = (2 * u[:, 0] - 1) * reach_y, (2 * u[:, 1] - 1) * reach_x
    sign = torch.where(u[:, 2] < 0.5, -1.0, 1.0) if augment.flip else torch.ones_like(x)
    zero = torch.zeros_like(x)
    return torch.stack([torch.stack([sign * width, zero, x], -1), torch.stack([zero, height, y], -1)], 1)


def box_sides(augment: Augment, u: Tensor, full: tuple[int, int], size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Height and width of the part to take, as fractions of the image's.

    The aspect ratio of a resized crop is drawn first, and then an area that fits into the image with it.
    """
    if augment.resized_crop:
        low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
        aspect = torch.exp(low + (high - low) * u[:, 4]) * full[0] / full[1]  # of fractions, not of pixels
        most = torch.minimum(aspect, 1 / aspect).clamp(max=AREA[1])
        least = most.clamp(max=AREA[0])
        area = least + (most - least) * u[:, 3]
        return torch.sqrt(area / aspect).clamp(max=1), torch.sqrt(area * aspect).clamp(max=1)
    factor = torch.ones_like(u[:, 3])
    if augment.zoom is not None:
        factor = augment.zoom[0] + (augment.zoom[1] - augment.zoom[0]) * u[:, 3]
    return size[0] / (factor * full[0]), size[1] / (factor * full[1])


def _rotations(degrees: float, u: Tensor, x: Tensor) -> Tensor:
    angle = (2 * u[:, 5] - 1) * math.radians(degrees)
    sine, cosine, zero = torch.sin(angle), torch.cos(angle), torch.zeros_like(angle)
    ratio = x.shape[-2] / x.shape[-1]
    return torch.stack(
        [torch.stack([cosine, -sine * ratio, zero], -1), torch.stack([sine / ratio, cosine, zero], -1)], 1
    )


def _sampled(x: Tensor, windows: Tensor, size: tuple[int, int], fill: float, nearest: bool) -> Tensor:
    grid = functional.affine_grid(windows, [len(x), x.shape[1], *size], align_corners=False)
    mode = "nearest" if nearest else "bilinear"
    # What lies between the centre and the edge of an outermost pixel is that pixel: blending it with `fill` would frame
    # every enlarged image. Images and labels are thus outside at the same places.
    moved = functional.grid_sample(x.float(), grid, mode=mode, padding_mode="border", align_corners=False)
    moved = torch.where((grid.abs() <= 1).all(-1).unsqueeze(1), moved, fill)
    return moved.to(x.dtype) if nearest else moved
