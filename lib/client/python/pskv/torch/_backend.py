# SPDX-License-Identifier: Apache-2.0
"""The backend 'pskv' of torch.distributed: a process group with its own job.
One thread for each group waits for operations and completes their futures,
so that communication continues while the program computes."""
# torch passes arguments by name, used or not.
# pylint: disable=unused-argument
from __future__ import annotations

import atexit
import collections
import ctypes
import os
import queue
import threading
import uuid
import weakref
from ctypes import byref, c_void_p
from datetime import timedelta
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist
from torch import Tensor

from .. import _lib
from .._collective import Starter, options
from .._errors import AGAIN, TIMEOUT, Error, error
from .._store import KVStore, create
from . import _tensor
from ._pipe import Pipe

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
    raise ValueError("pskv has no reduction %s" % op)


class _Item:
    """An open operation."""

    __slots__ = ("op", "future", "held", "finish", "value")

    def __init__(self, op: int, held: Any, finish: Optional[Callable[[], Any]],
                 value: Any) -> None:
        self.op = op
        self.future: "torch.futures.Future[Any]" = torch.futures.Future()
        self.held = held
        self.finish = finish
        self.value = value


class Engine:
    """Starts operations of a store and completes them on a thread."""

    def __init__(self, kv: KVStore, timeout: Optional[float]) -> None:
        self.kv = kv
        self.size = kv.num_workers
        self.rank = kv.rank
        self.timeout = timeout
        self._lib = kv._lib
        self.starter = Starter(kv._lib, kv._open())
        self._queue: "queue.SimpleQueue[Optional[_Item]]" = queue.SimpleQueue()
        self._closed = False
        self._lock = threading.Lock()
        self._pipes: Dict[Tuple[int, int, int], Pipe] = {}
        self._thread = threading.Thread(target=_work, daemon=True,
                                        name="pskv",
                                        args=(kv._lib, self._queue, timeout))
        self._thread.start()
        _engines.add(self)

    def fail(self, rc: int) -> Error:
        """The exception of a failed call."""
        return _error(self._lib, self.kv._c, rc)

    def run(self, started: Tuple[int, int], held: Any,
            finish: Optional[Callable[[], Any]] = None,
            value: Any = None) -> "torch.futures.Future[Any]":
        """A future of a started operation, which keeps `held` alive."""
        rc, op = started
        if rc != 0:
            raise self.fail(rc)
        item = _Item(op, held, finish, value)
        future = item.future
        self._queue.put(item)
        return future

    def barrier(self) -> "torch.futures.Future[Any]":
        """Starts a barrier."""
        op = c_void_p()
        rc = self._lib.psc_barrier_start(self.kv._open(), None, byref(op))
        return self.run((rc, op.value or 0), None)

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
                found = Pipe(open_engine, _bcast)
                self._pipes[sender, receiver, tag] = found
            return found

    def close(self) -> None:
        """Leaves the job; open operations fail."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            pipes = list(self._pipes.values())
        _engines.discard(self)
        for pipe in pipes:
            pipe.close()
        if self.kv._alive() and not self.kv._left:
            self._lib.psc_leave(self.kv._c)
        self._queue.put(None)
        if self._thread is not threading.current_thread() and \
                os.getpid() == self.kv._pid:
            self._thread.join()
        self.kv.close()


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


def close_all() -> None:
    """Closes all engines at exit: no thread may outlive the interpreter."""
    for engine in list(_engines):
        engine.close()


atexit.register(close_all)


def _error(lib: Any, client: Any, rc: int) -> Error:
    text = ctypes.create_string_buffer(_lib.TEXT_MAX)
    lib.psc_last_detail(client, text, len(text))
    return error(rc, text.value.decode(errors="replace") or
                 lib.psc_strerror(rc).decode())


def _ended(lib: Any, op: int, timeout: Optional[float]) -> Optional[Error]:
    limit = _lib.WAIT_FOREVER
    if timeout is not None:
        limit = min(int(timeout * 1000), 2**31 - 1)
    rc = lib.psc_op_wait(op, limit)
    if rc == 0:
        return None
    text = ctypes.create_string_buffer(_lib.TEXT_MAX)
    # The reason why an open operation waits, or how an ended one ended.
    lib.psc_op_why(op, text, len(text))
    if rc == TIMEOUT and lib.psc_op_test(op) != AGAIN:
        rc = lib.psc_op_test(op)
        if rc == 0:
            return None
    return error(rc, text.value.decode(errors="replace"))


def _work(lib: Any, items: "queue.SimpleQueue[Optional[_Item]]",
          timeout: Optional[float]) -> None:
    torch.set_grad_enabled(False)  # Thread-local setting.
    while True:
        item = items.get()
        if item is None:
            return
        failure: Optional[BaseException] = _ended(lib, item.op, timeout)
        value = item.value
        if failure is None and item.finish is not None:
            try:
                value = item.finish()
            except Exception as e:  # pylint: disable=broad-except
                failure = e
        lib.psc_op_free(item.op)
        if failure is None:
            item.future.set_result(value)
        else:
            item.future.set_exception(failure)
        del item, value, failure


def _bcast(e: Engine, tensor: Tensor, value: Any,
           root: int = 0) -> "torch.futures.Future[Any]":
    """Broadcasts the root's `tensor`; returns a future of `value`."""
    tensor = tensor.detach()
    raw = _tensor.Raw(tensor, max(1, tensor.numel() * tensor.element_size()))
    direct = raw.tensor.data_ptr() == tensor.data_ptr()

    def finish() -> Any:
        if not direct and root != e.rank:
            raw.take(raw.bytes(), 0, tensor)
        return value
    if tensor.numel() == 0:
        raw.words = 0
    return e.run(e.starter.bcast(
        None, _tensor.WORD, [raw.words], raw.address, raw.address,
        options(root=root)), raw, finish)


# Works kept alive: torch's C++ code may use them while it holds only the C++
# part.
_RECENT = 64


class Work(torch._C._distributed_c10d.Work):  # type: ignore[misc]
    """An open collective, to be waited for or converted to a future."""

    def __init__(self, future: "torch.futures.Future[Any]") -> None:
        super().__init__()
        self._future = future

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Waits for the end. Raises the failure, or TimeoutError."""
        if timeout > timedelta(0) and not self._future.done():
            ended = threading.Event()
            self._future.add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout.total_seconds()):
                raise TimeoutError("a collective is still open after %g s" %
                                   timeout.total_seconds())
        self._future.wait()
        return True

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def get_future(self) -> "torch.futures.Future[Any]":
        """A future of the caller's result tensors."""
        return self._future

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


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group of torch.distributed. Its collectives start in the same
    order on all ranks; if ranks make different requests, all get an error
    that lists each rank's request."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.rank, engine.size)
        self.engine = engine
        self._recent: Deque[Work] = collections.deque(maxlen=_RECENT)

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        """Name of the backend."""
        return "pskv"

    _get_backend_name = getBackendName

    # ------------------------------------------------------------- helpers

    def _done(self, future: "torch.futures.Future[Any]") -> Any:
        work = Work(future)
        self._recent.append(work)
        return work

    def _sum(self, tensor: Tensor, op: Any, out: Optional[Tensor],
             value: Any) -> Any:
        """Allreduce of `tensor` into `out`, which may be the same."""
        e = self.engine
        name, ours = _reduction(op)
        src = _tensor.summable(tensor)
        number = _tensor.number_of(src.dtype)
        if ours is None:
            return self._fold(src, name, out, value)
        assert number is not None
        to = out
        if out is None or not out.is_contiguous() or out.dtype != src.dtype:
            to = None if out is None else torch.empty_like(src)

        def finish() -> Any:
            if out is not None and to is not out:
                out.copy_(to)
            return value
        return self._done(e.run(e.starter.allreduce(
            None, number, src.shape, src.data_ptr(),
            None if to is None else to.data_ptr(), options(ours)),
            (src, to), finish, value))

    def _fold(self, src: Tensor, name: str, out: Optional[Tensor],
              value: Any) -> Any:
        """Reductions that the library lacks: all tensors are gathered and
        reduced locally."""
        e = self.engine
        fold = _LOCAL[name]
        every = torch.empty((e.size, *src.shape), dtype=src.dtype)
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
            options()), src, finish))

    # ------------------------------------------------------------- classic

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        """Allreduce in place."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        op = dist.ReduceOp.SUM if opts is None else \
            getattr(opts, "reduceOp", opts)
        return self._sum(tensors[0], op, tensors[0].detach(), tensors)

    def allreduce_coalesced(self, tensors: List[Tensor],
                            opts: Any = None) -> Any:
        """Allreduce of several tensors as one operation."""
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        name, ours = _reduction(op)
        e = self.engine
        same = all(t.dtype == tensors[0].dtype for t in tensors)
        if ours is None or not same or \
                _tensor.number_of(tensors[0].dtype) is None:
            works = [self._sum(t, op, t.detach(), t) for t in tensors]
            return self._all(works, tensors)
        srcs = [_tensor.summable(t) for t in tensors]
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
                           for s, o in zip(srcs, outs)], options(ours)),
            (srcs, outs), finish))

    def _all(self, works: Sequence[Any], value: Any) -> Any:
        futures = [w.get_future() for w in works]
        every = torch.futures.collect_all(futures)

        def then(f: Any) -> Any:
            for one in f.value():
                one.value()  # Raises a failure.
            return value
        return self._done(every.then(then))

    def reduce(self, tensors: Any, opts: Any) -> Any:
        """Reduce; only the root's tensor is overwritten."""
        tensor = tensors[0] if not isinstance(tensors, Tensor) else tensors
        mine = opts.rootRank == self.engine.rank
        return self._sum(tensor, opts.reduceOp,
                         tensor.detach() if mine else None, [tensor])

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """Broadcast in place."""
        tensors = [tensors] if isinstance(tensors, Tensor) else tensors
        root = opts if isinstance(opts, int) else opts.rootRank
        return self._done(_bcast(self.engine, tensors[0], tensors, root))

    def _gather(self, tensor: Tensor, outs: Optional[Sequence[Tensor]],
                value: Any) -> Any:
        """Allgather into `outs`, by rank; None: discards the result."""
        e = self.engine
        raw = _tensor.Raw(tensor, max(1, tensor.numel() *
                                      tensor.element_size()))
        room = raw.room(e.size)

        def finish() -> Any:
            for r, out in enumerate(outs or ()):
                raw.take(room, r, out.detach())
            return value
        dims = [1, raw.words] if tensor.numel() > 0 else [0, raw.words]
        return self._done(e.run(e.starter.gather(
            "allgather", None, _tensor.WORD, dims, raw.address, room.data_ptr(),
            room.numel(), options()), (raw, room), finish))

    def allgather(self, outputs: List[List[Tensor]], inputs: List[Tensor],
                  opts: Any = None) -> Any:
        """Gathers the tensors of all ranks on every rank."""
        return self._gather(inputs[0], outputs[0], outputs)

    def allgather_coalesced(self, outputs: List[List[Tensor]],
                            inputs: List[Tensor], opts: Any = None) -> Any:
        """Gathers several tensors; outputs[rank][i]."""
        return self._all([self._gather(t, [o[i] for o in outputs], None)
                          for i, t in enumerate(inputs)], outputs)

    def _allgather_base(self, output: Tensor, tensor: Tensor,
                        opts: Any = None) -> Any:
        """Gathers into one tensor."""
        outs = list(output.detach().view(self.engine.size, -1).unbind(0)) \
            if output.is_contiguous() else \
            list(output.detach().chunk(self.engine.size))
        return self._gather(tensor, outs, output)

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(self, outputs: List[Tensor],
                                        inputs: List[Tensor],
                                        opts: Any = None) -> Any:
        """Gathers several tensors into one tensor each."""
        return self._all([self._allgather_base(o, t)
                          for o, t in zip(outputs, inputs)], outputs)

    def gather(self, outputs: List[List[Tensor]], inputs: List[Tensor],
               opts: Any) -> Any:
        """Gathers the tensors of all ranks on the root."""
        mine = opts.rootRank == self.engine.rank
        return self._gather(inputs[0], outputs[0] if mine else None, outputs)

    def scatter(self, outputs: List[Tensor], inputs: List[List[Tensor]],
                opts: Any) -> Any:
        """Sends one tensor of the root to each rank."""
        e = self.engine
        out = outputs[0].detach()
        width = max(1, out.numel() * out.element_size())
        mine = opts.rootRank == e.rank
        given = torch.stack([t.detach().reshape(-1) for t in inputs[0]]) \
            if mine else out.new_empty((0, out.numel()))
        raw = _tensor.Raw(given, width)
        room = raw.room(1)

        def finish() -> Any:
            raw.take(room, 0, out)
            return outputs
        return self._done(e.run(e.starter.alltoall(
            None, _tensor.WORD, raw.dims(), None if mine else [0] * e.size,
            raw.address, room.data_ptr(), room.numel(), options()),
            (raw, room), finish))

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
            return self._done(work.get_future().then(own))
        src = _tensor.summable(given)
        number = _tensor.number_of(src.dtype)
        assert number is not None
        room = torch.empty(src.shape[1:], dtype=src.dtype)

        def finish() -> Any:
            out.copy_(room.view(out.shape))
            return value
        return self._done(e.run(e.starter.gather(
            "reducescatter", name, number, src.shape, src.data_ptr(),
            room.data_ptr(), room.numel() * room.element_size(),
            options(ours)), (src, room), finish))

    def reduce_scatter(self, outputs: List[Tensor],
                       inputs: List[List[Tensor]], opts: Any = None) -> Any:
        """Reduces the i-th tensors of all ranks on rank i."""
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        given = torch.stack([t.detach().reshape(-1) for t in inputs[0]])
        return self._scatter_sum(given, op, outputs[0].detach(), outputs)

    def _reduce_scatter_base(self, output: Tensor, tensor: Tensor,
                             opts: Any = None) -> Any:
        """Reduce-scatter from one tensor."""
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        given = tensor.detach().reshape(self.engine.size, -1)
        return self._scatter_sum(given, op, output.detach(), output)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(self, outputs: List[Tensor],
                                        inputs: List[Tensor],
                                        opts: Any = None) -> Any:
        """Reduce-scatter of several tensors."""
        return self._all([self._reduce_scatter_base(o, t, opts)
                          for o, t in zip(outputs, inputs)], outputs)

    def _exchange(self, given: Tensor, width: int,
                  splits: Optional[Sequence[int]], outs: Sequence[Tensor],
                  value: Any) -> Any:
        """Alltoall with rows of `width` bytes; `outs` by rank."""
        e = self.engine
        raw = _tensor.Raw(given, width)
        rows = [o.numel() * o.element_size() // width for o in outs]
        room = raw.room(sum(rows))

        def finish() -> Any:
            at = 0
            for out, count in zip(outs, rows):
                raw.take(room, at, out)
                at += count
            return value
        return self._done(e.run(e.starter.alltoall(
            None, _tensor.WORD, raw.dims(), splits, raw.address, room.data_ptr(),
            room.numel(), options()), (raw, room), finish))

    def alltoall(self, outputs: List[Tensor], inputs: List[Tensor],
                 opts: Any = None) -> Any:
        """Sends inputs[i] to rank i."""
        flat, counts = _tensor.flat_of(inputs)
        return self._exchange(flat, flat.element_size(), counts,
                              [o.detach() for o in outputs], outputs)

    def alltoall_base(self, output: Tensor, tensor: Tensor,
                      output_splits: List[int], input_splits: List[int],
                      opts: Any = None) -> Any:
        """Sends rows of one tensor to each rank."""
        size = self.engine.size
        out = output.detach()
        outs = list(out.split(list(output_splits))) if output_splits else \
            list(out.chunk(size))
        return self._exchange(tensor, max(1, _tensor.row_bytes(tensor)),
                              list(input_splits) or None, outs, output)

    def barrier(self, opts: Any = None) -> Any:
        """Starts a barrier."""
        return self._done(self.engine.barrier())

    def monitored_barrier(self, *_: Any, **__: Any) -> None:
        """Waits for a barrier; the error of a time-out names the missing
        ranks."""
        self.engine.barrier().wait()

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """Sends to a rank; ends when that rank receives."""
        e = self.engine
        return self._done(e.pipe(e.rank, dst, tag).move(tensors[0], tensors))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """Receives the next tensor that the rank sends with this tag."""
        e = self.engine
        return self._done(e.pipe(src, e.rank, tag).move(tensors[0], tensors))

    def recv_anysource(self, *_: Any) -> Any:
        """Unsupported: a pipe needs a known sender."""
        raise NotImplementedError(
            "the backend pskv receives from a rank that recv names, not from "
            "any: name it")

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return 0

    # Interface of torch 2.

    def _get_backend(self, device: Any) -> Any:
        if torch.device(device).type == "cpu":
            return self
        return super()._get_backend(device)

    def abort(self) -> None:
        """Leaves the job; open operations fail."""
        self.engine.close()

    def shutdown(self) -> None:
        """Leaves the job; open operations fail."""
        self.engine.close()

    def __del__(self) -> None:
        engine = self.__dict__.get("engine")
        if engine is not None:
            engine.close()


def create_engine(store: Any, rank: int, size: int,
                  timeout: Any) -> Engine:
    """Joins the group's job. Rank 0 makes its name and passes it through
    torch's store."""
    if rank == 0:
        name = "%s-%s" % (os.environ.get("PSKV_JOB", "torch")[:40],
                          uuid.uuid4().hex[:12])
        store.set("pskv", name)
    else:
        name = store.get("pskv").decode()
    limit = timeout.total_seconds() if isinstance(timeout, timedelta) else None
    kv = create("dist_sync", job=name, rank=rank, num_workers=size,
                on_loss=None if "PSKV_ON_LOSS" in os.environ else "fail",
                start_timeout=limit)
    return Engine(kv, limit)


def create_group(store: Any, rank: int, size: int,
                 timeout: Any) -> ProcessGroup:
    """Constructor that torch.distributed calls."""
    return ProcessGroup(create_engine(store, rank, size, timeout))


def register() -> None:
    """Registers the backend, once."""
    if hasattr(dist.Backend, "PSKV"):
        return
    try:
        dist.Backend.register_backend("pskv", create_group, devices=["cpu"])
    except TypeError:  # torch 1.13 lacks `devices`.
        dist.Backend.register_backend("pskv", create_group)
