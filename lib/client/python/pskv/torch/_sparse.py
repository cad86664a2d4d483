# SPDX-License-Identifier: Apache-2.0
"""Sums of sparse tensors: all ranks gather indices and values of all."""
from __future__ import annotations

import ctypes
from typing import Any, List, Tuple

import torch
from torch import Tensor

from .._collective import options
from . import _tensor


def _gather(e: Any, tensor: Tensor, words: str, got: List[Tensor]) -> Any:
    """Gathers rows of all ranks, of any number, as the first of `got`."""
    width = _tensor.row_bytes(tensor)
    raw = _tensor.Raw(tensor, width)
    rc, op = e.starter.gather(
        "allgather", None, _tensor.WORD, raw.dims(), raw.address, None, 0,
        options(words=words))

    def finish() -> None:
        address, size = e.starter.result(op)
        rows = size // (4 * raw.words)
        room = raw.new_rows(rows)
        ctypes.memmove(room.data_ptr(), address, size)
        out = torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype)
        raw.take(room, 0, out)
        got.append(out)
    return e.run((rc, op), raw, finish)


def start_sum(e: Any, tensor: Tensor, value: Any) -> Tuple[Any, List[Any]]:
    """A sum in place: the future of `value`, and those that it waits for."""
    if tensor.device.type != "cpu":
        raise ValueError("pskv takes tensors in the memory of the host, not "
                         "on %s: move it with .cpu()" % tensor.device)
    own = tensor.detach().coalesce()
    words = "sparse %s %s" % (str(own.dtype).split(".", 1)[-1],
                              list(own.shape))
    indices: List[Tensor] = []
    values: List[Tensor] = []
    first = _gather(e, own.indices().t().contiguous(), words, indices)
    second = _gather(e, own.values().contiguous(), words, values)

    def then(both: Any) -> Any:
        for one in both.value():
            one.value()  # Raises a failure.
        with torch.no_grad():
            tensor.copy_(torch.sparse_coo_tensor(
                indices[0].t(), values[0], own.shape).coalesce())
        return value
    return torch.futures.collect_all([first, second]).then(then), \
        [first, second]
