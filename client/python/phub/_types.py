"""Element types: phub's numbers, numpy's types, and arrays in phub's memory."""

from __future__ import annotations

import ctypes
import importlib
import math
from typing import Any, Optional, Sequence, Union

import numpy as np
import numpy.typing as npt

from . import _library
from ._errors import InvalidArgument

Array = npt.NDArray[Any]
Shape = Union[int, Sequence[int]]

_BFLOAT16 = 3
try:
    bfloat16: Any = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    _bfloat16_storage = bfloat16
except ImportError:
    # numpy has no such type: arrays have the bits, as uint16.
    bfloat16 = "bfloat16"
    _bfloat16_storage = np.dtype(np.uint16)

_NUMBERS: dict[np.dtype[Any], int] = {
    np.dtype(np.float32): 1,
    np.dtype(np.float16): 2,
    np.dtype(np.float64): 4,
    np.dtype(np.int32): 5,
    np.dtype(np.int64): 6,
    np.dtype(np.uint8): 7,
}
_STORAGE: dict[int, np.dtype[Any]] = {number: dtype for dtype, number in _NUMBERS.items()}
_STORAGE[_BFLOAT16] = _bfloat16_storage


def number_of(dtype: Any) -> int:
    """phub's number of an element type."""
    if dtype is bfloat16 or (isinstance(dtype, str) and dtype == "bfloat16"):
        return _BFLOAT16
    if not isinstance(bfloat16, str) and np.dtype(dtype) == bfloat16:
        return _BFLOAT16
    number = _NUMBERS.get(np.dtype(dtype))
    if number is None:
        raise InvalidArgument(
            f"phub has no element type {np.dtype(dtype)}; it has float32, float16, bfloat16, "
            "float64, int32, int64 and uint8"
        )
    return number


def shape_of(shape: Shape) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(int(n) for n in shape)


def count_of(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def view(
    elements: _library.Elements, shape: tuple[int, ...], owner: object, writable: bool
) -> Array:
    """An array in phub's memory, which keeps `owner` alive."""
    storage = _STORAGE[elements.type]
    if elements.count == 0:  # this rank has no part of the key
        return np.empty(shape, storage)
    memory = (ctypes.c_char * (elements.count * storage.itemsize)).from_address(elements.data)
    setattr(memory, "_owner", owner)
    array: Array = np.frombuffer(memory, dtype=storage).reshape(shape)
    array.flags.writeable = writable
    return array


def lend(
    array: Any,
    what: str,
    number: int,
    shape: tuple[int, ...],
    writable: bool,
    owner: str = "key",
    **place: Any,
) -> _library.Elements:
    """phub's view of the caller's array, which must stay alive while phub uses it."""
    if not isinstance(array, np.ndarray):
        raise InvalidArgument(
            f"{what} of {owner} {place['key']} must be a numpy array, not {type(array).__name__}",
            **place,
        )
    problem: Optional[str] = None
    if array.dtype != _STORAGE[number]:
        problem = f"have the type {array.dtype}, but need {_STORAGE[number]}"
    elif array.size != count_of(shape):
        problem = f"have the shape {array.shape}, but need {shape}"
    elif not array.flags.c_contiguous:
        problem = "are not contiguous; pass numpy.ascontiguousarray(...)"
    elif writable and not array.flags.writeable:
        problem = "are read-only"
    if problem is not None:
        raise InvalidArgument(f"the {what} of {owner} {place['key']} {problem}", **place)
    return _library.Elements(data=array.ctypes.data, count=array.size, type=number)
