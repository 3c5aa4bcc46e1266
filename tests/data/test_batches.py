"""The images that an epoch visits: their order, their process, and their random numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from data.dataset_writers import write
from data.open_datasets import opened, rows
from sparsefw.data import resident_part
from sparsefw.data.batches import (
    BLOCKS_PER_WINDOW,
    NUMBERS_PER_IMAGE,
    epoch_numbers,
    epoch_order,
    evaluation_batch,
    sample_indices,
    split_indices,
)
from sparsefw.randomness import generator

# --- split


def test_a_tenth_of_50000_is_held_out():
    kept, held_out = split_indices(50_000, 0.1, seed=0)
    assert (len(kept), len(held_out)) == (45_000, 5_000)
    assert np.array_equal(np.union1d(kept, held_out), np.arange(50_000))
    assert (np.diff(kept) > 0).all()
    assert (np.diff(held_out) > 0).all()


def test_nothing_is_held_out():
    kept, held_out = split_indices(7, 0.0, seed=3)
    assert kept.tolist() == list(range(7))
    assert held_out.tolist() == []


def test_a_split_belongs_to_its_seed():
    assert np.array_equal(split_indices(1000, 0.1, 5)[1], split_indices(1000, 0.1, 5)[1])
    common = np.intersect1d(split_indices(1000, 0.1, 5)[1], split_indices(1000, 0.1, 6)[1])
    assert len(common) < 30  # 10 on average, with a deviation of 3


def test_every_image_is_held_out_equally_often():
    """200 splits of 100 images in halves: 100 times each, with a deviation of 7."""
    counts = np.zeros(100)
    for seed in range(200):
        counts[split_indices(100, 0.5, seed)[1]] += 1
    assert abs(counts - 100).max() < 35


# --- random numbers


def test_every_key_has_its_own_random_numbers():
    """numpy's SeedSequence alone would treat (5, 2) and (5, 2, 0) alike."""
    keys = [(), (0,), (0, 0), (5, 2), (5, 2, 0), (5, 2, 0, 0), (2, 5), (5, 2, 1), (3,), (3, 0, 0)]
    streams = [tuple(generator("a", *key).random(4)) for key in keys]
    assert len(set(streams)) == len(keys)
    assert tuple(generator("a", 5, 2).random(4)) == streams[3]


def test_numbers_of_an_epoch():
    numbers = epoch_numbers(1000, seed=1, epoch=2)
    assert numbers.shape == (1000, NUMBERS_PER_IMAGE)
    assert numbers.dtype == torch.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean(0) - 0.5).max() < 0.05
    assert torch.equal(numbers, epoch_numbers(1000, seed=1, epoch=2))
    for other in (epoch_numbers(1000, 1, 3), epoch_numbers(1000, 2, 2)):
        assert (numbers == other).float().mean() < 0.01


def test_a_sample_is_a_fixed_choice():
    indices = np.arange(100, 200)
    chosen = sample_indices(indices, 30)
    assert len(set(chosen.tolist())) == 30
    assert set(chosen.tolist()) <= set(indices.tolist())
    assert np.array_equal(sample_indices(indices, 30), chosen)
    assert np.array_equal(sample_indices(indices, 10), chosen[:10])
    assert sorted(sample_indices(indices, 1000).tolist()) == indices.tolist()


def test_evaluation_takes_64_mib_at_a_time():
    assert evaluation_batch((3, 32, 32)) == 1000
    assert evaluation_batch((3, 224, 224)) == 111  # 111 * 3 * 224 * 224 * 4 bytes = 63.7 MiB
    assert evaluation_batch((3, 4096, 4096)) == 1


# --- the order of an epoch


def test_an_epoch_is_a_permutation():
    indices = np.array([2, 3, 5, 7, 11, 13, 17, 19, 23, 29])
    orders = [epoch_order(indices, seed, epoch).tolist() for seed in (0, 1) for epoch in range(5)]
    assert all(sorted(order) == indices.tolist() for order in orders)
    assert len({tuple(order) for order in orders}) == 10
    assert epoch_order(indices, 1, 4).tolist() == orders[-1]


BLOCKS = [
    range(0, 5),
    range(5, 5),
    range(5, 12),
    range(12, 13),
    range(13, 30),
    *(range(a, a + 7) for a in range(30, 100, 7)),
]


@pytest.mark.parametrize("indices", [np.arange(100), np.arange(0, 100, 3), np.array([12, 99]), np.arange(40, 100)])
def test_images_of_a_window_come_from_few_blocks(indices):
    order = epoch_order(indices, seed=4, epoch=1, blocks=BLOCKS)
    assert sorted(order.tolist()) == indices.tolist()
    block = [next(b for b, images in enumerate(BLOCKS) if i in images) for i in order]
    visits = {b: (block.index(b), len(block) - 1 - block[::-1].index(b)) for b in set(block)}
    for at in range(len(order)):
        assert sum(first <= at <= last for first, last in visits.values()) <= BLOCKS_PER_WINDOW


def test_blocks_and_the_images_within_them_are_shuffled():
    orders = [epoch_order(np.arange(100), 0, epoch, BLOCKS).tolist() for epoch in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert len({order[0] // 30 for order in orders} | {order[-1] // 30 for order in orders}) > 1
    assert epoch_order(np.arange(100), 0, 2, BLOCKS).tolist() == orders[2]
    first = orders[0][:20]
    assert first != sorted(first)


def test_every_image_may_come_first():
    """Over 300 epochs each of 6 blocks of 5 images leads 50 times, with a deviation of 6.5."""
    blocks = [range(a, a + 5) for a in range(0, 30, 5)]
    first = [epoch_order(np.arange(30), 0, epoch, blocks)[0] for epoch in range(300)]
    assert set(first) == set(range(30))
    assert max(abs(np.bincount(np.array(first) // 5) - 50)) < 33


# --- the batches of an epoch, whether images are in memory or on disk


@pytest.fixture(params=["resident", "streaming"])
def training(request, tmp_path):
    """Return a function that opens the training part of 27 images."""
    write("cifar10", tmp_path, format="parquet", images=27)
    kind = {"resident": {"crop": 2, "flip": True}, "streaming": {"resized_crop": True, "flip": True}}[request.param]

    def part(**settings):
        return opened(
            "cifar10", tmp_path, batch_size=12, resident=request.param == "resident", augment=kind, **settings
        ).train

    return part


def test_an_epoch_can_start_at_any_step(training):
    part = training()
    for batch in (4, 5, 12, 27):
        steps = rows_by_step(part.training(3, 0, batch))
        assert len(steps) == 27 // batch
        assert {len(step) for step in steps} == {batch}
        for start in range(len(steps) + 1):
            assert rows_by_step(training().training(3, start, batch)) == steps[start:]


def rows_by_step(batches):
    return [rows([batch]) for batch in batches]


@pytest.mark.parametrize("together", [1, 5, 9, 13])
def test_the_number_of_batches_augmented_together_does_not_matter(together, monkeypatch, tmp_path):
    write("cifar10", tmp_path, format="parquet", images=27)
    part = opened("cifar10", tmp_path, augment={"crop": 2, "flip": True, "rotation": 20}).train
    steps = rows_by_step(part.training(0, 0, 4))
    monkeypatch.setattr(resident_part, "evaluation_batch", lambda *_, **__: together)
    for start in range(6):
        assert rows_by_step(part.training(0, start, 4)) == steps[start:]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_processes_together_see_the_batches_of_one(training, world):
    """The same images with the same changes, in any number of processes."""
    alone = rows_by_step(training().training(1, 0, 12))
    shares = [rows_by_step(training(rank=rank, world=world).training(1, 0, 12)) for rank in range(world)]
    for step, one in enumerate(alone):
        assert all(len(share[step]) == 12 // world for share in shares)
        assert sorted(itertools.chain(*(share[step] for share in shares))) == sorted(one)


def test_an_epoch_sees_no_image_twice(tmp_path):
    """Of 27 images in batches of 4, three are left out, different ones in every epoch."""
    written = write("cifar10", tmp_path, format="parquet", images=27)["train"]
    assert len({image.tobytes() for image, _ in written}) == 27
    for kept_in_memory in (True, False):
        part = opened("cifar10", tmp_path, resident=kept_in_memory).train
        epochs = [rows(part.training(epoch, 0, 4)) for epoch in range(4)]
        assert all(len(set(seen)) == 24 for seen in epochs)
        assert len({frozenset(seen) for seen in epochs}) > 1
        assert len(set().union(*epochs)) == 27
        assert {row for seen in epochs for row in seen} <= set(rows(part.evaluation()))


def test_every_epoch_and_seed_augments_images_differently(training):
    seen = [frozenset(rows(training(seed=s).training(e, 0, 12))) for s, e in ((0, 0), (0, 1), (1, 0))]
    assert all(len(a & b) < 12 for a, b in itertools.combinations(seen, 2))
