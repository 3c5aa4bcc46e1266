"""One training step, from a batch to moved weights; on a GPU it is captured in one CUDA graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsefw.methods import Batch, Method
from sparsefw.optim import SFW
from sparsefw.train.average import Average
from sparsefw.train.engine import Engine
from sparsefw.train.sizes import OverSizes, chunks, halves
from sparsefw.train.tasks import Task

# Ordinary steps before the capture: libraries choose their kernels, the optimizer creates its state, and the oracle of
# spectral regions works more carefully in its first five.
EAGER_STEPS = 8


class Step:
    """Computes gradients on a batch, and updates weights and their average. Returns the sums of the task's metrics."""

    def __init__(
        self,
        engine: Engine,
        model: nn.Module,
        method: Method,
        task: Task,
        optimizer: SFW,
        scaler: torch.amp.GradScaler,
        average: Average | None,
        norms: Tensor | None = None,
        sizes: OverSizes | None = None,
    ) -> None:
        """Take the parts of a training.

        Args:
            average: of the weights.
            norms: to which the norm of every gradient is added.
            sizes: over which the loss is averaged.
        """
        self.engine = engine
        self.model = model
        self.method = method
        self.task = task
        self.optimizer = optimizer
        self.scaler = scaler
        self.average = average
        self.norms = norms
        self.sizes = sizes
        self._whole = self._parallel(model)
        self.net: Callable[[Tensor], Tensor] = torch.compile(self._whole) if engine.compile else self._whole
        self._adjusts = method.overrides("adjust")
        self._buckets_are_final = engine.share.world <= 2  # a sum of two does not depend on its order

    def _parallel(self, model: nn.Module) -> nn.Module:
        if self.engine.share.world == 1:
            return model
        ids = [self.engine.device.index] if self.engine.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids)

    def __call__(self, batch: Batch) -> Tensor:
        if not self._buckets_are_final:
            self._rehearse(batch)
        self.optimizer.zero_grad(set_to_none=True)
        with tried_convolutions():
            sums = self.method.gradients(self.model, batch, ScaledBackward(self))
        if self.norms is not None:
            self.norms += self._gradient_norm()
        if self._adjusts:
            self.scaler.unscale_(self.optimizer)
            self.method.adjust(self.model)
        if self._move():
            self.method.after_step(self.model, self.optimizer)
        if self.average is not None:
            self.average.update()
        return sums

    def _rehearse(self, batch: Batch) -> None:
        """Compute gradients once, for nothing.

        DistributedDataParallel puts gradients into other buckets after its first backward pass, which changes the order in which
        those of three or more processes are added. So a resumed run would round its first step otherwise than the whole run did.
        """
        buffers = [buffer.clone() for buffer in self.model.buffers()]
        devices = [self.engine.device] if self.engine.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            with self.engine.autocast():
                output = self.net(batch.inputs)
            self.task.loss(output, batch.targets).backward()
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), buffers, strict=True):
                buffer.copy_(before)
        self._buckets_are_final = True

    def _gradient_norm(self) -> Tensor:
        """Return the norm of the gradients before the method adjusts them."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        total = torch.stack([norm.double() for norm in torch._foreach_norm(gradients)]).norm()
        total = total / ScaledBackward(self).scale
        return torch.where(total.isfinite(), total, 0.0)  # a scaled loss may overflow, and then no step is taken

    def _move(self) -> bool:
        """Update the weights; return False if the loss was scaled so much that gradients are infinite and nothing moves."""
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= scale

    def backward(self, batch: Batch) -> Tensor:
        """Add the gradients of the objective over a batch, averaged over the processes; return the sums of the whole network."""
        if self.sizes is None:
            return self._pass(list(chunks(batch, self.engine.accumulate)), 1.0)
        divided = self.sizes.divide(batch)
        if self.sizes.in_one_pass:
            return self._mixed_pass(divided, self.sizes)
        # The smaller ones first, while there are no gradients that would have to be kept apart from theirs.
        few = [list(chunks(small, self.sizes.draws)) for small, _ in divided]
        for i in range(self.sizes.draws):
            with self.sizes.smaller(i):
                self._pass([small[i] for small in few], self.sizes.share / self.sizes.draws, more_to_come=True)
        return self._pass([whole for _, whole in divided], 1 - self.sizes.share)

    def _pass(self, parts: Sequence[Batch], weight: float, more_to_come: bool = False) -> Tensor:
        """Add the gradients of `weight` times the mean loss over some images, part by part; return the sums.

        Args:
            more_to_come: whether another pass of this step averages the gradients over the processes.
        """
        sums = self._no_sums()
        for i, (inputs, targets) in enumerate(parts):
            with self._unsynchronised(more_to_come or i < len(parts) - 1):
                with self.engine.autocast():
                    output = self.net(inputs)
                loss = self.task.loss(output, targets)
                self.scaler.scale(loss * (weight / len(parts))).backward()
            sums += self.task.sums(output, targets, loss)
        return sums

    def _mixed_pass(self, divided: Sequence[tuple[Batch, Batch]], sizes: OverSizes) -> Tensor:
        """Add the gradients over the images of all networks, in one pass for each part; return the sums of the whole network."""
        sums = self._no_sums()
        for i, (few, rest) in enumerate(divided):
            with self._unsynchronised(i < len(divided) - 1):
                with sizes.side_by_side(), self.engine.autocast():
                    output = self.net(torch.cat([few.inputs, rest.inputs]))
                small, others = halves(len(few.inputs))
                of_small, of_whole = _rows(output, small), _rows(output, others)
                loss = self.task.loss(of_whole, rest.targets)
                small_loss = (
                    self.task.imitation_loss(of_small, _rows(of_whole, small))  # of the same images
                    if sizes.from_outputs
                    else self.task.loss(of_small, few.targets)
                )
                total = (1 - sizes.share) * loss + sizes.share * small_loss
                self.scaler.scale(total / len(divided)).backward()
            sums += self.task.sums(of_whole, rest.targets, loss)
        return sums

    def _no_sums(self) -> Tensor:
        return torch.zeros(self.task.size(), dtype=torch.float64, device=self.engine.device)

    def _unsynchronised(self, more_to_come: bool) -> contextlib.AbstractContextManager[None]:
        """Return a context in which gradients are not averaged over the processes: only the last part of a batch is."""
        parallel = isinstance(self._whole, nn.parallel.DistributedDataParallel)
        return self._whole.no_sync() if parallel and more_to_come else contextlib.nullcontext()  # type: ignore[operator]


def _rows(output: Any, rows: slice) -> Any:
    return tree_map(lambda t: t[rows], output)


class ScaledBackward:
    """Methods call it with a batch to add the gradients to .grad, multiplied by `scale`."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def __call__(self, batch: Batch) -> Tensor:
        return self._step.backward(batch)

    @property
    def scale(self) -> float | Tensor:
        return self._step.scaler.scale(torch.ones((), device=self._step.engine.device))


@contextlib.contextmanager
def tried_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms on the first batch and keep the fastest one: it saves 5 % of a ResNet-18's step."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class CapturedStep:
    """A step that is replayed as one CUDA graph: small networks do not wait for the launches of single kernels.

    A graph repeats what was captured: when a method gives the optimizer other regions, a new one is captured.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._done = 0
        self._graph = torch.cuda.CUDAGraph()
        self._side = torch.cuda.Stream()
        self._regions: list[Any] = []
        self._inputs: Batch
        self._sums: Tensor

    def __call__(self, batch: Batch) -> Tensor:
        regions = [group["region"] for group in self._step.optimizer.param_groups]
        if any(a is not b for a, b in zip(regions, self._regions, strict=False)):
            self._done = 0
            self._graph = torch.cuda.CUDAGraph()
        self._regions = regions
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
        """Run an ordinary step on a side stream, as a later capture requires."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            sums = self._step(batch)
        torch.cuda.current_stream().wait_stream(self._side)
        return sums


def step_for(step: Step) -> Step | CapturedStep:
    return CapturedStep(step) if step.engine.cuda_graph else step
