# SPDX-License-Identifier: Apache-2.0
"""The client of a job: its life, its errors, and waiting for its operations."""
from __future__ import annotations

import asyncio
import atexit
import ctypes
import os
import sys
import threading
import time
import weakref
from ctypes import byref, c_void_p
from typing import Any, Callable, Dict, Generator, List, Optional, Set, Tuple, \
    TypeVar

from . import _lib
from ._array import Array
from ._errors import AGAIN, CLOSED, NOENT, REFUSED, TIMEOUT, Error, \
    begin_exit, check_open_allowed, error, program_failed

# Waits check for signals at this interval, so that Ctrl-C works.
_SLICE_MS = 100

_Store = TypeVar("_Store", bound="Client")


class Handle:
    """Open operations. wait() for them, await them, or drop() them: a dropped
    or deleted handle writes nothing any more, except to arrays of a GPU, which
    the store keeps until then."""

    def __init__(self, store: "Client") -> None:
        self._store = store
        self._ops: List[int] = []
        self._buffers: List[Array] = []
        # Results for several arrays: the library writes the first one, the
        # others are copied from it.
        self._copies: List[Tuple[Array, Array]] = []
        self._future: Optional["asyncio.Future[None]"] = None
        self._left = 0
        self._error: Optional[Error] = None
        self._finished = False

    def __reduce__(self) -> Any:
        raise TypeError("a handle belongs to its store and cannot be copied or "
                        "pickled; wait() for it")

    def _begin(self, start: Callable[[Any], int]) -> None:
        """Starts an operation, which belongs to the handle then."""
        op = c_void_p()
        self._store._check(start(byref(op)))
        assert op.value is not None
        self._ops.append(op.value)

    def done(self) -> bool:
        """True if wait() would return at once."""
        if self._finished:
            return True
        c = self._store._open()
        return all(self._store._c_op_test(c, op) != AGAIN for op in self._ops)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until all operations have ended. Raises the first failure, or
        Timeout after `timeout` seconds; the operations continue then."""
        if not self._finished:
            self._finish(self._await(timeout))
        if self._error is not None:
            raise self._error.with_traceback(None)

    def drop(self) -> None:
        """Releases open operations; they write nothing any more, except to
        arrays of a GPU."""
        self._finished = True
        self._free()

    def cancel(self) -> bool:
        """Cancels operations that no other rank can count on yet: those that
        were not sent, and pulls that wait. wait() raises Canceled then. True
        if none goes on: each is cancelled or has ended before."""
        if self._finished:
            return True
        self._store._open()
        left = False
        for op in self._ops:
            rc = self._store._lib.psc_op_cancel(op)
            if rc == REFUSED:
                left = True
            elif rc != NOENT:
                self._store._check(rc)
        return not left

    def _await(self, timeout: Optional[float] = None) -> Optional[Error]:
        """Waits until all have ended and returns the first failure. The
        operations stay valid."""
        limit = self._store._limit(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        first: Optional[Error] = None
        for op in self._ops:
            try:
                self._store._wait(op, deadline)
            except Error as e:
                if e.code == TIMEOUT:
                    raise
                first = first or e
        return first

    def why(self) -> str:
        """One sentence: the reason why the first open operation waits."""
        c = self._store._open()
        for op in self._ops:
            if self._store._c_op_test(c, op) == AGAIN:
                return self._store._why(op)
        return "all operations have ended"

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait_in_loop().__await__()

    async def _wait_in_loop(self) -> None:
        while not self.done():
            await self._store._ended_something()
        self.wait()

    def _finish(self, failure: Optional[Error]) -> None:
        if failure is None:
            for to, source in self._copies:
                ctypes.memmove(to.address, source.address, source.nbytes)
        self._error = failure
        self._finished = True
        self._free()

    def _free(self) -> None:
        ops, self._ops = self._ops, []
        arrays, self._buffers = self._buffers, []
        self._copies = []
        self._store._release(ops, arrays)

    def __del__(self) -> None:
        if self.__dict__.get("_ops") and not sys.is_finalizing():
            self._free()


def interruptible(call: Callable[[], Any]) -> Any:
    """The result of a call that waits, made on another thread, so that Ctrl-C
    ends the wait."""
    result: List[Any] = []
    thread = threading.Thread(target=lambda: result.append(call()),
                              daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SLICE_MS / 1000)
    return result[0]


class Client:
    """A worker's client: what stores of all kinds of calls have in common."""

    def __init__(self, kind: str, lib: Any,
                 options: Optional[_lib.Options], timeout: Optional[float],
                 client: Optional[int] = None) -> None:
        self._kind = kind
        self._lib = lib
        self._timeout = timeout
        self._pid = os.getpid()
        # Re-entrant: finalizers may run inside a call.
        self._lock = threading.RLock()
        self._left = False
        # Functions that free arrays of empty() and alloc_device(), by address.
        self._shared: Dict[int, Any] = {}
        self._registered: Dict[int, Array] = {}
        self._garbage: List[int] = []
        # Operations on arrays of GPUs whose handles are gone.
        self._dropped: List[Tuple[List[int], List[Array]]] = []
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._waiters: List["asyncio.Future[None]"] = []
        self._callback = _lib.Callback(_ignore)
        self._c: Optional[int] = client
        self._job: Optional[bytes] = None
        if options is not None:
            self._job = options.job
            self._c = self._connect(options)
        _stores.add(self)
        try:
            check_open_allowed()
        except Error:
            self._leave_at_exit()
            raise

    def __reduce__(self) -> Any:
        raise TypeError("a KVStore cannot be copied, pickled or sent to "
                        "another process: each process calls pskv.create()")

    def _connect(self, options: _lib.Options) -> int:
        """Opens the client."""
        client = c_void_p()
        err = ctypes.create_string_buffer(_lib.TEXT_MAX)
        rc = interruptible(lambda: self._lib.psc_open(
            byref(options), byref(client), err, len(err)))
        if rc != 0:
            text = err.value.decode(errors="replace") or self._text(rc)
            if " is taken by a worker" in text and any(
                    s._job == options.job and not s._left and s._alive() and
                    text.startswith("rank %d of" % s.rank) for s in _stores):
                text = ("this process is %s already: a process has one store "
                        "of a job: use that one, or close() it" %
                        text.split(" is taken")[0])
            raise error(rc, text)
        assert client.value is not None
        return client.value

    def _new_handle(self) -> Handle:
        self._collect()
        return Handle(self)

    def _text(self, rc: int) -> str:
        text: bytes = self._lib.psc_strerror(rc)
        return text.decode()

    def _alive(self) -> bool:
        return self._c is not None and os.getpid() == self._pid

    def _open(self) -> int:
        if self._c is None or self._left:
            raise error(CLOSED, "the store is closed")
        return self._c

    def _detail(self, rc: int) -> str:
        text = ctypes.create_string_buffer(_lib.TEXT_MAX)
        if self._c is not None:
            self._lib.psc_last_detail(self._c, text, len(text))
        return text.value.decode(errors="replace") or self._text(rc)

    def _check(self, rc: int) -> int:
        if rc < 0:
            raise error(rc, self._detail(rc))
        return rc

    def _entrance(self, ordinal: int) -> int:
        """A stream of the client on a GPU."""
        stream = c_void_p()
        self._check(self._lib.psc_device_stream(self._open(), ordinal,
                                                byref(stream)))
        return stream.value or 0

    # -------------------------------------------------------------------- waits

    def _c_op_test(self, c: int, op: int) -> int:
        rc: int = self._lib.psc_op_test(op)
        return rc

    def _limit(self, timeout: Optional[float]) -> Optional[float]:
        if timeout is not None and timeout < 0:
            raise ValueError("a time limit must not be negative")
        return self._timeout if timeout is None else timeout

    def _wait(self, op: int, deadline: Optional[float]) -> None:
        while True:
            self._open()
            if deadline is None:
                rc = self._lib.psc_op_wait_slice(op, _SLICE_MS)
            else:
                left = int((deadline - time.monotonic()) * 1000)
                left = max(0, min(left, _SLICE_MS))
                rc = self._lib.psc_op_wait(op, left)
            if rc != TIMEOUT:
                self._check(rc)
                return
            if deadline is not None and time.monotonic() >= deadline:
                why = self._why(op)
                # The operation may have ended during the query.
                if self._lib.psc_op_test(op) == AGAIN:
                    raise error(TIMEOUT, why)

    def _why(self, op: int) -> str:
        text = ctypes.create_string_buffer(_lib.TEXT_MAX)
        self._check(self._lib.psc_op_why(op, text, len(text)))
        return text.value.decode(errors="replace")

    def _started(self, start: Callable[[Any], int]) -> None:
        """Runs a declaration of the whole job; waits until the servers have
        it."""
        handle = Handle(self)
        handle._begin(start)
        handle.wait()

    # -------------------------------------------------------------------- loops

    def fileno(self) -> int:
        """A descriptor that is readable when dispatch() has work; for polling
        only."""
        return self._check(self._lib.psc_fd(self._open()))

    def dispatch(self) -> None:
        """Handles received messages, sends queued operations; never waits."""
        if self._alive():
            # On a failure all operations have ended and report it.
            self._lib.psc_dispatch(self._c)

    async def _ended_something(self) -> None:
        """Waits until psc_dispatch() had work."""
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[None]" = loop.create_future()
        fd = self.fileno()
        if self._loop is not loop:
            loop.add_reader(fd, self._dispatch)
            self._loop = loop
        self._waiters.append(future)
        try:
            await future
        finally:
            if future in self._waiters:
                self._waiters.remove(future)
            if not self._waiters and self._loop is loop:
                loop.remove_reader(fd)
                self._loop = None

    def _dispatch(self) -> None:
        self.dispatch()
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    # ------------------------------------------------------------------- memory

    def _release(self, ops: List[int], arrays: List[Array]) -> None:
        """Frees operations, and arrays that nothing writes any more: the agent
        may write to a GPU until the operation ends."""
        if self._alive():
            if any(a.place is not None for a in arrays) and any(
                    self._lib.psc_op_test(op) == AGAIN for op in ops):
                self._dropped.append((ops, arrays))
                return
            for op in ops:
                self._lib.psc_op_free(op)
        for array in arrays:
            array.release()

    def _own(self, memory: Any, address: int, free: Any) -> None:
        """Memory of the client, which is freed with the object."""
        self._shared[address] = free
        # Keeps the store alive: its memory must outlive the array.
        weakref.finalize(memory, self._drop, address).atexit = False

    def _drop(self, address: int) -> None:
        """Notes the address only: finalizers may run inside any call."""
        self._garbage.append(address)
        if self._left:
            self._collect()

    def _collect(self) -> None:
        """Frees unreferenced arrays that no operation uses."""
        if not (self._garbage or self._dropped) or not self._alive():
            return
        with self._lock:
            dropped, self._dropped = self._dropped, []
            for ops, arrays in dropped:
                self._release(ops, arrays)
            garbage, self._garbage = self._garbage, []
            for address in garbage:
                if self._shared[address](self._c, address) == AGAIN:
                    self._garbage.append(address)
                else:
                    del self._shared[address]
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        """Frees the client of a closed store. Another thread may be inside a
        call, which fails: then the end of the last reference frees it."""
        if self._left and not self._shared and threading.active_count() == 1:
            self._end()

    def _end(self) -> None:
        c, self._c = self._c, None
        if c is not None and os.getpid() == self._pid:
            self._lib.psc_close(c)
        self._dropped = []
        while self._registered:
            self._registered.popitem()[1].release()

    # --------------------------------------------------------------------- life

    def close(self) -> None:
        """Leaves the job. Arrays of empty() and alloc_device() stay valid."""
        if self._left or not self._alive():
            return
        self._lib.psc_leave(self._c)
        self._left = True
        _stores.discard(self)
        self._collect()
        self._end_if_unused()

    def __del__(self) -> None:
        if self.__dict__.get("_left") and not self._shared and \
                not sys.is_finalizing():
            self._end()

    def __enter__(self: _Store) -> _Store:
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None and not issubclass(kind, SystemExit):
            self._abort()
        self.close()

    def _abort(self) -> None:
        """Ends the connection, so that the job treats this worker as failed;
        operations that threads wait for fail."""
        if self._alive() and not self._left:
            self._lib.psc_abort(self._c)

    def _leave_at_exit(self) -> None:
        if program_failed():
            self._abort()
        else:
            self.close()

    # ----------------------------------------------------------------- identity

    def stats(self) -> Dict[str, int]:
        """Counters of this client: agents re-attached to, operations, rounds,
        bytes, system calls."""
        s = _lib.Stats(size=ctypes.sizeof(_lib.Stats))
        self._check(self._lib.psc_get_stats(self._open(), byref(s)))
        return {field[0]: getattr(s, field[0])
                for field in _lib.Stats._fields_[1:]}

    @property
    def type(self) -> str:
        """The name given to create()."""
        return self._kind

    @property
    def rank(self) -> int:
        """This worker's rank, from 0."""
        return self._check(self._lib.psc_rank(self._open()))

    @property
    def num_workers(self) -> int:
        """Workers of the job."""
        return self._check(self._lib.psc_size(self._open()))

    @property
    def local_rank(self) -> int:
        """This worker's rank on its node."""
        return self._check(self._lib.psc_local_rank(self._open()))

    @property
    def local_size(self) -> int:
        """Workers of the job on this node."""
        return self._check(self._lib.psc_local_size(self._open()))

    @property
    def num_servers(self) -> int:
        """Servers of the job."""
        return self._check(self._lib.psc_num_servers(self._open()))


def _ignore(_op: Optional[int], _rc: int, _user: Optional[int]) -> None:
    pass


# Stores that have not left their job.
_stores: Set[Client] = set()


def _leave_at_exit() -> None:
    """Leaves all jobs at the exit of the program. After an exception the jobs
    treat this worker as failed."""
    begin_exit()
    for store in list(_stores):
        store._leave_at_exit()


atexit.register(_leave_at_exit)
