# SPDX-License-Identifier: Apache-2.0
"""Tensors as address, element type and shape."""
from __future__ import annotations

import ctypes
from typing import Any, Callable, Dict, List, Optional, Sequence, Set, Tuple

import torch

from .. import _array, _gpu, _lib

# Element type in which sums are made, without loss of range or precision.
_WIDER: Dict[torch.dtype, torch.dtype] = {
    torch.float16: torch.float32, torch.bfloat16: torch.float32,
    torch.uint8: torch.int32, torch.int8: torch.int32,
    torch.int16: torch.int32, torch.bool: torch.int32}

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


# --------------------------------------------------------------- contents


def summable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy in a type that can be summed."""
    check(tensor)
    tensor = tensor.detach()
    if tensor.dtype not in _KNOWN:
        if tensor.dtype not in _WIDER:
            raise TypeError("sums of %s are not supported" % tensor.dtype)
        tensor = tensor.to(_WIDER[tensor.dtype])
    return tensor.contiguous()


def row_bytes(tensor: torch.Tensor) -> int:
    """Bytes of one row."""
    size = tensor.element_size()
    for d in tensor.shape[1:]:
        size *= d
    return int(size)


class Raw:
    """Rows of raw bytes to be transferred, padded to whole words."""

    def __init__(self, tensor: torch.Tensor, width: int) -> None:
        """Converts the tensor; `width`: bytes of a row."""
        check(tensor)
        self.width = width
        self.words = (width + 3) // 4
        source = tensor.detach().contiguous()
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
        if to.is_contiguous():
            _bytes(to).copy_(data)
        else:
            copy = torch.empty(to.shape, dtype=to.dtype, device=to.device)
            _bytes(copy).copy_(data)
            to.copy_(copy)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as bytes."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return torch.empty(0, dtype=torch.uint8, device=tensor.device)
    if tensor.device.type == "cuda":
        return tensor.reshape(-1).view(torch.uint8)
    memory = (ctypes.c_uint8 * size).from_address(tensor.data_ptr())
    # torch keeps `memory` alive, but not `tensor`: callers do.
    return torch.frombuffer(memory, dtype=torch.uint8)


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
