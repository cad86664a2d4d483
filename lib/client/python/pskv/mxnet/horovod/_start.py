# SPDX-License-Identifier: Apache-2.0
"""Collectives in MXNet's engine. They start in the order of the calls,
whichever arrays are computed first, so that the ranks of a job that make the
same calls start the same collectives in the same order. Each rank may still
make its calls in another order: ..._horovod/match.py."""
from __future__ import annotations

import atexit
import threading
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, Union

import mxnet as mx

from ... import _engine
from ..._errors import program_failed
from ..._horovod import job
from ..._horovod.start import run
from ..._store import KVStore
from .._push import OnComplete, Pushes
from ._arrays import Room

_pushes = Pushes()


class _Turns:
    """Runs functions in the order of their numbers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: Dict[int, Optional[Callable[[], None]]] = {}
        self._drawn = 0
        self._next = 0
        self._busy = False

    def draw(self) -> int:
        """The next number; give() follows."""
        with self._lock:
            self._drawn += 1
            return self._drawn - 1

    def give(self, number: int, function: Optional[Callable[[], None]]) -> None:
        """Runs the function after those of all lower numbers, perhaps on
        another thread that gives one. None: there is none."""
        with self._lock:
            self._given[number] = function
            if self._busy:
                return
            self._busy = True
        while True:
            with self._lock:
                if self._next not in self._given:
                    self._busy = False
                    return
                function = self._given.pop(self._next)
                self._next += 1
            if function is not None:
                function()


class _Unread:
    """A future that nothing reads."""

    def set_result(self, value: Any) -> None:
        """The collective has ended."""

    def set_exception(self, failure: BaseException) -> None:
        """The collective has failed."""


class Engine(_engine.Engine):
    """Collectives of a set of ranks."""

    new_future = _Unread

    def __init__(self, kv: KVStore, timeout: Optional[float]) -> None:
        super().__init__(kv, timeout)
        self.turns = _Turns()
        self._settled = threading.Condition()
        self._pushed = 0

    def count(self, change: int) -> None:
        """Counts collectives that have been pushed and have not ended."""
        with self._settled:
            self._pushed += change
            if self._pushed == 0:
                self._settled.notify_all()

    def wait_all(self) -> None:
        """Waits for the end of all collectives."""
        with self._settled:
            self._settled.wait_for(lambda: self._pushed == 0)


class _Ending:
    """The future of a collective in MXNet's engine."""

    def __init__(self, e: Engine, done: OnComplete,
                 rooms: Sequence[Room]) -> None:
        self._engine = e
        self._done = done
        self._rooms = rooms

    def set_result(self, _value: Any) -> None:
        """The collective has ended."""
        self._engine.count(-1)
        self._done.notify()
        for room in self._rooms:
            room.leave()

    def set_exception(self, failure: BaseException) -> None:
        """The collective has failed."""
        self._engine.count(-1)
        self._done.fail(str(failure))


def push(e: Engine, kind: str, name: Optional[str], rooms: Sequence[Room],
         more: Sequence[Any], priority: int,
         start: Callable[[Any], Tuple[int, int]],
         finish: Callable[[Any, int], Any]) -> None:
    """Pushes a collective that writes rooms and, of MXNet, `more` arrays."""
    number = e.turns.draw()
    e.count(1)

    def begin(done: OnComplete) -> None:
        future = _Ending(e, done, rooms)

        def in_turn() -> None:
            try:
                run(e, kind, name, start, rooms, finish, future)
            except Exception as failure:  # pylint: disable=broad-except
                future.set_exception(failure)
        e.turns.give(number, in_turn)

    def skip() -> None:
        e.count(-1)
        e.turns.give(number, None)

    _pushes.push(begin, [], [*[r.nd for r in rooms], *more], priority,
                 "pskv_" + kind.replace(" ", "_"), skip)


def init(comm: Optional[Sequence[int]] = None,
         process_sets: Union[str, Sequence[job.ProcessSet], None] = None
         ) -> None:
    """Joins the job that the environment names, e.g. from pslaunch, and adds
    the process sets. Further calls only add."""
    job.join_job(Engine, comm, process_sets)


def shutdown() -> None:
    """Closes all process sets and leaves the job, after the end of all
    collectives."""
    for e in job.engines():
        e.wait_all()
    job.shutdown()


def remove_process_set(process_set: job.ProcessSet) -> bool:
    """Closes a process set after the end of its collectives. All ranks call
    it. False: not registered."""
    for e in job.engines(process_set):
        e.wait_all()
    return job.remove_process_set(process_set)


def _end() -> None:
    """At the exit of the program. If it has failed, open collectives might
    wait for ranks that have failed too."""
    failed = program_failed()
    try:
        if not failed:
            mx.nd.waitall()
    finally:
        _engine.close_all()
        try:
            mx.nd.waitall()
        except mx.MXNetError:
            pass  # Of collectives that the end of the program has ended.
        _pushes.drain()


atexit.register(_end)
