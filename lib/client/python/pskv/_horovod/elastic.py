# SPDX-License-Identifier: Apache-2.0
"""Horovod's elastic training over a fixed number of ranks: a process that
takes the rank of a dead one gets the state of the others, who go on from
their last commit."""
from __future__ import annotations

import functools
import os
import time
from typing import Any, Callable, Dict, List, Sequence

from .._errors import Error
from .words import HorovodInternalError

# Seconds for which ranks wait for each other after a failure, unless Horovod's
# variable has others.
_TIMEOUT_S = 600.0
# Seconds between attempts to join a job that is not over yet.
_PAUSE_S = 0.1


class HostsUpdatedInterrupt(RuntimeError):
    """Raised by programs that want to begin again with another set of ranks.
    pskv does not raise it: the ranks of a job are fixed."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


class State:
    """What ranks have in common, with a copy from the last commit."""

    def __init__(self) -> None:
        self._commits = 0
        self._reset_callbacks: List[Callable[[], None]] = []

    def register_reset_callbacks(
            self, callbacks: Sequence[Callable[[], None]]) -> None:
        """Functions to call after each reset, before the state is
        synchronized."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when the ranks have met again."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keeps the present state, to which a failure returns."""
        self.save()
        self._commits += 1
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Does nothing: the ranks of a job are fixed."""

    def save(self) -> None:
        """Copies the state."""
        raise NotImplementedError()

    def restore(self) -> None:
        """Goes back to the copy."""
        raise NotImplementedError()

    def sync(self) -> None:
        """Gives all ranks the state of the one with the most commits."""
        raise NotImplementedError()

    def reset(self) -> None:
        """Adapts to the ranks after a reset."""


class ObjectState(State):
    """State of Python objects, which are attributes. `allgather_object` and
    `broadcast_object` are those of an interface."""

    def __init__(self, broadcast_object: Callable[..., Any],
                 allgather_object: Callable[[Any], List[Any]],
                 **objects: Any) -> None:
        super().__init__()
        self._broadcast_object = broadcast_object
        self._allgather_object = allgather_object
        self._saved: Dict[str, Any] = objects
        self._set()

    def save(self) -> None:
        """Keeps the objects; not copies of them."""
        self._saved = {name: getattr(self, name) for name in self._saved}

    def restore(self) -> None:
        """Sets the attributes to the kept objects."""
        self._set()

    def sync(self) -> None:
        """Gives all ranks the objects of the one with the most commits, the
        first of those."""
        commits = self._allgather_object(self._commits)
        self._commits = max(commits)
        self._take_from(commits.index(self._commits))

    def _take_from(self, root: int) -> None:
        if self._saved:
            self._saved = self._broadcast_object(
                {name: getattr(self, name) for name in self._saved}, root)
            self._set()

    def _set(self) -> None:
        for name, value in self._saved.items():
            setattr(self, name, value)


def _reset(begin: Callable[[], None], end: Callable[[], None]) -> None:
    """Leaves the job and joins it again. The job is over when all ranks have
    left it."""
    until = time.monotonic() + float(
        os.environ.get("HOROVOD_ELASTIC_TIMEOUT") or _TIMEOUT_S)
    while True:
        end()
        try:
            begin()
            return
        except (Error, HorovodInternalError):
            if time.monotonic() > until:
                raise
        time.sleep(_PAUSE_S)


def run_fn(function: Callable[..., Any], begin: Callable[[], None],
           end: Callable[[], None]) -> Callable[..., Any]:
    """The function, called again from the last commit after each failure of
    another rank. `begin` and `end` join and leave the job."""
    @functools.wraps(function)
    def run(state: State, *args: Any, **more: Any) -> Any:
        synchronized = False
        while True:
            try:
                if not synchronized:
                    state.sync()
                return function(state, *args, **more)
            except HorovodInternalError:
                state.restore()
                synchronized = False
            except HostsUpdatedInterrupt as e:
                synchronized = e.skip_sync
            _reset(begin, end)
            state.on_reset()

    return run
