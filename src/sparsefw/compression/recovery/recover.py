"""Recovery of a network that was just cut: weights fitted in closed form, or matched moments; then BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from sparsefw.compression.artifact.plan import Untouched
from sparsefw.compression.progress import Progress
from sparsefw.compression.reasons import Cause, Reason, because
from sparsefw.compression.recovery.batchnorm import has_batch_norm, recalibrate_
from sparsefw.compression.recovery.calibration import Calibration
from sparsefw.compression.recovery.cut_network import CutNetwork
from sparsefw.compression.recovery.moments import match_moments
from sparsefw.compression.recovery.refit import refit as fit_to_dense
from sparsefw.compression.structure.batchnorm_pairs import norms_behind
from sparsefw.compression.structure.factorisation import is_standard
from sparsefw.compression.structure.layers import bias_of, count_calls, shared_layers
from sparsefw.layer_types import CONVOLUTIONS

FEW = 32  # fewer calibration inputs than this are worth a note


def recover(
    dense: nn.Module,
    cuts: Sequence[CutNetwork],
    example: Any,
    calibration: Calibration | None,
    refit: bool,
    progress: Progress | None,
    fitting: Iterable[Any] | None = None,
) -> list[Untouched]:
    """Recover all cuts of one dense model, in place; return notes on layers that could not be recovered.

    Args:
        dense: The model that the cuts are made from.
        cuts: The smaller models; the dense model's forward passes are shared between them.
        example: An input that calls every layer.
        calibration: The inputs to recover on; with None nothing is recovered.
        refit: Fit weights to the dense network. Otherwise only moments are matched, in networks without BatchNorm.
        progress: Called before each layer.
        fitting: The part of the inputs to fit weights on; None: all. BatchNorm statistics are always those of all inputs.
    """
    if calibration is None:
        cause = Cause.NO_CALIBRATION_FOR_NORMS if has_batch_norm(dense) else Cause.NO_CALIBRATION
        return [Untouched.because("calibration", because(cause))]
    obstacles = _obstacles(dense, example)
    order = [name for name, reason in obstacles.items() if reason is None]
    changes_weights = refit or not has_batch_norm(dense)
    if refit:
        behind = norms_behind(dense, example)

        def absorbs_offset(name: str) -> bool:
            return name in behind or bias_of(dense.get_submodule(name)) is not None

        fit_to_dense(dense, cuts, order, calibration if fitting is None else fitting, absorbs_offset, progress)
    elif changes_weights:
        for cut in cuts:
            match_moments(dense, cut, order, calibration, progress)
    for cut in cuts:
        recalibrate_(cut.model, calibration)
    notes = []
    if calibration.count < FEW:
        notes.append(Untouched.because("calibration", because(Cause.FEW_INPUTS, count=calibration.count)))
    if changes_weights:
        notes += [Untouched.because(name, reason) for name, reason in obstacles.items() if reason is not None]
    return notes


def _obstacles(dense: nn.Module, example: Any) -> dict[str, Reason | None]:
    """Map every layer, in forward order, to the reason why it cannot be fitted; None if it can."""
    calls = count_calls(dense, example)
    shared = shared_layers(dense)

    def obstacle(name: str) -> Reason | None:
        layer = dense.get_submodule(name)
        if calls[name] > 1:
            return because(Cause.NOT_FITTED_CALLED_TWICE)
        if name in shared:
            return because(Cause.NOT_FITTED_SHARED)
        if not is_standard(layer):
            return because(Cause.NOT_FITTED_OWN_FORWARD)
        if not isinstance(layer, (*CONVOLUTIONS, nn.Linear)):
            return because(Cause.NOT_FITTED_TRANSPOSED)
        return None

    return {name: obstacle(name) for name in calls}
