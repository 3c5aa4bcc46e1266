"""Train a small CNN once by SGD and once by Stochastic Frank-Wolfe, and look at the filters. About 20 s on two CPU cores."""

import torch
from torch import nn

from sparsefw import SFW, constrain

STEPS = 400


def waves(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy 12 x 12 images of plane waves; the class is one of 4 directions x 2 wavelengths."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(8, (count, 1, 1), generator=generator)
    angle, frequency = (y % 4) * torch.pi / 4, 0.8 + 0.7 * (y // 4)
    i, j = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    phase = 2 * torch.pi * torch.rand(count, 1, 1, generator=generator)
    x = torch.sin((i * angle.cos() + j * angle.sin()) * frequency + phase)
    return (x + torch.randn(x.shape, generator=generator)).unsqueeze(1), y.flatten()


def conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


@torch.no_grad()
def accuracy(net: nn.Module) -> float:
    """On fresh images, with the BatchNorm statistics recomputed for the network as it is now."""
    for layer in (module for module in net.train().modules() if isinstance(module, nn.BatchNorm2d)):
        layer.reset_running_stats()
        layer.momentum = None
    net(waves(4000, seed=1)[0])
    x, y = waves(2000, seed=2)
    return 100 * float((net.eval()(x).argmax(1) == y).float().mean())


for method in ("SGD", "SFW"):
    torch.manual_seed(0)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 8)]
    net = nn.Sequential(conv(1, 32), conv(32, 32), nn.MaxPool2d(2), conv(32, 32), *head)
    groups = constrain(net, "filters", k=0.2, steps=STEPS) if method == "SFW" else net.parameters()
    optimizer = SFW(groups, lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, STEPS)
    for step in range(STEPS):
        x, y = waves(128, seed=100 + step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        schedule.step()
    print(f"{method}: {accuracy(net):.1f} % correct", end="")
    for layer in (module for module in net.modules() if isinstance(module, nn.Conv2d)):
        filters = layer.weight.detach().flatten(1)
        norms, order = filters.norm(dim=1).sort(descending=True)
        filters[order[10:]] = 0  # keeps 10 of 32, the others are gone
    print(f", {accuracy(net):.1f} % with 22 of 32 filters removed from every layer, without retraining")
    print(
        "     filters of the last layer, large to small: " + "".join(" .:-=+*#%@"[int(9 * n / norms[0])] for n in norms)
    )
