# SPDX-License-Identifier: Apache-2.0
"""Tensors as address, element type and shape."""
from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch

from .. import _array

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
    if tensor.device.type != "cpu":
        raise ValueError("pskv takes tensors in the memory of the host, not "
                         "on %s: move it with .cpu()" % tensor.device)
    if tensor.is_sparse:
        raise ValueError("pskv.torch takes dense tensors; .to_dense() makes "
                         "one")


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
        self.rows = source.numel() * source.element_size() // width \
            if width > 0 else 0
        if width % 4 == 0:
            self.tensor = source
        else:
            self.tensor = torch.zeros((self.rows, self.words * 4),
                                      dtype=torch.uint8)
            self.tensor[:, :width] = _bytes(source).view(self.rows, width)

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
                           dtype=torch.uint8)

    def take(self, room: torch.Tensor, start: int, to: torch.Tensor) -> None:
        """Copies rows from `start` on to a tensor."""
        if to.numel() == 0:
            return
        rows = to.numel() * to.element_size() // self.width
        data = room[start:start + rows, :self.width].contiguous().view(-1)
        if to.is_contiguous():
            _bytes(to).copy_(data)
        else:
            copy = torch.empty(to.shape, dtype=to.dtype)
            _bytes(copy).copy_(data)
            to.copy_(copy)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's memory as bytes."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return torch.empty(0, dtype=torch.uint8)
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
