# SPDX-License-Identifier: Apache-2.0
"""Adasum: sums of gradients that keep their length where they agree and add up
where they are at right angles."""
from __future__ import annotations

from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from ..._horovod.job import ProcessSet, global_process_set
from ._start import Handle, start_gather

# Squares of lengths below which a tensor counts as zero.
_LEAST = 1e-8


def _pair(a: Tensor, b: Tensor) -> Tensor:
    """Adasum of two tensors of float64."""
    dot = float(torch.dot(a, b))
    squares = [float(torch.dot(t, t)) for t in (a, b)]
    of_a, of_b = [1 - dot / s / 2 if s >= _LEAST else 1.0 for s in squares]
    return a * of_a + b * of_b


def adasum(tensors: List[Tensor]) -> Tensor:
    """Adasum of a power of two of flat tensors: of pairs, of pairs of pairs,
    and so on."""
    while len(tensors) > 1:
        tensors = [_pair(a, b) for a, b in zip(tensors[::2], tensors[1::2])]
    return tensors[0]


class _Adasum:
    """A handle: each rank combines the tensors of all."""

    def __init__(self, handle: Handle, out: Tensor, post: float) -> None:
        self._handle: Optional[Handle] = handle
        self._out = out
        self._post = post

    def wait(self) -> Tensor:
        """Waits for the result. Raises a failure."""
        if self._handle is not None:
            every = self._handle.wait()[0]
            self._handle = None
            total = adasum(list(every.double().unbind(0))) * self._post
            self._out.detach().copy_(total.view(self._out.shape))
        return self._out

    def done(self) -> bool:
        """True if the collective has ended."""
        return self._handle is None or self._handle.done()


def start_adasum(process_set: ProcessSet, tensor: Tensor, out: Tensor,
                 name: Optional[str], scales: Tuple[float, float]) -> Any:
    """Adasum of a tensor into `out`, which may be the same. `scales`: factors
    of each tensor before, and of the result."""
    size = process_set.size()
    if process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process "
                                  "sets yet.")
    if size & (size - 1) != 0:
        raise NotImplementedError("Running Adasum with non-power of 2 ranks "
                                  "is not supported yet.")
    if not tensor.dtype.is_floating_point:
        raise ValueError("Adasum of %s: it takes real numbers" % tensor.dtype)
    pre, post = scales
    sent = tensor.detach().reshape(1, -1)
    return _Adasum(start_gather(process_set, sent * pre if pre != 1 else sent,
                                name), out, post)
