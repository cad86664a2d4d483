# SPDX-License-Identifier: Apache-2.0
"""The job of Horovod's interfaces: ranks, sets of ranks, what is built. A
process has one, whichever interface it uses."""
from __future__ import annotations

import operator
import os
import threading
import time
from typing import (Any, Dict, Iterable, List, Optional, Sequence, Tuple, Type,
                    Union)

from .._engine import Engine
from .._errors import Error
from .._store import create
from .timeline import timeline
from .words import HorovodInternalError

# Seconds for which init() waits for other ranks to leave the job of before.
_REINIT_S = 30.0


class _State:
    engine: Optional[Engine] = None
    was_open = False
    lock = threading.Lock()


def _ranks_of(call: str, given: Any) -> List[int]:
    """Ranks that a call was given. Horovod's take a communicator of mpi4py,
    too."""
    try:
        ranks = list(given)
    except TypeError:
        raise ValueError(
            "%s takes a list of ranks, not %r of type %s: pskv knows no "
            "communicators of MPI" % (call, given, type(given).__name__)
        ) from None
    if not all(hasattr(r, "__index__") and not isinstance(r, bool)
               for r in ranks):
        raise ValueError("%s takes a list of ranks, which are whole numbers, "
                         "not %r" % (call, ranks))
    return [operator.index(r) for r in ranks]


class ProcessSet:
    """A subset of the ranks, as a group. Registered on all ranks by
    add_process_set() or as an argument of init()."""

    def __init__(self, ranks_or_comm: Optional[Iterable[int]] = None) -> None:
        self.ranks = None if ranks_or_comm is None else \
            sorted(set(_ranks_of("ProcessSet()", ranks_or_comm)))
        self.process_set_id: Optional[int] = None
        self._engine: Optional[Engine] = None

    def engine(self) -> Any:
        """Its connection. ValueError: there is none."""
        if self.ranks is None:
            if _State.engine is None:
                raise ValueError("Horovod has not been initialized; use "
                                 "hvd.init().")
            return _State.engine
        if self.process_set_id is None:
            raise ValueError("the process set %r was not added" % self)
        if self._engine is None:
            raise ValueError("rank %d is not in %r" % (rank(), self))
        return self._engine

    def included(self) -> bool:
        """True if this rank is a member."""
        return self.ranks is None or rank() in self.ranks

    def rank(self) -> int:
        """This rank's position in the set; -1: not a member."""
        if not self.included():
            return -1
        return self.engine().rank

    def size(self) -> int:
        """Number of ranks in the set."""
        return size() if self.ranks is None else len(self.ranks)

    def position(self, root: int) -> int:
        """The position in the set of a rank that broadcasts. ValueError: not a
        member."""
        if self.ranks is None:
            if not 0 <= root < size():
                raise ValueError("root rank %d is out of range: there are %d "
                                 "ranks" % (root, size()))
            return root
        if root not in self.ranks:
            raise ValueError("rank %d is not in %r" % (root, self))
        return self.ranks.index(root)

    def __repr__(self) -> str:
        return "ProcessSet(%s)" % (self.ranks,)


global_process_set = ProcessSet()
global_process_set.process_set_id = 0
_sets: Dict[int, ProcessSet] = {}
_next_set = [1]


def _join_job() -> Any:
    """The job's store. After a shutdown() it waits until the other ranks have
    left the job, too."""
    until = time.monotonic() + _REINIT_S
    while True:
        try:
            return create("dist_sync")
        except Error as e:
            if "has left job" not in str(e) or not _State.was_open or \
                    time.monotonic() > until:
                raise
        time.sleep(0.02)


def join_job(kind: Type[Engine], comm: Optional[Sequence[int]],
             process_sets: Union[str, Sequence[ProcessSet], None]) -> None:
    """Joins the job that the environment names, e.g. from pslaunch or
    torchrun, with an engine of class `kind`. Further calls have no effect."""
    with _State.lock:
        if _State.engine is None:
            engine = kind(_join_job(), None)
            _learn_places(engine)
            _State.engine = engine
            _State.was_open = True
            _start_named_timeline(engine.rank)
        elif type(_State.engine) is not kind:
            raise ValueError("this process uses Horovod's interface of %s" %
                             type(_State.engine).__module__)
    if comm is not None and _ranks_of("init(comm=...)", comm) not in (
            [], list(range(size()))):
        raise ValueError("init() with some ranks, %s: a job has all %d; "
                         "process sets have some" % (list(comm), size()))
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError("init(process_sets=%r): a list of process sets, "
                             "or 'dynamic'" % process_sets)
        return  # Process sets can always be added.
    if process_sets is None:
        return
    for s in process_sets:
        add_process_set(s)


def _start_named_timeline(of_rank: int) -> None:
    """Begins the timeline that Horovod's variable names. With DYNAMIC,
    start_timeline() begins it."""
    path = os.environ.get("HOROVOD_TIMELINE")
    if path and path != "DYNAMIC" and of_rank == 0:
        timeline.start(path, os.environ.get("HOROVOD_TIMELINE_MARK_CYCLES") ==
                       "1")


def engines(of: Optional[ProcessSet] = None) -> List[Any]:
    """Connections of this rank for a process set, or for all."""
    found = [of._engine] if of is not None else \
        [*[s._engine for s in _sets.values()], _State.engine]
    return [e for e in found if e is not None]


def shutdown() -> None:
    """Closes all process sets and leaves the job."""
    timeline.stop()
    for s in list(_sets.values()):
        _close_set(s)
    with _State.lock:
        engine, _State.engine = _State.engine, None
    if engine is not None:
        engine.close()


def is_initialized() -> bool:
    """True between init() and shutdown()."""
    return _State.engine is not None


def _engine() -> Any:
    return global_process_set.engine()


def rank() -> int:
    """This worker's rank, from 0."""
    return _engine().rank


def size() -> int:
    """Workers of the job."""
    return _engine().size


def local_rank() -> int:
    """This worker's rank on its node."""
    return _engine().kv.local_rank


def local_size() -> int:
    """Workers of the job on this node."""
    return _engine().kv.local_size


def _nodes() -> Tuple[int, int]:
    """Index of this node among the nodes with this local rank, and their
    number."""
    e = _engine()
    kv = e.kv
    firsts = sorted({row[0] for row in _all_places() if row[1] ==
                     kv.local_rank})
    mine = next(row[0] for i, row in enumerate(_all_places()) if i == e.rank)
    return firsts.index(mine), len(firsts)


_places: List[Tuple[int, int]] = []


def _all_places() -> List[Tuple[int, int]]:
    """(First rank of the node, local rank) of every rank."""
    _engine()
    return _places


def _learn_places(e: Engine) -> None:
    seen: Dict[Any, int] = {}
    _places.clear()
    for i, (node, socket, local) in enumerate(e.kv.allgather_object(
            (os.uname().nodename, os.environ.get("PSKV_SOCKET", ""),
             e.kv.local_rank))):
        _places.append((seen.setdefault((node, socket), i), local))


def cross_rank() -> int:
    """Index of this node."""
    return _nodes()[0]


def cross_size() -> int:
    """Number of nodes with a worker of this local rank."""
    return _nodes()[1]


def is_homogeneous() -> bool:
    """True if all nodes have the same number of workers."""
    counts: Dict[int, int] = {}
    for first, _ in _all_places():
        counts[first] = counts.get(first, 0) + 1
    return len(set(counts.values())) == 1


def add_process_set(
        process_set: Union[ProcessSet, Iterable[int]]) -> ProcessSet:
    """Registers a process set. All ranks call it with the same ranks."""
    s = process_set if isinstance(process_set, ProcessSet) else \
        ProcessSet(process_set)
    if s.ranks is None or s.process_set_id is not None:
        raise ValueError("%r is there already" % s)
    if not s.ranks or s.ranks[0] < 0 or s.ranks[-1] >= size():
        raise ValueError("%r: the job has ranks 0 to %d" % (s, size() - 1))
    number = _next_set[0]
    _next_set[0] += 1
    if rank() in s.ranks:
        e = _engine()
        s._engine = type(e)(e.kv.group(s.ranks, name="set%d" % number), None)
    s.process_set_id = number
    _sets[number] = s
    return s


def _close_set(s: ProcessSet) -> None:
    assert s.process_set_id is not None
    _sets.pop(s.process_set_id, None)
    s.process_set_id = None
    if s._engine is not None:
        s._engine.close()
        s._engine = None


def remove_process_set(process_set: ProcessSet) -> bool:
    """Closes a process set. All ranks call it. False: not registered."""
    if process_set.process_set_id is None or process_set.ranks is None:
        return False
    _close_set(process_set)
    return True


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks have called it."""
    try:
        process_set.engine().wait_barrier()
    except RuntimeError as e:
        raise HorovodInternalError(e) from e


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins a timeline of the collectives of rank 0, in the format of
    Chrome's tracing. `mark_cycles` marks the call of each collective: there
    are no cycles."""
    if rank() == 0:
        timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline's file."""
    timeline.stop()


# ------------------------------------------------------------ what is built


def gloo_built() -> bool:
    """True: a library for ranks without MPI is there, pskv itself."""
    return True


def gloo_enabled() -> bool:
    """True: jobs use it."""
    return True


def mpi_built() -> bool:
    """False: there is no MPI."""
    return False


def mpi_enabled() -> bool:
    """False: there is no MPI."""
    return False


def mpi_threads_supported() -> bool:
    """False: there is no MPI."""
    return False


def nccl_built() -> int:
    """0: there is no NCCL."""
    return 0


def ddl_built() -> bool:
    """False: there is no DDL."""
    return False


def ccl_built() -> bool:
    """False: there is no oneCCL."""
    return False


def cuda_built() -> bool:
    """False: tensors are in host memory."""
    return False


def rocm_built() -> bool:
    """False: tensors are in host memory."""
    return False
