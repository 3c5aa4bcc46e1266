"""One training step, from a batch to moved weights; on a GPU the whole of it captured in one CUDA graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from sparsefw.methods import Batch, Method
from sparsefw.optim import SFW
from sparsefw.train.average import Average
from sparsefw.train.engine import Engine
from sparsefw.train.tasks import Task

# Ordinary steps before the capture: libraries choose their kernels, optimizer state comes into being, and the oracle of
# spectral regions works more carefully in its first five.
EAGER_STEPS = 8


class Step:
    """Called with a batch: gradients, update, average. Returns the sums of the task's metrics, on the device."""

    def __init__(
        self,
        engine: Engine,
        model: nn.Module,
        method: Method,
        task: Task,
        optimizer: SFW,
        scaler: torch.amp.GradScaler,
        average: Average | None,
    ) -> None:
        self.engine, self.model, self.method, self.task = engine, model, method, task
        self.optimizer, self.scaler, self.average = optimizer, scaler, average
        self._whole = self._parallel(model)
        self.net: Callable[[Tensor], Tensor] = torch.compile(self._whole) if engine.compile else self._whole
        self._penalised = method.overrides("penalty")

    def _parallel(self, model: nn.Module) -> nn.Module:
        if self.engine.share.world == 1:
            return model
        ids = [self.engine.device.index] if self.engine.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)

    def __call__(self, batch: Batch) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(self.task.size(), dtype=torch.float64, device=self.engine.device)
        parts = self.engine.accumulate
        pieces = zip(batch.inputs.chunk(parts), batch.targets.chunk(parts), strict=True)
        for i, (inputs, targets) in enumerate(pieces):
            with self._unsynchronised(i < parts - 1), tried_convolutions():
                sums = sums + self.method.gradients(self.model, Batch(inputs, targets), self._backward)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.average is not None:
            self.average.update()
        return sums

    def _backward(self, batch: Batch) -> Tensor:
        with self.engine.autocast():
            output = self.net(batch.inputs)
        loss = total = self.task.loss(output, batch.targets)
        if self._penalised and (penalty := self.method.penalty(self.model)) is not None:
            total = loss + penalty
        self.scaler.scale(total / self.engine.accumulate).backward()
        return self.task.sums(output, batch.targets, loss)

    def _unsynchronised(self, more_to_come: bool) -> contextlib.AbstractContextManager[None]:
        """Gradients of all but the last part of a batch wait to be averaged over the processes."""
        parallel = isinstance(self._whole, nn.parallel.DistributedDataParallel)
        return self._whole.no_sync() if parallel and more_to_come else contextlib.nullcontext()  # type: ignore[operator]


@contextlib.contextmanager
def tried_convolutions() -> Iterator[None]:
    """cuDNN tries its algorithms on the first batch and keeps the fastest instead of guessing: 5 % of a ResNet-18's step."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class CapturedStep:
    """The same step, replayed as one CUDA graph: no launch of single kernels, which small networks otherwise wait for."""

    def __init__(self, step: Step) -> None:
        self._step, self._done = step, 0
        self._graph = torch.cuda.CUDAGraph()
        self._side = torch.cuda.Stream()
        self._inputs: Batch
        self._sums: Tensor

    def __call__(self, batch: Batch) -> Tensor:
        self._done += 1
        if self._done <= EAGER_STEPS:
            return self._aside(batch)
        if self._done == EAGER_STEPS + 1:
            self._inputs = Batch(torch.empty_like(batch.inputs), torch.empty_like(batch.targets))
            self._fill(batch)
            with torch.cuda.graph(self._graph):
                self._sums = self._step(self._inputs)
        else:
            self._fill(batch)
        self._graph.replay()
        return self._sums

    def _fill(self, batch: Batch) -> None:
        self._inputs.inputs.copy_(batch.inputs)
        self._inputs.targets.copy_(batch.targets)

    def _aside(self, batch: Batch) -> Tensor:
        """On a stream of its own, as captures ask of what runs before them."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            sums = self._step(batch)
        torch.cuda.current_stream().wait_stream(self._side)
        return sums


def step_for(step: Step) -> Step | CapturedStep:
    return CapturedStep(step) if step.engine.cuda_graph else step
