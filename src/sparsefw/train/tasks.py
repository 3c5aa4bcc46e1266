"""Tasks: classification and segmentation. Each has a loss, sums that add up over batches and processes, and their metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

AUXILIARY = 0.4  # the weight of PSPNet's second output in the loss, as in its paper


class Task(ABC):
    """What a network is trained for. metric: the figure of merit, a key of `metrics`."""

    metric: str

    def __init__(self, classes: int, label_smoothing: float = 0.0) -> None:
        self.classes = classes
        self.label_smoothing = label_smoothing

    @abstractmethod
    def loss(self, output: Any, targets: Tensor) -> Tensor:
        """Return the mean loss of a batch; `output` is whatever the network returns in training mode."""

    def imitation_loss(self, output: Any, taught: Any) -> Tensor:
        """Return the mean cross-entropy to the probabilities of another network's output for the same inputs, which is fixed."""
        if isinstance(output, tuple):
            return self.imitation_loss(output[0], taught[0]) + AUXILIARY * self.imitation_loss(output[1], taught[1])
        probabilities = taught.detach().float().softmax(1)
        return functional.cross_entropy(output.float(), probabilities)

    @abstractmethod
    def sums(self, output: Any, targets: Tensor, loss: Tensor) -> Tensor:
        """Return float64 sums over a batch, which add up over batches and processes."""

    @abstractmethod
    def metrics(self, total: Tensor) -> dict[str, float]:
        """Return the metrics of added-up `sums`."""

    @abstractmethod
    def size(self) -> int:
        """Return the length of `sums`."""


class Classification(Task):
    """Top-1 ("accuracy") and top-5 accuracy in percent. Targets are classes, or probabilities for mixed images."""

    metric = "accuracy"

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        return functional.cross_entropy(output.float(), targets, label_smoothing=self.label_smoothing)

    def sums(self, output: Any, targets: Tensor, loss: Tensor) -> Tensor:
        labels = targets if targets.ndim == 1 else targets.argmax(1)
        best = output.detach().topk(min(5, output.shape[1]), dim=1).indices == labels[:, None]
        count = torch.full((), len(labels), dtype=torch.float64, device=labels.device)
        return torch.stack(
            [loss.detach().double() * count, best[:, 0].sum().double(), best.any(1).sum().double(), count]
        )

    def metrics(self, total: Tensor) -> dict[str, float]:
        loss, top1, top5, count = total.tolist()
        count = max(count, 1.0)
        return {"loss": loss / count, "accuracy": 100 * top1 / count, "top5": 100 * top5 / count}

    def size(self) -> int:
        return 4


class Segmentation(Task):
    """Mean intersection over union in percent, over the classes that occur; pixels labelled `ignore` are not counted."""

    metric = "mean_iou"

    def __init__(self, classes: int, label_smoothing: float = 0.0, ignore: int = 255) -> None:
        super().__init__(classes, label_smoothing)
        self.ignore = ignore

    def loss(self, output: Any, targets: Tensor) -> Tensor:
        if isinstance(output, tuple):
            return self.loss(output[0], targets) + AUXILIARY * self.loss(output[1], targets)
        # Summed and divided here: a batch without a labelled pixel has the loss 0, not 0 / 0.
        total = functional.cross_entropy(
            output.float(), targets, ignore_index=self.ignore, label_smoothing=self.label_smoothing, reduction="sum"
        )
        return total / (targets != self.ignore).sum().clamp(min=1)

    def sums(self, output: Any, targets: Tensor, loss: Tensor) -> Tensor:
        """Return the confusion matrix, whose rows are the true classes, then loss times images, then the number of images."""
        predicted = (output[0] if isinstance(output, tuple) else output).detach().argmax(1)
        n = self.classes
        # Ignored pixels get a bin of their own: boolean indexing would wait for the device.
        cell = torch.where(targets == self.ignore, n * n, targets * n + predicted).flatten()
        confusion = torch.zeros(n * n + 1, dtype=torch.float64, device=cell.device)
        confusion = confusion.scatter_add(
            0, cell, torch.ones((), dtype=torch.float64, device=cell.device).expand(len(cell))
        )
        count = torch.full((), len(targets), dtype=torch.float64, device=cell.device)
        return torch.cat([confusion[:-1], torch.stack([loss.detach().double() * count, count])])

    def metrics(self, total: Tensor) -> dict[str, float]:
        confusion = total[:-2].view(self.classes, self.classes)
        (loss, count) = total[-2:].tolist()
        right = confusion.diag()
        union = confusion.sum(0) + confusion.sum(1) - confusion.diag()
        occurs = union > 0
        iou = (right[occurs] / union[occurs]).mean() if bool(occurs.any()) else torch.zeros(())
        pixels = float(right.sum() / confusion.sum().clamp(min=1))
        return {"loss": loss / max(count, 1.0), "mean_iou": 100 * float(iou), "pixel_accuracy": 100 * pixels}

    def size(self) -> int:
        return self.classes**2 + 2


def task_for(kind: str, classes: int, label_smoothing: float, ignore_label: int | None) -> Task:
    """Return the task of a data set. kind: "classification", or else segmentation."""
    if kind == "classification":
        return Classification(classes, label_smoothing)
    return Segmentation(classes, label_smoothing, 255 if ignore_label is None else ignore_label)
