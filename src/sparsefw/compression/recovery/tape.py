"""A tape: the operations of one forward pass as data, which can stop before any layer and go on once its weights have changed.

A network is arbitrary Python code, which cannot be stopped halfway; what it does to tensors can. Operations read the weights when
they are run, so those behind the stop see the new ones. What code does with numbers that it reads from tensors is fixed on the
tape: where another number is read, or another shape comes out, the tape is refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from sparsefw.compression.recovery.calibration import run
from sparsefw.compression.structure.decisions import Decisions
from sparsefw.compression.structure.layers import arguments_of, cloned, first_input
from sparsefw.layer_types import BATCH_NORMS

# What reads the numbers of tensors without any operation, so that no tape would notice other ones.
LEAVING = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
CONSTANT = torch.ops.aten.lift_fresh.default  # what torch.tensor(2.0) makes, anew in every pass


@dataclass(frozen=True)
class Value:
    """The number of a tensor that the pass made."""

    number: int


@dataclass(frozen=True)
class Operation:
    """One operation.

    leaves   its arguments, flattened by `structure`: values of the pass, other tensors, anything else
    results  what it gave: a value of this shape, or a number of Python
    unused   the numbers of the values that no later operation needs
    """

    function: Any
    leaves: tuple[Any, ...]
    structure: TreeSpec
    results: tuple[tuple[Value, torch.Size] | Any, ...]
    unused: tuple[int, ...] = ()

    def run(self, values: dict[int, Tensor]) -> None:
        """Put the results among the values; OtherPathError if the code may do something else with them than on the tape."""
        leaves = [values[leaf.number] if isinstance(leaf, Value) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.structure)
        out = args[0].clone() if self.function is CONSTANT else self.function(*args, **kwargs)
        for result, expected in zip(tree_leaves(out), self.results, strict=True):
            if not isinstance(expected, tuple):
                if type(result) is not type(expected) or result != expected:
                    raise OtherPathError
                continue
            value, shape = expected
            if result.shape != shape:
                raise OtherPathError
            values[value.number] = result
        for number in self.unused:
            del values[number]


class OtherPathError(Exception):
    """With these numbers, the code of the network may have run other operations than those on the tape."""


class NoTapeError(Exception):
    """Operations alone do not say what this network computes."""


@dataclass(frozen=True)
class Tape:
    """The operations of a pass up to its last stop.

    operations   in order
    stops        layer -> how many operations come before, and what the layer reads, or gave
    inputs       the numbers of the inputs that are needed
    """

    operations: tuple[Operation, ...]
    stops: Mapping[str, tuple[int, Value | Tensor]]
    inputs: frozenset[int]


class Playback:
    """A pass that a tape repeats on some inputs, and how far it has come."""

    def __init__(self, tape: Tape, inputs: Any) -> None:
        self.tape = tape
        given = enumerate(_tensors(arguments_of(cloned(inputs))))
        self._values = {number: tensor for number, tensor in given if number in tape.inputs}
        self._position = 0

    def until(self, name: str) -> Tensor:
        """Go on to the stop at a layer; return what is there. OtherPathError where the tape does not lead there."""
        if name not in self.tape.stops:
            raise OtherPathError
        position, found = self.tape.stops[name]
        if position < self._position:
            raise OtherPathError
        try:
            with torch.no_grad():
                for operation in self.tape.operations[self._position : position]:
                    operation.run(self._values)
        except Exception as error:  # of an operation that these numbers do not fit
            raise OtherPathError from error
        self._position = position
        tensor = self._values[found.number] if isinstance(found, Value) else found
        return tensor.detach()  # it may be a parameter, such as queries that are learned

    @property
    def bytes(self) -> int:
        """The memory of the values that are still needed; views share it."""
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in self._values.values()}
        return sum(storages.values())


def record(model: nn.Module, layers: Mapping[str, nn.Module], inputs: Any, after: bool) -> Tape:
    """Return the tape of a pass with stops before the first call of each layer, or after it.

    NoTapeError where operations alone do not say what is computed: the network decides by its activations, such as which boxes to
    keep, or writes into its own state.
    """
    decided = Decisions()
    recorder = _Recorder(model, decided, set(layers))

    def reach(name: str, found: Any) -> None:
        recorder.stop(name, found)
        if not recorder.awaited:
            raise _ReachedError

    def recorded(*args: Any, **kwargs: Any) -> None:
        recorder.start((args, kwargs))
        with decided, recorder, _Leaving(recorder):
            model(*args, **kwargs)

    try:
        with stopping_at(layers, after, reach):
            run(recorded, inputs)
    except _ReachedError:
        pass
    except ValueError as error:  # of the network: a whole pass says the same
        raise NoTapeError from error
    return recorder.tape()


class _ReachedError(Exception):
    """The pass has reached all layers of interest."""


@contextlib.contextmanager
def stopping_at(layers: Mapping[str, nn.Module], after: bool, reach: Callable[[str, Any], None]) -> Iterator[None]:
    """Within the block, every call of these layers tells its name and first input, or after it what it gave."""

    def before_call(name: str) -> Any:
        return lambda _, args, kwargs: reach(name, first_input(args, kwargs))

    def after_call(name: str) -> Any:
        return lambda _, __, result: reach(name, result)

    handles: list[Any] = []
    try:
        for name, layer in layers.items():
            if after:
                handles.append(layer.register_forward_hook(after_call(name)))
            else:
                handles.append(layer.register_forward_pre_hook(before_call(name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class _Recorder(TorchDispatchMode):
    """Writes down the operations within the block; inside a block of Decisions, which say what was decided."""

    def __init__(self, model: nn.Module, decided: Decisions, awaited: set[str]) -> None:
        super().__init__()
        self.awaited = awaited
        self._decided = decided
        self._numbers = WeakTensorKeyDictionary()
        self._made = 0
        self._refused = False
        self._operations: list[Operation] = []
        self._stops: dict[str, tuple[int, Value | Tensor]] = {}
        self._choices: set[int] = set()  # the numbers of values that were decided
        # Batch norms get the statistics of the batch before every call, so nothing is lost there.
        state = [
            t
            for module in model.modules()
            for t in (*module._parameters.values(), *module._buffers.values())
            if t is not None and not isinstance(module, BATCH_NORMS)
        ]
        self._state = {t.untyped_storage().data_ptr() for t in state if t.numel()}

    def start(self, arguments: Any) -> None:
        for tensor in _tensors(arguments):
            self._value(tensor)

    def stop(self, name: str, found: Tensor) -> None:
        if name in self.awaited:
            self.awaited.remove(name)
            self._stops[name] = (len(self._operations), self._seen(found))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given, structure = tree_flatten((args, kwargs))
        if func is CONSTANT:
            given[0] = given[0].clone()  # operations in place may follow
        leaves = tuple(self._seen(leaf) for leaf in given)
        if any(isinstance(leaf, Value) and leaf.number in self._choices for leaf in leaves):
            self.refuse()
        if func._schema.is_mutable and any(self._is_state(t) for t in _written(func, args, kwargs)):
            self.refuse()
        out = func(*args, **kwargs)
        results = tuple(self._result(result) for result in tree_leaves(out))
        if self._decided.made:
            self._note_choices(results)
        self._operations.append(Operation(func, leaves, structure, results))
        return out

    def _note_choices(self, results: Iterable[Any]) -> None:
        """Keep in mind what was just decided: nothing may depend on it, because cut networks follow the dense one."""
        self._decided.made.clear()
        for result in results:
            if not isinstance(result, tuple):
                self.refuse()
            self._choices.add(result[0].number)

    def refuse(self) -> NoReturn:
        self._refused = True  # should the network's own code catch the error
        raise NoTapeError

    def _result(self, result: Any) -> Any:
        if not isinstance(result, Tensor):
            return result
        if result.layout != torch.strided or result.is_nested:
            self.refuse()
        return self._value(result), result.shape

    def _value(self, tensor: Tensor) -> Value:
        """Return the value that a tensor is; what an operation in place returns has its number already."""
        if tensor not in self._numbers:
            self._numbers[tensor] = Value(self._made)
            self._made += 1
        return self._numbers[tensor]

    def _seen(self, leaf: Any) -> Any:
        return self._numbers.get(leaf, leaf) if isinstance(leaf, Tensor) else leaf

    def _is_state(self, tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in self._state

    def tape(self) -> Tape:
        """Return what was written down, with the values that each operation is the last to need."""
        if self._refused:
            raise NoTapeError
        end = max((position for position, _ in self._stops.values()), default=0)
        last: dict[int, int] = {}
        for i, operation in enumerate(self._operations[:end]):
            used = (*operation.leaves, *(r[0] for r in operation.results if isinstance(r, tuple)))
            last |= {leaf.number: i for leaf in used if isinstance(leaf, Value)}
        for position, found in self._stops.values():
            if isinstance(found, Value):
                last[found.number] = max(last.get(found.number, 0), position)
        unused: dict[int, list[int]] = {}
        for number, i in last.items():
            unused.setdefault(i, []).append(number)
        operations = [
            Operation(o.function, o.leaves, o.structure, o.results, tuple(unused.get(i, ())))
            for i, o in enumerate(self._operations[:end])
        ]
        return Tape(tuple(operations), self._stops, frozenset(last))


class _Leaving(TorchFunctionMode):
    """Within the block, a tape is refused where numbers leave torch."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in LEAVING:
            self._recorder.refuse()
        return func(*args, **(kwargs or {}))


def _written(func: Callable[..., Any], args: Any, kwargs: Any) -> list[Tensor]:
    """Return the tensors that an operation writes into."""
    schema = func._schema.arguments  # type: ignore[attr-defined]
    by_name = {argument.name: value for argument, value in zip(schema, args, strict=False)} | kwargs
    written = [argument.name for argument in schema if argument.alias_info is not None and argument.alias_info.is_write]
    return [t for name in written for t in _tensors(by_name.get(name))]
