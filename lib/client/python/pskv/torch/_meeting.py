# SPDX-License-Identifier: Apache-2.0
"""What ranks of a process group tell each other through torch's store, beside
the job: who passes a monitored barrier, and which messages wait for a receiver
that names no sender."""
from __future__ import annotations

import queue
import threading
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .._errors import CLOSED, TIMEOUT, error

# Seconds between two looks at the store: at first, and at last.
_LOOK_S = 0.0005
_LOOK_MAX_S = 0.01
# Seconds after which a message that no rank has received is announced.
_PATIENCE_S = 0.002


def own(store: Any) -> Any:
    """A connection of its own to the store, where torch can make one: others
    may wait in the store for long."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError):
        return store


def _exists(store: Any, key: str, count_of: str, count: int) -> bool:
    """True if the key is in the store, without waiting for it. Stores of torch
    1 cannot tell: there the counter `count_of` has reached `count`."""
    if hasattr(store, "check"):
        return bool(store.check([key]))
    return bool(store.add(count_of, 0) >= count)


def _await(look: Callable[[], bool], end: Optional[float]) -> bool:
    """Waits until look() is true. False: the time `end` comes first."""
    pause = _LOOK_S
    while not look():
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, _LOOK_MAX_S)
    return True


def end_of(limit: Optional[float]) -> Optional[float]:
    """The time of a limit that begins now."""
    return None if limit is None else time.monotonic() + limit


class MonitoredBarrier:
    """Barriers that rank 0 watches: its error names the ranks that do not
    come, whatever else they are doing. The words are those of gloo."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._number = 0

    def _key(self, what: Any) -> str:
        return "pskv.barrier.%d.%s" % (self._number, what)

    def _is_set(self, what: Any) -> bool:
        key = self._key(what)
        return _exists(self._store, key, key, 1)

    def wait(self, limit: Optional[float], wait_all_ranks: bool) -> None:
        """Waits for all ranks, for `limit` seconds."""
        self._number += 1
        end = end_of(limit)
        self._store.add(self._key(self._rank), 1)
        if self._rank == 0:
            self._watch(limit, end, wait_all_ranks)
            return
        passed = _await(lambda: self._is_set("passed") or self._is_set("failed"),
                        end) and self._is_set("passed")
        if not passed:
            raise error(
                TIMEOUT, "Rank %d successfully reached monitoredBarrier, but "
                "received errors while waiting for send/recv from rank 0. "
                "Please check rank 0 logs for faulty rank.%s" %
                (self._rank, self._absent()))

    def _absent(self) -> str:
        """A sentence of the ranks that have not come."""
        absent = [r for r in range(self._size) if not self._is_set(r)]
        return "" if not absent else " Rank%s %s had not reached it." % (
            "s" if len(absent) > 1 else "", ", ".join(map(str, absent)))

    def _watch(self, limit: Optional[float], end: Optional[float],
               wait_all_ranks: bool) -> None:
        ms = 0 if limit is None else int(limit * 1000)
        missing: List[int] = []
        for r in range(1, self._size):
            if _await(lambda r=r: self._is_set(r), end):  # type: ignore[misc]
                continue
            missing.append(r)
            if not wait_all_ranks:
                break
        if not missing:
            self._store.add(self._key("passed"), 1)
            return
        self._store.add(self._key("failed"), 1)
        if limit is not None and limit <= 0:
            raise error(TIMEOUT, "[Rank 0]: Rank 0 timed out in "
                        "monitoredBarrier after %d ms." % ms)
        raise error(TIMEOUT, "[Rank 0]: Rank%s %s failed to pass "
                    "monitoredBarrier in %d ms" % (
                        "s" if wait_all_ranks else "",
                        ", ".join(map(str, missing)), ms))




class Mail:
    """Messages of this rank: those that it sends are announced in the store
    when they have waited for a while, and receives from any rank take the
    announced ones. A message that finds its receiver is never announced."""

    def __init__(self, store: Any, rank: int,
                 timeout: Callable[[], Optional[float]]) -> None:
        self._given = store
        self._store: Any = None
        self._rank = rank
        self._timeout = timeout
        self._closed = False
        self._lock = threading.Lock()
        self._sent: Dict[Tuple[int, int], int] = {}
        self._received: Dict[Tuple[int, int], int] = {}
        self._read: Dict[int, int] = {}  # Announcements read, for each tag.
        self._known: Dict[int, List[Tuple[int, int]]] = {}  # (sender, number)
        self._queues: Dict[str, "queue.SimpleQueue[Any]"] = {}

    def _work(self, name: str, run: Callable[[Any], None], item: Any) -> None:
        """Queues an item for the thread of that name."""
        with self._lock:
            if self._closed:
                raise error(CLOSED, "the process group is closed")
            if self._store is None:
                self._store = own(self._given)
            items = self._queues.get(name)
            if items is None:
                items = self._queues[name] = queue.SimpleQueue()
                threading.Thread(target=self._run, args=(items, run),
                                 daemon=True, name="pskv " + name).start()
        items.put(item)

    @staticmethod
    def _run(items: Any, run: Callable[[Any], None]) -> None:
        while True:
            item = items.get()
            if item is None:
                return
            run(item)
            del item

    def sent(self, to: int, tag: int, future: Any) -> None:
        """Notes a message, open until the future is done."""
        number = self._sent.get((to, tag), 0)
        self._sent[to, tag] = number + 1
        self._work("announcer", self._announce,
                   (time.monotonic() + _PATIENCE_S, to, tag, number, future))

    def _announce(self, item: Any) -> None:
        due, to, tag, number, future = item
        time.sleep(max(0, due - time.monotonic()))
        if future.done() or self._closed:
            return
        key = "pskv.any.%d.%d" % (to, tag)
        try:
            at = self._store.add(key, 1)
            self._store.set("%s.%d" % (key, at),
                            "%d %d" % (self._rank, number))
        except RuntimeError:
            pass  # The store has ended, and with it the receiver.

    def received(self, sender: int, tag: int) -> None:
        """Notes that a message of this sender is received."""
        with self._lock:
            self._received[sender, tag] = \
                self._received.get((sender, tag), 0) + 1

    def receive(self, tag: int, start: Callable[[int], None],
                fail: Callable[[BaseException], None]) -> None:
        """Calls start() with the sender of the next message from any rank, or
        fail(), on a thread."""
        self._work("receiver %d" % tag, self._receive,
                   (tag, start, fail, end_of(self._timeout())))

    def _receive(self, item: Any) -> None:
        tag, start, fail, end = item
        found: List[int] = []

        def look() -> bool:
            sender = self._take(tag)
            if sender is not None:
                found.append(sender)
            return sender is not None or self._closed
        try:
            if not _await(look, end):
                raise error(TIMEOUT, "Timed out waiting %dms for a message "
                            "from any rank with tag %d: no rank has sent one" %
                            ((self._timeout() or 0) * 1000, tag))
            if not found:
                raise error(CLOSED, "the process group is closed")
            start(found[0])
        except Exception as e:  # pylint: disable=broad-except
            fail(e)

    def _take(self, tag: int) -> Optional[int]:
        """The sender of the oldest announced message that is not received."""
        known = self._known.setdefault(tag, [])
        key = "pskv.any.%d.%d" % (self._rank, tag)
        at = self._read.get(tag, 0) + 1
        name = "%s.%d" % (key, at)
        while _exists(self._store, name, key, at):
            sender, number = map(int, self._store.get(name).split())
            self._store.delete_key(name)
            known.append((sender, number))
            self._read[tag] = at
            at += 1
            name = "%s.%d" % (key, at)
        while known:
            sender, number = known.pop(0)
            with self._lock:
                if number >= self._received.get((sender, tag), 0):
                    self._received[sender, tag] = number + 1
                    return sender
        return None

    def close(self) -> None:
        """Ends the threads; open receives fail."""
        with self._lock:
            self._closed = True
            for items in self._queues.values():
                items.put(None)
