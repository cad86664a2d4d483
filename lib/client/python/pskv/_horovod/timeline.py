# SPDX-License-Identifier: Apache-2.0
"""Horovod's timeline: a file in the format of Chrome's tracing."""
from __future__ import annotations

import json
import threading
import time
from typing import Any, Dict, Optional, TextIO


class Span:
    """One collective on the timeline. The thread that reports its end may
    run before the thread that started it goes on."""

    def __init__(self, line: Optional["Timeline"], kind: str,
                 name: str) -> None:
        self._line = line
        self._kind = kind.upper().replace(" ", "_")
        self._name = name
        self._negotiating = True
        self._lock = threading.Lock()
        self._phase("B", "NEGOTIATE_" + self._kind)

    def _phase(self, phase: str, name: str) -> None:
        if self._line is not None:
            self._line.add(self._name, {"ph": phase, "name": name})

    def _end_negotiation(self) -> None:
        if self._negotiating:
            self._negotiating = False
            self._phase("E", "NEGOTIATE_" + self._kind)
            self._phase("B", self._kind)

    def started(self) -> None:
        """The collective has started: its data is where the agent reads
        it."""
        with self._lock:
            self._end_negotiation()

    def end(self) -> None:
        """The collective has ended, perhaps before started()."""
        with self._lock:
            self._end_negotiation()
            self._phase("E", self._kind)
            self._line = None


class Timeline:
    """Events from start() to stop(), written as they come: the file can be
    read before stop(), too, by what accepts a list without its end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: Optional[TextIO] = None
        self._lanes: Dict[str, int] = {}
        self._origin = 0
        self._cycles = False
        self._unnamed = 0

    def start(self, path: str, mark_cycles: bool) -> None:
        """Begins a new timeline."""
        self.stop()
        with self._lock:
            self._file = open(path, "w", encoding="utf-8")
            self._lanes = {}
            self._origin = time.monotonic_ns()
            self._cycles = mark_cycles
            self._file.write("[\n" + json.dumps({
                "name": "process_name", "ph": "M", "pid": 0, "args": {
                    "start_time_since_epoch_in_micros":
                        time.time_ns() // 1000}}))
            self._file.flush()

    def begin(self, kind: str, name: Optional[str]) -> Span:
        """A collective is called."""
        if self._file is None:
            return _NOWHERE
        if name is None:
            self._unnamed += 1
            name = "noname.%d" % self._unnamed
        if self._cycles:
            self.add("cycles", {"ph": "i", "name": "CYCLE_START", "s": "g"})
        return Span(self, kind, "%s.%s" % (kind.replace(" ", "_"), name))

    def add(self, lane: str, event: Dict[str, Any]) -> None:
        """Adds an event to the lane of a collective."""
        with self._lock:
            if self._file is None:
                return
            number = self._lanes.get(lane)
            if number is None:
                number = self._lanes[lane] = len(self._lanes) + 1
                self._file.write(",\n" + json.dumps({
                    "name": "thread_name", "ph": "M", "pid": 0,
                    "tid": number, "args": {"name": lane}}))
            event.update(pid=0, tid=number,
                         ts=(time.monotonic_ns() - self._origin) / 1000)
            self._file.write(",\n" + json.dumps(event))
            self._file.flush()

    def stop(self) -> None:
        """Ends the file of the open timeline, if there is one."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.write("\n]\n")
                file.close()


class _Nowhere(Span):
    """The span of a collective while there is no timeline."""

    def __init__(self) -> None:  # pylint: disable=super-init-not-called
        self._line = None

    def started(self) -> None:
        """Does nothing."""

    def end(self) -> None:
        """Does nothing."""


_NOWHERE = _Nowhere()
timeline = Timeline()
