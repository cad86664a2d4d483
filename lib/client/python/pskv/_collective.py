# SPDX-License-Identifier: Apache-2.0
"""Collectives: started on addresses, waited for through handles."""
from __future__ import annotations

import ctypes
import pickle
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, TypeVar

from . import _lib
from ._array import Array, device_of, dtype_of, dtype_size, new_array
from ._errors import error

Dims = Sequence[int]
# The store that has these collectives; the class of its groups.
_Store = TypeVar("_Store", bound="Collectives")


def options(reduce: str = "sum", root: int = 0, prescale: float = 1,
            postscale: float = 1, priority: int = 0, *,
            words: Optional[str] = None, joined: int = 0) -> _lib.CollOptions:
    """struct psc_coll_options"""
    if reduce not in _lib.REDUCE:
        raise ValueError("no reduction %r; there are %s" %
                         (reduce, ", ".join(_lib.REDUCE)))
    return _lib.CollOptions(size=ctypes.sizeof(_lib.CollOptions),
                            priority=priority, reduce=_lib.REDUCE[reduce],
                            root=root, prescale=prescale, postscale=postscale,
                            array_words=None if words is None else
                            words.encode(), joined=joined)


def array_of(dtype: int, dims: Dims, src: Optional[int], out: Optional[int],
             out_size: int = 0) -> _lib.Array:
    """struct psc_array: dtype, dims, source and result with its bytes"""
    return _lib.Array(dtype=dtype, ndim=len(dims),
                      dims=(c_uint64 * len(dims))(*dims), src=src, out=out,
                      out_size=out_size)


def _name(name: Optional[str]) -> Optional[bytes]:
    return None if name is None else _lib.encode(name, "name")


class Starter:
    """Starts collectives of one client on memory kept by the caller."""

    def __init__(self, lib: Any, client: int) -> None:
        self._lib = lib
        self._client = client

    def allreduce(self, name: Optional[str], dtype: int, dims: Dims, src: int,
                  out: Optional[int], o: _lib.CollOptions) -> Tuple[int, int]:
        """Allreduce. Returns error code and operation, as all below."""
        op = c_void_p()
        rc = self._lib.psc_allreduce_start(
            self._client, _name(name), byref(array_of(dtype, dims, src, out)),
            byref(o), byref(op))
        return rc, op.value or 0

    def allreduce_many(self, name: Optional[str], dtype: int,
                       pieces: Sequence[Tuple[int, int, int]],
                       o: _lib.CollOptions) -> Tuple[int, int]:
        """Grouped allreduce of (src, out, elements)."""
        op = c_void_p()
        table = (_lib.Piece * len(pieces))(*[_lib.Piece(*p)
                                              for p in pieces])
        all_of = _lib.Pieces(dtype=dtype, count=len(pieces), pieces=table)
        rc = self._lib.psc_allreduce_many_start(
            self._client, _name(name), byref(all_of), byref(o), byref(op))
        return rc, op.value or 0

    def bcast(self, name: Optional[str], dtype: int, dims: Dims,
              src: Optional[int], out: Optional[int],
              o: _lib.CollOptions) -> Tuple[int, int]:
        """Broadcast of the root's array."""
        op = c_void_p()
        rc = self._lib.psc_bcast_start(
            self._client, _name(name), byref(array_of(dtype, dims, src, out)),
            byref(o), byref(op))
        return rc, op.value or 0

    def gather(self, what: str, name: Optional[str], dtype: int, dims: Dims,
               src: int, out: Optional[int], out_size: int,
               o: _lib.CollOptions) -> Tuple[int, int]:
        """Allgather or reduce-scatter, by `what`."""
        op = c_void_p()
        rc = getattr(self._lib, "psc_%s_start" % what)(
            self._client, _name(name),
            byref(array_of(dtype, dims, src, out, out_size)), byref(o),
            byref(op))
        return rc, op.value or 0

    def alltoall(self, name: Optional[str], dtype: int, dims: Dims,
                 splits: Optional[Sequence[int]], src: int,
                 out: Optional[int], out_size: int,
                 o: _lib.CollOptions) -> Tuple[int, int]:
        """Alltoall: splits[r] rows to rank r."""
        op = c_void_p()
        table = None
        if splits is not None:
            table = (c_uint64 * len(splits))(*splits)
        rc = self._lib.psc_alltoall_start(
            self._client, _name(name),
            byref(array_of(dtype, dims, src, out, out_size)), table, byref(o),
            byref(op))
        return rc, op.value or 0

    def join(self, o: _lib.CollOptions) -> Tuple[int, int]:
        """Joins: this rank has no more data."""
        op = c_void_p()
        rc = self._lib.psc_join_start(self._client, byref(o), byref(op))
        return rc, op.value or 0

    def last(self, op: int) -> int:
        """The rank that joined last."""
        version = c_uint64()
        rc = self._lib.psc_op_version(op, byref(version))
        if rc != 0:
            raise error(rc, "the join has not ended well")
        return int(version.value)

    def rows(self, op: int, size: int) -> List[int]:
        """Rows received from each rank."""
        table = (c_uint64 * size)()
        rc = self._lib.psc_op_rows(op, table, size)
        if rc != 0:
            raise error(rc, "rows are of allgather and alltoall")
        return list(table)

    def result(self, op: int) -> Tuple[int, int]:
        """Address and bytes of a result without `out`."""
        data = c_void_p()
        size = c_size_t()
        rc = self._lib.psc_op_view(op, byref(data), byref(size))
        if rc != 0:
            raise error(rc, "the operation has no result here")
        return data.value or 0, size.value


def join_words(data: bytes) -> "ctypes.Array[Any]":
    """The data in whole words, after a word with its length."""
    words = (len(data) + 7) // 8
    memory = (ctypes.c_int64 * (1 + words))()
    memory[0] = len(data)
    ctypes.memmove(ctypes.addressof(memory) + 8, data, len(data))
    return memory


def split_words(data: bytes) -> List[bytes]:
    """Splits a sequence of join_words() results."""
    parts = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at:at + 8], "little")
        parts.append(data[at + 8:at + 8 + length])
        at += 8 + (length + 7) // 8 * 8
    return parts


class Collectives:
    """Collectives of a store. Every worker calls the same ones in the same
    order; if ranks make different requests, all get an error that lists
    each rank's request."""

    if TYPE_CHECKING:
        _lib: Any
        _c: Optional[int]
        _callback: Any

        def _open(self) -> int: ...

        def _check(self, rc: int) -> int: ...

        def _new_handle(self) -> Any: ...

        def _entrance(self, ordinal: int) -> int: ...

        def _adopt(self: _Store, client: int, name: str) -> _Store: ...

        @property
        def num_workers(self) -> int: ...

    def _starter(self) -> Starter:
        return Starter(self._lib, self._open())

    def _coll_options(self, *args: Any, **more: Any) -> _lib.CollOptions:
        o = options(*args, **more)
        # Does nothing, but a callback makes psc_fd() readable at the end.
        o.callback = self._callback
        return o

    def _on(self, arrays: List[Array], o: _lib.CollOptions) -> _lib.CollOptions:
        """The options, for arrays that may lie on a GPU."""
        o.device = device_of(arrays)
        return o

    def _begin(self, started: Tuple[int, int], buffers: List[Array]) -> Any:
        handle = self._new_handle()
        self._check(started[0])
        handle._ops.append(started[1])
        handle._buffers.extend(buffers)
        return handle

    def allreduce_async(self, value: Any, out: Any = None, *,
                        name: Optional[str] = None, reduce: str = "sum",
                        prescale: float = 1, postscale: float = 1,
                        priority: int = 0) -> Any:
        """allreduce() with a handle."""
        src = Array(value, out is None, self._entrance)
        to = src if out is None else Array(out, True, self._entrance)
        if (to.dtype, to.count) != (src.dtype, src.count):
            raise ValueError("the result has another size or type")
        return self._begin(self._starter().allreduce(
            name, src.dtype, src.shape, src.address, to.address,
            self._on([src, to], self._coll_options(
                reduce, 0, prescale, postscale, priority))), [src, to])

    def allreduce(self, value: Any, out: Any = None, **more: Any) -> None:
        """Writes the sum (or mean, ...) over all ranks to `out`, or to `value`
        without `out`."""
        self.allreduce_async(value, out, **more).wait()

    def grouped_allreduce_async(self, values: Sequence[Any],
                                outs: Optional[Sequence[Any]] = None, *,
                                name: Optional[str] = None,
                                reduce: str = "sum", prescale: float = 1,
                                postscale: float = 1,
                                priority: int = 0) -> Any:
        """grouped_allreduce() with a handle."""
        src = [Array(v, outs is None, self._entrance) for v in values]
        to = src if outs is None else [Array(v, True, self._entrance)
                                       for v in outs]
        if not src or len(to) != len(src):
            raise ValueError("%d arrays, %d results" % (len(src), len(to)))
        for s, t in zip(src, to):
            if (s.dtype, s.count) != (t.dtype, t.count) or \
                    s.dtype != src[0].dtype:
                raise ValueError("all arrays and results have one type, and "
                                 "each pair one size")
        return self._begin(self._starter().allreduce_many(
            name, src[0].dtype, [(s.address, t.address, s.count)
                                 for s, t in zip(src, to)],
            self._on(src + to, self._coll_options(
                reduce, 0, prescale, postscale, priority))), src + to)

    def grouped_allreduce(self, values: Sequence[Any],
                          outs: Optional[Sequence[Any]] = None,
                          **more: Any) -> None:
        """allreduce() of several arrays of one type as one operation."""
        self.grouped_allreduce_async(values, outs, **more).wait()

    def bcast_async(self, value: Any, root: int = 0, *,
                    name: Optional[str] = None, priority: int = 0) -> Any:
        """bcast() with a handle."""
        array = Array(value, True, self._entrance)
        return self._begin(self._starter().bcast(
            name, array.dtype, array.shape, array.address, array.address,
            self._on([array], self._coll_options(
                root=root, priority=priority))), [array])

    def bcast(self, value: Any, root: int = 0, **more: Any) -> None:
        """Overwrites `value` by that of rank `root`. For arrays without a key;
        broadcast() is for keys."""
        self.bcast_async(value, root, **more).wait()

    def _result(self, handle: Any, dtype: int, dims: Dims) -> Any:
        """The result as a new array; frees the handle."""
        op = handle._ops[0]
        failure = handle._await()
        if failure is not None:
            handle.wait()  # Raises the failure.
        address, size = self._starter().result(op)
        row = dtype_size(dtype)
        for d in dims[1:]:
            row *= d
        memory = (ctypes.c_char * max(size, 1))()
        ctypes.memmove(memory, address, size)
        rows = size // row if row > 0 else 0
        return _array((rows, *dims[1:]), dtype, memory, size)

    def allgather(self, value: Any, *, name: Optional[str] = None,
                  priority: int = 0) -> Any:
        """The arrays of all ranks, concatenated by rank; their first
        dimensions may differ."""
        src = Array(value, False, self._entrance)
        handle = self._begin(self._starter().gather(
            "allgather", name, src.dtype, src.shape, src.address, None, 0,
            self._on([src], self._coll_options(priority=priority))), [src])
        result = self._result(handle, src.dtype, src.shape)
        handle.wait()
        return result

    def reducescatter(self, value: Any, *, name: Optional[str] = None,
                      reduce: str = "sum", prescale: float = 1,
                      postscale: float = 1, priority: int = 0) -> Any:
        """This rank's rows of the sum over all ranks: equal shares, and one
        row more for each of the first ranks if they do not divide evenly."""
        src = Array(value, False, self._entrance)
        handle = self._begin(self._starter().gather(
            "reducescatter", name, src.dtype, src.shape, src.address, None, 0,
            self._on([src], self._coll_options(
                reduce, 0, prescale, postscale, priority))), [src])
        result = self._result(handle, src.dtype, src.shape)
        handle.wait()
        return result

    def alltoall(self, value: Any, splits: Optional[Sequence[int]] = None, *,
                 name: Optional[str] = None,
                 priority: int = 0) -> Tuple[Any, List[int]]:
        """Sends splits[r] rows to rank r, or equal shares. Returns the
        received rows, by rank, and their number from each."""
        src = Array(value, False, self._entrance)
        if splits is not None and len(splits) != self.num_workers:
            raise ValueError("%d splits for %d workers" %
                             (len(splits), self.num_workers))
        starter = self._starter()
        handle = self._begin(starter.alltoall(
            name, src.dtype, src.shape, splits, src.address, None, 0,
            self._on([src], self._coll_options(priority=priority))), [src])
        op = handle._ops[0]
        result = self._result(handle, src.dtype, src.shape)
        rows = starter.rows(op, self.num_workers)
        handle.wait()
        return result, rows

    def join(self, timeout: Optional[float] = None) -> int:
        """This rank has no more data: it takes part in all collectives of the
        others, with zeros and no rows, and skips the rounds of keys that it
        has declared, until all ranks have joined. Returns the rank that
        joined last. After a time-out the next call waits for the same join."""
        starter = self._starter()
        handle = self._begin(starter.join(self._coll_options()), [])
        try:
            failure = handle._await(timeout)
            if failure is not None:
                handle.wait()
            last = starter.last(handle._ops[0])
            handle.wait()
            return last
        finally:
            handle.drop()

    def allgather_object(self, value: Any) -> List[Any]:
        """The objects of all ranks, by pickle: for workers that trust one
        another. Daemons do not read them."""
        words = join_words(pickle.dumps(value))
        got = self.allgather(memoryview(words).cast("B").cast("q"))
        return [pickle.loads(p)
                for p in split_words(memoryview(got).cast("B").tobytes())]

    def bcast_object(self, value: Any = None, root: int = 0) -> Any:
        """The object of rank `root`, by pickle."""
        mine = getattr(self, "rank") == root
        words: Any = join_words(pickle.dumps(value)) if mine else \
            (ctypes.c_int64 * 0)()
        size = (ctypes.c_int64 * 1)(len(words))
        self.bcast(memoryview(size).cast("B").cast("q"), root)
        if not mine:
            words = (ctypes.c_int64 * size[0])()
        self.bcast(memoryview(words).cast("B").cast("q"), root)
        if mine:
            return value
        return pickle.loads(split_words(bytes(words))[0])

    def group(self: _Store, ranks: Optional[Sequence[int]] = None, *,
              name: Optional[str] = None) -> _Store:
        """A store for some ranks, or all, with its own collectives and keys.
        Each member calls this with the same arguments; the position in
        `ranks` is the rank in the group. Groups of the same ranks that
        exist at the same time need names. Close it like any store."""
        members = None if ranks is None else list(ranks)
        if name is None:
            name = "all" if members is None else "r" + "-".join(
                str(r) for r in members)
        table = None
        if members is not None:
            for r in members:
                if not hasattr(r, "__index__") or r < 0:
                    raise TypeError("a rank is a whole number from 0 on, not "
                                    "%r" % (r,))
            table = (c_uint32 * len(members))(*members)
        group = c_void_p()
        self._check(self._lib.psc_group_open(
            self._open(), _lib.encode(name, "group"), table,
            0 if members is None else len(members), byref(group)))
        assert group.value is not None
        return self._adopt(group.value, name)


def _array(dims: Tuple[int, ...], dtype: int, memory: Any, size: int) -> Any:
    if size > 0:
        return new_array(dims, dtype, memory)
    try:
        import numpy  # pylint: disable=import-outside-toplevel
    except ImportError:
        return memoryview(b"")
    from ._array import numpy_name  # pylint: disable=import-outside-toplevel
    return numpy.empty(dims, dtype=numpy_name(dtype))


__all__ = ["Collectives", "Starter", "array_of", "dtype_of", "options"]
