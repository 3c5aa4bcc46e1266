"""BatchNorm statistics recomputed exactly: the population moments of the inputs of each batch norm in the network as it is now.

    mean = sum x / N,   variance = sum x^2 / N - mean^2        over all positions of all calibration batches

in one pass in which batch norms use the statistics of the batch, with sums in float64. It is not the framework's running
average, which gives late batches more weight and forgets early ones.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefw.compression.recovery.calibration import Calibration, NotFiniteError, add_over_ranks, device_of, run
from sparsefw.compression.structure.layers import evaluating, first_input, hooks
from sparsefw.layer_types import BATCH_NORMS


class Moments:
    """Sums for the mean and variance per channel (axis 1), in float64."""

    def __init__(self) -> None:
        self.sums: Tensor | None = None  # rows: sum of x, sum of x^2, count

    def add(self, x: Tensor, axis: int = 1) -> None:
        channels = x.detach().double().movedim(axis, 0).flatten(1)
        count = torch.full((channels.shape[0],), channels.shape[1], dtype=torch.float64, device=x.device)
        sums = torch.stack([channels.sum(1), channels.square().sum(1), count])
        self.sums = sums if self.sums is None else self.sums + sums

    @property
    def mean(self) -> Tensor:
        assert self.sums is not None
        return self.sums[0] / self.sums[2]

    @property
    def variance(self) -> Tensor:
        assert self.sums is not None
        return (self.sums[1] / self.sums[2] - self.mean.square()).clamp(min=0)


def recalibrate(model: nn.Module, calibration: Iterable[Any]) -> nn.Module:
    """Return a copy of the model whose BatchNorm statistics are the moments on the calibration inputs.

    >>> norm = nn.BatchNorm1d(1)
    >>> recalibrate(norm, [torch.tensor([[1.0], [3.0]])]).running_mean
    tensor([2.])
    """
    new = copy.deepcopy(model)
    inputs = Calibration(calibration, device_of(new))
    inputs.suit(new)
    recalibrate_(new, inputs)
    return new


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(m, BATCH_NORMS) and m.running_mean is not None for m in model.modules())


def recalibrate_(model: nn.Module, calibration: Calibration) -> None:
    """Recalibrate in place. In a torch.distributed job every process passes its own batches; all get the common moments."""
    moments = {m: Moments() for m in model.modules() if isinstance(m, BATCH_NORMS) and m.running_mean is not None}
    if not moments:
        return
    with evaluating(model), batch_statistics(model), hooks(model, _watch(moments)):
        for inputs in calibration:
            run(model, inputs)
    seen = {m: moment for m, moment in moments.items() if moment.sums is not None}
    add_over_ranks([moment.sums for moment in seen.values() if moment.sums is not None])
    for norm, moment in seen.items():
        assert moment.sums is not None
        if float(moment.sums[2, 0]) < 2:
            raise ValueError("calibration has one value per channel, which has no variance: give more images")
        if not bool(moment.sums.isfinite().all()):
            raise NotFiniteError(
                "calibration gives activations that are not finite: a BatchNorm would learn NaN or inf"
            )
        _set_statistics(norm, moment.mean, moment.variance)


def _watch(moments: dict[Any, Moments]) -> Any:
    def make(name: str, module: nn.Module) -> Sequence[Any]:
        if module not in moments:
            return ()

        def add(norm: nn.Module, args: Any, kwargs: Any) -> None:
            moments[norm].add(first_input(args, kwargs))

        return (module.register_forward_pre_hook(add, with_kwargs=True),)

    return make


class batch_statistics:  # noqa: N801  (reads as a verb phrase in `with`)
    """Within the block, batch norms of a model in evaluation mode normalise by the statistics of the batch.

    Before each call, the batch's statistics replace the running ones: whatever else a subclass computes still happens (timm's
    also activate), and SyncBatchNorm normalises its own batch, as one process would. A batch with one value per channel has no
    variance; it is normalised by the running statistics.
    """

    def __init__(self, model: nn.Module) -> None:
        self._running = RunningStatistics(model)

    def __enter__(self) -> None:
        norms = self._running.of_norm
        self._handles = [norm.register_forward_pre_hook(self._use_batch, with_kwargs=True) for norm in norms]

    def _use_batch(self, norm: Any, args: Any, kwargs: Any) -> None:
        x = first_input(args, kwargs).detach()
        mean, variance = self._running.of_norm[norm]
        if x.numel() > x.shape[1]:
            axes = [axis for axis in range(x.ndim) if axis != 1]
            variance, mean = torch.var_mean(x if x.dtype == torch.float64 else x.float(), axes, correction=0)
        _set_statistics(norm, mean, variance)

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._running.put_back()


class RunningStatistics:
    """The statistics of the batch norms of a model as they are now, to be put back later."""

    def __init__(self, model: nn.Module) -> None:
        norms = [m for m in model.modules() if isinstance(m, BATCH_NORMS) and m.running_mean is not None]
        self.of_norm = {norm: (norm.running_mean.clone(), norm.running_var.clone()) for norm in norms}  # type: ignore[union-attr]

    def put_back(self) -> None:
        for norm, (mean, variance) in self.of_norm.items():
            _set_statistics(norm, mean, variance)


def _set_statistics(norm: Any, mean: Tensor, variance: Tensor) -> None:
    with torch.no_grad():
        norm.running_mean.copy_(mean)
        norm.running_var.copy_(variance)
