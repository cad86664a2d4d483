# SPDX-License-Identifier: Apache-2.0
"""Reductions of Horovod's interface, with its gradients."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence

import torch
from torch import Tensor

from ..._horovod.job import ProcessSet, global_process_set
from ..._horovod.words import (Adasum, Average, ReduceOp, Sum, chosen,
                               part_of)
from ._adasum import start_adasum
from ._compression import Compression
from ._start import (AnyHandle, Handles, start_join, start_scatter, start_sum,
                     start_sums)


def _into(tensor: Tensor, out: Tensor, name: Optional[str], op: ReduceOp,
          pre: float, post: float, process_set: ProcessSet) -> AnyHandle:
    if op is Adasum:
        return start_adasum(process_set, tensor, out, name, (pre, post))
    return start_sum(process_set, tensor, out.detach(), name, op, pre, post,
                     out)


def allreduce_async_(tensor: Tensor, average: Optional[bool] = None,
                     name: Optional[str] = None, op: Optional[ReduceOp] = None,
                     prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set
                     ) -> AnyHandle:
    """allreduce_() with a handle."""
    return _into(tensor, tensor, name, chosen(op, average), prescale_factor,
                 postscale_factor, process_set)


def allreduce_(tensor: Tensor, *args: Any, **more: Any) -> Tensor:
    """The mean over all ranks (or the sum, ... with op=), in place."""
    out: Tensor = allreduce_async_(tensor, *args, **more).wait()
    return out


def allreduce_async(tensor: Tensor, average: Optional[bool] = None,
                    name: Optional[str] = None, op: Optional[ReduceOp] = None,
                    prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> AnyHandle:
    """allreduce() with a handle."""
    out = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return _into(tensor, out, name, chosen(op, average), prescale_factor,
                 postscale_factor, process_set)


class _Allreduce(torch.autograd.Function):  # type: ignore[misc]
    """The gradient of a sum over ranks is the same sum of gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str],
                more: Dict[str, Any]) -> Tensor:
        ctx.more = more
        out: Tensor = allreduce_async(tensor, name=name, **more).wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return allreduce(grad, **ctx.more), None, None


def allreduce(tensor: Tensor, average: Optional[bool] = None,
              name: Optional[str] = None, compression: Any = Compression.none,
              op: Optional[ReduceOp] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> Tensor:
    """The mean over all ranks (or the sum, ... with op=). Has a gradient."""
    small, ctx = compression.compress(tensor)
    more = {"op": chosen(op, average), "prescale_factor": prescale_factor,
            "postscale_factor": postscale_factor, "process_set": process_set}
    out: Tensor = compression.decompress(_Allreduce.apply(small, name, more),
                                         ctx)
    return out


# ------------------------------------------------------- groups of tensors


def _by_type(tensors: Sequence[Tensor]) -> Dict[torch.dtype, List[int]]:
    """Indices of the tensors of each type."""
    groups: Dict[torch.dtype, List[int]] = {}
    for i, t in enumerate(tensors):
        groups.setdefault(t.dtype, []).append(i)
    return groups


class _Mixed(Handles):
    """Groups of tensors of one type each, in the order of the caller."""

    def __init__(self, parts: Sequence[Any],
                 orders: Sequence[Sequence[int]]) -> None:
        super().__init__(parts)
        self._orders = orders

    def wait(self) -> List[Any]:
        """Waits for all results. Raises a failure."""
        found = {i: t for order, part in zip(self._orders, super().wait())
                 for i, t in zip(order, part)}
        return [found[i] for i in range(len(found))]


def _group_into(tensors: Sequence[Tensor], outs: Sequence[Tensor],
                name: Optional[str], op: ReduceOp, pre: float, post: float,
                process_set: ProcessSet) -> AnyHandle:
    if not tensors:
        return Handles([])
    if op is Adasum:
        return Handles([start_adasum(process_set, t, o, part_of(name, i),
                                     (pre, post))
                        for i, (t, o) in enumerate(zip(tensors, outs))])
    groups = _by_type(tensors)
    parts = [start_sums(
        process_set, [tensors[i] for i in g], [outs[i] for i in g],
        name if len(groups) == 1 else part_of(name, str(dtype)[6:]), op, pre,
        post) for dtype, g in groups.items()]
    return parts[0] if len(parts) == 1 else _Mixed(parts,
                                                   list(groups.values()))


def grouped_allreduce_async_(tensors: Sequence[Tensor],
                             average: Optional[bool] = None,
                             name: Optional[str] = None,
                             op: Optional[ReduceOp] = None,
                             prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set
                             ) -> AnyHandle:
    """grouped_allreduce_() with a handle."""
    return _group_into(tensors, tensors, name, chosen(op, average),
                       prescale_factor, postscale_factor, process_set)


def grouped_allreduce_(tensors: Sequence[Tensor], *args: Any,
                       **more: Any) -> List[Tensor]:
    """allreduce_() of several tensors as one operation."""
    out: List[Tensor] = grouped_allreduce_async_(tensors, *args, **more).wait()
    return out


def grouped_allreduce_async(tensors: Sequence[Tensor],
                            average: Optional[bool] = None,
                            name: Optional[str] = None,
                            op: Optional[ReduceOp] = None,
                            prescale_factor: float = 1.0,
                            postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set
                            ) -> AnyHandle:
    """grouped_allreduce() with a handle."""
    outs = [torch.empty(t.shape, dtype=t.dtype, device=t.device)
            for t in tensors]
    return _group_into(tensors, outs, name, chosen(op, average),
                       prescale_factor, postscale_factor, process_set)


class _GroupedAllreduce(torch.autograd.Function):  # type: ignore[misc]
    """As _Allreduce, of several tensors."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], more: Dict[str, Any],
                *tensors: Tensor) -> Any:
        ctx.more = more
        return tuple(grouped_allreduce_async(tensors, name=name,
                                             **more).wait())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, None, *grouped_allreduce(list(grads), **ctx.more))


def grouped_allreduce(tensors: Sequence[Tensor],
                      average: Optional[bool] = None,
                      name: Optional[str] = None,
                      compression: Any = Compression.none,
                      op: Optional[ReduceOp] = None,
                      prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set
                      ) -> List[Tensor]:
    """allreduce() of several tensors as one operation. Has gradients."""
    pairs = [compression.compress(t) for t in tensors]
    more = {"op": chosen(op, average), "prescale_factor": prescale_factor,
            "postscale_factor": postscale_factor, "process_set": process_set}
    outs = _GroupedAllreduce.apply(name, more, *[p[0] for p in pairs])
    return [compression.decompress(o, p[1]) for o, p in zip(outs, pairs)]


# ----------------------------------------------------------- reduce-scatter


def reducescatter_async(tensor: Tensor, name: Optional[str] = None,
                        op: ReduceOp = Average,
                        process_set: ProcessSet = global_process_set,
                        prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> AnyHandle:
    """reducescatter() with a handle."""
    return start_scatter(process_set, tensor, name, op, prescale_factor,
                         postscale_factor)


def grouped_reducescatter_async(tensors: Sequence[Tensor],
                                name: Optional[str] = None,
                                op: ReduceOp = Average,
                                process_set: ProcessSet = global_process_set,
                                prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> AnyHandle:
    """grouped_reducescatter() with a handle."""
    return Handles([start_scatter(process_set, t, part_of(name, i), op,
                                  prescale_factor, postscale_factor)
                    for i, t in enumerate(tensors)])


class _Reducescatter(torch.autograd.Function):  # type: ignore[misc]
    """Each rank's gradients of its rows go to all ranks, times the number of
    ranks where the rows are sums: gradients are means over ranks."""

    @staticmethod
    def forward(ctx: Any, name: Optional[str], more: Dict[str, Any],
                *tensors: Tensor) -> Any:
        ctx.more = more
        return tuple(grouped_reducescatter_async(tensors, name,
                                                 **more).wait())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        # pylint: disable-next=import-outside-toplevel
        from ._move import grouped_allgather
        more = ctx.more
        factor = more["prescale_factor"] * more["postscale_factor"]
        if more["op"] is Sum:
            factor *= more["process_set"].size()
        return (None, None, *grouped_allgather(
            [g * factor for g in grads], process_set=more["process_set"]))


def reducescatter(tensor: Tensor, name: Optional[str] = None,
                  compression: Any = Compression.none,
                  op: ReduceOp = Average,
                  process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Tensor:
    """This rank's rows of the mean (or sum) over all ranks: equal shares, and
    one row more for each of the first ranks if they do not divide evenly.
    Has a gradient."""
    return grouped_reducescatter([tensor], name, compression, op, process_set,
                                 prescale_factor, postscale_factor)[0]


def grouped_reducescatter(tensors: Sequence[Tensor],
                          name: Optional[str] = None,
                          compression: Any = Compression.none,
                          op: ReduceOp = Average,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[Tensor]:
    """reducescatter() of each tensor. Has gradients."""
    pairs = [compression.compress(t) for t in tensors]
    more = {"op": op, "process_set": process_set,
            "prescale_factor": prescale_factor,
            "postscale_factor": postscale_factor}
    outs = _Reducescatter.apply(name, more, *[p[0] for p in pairs])
    return [compression.decompress(o, p[1]) for o, p in zip(outs, pairs)]


def join(device: int = -1) -> int:
    """This rank has no more data: it takes part in the allreduces of the
    others, with zeros, until all ranks have joined. Means divide by all
    ranks. Other collectives fail while a rank has joined. Returns the rank
    that joined last. `device` is Horovod's; tensors are in host memory."""
    del device
    return int(start_join(global_process_set).wait())
