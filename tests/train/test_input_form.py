"""How images become inputs: by the library's configuration of the network, or as the user says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image

from sparsefw.config_base import ConfigError
from sparsefw.data.own_images import unlabelled_images
from sparsefw.models import build
from sparsefw.train.input_form import FormOptions, input_form
from sparsefw.train.subject import require_better_than_chance

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def form(name: str, options: FormOptions = FormOptions(), **arguments: object):
    return input_form(build(name, **arguments), {"name": name, "arguments": arguments}, None, options)


def test_timm_and_torchvision_say_it():
    ours = form("timm:resnet18")
    assert (ours.shape, ours.mean, ours.std, ours.crop) == ((3, 224, 224), *IMAGENET, 0.95)
    ours = form("torchvision:resnet18")
    assert (ours.shape, ours.mean, ours.std) == ((3, 224, 224), *IMAGENET)
    assert ours.crop == 224 / 256
    assert form("timm:vit_tiny_patch16_224", img_size=64).shape == (3, 64, 64)


def test_the_user_may_say_otherwise():
    ours = form("timm:test_resnet", FormOptions(size=[32.0, 48.0], mean=[0.1]))
    assert (ours.shape, ours.mean, ours.std, ours.crop) == ((3, 32, 48), (0.1,) * 3, (0.5,) * 3, 1.0)
    assert "--image-size, --mean as given, the rest by timm" in str(ours)
    with pytest.raises(ConfigError, match=r"nothing says how its images are made; give --mean, --std$"):
        form("resnet_digits")
    with pytest.raises(ConfigError, match=r"its inputs have 1 channels; give --mean and --std for each"):
        form("timm:test_resnet", in_chans=1)


@pytest.mark.parametrize(
    "values, expected",
    [
        ({"size": {"height": 32, "width": 32}}, ((3, 32, 32), 1.0)),
        ({"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": 30}, ((3, 30, 30), 0.75)),
        ({"size": 48}, ((3, 48, 48), 1.0)),
    ],
)
def test_preprocessor_config(tmp_path, values, expected):
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.25] * 3, **values}))
    network = torch.nn.Identity()
    network.config = object()
    ours = input_form(network, {"name": "transformers:X", "arguments": {}}, tmp_path, FormOptions())
    assert (ours.shape, ours.crop) == expected
    assert (ours.mean, ours.std) == ((0.5,) * 3, (0.25,) * 3)


def test_images_are_cropped_resized_and_normalised(tmp_path):
    """A white centre on black: of 16 pixels the central half, resized to 4."""
    pixels = np.zeros((16, 16), np.uint8)
    pixels[4:12, 4:12] = 255
    (tmp_path / "inside").mkdir()
    Image.fromarray(pixels).save(tmp_path / "inside" / "a.png")
    ours = form("resnet_digits", FormOptions([4.0], [0.5], [0.25]))
    whole = next(iter(unlabelled_images(tmp_path, ours, torch.device("cpu"), 0).sample(9)))
    assert whole.shape == (1, 1, 4, 4)
    assert whole[0, 0, 0, 0] == pytest.approx((0 - 0.5) / 0.25, abs=0.1)  # the filter looks a little beyond
    centre = type(ours)((3, 4, 4), (0.5,) * 3, (0.25,) * 3, 0.5, "test")
    inside = next(iter(unlabelled_images(tmp_path, centre, torch.device("cpu"), 0).sample(9)))
    # Resized to 8, of which 4 are cut out: the filter (1, 3, 3, 1) / 8 sees an eighth of black at every edge.
    edge, corner = 223 / 255, 195 / 255
    rows = [[corner, edge, edge, corner], [edge, 1, 1, edge], [edge, 1, 1, edge], [corner, edge, edge, corner]]
    torch.testing.assert_close(inside, ((torch.tensor(rows) - 0.5) / 0.25).expand(1, 3, 4, 4))


def test_chance():
    """Of 100 images and 4 classes, guessing is right on 25 %, give or take 4.3 points: three of these are 13."""
    require_better_than_chance(38.1, 4, 100, None)
    with pytest.raises(ConfigError, match=r"^the network is right on 37\.9 % of 100 images, [^\n]* \(38\.0 %\)"):
        require_better_than_chance(37.9, 4, 100, None)
    with pytest.raises(ConfigError, match="no accuracy to hold"):  # always the most frequent class
        require_better_than_chance(60.0, 4, 100, 0.6)
