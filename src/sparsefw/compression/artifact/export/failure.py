"""Why an export failed, in one line: the cause below the exporter's own words, the layer, and the code in it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparsefw.compression.structure.layers import call_on_copy, evaluating, hooks
from sparsefw.text import first_line

_NO_OPERATOR = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
_FIXED_BATCH = re.compile(r"inferred a static shape of (\d+)|specialized it to be a constant \((\d+)\)")
_ON_VALUES = ("GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException")


def reason_of(error: BaseException, model: nn.Module, example: Any) -> str:
    """Return the reason of an exporter's error."""
    causes = list(_causes(error))
    text = "\n".join(map(str, causes))
    missing = _NO_OPERATOR.search(text)
    if missing:
        operator = missing.group(1)
        layer = _caller(model, example, operator)
        return f"ONNX has no operator for {operator}" + (f", which {layer} computes" if layer else "")
    fixed = _FIXED_BATCH.search(text)
    if fixed:
        size = fixed.group(1) or fixed.group(2)
        return f"its code fixes the batch to {size}, as by a reshape to that many; use -1 or x.shape[0] there"
    where = _place(causes, model)
    if any(type(cause).__name__ in _ON_VALUES for cause in causes):
        return f"its code depends on the values of a tensor, as by if or float(){where}"
    root = causes[-1]
    return f"{type(root).__name__}: {first_line(root).rstrip('.')}{where}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those behind it; the last is the first that was raised."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _place(causes: list[BaseException], model: nn.Module) -> str:
    """Return the innermost module of the model that was running, but for those of torch, and the line of its code; or nothing."""
    names = {id(module): name for name, module in model.named_modules()}
    for cause in reversed(causes):
        found = ""
        for frame, line in traceback.walk_tb(cause.__traceback__):
            owner = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))  # self
            if isinstance(owner, nn.Module) and id(owner) in names and not _is_of_torch(frame):
                found = f": {_label(names[id(owner)], owner)}, {_code(frame, line)}"
        if found:
            return found
    return ""


def _label(name: str, module: nn.Module) -> str:
    return f"{name or 'the model'} ({type(module).__name__})"


def _is_of_torch(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).split(".")[0] == "torch"


def _code(frame: FrameType, line: int) -> str:
    summary = traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
    return f"line {line}: {summary.line}" if summary.line else f"line {line}"


def _caller(model: nn.Module, example: Any, operator: str) -> str | None:
    """Return the module that computes an operator in a pass on the example."""
    running: list[str] = []

    def make(name: str, module: nn.Module) -> list[Any]:
        label = _label(name, module)
        return [
            module.register_forward_pre_hook(lambda *_: running.append(label)),
            module.register_forward_hook(lambda *_: running.pop() and None),
        ]

    with _Watched(operator.rpartition(".")[2], running) as watched, evaluating(model), hooks(model, make):
        call_on_copy(model, example)
    return watched.found


class _Watched(TorchDispatchMode):
    """A block in which the first call of an operator is noticed, with the module that is running."""

    def __init__(self, operator: str, running: list[str]) -> None:
        super().__init__()
        self._operator = operator
        self._running = running
        self.found: str | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.found is None and self._operator in func.name():
            self.found = self._running[-1] if self._running else None
        return func(*args, **(kwargs or {}))
