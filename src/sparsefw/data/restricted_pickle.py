"""Read the pickles of CIFAR without running code from them.

A pickle is a program that may call any function it names. Here it can name only the five functions and types that CIFAR's
files use, and gets stand-ins that store their arguments. The arrays are built from these arguments afterwards.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any, NoReturn, final

import numpy as np

from sparsefw.data.errors import DataError
from sparsefw.text import one_line


@final
class _Type:
    """Stands in for numpy.dtype. Its state, which holds the byte order, does not matter for single bytes."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        pass


@final
class _Array:
    """Stands in for numpy.ndarray, and for the function that makes an empty array whose state is set later."""

    def __init__(self, *_: Any) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self) -> np.ndarray:
        _, shape, dtype, by_column, data = self.state
        if not isinstance(dtype, _Type) or dtype.code not in ("u1", "|u1", "uint8"):
            raise ValueError("an array that is not of bytes (uint8)")
        if isinstance(data, str):
            data = data.encode("latin1")
        if not isinstance(data, bytes) or len(data) != math.prod(shape):
            raise ValueError("an array whose data do not fit its shape")
        return np.frombuffer(bytearray(data), np.uint8).reshape(shape, order="F" if by_column else "C")


@final
class _Bytes:
    """Stands in for _codecs.encode, by which Python 3 writes bytes in the protocol of Python 2."""

    def __new__(cls, text: str, encoding: str) -> Any:
        return text.encode("latin1")

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("bytes have no state")


_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Bytes,
}


@final
class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type:
        stand_in = _STAND_INS.get((module, name))
        if stand_in is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return stand_in


def read_pickle(data: bytes, origin: str) -> dict[str, Any]:
    """Return the dictionary in a pickle, of arrays of bytes, text, numbers and lists of these.

    Raises:
        DataError: the pickle is damaged, or contains anything else.
    """
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} instead of a dictionary")
        return {_text(key): _plain(value) for key, value in content.items()}
    except Exception as error:  # a hostile or damaged file can raise any
        raise DataError(
            f"{origin} is refused: {one_line(error)}; CIFAR's files hold arrays, strings and numbers only"
        ) from None


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.build()
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, bytes):
        return _text(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"it holds a {type(value).__name__.strip('_')}")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
