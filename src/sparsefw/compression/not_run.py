"""Parts that the example does not run: which layers may write what they read, by the number of channels alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from torch import nn

from sparsefw.compression.artifact.plan import Edit, Keep, Untouched
from sparsefw.compression.reasons import Cause, because
from sparsefw.compression.structure.channels import Side
from sparsefw.compression.structure.layers import is_layer
from sparsefw.compression.structure.surgery import size
from sparsefw.text import listed

_SHOWN = 8


def advice(dense: nn.Module, not_run: Sequence[str], called: Collection[str]) -> str:
    """Return how to keep these parts in use: by another example, or by leaving the layers whole that they may read."""
    widths = {width for name in not_run if (width := _width_read(dense, name)) is not None}
    layers = [name for name, module in dense.named_modules() if name in called and is_layer(module)]
    writers = [name for name in layers if size(dense, name, Side.OUT) in widths]
    if not writers or len(writers) > _SHOWN:
        return "if it is in use, give an example that runs it"
    return f"if it is in use, give an example that runs it, or leave whole what it may read: exclude={writers}"


def unfit(dense: nn.Module, not_run: Iterable[str], edits: Iterable[Edit]) -> list[Untouched]:
    """Return notes on parts that may read channels which are cut."""
    cut: dict[int, list[str]] = {}
    for edit in edits:
        if isinstance(edit, Keep) and edit.side == Side.OUT:
            cut.setdefault(size(dense, edit.layer, Side.OUT), []).append(edit.layer)
    notes = []
    for name in not_run:
        width = _width_read(dense, name)
        if width in cut:
            reason = because(Cause.MAY_NOT_FIT, count=width, layers=listed(cut[width], _SHOWN))
            notes.append(Untouched.because(name, reason))
    return notes


def _width_read(dense: nn.Module, name: str) -> int | None:
    """Return how many channels the first layer in a part reads; None if there is no layer in it."""
    layer = next((inner for inner, m in dense.get_submodule(name).named_modules(prefix=name) if is_layer(m)), None)
    return None if layer is None else size(dense, layer, Side.IN)
