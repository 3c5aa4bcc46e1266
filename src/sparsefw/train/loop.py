"""The training loop.

Randomness has no state: the order of the images, their augmentation, the mixing of images and the numbers that a network itself
draws (dropout) are functions of the seed and the step. So a run that is killed and resumed computes what it would have computed.
"""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from sparsefw.compression import compress, recalibrate
from sparsefw.compression.curves import distance
from sparsefw.compression.recovery.batchnorm import has_batch_norm
from sparsefw.data.batches import DataPart
from sparsefw.data.loaders import Data
from sparsefw.methods import Batch
from sparsefw.optim import SFW
from sparsefw.randomness import generator
from sparsefw.runfolder.identity import identity_of
from sparsefw.runfolder.schema import ConfigRecord, EpochFigures, ObservedFigures
from sparsefw.train.average import Average
from sparsefw.train.checkpoint import plain_rates
from sparsefw.train.config import RunConfig
from sparsefw.train.constraint_progress import constraint_figures
from sparsefw.train.engine import Engine, of_all_processes
from sparsefw.train.sizes import OverSizes
from sparsefw.train.tasks import Task

CALIBRATION = 2048  # training images on which BatchNorm statistics are recomputed before an evaluation


@dataclass
class Training:
    """A training under way. `state` returns everything that changes in it.

    regions    which layer is constrained to which region, one line each
    norms      sum of the gradient norms of the epoch so far, where they are observed
    sizes      over which the loss is averaged
    sums       sums of the task's metrics over the epoch so far
    """

    config: RunConfig
    engine: Engine
    data: Data
    task: Task
    model: nn.Module
    optimizer: SFW
    scaler: torch.amp.GradScaler
    average: Average | None
    advance: Callable[[Batch], Tensor]
    rates: Rates
    regions: str = ""
    step: int = 0
    clock: Clock = field(default_factory=lambda: Clock())
    norms: Tensor | None = None
    sizes: OverSizes | None = None
    sums: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sums = torch.zeros(self.task.size(), dtype=torch.float64, device=self.engine.device)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.data.train) // self.config.data.batch_size

    @property
    def steps(self) -> int:
        return self.config.train.epochs * self.steps_per_epoch

    @property
    def epoch(self) -> int:
        """The number of epochs that have ended."""
        return self.step // self.steps_per_epoch

    @property
    def identity(self) -> str:
        """What binds checkpoints and the network to this run."""
        return identity_of(ConfigRecord(self.config.plain()))

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint. Weights and momenta are the same in all processes, metrics so far are not."""
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": plain_rates(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.tensors,
            "sums": of_all_processes(self.engine, self.sums),
            "norms": self.norms,
            "sizes": None if self.sizes is None else self.sizes.state_dict(),
            "run": self.identity,
            "step": self.step,
            "seconds": self.clock.seconds(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore the content of a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:  # empty where the precision needs no scaling
            self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load(state["average"])
        sums = state["sums"]
        share = self.engine.share
        if len(sums) == share.world:
            self.sums.copy_(sums[share.rank])
        elif share.rank == 0:  # the number of processes has changed: only the total matters
            self.sums.copy_(sums.sum(0))
        if self.norms is not None:
            self.norms.copy_(state["norms"])
        if self.sizes is not None:
            self.sizes.load_state_dict(state["sizes"])
        self.step = state["step"]
        self.clock = Clock(state["seconds"])


class Rates:
    """The learning rates of an optimizer, scaled together by the schedule; on a GPU, tensors that captured steps read."""

    def __init__(self, optimizer: SFW, device: torch.device) -> None:
        self._optimizer = optimizer
        self._base = [float(group["lr"]) for group in optimizer.param_groups]
        on_gpu = device.type == "cuda"
        self._tensors = {lr: torch.tensor(lr, device=device) for lr in self._base} if on_gpu else None

    def scale(self, factor: float) -> float:
        """Set all rates to `factor` times their initial values, and return the first one, for display."""
        for base, tensor in (self._tensors or {}).items():
            tensor.fill_(base * factor)
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base * factor if self._tensors is None else self._tensors[base]
        return self._base[0] * factor


class Clock:
    """Counts the seconds spent in training steps; it is stopped during evaluations and while files are written."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds
        self._since = 0.0  # 0 while it is stopped

    def start(self) -> None:
        self._since = time.perf_counter()

    def stop(self) -> None:
        self._seconds = self.seconds()
        self._since = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        running = bool(self._since)
        self.stop()
        yield
        if running:
            self.start()

    def seconds(self) -> float:
        return self._seconds + (time.perf_counter() - self._since if self._since else 0.0)


class Watcher(ABC):
    """Follows a training: display, metrics, checkpoints."""

    @abstractmethod
    def stepped(self, training: Training, lr: float) -> None:
        """Called after every step but the last one of an epoch."""

    @abstractmethod
    def epoch_ended(self, training: Training, lr: float, figures: EpochFigures) -> None:
        """Called after the last step of an epoch."""


def train(training: Training, watcher: Watcher) -> None:
    """Run all epochs that are left."""
    t = training
    config = training.config
    method = config.method
    schedule = config.train.schedule
    t.model.train()
    while t.step < t.steps:
        epoch, start = divmod(t.step, t.steps_per_epoch)
        t.clock.start()
        for batch in t.data.train.training(epoch, start, config.data.batch_size):
            lr = one_step(t, batch, schedule.at(t.step, t.steps, t.steps_per_epoch))
            if t.step % t.steps_per_epoch:  # the last step of an epoch is followed by epoch_ended instead
                watcher.stepped(t, lr)
        synchronise(t.engine.device)
        t.clock.stop()
        t.optimizer.check_finite()
        method.after_epoch(t.model, t.optimizer, epoch + 1, config.train.epochs)
        watcher.epoch_ended(t, lr, epoch_figures(t))


def one_step(training: Training, batch: Batch, factor: float) -> float:
    """Take a step at `factor` times the initial learning rates; return the first one. The host does not wait for a GPU."""
    t = training
    torch.manual_seed(int(generator("network", t.config.seed, t.step, t.engine.share.rank).integers(2**62)))
    if t.sizes is not None:
        t.sizes.choose(t.step)
    lr = t.rates.scale(factor)
    t.sums += t.advance(mixed(batch, t.config, t.task.classes, t.step))
    t.step += 1
    return lr


def epoch_figures(training: Training) -> EpochFigures:
    """Return the metrics of the epoch that has ended, over all processes; validation and constraint where they are due."""
    t = training
    sums = training.sums.clone()
    t.sums.zero_()
    if t.engine.share.world > 1:
        distributed.all_reduce(sums)
    train_metrics = t.task.metrics(sums.cpu())
    due = t.epoch % t.config.train.evaluate_every == 0 or t.step == t.steps
    validation = None
    if due and t.data.validation is not None:
        validation = evaluate(evaluated_model(t), t.data.validation, t.task, t.engine)
    constraint, layers = constraint_figures(t.optimizer) if due else (None, {})
    return EpochFigures(train_metrics, validation, constraint, observations(t), layers)


def observations(training: Training) -> ObservedFigures | None:
    """Return what the configuration asks to observe in the epoch that has ended; None where it asks for nothing."""
    t = training
    gradient_norm = None
    if t.norms is not None:
        gradient_norm = float(t.norms) / t.steps_per_epoch
        t.norms.zero_()
    ratio = t.config.observe.distance
    if ratio is None:
        return None if gradient_norm is None else ObservedFigures(gradient_norm)
    kind = t.config.curve_kind
    example = torch.zeros((2, *t.data.shape), device=t.engine.device)
    form = "masked" if kind.of_channels else "removed"
    small = compress(t.model, example=example, progress=False, form=form, **kind.compress_arguments(ratio))
    return ObservedFigures(gradient_norm, distance(t.model, small.model))


def mixed(batch: Batch, config: RunConfig, classes: int, step: int) -> Batch:
    """Blend every image and its label with those of its neighbour: mixup (Zhang et al., arXiv:1710.09412)."""
    if not config.train.mixup:
        return batch
    share = float(generator("mixup", config.seed, step).beta(config.train.mixup, config.train.mixup))
    labels = functional.one_hot(batch.targets, classes).float()
    inputs = torch.lerp(batch.inputs.roll(1, 0), batch.inputs, share)
    return Batch(inputs, torch.lerp(labels.roll(1, 0), labels, share))


def evaluated_model(training: Training, calibration: int = CALIBRATION) -> nn.Module:
    """Return the network as it is evaluated and saved: a copy, averaged where asked for, with recomputed BatchNorm statistics.

    Running averages of the statistics lag behind weights that move as fast as those of Frank-Wolfe steps.
    """
    model = copy.deepcopy(training.model)
    if training.average is not None:
        training.average.write_to(model, training.step)
    model.eval()
    if has_batch_norm(model):
        model = recalibrate(model, training.data.train.sample(calibration))
    return model


@torch.no_grad()
def evaluate(model: nn.Module, part: DataPart, task: Task, engine: Engine) -> dict[str, float]:
    """Return the metrics over all images of a part; every process evaluates its share, and all get the same figures."""
    model.eval()
    total = torch.zeros(task.size(), dtype=torch.float64, device=engine.device)
    for batch in part.evaluation():
        output = model(batch.inputs)
        total += task.sums(output, batch.targets, task.loss(output, batch.targets))
    if engine.share.world > 1:
        distributed.all_reduce(total)
    return task.metrics(total)


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done all of its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
