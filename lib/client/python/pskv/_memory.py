# SPDX-License-Identifier: Apache-2.0
"""Arrays in memory that the agent reads and writes in place."""
from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_void_p
from typing import Any, Optional, Sequence, Tuple, Union

from . import _lib
from ._array import Array, dtype_of, dtype_size, new_array, typestr
from ._client import Client
from ._gpu import DeviceArray

Shape = Union[int, Sequence[int]]


def _layout(shape: Shape, dtype: Any) -> Tuple[Tuple[int, ...], int, int]:
    """Dimensions, number of the element type, and bytes of a new array."""
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    number = dtype_of(dtype)
    size = dtype_size(number)
    for d in dims:
        size *= d
    if size <= 0:
        raise ValueError("the array would have no elements")
    return dims, number, size


class Registration:
    """An array of KVStore.register(). `shared`: operations use it in place;
    else `why` says why they copy it."""

    def __init__(self, store: "Memory", address: int,
                 why: Optional[str]) -> None:
        self._store = store
        self._address = address
        self.shared = why is None
        self.why = why

    def unregister(self) -> None:
        """Forgets the array, which may be unmapped then. An Error if an open
        operation uses it."""
        self._store._unregister(self._address)

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.unregister()


class Memory(Client):
    """The calls of a store about memory."""

    def empty(self, shape: Shape, dtype: Any = "float32") -> Any:
        """An array in memory shared with the agent, so that pushes need no
        copy. A NumPy array, or a memoryview without NumPy."""
        dims, number, size = _layout(shape, dtype)
        self._collect()
        data = c_void_p()
        self._check(self._lib.psc_alloc(self._open(), size, byref(data)))
        assert data.value is not None
        memory = (ctypes.c_char * size).from_address(data.value)
        self._own(memory, data.value, self._lib.psc_free)
        return new_array(dims, number, memory)

    def alloc_device(self, shape: Shape, dtype: Any = "float32",
                     device: int = 0) -> DeviceArray:
        """Memory of a GPU that the agent of the node reads and writes in place
        (psc_alloc_device()). `shape` is a positive int or a sequence of them,
        `dtype` as for empty(), 'bfloat16' as uint16, and `device` CUDA's
        ordinal in this process. The contents are undefined.

        The result is for other libraries: cupy.asarray(a), or
        torch.as_tensor(a, device="cuda"), share the memory and keep `a` alive.
        It is freed at a later call of the store, once nothing refers to it and
        no operation uses it; work on it must have ended when the last
        reference goes. It stays valid after close().

        ValueError: no elements; TypeError: no such dtype; Error: no driver, no
        such GPU, or not enough memory. An agent that cannot map it is no error:
        operations copy."""
        dims, number, size = _layout(shape, dtype)
        self._collect()
        data = c_void_p()
        self._check(self._lib.psc_alloc_device(self._open(), device, size,
                                               byref(data)))
        assert data.value is not None
        array = DeviceArray(data.value, dims, typestr(number))
        self._own(array, data.value, self._lib.psc_free_device)
        return array

    def register(self, array: Any, *, must_share: bool = False,
                 keep_seals: bool = False) -> "Registration":
        """Registers a contiguous, writable array of the program, so that
        operations use it, and views of it, without a copy if it lies in a
        shared memfd: numpy.frombuffer(mmap.mmap(os.memfd_create(...), n)).
        The memfd gets seals against changes of its size, unless
        `keep_seals`. Other memory is copied, or an Error with `must_share`.
        Arrays that are used in place must not change until their operations
        have ended. The store keeps the array until unregister()."""
        pinned = Array(array, True)
        flags = (_lib.BUF_KEEP_SEALS if keep_seals else 0) | \
            (_lib.BUF_MUST_SHARE if must_share else 0)
        state = c_int()
        self._check(self._lib.psc_buf_register(
            self._open(), pinned.address, pinned.nbytes, flags, byref(state)))
        self._registered[pinned.address] = pinned
        why = None
        if state.value == 0:
            text = ctypes.create_string_buffer(_lib.TEXT_MAX)
            self._lib.psc_last_detail(self._c, text, len(text))
            why = text.value.decode(errors="replace")
        return Registration(self, pinned.address, why)

    def _unregister(self, address: int) -> None:
        if address in self._registered and self._alive():
            self._check(self._lib.psc_buf_unregister(self._c, address))
            self._registered.pop(address).release()
