"""Read the pickles of CIFAR without running code from them.

A pickle is a program that may call any function it names, and that can ask for gigabytes in a few bytes. Here its instructions
are followed one by one. Only those of arrays and plain values are known: names stand for records, and nothing is called.
"""

from __future__ import annotations

import math
import pickletools
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.scalars import is_int
from sparsefw.text import one_line


class _Name(Enum):
    """What a pickle may call, or rather say that it calls."""

    ARRAY = "an empty array"
    TYPE = "a type of numbers"
    BYTES = "bytes of text, as Python 3 writes them in the protocol of Python 2"


_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"): _Name.ARRAY,
    ("numpy._core.multiarray", "_reconstruct"): _Name.ARRAY,
    ("numpy", "ndarray"): _Name.ARRAY,
    ("numpy", "dtype"): _Name.TYPE,
    ("_codecs", "encode"): _Name.BYTES,
}
_VALUES = frozenset(
    {"INT", "LONG", "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "FLOAT", "BINFLOAT"}
    | {"STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
    | {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
)
_LONGEST_REASON = 200  # characters; what a pickle asks for may be longer
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


@dataclass
class _Type:
    """Stands for numpy.dtype. Its state, which holds the byte order, does not matter for single bytes."""

    code: str


@dataclass
class _Array:
    """Stands for numpy.ndarray: an empty array, whose state is set later."""

    state: Any = None

    def build(self) -> np.ndarray:
        _, shape, dtype, by_column, data = self.state
        if not isinstance(dtype, _Type) or dtype.code not in ("u1", "|u1", "uint8"):
            raise ValueError("an array that is not of bytes (uint8)")
        if isinstance(data, str):
            data = data.encode("latin1")
        if not isinstance(shape, tuple) or not all(map(is_int, shape)):
            raise ValueError("an array whose shape is none")
        if not isinstance(data, bytes) or len(data) != math.prod(shape):
            raise ValueError("an array whose data do not fit its shape")
        return np.frombuffer(bytearray(data), np.uint8).reshape(shape, order="F" if by_column else "C")


class _Reader:
    """Follows the instructions of one pickle."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._stack: list[Any] = []
        self._below: list[list[Any]] = []  # a stack for every mark that was set
        self._memo: dict[int, Any] = {}
        self._unused = len(data)  # bytes that texts which become bytes may still have: each is in the file once
        self._plain: dict[int, Any] = {}

    def value(self) -> Any:
        """Return what the pickle describes, with _Array, _Type and names in the place of everything that it would call."""
        for instruction, argument, _ in pickletools.genops(self._data):
            name = instruction.name
            if name == "STOP":
                return self._stack.pop()
            if name in _VALUES:
                self._stack.append(argument)
            elif name in _CONSTANTS:
                self._stack.append(_CONSTANTS[name])
            else:
                self._follow(name, argument)
        raise ValueError("it has no end")

    def _follow(self, name: str, argument: Any) -> None:
        stack = self._stack
        match name:
            case "PROTO" | "FRAME":
                pass
            case "MARK":
                self._below.append(stack)
                self._stack = []
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "MEMOIZE":
                self._memo[len(self._memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "LIST":
                entries = self._popped_mark()
                self._stack.append(entries)
            case "TUPLE":
                entries = self._popped_mark()
                self._stack.append(tuple(entries))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = int(name[-1])
                stack[-count:] = [tuple(stack[-count:])]
            case "DICT":
                entries = self._popped_mark()
                self._stack.append({})
                self._set_items(entries)
            case "APPEND":
                self._append([stack.pop()])
            case "APPENDS":
                self._append(self._popped_mark())
            case "SETITEM":
                entries = stack[-2:]
                del stack[-2:]
                self._set_items(entries)
            case "SETITEMS":
                self._set_items(self._popped_mark())
            case "GLOBAL":
                self._push_name(*argument.split(" ", 1))
            case "STACK_GLOBAL":
                attribute = stack.pop()
                self._push_name(stack.pop(), attribute)
            case "REDUCE":
                arguments = stack.pop()
                stack.append(self._called(stack.pop(), arguments))
            case "BUILD":
                state = stack.pop()
                if isinstance(stack[-1], _Array):
                    stack[-1].state = state
                elif not isinstance(stack[-1], _Type):
                    raise ValueError(f"it sets the state of a {_word(stack[-1])}")
            case _:
                raise ValueError(f"it has the instruction {name}")

    def _popped_mark(self) -> list[Any]:
        """Return everything above the last mark, and remove it with the mark."""
        above = self._stack
        self._stack = self._below.pop()
        return above

    def _append(self, entries: list[Any]) -> None:
        if not isinstance(self._stack[-1], list):
            raise ValueError(f"it appends to a {_word(self._stack[-1])}")
        self._stack[-1].extend(entries)

    def _set_items(self, entries: list[Any]) -> None:
        table = self._stack[-1]
        if not isinstance(table, dict):
            raise ValueError(f"it sets an item of a {_word(table)}")
        for key, value in zip(entries[::2], entries[1::2], strict=True):
            if not isinstance(key, str | bytes):  # tuples of tuples take for ever to be hashed
                raise ValueError(f"it has a {_word(key)} as a key")
            table[_text(key)] = value

    def _push_name(self, module: Any, attribute: Any) -> None:
        if not isinstance(module, str) or not isinstance(attribute, str):
            raise ValueError(f"it asks for a {_word(attribute)}")
        if (module, attribute) not in _NAMES:
            raise ValueError(f"it asks for {module}.{attribute}")
        self._stack.append(_NAMES[module, attribute])

    def _called(self, name: Any, arguments: Any) -> Any:
        if name is _Name.ARRAY:
            return _Array()
        text = arguments[0]
        if not isinstance(name, _Name) or not isinstance(text, str | bytes):
            raise ValueError(f"it calls a {_word(name)} of a {_word(text)}")
        text = _text(text)
        if name is _Name.TYPE:
            return _Type(text)
        self._unused -= len(text)
        if self._unused < 0:
            raise ValueError("it repeats its bytes")
        return text.encode("latin1")

    def plain(self, value: Any) -> Any:
        """Return an array, text, a number or a list of these; the same object for the same one, however often it occurs."""
        if value is None or isinstance(value, str | int | float):
            return value
        if id(value) not in self._plain:
            self._plain[id(value)] = self._converted(value)
        return self._plain[id(value)]

    def _converted(self, value: Any) -> Any:
        if isinstance(value, _Array):
            return value.build()
        if isinstance(value, list):
            if any(isinstance(entry, list) for entry in value):
                raise ValueError("it holds a list of lists")
            return [self.plain(entry) for entry in value]
        if isinstance(value, bytes):
            return _text(value)
        raise ValueError(f"it holds a {_word(value)}")


def read_pickle(data: bytes, origin: str) -> dict[str, Any]:
    """Return the dictionary in a pickle, of arrays of bytes, text, numbers and lists of these.

    Raises:
        DataError: the pickle is damaged, or contains anything else.
    """
    try:
        reader = _Reader(data)
        content = reader.value()
        if not isinstance(content, dict):
            raise ValueError(f"a {_word(content)} instead of a dictionary")
        return {key: reader.plain(value) for key, value in content.items()}
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise DataError(
            f"{origin} is refused: {one_line(error)[:_LONGEST_REASON]}; CIFAR's files hold arrays, strings and numbers only"
        ) from None


def _word(value: Any) -> str:
    return type(value).__name__.strip("_")


def _text(value: str | bytes) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else value
