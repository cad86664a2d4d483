# SPDX-License-Identifier: Apache-2.0
"""Tensors as address, element type and shape."""
from __future__ import annotations

import ctypes
import threading
from typing import (Any, Callable, Dict, Iterable, List, Optional, Sequence, Set,
                    Tuple)

import torch

from .. import _array, _engine, _gpu, _lib
from .._errors import TIMEOUT

# Element type in which sums are made, without loss of range or precision.
_WIDER: Dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32,
    torch.uint8: torch.int32, torch.int8: torch.int32,
    torch.int16: torch.int32, torch.bool: torch.int32,
    # Of torch 2.
    **{getattr(torch, name): wider for name, wider in (
        ("uint16", torch.int32), ("uint32", torch.int64))
       if hasattr(torch, name)}}

# Element types that are summed unchanged: the library's number of each.
_KNOWN: Dict[torch.dtype, int] = {
    getattr(torch, name): number for name, number in _array._NAMES.items()
    if isinstance(getattr(torch, name, None), torch.dtype) and
    getattr(torch, name) not in _WIDER}

# int32: element type of raw words.
WORD = 4


def number_of(dtype: torch.dtype) -> Optional[int]:
    """The library's number of an element type, or None."""
    return _KNOWN.get(dtype)


def check(tensor: torch.Tensor) -> None:
    """Raises for a tensor that cannot be sent."""
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError("pskv takes tensors in the memory of the host or of a "
                         "CUDA device, not on %s: move it with .cpu()" %
                         tensor.device)
    if tensor.is_sparse:
        raise ValueError("pskv.torch takes dense tensors; .to_dense() makes "
                         "one")


# ------------------------------------------------------------------ CUDA


def place_of(tensor: torch.Tensor) -> Optional[_gpu.Place]:
    """The GPU of a tensor with the caller's current stream; None: the host's
    memory. Futures complete when results are there, whatever stream reads
    them."""
    if tensor.device.type != "cuda":
        return None
    return _gpu.Place(tensor.device.index,
                      torch.cuda.current_stream(tensor.device).cuda_stream,
                      True)


def placed(o: _lib.CollOptions,
           place: Optional[_gpu.Place]) -> _lib.CollOptions:
    """The options, for tensors there."""
    o.device = _array.device_at(place)
    return o


def cuda_devices(things: Any) -> Set[torch.device]:
    """The GPUs of tensors, in lists and in what holds tensors here."""
    if isinstance(things, torch.Tensor):
        return {things.device} if things.device.type == "cuda" else set()
    if isinstance(things, (list, tuple)):
        return set().union(*map(cuda_devices, things))
    return cuda_devices(getattr(things, "tensors", ()))


def new_future(things: Any) -> "torch.futures.Future[Any]":
    """A future of tensors on the devices of `things`."""
    devices = list(cuda_devices(things))
    return torch.futures.Future(devices=devices) if devices else \
        torch.futures.Future()


_side_streams: Dict[torch.device, Any] = {}


def beside(device: torch.device,
           finish: Callable[[], Any]) -> Callable[[], Any]:
    """finish() on a stream beside the program's, complete when it returns: the
    thread that calls it does not know the program's stream. What it copies
    from is complete; what it copies to was unused when the operation began."""
    def run() -> Any:
        stream = _side_streams.setdefault(device, torch.cuda.Stream(device))
        with torch.cuda.stream(stream):
            value = finish()
        stream.synchronize()
        return value
    return run


# ----------------------------------------------------------------- memory
# torch may let the last reference to a tensor go after the interpreter has
# ended, where nothing of Python can run: torch 1 would wait for its lock. A
# function in C therefore ends a tensor over memory of ours, and notes it.


class _Lent(ctypes.Structure):
    """DLPack's DLManagedTensor of one dimension. sem_post() as its deleter
    counts in the first word, which torch does not read again."""

    _fields_ = [("tensor", _gpu._Tensor), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("size", ctypes.c_int64)]


_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_libc.free.restype = None
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_KIND = b"dltensor"  # torch compares it with the capsule's name.
_HOST = 1  # DLPack's device of the host, and code of unsigned numbers.
# Structures, which outlive the interpreter, and what owns their memory.
_lent: List[Tuple[int, Any]] = []


def sweep() -> None:
    """Lets the owners of memory go whose tensors are gone."""
    for item in list(_lent):
        if _Lent.from_address(item[0]).tensor.data:
            _lent.remove(item)
            _libc.free(item[0])


def over(address: int, size: int, owner: Any) -> torch.Tensor:
    """A tensor of bytes over memory that lasts as long as `owner`, which a
    later call lets go when nothing of torch refers to it."""
    sweep()
    at = _libc.malloc(ctypes.sizeof(_Lent))
    if not at:
        raise MemoryError()
    lent = _Lent.from_address(at)
    lent.size = size
    lent.context = None
    lent.deleter = ctypes.cast(_libc.sem_post, ctypes.c_void_p)
    lent.tensor = _gpu._Tensor(
        data=address, device_type=_HOST, ndim=1, code=_HOST, bits=8, lanes=1,
        shape=ctypes.cast(at + _Lent.size.offset,
                          ctypes.POINTER(ctypes.c_int64)))
    tensor: torch.Tensor = torch.utils.dlpack.from_dlpack(
        _capsule(at, _KIND, None))
    lent.tensor.data = None  # The count of the semaphore, from now on.
    _lent.append((at, owner))
    return tensor


def shared(kv: Any, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Elements in memory that the agent of a store reads, zeros."""
    item = torch.empty(0, dtype=dtype).element_size()
    size = max(count * item, 1)
    # Whole words: views in any type need their alignment.
    owner = _array.Array(kv.empty((size + 7) // 8, "int64"), True)
    flat = over(owner.address, owner.nbytes, owner).view(dtype)[:count]
    return flat.zero_()


# -------------------------------------------------------- results in flight


def _spans(tensors: Iterable[Any], written: bool) \
        -> List[Tuple[int, int, bool]]:
    """Memory of dense tensors: first byte, end, `written`."""
    found = []
    for t in tensors:
        if t is None or t.layout != torch.strided or t.numel() == 0:
            continue
        last = sum((n - 1) * step for n, step in zip(t.shape, t.stride()))
        found.append((t.data_ptr(), t.data_ptr() +
                      (last + 1) * t.element_size(), written))
    return found


def acquire(writes: Iterable[Any], reads: Iterable[Any] = (),
           limit: Optional[float] = None) -> List[Tuple[int, int, bool]]:
    """Waits until no open operation writes to tensors that are to be read, or
    uses those that are to be written. Returns the memory, for track()."""
    spans = _spans(writes, True) + _spans(reads, False)
    for future in _engine.in_flight.others(spans):
        wait_within(future, limit, [future],
                    "another operation on the same tensor has not ended: ")
    return spans


def explain(future: Any, reason: Callable[[], str]) -> None:
    """Until the future of torch is complete, wait_within() has the reason."""
    _engine.explain(future, reason)
    future.add_done_callback(lambda _: _engine.explained(future))


def wait_within(future: Any, limit: Optional[float], parts: Iterable[Any],
                head: str = "") -> None:
    """Waits until the future is complete. Raises TimeoutError with the reason
    of the first of `parts` that is open, behind `head`."""
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    if ended.wait(limit):
        return
    reason = _engine.why(parts)
    # It may have ended during the query.
    if not future.done():
        raise _engine.failure_of(
            TIMEOUT, head + (reason or "its result is being copied"), limit)


def track(spans: List[Tuple[int, int, bool]], future: Any) -> Any:
    """Notes that an operation uses memory. Returns its future."""
    _engine.in_flight.add(spans, future)
    return future


# --------------------------------------------------------------- contents


def name_of(dtype: torch.dtype) -> str:
    """The name of a type, without torch's."""
    return str(dtype).split(".", 1)[-1]


def summable(tensor: torch.Tensor, reduction: str) -> torch.Tensor:
    """The tensor, or a contiguous copy in a type that can be summed. Raises for
    a `reduction` of torch or Horovod that its type has not."""
    check(tensor)
    tensor = _plain(tensor.detach())
    kind = tensor.dtype
    if kind not in _KNOWN and kind not in _WIDER:
        raise TypeError("%s of tensors of %s is not supported; there are %s" % (
            reduction, name_of(kind),
            ", ".join(map(name_of, [*_KNOWN, *_WIDER]))))
    if reduction in ("BAND", "BOR", "BXOR") and kind.is_floating_point:
        raise TypeError("%s of tensors of %s is not supported: bits are those "
                        "of whole numbers and of bool" %
                        (reduction, name_of(kind)))
    if reduction in ("AVG", "Average") and kind == torch.bool:
        raise TypeError("%s of tensors of bool is not supported: a mean of "
                        "them is no bool; use .float(), or MIN, MAX" %
                        reduction)
    if kind not in _KNOWN:
        tensor = tensor.to(_WIDER[kind])
    return tensor.contiguous()


def row_bytes(tensor: torch.Tensor) -> int:
    """Bytes of one row."""
    size = tensor.element_size()
    for d in tensor.shape[1:]:
        size *= d
    return int(size)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of a view that says that its elements are to be
    conjugated or negated."""
    return tensor if tensor.is_quantized else \
        tensor.resolve_conj().resolve_neg()


class Raw:
    """Rows of raw bytes to be transferred, padded to whole words."""

    def __init__(self, tensor: torch.Tensor, width: int) -> None:
        """Converts the tensor; `width`: bytes of a row."""
        check(tensor)
        self.width = width
        self.words = (width + 3) // 4
        source = _plain(tensor.detach()).contiguous()
        self.place = place_of(source)
        self.rows = source.numel() * source.element_size() // width \
            if width > 0 else 0
        if width % 4 == 0:
            self.tensor = source
        else:
            self.tensor = torch.zeros((self.rows, self.words * 4),
                                      dtype=torch.uint8, device=source.device)
            self.tensor[:, :width] = _bytes(source).view(self.rows, width)

    @property
    def tensors(self) -> List[torch.Tensor]:
        """The tensors that it holds."""
        return [self.tensor]

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self.tensor.data_ptr())

    def dims(self) -> List[int]:
        """Number of rows, and words of each."""
        return [self.rows, self.words]

    def bytes(self) -> torch.Tensor:
        """The rows as bytes, padding included."""
        return _bytes(self.tensor).view(self.rows, -1)

    def new_rows(self, rows: int) -> torch.Tensor:
        """Memory for `rows` rows."""
        return torch.empty((max(rows, 1), max(self.words * 4, 1)),
                           dtype=torch.uint8, device=self.tensor.device)

    def take(self, room: torch.Tensor, start: int, to: torch.Tensor) -> None:
        """Copies rows from `start` on to a tensor."""
        if to.numel() == 0:
            return
        rows = to.numel() * to.element_size() // self.width
        data = room[start:start + rows, :self.width].contiguous().view(-1)
        if to.is_contiguous() and _plain(to) is to:
            _bytes(to).copy_(data)
        else:
            copy = torch.empty(to.shape, dtype=to.dtype, device=to.device)
            _bytes(copy).copy_(data)
            to.copy_(copy)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a contiguous tensor as bytes."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    if tensor.is_quantized:
        return over(tensor.data_ptr(), size, tensor)
    return tensor.reshape(-1).view(torch.uint8)


def flat_of(tensors: Sequence[torch.Tensor]) -> Tuple[torch.Tensor, List[int]]:
    """All tensors as one flat tensor, and the number of elements of each."""
    counts = [t.numel() for t in tensors]
    return torch.cat([t.detach().reshape(-1) for t in tensors]), counts


def _value_of(future: Any) -> Any:
    return future.value()


def cxx_future(future: Any) -> Any:
    """The same for torch's C++ code: an exception of set_exception() is a value
    there, which DDP takes for tensors; one of a continuation is a failure."""
    return future.then(_value_of)
