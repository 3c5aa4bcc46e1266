"""What training over sizes costs where the training is short: 400 steps of a CNN on 6,000 images of Fashion-MNIST.

    python benchmarks/short_sizes.py --fashion DIR [--seeds 0 1]

Each of SGD and SFW trains plainly, over sizes, over sizes with every image seen twice, and taught by the whole network's outputs.
Filters are then physically removed, and nothing is refitted. Prints a table, and writes it with all figures.
Takes six minutes on a core.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shared import RESULTS, markdown_table, write_record
from sparsefw import SFW, Sizes, compress, constrain
from sparsefw.environment import environment
from untuned_defaults import load

STEPS, BATCH, IMAGES = 400, 64, 6000
AT = (0.5, 0.7, 0.8, 0.9)
FORMS = ("plain", "over sizes", "over sizes, both", "over sizes, taught")


def network() -> nn.Module:
    def block(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
        conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())

    return nn.Sequential(
        block(1, 16), block(16, 32, 2), block(32, 64, 2), block(64, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def loss_of(form: str, net: nn.Module, sizes: Sizes, step: int, x: Tensor, y: Tensor) -> Tensor:
    if form == "plain":
        return F.cross_entropy(net(x), y)
    if form == "over sizes":
        with sizes.mixed(step):
            return F.cross_entropy(net(x), y)
    draws = 1 if form == "over sizes, both" else 4
    with sizes.mixed(step, draws=draws):
        small, whole = net(x.repeat(2, 1, 1, 1)).chunk(2)
    targets = y if draws == 1 else whole.detach().softmax(1)
    return (F.cross_entropy(whole, y) + F.cross_entropy(small, targets)) / 2


def accuracies(
    form: str, method: str, seed: int, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> list[float]:
    """Train, and return the accuracy of the whole network and of those without a share of their filters."""
    torch.manual_seed(seed)
    (x, y), net = train, network()
    if method == "SGD":
        optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    else:
        groups = constrain(net, "filters", example=x[:2], steps=STEPS, report=None)
        optimizer = SFW(groups, lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    sizes = Sizes(net, "filters", example=x[:2], distribution="logarithm" if "taught" in form else "width")
    for step in range(STEPS):
        net.train()
        chosen = torch.randint(len(y), (BATCH,))
        optimizer.zero_grad()
        loss_of(form, net, sizes, step, x[chosen], y[chosen]).backward()
        optimizer.step()
        schedule.step()
    small = [compress(net, filters=ratio, calibration=[x[:1000]], refit=False).model for ratio in AT]
    with torch.no_grad():
        return [100 * float((n.eval()(test[0]).argmax(1) == test[1]).float().mean()) for n in (net, *small)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fashion", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    args = parser.parse_args(arguments)
    images, labels, test_images, test_labels = load("fashion", args.fashion, None)
    train, test = (images[:IMAGES], labels[:IMAGES]), (test_images, test_labels)
    figures = {
        f"{method} {form}": [accuracies(form, method, seed, train, test) for seed in args.seeds]
        for method in ("SGD", "SFW")
        for form in FORMS
    }
    rows = [
        [row, *(f"{statistics.fmean(column):.1f}" for column in zip(*of, strict=True))] for row, of in figures.items()
    ]
    text = markdown_table(["", "dense", *(f"{ratio:.0%}" for ratio in AT)], rows)
    print(text)
    (RESULTS / "short-sizes.md").write_text(f"# Training over sizes in {STEPS} steps\n\n{text}\n")
    write_record(RESULTS / "short-sizes.json", {"figures": figures, "seeds": args.seeds, **environment()})


if __name__ == "__main__":
    main()
