# SPDX-License-Identifier: Apache-2.0
"""Starting of collectives. Each call returns a handle at once."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ... import _lib
from ..._collective import options
from ..._horovod.job import ProcessSet, join_job
from ..._horovod.start import run
from ..._horovod.words import (Adasum, Average, HorovodInternalError,
                                ReduceOp, Sum, splits_of,
                                words_of as words_of_array)
from .. import _tensor
from .._backend import Engine


def init(comm: Optional[Sequence[int]] = None,
         process_sets: Union[str, Sequence[ProcessSet], None] = None) -> None:
    """Joins the job that the environment names, e.g. from pslaunch or
    torchrun, and adds the process sets. Further calls only add."""
    join_job(Engine, comm, process_sets)


class Handle:
    """An open collective; for synchronize() and poll()."""

    def __init__(self, future: "torch.futures.Future[Any]") -> None:
        self._future = future

    def wait(self) -> Any:
        """Waits for the result. Raises a failure."""
        try:
            return self._future.wait()
        except RuntimeError as e:
            raise HorovodInternalError(e) from e

    def done(self) -> bool:
        """True if the collective has ended."""
        return bool(self._future.done())


class Handles:
    """Several open collectives as one."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = list(parts)

    def wait(self) -> List[Any]:
        """Waits for all results. Raises a failure."""
        return [p.wait() for p in self._parts]

    def done(self) -> bool:
        """True if all collectives have ended."""
        return all(p.done() for p in self._parts)


AnyHandle = Union[Handle, Handles]


def synchronize(handle: Any) -> Any:
    """Waits for the result and returns it."""
    return handle.wait()


def poll(handle: Any) -> bool:
    """True when synchronize() would not wait."""
    return bool(handle.done())


def words_of(tensor: Tensor, free_rows: bool = False) -> str:
    """Type and shape, for comparison with other ranks."""
    return words_of_array(str(tensor.dtype)[6:], tensor.shape, free_rows)


# Collectives to start: (kind, name).
_What = Tuple[str, Optional[str]]


def _run(e: Engine, what: _What, start: Callable[[Engine], Tuple[int, int]],
         buffers: Any, finish: Callable[[Engine, int], Any],
         spans: List[Tuple[int, int, bool]]) -> Handle:
    """Starts a collective that uses memory, after acquire(). `finish` makes its
    value from the operation. Both get the engine, which is another one where
    the ranks start in different orders."""
    future = _tensor.new_future(buffers)
    run(e, *what, start, buffers, finish, future)
    return Handle(_tensor.track(spans, future))


# ---------------------------------------------------------------- reductions


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    """A tensor of whole numbers times a factor, rounded towards zero."""
    return (tensor.double() * factor).to(tensor.dtype)


class _Sums:
    """Tensors of one type as they are sent, and the way back."""

    def __init__(self, e: Engine, tensors: Sequence[Tensor],
                 outs: Sequence[Tensor], op: ReduceOp, pre: float,
                 post: float) -> None:
        self.outs = outs
        self.srcs = [_tensor.summable(t, str(op)) for t in tensors]
        self.op = op
        self.after = 1.0  # Factor that this rank applies to the result.
        dtype = self.srcs[0].dtype
        if not dtype.is_floating_point and (pre != 1 or post != 1):
            # The library scales real numbers only.
            if pre != 1:
                self.srcs = [_scaled(s, pre) for s in self.srcs]
            if op is Average:
                post, self.op = post / e.size, Sum
            self.after, pre, post = post, 1.0, 1.0
        self.pre, self.post = pre, post
        number = _tensor.number_of(dtype)
        assert number is not None
        self.number = number
        # The operation may start later, on another thread.
        self.place = _tensor.place_of(self.srcs[0])
        self.to = [o.detach() if o.is_contiguous() and o.dtype == dtype
                   else torch.empty_like(s) for s, o in zip(self.srcs, outs)]

    @property
    def tensors(self) -> List[Tensor]:
        """The tensors that it holds."""
        return self.srcs

    def finish(self) -> None:
        """Writes the results to the outputs."""
        for t, o in zip(self.to, self.outs):
            if self.after != 1:
                t = _scaled(t, self.after)
            if t.data_ptr() != o.data_ptr() or t.dtype != o.dtype:
                o.detach().copy_(t)

    def options(self, words: str, joined: int) -> _lib.CollOptions:
        """struct psc_coll_options"""
        return _tensor.placed(options(self.op.ours, 0, self.pre, self.post,
                                      words=words, joined=joined), self.place)


def start_sum(process_set: ProcessSet, tensor: Tensor, out: Tensor,
              name: Optional[str], op: ReduceOp, pre: float, post: float,
              value: Any) -> AnyHandle:
    """Allreduce of a tensor into `out`, which may be the same."""
    e = process_set.engine()
    spans = _tensor.acquire([out], [tensor])
    sums = _Sums(e, [tensor], [out], op, pre, post)
    words = words_of(tensor)

    def finish(_e: Engine, _op: int) -> Any:
        sums.finish()
        return value
    return _run(e, ("allreduce", name), lambda e: e.starter.allreduce(
        name, sums.number, sums.srcs[0].shape, sums.srcs[0].data_ptr(),
        sums.to[0].data_ptr(), sums.options(words, _lib.JOINED_COUNT)),
        sums, finish, spans)


def start_sums(process_set: ProcessSet, tensors: Sequence[Tensor],
               outs: Sequence[Tensor], name: Optional[str], op: ReduceOp,
               pre: float, post: float) -> AnyHandle:
    """Allreduce of several tensors of one type as one operation."""
    e = process_set.engine()
    spans = _tensor.acquire(outs, tensors)
    sums = _Sums(e, tensors, outs, op, pre, post)
    words = "; ".join(words_of(t) for t in tensors)

    def finish(_e: Engine, _op: int) -> Any:
        sums.finish()
        return list(outs)
    return _run(e, ("grouped allreduce", name), lambda e: e.starter.allreduce_many(
        name, sums.number, [(s.data_ptr(), t.data_ptr(), s.numel())
                            for s, t in zip(sums.srcs, sums.to)],
        sums.options(words, _lib.JOINED_COUNT)), sums, finish, spans)


def start_scatter(process_set: ProcessSet, tensor: Tensor,
                  name: Optional[str], op: ReduceOp, pre: float,
                  post: float) -> AnyHandle:
    """Reduce-scatter: this rank's rows of the sum."""
    e = process_set.engine()
    if tensor.dim() == 0:
        raise ValueError("reducescatter of a tensor without a first dimension")
    if op is Adasum:
        raise HorovodInternalError("reducescatter has no Adasum")
    rows = tensor.shape[0] // e.size + (e.rank < tensor.shape[0] % e.size)
    out = torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype,
                      device=tensor.device)
    spans = _tensor.acquire((), [tensor])
    sums = _Sums(e, [tensor], [out], op, pre, post)
    room = torch.empty(out.shape, dtype=sums.srcs[0].dtype, device=out.device)
    sums.to = [room]
    words = words_of(tensor)

    def finish(_e: Engine, _op: int) -> Any:
        sums.finish()
        return out
    return _run(e, ("reducescatter", name), lambda e: e.starter.gather(
        "reducescatter", name, sums.number, sums.srcs[0].shape,
        sums.srcs[0].data_ptr(), room.data_ptr(),
        room.numel() * room.element_size(),
        sums.options(words, _lib.JOINED_REFUSE)), sums, finish, spans)


# ----------------------------------------------------------------- transfers


def start_broadcast(process_set: ProcessSet, tensor: Tensor, root: int,
                    name: Optional[str]) -> Handle:
    """Broadcast in place; `root` is a rank of the job."""
    e = process_set.engine()
    position = process_set.position(root)
    to = tensor.detach()
    _tensor.check(to)
    spans = _tensor.acquire([to])
    width = to.numel() * to.element_size()
    raw = _tensor.Raw(to, max(width, 1))
    direct = raw.tensor.data_ptr() == to.data_ptr()

    def finish(_e: Engine, _op: int) -> Any:
        if not direct:
            raw.take(raw.bytes(), 0, to)
        return tensor
    return _run(e, ("broadcast", name), lambda e: e.starter.bcast(
        name, _tensor.WORD, [raw.words if width > 0 else 0], raw.address,
        raw.address, _tensor.placed(options(
            root=position, words=words_of(to), joined=_lib.JOINED_REFUSE),
            raw.place)), raw, finish, spans)


def _received(e: Engine, op: int, raw: _tensor.Raw,
              tensor: Tensor) -> Tuple[Tensor, List[int]]:
    """The rows that an ended operation has brought, and the number of them
    from each rank."""
    counts = e.starter.rows(op, e.size)
    out = torch.empty((sum(counts), *tensor.shape[1:]), dtype=tensor.dtype,
                      device=tensor.device)
    address, size = e.starter.result(op)
    if out.numel() > 0:
        raw.take(_tensor.over(address, size, None).view(sum(counts), -1), 0,
                 out)
    return out, counts


def start_gather(process_set: ProcessSet, tensor: Tensor,
                 name: Optional[str]) -> Handle:
    """Allgather. The value is the result and the rows of each rank."""
    e = process_set.engine()
    tensor = tensor.detach()
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    spans = _tensor.acquire((), [tensor])
    raw = _tensor.Raw(tensor, max(_tensor.row_bytes(tensor), 1))
    return _run(e, ("allgather", name), lambda e: e.starter.gather(
        "allgather", name, _tensor.WORD, [tensor.shape[0], raw.words],
        raw.address, None, 0, _tensor.placed(options(
            words=words_of(tensor, True), joined=_lib.JOINED_REFUSE),
            raw.place)), raw,
        lambda e, op: _received(e, op, raw, tensor), spans)


def _splits(tensor: Tensor, splits: Optional[Any], size: int) -> List[int]:
    """Rows for each rank."""
    if tensor.dim() == 0:
        raise ValueError("alltoall of a tensor without a first dimension")
    if isinstance(splits, Tensor) and splits.dtype not in (torch.int32,
                                                           torch.int64):
        raise ValueError("alltoall expects splits of whole numbers, of 32 or "
                         "64 bits")
    return splits_of(tensor.shape[0], splits, size)


def start_exchange(process_set: ProcessSet, tensor: Tensor,
                   splits: Optional[Any], name: Optional[str]) -> Handle:
    """Alltoall. The value is the result and the rows from each rank."""
    e = process_set.engine()
    sends = _splits(tensor, splits, e.size)
    kind = splits.dtype if isinstance(splits, Tensor) else torch.int32
    tensor = tensor.detach()[:sum(sends)]
    spans = _tensor.acquire((), [tensor])
    raw = _tensor.Raw(tensor, max(_tensor.row_bytes(tensor), 1))

    def finish(e: Engine, op: int) -> Any:
        out, counts = _received(e, op, raw, tensor)
        return out, torch.tensor(counts, dtype=kind)
    return _run(e, ("alltoall", name), lambda e: e.starter.alltoall(
        name, _tensor.WORD, [tensor.shape[0], raw.words], sends, raw.address,
        None, 0, _tensor.placed(options(
            words=words_of(tensor, True), joined=_lib.JOINED_REFUSE),
            raw.place)), raw, finish, spans)


def start_join(process_set: ProcessSet) -> Handle:
    """Join. The value is the rank that joined last."""
    e = process_set.engine()
    return _run(e, ("join", None), lambda e: e.starter.join(options()), None,
                lambda e, op: e.starter.last(op), [])
