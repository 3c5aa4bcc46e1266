"""Networks of the tests' own, named as "train.networks:NAME" in configurations."""

from __future__ import annotations

from torch import Tensor, nn

from sparsefw.models import model_factory


@model_factory
def group_norm(width: int = 8, dropout: float = 0.0) -> nn.Module:
    """No layer of it looks at other images of the batch."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.GroupNorm(2, width), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2),
        nn.GroupNorm(2, width), nn.ReLU(), nn.Dropout(dropout), nn.Flatten(), nn.Linear(9 * width, 10),
    )  # fmt: skip


@model_factory
def one_batch_norm(width: int = 8) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(64 * width, 10)
    )


@model_factory
def norm_and_dropout(width: int = 8) -> nn.Module:
    """Of sizes that three processes sum in several orders, with running statistics and numbers of its own."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2),
        nn.BatchNorm2d(width), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(9 * width, 10),
    )  # fmt: skip


@model_factory
def linear_only(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))


class _Unfinished(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))
        self.forgotten = nn.Linear(3, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self[2](self[1](self[0](x)).relu())


@model_factory
def unfinished(width: int = 8) -> nn.Module:
    """Its output does not depend on two of its layers, of which one is frozen."""
    return _Unfinished(width)


@model_factory
def frozen(width: int = 8) -> nn.Module:
    net = group_norm(width)
    net[3].requires_grad_(False)
    return net
