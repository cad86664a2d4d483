# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of a GPU: objects that speak DLPack or
__cuda_array_interface__ and lie there. Nothing here calls CUDA."""
from __future__ import annotations

import ctypes
from ctypes import (POINTER, Structure, c_char_p, c_int32, c_int64, c_uint8,
                    c_uint16, c_uint64, c_void_p, py_object)
from typing import Any, Callable, NamedTuple, Optional, Tuple

# Kinds of devices of DLPack: CUDA, and CUDA's managed memory.
_CUDA = (2, 13)
# Kinds of elements of DLPack: letters of _array._DTYPES.
_CODES = {0: "i", 1: "u", 2: "f", 4: "u", 6: "?"}
_LEGACY_STREAM = 1

# psc_device_stream() of a client, by ordinal.
Entrance = Callable[[int], int]


class Place(NamedTuple):
    """The GPU of arrays and the stream that they are in order with, as in
    struct psc_device. `complete`: results are there when the operation has
    ended, whatever stream reads them."""

    ordinal: int
    stream: int
    complete: bool


class Memory(NamedTuple):
    """An array of a GPU. `owner` keeps it alive. `kind` and `itemsize` are
    those of an element, as in _array._DTYPES."""

    address: int
    kind: str
    itemsize: int
    shape: Tuple[int, ...]
    place: Place
    owner: Any


class _Tensor(Structure):
    """DLTensor of dlpack.h, the beginning of a DLManagedTensor."""

    _fields_ = [("data", c_void_p), ("device_type", c_int32),
                ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes = [py_object, c_char_p]
_pointer.restype = c_void_p


def _is_contiguous(shape: Tuple[int, ...], steps: Any, unit: int) -> bool:
    """True if an array with these strides, in units of `unit` elements or
    bytes each, has no gaps and is in row-major order."""
    expected = unit
    for n, step in zip(reversed(shape), reversed(steps)):
        if n != 1 and step != expected:
            return 0 in shape
        expected *= n
    return True


def _check(contiguous: bool, readonly: bool, writable: bool) -> None:
    if not contiguous or (writable and readonly):
        raise TypeError("an array of a GPU must be contiguous, and to write to "
                        "it, writable")


def _of_torch(obj: Any, writable: bool) -> Memory:
    import torch  # pylint: disable=import-outside-toplevel
    _check(obj.is_contiguous(), False, writable)
    name = str(obj.dtype)[len("torch."):]
    kind = {"bfloat16": "u", "bool": "?"}.get(name, name[0])
    return Memory(obj.data_ptr(), kind, obj.element_size(), tuple(obj.shape),
                  Place(obj.device.index,
                        torch.cuda.current_stream(obj.device).cuda_stream,
                        False), obj)


def _of_interface(obj: Any, about: Any, writable: bool) -> Memory:
    """Of __cuda_array_interface__. Without a stream its data are complete; the
    default stream is behind whatever else uses it."""
    shape = tuple(about["shape"])
    address, readonly = about["data"]
    kind, itemsize = about["typestr"][1], int(about["typestr"][2:])
    kind = {"b": "?", "V": "u"}.get(kind, kind)
    strides = about.get("strides")
    _check(strides is None or _is_contiguous(shape, strides, itemsize),
           readonly, writable)
    stream = about.get("stream")
    return Memory(address or 0, kind, itemsize, shape,
                  Place(-1, _LEGACY_STREAM if stream is None else stream,
                        stream is None), obj)


def _of_dlpack(obj: Any, ordinal: int, writable: bool,
               entrance: Entrance) -> Memory:
    stream = entrance(ordinal)
    capsule = obj.__dlpack__(stream=stream)
    # Until it is renamed the capsule owns the tensor, and frees it.
    t = _Tensor.from_address(_pointer(capsule, b"dltensor") or 0)
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = None if not t.strides else [t.strides[i] for i in range(t.ndim)]
    _check(strides is None or _is_contiguous(shape, strides, 1), False,
           writable)
    if t.lanes != 1:
        raise TypeError("vectors of %d elements are not supported" % t.lanes)
    return Memory((t.data or 0) + t.byte_offset, _CODES.get(t.code, "V"),
                  t.bits // 8, shape, Place(ordinal, stream, True),
                  (obj, capsule))


class DeviceArray:
    """Memory of a GPU that KVStore.alloc_device() has made. CuPy, torch and
    others make arrays of it, which keep it alive, by
    `__cuda_array_interface__`."""

    def __init__(self, address: int, shape: Tuple[int, ...], typestr: str
                 ) -> None:
        self._address = address
        self._typestr = typestr
        self.shape = shape

    @property
    def __cuda_array_interface__(self) -> Any:
        return {"shape": self.shape, "typestr": self._typestr,
                "data": (self._address, False), "version": 3}


def find(obj: Any, writable: bool,
         entrance: Optional[Entrance]) -> Optional[Memory]:
    """The memory of an array of a GPU, or None for any other object."""
    if getattr(obj, "is_cuda", False) is True and hasattr(obj, "data_ptr"):
        return _of_torch(obj, writable)
    about = getattr(obj, "__cuda_array_interface__", None)
    if about is not None:
        return _of_interface(obj, about, writable)
    device = getattr(obj, "__dlpack_device__", None)
    if device is None:
        return None
    kind, ordinal = device()
    if int(kind) not in _CUDA:
        return None
    if entrance is None:
        raise TypeError("an array in the memory of the host is wanted, not one "
                        "of a GPU")
    return _of_dlpack(obj, int(ordinal), writable, entrance)
