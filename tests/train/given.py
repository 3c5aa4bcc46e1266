"""What someone has who trained elsewhere: a file of weights, and folders of images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from sparsefw.models import build

NAME = "resnet_digits"
ARGUMENTS = ["width=4", "classes=3"]
FORM = ["--mean", "0.5", "--std", "0.25"]
SHADES = (40, 120, 210)  # of the images of each class


def write_images(folder: Path, count: int = 16, classes: int = 3, side: int = 8) -> Path:
    """Write CLASS/*.png, whose shade tells the class."""
    generator = np.random.default_rng(0)
    for label in range(classes):
        place = folder / f"class{label}"
        place.mkdir(parents=True)
        for i in range(count):
            noise = generator.integers(-30, 30, (side, side))
            Image.fromarray((SHADES[label % 3] + noise).clip(0, 255).astype(np.uint8)).save(place / f"{i}.png")
    return folder


def trained_network(folder: Path) -> nn.Module:
    """Train on such images until the network tells them apart."""
    torch.manual_seed(0)
    network = build(NAME, width=4, classes=3)
    files = sorted(folder.glob("class*/*.png"))
    x = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])[:, None] / 255
    x = (x - 0.5) / 0.25
    y = torch.tensor([int(file.parent.name[-1]) for file in files])
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    for _ in range(40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network.eval()


def write_all(folder: Path) -> Path:
    """Write weights.safetensors and images/CLASS/ into a folder."""
    images = write_images(folder / "images")
    save_file(trained_network(images).state_dict(), folder / "weights.safetensors")
    return folder
