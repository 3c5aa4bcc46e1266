"""Images in memory: evaluation, samples, and augmented training batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch.nn import functional

from data.dataset_writers import encoded, picture, put, write
from data.open_datasets import normalised, opened, rows, whole
from sparsefw.data import resident_part
from sparsefw.data.augment import Augment
from sparsefw.data.batches import BatchSettings, Normaliser, Share
from sparsefw.data.decoding import DecodedImages
from sparsefw.data.resident_part import DeviceImages, ResidentPart


@pytest.mark.parametrize(("name", "form"), [("cifar10", "parquet"), ("cifar100", "python"), ("mnist", "idx")])
def test_evaluation_gives_every_image_once_in_order_and_normalised(name, form, tmp_path):
    written = write(name, tmp_path, format=form)
    data = opened(name, tmp_path)
    for part, samples in ((data.train, written["train"]), (data.test, written["test"])):
        inputs, targets = whole(part)
        assert inputs.dtype == torch.float32
        assert targets.tolist() == [target for _, target in samples]
        for x, (image, _) in zip(inputs, samples, strict=True):
            assert torch.allclose(x.double(), normalised(name, image), rtol=0, atol=1e-6)


def test_pixels_outside_of_the_image_are_black(tmp_path):
    """Pixels of 0, normalised as such: -mean / std."""
    write("cifar10", tmp_path, format="parquet")
    for inputs, _ in opened("cifar10", tmp_path, augment={"crop": 32}).train.training(0, 0, 8):
        black = torch.tensor([-0.4914 / 0.2023, -0.4822 / 0.1994, -0.4465 / 0.2010])
        outside = (inputs - black.view(1, 3, 1, 1)).abs().amax(1) < 1e-5  # no written pixel is black
        assert 0.3 < outside.float().mean() < 1
        is_outside = torch.tensor([bool(shifted.all()) for shifted in outside])
        assert not is_outside.all()


def test_training_images_are_those_of_evaluation_cropped_and_mirrored(tmp_path):
    """Each is among the shifts and mirrors of its original, and of no other image."""
    written = write("mnist", tmp_path, images=6)["train"]
    part = opened("mnist", tmp_path, augment={"crop": 2, "flip": True}).train
    variants = {}
    for i, (image, _) in enumerate(written):
        padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
        for top in range(5):
            for left in range(5):
                part_of_it = padded[top : top + 28, left : left + 28, 0]
                variants[part_of_it.tobytes()] = (i, top, left, False)
                variants[part_of_it[:, ::-1].tobytes()] = (i, top, left, True)
    seen = []
    for epoch in range(20):
        ((inputs, targets),) = part.training(epoch, 0, 6)
        pixels = ((inputs * 0.3081 + 0.1307) * 255).round().to(torch.uint8)
        originals = [variants[x.numpy().tobytes()] for x in pixels]
        assert sorted(i for i, *_ in originals) == list(range(6))
        assert targets.tolist() == [written[i][1] for i, *_ in originals]
        seen += originals
    for which in (1, 2):  # 120 draws of 5 offsets: all occur, each 24 times with a deviation of 4.4
        counts = np.bincount([one[which] for one in seen])
        assert len(counts) == 5
        assert abs(counts - 24).max() < 20
    assert 35 < sum(mirrored for *_, mirrored in seen) < 85


@pytest.mark.parametrize("world", [2, 3, 5])
def test_processes_share_an_evaluation(world, tmp_path):
    write("cifar10", tmp_path, format="parquet", images=13)
    everything = rows(opened("cifar10", tmp_path).test.evaluation())
    shares = [rows(opened("cifar10", tmp_path, rank=rank, world=world).test.evaluation()) for rank in range(world)]
    assert sorted(row for share in shares for row in share) == sorted(everything)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_process_without_images_has_nothing_to_evaluate(tmp_path):
    write("cifar10", tmp_path, format="parquet", images=2)
    assert rows(opened("cifar10", tmp_path, batch_size=1, rank=2, world=3).test.evaluation()) == []


def test_a_sample_is_the_same_every_time(tmp_path):
    write("cifar10", tmp_path, format="parquet", images=20)
    how = {"crop": 4, "flip": True}
    part = opened("cifar10", tmp_path, augment=how).train
    chosen = part.sample(12)
    first, second = torch.cat(list(chosen)), torch.cat(list(chosen))
    assert len(first) == 12
    assert torch.equal(first, second)
    assert torch.equal(first, torch.cat(list(opened("cifar10", tmp_path, seed=7, augment=how).train.sample(12))))
    assert len(torch.cat(list(part.sample(1000)))) == 20


def test_a_sample_is_augmented_like_the_images_that_are_trained_on(tmp_path):
    """Crops of white images have black borders on every side; without augmentation a sample is the images themselves."""
    folder = tmp_path / "white"
    write("cifar10", folder, format="parquet", images=20)
    plain = opened("cifar10", folder).train
    chosen = {x.numpy().tobytes() for x in torch.cat(list(plain.sample(12)))}
    assert len(chosen & {x.numpy().tobytes() for x in whole(plain).inputs}) == 12
    part = opened("cifar10", folder, augment={"crop": 4}).train
    part._data.images.fill_(255)
    moved = torch.cat(list(part.sample(20)))
    black = moved == moved.min()
    assert all(black[:, :, rows, columns].any() for rows, columns in ((0, 16), (31, 16), (16, 0), (16, 31)))


def test_processes_share_a_sample(tmp_path):
    write("cifar10", tmp_path, format="parquet", images=20)
    together = [x for rank in range(3) for x in opened("cifar10", tmp_path, rank=rank, world=3).train.sample(10)]
    alone = torch.cat(list(opened("cifar10", tmp_path).train.sample(10)))
    assert sorted(x.numpy().tobytes() for x in torch.cat(together)) == sorted(x.numpy().tobytes() for x in alone)


def test_a_sample_is_not_held_in_memory(tmp_path, monkeypatch):
    """One batch is computed at a time, and only when it is requested."""
    write("cifar10", tmp_path, format="parquet", images=20)
    part = opened("cifar10", tmp_path).train
    monkeypatch.setattr(resident_part, "evaluation_batch", lambda *_, **__: 5)
    made = []
    count = dataclasses.replace(part._settings, normaliser=lambda images: made.append(len(images)) or images.float())
    monkeypatch.setattr(part, "_settings", count)
    sample = part.sample(20)
    assert made == []
    next(iter(sample))
    assert made == [5]


@pytest.mark.parametrize("kind", [True, False])
def test_channels_last(kind, tmp_path):
    write("cifar10", tmp_path, format="parquet")
    for kept_in_memory in (True, False):
        part = opened("cifar10", tmp_path, channels_last=kind, resident=kept_in_memory).train
        inputs = [batch.inputs for batch in (*part.training(0, 0, 4), *part.evaluation())]
        for x in (*inputs, *part.sample(8)):
            assert x.is_contiguous(memory_format=torch.channels_last) == kind
            assert x.is_contiguous() != kind


def test_the_share_of_the_most_frequent_class_is_that_of_the_part():
    """Three of all five images are of class 2; the first and the last two have one class each."""
    images, targets = np.zeros((5, 1, 4, 4), np.uint8), np.array([0, 2, 2, 1, 2])
    normaliser = Normaliser((0.0,), (1.0,), torch.device("cpu"))

    def share(indices: list[int], targets: np.ndarray) -> float | None:
        on_device = DeviceImages(DecodedImages(images, targets, ()), torch.device("cpu"))
        settings = BatchSettings((4, 4), Augment(), 0, Share(), normaliser)
        return ResidentPart(on_device, np.array(indices), settings).largest_class

    assert share([0, 1, 2, 3, 4], targets) == 3 / 5
    assert share([0, 3, 4], targets) == 1 / 3
    assert share([0, 1], np.zeros((5, 4, 4), np.uint8)) is None  # label maps


def test_parts_share_their_images(tmp_path):
    write("cifar10", tmp_path, format="parquet", images=20)
    data = opened("cifar10", tmp_path, validation=0.25)
    assert (len(data.train), len(data.validation)) == (15, 5)
    assert data.train._data is data.validation._data


def test_training_and_validation_are_different_images(tmp_path):
    write("cifar10", tmp_path, format="parquet", images=20)
    for kept_in_memory in (True, False):
        data = opened("cifar10", tmp_path, validation=0.25, resident=kept_in_memory)
        train, validation = (set(rows(part.evaluation())) for part in (data.train, data.validation))
        assert not train & validation
        assert train | validation == set(rows(opened("cifar10", tmp_path).train.evaluation()))
        assert set(rows(data.train.training(0, 0, 15))) == train


def test_corrupt_images_are_left_out_and_counted(tmp_path):
    for i in range(6):
        put(tmp_path / "train" / "ab"[i % 2] / f"{i}.png", b"x" if i == 3 else encoded(picture(i, i % 2, (8, 8))))
    data = opened("folder", tmp_path, resident=True, size=(8, 8), on_corrupt="skip")
    assert len(data.train) == 5
    assert data.train.skipped == 1
    assert whole(data.train).targets.tolist() == [0, 0, 0, 1, 1]
    cut = opened("folder", tmp_path, resident=True, size=(8, 8), on_corrupt="skip", validation=0.4, batch_size=1)
    assert cut.train.skipped == cut.validation.skipped == cut.skipped == 1  # of the same files, counted once


# --- sizes


def in_memory(images, size, **augment):
    """Return a part of uint8 images with mean 0 and deviation 1/255, which leaves pixel values unchanged."""
    channels = images.shape[1]
    on_device = DeviceImages(DecodedImages(images, np.zeros(len(images), np.int64)), torch.device("cpu"))
    normaliser = Normaliser((0.0,) * channels, (1 / 255,) * channels, torch.device("cpu"))
    settings = BatchSettings(size, Augment(**augment), 0, Share(), normaliser)
    return ResidentPart(on_device, np.arange(len(images)), settings)


def test_after_resized_crops_the_central_crop_is_evaluated():
    """224 of 256: of 64 x 80 pixels the middle 56 x 56."""
    images = np.random.default_rng(0).integers(0, 256, (3, 3, 64, 80), dtype=np.uint8)
    inputs = whole(in_memory(images, (56, 56), resized_crop=True)).inputs
    assert torch.allclose(inputs, torch.from_numpy(images[:, :, 4:60, 12:68]).float(), atol=1e-2)
    same = whole(in_memory(images[:, :, :, :64], (64, 64), resized_crop=True)).inputs  # even where the size is right
    middle = functional.interpolate(torch.from_numpy(images[:, :, 4:60, 4:60]).float(), (64, 64), mode="bilinear")
    assert torch.allclose(same[:, :, 1:-1, 1:-1], middle[:, :, 1:-1, 1:-1], atol=1e-2)


def test_images_of_another_size_are_resized_alike_for_training_and_evaluation():
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    part = in_memory(images, (12, 12))
    assert set(rows(part.training(0, 0, 6))) == set(rows(part.evaluation()))
    mirrored = [x for epoch in range(20) for x in rows(in_memory(images, (12, 12), flip=True).training(epoch, 0, 6))]
    both = {x.numpy().tobytes() for y in whole(part).inputs for x in (y, y.flip(-1).contiguous())}
    assert {x for x, _ in mirrored} == both
    cropped = torch.cat([batch.inputs for batch in in_memory(images + 1, (12, 12), crop=3).training(0, 0, 6)])
    assert (cropped == 0).any()


def test_whole_label_maps_are_evaluated(tmp_path):
    written = write("camvid", tmp_path, size=(36, 48))
    for kept_in_memory in (True, False):
        augment = {"zoom": (0.75, 2.0), "flip": True}
        data = opened("camvid", tmp_path, size=(24, 32), augment=augment, resident=kept_in_memory)
        inputs, targets = whole(data.test)
        for x, y, (image, labels) in zip(inputs, targets, written["test"], strict=True):
            assert np.array_equal(y.numpy(), labels)
            assert torch.allclose(x.double(), normalised("camvid", image), rtol=0, atol=1e-6)
        (trained,) = data.train.training(0, 0, 8)
        assert trained.inputs.shape == (8, 3, 24, 32)
        assert trained.targets.shape == (8, 24, 32)
        assert trained.targets.dtype == torch.int64
