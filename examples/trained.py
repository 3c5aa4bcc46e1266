"""Train a network of timm without sparsefw, and write what its owner has: weights and photos.

Makes the folder `mine` with weights.safetensors (of test_resnet, for the ten digits), train/CLASS/ and test/CLASS/;
docs/trained.md goes on from there.
"""

from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from sparsefw.data import open_part
from sparsefw.models import build

SIDE = 32
EPOCHS = 12


def inputs(images: list[Image.Image]) -> Tensor:
    """Return images as the network takes them: of 32 x 32 pixels, with values from -1 to 1."""
    resized = [image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR) for image in images]
    pixels = torch.stack([torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8) for image in resized])
    return pixels.view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2) / 127.5 - 1


def digits(part: str) -> tuple[list[Image.Image], list[int]]:
    source = open_part("digits", None, part)
    items = [source.load(i) for i in range(len(source))]
    return [Image.fromarray(item.image[:, :, 0]) for item in items], [int(item.target) for item in items]


def train(network: nn.Module, x: Tensor, y: Tensor) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    steps = EPOCHS * (len(x) // 64)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        for chosen in torch.randperm(len(x))[: len(x) // 64 * 64].split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x[chosen]), y[chosen]).backward()
            optimizer.step()
            schedule.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    folder = Path("mine")
    photos, labels = digits("train")
    network = build("timm:test_resnet", num_classes=10)
    train(network, inputs(photos), torch.tensor(labels))
    for part, images, classes in (("train", photos, labels), ("test", *digits("test"))):
        for i, (image, label) in enumerate(zip(images, classes, strict=True)):
            place = folder / part / str(label)
            place.mkdir(parents=True, exist_ok=True)
            image.save(place / f"{i}.png")
    save_file(network.state_dict(), folder / "weights.safetensors")
