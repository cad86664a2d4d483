# SPDX-License-Identifier: Apache-2.0
"""Arrays of the caller: the address of any object with the buffer protocol, or
of an array of a GPU."""
from __future__ import annotations

import ctypes
import struct
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_ssize_t, \
    c_void_p, py_object
from typing import Any, Optional, Sequence, Tuple

from . import _gpu, _lib

# Numbers of psclient.h, by kind and size of the element. NumPy has no
# bfloat16: its bits are passed as uint16.
_DTYPES = {("f", 4): 0, ("f", 8): 1, ("f", 2): 2, ("u", 1): 3, ("i", 4): 4,
           ("i", 1): 5, ("i", 8): 6, ("?", 1): 7, ("u", 2): 12}
_SIZES = {0: 4, 1: 8, 2: 2, 3: 1, 4: 4, 5: 1, 6: 8, 7: 1, 12: 2}
_FORMATS = {0: "f", 1: "d", 2: "e", 3: "B", 4: "i", 5: "b", 6: "q", 7: "?",
            12: "H"}
_NAMES = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4,
          "int8": 5, "int64": 6, "bool": 7, "bfloat16": 12}
_KINDS = {"e": "f", "f": "f", "d": "f", "b": "i", "i": "i", "l": "i",
          "q": "i", "n": "i", "B": "u", "H": "u", "?": "?"}


def dtype_of(name: Any) -> int:
    """The number of an element type given as 'float32' or numpy.float32."""
    text = getattr(name, "name", None) or getattr(name, "__name__", None)
    if text is None:
        text = str(name)
    if text not in _NAMES:
        raise TypeError("no element type %r; there are %s" %
                        (name, ", ".join(_NAMES)))
    return _NAMES[text]


def dtype_size(dtype: int) -> int:
    """Bytes of an element."""
    return _SIZES[dtype]


def dtype_format(dtype: int) -> str:
    """Format letter of an element type, in the struct module."""
    return _FORMATS[dtype]


def dtype_name(dtype: int) -> str:
    """Name of an element type."""
    return next(name for name, n in _NAMES.items() if n == dtype)


def typestr(dtype: int) -> str:
    """Its name in the array interfaces of NumPy and CUDA."""
    kind = next(kind for (kind, _), n in _DTYPES.items() if n == dtype)
    size = _SIZES[dtype]
    return "%s%s%d" % ("|" if size == 1 else "<", "b" if kind == "?" else kind,
                       size)


def numpy_name(dtype: int) -> str:
    """Name of the NumPy type that holds it."""
    name = dtype_name(dtype)
    return "uint16" if name == "bfloat16" else name


class _PyBuffer(Structure):
    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", POINTER(c_ssize_t)),
        ("strides", POINTER(c_ssize_t)),
        ("suboffsets", POINTER(c_ssize_t)),
        ("internal", c_void_p),
    ]


# PyBUF_FORMAT | PyBUF_ND: with shape, elements contiguous.
_CONTIGUOUS = 0x0004 | 0x0008
_WRITABLE = 0x0001

_get = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes = [py_object, POINTER(_PyBuffer), c_int]
_get.restype = c_int
_release = ctypes.pythonapi.PyBuffer_Release
_release.argtypes = [POINTER(_PyBuffer)]
_release.restype = None


def _kind(fmt: bytes, itemsize: int) -> Optional[int]:
    letters = fmt.decode().lstrip("@=")
    # Native order: the client runs on little-endian hosts only.
    if letters[:1] == "<":
        letters = letters[1:]
    return _DTYPES.get((_KINDS.get(letters, ""), itemsize))


def _contiguous(obj: Any) -> Any:
    """A contiguous copy."""
    view: Any = memoryview(obj)
    if view.ndim == 0:
        return view
    copy: Any = memoryview(view.tobytes())
    return copy.cast(view.format.lstrip("@=<"), list(view.shape))


def _check_is_array(obj: Any) -> None:
    try:
        memoryview(obj).release()
    except TypeError:
        raise TypeError(
            "an array is wanted, as of NumPy or with the buffer protocol, not "
            "the %s %.60r" % (type(obj).__name__, obj)) from None
    except (BufferError, ValueError):
        pass  # An array that must be copied, or of an unknown type.


class Array:
    """Memory of an object, which stays alive until release(). `place`: the GPU
    that it belongs to, or None. With an `entrance` an array may be on one."""

    __slots__ = ("_view", "_owner", "address", "count", "dtype", "nbytes",
                 "place", "shape")

    def __init__(self, obj: Any, writable: bool,
                 entrance: Optional[_gpu.Entrance] = None) -> None:
        self._view: Optional[_PyBuffer] = None
        self._owner: Any = None
        self.place: Optional[_gpu.Place] = None
        memory = _gpu.find(obj, writable, entrance)
        if memory is not None:
            self._use(memory, entrance)
            return
        if hasattr(obj, "detach") and hasattr(obj, "numpy"):
            obj = obj.detach()  # A torch tensor: the same memory.
            if str(obj.dtype) == "torch.bfloat16":
                import torch  # pylint: disable=import-outside-toplevel
                obj = obj.view(torch.int16).numpy().view("uint16")
            else:
                obj = obj.numpy()
        view = _PyBuffer()
        _check_is_array(obj)
        try:
            _get(obj, byref(view), _CONTIGUOUS | (_WRITABLE if writable
                                                  else 0))
        except (BufferError, ValueError) as e:
            if writable:
                raise TypeError("an array to write to must be contiguous and "
                                "writable: %s" % e) from e
            _get(_contiguous(obj), byref(view), _CONTIGUOUS)
        except TypeError as e:
            raise TypeError(
                "an array is wanted, of NumPy, torch or any other with the "
                "buffer protocol, not %.60r of type %s" %
                (obj, type(obj).__name__)) from e
        dtype = _kind(view.format or b"B", view.itemsize)
        if dtype is None:
            name = getattr(obj, "dtype", (view.format or b"B").decode())
            _release(byref(view))
            raise TypeError("elements of type %s are not supported; there are "
                            "%s" % (name, ", ".join(_NAMES)))
        self._view = view
        self.address: int = view.buf or 0
        self.dtype: int = dtype
        self.nbytes: int = view.len
        self.count: int = view.len // view.itemsize
        self.shape: Tuple[int, ...] = tuple(view.shape[i]
                                            for i in range(view.ndim))

    def _use(self, memory: _gpu.Memory,
             entrance: Optional[_gpu.Entrance]) -> None:
        """Becomes an array of a GPU."""
        if entrance is None:
            raise TypeError("an array in the memory of the host is wanted, not "
                            "one of a GPU")
        dtype = _DTYPES.get((memory.kind, memory.itemsize))
        if dtype is None:
            raise TypeError("elements of type '%s%d' are not supported; there "
                            "are %s" % (memory.kind, memory.itemsize,
                                        ", ".join(_NAMES)))
        self._owner = memory.owner
        self.address = memory.address
        self.dtype = dtype
        self.shape = memory.shape
        self.count = 1
        for n in memory.shape:
            self.count *= n
        self.nbytes = self.count * memory.itemsize
        self.place = memory.place

    def release(self) -> None:
        """Releases the object."""
        self._owner = None
        if self._view is not None:
            _release(byref(self._view))
            self._view = None

    __del__ = release


def device_at(place: Optional[_gpu.Place]) -> Any:
    """A pointer to struct psc_device, or None for the memory of the host."""
    return None if place is None else devices_at([place])


def devices_at(places: Sequence[_gpu.Place]) -> Any:
    """An array of struct psc_device."""
    return (_lib.Device * len(places))(*[_lib.Device(
        size=ctypes.sizeof(_lib.Device), ordinal=place.ordinal,
        stream=place.stream,
        flags=_lib.DEVICE_COMPLETE if place.complete else 0)
        for place in places])


def device_of(arrays: Sequence[Array]) -> Any:
    """The device of an operation on these arrays, as device_at()."""
    places = {a.place for a in arrays}
    if len(places) > 1:
        raise ValueError("the arrays of one operation lie in the memory of the "
                         "host, or on one GPU in the order of one stream")
    return device_at(places.pop() if places else None)


def new_array(shape: Tuple[int, ...], dtype: int, memory: Any) -> Any:
    """An array over a ctypes array: NumPy's, or a memoryview without NumPy."""
    try:
        import numpy  # pylint: disable=import-outside-toplevel
    except ImportError:
        view: Any = memoryview(memory)
        return view.cast("B").cast(dtype_format(dtype), list(shape))
    return numpy.frombuffer(memory, dtype=numpy_name(dtype)).reshape(shape)


assert struct.calcsize("q") == 8 and struct.calcsize("i") == 4
