# SPDX-License-Identifier: Apache-2.0
"""Operations of a store as operations of MXNet's engine.

The engine calls a function of a store's operation on one of its threads; it
starts the operation and returns. When the operation has ended, the thread of
this module notifies the engine."""
from __future__ import annotations

import functools
import os
import select
import threading
from typing import Any, Callable, List, Optional, Sequence, Tuple

from .._client import Handle
from .._errors import CLOSED, error
from .._store import KVStore
from ._push import OnComplete, Pushes


class Engine:
    """Operations of one store, ordered by MXNet's engine."""

    def __init__(self, store: KVStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._pushes = Pushes()
        self._running: List[Tuple[Handle, OnComplete, bool]] = []
        self._failure: Optional[BaseException] = None
        self._stopped = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC |
                                                     os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, daemon=True,
                                        name="pskv-mxnet")
        self._thread.start()

    def push(self, start: Callable[[], Handle], reads: Sequence[Any],
             writes: Sequence[Any], priority: int, name: str) -> None:
        """Calls start() when `reads` are computed and `writes` are unused;
        `writes` count as computed when its handle has ended. After a failure,
        readers of `writes` raise it."""
        self._pushes.push(functools.partial(self._start, start, bool(writes)),
                          reads, writes, priority, name)

    def check(self) -> None:
        """Raises the failure of an operation that has ended."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)

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
        """Stores the first failure, which the next call raises, too."""
        with self._lock:
            self._failure = self._failure or e

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # Already woken.

    def _end(self, done: OnComplete, has_writes: bool) -> None:
        """Ends an operation in the engine, which has readers of what the
        operation writes raise the failure. Without any, waitall() would."""
        if self._failure is not None and has_writes:
            done.fail(str(self._failure))
        else:
            done.notify()

    def _start(self, start: Callable[[], Handle], has_writes: bool,
               done: OnComplete) -> None:
        """Starts an operation; called by a thread of the engine."""
        with self._lock:
            failed = self._failure is not None
        if not failed:
            try:
                handle = start()
                with self._lock:
                    self._running.append((handle, done, has_writes))
                self._wake()
                return
            except BaseException as e:  # pylint: disable=broad-except
                self._fail(e)
        self._end(done, has_writes)

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
        for handle, done, has_writes in left:
            handle.drop()
            self._end(done, has_writes)

    def _end_those_done(self) -> None:
        with self._lock:
            running, self._running = self._running, []
        open_ones = []
        for handle, done, has_writes in running:
            if self._failure is None and not handle.done():
                open_ones.append((handle, done, has_writes))
                continue
            try:
                if self._failure is None:
                    handle.wait()
                else:
                    handle.drop()
            except BaseException as e:  # pylint: disable=broad-except
                self._fail(e)
            self._end(done, has_writes)
        with self._lock:
            self._running = open_ones + self._running
