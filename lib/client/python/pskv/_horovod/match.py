# SPDX-License-Identifier: Apache-2.0
"""Collectives that ranks start in different orders are brought together by
name, as in Horovod.

A collective starts at once, as the next one of its rank. Where the ranks
start the same ones in the same order, nothing else happens. Otherwise the
library tells every rank that the n-th requests differ. Then the ranks
exchange the names of these requests and keep them; a request that all ranks
keep starts again, in a group of the same ranks in which all of them start
requests in the order of rank 0. While some rank keeps a request, each rank
that starts nothing else starts an empty collective from time to time, so
that a request of another rank never waits for one that does not come."""
from __future__ import annotations

import ctypes
import os
import queue
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from .._array import dtype_of
from .._collective import options
from .._engine import Engine
from .._errors import MISMATCH, Error

# Seconds between empty collectives, at first and at most.
_FIRST_S, _LAST_S = 0.001, 0.05
# Seconds for which a request is kept, unless Horovod's variable has others.
_KEPT_S = 60.0

# Kind, name and number of a request; the number is 0 of a named one.
Label = Tuple[str, str, int]


class Request:
    """A collective to be started on an engine, perhaps on a second one. Its
    end is told to `future`."""

    def __init__(self, kind: str, name: Optional[str],
                 start: Callable[[Any], Tuple[int, int]], buffers: Any,
                 finish: Callable[[Any, int], Any], future: Any,
                 ended: Callable[[], None]) -> None:
        self.kind = kind
        self.name = name
        self.start = start
        self.buffers = buffers
        self.finish = finish
        self.ended = ended
        self.future = future
        self.number = 0
        # Why it is kept, and until when.
        self.failure: Optional[BaseException] = None
        self.until = 0.0

    @property
    def identity(self) -> Label:
        """What other ranks know it by."""
        return self.kind, self.name or "", self.number

    def run(self, e: Engine,
            ended: Callable[[Optional[BaseException]], bool]) -> None:
        """Starts it."""
        started = self.start(e)
        e.run(started, self.buffers, lambda: self.finish(e, started[1]),
              future=self.future, ended=ended)

    def fail(self, failure: BaseException) -> None:
        """Ends it."""
        self.ended()
        self.future.set_exception(failure)


class _Kept:
    """The requests that each rank keeps, oldest first."""

    def __init__(self, size: int) -> None:
        self.labels: List[List[Label]] = [[] for _ in range(size)]
        self.own: Dict[Label, Request] = {}

    def __bool__(self) -> bool:
        return any(self.labels)

    def add(self, rank: int, label: Label) -> None:
        """Keeps a request of a rank."""
        self.labels[rank].append(label)

    def drop(self, rank: int, label: Label) -> None:
        """Forgets a request of a rank."""
        if label in self.labels[rank]:
            self.labels[rank].remove(label)

    def take_common(self) -> List[Label]:
        """Takes the requests that all ranks keep, in the order of rank 0."""
        common = [label for label in self.labels[0]
                  if all(label in others for others in self.labels[1:])]
        for label in common:
            for others in self.labels:
                others.remove(label)
        return common


def _kept_seconds() -> float:
    return float(os.environ.get("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0)) or \
        _KEPT_S


class Matcher:
    """Starts the requests of one engine."""

    def __init__(self, e: Engine) -> None:
        self._engine = weakref.ref(e)
        self._rank, self._size = e.rank, e.size
        self._kv = e.kv
        self._kind = type(e)
        self._lock = threading.Lock()  # Requests start one after the other.
        self._unnamed: Dict[str, int] = {}
        self._started = 0
        self._ended = 0
        # Collectives that differ between ranks, in their order: a request, or
        # None of an empty one, or the label of a request to be dropped.
        self._differ: "queue.SimpleQueue[Any]" = queue.SimpleQueue()
        self._kept = _Kept(e.size)
        self._thread: Optional[threading.Thread] = None
        self._second: Optional[Engine] = None
        self._closed = False
        e.adopt(self)

    def close(self) -> None:
        """Ends the thread and the requests that are kept."""
        self._closed = True
        self._differ.put(None)
        if self._second is not None:
            self._second.close()

    def start(self, request: Request) -> None:
        """Starts a request. Raises if it cannot be started."""
        e = self._engine()
        assert e is not None
        with self._lock:
            if request.name is None:
                number = self._unnamed.get(request.kind, 0) + 1
                self._unnamed[request.kind] = request.number = number
            request.run(e, lambda failure: self._on_end(request, failure))
            self._started += 1

    def _on_end(self, request: Request,
                failure: Optional[BaseException]) -> bool:
        """Keeps a request on which the ranks do not agree."""
        self._ended += 1
        # Ranks that have joined keep nothing.
        if isinstance(failure, Error) and failure.code == MISMATCH and \
                ": join" not in str(failure) and request.kind != "join":
            request.failure = failure
            self._pass_on(request)
            return True
        request.ended()
        return False

    def _pass_on(self, what: Any) -> None:
        self._differ.put(what)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, daemon=True,
                                            name="pskv names")
            self._thread.start()

    # ------------------------------------------- on the thread for names

    def _work(self) -> None:
        self._kind.prepare_thread()
        failure: BaseException = RuntimeError("the job is closed")
        what: Any = None
        try:
            self._second = self._kind(self._kv.group(name="names"), None)
            delay = _FIRST_S
            while True:
                try:
                    what = self._differ.get(
                        timeout=delay if self._kept else None)
                    if self._closed:
                        break
                except queue.Empty:
                    delay = min(2 * delay, _LAST_S)
                    self._fill()
                    continue
                self._exchange(what)
                what = None
                delay = _FIRST_S
        except Exception as e:  # pylint: disable=broad-except
            failure = e
        self._give_up(what, failure)

    def _give_up(self, what: Any, failure: BaseException) -> None:
        """Ends all requests, `what` with them, until the engine is closed."""
        if isinstance(what, Request):
            self._kept.own.setdefault(what.identity, what)
        for request in self._kept.own.values():
            request.fail(failure)
        while not self._closed or not self._differ.empty():
            what = self._differ.get()
            if isinstance(what, Request):
                what.fail(failure)

    def _fill(self) -> None:
        """Starts an empty collective if this rank has nothing else open."""
        e = self._engine()
        now = time.monotonic()
        late = next((label for label, r in self._kept.own.items()
                     if r.until < now), None)
        with self._lock:
            if e is None or self._started != self._ended:
                return
            word = ctypes.c_int64()
            at = ctypes.addressof(word)
            words = "nothing" if late is None else "drops %s %s %d" % late
            started = e.starter.allreduce(
                "names", dtype_of("int64"), [1], at, at,
                options(words=words[:100] + str(self._rank if late else "")))
            e.run(started, word,
                  ended=lambda failure: self._on_filled(late, failure))
            self._started += 1

    def _on_filled(self, late: Optional[Label],
                   failure: Optional[BaseException]) -> bool:
        self._ended += 1
        if failure is not None:
            self._pass_on(late)
        return False

    def _exchange(self, what: Any) -> None:
        """The ranks learn what each of them has started."""
        second = self._second
        assert second is not None
        own = what.identity if isinstance(what, Request) else None
        every = second.kv.allgather_object((own, None if own else what))
        named = [label for label, _ in every]
        if all(n is not None and n[:2] == named[0][:2] for n in named) or \
                all(n is not None and n[2] > 0 for n in named):
            # The ranks mean the same one, or do not say which.
            what.fail(what.failure)
            return
        for rank, (label, dropped) in enumerate(every):
            if label is not None:
                self._kept.add(rank, label)
            if dropped is not None:
                self._kept.drop(rank, dropped)
        if own is not None:
            what.until = time.monotonic() + _kept_seconds()
            self._kept.own[own] = what
        elif what is not None and what in self._kept.own:
            request = self._kept.own.pop(what)
            request.fail(request.failure)
        for label in self._kept.take_common():
            request = self._kept.own.pop(label)
            _start_again(request, second)


def _start_again(request: Request, second: Engine) -> None:
    def ended(_: Optional[BaseException]) -> bool:
        request.ended()
        return False
    try:
        request.run(second, ended)
    except Exception as e:  # pylint: disable=broad-except
        request.fail(e)


_matchers: "weakref.WeakKeyDictionary[Engine, Matcher]" = \
    weakref.WeakKeyDictionary()
_matchers_lock = threading.Lock()


def start(e: Engine, request: Request) -> None:
    """Starts a request of an engine."""
    with _matchers_lock:
        matcher = _matchers.get(e)
        if matcher is None:
            matcher = _matchers[e] = Matcher(e)
    matcher.start(request)
