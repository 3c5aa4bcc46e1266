"""The plain training loop that every program must repeat to the last bit, on few digits."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sparsefw import SFW, Sizes, constrain
from sparsefw.data import load_digits
from sparsefw.models import build

BATCH, BATCHES, EPOCHS = 16, 6, 2  # batches in an epoch
LR, DECAY, CLIP = 0.1, 5e-4, 0.5
IMAGES, LABELS = (tensor[: BATCH * BATCHES] for tensor in load_digits("train"))
EXAMPLE = IMAGES[:2]


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return build("resnet_digits", width=8)


def batches() -> list[tuple[Tensor, Tensor]]:
    return list(zip(IMAGES.split(BATCH), LABELS.split(BATCH), strict=True))


def falling(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)


def trained(kind: str = "filters", accumulate: int = 1, clip: float | None = None) -> nn.Module:
    net = network()
    steps = EPOCHS * BATCHES // accumulate
    optimizer = SFW(constrain(net, kind, example=EXAMPLE, steps=steps, report=None), lr=LR, weight_decay=DECAY)
    schedule = falling(optimizer, steps)
    sizes = Sizes(net, kind, example=EXAMPLE)
    net.train()
    for i, (x, y) in enumerate(EPOCHS * batches()):
        with sizes.mixed(i // accumulate):
            (cross_entropy(net(x), y) / accumulate).backward()
        if (i + 1) % accumulate == 0:
            if clip is not None:
                nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return net


def assert_equal(a: nn.Module | dict[str, Tensor], b: nn.Module | dict[str, Tensor]) -> None:
    first, second = (net if isinstance(net, dict) else net.state_dict() for net in (a, b))
    assert list(first) == list(second)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
