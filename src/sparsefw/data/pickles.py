"""CIFAR's pickles, read without running anything that is in them.

A pickle is a program: it may call whatever it names. Here it can name five things, and what it gets are stand-ins of our
own that keep the arguments: an array is built from them afterwards, by us. Everything else is refused.
"""

from __future__ import annotations

import io
import math
import pickle
from typing import Any, NoReturn, final

import numpy as np

from sparsefw.data.errors import DataError


@final
class _Type:
    """Stands for numpy.dtype; the state, which holds the byte order, does not matter for single bytes."""

    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        pass


@final
class _Array:
    """Stands for numpy.ndarray, and for the function that makes an empty one to be filled by its state."""

    def __init__(self, *_: Any) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def built(self) -> np.ndarray:
        _, shape, kind, by_column, data = self.state
        if not isinstance(kind, _Type) or kind.code not in ("u1", "|u1", "uint8"):
            raise ValueError("an array that is not of bytes (uint8)")
        if isinstance(data, str):
            data = data.encode("latin1")
        if not isinstance(data, bytes) or len(data) != math.prod(shape):
            raise ValueError("an array whose data do not fit its shape")
        return np.frombuffer(bytearray(data), np.uint8).reshape(shape, order="F" if by_column else "C")


@final
class _Bytes:
    """Stands for _codecs.encode, by which Python 3 writes bytes in the protocol of Python 2."""

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


def read_pickle(data: bytes, where: str) -> dict[str, Any]:
    """The dictionary in a pickle, of arrays of bytes, strings, numbers and lists of these."""
    try:
        content = _Unpickler(io.BytesIO(data), encoding="bytes").load()
        if not isinstance(content, dict):
            raise ValueError(f"a {type(content).__name__} instead of a dictionary")
        return {_text(key): _plain(value) for key, value in content.items()}
    except Exception as error:  # whatever a hostile or damaged file can lead to
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{where} is refused: {reason}; CIFAR's files hold arrays, strings and numbers only") from None


def _plain(value: Any) -> Any:
    if isinstance(value, _Array):
        return value.built()
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, bytes):
        return _text(value)
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"it holds a {type(value).__name__.strip('_')}")


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
