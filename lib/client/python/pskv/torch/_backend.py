# SPDX-License-Identifier: Apache-2.0
"""The backend 'pskv' of torch.distributed: a process group with its own job."""
# torch passes arguments by name, used or not.
# pylint: disable=unused-argument
from __future__ import annotations

import collections
import functools
import os
import threading
import time
import uuid
from datetime import timedelta
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _engine
from .._collective import options
from .._errors import TIMEOUT, JobFailed, warn_once
from .._horovod.words import words_of
from .._store import KVStore, create
from . import _sparse, _tensor
from ._interface import Interface, refuse, seconds
from ._meeting import Mail, MonitoredBarrier, end_of
from ._pipe import Pipe, chain

# Reductions of the library, and functions for the others, which are applied to
# the gathered tensors of all ranks.
_OWN = (("SUM", "sum"), ("AVG", "mean"), ("MIN", "min"), ("MAX", "max"),
        ("PRODUCT", "product"))
_LOCAL = {
    "BAND": torch.bitwise_and, "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor}


def _reduction(op: Any) -> Tuple[str, Optional[str]]:
    """torch's name and the library's, or None if the library lacks it."""
    for name, ours in _OWN:
        if hasattr(dist.ReduceOp, name) and op == getattr(dist.ReduceOp, name):
            return name, ours
    for name in _LOCAL:
        if op == getattr(dist.ReduceOp, name):
            return name, None
    kinds = getattr(dist.ReduceOp, "RedOpType", dist.ReduceOp)
    name = next((n for n in dir(kinds) if n.isupper() and
                 op == getattr(kinds, n)), repr(op))
    raise ValueError("pskv has no reduction ReduceOp.%s; it has %s" % (
        name, ", ".join([n for n, _ in _OWN] + list(_LOCAL))))


def _words(tensors: Sequence[Tensor], compared: Any) -> str:
    """What ranks compare of a request that is sent as bytes, and what its
    error says: type and shape of the program's tensors."""
    first = tensors[0]
    text = words_of(_tensor.name_of(first.dtype), first.shape)
    if len(tensors) > 1:
        text += " and %d more" % (len(tensors) - 1)
    return "%s\n%s" % (compared, text)


def _check_parts(call: str, what: str, parts: Sequence[Tensor], size: int,
                 like: Tensor, same_count: bool = True) -> None:
    """Raises if a call has not one tensor for each rank, of the type and, with
    `same_count`, the number of elements of its other tensor."""
    if len(parts) != size:
        raise ValueError("%s: expected %d %s tensors, one for each rank, got "
                         "%d" % (call, size, what, len(parts)))
    for r, part in enumerate(parts):
        if part.dtype != like.dtype or (same_count and
                                        part.numel() != like.numel()):
            raise ValueError(
                "%s: %s tensor %d is %s, the other tensor is %s" % (
                    call, what, r,
                    words_of(_tensor.name_of(part.dtype), part.shape),
                    words_of(_tensor.name_of(like.dtype), like.shape)))


class _Limit(threading.local):
    """The time limit of the call that is being made; None: the engine's."""

    seconds: Optional[float] = None


_limit = _Limit()


def _timed(method: Any) -> Any:
    """The method of a process group with the time limit of its own that torch
    gives by name, among the options, or behind them."""
    @functools.wraps(method)
    def run(self: Any, *args: Any, **more: Any) -> Any:
        given = [a for a in args if isinstance(a, timedelta)]
        opts = [a for a in (*args, more.get("opts")) if hasattr(a, "timeout")]
        limit = seconds(next(iter([
            *given, *[t for t in (more.pop("timeout", None),) if t is not None],
            *[a.timeout for a in opts]]), None))
        before, _limit.seconds = _limit.seconds, limit
        try:
            return method(self, *[a for a in args if not isinstance(a, timedelta)], **more)
        finally:
            _limit.seconds = before
    return run


class Engine(_engine.Engine):
    """Starts operations of a store and completes them as futures of torch."""

    new_future = torch.futures.Future

    def __init__(self, kv: KVStore, timeout: Optional[float],
                 store: Any = None) -> None:
        """`store`: torch's, for the members of the group alone."""
        super().__init__(kv, timeout)
        self.store = store
        self._pipes: Dict[Tuple[int, int, int], Pipe] = {}

    @staticmethod
    def prepare_thread() -> None:
        """Called by each thread that completes futures."""
        torch.set_grad_enabled(False)  # Thread-local setting.

    def run(self, started: Tuple[int, int], buffers: Any,
            finish: Optional[Callable[[], Any]] = None,
            value: Any = None, future: Optional[Any] = None,
            ended: Optional[Callable[[Optional[BaseException]], bool]] = None,
            limit: Optional[float] = None) -> Any:
        """As that of the base, for tensors of one GPU, too, within the time
        limit of the call that is being made."""
        limit = _limit.seconds if limit is None else limit
        for device in _tensor.cuda_devices((buffers, value)):
            future = _tensor.new_future((buffers, value)) if future is None \
                else future
            finish = None if finish is None else \
                _tensor.beside(device, finish)
        return super().run(started, buffers, finish, value, future, ended,
                           limit)

    def close(self) -> None:
        """Leaves the job, and lets memory go that no tensor uses."""
        super().close()
        _tensor.sweep()

    def acquire(self, writes: Any, reads: Any = ()) -> Any:
        """As that of the tensors, within the time limit of the engine."""
        return _tensor.acquire(writes, reads, self.timeout)

    def pipe(self, sender: int, receiver: int, tag: int) -> Pipe:
        """The pipe between two ranks, one of which is this one."""
        def open_engine() -> "Engine":
            return Engine(self.kv.group(
                [sender, receiver],
                name="send-%d-%d-%d" % (sender, receiver, tag)), self.timeout)
        with self._lock:
            if self._closed:
                raise RuntimeError("the process group is closed")
            found = self._pipes.get((sender, receiver, tag))
            if found is None:
                found = Pipe(open_engine, _bcast, (sender, receiver), tag,
                             sender == self.rank)
                self._pipes[sender, receiver, tag] = found
                self._parts.append(found)
            return found


def _bcast(e: Engine, tensor: Tensor, value: Any, root: int = 0,
           name: Optional[str] = None) -> "torch.futures.Future[Any]":
    """Broadcasts the root's `tensor`; returns a future of `value`."""
    words = _words([tensor], tensor.numel() * tensor.element_size())
    tensor = tensor.detach()
    spans = e.acquire((), [tensor]) if root == e.rank else e.acquire([tensor])
    raw = _tensor.Raw(tensor, max(1, tensor.numel() * tensor.element_size()))
    direct = raw.tensor.data_ptr() == tensor.data_ptr()

    def finish() -> Any:
        if not direct and root != e.rank:
            raw.take(raw.bytes(), 0, tensor)
        return value
    if tensor.numel() == 0:
        raw.words = 0
    return _tensor.track(spans, e.run(e.starter.bcast(
        name, _tensor.WORD, [raw.words], raw.address, raw.address,
        _tensor.placed(options(root=root, words=words), raw.place)),
        (raw, value), finish))


# Works kept alive: torch's C++ code may use them while it holds only the C++
# part.
_RECENT = 64


class Work(torch._C._distributed_c10d.Work):  # type: ignore[misc]
    """An open collective, to be waited for or converted to a future."""

    def __init__(self, future: "torch.futures.Future[Any]",
                 sender: int = -1, parts: Sequence[Any] = ()) -> None:
        """`parts`: futures of the operations that the future waits for, if it
        is not that of one."""
        super().__init__()
        self._future = future
        self._sender = sender
        self._parts = list(parts) or [future]

    get_future_result = refuse(
        "Work.get_future_result", "get_future() has the result or the failure")
    _get_duration = refuse(
        "Work._get_duration", "psctl trace shows how long operations take")

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end. Raises the failure, or TimeoutError, which names
        the operation and the missing ranks."""
        if timeout > timedelta(0):
            _tensor.wait_within(self._future, timeout.total_seconds(),
                                self._parts)
        self._future.wait()
        return True

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def block_current_stream(self) -> None:
        """As wait(): tensors are in the memory of the host."""
        self.wait()

    def source_rank(self) -> int:
        """The sender of a message that has been received."""
        return self._sender

    _source_rank = source_rank

    def get_future(self) -> "torch.futures.Future[Any]":
        """A future of the caller's result tensors. DDP's C++ code reads it."""
        return _tensor.cxx_future(self._future)

    def result(self) -> Any:
        """The caller's result tensors, after the end."""
        value = self._future.value()
        return [value] if isinstance(value, Tensor) else value

    def is_completed(self) -> bool:
        """True if the collective has ended."""
        return bool(self._future.done())

    def is_success(self) -> bool:
        """True if the collective has ended without failure."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[BaseException]:
        """The failure, or None."""
        try:
            self._future.value()
        except Exception as e:  # pylint: disable=broad-except
            return e
        return None


def _list(tensors: Any) -> List[Tensor]:
    return [tensors] if isinstance(tensors, Tensor) else tensors


def _one(call: str, things: Any) -> Any:
    """The only one of a list: torch 1 has lists of tensors on several GPUs."""
    if len(things) != 1:
        raise ValueError("%s: a rank of pskv has one tensor in a collective, "
                         "not %d" % (call, len(things)))
    return things[0]


def _op_of(opts: Any, op: Any = None) -> Any:
    """The reduction of torch's options, or one given alone."""
    if op is not None:
        return op
    if opts is None:
        return dist.ReduceOp.SUM
    return getattr(opts, "reduceOp", opts)


def _root_of(opts: Any, root: Optional[int]) -> int:
    """The root of torch's options, or one given alone."""
    if root is not None:
        return root
    return opts if isinstance(opts, int) else int(opts.rootRank)


class ProcessGroup(Interface):
    """A process group of torch.distributed. Its collectives start in the same
    order on all ranks; if ranks make different requests, all get an error
    that lists each rank's request."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self._recent: Deque[Work] = collections.deque(maxlen=_RECENT)
        self._count = 0  # Collectives so far.
        # Works between _start_coalescing() and _end_coalescing().
        self._coalesced: Optional[List[Work]] = None
        self._monitored: Optional[MonitoredBarrier] = None
        self._mail: Optional[Mail] = None
        if engine.store is not None:
            self._monitored = MonitoredBarrier(engine.store, engine.rank,
                                               engine.size)
            self._mail = Mail(engine.store, engine.rank,
                              lambda: engine.timeout)
            engine.adopt(self._mail)

    # ------------------------------------------------------------- helpers

    def _done(self, future: "torch.futures.Future[Any]",
              sender: int = -1, spans: Any = (),
              parts: Sequence[Any] = ()) -> Any:
        """A work of an operation that uses memory, after acquire(). `parts`:
        see Work."""
        if spans:
            _tensor.track(spans, future)
        work = Work(future, sender, parts)
        self._recent.append(work)
        self._count += 1
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def _start_coalescing(self, device: Any = None) -> None:
        """Collects the works of what follows: each operation starts at its
        call."""
        if device is not None:
            self._get_backend(device)
        self._coalesced = []

    def _end_coalescing(self, device: Any = None) -> Any:
        """One work for those since _start_coalescing(), or None."""
        works, self._coalesced = self._coalesced, None
        return self._all(works, []) if works else None

    def _wait_for_pending_works(self) -> None:
        """Waits for the operations that are open, which may fail."""
        for work in list(self._recent):
            work.exception()

    def _sum(self, tensor: Tensor, op: Any, out: Optional[Tensor],
             value: Any, call: Optional[str] = None) -> Any:
        """Allreduce of `tensor` into `out`, which may be the same. `call`: what
        the program wrote, if it is not all_reduce()."""
        e = self.engine
        name, ours = _reduction(op)
        spans = e.acquire([out], [tensor])
        src = _tensor.summable(tensor, name)
        number = _tensor.number_of(src.dtype)
        if ours is None:
            return self._fold(src, name, out, value, spans)
        assert number is not None
        to = out
        if out is None or not out.is_contiguous() or out.dtype != src.dtype:
            to = None if out is None else torch.empty_like(src)

        def finish() -> Any:
            if out is not None and to is not out:
                out.copy_(to)
            return value
        return self._done(e.run(e.starter.allreduce(
            call, number, src.shape, src.data_ptr(),
            None if to is None else to.data_ptr(),
            _tensor.placed(options(ours, words=_words([tensor], words_of(
                _tensor.name_of(tensor.dtype), tensor.shape))),
                _tensor.place_of(src))), (src, to), finish, value),
            spans=spans)

    # The arguments are those of _sum().
    # pylint: disable-next=too-many-arguments,too-many-positional-arguments
    def _fold(self, src: Tensor, name: str, out: Optional[Tensor],
              value: Any, spans: Any) -> Any:
        """Reductions that the library lacks: all tensors are gathered and
        reduced locally."""
        e = self.engine
        fold = _LOCAL[name]
        every = torch.empty((e.size, *src.shape), dtype=src.dtype,
                            device=src.device)
        number = _tensor.number_of(src.dtype)
        assert number is not None

        def finish() -> Any:
            total = every[0]
            for other in every[1:]:
                total = fold(total, other)
            if out is not None:
                out.copy_(total)
            return value
        return self._done(e.run(e.starter.gather(
            "allgather", name, number, [1, src.numel()], src.data_ptr(),
            every.data_ptr(), every.numel() * every.element_size(),
            _tensor.placed(options(), _tensor.place_of(src))), src, finish),
            spans=spans)

    # ------------------------------------------------------------- classic

    @_timed
    def allreduce(self, tensors: Any, opts: Any = None, op: Any = None,
                  timeout: Any = None) -> Any:
        """Allreduce in place."""
        tensors = _list(tensors)
        _one("all_reduce", tensors)
        op = _op_of(opts, op)
        if not tensors[0].is_sparse:
            return self._sum(tensors[0], op, tensors[0].detach(), tensors)
        if op != dist.ReduceOp.SUM:
            raise RuntimeError("unsupported reduction operation (allreduce of "
                               "sparse tensors only works with ReduceOp.SUM)")
        future, parts = _sparse.start_sum(self.engine, tensors[0], tensors)
        return self._done(future, parts=parts)

    @_timed
    def allreduce_coalesced(self, tensors: List[Tensor],
                            opts: Any = None) -> Any:
        """Allreduce of several tensors as one operation."""
        op = _op_of(opts)
        name, ours = _reduction(op)
        e = self.engine
        same = all(t.dtype == tensors[0].dtype for t in tensors)
        if ours is None or not same or \
                _tensor.number_of(tensors[0].dtype) is None:
            works = [self._sum(t, op, t.detach(), t) for t in tensors]
            return self._all(works, tensors)
        spans = e.acquire(tensors)
        srcs = [_tensor.summable(t, name) for t in tensors]
        outs = [t if t.is_contiguous() else torch.empty_like(s)
                for t, s in zip(tensors, srcs)]

        def finish() -> Any:
            for t, o in zip(tensors, outs):
                if t is not o:
                    t.detach().copy_(o)
            return tensors
        number = _tensor.number_of(srcs[0].dtype)
        assert number is not None
        return self._done(e.run(e.starter.allreduce_many(
            name, number, [(s.data_ptr(), o.data_ptr(), s.numel())
                           for s, o in zip(srcs, outs)],
            _tensor.placed(options(ours), _tensor.place_of(srcs[0]))),
            (srcs, outs), finish), spans=spans)

    def _all(self, works: Sequence[Any], value: Any) -> Any:
        futures = [w._future for w in works]
        every = torch.futures.collect_all(futures)

        def then(f: Any) -> Any:
            for one in f.value():
                one.value()  # Raises a failure.
            return value
        return self._done(every.then(then), parts=[
            part for w in works for part in w._parts])

    @_timed
    def reduce(self, tensors: Any, opts: Any = None, op: Any = None,
               timeout: Any = None, *, root: Optional[int] = None) -> Any:
        """Reduce; only the root's tensor is overwritten."""
        tensor = _one("reduce", _list(tensors))
        root = _root_of(opts, root)
        if isinstance(opts, int):
            opts = None
        return self._sum(tensor, _op_of(opts, op), tensor.detach()
                         if root == self.engine.rank else None, [tensor],
                         "reduce to rank %d" % root)

    @_timed
    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None,
                  *, root: Optional[int] = None) -> Any:
        """Broadcast in place."""
        tensors = _list(tensors)
        return self._done(_bcast(self.engine, _one("broadcast", tensors), tensors,
                                 _root_of(opts, root)))

    def _gather(self, tensor: Tensor, outs: Optional[Sequence[Tensor]],
                value: Any, call: str = "all_gather") -> Any:
        """Allgather into `outs`, by rank; None: discards the result. `call`:
        what the program wrote."""
        if outs is not None:
            _check_parts(call, "output", outs, self.engine.size, tensor)
        e = self.engine
        spans = e.acquire(outs or (), [tensor])
        raw = _tensor.Raw(tensor, max(1, tensor.numel() *
                                      tensor.element_size()))
        room = raw.new_rows(e.size)

        def finish() -> Any:
            for r, out in enumerate(outs or ()):
                raw.take(room, r, out.detach())
            return value
        dims = [1, raw.words] if tensor.numel() > 0 else [0, raw.words]
        words = _words([tensor], tensor.numel() * tensor.element_size())
        return self._done(e.run(e.starter.gather(
            "allgather", None if call == "all_gather" else call, _tensor.WORD,
            dims, raw.address, room.data_ptr(), room.numel(),
            _tensor.placed(options(words=words), raw.place)), (raw, room),
            finish), spans=spans)

    @_timed
    def allgather(self, outputs: List[List[Tensor]], inputs: List[Tensor],
                  opts: Any = None) -> Any:
        """Gathers the tensors of all ranks on every rank."""
        return self._gather(_one("all_gather", inputs), outputs[0], outputs)

    @_timed
    def allgather_coalesced(self, outputs: List[List[Tensor]],
                            inputs: List[Tensor], opts: Any = None) -> Any:
        """Gathers several tensors; outputs[rank][i]."""
        return self._all([self._gather(t, [o[i] for o in outputs], None)
                          for i, t in enumerate(inputs)], outputs)

    @_timed
    def _allgather_base(self, output: Tensor, tensor: Tensor,
                        opts: Any = None) -> Any:
        """Gathers into one tensor."""
        outs = list(output.detach().view(self.engine.size, -1).unbind(0)) \
            if output.is_contiguous() else \
            list(output.detach().chunk(self.engine.size))
        return self._gather(tensor, outs, output)

    all_gather_single = _allgather_base
    all_gather_into_tensor = _allgather_base

    @_timed
    def allgather_into_tensor_coalesced(self, outputs: List[Tensor],
                                        inputs: List[Tensor],
                                        opts: Any = None) -> Any:
        """Gathers several tensors into one tensor each."""
        return self._all([self._allgather_base(o, t)
                          for o, t in zip(outputs, inputs)], outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    @_timed
    def gather(self, outputs: Any, inputs: Any, opts: Any = None,
               timeout: Any = None, *, root: Optional[int] = None) -> Any:
        """Gathers the tensors of all ranks on the root."""
        root = _root_of(opts, root)
        if isinstance(inputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        return self._gather(inputs[0], outputs[0] if root == self.engine.rank
                            else None, outputs, "gather to rank %d" % root)

    @_timed
    def gather_single(self, output: Tensor, tensor: Tensor, opts: Any = None,
                      timeout: Any = None, *,
                      root: Optional[int] = None) -> Any:
        """Gathers into one tensor of the root."""
        root = _root_of(opts, root)
        outs = list(output.detach().view(self.engine.size, -1).unbind(0)) \
            if root == self.engine.rank else None
        return self._gather(tensor, outs, output, "gather to rank %d" % root)

    gather_into_tensor = gather_single

    @_timed
    def scatter(self, outputs: Any, inputs: Any, opts: Any = None,
                timeout: Any = None, *, root: Optional[int] = None) -> Any:
        """Sends one tensor of the root to each rank."""
        e = self.engine
        root = _root_of(opts, root)
        mine = root == e.rank
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        out = outputs[0].detach()
        call = "scatter from rank %d" % root
        if mine:
            _check_parts(call, "input", inputs[0], e.size, out)
        width = max(1, out.numel() * out.element_size())
        spans = e.acquire([out], inputs[0] if mine else ())
        given = torch.stack([t.detach().reshape(-1) for t in inputs[0]]) \
            if mine else out.new_empty((0, out.numel()))
        raw = _tensor.Raw(given, width)
        room = raw.new_rows(1)

        def finish() -> Any:
            raw.take(room, 0, out)
            return outputs
        words = _words([out], out.numel() * out.element_size())
        return self._done(e.run(e.starter.alltoall(
            call, _tensor.WORD, raw.dims(), None if mine else [0] * e.size,
            raw.address, room.data_ptr(), room.numel(),
            _tensor.placed(options(words=words), raw.place)), (raw, room),
            finish), spans=spans)

    def _scatter_sum(self, given: Tensor, op: Any, out: Tensor,
                     value: Any) -> Any:
        """Reduce-scatter; `given` has one row for each rank."""
        e = self.engine
        name, ours = _reduction(op)
        if ours is None:
            total = torch.empty_like(given)
            work = self._sum(given, op, total, None)

            def own(f: Any) -> Any:
                f.value()
                out.copy_(total[e.rank].view(out.shape))
                return value
            return self._done(work._future.then(own), parts=work._parts)
        spans = e.acquire([out], [given])
        src = _tensor.summable(given, name)
        number = _tensor.number_of(src.dtype)
        assert number is not None
        room = torch.empty(src.shape[1:], dtype=src.dtype, device=src.device)

        def finish() -> Any:
            out.copy_(room.view(out.shape))
            return value
        return self._done(e.run(e.starter.gather(
            "reducescatter", name, number, src.shape, src.data_ptr(),
            room.data_ptr(), room.numel() * room.element_size(),
            _tensor.placed(options(ours), _tensor.place_of(src))),
            (src, room), finish), spans=spans)

    @_timed
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None,
                       op: Any = None, timeout: Any = None) -> Any:
        """Reduces the i-th tensors of all ranks on rank i."""
        op = _op_of(opts, op)
        if isinstance(outputs, Tensor):
            outputs, inputs = [outputs], [inputs]
        e = self.engine
        out = _one("reduce_scatter", outputs).detach()
        parts = inputs[0]
        _check_parts("reduce_scatter", "input", parts, e.size, out, False)
        if parts[e.rank].numel() != out.numel():
            raise ValueError("reduce_scatter: the output has %d elements, "
                             "input tensor %d of this rank has %d" % (
                                 out.numel(), e.rank, parts[e.rank].numel()))
        e.acquire((), parts)
        if any(t.numel() != out.numel() for t in parts):
            return self._scatter_parts(parts, op, out, outputs)
        given = torch.stack([t.detach().reshape(-1) for t in parts])
        return self._scatter_sum(given, op, out, outputs)

    def _scatter_parts(self, parts: Sequence[Tensor], op: Any, out: Tensor,
                       value: Any) -> Any:
        """Reduce-scatter of parts of different sizes."""
        flat, counts = _tensor.flat_of(parts)
        total = torch.empty_like(flat)
        at = sum(counts[:self.engine.rank])
        work = self._sum(flat, op, total, None, "reduce_scatter")

        def own(f: Any) -> Any:
            f.value()
            out.copy_(total[at:at + out.numel()].view(out.shape))
            return value
        return self._done(work._future.then(own), parts=work._parts)

    @_timed
    def _reduce_scatter_base(self, output: Tensor, tensor: Tensor,
                             opts: Any = None) -> Any:
        """Reduce-scatter from one tensor."""
        op = _op_of(opts)
        given = tensor.detach().reshape(self.engine.size, -1)
        return self._scatter_sum(given, op, output.detach(), output)

    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_tensor = _reduce_scatter_base

    @_timed
    def reduce_scatter_tensor_coalesced(self, outputs: List[Tensor],
                                        inputs: List[Tensor],
                                        opts: Any = None) -> Any:
        """Reduce-scatter of several tensors."""
        return self._all([self._reduce_scatter_base(o, t, opts)
                          for o, t in zip(outputs, inputs)], outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def _exchange(self, given: Tensor, width: int,
                  splits: Optional[Sequence[int]], outs: Sequence[Tensor],
                  value: Any) -> Any:
        """Alltoall with rows of `width` bytes; `outs` by rank."""
        e = self.engine
        spans = e.acquire(outs, [given])
        raw = _tensor.Raw(given, width)
        rows = [o.numel() * o.element_size() // width for o in outs]
        room = raw.new_rows(sum(rows))

        def finish() -> Any:
            at = 0
            for out, count in zip(outs, rows):
                raw.take(room, at, out)
                at += count
            return value
        return self._done(e.run(e.starter.alltoall(
            None, _tensor.WORD, raw.dims(), splits, raw.address, room.data_ptr(),
            room.numel(), _tensor.placed(options(), raw.place)), (raw, room),
            finish), spans=spans)

    @_timed
    def alltoall(self, outputs: List[Tensor], inputs: List[Tensor],
                 opts: Any = None) -> Any:
        """Sends inputs[i] to rank i."""
        for what, parts in ("input", inputs), ("output", outputs):
            _check_parts("all_to_all", what, parts, self.engine.size,
                         inputs[0], False)
        self.engine.acquire((), inputs)
        flat, counts = _tensor.flat_of(inputs)
        return self._exchange(flat, flat.element_size(), counts,
                              [o.detach() for o in outputs], outputs)

    @_timed
    def alltoall_base(self, output: Tensor, tensor: Tensor,
                      output_splits: List[int], input_splits: List[int],
                      opts: Any = None) -> Any:
        """Sends rows of one tensor to each rank."""
        size = self.engine.size
        if output.dtype != tensor.dtype:
            raise ValueError("all_to_all_single: the output is %s, the input "
                             "is %s" % (_tensor.name_of(output.dtype),
                                        _tensor.name_of(tensor.dtype)))
        out = output.detach()
        outs = list(out.split(list(output_splits))) if output_splits else \
            list(out.chunk(size))
        return self._exchange(tensor, max(1, _tensor.row_bytes(tensor)),
                              list(input_splits) or None, outs, output)

    all_to_all_single = alltoall_base

    def barrier(self, opts: Any = None, timeout: Any = None) -> Any:
        """Starts a barrier."""
        if timeout is None:
            timeout = getattr(opts, "timeout", None)
        return self._done(self.engine.barrier(seconds(timeout)))

    def monitored_barrier(self, timeout: Any = None,
                          wait_all_ranks: bool = False) -> None:
        """Waits for all ranks. The error of rank 0 names the first missing
        rank, or all of them; the other ranks fail then, too."""
        if self._monitored is None:
            self.engine.wait_barrier()
            return
        limit = seconds(timeout)
        self._monitored.wait(self.engine.timeout if limit is None else limit,
                             wait_all_ranks)

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Sends to a rank; ends when that rank receives."""
        e = self.engine
        future = e.pipe(e.rank, dst, tag).move(tensors[0], tensors)
        if self._mail is not None:
            self._mail.sent(dst, tag, future)
        return self._done(future)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receives the next tensor that the rank sends with this tag."""
        e = self.engine
        if self._mail is not None:
            self._mail.received(src, tag)
        return self._done(e.pipe(src, e.rank, tag).move(tensors[0], tensors),
                          src)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """Receives the next tensor that any rank sends with this tag."""
        e = self.engine
        if self._mail is None:
            raise RuntimeError("the group has no store to find a sender by")
        future: "torch.futures.Future[Any]" = torch.futures.Future()
        work = self._done(future)
        _tensor.explain(future, lambda: "recv from any rank with tag %d is "
                        "open: no rank has sent with it" % tag)

        def start(sender: int) -> None:
            work._sender = sender
            moving = e.pipe(sender, e.rank, tag).move(tensors[0], tensors)
            work._parts[:] = [moving]
            chain(moving, future)
        self._mail.receive(tag, start, future.set_exception)
        return work

    recvAnysource = recv_anysource

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._count

    def __del__(self) -> None:
        engine = self.__dict__.get("engine")
        if engine is not None:
            engine.close()


# Seconds that the ranks have at least to meet in a job whose name they know.
_LEAST_S = 1.0
_MEETING = "for all ranks in init_process_group() or new_group(): %s"


def _learn(store: Any, key: str, limit: Optional[float], size: int) -> str:
    """What rank 0 has set in torch's store, within a time limit."""
    end = end_of(limit)
    try:
        if limit is not None:
            store.wait([key], timedelta(seconds=limit))
        return str(store.get(key).decode())
    except RuntimeError as e:
        if end is None or time.monotonic() < end:
            raise
        raise _engine.failure_of(
            TIMEOUT, _MEETING % "have no name of a job from the store of "
            "torch; missing: rank 0 of %d" % size, limit) from e


def create_engine(store: Any, rank: int, size: int,
                  timeout: Any) -> Engine:
    """Joins the group's job. Rank 0 makes its name and passes it through
    torch's store. The store may be that of an earlier group of the same name:
    each rank counts the groups that it has joined."""
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else None
    end = end_of(limit)
    turn = store.add("pskv.turns.%d" % rank, 1)
    if rank == 0:
        name = "%s-%s" % (os.environ.get("PSKV_JOB", "torch")[:40],
                          uuid.uuid4().hex[:12])
        store.set("pskv.job.%d" % turn, name)
    else:
        name = _learn(store, "pskv.job.%d" % turn, limit, size)
    left = None if end is None else max(end - time.monotonic(), _LEAST_S)
    try:
        kv = create("dist_sync", job=name, rank=rank, num_workers=size,
                    start_timeout=left)
    except JobFailed as e:
        if end is None or "was not complete after" not in str(e):
            raise
        raise _engine.failure_of(TIMEOUT, _MEETING % str(e), limit) from e
    return Engine(kv, limit, dist.PrefixStore(name, store))


def create_group(store: Any, rank: int, size: int,
                 timeout: Any) -> ProcessGroup:
    """Constructor that torch.distributed calls."""
    return ProcessGroup(create_engine(store, rank, size, timeout))


def create_group_of_options(opts: Any, pg_options: Any) -> ProcessGroup:
    """Constructor that torch 2 calls."""
    if getattr(opts, "enable_reconfigure", False):
        raise NotImplementedError(
            "init_process_group('pskv', enable_reconfigure=True): the ranks of "
            "a job of pskv are fixed; leave enable_reconfigure out")
    kind = torch._C._distributed_c10d.Backend.Options
    if pg_options is not None and type(pg_options) is not kind:
        warn_once("pg_options of type %s have no effect with the backend pskv"
                  % type(pg_options).__name__)
    return create_group(opts.store, opts.group_rank, opts.group_size,
                        opts.timeout)


def register() -> None:
    """Registers the backend, once."""
    if hasattr(dist.Backend, "PSKV"):
        return
    try:
        dist.Backend.register_backend("pskv", create_group_of_options, True,
                                      ["cpu", "cuda"])
    except TypeError:  # torch 1.13 lacks `devices`.
        dist.Backend.register_backend("pskv", create_group)
        _admit_monitored_barrier()
        _end_groups_of_torch_1()


def _admit_monitored_barrier() -> None:
    """torch 1.13 refuses monitored_barrier() of any backend that is not called
    gloo; with this, not of this one."""
    c10d = dist.distributed_c10d
    refusing = c10d.monitored_barrier

    @functools.wraps(refusing)
    def monitored_barrier(group: Any = None, timeout: Any = None,
                          wait_all_ranks: bool = False) -> None:
        if c10d._rank_not_in_group(group) or \
                dist.get_backend(group) != "pskv":
            refusing(group, timeout, wait_all_ranks)
            return
        if group is None:
            group = c10d._get_default_group()
        group.monitored_barrier(timeout, wait_all_ranks)

    c10d.monitored_barrier = dist.monitored_barrier = monitored_barrier


# Stores of torch 1, by address: a server of a store that ended with its group
# would cut ranks off that are about to make the next group.
_stores: Dict[Tuple[Optional[str], Optional[str]], Any] = {}


def _end_groups_of_torch_1() -> None:
    """torch 1 forgets groups without ending them, and counts the ranks of a
    group in the store under a number that begins again behind
    destroy_process_group(): with this, groups end, and their ranks meet in
    their job."""
    c10d = dist.distributed_c10d
    forgetting, counting = c10d.destroy_process_group, c10d._store_based_barrier

    @functools.wraps(forgetting)
    def destroy_process_group(group: Any = None) -> None:
        every = group is None or group is dist.group.WORLD
        ended = list(c10d._pg_map) if every else [group]
        forgetting(group)
        for one in ended:
            if isinstance(one, ProcessGroup):
                one.shutdown()

    @functools.wraps(counting)
    def store_based_barrier(rank: int, store: Any, timeout: Any) -> None:
        world = c10d._get_default_group()
        if not isinstance(world, ProcessGroup):
            counting(rank, store, timeout)
            return
        _stores[os.environ.get("MASTER_ADDR"),
                os.environ.get("MASTER_PORT")] = store
        world.engine.wait_barrier()

    c10d.destroy_process_group = destroy_process_group
    dist.destroy_process_group = destroy_process_group
    c10d._store_based_barrier = store_based_barrier
