# SPDX-License-Identifier: Apache-2.0
"""Arrays in the memory of a GPU, for the driver that PSKV_CUDA_DRIVER names:
some with DLPack, others with __cuda_array_interface__. Their work is in a
stream of the program, which these functions never wait for unless they say
so."""
import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

import numpy as np

# DLPack's codes by kinds of NumPy; bfloat16 is passed as uint16.
_CODES = {"i": 0, "u": 1, "f": 2, "b": 6}


class _Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""

    _fields_ = [("data", c_void_p), ("device_type", c_int), ("device_id", c_int),
                ("ndim", c_int), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64), ("context", c_void_p),
                ("deleter", c_void_p)]


class _Control(ctypes.Structure):
    """struct pskv_emu_control"""

    _fields_ = [("size", c_size_t),
                ("fail", ctypes.CFUNCTYPE(c_int, ctypes.c_char_p)),
                ("stats", c_void_p),
                ("hold", ctypes.CFUNCTYPE(None, c_void_p)),
                ("resume", ctypes.CFUNCTYPE(None, c_void_p))]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = [c_void_p, ctypes.c_char_p, c_void_p]
_new_capsule.restype = ctypes.py_object


class Cuda:
    """A device, its current context, and a stream of the program."""

    def __init__(self, ordinal=0):
        self.lib = ctypes.CDLL(os.environ["PSKV_CUDA_DRIVER"])
        self.ordinal = ordinal
        self.call("cuInit", c_uint(0))
        device, self.context = c_int(), c_void_p()
        self.call("cuDeviceGet", byref(device), c_int(ordinal))
        self.call("cuDevicePrimaryCtxRetain", byref(self.context), device)
        self.enter()
        self.stream = self.new_stream()

    def call(self, name, *args):
        rc = getattr(self.lib, name)(*args)
        assert rc == 0, f"{name}: {rc}"

    def enter(self):
        """Makes its context the current one, as after the constructor."""
        self.call("cuCtxSetCurrent", self.context)

    def new_stream(self):
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), c_uint(1))
        return stream.value

    def new_event(self):
        event = c_void_p()
        self.call("cuEventCreate", byref(event), c_uint(2))
        return event

    def order(self, later, earlier):
        """Work in one stream waits for that in another one."""
        self.enter()
        event = self.new_event()
        self.call("cuEventRecord", event, c_void_p(earlier))
        self.call("cuStreamWaitEvent", c_void_p(later), event, c_uint(0))
        self.call("cuEventDestroy_v2", event)

    def is_done(self, stream):
        return self.lib.cuStreamQuery(c_void_p(stream)) == 0

    def wait(self, stream=None):
        self.call("cuStreamSynchronize", c_void_p(stream or self.stream))

    def hold(self, stream):
        self._control().hold(stream)

    def resume(self, stream):
        self._control().resume(stream)

    def _control(self):
        find = self.lib.pskv_emu_control
        find.restype = ctypes.POINTER(_Control)
        return find().contents


class Array:
    """An array of a GPU. What is done to it is enqueued in the device's
    stream."""

    def __init__(self, cuda, like, address=None):
        """In memory of its own, unless that at the address is given."""
        like = np.ascontiguousarray(like)
        self.cuda = cuda
        cuda.enter()
        self.shape = like.shape
        self.dtype = like.dtype
        self.nbytes = like.nbytes
        if address is None:
            made = c_ulonglong()
            cuda.call("cuMemAlloc_v2", byref(made), c_size_t(self.nbytes))
            address = made.value
        self.address = address
        self.set(like)

    def set(self, value):
        """Copies from pageable memory, whose bytes the driver takes at once."""
        value = np.ascontiguousarray(value, self.dtype)
        self.cuda.enter()
        self.cuda.call("cuMemcpyHtoDAsync_v2", c_ulonglong(self.address),
                       c_void_p(value.ctypes.data), c_size_t(self.nbytes),
                       c_void_p(self.cuda.stream))

    def fill(self, word):
        """Fills it with a word of 32 bits."""
        self.cuda.enter()
        self.cuda.call("cuMemsetD32Async", c_ulonglong(self.address),
                       c_uint(word), c_size_t(self.nbytes // 4),
                       c_void_p(self.cuda.stream))

    def get(self):
        """Its value behind the work in the stream; waits."""
        out = np.empty(self.shape, self.dtype)
        self.cuda.enter()
        self.cuda.call("cuMemcpyDtoHAsync_v2", c_void_p(out.ctypes.data),
                       c_ulonglong(self.address), c_size_t(self.nbytes),
                       c_void_p(self.cuda.stream))
        self.cuda.wait()
        return out


class Interface(Array):
    """With __cuda_array_interface__; `stream` is its item of that name."""

    stream = True

    @property
    def __cuda_array_interface__(self):
        about = {"shape": self.shape, "typestr": self.dtype.str,
                 "data": (self.address, False), "version": 3}
        if self.stream:
            about["stream"] = self.cuda.stream
        return about


class Unordered(Interface):
    """Without a stream: its data must be complete, and results are when the
    operation has ended."""

    stream = False


class Packed(Array):
    """With DLPack."""

    def __dlpack_device__(self):
        return 2, self.cuda.ordinal

    def __dlpack__(self, stream=None):
        self.cuda.order(stream, self.cuda.stream)
        self.dims = (ctypes.c_int64 * len(self.shape))(*self.shape)
        self.managed = _Managed(
            self.address, 2, self.cuda.ordinal, len(self.shape),
            _CODES[self.dtype.kind], self.dtype.itemsize * 8, 1, self.dims)
        return _new_capsule(ctypes.addressof(self.managed), b"dltensor", None)
