"""Train a small CNN once by SGD and once by Stochastic Frank-Wolfe, and look at the filters. About 20 s on two CPU cores."""

import torch
from torch import nn
from torch.nn import functional as F

from sparsefw import SFW, constrain

STEPS = 400


def waves(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy 12 x 12 images of plane waves; the class is one of 4 directions x 2 wavelengths."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(8, (count,), generator=generator)
    angle, scale = (y % 4) * torch.pi / 4, 0.8 + 0.7 * (y // 4)
    i, j = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    phase = 2 * torch.pi * torch.rand(count, 1, 1, generator=generator)
    x = torch.sin((i * angle.cos()[:, None, None] + j * angle.sin()[:, None, None]) * scale[:, None, None] + phase)
    return (x + torch.randn(x.shape, generator=generator)).unsqueeze(1), y


def conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


@torch.no_grad()
def accuracy(net: nn.Module) -> float:
    net.train()(waves(2000, seed=1)[0])  # BatchNorm statistics of the network as it is now
    x, y = waves(2000, seed=2)
    return 100 * float((net.eval()(x).argmax(1) == y).float().mean())


@torch.no_grad()
def remove_smallest_filters(net: nn.Module, ratio: float) -> None:
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            order = layer.weight.flatten(1).norm(dim=1).argsort()
            layer.weight[order[: round(ratio * len(order))]] = 0


for method in ("SGD", "SFW"):
    torch.manual_seed(0)
    net = nn.Sequential(
        conv(1, 32),
        conv(32, 32),
        nn.MaxPool2d(2),
        conv(32, 32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 8),
    )
    groups = constrain(net, "filters", k=0.2, steps=STEPS) if method == "SFW" else net.parameters()
    optimizer = SFW(groups, lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for step in range(STEPS):
        x, y = waves(128, seed=100 + step)
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        schedule.step()
    norms = (
        net[3][0].weight.detach().flatten(1).norm(dim=1).sort(descending=True).values / net[3][0].weight.detach().norm()
    )
    print(
        f"{method}: filters of the last layer, large to small: "
        + "".join(" .:-=+*#%@"[min(9, int(40 * n))] for n in norms)
    )
    print(f"{method}: {accuracy(net):.1f} % correct", end="")
    remove_smallest_filters(net, 0.7)
    print(f", {accuracy(net):.1f} % after removing 70 % of the filters of every layer, without retraining\n")
