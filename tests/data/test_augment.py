"""Augmentation as a function of its random numbers, against results computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from sparsefw.config_base import ConfigError, parse
from sparsefw.data.augment import AREA, ASPECT, Augment, augment_images, centre_crop, crop_fractions

LAST = 1 - 2**-24  # the largest random number below 1


def u(count=1, **at):
    """Return random numbers that crop the middle and do not mirror, except for those that are given (u0 to u5)."""
    numbers = torch.full((count, 6), 0.5)
    for name, value in at.items():
        numbers[:, int(name[1])] = torch.as_tensor(value)
    return numbers


def ramps(height, width):
    """Return an image with two channels: the column and the row of every pixel."""
    y, x = np.mgrid[:height, :width]
    return torch.from_numpy(np.stack([x, y])[None]).to(torch.uint8)


SQUARE = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4)
UPPER_LEFT_IN_BLACK = [[0, 0, 0, 0], [0, 1, 2, 3], [0, 5, 6, 7], [0, 9, 10, 11]]
LOWER_RIGHT_IN_BLACK = [[6, 7, 8, 0], [10, 11, 12, 0], [14, 15, 16, 0], [0, 0, 0, 0]]

# --- crops and mirrors by whole pixels


def test_without_augmentation_images_are_returned():
    images = torch.randint(0, 256, (5, 3, 7, 9), dtype=torch.uint8)
    assert augment_images(Augment(), images, torch.rand(5, 6), (7, 9)) is images


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (u(u0=0.0, u1=0.0), UPPER_LEFT_IN_BLACK),
        (u(u0=LAST, u1=LAST), LOWER_RIGHT_IN_BLACK),
        (u(), SQUARE[0, 0].tolist()),
        (u(u0=0.0), [[0, 0, 0, 0], [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]),
        (u(u1=LAST), [[2, 3, 4, 0], [6, 7, 8, 0], [10, 11, 12, 0], [14, 15, 16, 0]]),
        (u(u0=1 / 3 - 0.01, u1=2 / 3 - 0.01), [[0, 0, 0, 0], [1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]),
    ],
)
def test_a_crop_by_one_pixel(numbers, expected):
    assert augment_images(Augment(crop=1), SQUARE, numbers, (4, 4))[0, 0].tolist() == expected
    assert augment_images(Augment(crop=1, flip=True), SQUARE, numbers, (4, 4))[0, 0].tolist() == expected
    mirrored = augment_images(Augment(crop=1, flip=True), SQUARE, numbers.index_fill(1, torch.tensor(2), 0.49), (4, 4))
    assert mirrored[0, 0].tolist() == [row[::-1] for row in expected]


def test_mirrored_below_one_half():
    images = SQUARE.expand(4, 3, 4, 4)
    result = augment_images(Augment(flip=True), images, u(4, u2=torch.tensor([0.0, 0.499, 0.5, LAST])), (4, 4))
    for image, mirrored in zip(result, (True, True, False, False), strict=True):
        assert torch.equal(image, images[0].flip(-1) if mirrored else images[0])


@pytest.mark.parametrize("pad", [1, 2, 4, 7])
def test_all_offsets_are_equally_likely(pad):
    """Evenly spread numbers give each of the 2 * pad + 1 offsets the same number of times, in both directions."""
    count = 20 * (2 * pad + 1)
    even = (torch.arange(count) + 0.5) / count
    image = ramps(16, 16).expand(count, 2, 16, 16)
    for number, channel in (("u0", 1), ("u1", 0)):
        moved = augment_images(Augment(crop=pad), image, u(count, **{number: even}), (16, 16))
        offsets = moved[:, channel, 8, 8].long() - 8
        values, times = offsets.unique(return_counts=True)
        assert values.tolist() == list(range(-pad, pad + 1))
        assert times.tolist() == [20] * len(values)


def test_labels_are_shifted_with_their_images():
    image = ramps(6, 8)[:, :1]
    for numbers in (u(u0=0.1, u1=0.9, u2=0.2), u(u0=0.9, u1=0.0, u2=0.7)):
        change = Augment(crop=3, flip=True)
        pixels, labels = (
            augment_images(change, image, numbers, (6, 8)),
            augment_images(change, image[:, 0], numbers, (6, 8)),
        )
        inside = labels != 255
        assert labels.dtype == torch.uint8
        assert torch.equal(labels[inside], pixels[:, 0][inside])
        assert not inside.all()
        assert (pixels[:, 0][~inside] == 0).all()


# --- rotation


@pytest.mark.parametrize(("number", "turns"), [(0.0, -1), (0.5, 0), (1.0, 1)])
def test_a_quarter_turn(number, turns):
    """Counterclockwise for the largest number; pixel values are unchanged."""
    image = torch.randint(0, 256, (1, 3, 6, 6), dtype=torch.uint8)
    turned = augment_images(Augment(rotation=90), image, u(u5=number), (6, 6))
    assert turned.dtype == torch.uint8
    assert np.array_equal(turned[0].numpy(), np.rot90(image[0].numpy(), turns, axes=(1, 2)))


def test_a_quarter_turn_of_a_wide_image():
    """Pixels stay square: of 2 x 4 pixels only the middle four stay within the frame."""
    image = torch.tensor([[[[1, 2, 3, 4], [5, 6, 7, 8]]]], dtype=torch.uint8)
    turned = augment_images(Augment(rotation=90), image, u(u5=1.0), (2, 4))
    assert turned[0, 0].tolist() == [[0, 3, 7, 0], [0, 2, 6, 0]]
    labels = augment_images(Augment(rotation=90), image[:, 0], u(u5=1.0), (2, 4))
    assert labels[0].tolist() == [[255, 3, 7, 255], [255, 2, 6, 255]]


def test_a_rotation_leaves_the_middle_and_blackens_the_corners():
    white = torch.full((1, 1, 33, 33), 200, dtype=torch.uint8)
    turned = augment_images(Augment(rotation=45), white, u(u5=1.0), (33, 33))[0, 0]
    assert turned[16, 16] == 200
    assert [int(turned[i, j]) for i in (0, 32) for j in (0, 32)] == [0] * 4
    # A square of side 33, turned by 45 degrees, covers of the frame all but four triangles: 2 (sqrt 2 - 1) = 82.8 %.
    assert abs(float((turned == 200).float().mean()) - 0.828) < 0.02


def test_small_angles_are_small():
    """Up to 15 degrees either way: a pixel at distance 10 from the middle moves by 10 sin(15) = 2.6 rows."""
    image = ramps(41, 41)[:, 1:]
    rows_there = [
        int(augment_images(Augment(rotation=15), image, u(u5=v), (41, 41))[0, 0, 20, 30]) for v in (0.0, 0.5, 1.0)
    ]
    assert rows_there == [17, 20, 23]


# --- resized crops


@pytest.mark.parametrize("full", [(64, 64), (375, 500), (500, 375), (100, 160), (30, 600)])
def test_areas_and_aspects_of_resized_crops(full):
    numbers = torch.from_numpy(np.random.default_rng(0).random((20_000, 6), dtype=np.float32))
    numbers[:4, 3:5] = torch.tensor([[0, 0], [0, LAST], [LAST, 0], [LAST, LAST]])
    height, width = crop_fractions(Augment(resized_crop=True), numbers, full, (8, 8))
    assert max(height.max(), width.max()) <= 1
    aspect = width * full[1] / (height * full[0])
    assert ASPECT[0] - 1e-5 <= aspect.min() < 0.76
    assert 1.32 < aspect.max() <= ASPECT[1] + 1e-5
    area = height * width
    largest = min(1, max(min(r * full[0] / full[1], full[1] / full[0] / r) for r in np.linspace(*ASPECT, 1000)))
    if largest > AREA[0]:
        assert AREA[0] - 1e-5 <= area.min() < AREA[0] + 0.01
    assert largest * 0.97 < area.max() <= largest + 1e-4


@pytest.mark.parametrize("full", [(64, 64), (375, 500)])
def test_resized_crops_are_about_those_of_the_literature(full):
    """Area and aspect drawn together until they fit (Szegedy et al., arXiv:1409.4842, as in torchvision)."""
    draw = np.random.default_rng(0)
    areas, aspects = draw.uniform(*AREA, 40_000), np.exp(draw.uniform(*np.log(ASPECT), 40_000))
    tall, wide = np.sqrt(areas / aspects * full[1] / full[0]), np.sqrt(areas * aspects * full[0] / full[1])
    fits = (tall <= 1) & (wide <= 1)
    numbers = torch.from_numpy(draw.random((20_000, 6), dtype=np.float32))
    height, width = (side.numpy() for side in crop_fractions(Augment(resized_crop=True), numbers, full, (8, 8)))
    assert abs((height * width).mean() - areas[fits].mean()) < 0.02
    assert abs((height * width).std() - areas[fits].std()) < 0.02
    log_aspect = np.log(width * full[1] / (height * full[0]))
    assert abs(log_aspect.mean() - np.log(aspects[fits]).mean()) < 0.03


def test_tall_and_wide_are_treated_alike():
    numbers = torch.rand(1000, 6)
    turned = numbers.clone()
    turned[:, 4] = 1 - turned[:, 4]
    height, width = crop_fractions(Augment(resized_crop=True), numbers, (40, 60), (8, 8))
    width_turned, height_turned = reversed(crop_fractions(Augment(resized_crop=True), turned, (60, 40), (8, 8)))
    assert torch.allclose(height, width_turned, atol=1e-5)
    assert torch.allclose(width, height_turned, atol=1e-5)


def expected_ramp(top_left, side, count, length):
    """Return the ramp 0, 1, ..., length - 1 at the centres of `count` pixels spread over [top_left, top_left + side]."""
    return (top_left + (torch.arange(count) + 0.5) * side / count - 0.5).clamp(0, length - 1)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("y", "x"), [(0.0, 0.0), (LAST, LAST), (0.3, 0.8)])
def test_a_quarter_of_the_area(y, x, mirrored):
    """From 24 x 40 pixels, a crop of aspect 4/3 with half the largest area that this aspect allows."""
    largest = 24 * 24 * 4 / 3 / (24 * 40)
    numbers = u(u0=y, u1=x, u3=(largest / 2 - 0.08) / (largest - 0.08), u4=1.0, u2=0.1 if mirrored else 0.9)
    change = Augment(resized_crop=True, flip=True)
    tall, wide = 24 / math.sqrt(2), 32 / math.sqrt(2)
    columns, rows = augment_images(change, ramps(24, 40), numbers, (10, 12))[0]
    across = expected_ramp(x * (40 - wide), wide, 12, 40)
    assert torch.allclose(columns, (across.flip(0) if mirrored else across).expand(10, 12), atol=1e-4)
    assert torch.allclose(rows, expected_ramp(y * (24 - tall), tall, 10, 24)[:, None].expand(10, 12), atol=1e-4)


@pytest.mark.parametrize("size", [(12, 12), (21, 30), (8, 5)])
def test_the_full_area_is_a_plain_resize(size):
    """Up to the edges, which are not darkened by pixels outside of the image."""
    image = torch.randint(0, 256, (2, 3, 12, 12), dtype=torch.uint8)
    numbers = u(2, u3=1.0, u0=torch.tensor([0.1, 0.9]))
    plain = functional.interpolate(image.float(), size, mode="bilinear", align_corners=False)
    assert torch.allclose(augment_images(Augment(resized_crop=True), image, numbers, size), plain, atol=1e-3)


def test_the_middle():
    image = torch.randint(0, 256, (2, 3, 64, 80), dtype=torch.uint8)
    assert torch.allclose(centre_crop(image, (56, 56), 224 / 256), image[:, :, 4:60, 12:68].float(), atol=1e-2)
    assert torch.allclose(centre_crop(image, (32, 80), 1.0), image[:, :, 16:48, :].float(), atol=1e-2)
    assert torch.allclose(centre_crop(image, (64, 80), 1.0), image.float(), atol=1e-2)
    assert torch.allclose(centre_crop(image, (40, 10), 0.625), image[:, :, 12:52, 35:45].float(), atol=1e-2)
    white = torch.full((1, 1, 5, 5), 255, dtype=torch.uint8)
    assert torch.allclose(centre_crop(white, (20, 20), 1.0), torch.tensor(255.0))


# --- zoom


@pytest.mark.parametrize("number", [0.0, 0.25, 1.0])
@pytest.mark.parametrize(("y", "x"), [(0.0, LAST), (0.37, 0.61)])
def test_images_and_labels_are_zoomed_alike(number, y, x):
    """Labels 0, 1, ... in columns, and an image of the same numbers: half a pixel apart at most, outside at the same places."""
    factor, (height, width), size = 0.5 + 1.5 * number, (20, 30), (24, 26)
    numbers = u(u0=y, u1=x, u3=number, u2=0.9)
    change = Augment(zoom=(0.5, 2.0))
    image = augment_images(change, ramps(height, width) + 1, numbers, size)
    labels = augment_images(change, ramps(height, width)[:, 0] + 1, numbers, size)
    assert image.shape == (1, 2, *size)
    assert labels.shape == (1, *size)
    assert labels.dtype == torch.uint8
    wide, tall = size[1] / factor, size[0] / factor
    across = x * (width - wide) + (torch.arange(size[1]) + 0.5) / factor
    down = y * (height - tall) + (torch.arange(size[0]) + 0.5) / factor
    inside = ((across >= 0) & (across <= width))[None] & ((down >= 0) & (down <= height))[:, None]
    assert inside.all() == (factor == 2.0)
    assert torch.equal(labels[0] != 255, inside)
    assert (image[0, :, ~inside] == 0).all()
    assert torch.allclose(image[0, 0][inside], ((across - 0.5).clamp(0, width - 1) + 1).expand(size)[inside], atol=1e-3)
    assert (image[0, 0] - labels[0])[inside].abs().max() <= 0.5 + 1e-3


def test_zoomed_and_mirrored():
    numbers = u(u0=0.2, u1=0.7, u3=0.8)
    change = Augment(zoom=(0.5, 2.0), flip=True)
    straight, mirrored = (
        augment_images(change, ramps(9, 11), u(u0=0.2, u1=0.7, u3=0.8, u2=v), (8, 8)) for v in (0.6, 0.4)
    )
    assert torch.allclose(mirrored, straight.flip(-1), atol=1e-4)
    labels = augment_images(change, ramps(9, 11)[:, 0], numbers, (8, 8))
    assert torch.equal(
        augment_images(change, ramps(9, 11)[:, 0], u(u0=0.2, u1=0.7, u3=0.8, u2=0.4), (8, 8)), labels.flip(-1)
    )


def test_without_augmentation_label_maps_are_cropped_to_size():
    labels = torch.arange(48, dtype=torch.uint8).view(1, 6, 8)
    assert augment_images(Augment(), labels, u(u0=0.0, u1=0.0), (4, 4))[0].tolist() == labels[0, :4, :4].tolist()
    assert augment_images(Augment(), labels, u(u0=1.0, u1=1.0), (4, 4))[0].tolist() == labels[0, 2:, 4:].tolist()


# --- what is asked for


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"crop": -1}, "crop=-1"),
        ({"rotation": 181}, "rotation=181"),
        ({"zoom": [2.0, 0.5]}, "the smaller first"),
        ({"zoom": [0.0, 1.0]}, "two positive factors"),
        ({"zoom": [1.0, float("inf")]}, "two positive factors"),
        ({"crop": 2, "resized_crop": True}, "crop: cannot be combined"),
        ({"crop": 2, "zoom": [1, 2]}, "crop: cannot be combined"),
        ({"resized_crop": True, "zoom": [1, 2]}, "zoom: cannot be combined"),
        ({"flipp": True}, "did you mean 'flip'"),
    ],
)
def test_inconsistent_settings_are_refused(values, reason):
    with pytest.raises(ConfigError, match=reason):
        parse(Augment, values, "data.augment")
