# SPDX-License-Identifier: Apache-2.0
"""mx.profiler with profile_process='server': recordings of what the job's
servers do, in the place of profilers in MXNet's servers.

As with MXNet, commands of rank 0 count, for the store that was created last.
Rank 0 writes the files, one for each server: servers write none for users."""
from __future__ import annotations

import functools
import warnings
import weakref
from typing import Any, Callable, Dict, Optional, Set

import mxnet as mx

from ._errors import translated

# Options of set_config(); recordings do not depend on them.
_OPTIONS = {
    "filename", "profile_all", "profile_symbolic", "profile_imperative",
    "profile_memory", "profile_api", "continuous_dump", "dump_period",
    "aggregate_stats", "profile_process"}
# Those that have an effect, and the one that asks for everything.
_ACT = {"filename", "profile_all", "profile_process"}


class ServerProfiler:
    """The recordings of one store's servers."""

    def __init__(self, store: Callable[[], Any]) -> None:
        self._store = store
        self._filename = "profile.json"
        self._begun = False
        self._warned: Set[str] = set()

    def set_config(self, **options: Any) -> None:
        """As mx.profiler.set_config(). `filename` matters; a warning names
        others once."""
        for name in sorted(set(options) - _OPTIONS):
            raise ValueError("the profiler has no option %r" % name)
        for name in sorted(set(options) - _ACT):
            if name not in self._warned:
                self._warned.add(name)
                warnings.warn("recordings of servers have everything, whatever "
                              "%s is" % name)
        self._filename = str(options.get("filename", self._filename))

    def set_state(self, state: str) -> None:
        """'run' begins a recording; 'stop' ends it and writes the files."""
        if state == "run":
            self._store().profile_servers("run")
            self._begun = True
        elif state != "stop":
            raise ValueError("the profiler has the states run and stop, and "
                             "not %r" % (state,))
        elif self._begun:
            self.dump(True)

    def pause(self) -> None:
        """Interrupts the recording."""
        self._store().profile_servers("pause")

    def resume(self) -> None:
        """Continues it."""
        if self._begun:
            self._store().profile_servers("run")

    def dump(self, finished: bool = True) -> None:
        """Writes the files. `finished`: ends the recording before."""
        if finished:
            self._store().profile_servers("stop")
            self._begun = False
        self._store().save_server_profiles(self._filename)

    def command(self, body: Any) -> None:
        """A command as MXNet's servers get it: its last character is what it
        is about."""
        text = body.decode() if isinstance(body, bytes) else str(body)
        argument, about = text[:-1], text[-1:]
        if about == "0":
            self.set_config(**dict(
                pair.split(":", 1) for pair in argument.split(",") if pair))
        elif about == "1":
            self.set_state("run" if argument == "1" else "stop")
        elif about == "2":
            (self.pause if argument == "1" else self.resume)()
        elif about == "3":
            self.dump(argument == "1")
        else:
            raise ValueError("the profiler of servers takes no command %r" %
                             (text,))


_newest: Optional["weakref.ref[Any]"] = None


def use(store: Any) -> None:
    """mx.profiler is about the servers of this store from now on."""
    global _newest  # pylint: disable=global-statement
    _newest = weakref.ref(store)


def _for_servers(name: str, act: Callable[..., None]) -> None:
    """Makes a function of mx.profiler act on servers if it is asked to."""
    function = getattr(mx.profiler, name)

    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        # The last argument of all of them but set_config().
        place = function.__code__.co_varnames.index("profile_process") \
            if "profile_process" in function.__code__.co_varnames else None
        process = more.get("profile_process")
        if process is None and place is not None and place < len(args):
            process = args[place]
            args = args[:place]
        if process != "server":
            if process is not None:
                more["profile_process"] = process
            return function(*args, **more)
        more.pop("profile_process", None)
        store = _newest() if _newest is not None else None
        if store is None:
            raise ValueError("profile_process='server' is about the servers of "
                             "a distributed store, and there is none")
        if store.rank == 0:
            act(store.server_profiler, *args, **more)
        return None

    setattr(mx.profiler, name, translated(call))


def register() -> None:
    """Changes the functions of mx.profiler."""
    of: Dict[str, Callable[..., None]] = {
        "set_config": ServerProfiler.set_config,
        "set_state": lambda p, state="stop": p.set_state(state),
        "dump": ServerProfiler.dump,
        "pause": ServerProfiler.pause,
        "resume": ServerProfiler.resume,
    }
    for name, act in of.items():
        _for_servers(name, act)
