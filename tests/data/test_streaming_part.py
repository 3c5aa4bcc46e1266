"""Streamed images: the same as in memory, in any number of processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from data.dataset_writers import CITYSCAPES, encoded, picture, put, stripes, write
from data.open_datasets import normalised, opened, rows, whole
from sparsefw.data import DATASETS, streaming_part


def pixels(name, inputs):
    """Return normalised images (n, channels, height, width) as bytes again."""
    mean, std = (torch.tensor(v).view(1, -1, 1, 1) for v in (DATASETS[name].mean, DATASETS[name].std))
    values = (inputs * std + mean) * 255
    assert (values - values.round()).abs().max() < 1e-3
    return values.round().to(torch.uint8)


def folder_of_images(folder, sizes, corrupt=()):
    """An image of each size, in two classes, the first half in a, in train; those that are corrupt are not images."""
    for i, size in enumerate(sizes):
        data = b"oops" if i in corrupt else encoded(picture(i, 0, size))
        put(folder / "train" / ("a" if i < len(sizes) // 2 else "b") / f"{i:02d}.png", data)


@pytest.mark.parametrize(
    ("name", "form"), [("cifar10", "parquet"), ("cifar100", "binary"), ("mnist", "idx"), ("camvid", "parquet")]
)
def test_evaluation_is_that_of_images_in_memory(name, form, tmp_path):
    write(name, tmp_path, format=form, images=11)
    stream, memory = (opened(name, tmp_path, resident=kind) for kind in (False, True))
    assert type(stream.train) is not type(memory.train)
    for one, other in ((stream.train, memory.train), (stream.test, memory.test)):
        assert len(one) == len(other) == 11
        assert rows(one.evaluation()) == rows(other.evaluation())
        samples = [torch.cat(list(part.sample(7))) for part in (one, other)]
        torch.testing.assert_close(*samples, rtol=0, atol=0.02)  # streamed crops of label maps are rounded to bytes


def test_mirrored_images_are_those_in_memory(tmp_path):
    """Without blocks the order is the same, too."""
    write("mnist", tmp_path, images=11)
    stream, memory = (opened("mnist", tmp_path, resident=kind, augment={"flip": True}) for kind in (False, True))
    assert rows(stream.train.training(2, 0, 4)) == rows(memory.train.training(2, 0, 4))


@pytest.mark.parametrize("name", ["imagenet", "cityscapes"])
def test_processes_read_the_same(name, tmp_path):
    write(name, tmp_path, images=10)
    change = {"resized_crop": True} if name == "imagenet" else {"zoom": (0.5, 2.0)}
    settings = {"size": (16, 24), "augment": {**change, "flip": True}}
    here, there = (opened(name, tmp_path, workers=workers, **settings) for workers in (0, 2))
    assert rows(there.train.training(1, 1, 3)) == rows(here.train.training(1, 1, 3))
    assert rows(there.test.evaluation()) == rows(here.test.evaluation())


def test_the_global_random_generator_is_not_used(tmp_path):
    write("imagenet", tmp_path)
    part = opened("imagenet", tmp_path, size=(16, 16)).train
    before = torch.get_rng_state()
    rows([*part.training(0, 0, 4), *part.evaluation()])
    assert torch.equal(torch.get_rng_state(), before)


# --- sizes


def test_images_of_the_right_size_are_not_changed(tmp_path):
    written = write("folder", tmp_path, size=(40, 48))["train"]
    data = opened("folder", tmp_path, size=(40, 48))
    for x, (image, _) in zip(whole(data.train).inputs, written, strict=True):
        assert torch.allclose(x.double(), normalised("folder", image), rtol=0, atol=1e-6)
    assert set(rows(data.train.training(0, 0, 8))) == set(rows(data.train.evaluation()))


def test_images_of_any_size_are_cropped_to_the_aspect_of_the_input(tmp_path):
    """The largest central crop of that aspect, resized by Pillow."""
    sizes = [(24, 32), (48, 32), (24, 100), (12, 16), (240, 320), (50, 50)]
    boxes = [(0, 0, 32, 24), (0, 12, 32, 36), (34, 0, 66, 24), (0, 0, 16, 12), (0, 0, 320, 240), (0, 6.25, 50, 43.75)]
    folder_of_images(tmp_path, sizes)
    images = pixels("folder", whole(opened("folder", tmp_path, size=(24, 32)).train).inputs)
    for i, (size, box) in enumerate(zip(sizes, boxes, strict=True)):
        expected = Image.fromarray(picture(i, 0, size)).resize((32, 24), Image.Resampling.BILINEAR, box=box)
        assert np.array_equal(images[i].permute(1, 2, 0).numpy(), np.asarray(expected))


def test_after_resized_crops_the_central_crop_is_evaluated(tmp_path):
    """224 of 256: of 64 x 80 pixels the middle 56 x 56."""
    folder_of_images(tmp_path, [(64, 80)] * 4)
    part = opened("folder", tmp_path, size=(56, 56), augment={"resized_crop": True}).train
    images = pixels("folder", whole(part).inputs)
    for i in range(4):
        assert np.array_equal(images[i].permute(1, 2, 0).numpy(), picture(i, 0, (64, 80))[4:60, 12:68])


def test_resized_crops_show_parts_of_their_image(tmp_path):
    """Of a ramp 0, 1, ..., 99 in both directions: they rise evenly, by 8 to 100 % of the area, and stay within it."""
    y, x = np.mgrid[:100, :100].astype(np.uint8)
    image = np.stack([x, y, np.full_like(x, 7)], 2)
    for i in range(8):
        put(tmp_path / "train" / "ab"[i % 2] / f"{i}.png", encoded(image))
    part = opened("folder", tmp_path, size=(20, 20), augment={"resized_crop": True, "flip": True}).train
    areas, mirrored = [], []
    for epoch in range(25):
        ((inputs, _),) = part.training(epoch, 0, 8)
        across, down, constant = pixels("folder", inputs).float().unbind(1)
        assert (constant == 7).all()
        wide, tall = (across[:, 10, -3] - across[:, 10, 2]) / 15 * 20, (down[:, -3, 10] - down[:, 2, 10]) / 15 * 20
        mirrored += (wide < 0).tolist()
        aspect = wide.abs() / tall
        assert aspect.min() > 0.65  # 3/4 to 4/3, up to rounding
        assert aspect.max() < 1.55
        areas += (wide.abs() * tall / 10_000).tolist()
    assert 0.06 < min(areas) < 0.2
    assert 0.8 < max(areas) < 1.05
    assert 60 < sum(mirrored) < 140


def test_gray_images_keep_one_channel(tmp_path):
    written = write("mnist", tmp_path)["train"]
    images = pixels("mnist", whole(opened("mnist", tmp_path, resident=False, size=(14, 14)).train).inputs)
    assert images.shape == (8, 1, 14, 14)
    expected = Image.fromarray(written[3][0][:, :, 0]).resize((14, 14), Image.Resampling.BILINEAR)
    assert np.array_equal(images[3, 0].numpy(), np.asarray(expected))


# --- label maps


@pytest.mark.parametrize("zoom", [(0.5, 0.5), (0.5, 2.0), (2.0, 2.0)])
def test_labels_stay_with_their_pixels(zoom, tmp_path):
    """Images whose colour is that of their class, in stripes of four pixels: where a pixel has the colour of a class, that is
    its label, and it is black where the label says outside."""
    for i in range(4):
        ids = stripes(i, 34, (32, 64))
        labels = np.vectorize(lambda label: CITYSCAPES.get(int(label), 255))(ids)
        image = np.repeat(np.where(labels == 255, 200, 5 * labels + 10)[:, :, None], 3, 2).astype(np.uint8)
        put(tmp_path / f"leftImg8bit/train/ulm/ulm_{i}_1_leftImg8bit.png", encoded(image))
        put(tmp_path / f"gtFine/train/ulm/ulm_{i}_1_gtFine_labelIds.png", encoded(ids))
        put(tmp_path / f"leftImg8bit/val/ulm/ulm_{i}_1_leftImg8bit.png", encoded(image))
        put(tmp_path / f"gtFine/val/ulm/ulm_{i}_1_gtFine_labelIds.png", encoded(ids))
    part = opened("cityscapes", tmp_path, size=(24, 24), augment={"zoom": zoom, "flip": True}).train
    agree, outside = 0.0, 0
    for epoch in range(6):
        ((inputs, targets),) = part.training(epoch, 0, 4)
        gray = pixels("cityscapes", inputs)[:, 0].long()
        void = targets == 255
        outside += int((void & (gray == 0)).sum())
        assert not ((gray == 0) & ~void).any()
        pure = (gray - 10).remainder(5).eq(0) & ~void
        agree += float((gray[pure] == 5 * targets[pure] + 10).float().mean()) / 6
        frame = (gray == 0).float().mean((1, 2))
        if zoom[0] == zoom[1]:
            assert torch.allclose(frame, torch.tensor({0.5: 1 - 16 * 24 / 24**2, 2.0: 0.0}[zoom[0]]), atol=0.08)
    assert agree > 0.9  # between stripes, a blend may look like a third class
    assert (outside > 0) == (zoom[0] < 1)


def test_a_part_of_evaluation_fits_into_memory(tmp_path, monkeypatch):
    """The number of images per batch depends on their full size, not on the size of training crops."""
    write("cityscapes", tmp_path, size=(32, 64))
    shapes = []
    monkeypatch.setattr(streaming_part, "evaluation_batch", lambda shape, most: shapes.append(shape) or 3)
    batches = list(opened("cityscapes", tmp_path, size=(8, 8)).test.evaluation())
    assert [len(batch.inputs) for batch in batches] == [3, 3, 2]
    assert shapes == [(3, 32, 64)]


# --- samples


def test_a_sample_is_read_once(tmp_path, monkeypatch):
    write("imagenet", tmp_path, images=10)
    monkeypatch.setattr(streaming_part, "evaluation_batch", lambda *_, **__: 3)
    part = opened("imagenet", tmp_path, size=(16, 16), augment={"resized_crop": True}).train
    sample = part.sample(8)
    next(iter(sample))
    first = list(sample)
    assert [len(x) for x in first] == [3, 3, 2]
    for file in tmp_path.glob("train/*/*"):
        file.unlink()
    assert all(torch.equal(a, b) for a, b in zip(first, sample, strict=True))


def test_images_beyond_the_limit_are_read_again(tmp_path, monkeypatch):
    write("imagenet", tmp_path, images=10)
    monkeypatch.setattr(streaming_part, "evaluation_batch", lambda *_, **__: 3)
    monkeypatch.setattr(streaming_part, "MAX_HELD_BYTES", 1)
    sample = opened("imagenet", tmp_path, size=(16, 16)).train.sample(8)
    first = list(sample)
    assert len(sample._held) == 1
    assert all(torch.equal(a, b) for a, b in zip(first, sample, strict=True))


def test_a_sample_can_be_iterated_over_twice_at_once(tmp_path, monkeypatch):
    write("imagenet", tmp_path, images=10)
    monkeypatch.setattr(streaming_part, "evaluation_batch", lambda *_, **__: 3)
    part = opened("imagenet", tmp_path, size=(16, 16)).train
    alone, sample = list(part.sample(8)), part.sample(8)
    assert all(torch.equal(a, b) for a, b in zip(sample, sample, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(sample, alone, strict=True))
