# SPDX-License-Identifier: Apache-2.0
"""Collectives of Horovod's interface. Those whose results have the shapes of
their arrays return at once, and readers of the results wait; the others
return after the end."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..._collective import options
from ..._horovod.job import ProcessSet, global_process_set
from ..._horovod.words import (Adasum, Average, ReduceOp, Sum, chosen, part_of,
                               splits_of)
from .._errors import translated
from ._arrays import (WORD, Raw, Room, Sums, address, check, new_array,
                      result_rows, room_of, words_of)
from ._start import Engine, push

# ---------------------------------------------------------------- reductions


def _by_type(arrays: Sequence[Any]) -> Dict[str, List[int]]:
    """Indices of the arrays of each type."""
    groups: Dict[str, List[int]] = {}
    for i, a in enumerate(arrays):
        check(a)
        groups.setdefault(np.dtype(a.dtype).name, []).append(i)
    return groups


def _push_sum(e: Engine, kind: str, name: Optional[str], rooms: List[Room],
              words: str, priority: int, op: ReduceOp, pre: float,
              post: float) -> None:
    sums = Sums([r.data for r in rooms], op, pre, post, e.size)

    def start(e: Engine) -> Tuple[int, int]:
        number = sums.begin()
        o = options(sums.op.ours, 0, sums.pre, sums.post, priority,
                    words=words)
        if len(rooms) == 1 and kind == "allreduce":
            at = address(sums.arrays[0])
            return e.starter.allreduce(name, number, sums.arrays[0].shape, at,
                                       at, o)
        return e.starter.allreduce_many(
            name, number, [(address(a), address(a), a.size)
                           for a in sums.arrays], o)
    push(e, kind, name, rooms, [], priority, start,
         lambda e, _: sums.end())


def _reduce(kind: str, arrays: Sequence[Any], outs: Sequence[Any],
            average: Optional[bool], name: Optional[str], priority: int,
            pre: float, post: float, process_set: ProcessSet,
            op: Optional[int]) -> None:
    """Allreduce of arrays into `outs`, which may be the same."""
    # pylint: disable=too-many-arguments
    reduction = chosen(op, average)
    assert reduction != Adasum, "Adasum is not there for MXNet, as in " \
        "Horovod; use Average, Sum, Min, Max or Product"
    e = process_set.engine()
    groups = _by_type(arrays)
    for dtype, group in groups.items():
        with mx.autograd.pause():
            rooms = [room_of(arrays[i]) for i in group]
            _push_sum(e, kind, name if len(groups) == 1 else
                      part_of(name, dtype), rooms,
                      "; ".join(words_of(arrays[i]) for i in group), priority,
                      reduction, pre, post)
            for i, room in zip(group, rooms):
                room.write(outs[i])
                room.leave()


def _check_arrays(arrays: Sequence[Any]) -> None:
    for a in arrays:
        assert isinstance(a, mx.nd.NDArray), \
            "an NDArray is wanted, not %s" % type(a).__name__


def _like(array: Any) -> Any:
    check(array)
    return mx.nd.empty(array.shape, ctx=array.context, dtype=array.dtype)


@translated
def allreduce(tensor: Any, average: Optional[bool] = None,
              name: Optional[str] = None, priority: int = 0,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set,
              op: Optional[int] = None) -> Any:
    """The mean over all ranks (or the sum, ... with op=), as a new array."""
    out = _like(tensor)
    _reduce("allreduce", [tensor], [out], average, name, priority,
            prescale_factor, postscale_factor, process_set, op)
    return out


@translated
def allreduce_(tensor: Any, average: Optional[bool] = None,
               name: Optional[str] = None, priority: int = 0,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set,
               op: Optional[int] = None) -> Any:
    """allreduce() in place."""
    _reduce("allreduce", [tensor], [tensor], average, name, priority,
            prescale_factor, postscale_factor, process_set, op)
    return tensor


@translated
def grouped_allreduce(tensors: Sequence[Any], average: Optional[bool] = None,
                      name: Optional[str] = None, priority: int = 0,
                      prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set,
                      op: Optional[int] = None) -> Any:
    """allreduce() of several arrays as one operation for each type."""
    outs = [_like(t) for t in tensors]
    _reduce("grouped allreduce", tensors, outs, average, name, priority,
            prescale_factor, postscale_factor, process_set, op)
    return outs


@translated
def grouped_allreduce_(tensors: Sequence[Any], average: Optional[bool] = None,
                       name: Optional[str] = None, priority: int = 0,
                       prescale_factor: float = 1.0,
                       postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set,
                       op: Optional[int] = None) -> Any:
    """grouped_allreduce() in place."""
    _reduce("grouped allreduce", tensors, tensors, average, name, priority,
            prescale_factor, postscale_factor, process_set, op)
    return tensors


# ---------------------------------------------------------------- broadcast


def _broadcast(array: Any, out: Any, root: int, name: Optional[str],
               priority: int, process_set: ProcessSet) -> Any:
    e = process_set.engine()
    position = process_set.position(root)
    words = words_of(array)
    with mx.autograd.pause():
        room = room_of(array)
        raws: List[Raw] = []

        def start(e: Engine) -> Tuple[int, int]:
            raws.append(Raw(room.data.reshape(1, -1)))
            at = address(raws[-1].data)
            return e.starter.bcast(
                name, WORD, [raws[-1].words if room.data.size > 0 else 0], at,
                at, options(root=position, priority=priority, words=words))

        def finish(_e: Engine, _op: int) -> None:
            if raws[-1].padded:
                room.data[...] = raws[-1].array(raws[-1].data, 1).reshape(
                    room.data.shape)
        push(e, "broadcast", name, [room], [], priority, start, finish)
        room.write(out)
        room.leave()
    return out


@translated
def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None,
              priority: int = 0,
              process_set: ProcessSet = global_process_set) -> Any:
    """The array of rank root_rank of the job, as a new array."""
    return _broadcast(tensor, _like(tensor), root_rank, name, priority,
                      process_set)


@translated
def broadcast_(tensor: Any, root_rank: int, name: Optional[str] = None,
               priority: int = 0,
               process_set: ProcessSet = global_process_set) -> Any:
    """broadcast() in place."""
    return _broadcast(tensor, tensor, root_rank, name, priority, process_set)


# ------------------------------------- results of shapes that arrive with them


class _Arrival:
    """A collective whose result is a new array."""

    def __init__(self, e: Engine, kind: str, name: Optional[str], array: Any,
                 priority: int, begin: Callable[[Any, np.ndarray], Any],
                 end: Callable[[Any, int], Any]) -> None:
        """`begin` starts it with the array's data, and `end` makes its
        value."""
        # pylint: disable=too-many-arguments
        self._value: Any = None
        self._like = array
        with mx.autograd.pause():
            self._flag = mx.nd.zeros((1,))
            room = room_of(array)

            def finish(e: Engine, op: int) -> None:
                self._value = end(e, op)
            push(e, kind, name, [room], [self._flag], priority,
                 lambda e: begin(e, room.data), finish)
            room.leave()

    def value(self) -> Any:
        """Waits for the value."""
        self._flag.wait_to_read()
        return self._value

    def array(self) -> Any:
        """Waits for a value that is an array."""
        data = self.value()
        with mx.autograd.pause():
            return new_array(data, self._like)


def _start_gather(array: Any, name: Optional[str], priority: int,
                  process_set: ProcessSet) -> _Arrival:
    check(array)
    words = words_of(array, True)
    raws: List[Raw] = []

    def begin(e: Engine, data: np.ndarray) -> Tuple[int, int]:
        raw = Raw(data if data.ndim > 0 else data.reshape(1))
        raws.append(raw)
        return e.starter.gather(
            "allgather", name, WORD, [raw.rows, raw.words],
            address(raw.data), None, 0,
            options(priority=priority, words=words))
    return _Arrival(process_set.engine(), "allgather", name, array, priority,
                    begin, lambda e, op: result_rows(e, op, raws[-1])[0])


@translated
def allgather(tensor: Any, name: Optional[str] = None, priority: int = 0,
              process_set: ProcessSet = global_process_set) -> Any:
    """The arrays of all ranks, concatenated by rank; their first dimensions
    may differ."""
    _check_arrays([tensor])
    return _start_gather(tensor, name, priority, process_set).array()


@translated
def grouped_allgather(tensors: Sequence[Any], name: Optional[str] = None,
                      priority: int = 0,
                      process_set: ProcessSet = global_process_set) -> Any:
    """allgather() of each array."""
    _check_arrays(tensors)
    started = [_start_gather(t, part_of(name, i), priority, process_set)
               for i, t in enumerate(tensors)]
    return [s.array() for s in started]


@translated
def alltoall(tensor: Any, splits: Any = None, name: Optional[str] = None,
             priority: int = 0,
             process_set: ProcessSet = global_process_set) -> Any:
    """Sends splits[r] rows to rank r, or equal shares. Returns the received
    rows, by rank, and with splits the number from each."""
    _check_arrays([tensor])
    e = process_set.engine()
    if len(tensor.shape) == 0:
        raise ValueError("alltoall of an array without a first dimension")
    if isinstance(splits, mx.nd.NDArray):
        if np.dtype(splits.dtype) != np.int32:
            raise ValueError("alltoall expects splits of 32-bit integers, not "
                             "of %s" % np.dtype(splits.dtype))
        splits = splits.asnumpy().tolist()
    sends = splits_of(tensor.shape[0], splits, e.size)
    words = words_of(tensor, True)
    raws: List[Raw] = []

    def begin(e: Engine, data: np.ndarray) -> Tuple[int, int]:
        raw = Raw(data[:sum(sends)])
        raws.append(raw)
        return e.starter.alltoall(
            name, WORD, [raw.rows, raw.words], sends, address(raw.data), None,
            0, options(priority=priority, words=words))
    started = _Arrival(e, "alltoall", name, tensor, priority, begin,
                       lambda e, op: result_rows(e, op, raws[-1]))
    data, counts = started.value()
    with mx.autograd.pause():
        out = new_array(data, tensor)
        if splits is None:
            return out
        return out, mx.nd.array(counts, dtype="int32")


# ------------------------------------------------------------ reduce-scatter


def _start_scatter(array: Any, op: ReduceOp, name: Optional[str],
                   priority: int, process_set: ProcessSet, pre: float,
                   post: float) -> _Arrival:
    # pylint: disable=too-many-arguments
    e = process_set.engine()
    check(array)
    words = words_of(array)
    rows = array.shape[0] // e.size + (e.rank < array.shape[0] % e.size)
    parts: List[Any] = []

    def begin(e: Engine, data: np.ndarray) -> Tuple[int, int]:
        sums = Sums([data], op, pre, post, e.size)
        number = sums.begin()
        source = sums.arrays[0]
        out = np.empty((rows, *data.shape[1:]), source.dtype)
        parts[:] = sums, out
        return e.starter.gather(
            "reducescatter", name, number, source.shape, address(source),
            address(out), out.nbytes,
            options(sums.op.ours, 0, sums.pre, sums.post, priority,
                    words=words))
    return _Arrival(e, "reducescatter", name, array, priority, begin,
                    lambda e, _: parts[0].finish(parts[1]))


@translated
def reducescatter(tensor: Any, op: int = Average, name: Optional[str] = None,
                  priority: int = 0,
                  process_set: ProcessSet = global_process_set,
                  prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> Any:
    """This rank's rows of the mean (or sum) over all ranks: equal shares, and
    one row more for each of the first ranks if they do not divide evenly."""
    return grouped_reducescatter([tensor], op, name, priority, process_set,
                                 prescale_factor, postscale_factor)[0]


@translated
def grouped_reducescatter(tensors: Sequence[Any], op: int = Average,
                          name: Optional[str] = None, priority: int = 0,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> Any:
    """reducescatter() of each array."""
    _check_arrays(tensors)
    assert op in (Average, Sum), "reducescatter has Average and Sum"
    if any(len(t.shape) == 0 for t in tensors):
        raise ValueError("reducescatter does not support scalar inputs")
    started = [_start_scatter(
        t, ReduceOp(op), name if len(tensors) == 1 else part_of(name, i),
        priority, process_set, prescale_factor, postscale_factor)
        for i, t in enumerate(tensors)]
    return [s.array() for s in started]
