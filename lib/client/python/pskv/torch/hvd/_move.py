# SPDX-License-Identifier: Apache-2.0
"""Transfers of Horovod's interface, with its gradients."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import torch
from torch import Tensor

from ..._horovod.job import ProcessSet, global_process_set, rank
from ..._horovod.words import Average, ReduceOp, Sum
from ._reduce import allreduce, grouped_allreduce
from ._start import Handle, start_broadcast, start_exchange, start_gather


def broadcast_async_(tensor: Tensor, root_rank: int,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """broadcast_() with a handle."""
    return start_broadcast(process_set, tensor, root_rank, name)


def broadcast_(tensor: Tensor, root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> Tensor:
    """Overwrites the tensor with that of rank root_rank."""
    out: Tensor = broadcast_async_(tensor, root_rank, name, process_set).wait()
    return out


def broadcast_async(tensor: Tensor, root_rank: int,
                    name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """broadcast() with a handle."""
    return broadcast_async_(tensor.detach().clone(), root_rank, name,
                            process_set)


class _Broadcast(torch.autograd.Function):  # type: ignore[misc]
    """The gradient is the mean over all ranks, on the root."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: Optional[str],
                process_set: ProcessSet) -> Tensor:
        ctx.root, ctx.process_set = root, process_set
        out: Tensor = broadcast_async(tensor, root, name, process_set).wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        mean = allreduce(grad, op=Average, process_set=ctx.process_set)
        return mean if rank() == ctx.root else mean * 0, None, None, None


def broadcast(tensor: Tensor, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> Tensor:
    """The tensor of rank root_rank. Has a gradient."""
    out: Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return out


class _Gather:
    """A handle of allgather() on that of the library's one."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def wait(self) -> Tensor:
        """Waits for the result. Raises a failure."""
        out: Tensor = self._handle.wait()[0]
        return out

    def rows(self) -> List[int]:
        """Rows from each rank, after the end."""
        return list(self._handle.wait()[1])

    def done(self) -> bool:
        """True if the collective has ended."""
        return self._handle.done()


class _Gathers:
    """A handle of grouped_allgather()."""

    def __init__(self, parts: Sequence[_Gather]) -> None:
        self.parts = parts

    def wait(self) -> List[Tensor]:
        """Waits for the results. Raises a failure."""
        return [p.wait() for p in self.parts]

    def done(self) -> bool:
        """True if all collectives have ended."""
        return all(p.done() for p in self.parts)


def allgather_async(tensor: Tensor, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> _Gather:
    """allgather() with a handle."""
    return _Gather(start_gather(process_set, tensor, name))


def grouped_allgather_async(tensors: Sequence[Tensor],
                            name: Optional[str] = None,
                            process_set: ProcessSet = global_process_set
                            ) -> _Gathers:
    """grouped_allgather() with a handle."""
    return _Gathers([allgather_async(
        t, None if name is None else "%s.%d" % (name, i), process_set)
        for i, t in enumerate(tensors)])


class _Allgather(torch.autograd.Function):  # type: ignore[misc]
    """The gradient of a rank's rows is the mean of all ranks' gradients of
    them."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], process_set: ProcessSet,
                *tensors: Tensor) -> Any:
        handle = _Gathers([allgather_async(tensors[0], name, process_set)]) \
            if len(tensors) == 1 else \
            grouped_allgather_async(tensors, name, process_set)
        outs = handle.wait()
        me = process_set.rank()
        ctx.rows = []
        for part in handle.parts:
            rows = part.rows()
            ctx.rows.append((sum(rows[:me]), rows[me]))
        ctx.shapes = [t.shape for t in tensors]
        ctx.process_set = process_set
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        means = grouped_allreduce(list(grads), op=Average,
                                  process_set=ctx.process_set)
        return (None, None, *[
            m[start:start + count].reshape(shape)
            for m, (start, count), shape in zip(means, ctx.rows, ctx.shapes)])


def allgather(tensor: Tensor, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> Tensor:
    """The tensors of all ranks, concatenated; first dimensions may differ. Has
    a gradient."""
    out: Tensor = _Allgather.apply(name, process_set, tensor)[0]
    return out


def grouped_allgather(tensors: Sequence[Tensor], name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set
                      ) -> List[Tensor]:
    """allgather() of each tensor. Has gradients."""
    return list(_Allgather.apply(name, process_set, *tensors))


def sparse_allreduce_async(tensor: Tensor, name: Optional[str],
                           op: ReduceOp,
                           process_set: ProcessSet = global_process_set
                           ) -> Callable[[], Tensor]:
    """The mean or sum of sparse tensors, by an allgather of indices and
    values. Returns a function that waits for the result."""
    if op not in (Average, Sum):
        raise ValueError("sparse_allreduce_async of %s: it has Average and Sum"
                         % op)
    indices = allgather_async(
        tensor._indices().transpose(0, 1).contiguous(),
        None if name is None else name + ".indices", process_set)
    values = allgather_async(
        tensor._values(), None if name is None else name + ".values",
        process_set)

    def wait() -> Tensor:
        of_all = values.wait()
        where = indices.wait()
        if op is Average:
            of_all = of_all / process_set.size()
        return torch.sparse_coo_tensor(where.transpose(0, 1), of_all,
                                       tensor.shape)
    return wait


class _Alltoall(torch.autograd.Function):  # type: ignore[misc]
    """Gradients take the reverse path of the rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: Optional[str],
                process_set: ProcessSet) -> Any:
        out, counts = start_exchange(process_set, tensor, splits, name).wait()
        ctx.counts, ctx.process_set = counts, process_set
        ctx.shape = tensor.shape
        ctx.mark_non_differentiable(counts)
        return out, counts

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        back, _counts = start_exchange(ctx.process_set, grad, ctx.counts,
                                       None).wait()
        if back.shape != ctx.shape:  # Rows that were not sent.
            more = torch.zeros((ctx.shape[0] - back.shape[0],
                                *ctx.shape[1:]), dtype=back.dtype,
                               device=back.device)
            back = torch.cat([back, more])
        return back, None, None, None


def alltoall(tensor: Tensor, splits: Optional[Any] = None,
             name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """Sends splits[r] rows to rank r, or equal shares. Returns the received
    rows and, if splits were given, their number from each rank. Has a
    gradient."""
    out, counts = _Alltoall.apply(tensor, splits, name, process_set)
    return out if splits is None else (out, counts)


def alltoall_async(tensor: Tensor, splits: Optional[Any] = None,
                   name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> Handle:
    """alltoall() with a handle. The result is always a pair: the received
    rows, and their number from each rank."""
    return start_exchange(process_set, tensor, splits, name)
