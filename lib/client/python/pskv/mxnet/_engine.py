# SPDX-License-Identifier: Apache-2.0
"""Operations of a store as operations of MXNet's engine.

The engine starts an operation when the arrays it reads are computed, and
delays all readers of the arrays it writes until it has ended. An operation
of the store is pushed to the engine as an asynchronous function of these
arrays (MXEnginePushAsyncND of c_api.h): the engine calls it on one of its
threads, it starts the operation and returns. When the operation has ended,
the thread of this module notifies the engine."""
from __future__ import annotations

import ctypes
import itertools
import os
import select
import sys
import threading
from ctypes import CFUNCTYPE, Structure, byref, c_char_p, c_int, c_void_p
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from mxnet.base import _LIB, NDArrayHandle, check_call

from .._errors import CLOSED, error
from .._store import Handle, KVStore

# void f(run context, CallbackOnComplete *, argument of the push)
_Function = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
# void f(engine, its argument, error or NULL)
_Callback = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)

class _Context(Structure):
    """Context of MXNet 1.9's base.h."""

    _fields_ = [("dev_type", c_int), ("dev_id", c_int)]


_CPU = _Context(1, 0)
# FnProperty::kCPUPrioritized of engine.h: ahead of computations.
_PRIORITIZED = c_int(3)


class _OnComplete(Structure):
    """CallbackOnComplete of MXNet 1.9's engine.h."""

    _fields_ = [("callback", c_void_p), ("engine", c_void_p),
                ("argument", c_void_p)]

    def tell(self) -> None:
        """Notifies the engine, which starts operations that wait for the
        arrays."""
        _Callback(self.callback)(self.engine, self.argument, None)


class Engine:
    """Operations of one store, ordered by MXNet's engine."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pushed: Dict[int, Callable[[], Handle]] = {}
        self._running: List[Tuple[Handle, _OnComplete]] = []
        self._failure: Optional[BaseException] = None
        self._stopped = False
        self._function = _Function(self._start)
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC |
                                                     os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name="pskv-mxnet")
        self._thread.start()

    def push(self, start: Callable[[], Handle], reads: Sequence[Any],
             writes: Sequence[Any], priority: int, name: str) -> None:
        """Calls start() when `reads` are computed and `writes` are unused;
        `writes` count as computed when its handle has ended."""
        number = next(self._numbers)
        with self._lock:
            self._pushed[number] = start
        check_call(_LIB.MXEnginePushAsyncND(
            self._function, c_void_p(number), None, byref(_CPU), _handles(reads),
            c_int(len(reads)), _handles(writes), c_int(len(writes)),
            byref(_PRIORITIZED), c_int(priority), c_char_p(name.encode()),
            False))

    def check(self) -> None:
        """Raises the failure of an operation that has ended."""
        if self._failure is not None:
            raise self._failure

    def stop(self, failed: bool) -> None:
        """Stops the thread. After a failure open operations are dropped,
        because they might wait for workers that have failed too."""
        if failed:
            self._fail(error(CLOSED, "the program has failed"))
        self._stopped = True
        self._wake()
        self._thread.join()

    # The methods below may run on any thread.

    def _fail(self, e: BaseException) -> None:
        """Stores the first failure, which the next call raises. The engine
        cannot take it; arrays keep their values."""
        with self._lock:
            self._failure = self._failure or e

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # Already woken.

    def _start(self, _context: int, on_complete: int, number: int) -> None:
        """Starts an operation; called by a thread of the engine."""
        done = _OnComplete.from_buffer_copy(
            ctypes.string_at(on_complete, ctypes.sizeof(_OnComplete)))
        with self._lock:
            start = self._pushed.pop(number)
            failed = self._failure is not None
        if not failed:
            try:
                handle = start()
                with self._lock:
                    self._running.append((handle, done))
                self._wake()
                return
            except BaseException as e:  # pylint: disable=broad-except
                self._fail(e)
        done.tell()

    def _run(self) -> None:
        """The store's thread: dispatches the store and notifies the engine."""
        poll = select.poll()
        poll.register(self._store.fileno(), select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not self._stopped:
            poll.poll()
            try:
                os.read(self._wake_read, 4096)
            except BlockingIOError:
                pass
            self._store.dispatch()
            self._end_those_done()
        with self._lock:
            left, self._running = self._running, []
        for handle, done in left:
            handle.drop()
            done.tell()

    def _end_those_done(self) -> None:
        with self._lock:
            running, self._running = self._running, []
        open_ones = []
        for handle, done in running:
            if self._failure is None and not handle.done():
                open_ones.append((handle, done))
                continue
            try:
                if self._failure is None:
                    handle.wait()
                else:
                    handle.drop()
            except BaseException as e:  # pylint: disable=broad-except
                self._fail(e)
            done.tell()
        with self._lock:
            self._running = open_ones + self._running


def _handles(arrays: Sequence[Any]) -> Any:
    return (NDArrayHandle * len(arrays))(*[a.handle for a in arrays])


def program_failed() -> bool:
    """True at the exit of a program that an exception ended."""
    return getattr(sys, "last_type", None) is not None
