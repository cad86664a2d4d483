# SPDX-License-Identifier: Apache-2.0
"""Arrays of MXNet as memory that is sent, and back."""
from __future__ import annotations

import collections
import ctypes
import threading
from typing import Any, Deque, Dict, List, Sequence, Tuple

import mxnet as mx
import numpy as np
from mxnet.base import _LIB, check_call

from ..._array import dtype_of
from ..._horovod.words import (Average, ReduceOp, Sum, words_of as
                               words_of_array)

# Element type in which sums are made, without loss of range or precision.
_WIDER = {"float16": "float32", "uint8": "int32", "int8": "int32",
          "bool": "int32"}

# int32: element type of raw words.
WORD = dtype_of("int32")


def check(array: Any) -> None:
    """Raises for an object that cannot be sent."""
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError("an NDArray is wanted, not %s" % type(array).__name__)
    if array.stype != "default":
        raise TypeError("Horovod's interface takes dense arrays, and this one "
                        "is of type %s: .tostype('default') makes one" %
                        array.stype)
    if np.dtype(array.dtype).name not in dtype_names():
        raise TypeError("arrays of %s are not supported" %
                        np.dtype(array.dtype))


def dtype_names() -> Sequence[str]:
    """Element types of arrays that can be sent."""
    return (*_WIDER, "float32", "float64", "int32", "int64")


def words_of(array: Any, free_rows: bool = False) -> str:
    """Type and shape, for comparison with other ranks."""
    return words_of_array(np.dtype(array.dtype).name, array.shape, free_rows)


def address(array: np.ndarray) -> int:
    """Address of the first element."""
    return int(array.ctypes.data)


# Element types of arrays that from_numpy() refuses.
_NOT_OF_NUMPY = ("int8", "bool")


def _view(array: Any) -> np.ndarray:
    """The memory of an array of MXNet, which must stay alive."""
    array.wait_to_read()
    at = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(at)))
    dtype = np.dtype(array.dtype)
    assert at.value is not None
    memory = (ctypes.c_uint8 * (array.size * dtype.itemsize)).from_address(
        at.value)
    return np.frombuffer(memory, dtype).reshape(array.shape)


class Room:
    """Memory to which MXNet copies an array, and from which it copies the
    result."""

    def __init__(self, shape: Tuple[int, ...], dtype: Any) -> None:
        self.data = np.zeros(shape, dtype)
        if self.data.size == 0:
            self.nd = mx.nd.zeros((1,))  # For the order of operations alone.
        elif self.data.dtype.name in _NOT_OF_NUMPY:
            self.nd = mx.nd.zeros(shape, dtype=dtype)
            self.data = _view(self.nd)
        else:
            # from_numpy() makes its argument read-only, so it gets a view.
            self.nd = mx.nd.from_numpy(self.data.view())
        self._users = 0

    def read(self, array: Any) -> None:
        """Copies an array to this memory, in MXNet's engine."""
        self._users = 2
        if self.data.size > 0:
            array.copyto(self.nd)

    def write(self, array: Any) -> None:
        """Copies this memory to an array, in MXNet's engine."""
        if self.data.size > 0:
            self.nd.copyto(array)

    def leave(self) -> None:
        """Called by the caller of the collective after all copies, and at its
        successful end. Then the memory can serve another array."""
        with _lock:
            self._users -= 1
            if self._users == 0:
                _free.setdefault(_key(self.data.shape, self.data.dtype),
                                 collections.deque()).append(self)


_lock = threading.Lock()
_free: Dict[Any, Deque[Room]] = {}


def _key(shape: Sequence[int], dtype: Any) -> Any:
    return tuple(shape), np.dtype(dtype)


def room_of(array: Any) -> Room:
    """A room with a copy of an array."""
    check(array)
    with _lock:
        free = _free.get(_key(array.shape, array.dtype))
        room = free.popleft() if free else None
    if room is None:
        room = Room(tuple(array.shape), array.dtype)
    room.read(array)
    return room


def new_array(data: np.ndarray, like: Any) -> Any:
    """An array of MXNet on the device of another one."""
    with mx.util.np_shape(data.size == 0 or mx.util.is_np_shape()):
        return mx.nd.array(data, ctx=like.context, dtype=data.dtype)


# --------------------------------------------------------------------- sums


def _scaled(array: np.ndarray, factor: float) -> np.ndarray:
    """Whole numbers times a factor, rounded towards zero."""
    return (array.astype(np.float64) * factor).astype(array.dtype)


class Sums:
    """Arrays of one type as they are summed, in place."""

    def __init__(self, datas: Sequence[np.ndarray], op: ReduceOp, pre: float,
                 post: float, size: int) -> None:
        if datas[0].dtype.name == "bool" and \
                (op is Average or pre != 1 or post != 1):
            raise ValueError("arrays of bool have no mean, and no scale: use "
                             "op=Sum, which is a logical or")
        self._datas = datas
        self.op = op
        # Factors that this rank applies to its arrays and to the results.
        self._before = self._after = 1.0
        wide = _WIDER.get(datas[0].dtype.name)
        whole = np.dtype(wide or datas[0].dtype).kind != "f"
        if whole and (pre != 1 or post != 1):
            # The library scales real numbers only.
            if op is Average:
                post, self.op = post / size, Sum
            self._before, self._after, pre, post = pre, post, 1.0, 1.0
        self.pre, self.post = pre, post
        self._wide = wide
        self.arrays: List[np.ndarray] = []

    def begin(self) -> int:
        """Makes the arrays to be summed. Returns the number of their type."""
        self.arrays = [d if self._wide is None else d.astype(self._wide)
                       for d in self._datas]
        if self._before != 1:
            self.arrays = [_scaled(a, self._before) for a in self.arrays]
        return dtype_of(self.arrays[0].dtype.name)

    def finish(self, result: np.ndarray) -> np.ndarray:
        """A sum in the type of the arrays."""
        if self._after != 1:
            result = _scaled(result, self._after)
        return result.astype(self._datas[0].dtype, copy=False)

    def end(self) -> None:
        """Writes the sums to the arrays."""
        for a, d in zip(self.arrays, self._datas):
            if self._after != 1 or a is not d:
                d[...] = self.finish(a)


# ---------------------------------------------------------------- raw bytes


class Raw:
    """Rows of raw bytes, padded to whole words."""

    def __init__(self, array: np.ndarray) -> None:
        """Of an array with a first dimension."""
        self._shape, self._dtype = array.shape, array.dtype
        self.rows = array.shape[0]
        self._width = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        self.words = max((self._width + 3) // 4, 1)
        self.padded = self._width != 4 * self.words
        if not self.padded:
            self.data = array
        else:
            self.data = np.zeros((self.rows, 4 * self.words), np.uint8)
            self.data[:, :self._width] = array.reshape(-1).view(
                np.uint8).reshape(self.rows, self._width)

    def array(self, data: Any, rows: int) -> np.ndarray:
        """A copy of received rows, of the type of the array."""
        padded = np.frombuffer(data, np.uint8).reshape(rows, 4 * self.words)
        return padded[:, :self._width].copy().reshape(-1).view(
            self._dtype).reshape((rows, *self._shape[1:]))


def result_rows(e: Any, op: int, raw: Raw) -> Tuple[np.ndarray, List[int]]:
    """The rows that an ended operation has brought, and the number of them
    from each rank."""
    counts = e.starter.rows(op, e.size)
    at, size = e.starter.result(op)
    data: Any = b""
    if size > 0:
        data = (ctypes.c_uint8 * size).from_address(at)
    return raw.array(data, sum(counts)), counts

