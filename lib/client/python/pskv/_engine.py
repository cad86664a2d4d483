# SPDX-License-Identifier: Apache-2.0
"""Open collectives of a store and the threads that complete their futures, so
that communication continues while the program computes."""
from __future__ import annotations

import atexit
import bisect
import ctypes
import functools
import os
import queue
import threading
import weakref
from ctypes import byref, c_void_p
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from . import _lib
from ._collective import Starter
from ._errors import (AGAIN, CLOSED, JOBFAILED, PEERLOST, TIMEOUT, Error,
                      begin_exit, check_open_allowed, error, program_failed)
from ._store import KVStore


class _Item:
    """An open operation. `ended` gets its failure, or None, before its future
    completes; True: it completes the future later."""

    __slots__ = ("op", "future", "buffers", "finish", "value", "ended",
                 "limit", "lock")

    def __init__(self, op: int, buffers: Any,
                 finish: Optional[Callable[[], Any]], value: Any, future: Any,
                 ended: Optional[Callable[[Optional[BaseException]], bool]]
                 ) -> None:
        self.op = op
        self.future = future
        self.buffers = buffers
        self.finish = finish
        self.value = value
        self.ended = ended
        self.limit: Optional[float] = None  # Instead of the engine's.
        self.lock = threading.Lock()  # Held where `op` is used or freed.

    def why(self, lib: Any) -> str:
        """Why the operation is open, and for which ranks it waits; '': it has
        ended."""
        with self.lock:
            return _why(lib, self.op) if self.op else ""

    def free(self, lib: Any) -> None:
        """Frees the operation, which has ended or is given up."""
        with self.lock:
            lib.psc_op_free(self.op)
            self.op = 0


# Functions that know why an open future is not complete, by its id().
_reasons: Dict[int, Callable[[], str]] = {}


def explain(future: Any, reason: Callable[[], str]) -> None:
    """Until the future completes, why() has the reason."""
    _reasons[id(future)] = reason


def explained(future: Any) -> None:
    """The future is about to complete."""
    _reasons.pop(id(future), None)


def why(futures: Iterable[Any]) -> str:
    """Why the first open one of some futures is not complete; '': none is open.
    Asks the agent, for at most five seconds."""
    for future in futures:
        reason = _reasons.get(id(future))
        text = reason() if reason is not None and not future.done() else ""
        if text:
            return text
    return ""


class InFlight:
    """Memory that open operations read or write. What would read memory that
    another one is to write, or write what another one reads, waits for it: a
    result has one owner."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # (first byte, number, end, is written, future), by the first byte.
        self._spans: List[Tuple[int, int, int, bool, Any]] = []
        self._count = 0
        self._longest = 0

    def others(self, spans: Iterable[Tuple[int, int, bool]]) -> List[Any]:
        """Futures of open operations that an operation on (first byte, end, is
        written) must wait for."""
        with self._lock:
            return [] if not self._spans else [
                future for low, high, writes in spans
                for _, _, end, written, future in self._spans[
                    bisect.bisect_left(self._spans, (low - self._longest,)):
                    bisect.bisect_left(self._spans, (high,))]
                if end > low and (writes or written)]

    def add(self, spans: Iterable[Tuple[int, int, bool]], future: Any) -> None:
        """Notes the memory of an operation until its future completes."""
        with self._lock:
            new = []
            for low, high, writes in spans:
                self._count += 1
                new.append((low, self._count, high, writes, future))
                bisect.insort(self._spans, new[-1])
                self._longest = max(self._longest, high - low)
        future.add_done_callback(lambda _: self._remove(new))

    def _remove(self, items: List[Tuple[int, int, int, bool, Any]]) -> None:
        with self._lock:
            for item in items:
                at = bisect.bisect_left(self._spans, item[:2])
                del self._spans[at]
            if not self._spans:
                self._longest = 0


in_flight = InFlight()


class _Closed:
    """The starter of a closed engine."""

    def __getattr__(self, name: str) -> Any:
        raise error(CLOSED, "[pskv] Connection closed by this rank: the "
                    "process group has been destroyed")


class Engine:
    """Starts operations of a store and completes their futures, which have
    set_result() and set_exception(), on threads."""

    # Makes the future of an operation that is given none.
    new_future: Any = None

    @staticmethod
    def prepare_thread() -> None:
        """Called by each thread that completes futures."""

    def __init__(self, kv: KVStore, timeout: Optional[float]) -> None:
        self.kv = kv
        self.size = kv.num_workers
        self.rank = kv.rank
        self.timeout = timeout
        self._lib = kv._lib
        self.starter: Any = Starter(kv._lib, kv._open())
        self._closed = False
        self._lock = threading.Lock()
        self._parts: List[Any] = []
        self._waiters = _Waiters(kv._lib, timeout, self.prepare_thread)
        _engines.add(self)
        try:
            check_open_allowed()
        except Error:
            kv._leave_at_exit()
            self.close()
            raise

    def __reduce__(self) -> Any:
        raise TypeError("a connection to a job of pskv, as a process group or "
                        "a state of its hook has one, cannot be copied, "
                        "pickled or sent to another process: each process "
                        "makes its own")

    def fail(self, rc: int) -> Error:
        """The exception of a failed call."""
        return _error(self._lib, self.kv._c, rc)

    def run(self, started: Tuple[int, int], buffers: Any,
            finish: Optional[Callable[[], Any]] = None,
            value: Any = None, future: Optional[Any] = None,
            ended: Optional[Callable[[Optional[BaseException]], bool]] = None,
            limit: Optional[float] = None) -> Any:
        """A future of a started operation, which keeps `buffers` alive.
        `limit`: its own time limit."""
        rc, op = started
        if rc != 0:
            raise self.fail(rc)
        of = self.new_future() if future is None else future
        item = _Item(op, buffers, finish, value, of, ended)
        item.limit = limit
        explain(of, functools.partial(item.why, self._lib))
        self._waiters.put(item)
        return of

    def _start_barrier(self) -> Tuple[int, int]:
        op = c_void_p()
        rc = self._lib.psc_barrier_start(self.kv._open(), None, byref(op))
        return rc, op.value or 0

    def barrier(self, limit: Optional[float] = None) -> Any:
        """Starts a barrier, with its own time limit or the engine's."""
        return self.run(self._start_barrier(), None, limit=limit)

    def set_timeout(self, timeout: Optional[float]) -> None:
        """Sets the time limit of operations, from now on."""
        self.timeout = timeout
        self._waiters.timeout = timeout

    def wait_barrier(self) -> None:
        """Waits for a barrier, on this thread: collectives that other ranks
        start before theirs may need operations of this rank."""
        rc, op = self._start_barrier()
        if rc != 0:
            raise self.fail(rc)
        failure = _ended(self._lib, op, self.timeout, True)
        self._lib.psc_op_free(op)
        if failure is not None:
            raise failure

    def adopt(self, part: Any) -> None:
        """Closes `part`, by its close(), when the engine is closed."""
        with self._lock:
            self._parts.append(part)

    def close(self) -> None:
        """Leaves the job; open operations fail."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.starter = _Closed()
            parts = list(self._parts)
        _engines.discard(self)
        for part in parts:
            part.close()
        if self.kv._alive() and not self.kv._left:
            self._lib.psc_leave(self.kv._c)
        self._waiters.close(os.getpid() == self.kv._pid)
        self.kv.close()


_engines: "weakref.WeakSet[Engine]" = weakref.WeakSet()


def close_all() -> None:
    """Closes all engines at exit: no thread may outlive the interpreter. If an
    exception ended the program, its jobs treat this worker as failed."""
    begin_exit()
    if program_failed():
        for engine in list(_engines):
            engine.kv._abort()
    for engine in list(_engines):
        engine.close()


atexit.register(close_all)


def _error(lib: Any, client: Any, rc: int) -> Error:
    text = ctypes.create_string_buffer(_lib.TEXT_MAX)
    lib.psc_last_detail(client, text, len(text))
    return failure_of(rc, text.value.decode(errors="replace") or
                      lib.psc_strerror(rc).decode())


def failure_of(rc: int, text: str, limit: Optional[float] = None) -> Error:
    """The exception of a failure. Its text has the words of gloo that scripts
    look for."""
    if rc == TIMEOUT:
        text = "[pskv] Timed out %s: %s" % (
            "waiting" if limit is None else
            "waiting %dms" % round(limit * 1000), text)
    elif rc in (CLOSED, JOBFAILED, PEERLOST):
        text = "[pskv] Connection closed by peer: %s" % text
    return error(rc, text)


def _why(lib: Any, op: int) -> str:
    """The reason why an open operation waits, or how an ended one ended."""
    text = ctypes.create_string_buffer(_lib.TEXT_MAX)
    lib.psc_op_why(op, text, len(text))
    return text.value.decode(errors="replace")


def _ended(lib: Any, op: int, timeout: Optional[float],
           is_guard: bool) -> Optional[Error]:
    """`is_guard`: the time limit is that of the group, which only guards
    against a wait without end."""
    limit = _lib.WAIT_FOREVER
    if timeout is not None:
        limit = min(int(timeout * 1000), 2**31 - 1)
    rc = (lib.psc_op_wait_slice if is_guard else lib.psc_op_wait)(op, limit)
    if rc == 0:
        return None
    text = _why(lib, op)
    if rc == TIMEOUT and lib.psc_op_test(op) != AGAIN:
        rc = lib.psc_op_test(op)
        if rc == 0:
            return None
    return failure_of(rc, text, timeout)


# Seconds for which close() waits for each continuation of a future.
_CONTINUATION_S = 5.0


class _Waiters:
    """Threads that wait for operations, in the order of their start, and
    complete their futures. One at a time waits; before it completes a future
    it passes the turn to another one, so that a continuation of the future
    may wait for later operations."""

    def __init__(self, lib: Any, timeout: Optional[float],
                 prepare: Callable[[], None]) -> None:
        self._lib = lib
        self._prepare = prepare
        self.timeout = timeout
        self._items: "queue.SimpleQueue[Optional[_Item]]" = queue.SimpleQueue()
        self._wait_lock = threading.Lock()  # Held by the thread that waits.
        self._closed = False
        self._threads: List[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = 0  # Threads that want the turn.
        self._pass_turn()

    def put(self, item: _Item) -> None:
        """Queues an operation."""
        self._items.put(item)

    def close(self, join: bool) -> None:
        """Ends the threads after the operations queued before. `join`: waits
        for them."""
        self._items.put(None)
        for thread in list(self._threads) if join else ():
            if thread is not threading.current_thread():
                thread.join(_CONTINUATION_S)

    def _pass_turn(self) -> None:
        """Makes sure that a thread takes the turn."""
        with self._lock:
            if self._idle == 0:
                self._idle = 1
                self._threads.append(threading.Thread(
                    target=self._run, daemon=True, name="pskv"))
                self._threads[-1].start()

    def _run(self) -> None:
        self._prepare()
        while True:
            with self._wait_lock:
                with self._lock:
                    self._idle -= 1
                item = None if self._closed else self._items.get()
                if item is None:
                    self._closed = True
                    return
                failure, value = self._end(item)
                explained(item.future)
                if item.ended is not None and item.ended(failure):
                    del item, value, failure
                    with self._lock:
                        self._idle += 1
                    continue
                self._pass_turn()
            if failure is None:
                item.future.set_result(value)
            else:
                item.future.set_exception(failure)
            del item, value, failure
            with self._lock:
                self._idle += 1

    def _end(self, item: _Item) -> Tuple[Optional[BaseException], Any]:
        """Waits for the operation. Returns its failure, or its value."""
        failure: Optional[BaseException] = _ended(
            self._lib, item.op,
            self.timeout if item.limit is None else item.limit,
            item.limit is None)
        value = item.value
        if failure is None and item.finish is not None:
            try:
                value = item.finish()
            except Exception as e:  # pylint: disable=broad-except
                failure = e
        item.free(self._lib)
        return failure, value
