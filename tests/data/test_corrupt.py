"""Corrupt images while streaming: named in one line, or left out and counted."""

from __future__ import annotations

import pytest
import torch

from data.dataset_writers import encoded, picture, put
from data.open_datasets import opened, rows, whole

SIZE = (12, 12)


@pytest.fixture
def folder(tmp_path):
    """Return a function that writes twenty images, ten per class, some of them corrupt."""

    def written(corrupt=(3, 4)):
        for i in range(20):
            data = b"oops" if i in corrupt else encoded(picture(i, 0, SIZE))
            put(tmp_path / "train" / ("a" if i < 10 else "b") / f"{i:02d}.png", data)
        return tmp_path

    return written


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("what", ["training", "evaluation", "sample"])
def test_the_file_is_named_in_one_line(what, workers, folder):
    part = opened("folder", folder(), size=SIZE, workers=workers).train
    read = {
        "training": lambda: part.training(0, 0, 4),
        "evaluation": part.evaluation,
        "sample": lambda: part.sample(20),
    }
    with pytest.raises(ValueError, match=r"train/a/0[34]\.png is not a readable image") as caught:
        list(read[what]())
    assert type(caught.value).__name__ == "DataError"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("workers", [0, 2])
def test_training_keeps_full_batches_and_counts_once(workers, folder):
    part = opened("folder", folder(), size=SIZE, workers=workers, on_corrupt="skip").train
    good = set(rows(part.evaluation()))
    assert len(good) == 18
    for epoch in range(3):
        batches = list(part.training(epoch, 0, 5))
        assert [len(batch.inputs) for batch in batches] == [5] * 4
        seen = rows(batches)
        assert set(seen) == good
        assert part.skipped == 2


def test_evaluation_leaves_them_out_and_counts_once(folder):
    part = opened("folder", folder(), size=SIZE, on_corrupt="skip").train
    assert part.skipped == 0
    for _ in range(2):
        assert whole(part).targets.tolist() == [0] * 8 + [1] * 10
        assert part.skipped == 2
    assert len(torch.cat(list(part.sample(20)))) == 20  # as in training, others take their place


def test_no_image_of_validation_takes_the_place_of_a_corrupt_one(folder):
    """Whichever images are corrupt and whichever are held out."""
    for seed in range(5):
        data = opened("folder", folder(range(0, 20, 2)), size=SIZE, validation=0.4, split_seed=seed, on_corrupt="skip")
        held_out = set(rows(data.validation.evaluation()))
        seen = {row for epoch in range(3) for row in rows(data.train.training(epoch, 0, 4))}
        assert held_out
        assert not seen & held_out
        assert seen == set(rows(data.train.evaluation()))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("what", ["training", "evaluation"])
def test_only_corrupt_images(what, workers, folder):
    part = opened("folder", folder(range(20)), size=SIZE, workers=workers, on_corrupt="skip").train
    with pytest.raises(ValueError, match=r"train/a/00\.png and all others are corrupt: nothing is left") as caught:
        list(part.training(0, 0, 4) if what == "training" else part.evaluation())
    assert "\n" not in str(caught.value)


def test_a_batch_of_corrupt_images_is_no_batch(folder, monkeypatch):
    monkeypatch.setattr("sparsefw.data.streaming_part.evaluation_batch", lambda *_, **__: 2)
    part = opened("folder", folder((2, 3, 4)), size=SIZE, on_corrupt="skip").train
    assert [len(batch.inputs) for batch in part.evaluation()] == [2, 1, *[2] * 7]
