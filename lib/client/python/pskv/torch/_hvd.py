# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface: import pskv.torch as hvd."""
from __future__ import annotations

import io
import os
import threading
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from .._collective import options
from .._store import create
from . import _tensor
from ._backend import Engine


class ReduceOp:
    """A reduction: Horovod's name and the library's."""

    def __init__(self, name: str, ours: str) -> None:
        self.name = name
        self.ours = ours

    def __repr__(self) -> str:
        return self.name


Average = ReduceOp("Average", "mean")
Sum = ReduceOp("Sum", "sum")
Min = ReduceOp("Min", "min")
Max = ReduceOp("Max", "max")
Product = ReduceOp("Product", "product")


class _State:
    engine: Optional[Engine] = None
    lock = threading.Lock()


class ProcessSet:
    """A subset of the ranks, as a group. Registered on all ranks by
    add_process_set() or as an argument of init()."""

    def __init__(self, ranks: Optional[Iterable[int]] = None) -> None:
        self.ranks = None if ranks is None else sorted(set(ranks))
        self.process_set_id: Optional[int] = None
        self._engine: Optional[Engine] = None

    def _get(self) -> Engine:
        if self.ranks is None:
            if _State.engine is None:
                raise ValueError("Horovod has not been initialized; use "
                                 "hvd.init().")
            return _State.engine
        if self.process_set_id is None:
            raise ValueError("the process set %r was not added" % self)
        if self._engine is None:
            raise ValueError("rank %d is not in %r" % (rank(), self))
        return self._engine

    def included(self) -> bool:
        """True if this rank is a member."""
        return self.ranks is None or rank() in self.ranks

    def rank(self) -> int:
        """This rank's position in the set; -1: not a member."""
        if not self.included():
            return -1
        return self._get().rank

    def size(self) -> int:
        """Number of ranks in the set."""
        return size() if self.ranks is None else len(self.ranks)

    def __repr__(self) -> str:
        return "ProcessSet(%s)" % (self.ranks,)


global_process_set = ProcessSet()
global_process_set.process_set_id = 0
_sets: Dict[int, ProcessSet] = {}
_next_set = [1]


# ------------------------------------------------------------------ life


def init(process_sets: Sequence[Any] = (), **_ignored: Any) -> None:
    """Joins the job that the environment names, e.g. from pslaunch or
    torchrun. Further calls have no effect."""
    with _State.lock:
        if _State.engine is None:
            engine = Engine(create(
                "dist_sync", on_loss=None if "PSKV_ON_LOSS" in os.environ
                else "fail"), None)
            _learn_places(engine)
            _State.engine = engine
    for s in process_sets:
        add_process_set(s)


def shutdown() -> None:
    """Closes all process sets and leaves the job."""
    for s in list(_sets.values()):
        _close_set(s)
    with _State.lock:
        engine, _State.engine = _State.engine, None
    if engine is not None:
        engine.close()


def is_initialized() -> bool:
    """True between init() and shutdown()."""
    return _State.engine is not None


def _engine() -> Engine:
    return global_process_set._get()


def rank() -> int:
    """This worker's rank, from 0."""
    return _engine().rank


def size() -> int:
    """Workers of the job."""
    return _engine().size


def local_rank() -> int:
    """This worker's rank on its node."""
    return _engine().kv.local_rank


def local_size() -> int:
    """Workers of the job on this node."""
    return _engine().kv.local_size


def _nodes() -> Tuple[int, int]:
    """Index of this node among the nodes with this local rank, and their
    number."""
    e = _engine()
    kv = e.kv
    firsts = sorted({row[0] for row in _all_places() if row[1] ==
                     kv.local_rank})
    mine = next(row[0] for i, row in enumerate(_all_places()) if i == e.rank)
    return firsts.index(mine), len(firsts)


_places: List[Tuple[int, int]] = []


def _all_places() -> List[Tuple[int, int]]:
    """(First rank of the node, local rank) of every rank."""
    _engine()
    return _places


def _learn_places(e: Engine) -> None:
    seen: Dict[Any, int] = {}
    _places.clear()
    for i, (node, socket, local) in enumerate(e.kv.allgather_object(
            (os.uname().nodename, os.environ.get("PSKV_SOCKET", ""),
             e.kv.local_rank))):
        _places.append((seen.setdefault((node, socket), i), local))


def cross_rank() -> int:
    """Index of this node."""
    return _nodes()[0]


def cross_size() -> int:
    """Number of nodes with a worker of this local rank."""
    return _nodes()[1]


def is_homogeneous() -> bool:
    """True if all nodes have the same number of workers."""
    counts: Dict[int, int] = {}
    for first, _ in _all_places():
        counts[first] = counts.get(first, 0) + 1
    return len(set(counts.values())) == 1


def add_process_set(ranks: Union[ProcessSet, Iterable[int]]) -> ProcessSet:
    """Registers a process set. All ranks call it with the same ranks."""
    s = ranks if isinstance(ranks, ProcessSet) else ProcessSet(ranks)
    if s.ranks is None or s.process_set_id is not None:
        raise ValueError("%r is there already" % s)
    if not s.ranks or s.ranks[0] < 0 or s.ranks[-1] >= size():
        raise ValueError("%r: the job has ranks 0 to %d" % (s, size() - 1))
    number = _next_set[0]
    _next_set[0] += 1
    if rank() in s.ranks:
        s._engine = Engine(_engine().kv.group(s.ranks,
                                              name="set%d" % number), None)
    s.process_set_id = number
    _sets[number] = s
    return s


def _close_set(s: ProcessSet) -> None:
    assert s.process_set_id is not None
    _sets.pop(s.process_set_id, None)
    s.process_set_id = None
    if s._engine is not None:
        s._engine.close()
        s._engine = None


def remove_process_set(process_set: ProcessSet) -> bool:
    """Closes a process set. All ranks call it. False: not registered."""
    if process_set.process_set_id is None or process_set.ranks is None:
        return False
    _close_set(process_set)
    return True


# ----------------------------------------------------------- compression


class _None:
    """No compression."""

    @staticmethod
    def compress(tensor: Tensor) -> Tuple[Tensor, Any]:
        """The tensor, and the context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, _ctx: Any) -> Tensor:
        """The tensor."""
        return tensor


class _Fp16:
    """Floating-point tensors in 16 bits."""

    @staticmethod
    def compress(tensor: Tensor) -> Tuple[Tensor, Any]:
        """The tensor, and the context for decompress()."""
        if tensor.dtype.is_floating_point:
            return tensor.half(), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor in its original type."""
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """Types in which gradients are sent."""

    none = _None
    fp16 = _Fp16


# ----------------------------------------------------------- collectives


class Handle:
    """An open collective; for synchronize() and poll()."""

    def __init__(self, future: "torch.futures.Future[Any]") -> None:
        self._future = future

    def wait(self) -> Any:
        """Waits for the result. Raises a failure."""
        return self._future.wait()

    def done(self) -> bool:
        """True if the collective has ended."""
        return bool(self._future.done())


def synchronize(handle: Handle) -> Any:
    """Waits for the result and returns it."""
    return handle.wait()


def poll(handle: Handle) -> bool:
    """True when synchronize() would not wait."""
    return handle.done()


def _op(op: Optional[ReduceOp], average: Optional[bool]) -> ReduceOp:
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average; please provide "
                         "only one of them.")
    if op is not None:
        return op
    return Sum if average is False else Average


def _start_sum(e: Engine, given: Tensor, out: Tensor, name: Optional[str],
               op: ReduceOp, pre: float, post: float,
               value: Any) -> "torch.futures.Future[Any]":
    src = _tensor.summable(given)
    if (pre != 1 or post != 1) and not src.dtype.is_floating_point:
        raise ValueError("only reductions of real numbers can be scaled")
    number = _tensor.number_of(src.dtype)
    assert number is not None
    to = out if out.is_contiguous() and out.dtype == src.dtype \
        else torch.empty_like(src)

    def finish() -> Any:
        if to is not out:
            out.copy_(to)
        return value
    return e.run(e.starter.allreduce(
        name, number, src.shape, src.data_ptr(), to.data_ptr(),
        options(op.ours, 0, pre, post)), (src, to), finish)


def _into(tensor: Tensor, out: Tensor, name: Optional[str], op: ReduceOp,
          pre: float, post: float, process_set: ProcessSet) -> Handle:
    return Handle(_start_sum(process_set._get(), tensor, out.detach(), name,
                             op, pre, post, out))


def allreduce_async_(tensor: Tensor, average: Optional[bool] = None,
                     name: Optional[str] = None, op: Optional[ReduceOp] = None,
                     prescale_factor: float = 1.0,
                     postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """allreduce_() with a handle."""
    return _into(tensor, tensor, name, _op(op, average), prescale_factor,
                 postscale_factor, process_set)


def allreduce_(tensor: Tensor, *args: Any, **more: Any) -> Tensor:
    """The mean over all ranks (or the sum, ... with op=), in place."""
    out: Tensor = allreduce_async_(tensor, *args, **more).wait()
    return out


def allreduce_async(tensor: Tensor, average: Optional[bool] = None,
                    name: Optional[str] = None, op: Optional[ReduceOp] = None,
                    prescale_factor: float = 1.0,
                    postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """allreduce() with a handle."""
    out = torch.empty(tensor.shape, dtype=tensor.dtype)
    return _into(tensor, out, name, _op(op, average), prescale_factor,
                 postscale_factor, process_set)


class _Allreduce(torch.autograd.Function):  # type: ignore[misc]
    """The gradient of a sum over ranks is the same sum of gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, more: Dict[str, Any]) -> Tensor:
        ctx.more = more
        out: Tensor = allreduce_async(tensor, **more).wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return allreduce_async(grad, **ctx.more).wait(), None


def allreduce(tensor: Tensor, average: Optional[bool] = None,
              name: Optional[str] = None, compression: Any = Compression.none,
              op: Optional[ReduceOp] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> Tensor:
    """The mean over all ranks (or the sum, ... with op=). Has a gradient."""
    small, ctx = compression.compress(tensor)
    more = {"name": name, "op": _op(op, average),
            "prescale_factor": prescale_factor,
            "postscale_factor": postscale_factor, "process_set": process_set}
    out: Tensor = compression.decompress(_Allreduce.apply(small, more), ctx)
    return out


def grouped_allreduce_async_(tensors: Sequence[Tensor],
                             average: Optional[bool] = None,
                             name: Optional[str] = None,
                             op: Optional[ReduceOp] = None,
                             prescale_factor: float = 1.0,
                             postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set,
                             _outs: Optional[Sequence[Tensor]] = None
                             ) -> Handle:
    """grouped_allreduce_() with a handle."""
    e = process_set._get()
    chosen = _op(op, average)
    outs = list(tensors if _outs is None else _outs)
    srcs = [_tensor.summable(t) for t in tensors]
    if any(s.dtype != srcs[0].dtype for s in srcs):
        futures = [_start_sum(e, t, o.detach(), name, chosen, prescale_factor,
                              postscale_factor, o)
                   for t, o in zip(tensors, outs)]
        return Handle(torch.futures.collect_all(futures).then(
            lambda f: [one.value() for one in f.value()]))
    to = [o.detach() if o.is_contiguous() and o.dtype == s.dtype
          else torch.empty_like(s) for s, o in zip(srcs, outs)]

    def finish() -> Any:
        for t, o in zip(to, outs):
            if t.data_ptr() != o.data_ptr():
                o.detach().copy_(t)
        return outs
    number = _tensor.number_of(srcs[0].dtype)
    assert number is not None
    return Handle(e.run(e.starter.allreduce_many(
        name, number, [(s.data_ptr(), t.data_ptr(), s.numel())
                       for s, t in zip(srcs, to)],
        options(chosen.ours, 0, prescale_factor, postscale_factor)),
        (srcs, to), finish))


def grouped_allreduce_(tensors: Sequence[Tensor], *args: Any,
                       **more: Any) -> List[Tensor]:
    """allreduce_() of several tensors as one operation."""
    out: List[Tensor] = grouped_allreduce_async_(tensors, *args, **more).wait()
    return out


def grouped_allreduce_async(tensors: Sequence[Tensor], *args: Any,
                            **more: Any) -> Handle:
    """grouped_allreduce() with a handle."""
    more["_outs"] = [torch.empty(t.shape, dtype=t.dtype) for t in tensors]
    return grouped_allreduce_async_(tensors, *args, **more)


def grouped_allreduce(tensors: Sequence[Tensor], *args: Any,
                      compression: Any = Compression.none,
                      **more: Any) -> List[Tensor]:
    """allreduce() of several tensors as one operation."""
    pairs = [compression.compress(t) for t in tensors]
    outs = grouped_allreduce_async([p[0] for p in pairs], *args,
                                   **more).wait()
    return [compression.decompress(o, p[1]) for o, p in zip(outs, pairs)]


def broadcast_async_(tensor: Tensor, root_rank: int,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """broadcast_() with a handle."""
    e = process_set._get()
    root = root_rank if process_set.ranks is None else \
        process_set.ranks.index(root_rank)
    to = tensor.detach()
    _tensor.check(to)
    width = to.numel() * to.element_size()
    raw = _tensor.Raw(to, max(width, 1))
    direct = raw.tensor.data_ptr() == to.data_ptr()

    def finish() -> Any:
        if not direct:
            raw.take(raw.bytes(), 0, to)
        return tensor
    return Handle(e.run(e.starter.bcast(
        name, _tensor.WORD, [raw.words if width > 0 else 0], raw.address,
        raw.address, options(root=root)), raw, finish))


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
    """The gradient is the sum over all ranks, on the root."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, name: Optional[str],
                process_set: ProcessSet) -> Tensor:
        ctx.root, ctx.process_set = root, process_set
        out: Tensor = broadcast_async(tensor, root, name, process_set).wait()
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = allreduce_async(grad, op=Sum,
                                process_set=ctx.process_set).wait()
        return total if rank() == ctx.root else total * 0, None, None, None


def broadcast(tensor: Tensor, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> Tensor:
    """The tensor of rank root_rank. Has a gradient."""
    out: Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)
    return out


def _gather(tensor: Tensor, name: Optional[str],
            process_set: ProcessSet) -> Tuple[Tensor, List[int]]:
    """The tensors of all ranks, and the number of rows of each."""
    e = process_set._get()
    tensor = tensor.detach()
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    raw = _tensor.Raw(tensor, max(_tensor.row_bytes(tensor), 1))
    rows = tensor.shape[0]
    counts = _rows(e, rows)
    room = raw.room(sum(counts))
    out = torch.empty((sum(counts), *tensor.shape[1:]), dtype=tensor.dtype)

    def finish() -> Any:
        raw.take(room, 0, out)
        return out
    e.run(e.starter.gather(
        "allgather", name, _tensor.WORD, [rows, raw.words], raw.address,
        room.data_ptr(), room.numel(), options()), (raw, room),
        finish).wait()
    return out, counts


def _rows(e: Engine, rows: int) -> List[int]:
    mine = torch.tensor([rows])
    every = torch.empty(e.size, dtype=torch.int64)
    number = _tensor.number_of(torch.int64)
    assert number is not None
    e.run(e.starter.gather("allgather", None, number, [1], mine.data_ptr(),
                           every.data_ptr(), every.numel() * 8, options()),
          mine).wait()
    return [int(r) for r in every]


class _Allgather(torch.autograd.Function):  # type: ignore[misc]
    """The gradient of a rank's rows is the sum of all ranks' gradients of
    them."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: Optional[str],
                process_set: ProcessSet) -> Tensor:
        out, counts = _gather(tensor, name, process_set)
        me = process_set.rank()
        ctx.rows = (sum(counts[:me]), counts[me])
        ctx.shape, ctx.process_set = tensor.shape, process_set
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        total = allreduce_async(grad, op=Sum,
                                process_set=ctx.process_set).wait()
        start, count = ctx.rows
        return total[start:start + count].reshape(ctx.shape), None, None


def allgather(tensor: Tensor, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> Tensor:
    """The tensors of all ranks, concatenated; first dimensions may differ. Has
    a gradient."""
    out: Tensor = _Allgather.apply(tensor, name, process_set)
    return out


class _Ready:
    """A handle that is done already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def wait(self) -> Any:
        """The result."""
        return self._value

    def done(self) -> bool:
        """True."""
        return True


def allgather_async(tensor: Tensor, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> Any:
    """allgather() with a handle that is done: the size of the result must be
    known before memory is allocated."""
    return _Ready(_gather(tensor, name, process_set)[0])


def grouped_allgather(tensors: Sequence[Tensor], name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set
                      ) -> List[Tensor]:
    """allgather() of each tensor."""
    return [allgather(t, name, process_set) for t in tensors]


def _exchange(tensor: Tensor, splits: Optional[Any], name: Optional[str],
              process_set: ProcessSet) -> Tuple[Tensor, Tensor]:
    e = process_set._get()
    tensor = tensor.detach()
    if splits is None:
        if tensor.shape[0] % e.size != 0:
            raise ValueError("alltoall of %d rows among %d ranks needs splits"
                             % (tensor.shape[0], e.size))
        sends = [tensor.shape[0] // e.size] * e.size
    else:
        sends = [int(s) for s in splits]
    if len(sends) != e.size or sum(sends) != tensor.shape[0]:
        raise ValueError("alltoall of %d rows: the splits are %s" %
                         (tensor.shape[0], sends))
    given = torch.tensor(sends)
    counts = torch.empty(e.size, dtype=torch.int64)
    number = _tensor.number_of(torch.int64)
    assert number is not None
    e.run(e.starter.alltoall(None, number, [e.size], None, given.data_ptr(),
                             counts.data_ptr(), counts.numel() * 8,
                             options()), given).wait()
    raw = _tensor.Raw(tensor, max(_tensor.row_bytes(tensor), 1))
    total = int(counts.sum())
    room = raw.room(total)
    out = torch.empty((total, *tensor.shape[1:]), dtype=tensor.dtype)

    def finish() -> Any:
        raw.take(room, 0, out)
    e.run(e.starter.alltoall(
        name, _tensor.WORD, [tensor.shape[0], raw.words], sends, raw.address,
        room.data_ptr(), room.numel(), options()), (raw, room),
        finish).wait()
    return out, counts


class _Alltoall(torch.autograd.Function):  # type: ignore[misc]
    """Gradients take the reverse path of the rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, name: Optional[str],
                process_set: ProcessSet) -> Any:
        out, counts = _exchange(tensor, splits, name, process_set)
        ctx.counts, ctx.process_set = counts, process_set
        ctx.mark_non_differentiable(counts)
        return out, counts

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        return (_exchange(grad, ctx.counts, None, ctx.process_set)[0], None,
                None, None)


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
                   process_set: ProcessSet = global_process_set) -> Any:
    """alltoall() with a handle that is done."""
    out, counts = _exchange(tensor, splits, name, process_set)
    return _Ready(out if splits is None else (out, counts))


def reducescatter_async(tensor: Tensor, name: Optional[str] = None,
                        op: ReduceOp = Average, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0,
                        process_set: ProcessSet = global_process_set
                        ) -> Handle:
    """reducescatter() with a handle."""
    e = process_set._get()
    src = _tensor.summable(tensor)
    number = _tensor.number_of(src.dtype)
    assert number is not None
    rows = src.shape[0] // e.size + (e.rank < src.shape[0] % e.size)
    room = torch.empty((rows, *src.shape[1:]), dtype=src.dtype)
    return Handle(e.run(e.starter.gather(
        "reducescatter", name, number, src.shape, src.data_ptr(),
        room.data_ptr(), room.numel() * room.element_size(),
        options(op.ours, 0, prescale_factor, postscale_factor)), (src, room),
        lambda: room.to(tensor.dtype)))


def reducescatter(tensor: Tensor, name: Optional[str] = None,
                  compression: Any = Compression.none,
                  op: ReduceOp = Average, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0,
                  process_set: ProcessSet = global_process_set) -> Tensor:
    """This rank's rows of the mean (or sum) over all ranks: equal shares, and
    one row more for each of the first ranks if they do not divide evenly."""
    small, ctx = compression.compress(tensor)
    out: Tensor = compression.decompress(reducescatter_async(
        small, name, op, prescale_factor, postscale_factor,
        process_set).wait(), ctx)
    return out


def grouped_reducescatter(tensors: Sequence[Tensor], *args: Any,
                          **more: Any) -> List[Tensor]:
    """reducescatter() of each tensor."""
    return [reducescatter(t, *args, **more) for t in tensors]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have called it."""
    process_set._get().barrier().wait()


def join(_device: int = -1) -> int:
    """This rank has no more data: it takes part in all collectives of the
    others, with zeros and no rows, until all ranks have joined. Returns the
    rank that joined last. Means and rounds of keys are over the ranks that
    have not joined."""
    e = _engine()
    started = e.starter.join(options())
    last: List[int] = []
    e.run(started, None,
          lambda: last.append(e.starter.last(started[1]))).wait()
    return last[0]


# --------------------------------------------------- parameters, objects


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Broadcasts the tensors of rank root_rank in place; `params` is a
    state_dict() or named_parameters()."""
    items = params.items() if isinstance(params, dict) else params
    handles = []
    for item in items:
        name, p = item if isinstance(item, tuple) else (None, item)
        if isinstance(p, Tensor):
            handles.append(broadcast_async_(p.data, root_rank, name))
    for handle in handles:
        handle.wait()


def broadcast_object(obj: Any = None, root_rank: int = 0,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """The object of rank root_rank, serialised by torch.save()."""
    e = process_set._get()
    root = root_rank if process_set.ranks is None else \
        process_set.ranks.index(root_rank)
    mine = e.rank == root
    buffer = io.BytesIO()
    if mine:
        torch.save(obj, buffer)
    data = e.kv.bcast_object(buffer.getvalue() if mine else None, root)
    return obj if mine else _load(data)


def _load(data: bytes) -> Any:
    try:
        return torch.load(io.BytesIO(data), weights_only=False)
    except TypeError:  # torch 1.12 and before.
        return torch.load(io.BytesIO(data))


def allgather_object(obj: Any, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set
                     ) -> List[Any]:
    """The objects of all ranks."""
    return process_set._get().kv.allgather_object(obj)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer,
                              root_rank: int) -> None:
    """Broadcasts state and hyper-parameters of rank root_rank's optimizer."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    state = broadcast_object(optimizer.state_dict(), root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(state)
