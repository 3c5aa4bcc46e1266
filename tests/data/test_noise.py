"""Random images: of the configured shape, the same in every call, loaded like those of all other data sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from data.open_datasets import normalised, opened, rows, whole
from sparsefw.config_base import ConfigError, parse
from sparsefw.data import DataError, open_part
from sparsefw.data.loaders import DataConfig
from sparsefw.data.noise import Noise, open_noise
from sparsefw.data.resident_part import ResidentPart
from sparsefw.train import fit, load_recipe

LIKE = {"shape": (1, 6, 4), "classes": 3, "images": 40}


def test_has_the_configured_shape_classes_and_number():
    data = opened("noise", None, noise=LIKE)
    assert (data.task, data.classes, data.shape) == ("classification", 3, (1, 6, 4))
    assert (len(data.train), data.validation, len(data.test)) == (40, None, 4)
    assert set(whole(data.train).targets.tolist()) == {0, 1, 2}


def test_is_the_same_every_time_and_its_parts_differ():
    train, again = (open_noise(Noise(**LIKE), "train") for _ in range(2))
    test = open_noise(Noise(**LIKE), "test")
    assert np.array_equal(train.images, again.images)
    assert train.targets.tolist() == again.targets.tolist()
    assert not any(np.array_equal(a, b) for a in train.images for b in test.images)


def test_is_normalised_to_mean_0_and_deviation_1():
    pixels = whole(opened("noise", None, noise={**LIKE, "images": 1000}).train).inputs
    assert float(pixels.mean()) == pytest.approx(0, abs=0.02)
    assert float(pixels.std()) == pytest.approx(1, abs=0.02)


def test_is_loaded_like_other_resident_data_sets():
    data = opened("noise", None)
    assert isinstance(data.train, ResidentPart)
    first = open_part("noise", None, "train").load(0)
    torch.testing.assert_close(next(data.train.evaluation()).inputs[0].double(), normalised("noise", first.image))
    for augment, size in (({"crop": 2, "flip": True, "rotation": 10}, (32, 32)), ({"resized_crop": True}, (16, 16))):
        changed = opened("noise", None, augment=augment, size=size)
        assert next(changed.train.training(0, 0, 4)).inputs.shape == (4, 3, *size)


def test_streamed_it_is_the_same():
    streamed, resident = (opened("noise", None, noise=LIKE, resident=kind) for kind in (False, True))
    assert rows(streamed.train.evaluation()) == rows(resident.train.evaluation())


def test_one_image_can_still_be_tested_on():
    assert len(opened("noise", None, noise={**LIKE, "images": 5}).test) == 1


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"name": "digits", "noise": {}}, "noise: describes made-up images, but name='digits'"),
        ({"name": "noise", "noise": {"shape": [3, 0, 8]}}, "noise.shape.1=0"),
        ({"name": "noise", "noise": {"classes": 0}}, "noise.classes=0"),
        ({"name": "noise", "noise": {"images": 0}}, "noise.images=0"),
        ({"name": "noise", "noise": {"sizes": 3}}, "noise.sizes"),
    ],
)
def test_wrong_settings_are_refused(values, reason):
    with pytest.raises(ConfigError, match=f"^data: .*{reason}"):
        parse(DataConfig, values, "data")


def test_a_part_that_it_does_not_have():
    with pytest.raises(DataError, match="noise has no part 'val'"):
        open_part("noise", None, "val")


def test_a_recipe_trains_on_it(tmp_path):
    changes = ["data.name=noise", "data.noise={shape: [1, 8, 8], images: 128}", "train.epochs=1"]
    result = fit(load_recipe("digits-resnet-sgd", [*changes, "model.arguments.width=4"]), tmp_path / "run", quiet=True)
    assert result["steps"] == 1
