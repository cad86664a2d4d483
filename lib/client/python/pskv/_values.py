# SPDX-License-Identifier: Apache-2.0
"""Keys, and operations on their values."""
from __future__ import annotations

import bisect
import ctypes
import math
import warnings
from ctypes import addressof, byref, c_int64, c_uint32, c_uint64, c_void_p
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from . import _lib
from ._array import Array, device_of, devices_at, dtype_name, new_array, \
    numpy_name
from ._client import Client, Handle
from ._errors import NOKEY, TIMEOUT, Error, error

Key = Union[int, str]

# Flags of psc_keys() for an undeclared key, by operation.
_NEW = {"pull": _lib.KEY_KNOWN, "push": _lib.KEY_OF_SUMS,
        "pushpull": _lib.KEY_OF_SUMS}


class _Known:
    """State of a key that this worker has declared."""

    __slots__ = ("number", "dtype", "count", "valued", "width")

    def __init__(self, number: int, dtype: int, count: int) -> None:
        self.number = number
        self.dtype = dtype
        self.count = count
        self.valued = False  # True after the first init or broadcast.
        self.width = 0  # Elements of a row; 0: a dense key.


class _KeyRequest:
    """One key of a call, with its source and result arrays."""

    __slots__ = ("key", "given", "wanted")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.given: List[Array] = []
        self.wanted: List[Array] = []

    def arrays(self) -> List[Array]:
        return self.given + self.wanted

    def devices(self) -> Any:
        """The array of struct psc_device of its sources, or None."""
        first = device_of(self.given[:1] + self.wanted[:1])
        places = [a.place for a in self.given if a.place is not None]
        if len(places) < 2 and len(self.given) < 2:
            return first
        if len(places) not in (0, len(self.given)):
            raise ValueError("some arrays of key %r lie in the memory of the "
                             "host, and others on a GPU" % (self.key,))
        return devices_at(places) if places else first


def _snapshot(array: Array) -> Array:
    """A copy of an array, of the same type and shape."""
    if array.place is not None:
        raise ValueError("keys do not share arrays of a GPU")
    memory = (ctypes.c_char * array.nbytes)()
    ctypes.memmove(memory, array.address, array.nbytes)
    copy = Array(new_array(array.shape, array.dtype, memory), False)
    array.release()
    return copy


def _read_before_written(requests: List[_KeyRequest]) -> None:
    """Replaces sources that lie in a result of another key by copies: all
    sources of a call count as read before its first result is written."""
    results = sorted((a.address, a.address + a.nbytes, i)
                     for i, r in enumerate(requests) for a in r.wanted)
    if len(requests) == 1 or not results:
        return
    starts = [start for start, _, _ in results]
    # Of each leading part of the list: the farthest end, its key, and the
    # farthest end of another key.
    farthest: List[Tuple[int, int, int]] = []
    end, owner, other = 0, -1, 0
    for _, e, i in results:
        if i != owner and e > end:
            end, owner, other = e, i, end
        elif i != owner:
            other = max(other, e)
        else:
            end = max(end, e)
        farthest.append((end, owner, other))
    for i, request in enumerate(requests):
        for n, a in enumerate(request.given):
            before = bisect.bisect_left(starts, a.address + a.nbytes)
            if before > 0:
                end, owner, other = farthest[before - 1]
                if (other if owner == i else end) > a.address:
                    request.given[n] = _snapshot(a)


def _row_numbers(rows: Any) -> Any:
    """Row numbers as a ctypes array, from a list or a NumPy array."""
    if hasattr(rows, "astype") and hasattr(rows, "reshape"):
        data = rows.reshape(-1).astype("int64")
        return (c_int64 * data.size).from_buffer_copy(data.tobytes())
    numbers = [int(n) for n in rows]
    return (c_int64 * len(numbers))(*numbers)


def _is_slip(a: Key, b: Key) -> bool:
    """True of names such as 'wieght' and 'weight': they differ in the order of
    letters, or one has one more within."""
    if not isinstance(a, str) or not isinstance(b, str) or a == b:
        return False
    short, long = sorted((a, b), key=len)
    if len(short) < 5 or any(c.isdigit() for c in set(long) ^ set(short)):
        return False
    if len(short) == len(long):
        return not any(c.isdigit() for c in long) and \
            sorted(short) == sorted(long)
    return any(short == long[:i] + long[i + 1:]
               for i in range(1, len(long) - 1) if not long[i].isdigit())


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _per_key(keys: List[Key], values: Any, what: str) -> List[List[Any]]:
    """A list of arrays for each key."""
    if len(keys) == 1 and not (_is_list(values) and len(values) == 1 and
                               _is_list(values[0])):
        return [list(values) if _is_list(values) else [values]]
    if not _is_list(values) or len(values) != len(keys):
        raise ValueError("%d keys want a list of %d %s" %
                         (len(keys), len(keys), what))
    return [list(v) if _is_list(v) else [v] for v in values]


class Values(Client):
    """The calls of a store on keys."""

    def __init__(self, *options: Any) -> None:
        self._keys: Dict[Key, _Known] = {}
        self._key_type: Optional[type] = None
        self._late_barrier: Optional[Handle] = None
        # Pushes from GPUs, whose arrays live until they have ended, and the
        # first failure of each key's.
        self._sending: List[Tuple[Key, Handle]] = []
        self._unsent: Dict[Key, Error] = {}
        super().__init__(*options)

    def close(self) -> None:
        """Leaves the job. Arrays of empty() and alloc_device() stay valid."""
        self._late_barrier = None
        super().close()

    # --------------------------------------------------------------------- keys

    def _key_list(self, key: Any) -> List[Key]:
        keys = list(key) if _is_list(key) else [key]
        if not keys:
            raise ValueError("no key is given")
        for k in keys:
            if isinstance(k, bool) or not isinstance(k, (int, str)):
                raise TypeError("a key is an int or a str, not %r" % (k,))
            kind = int if isinstance(k, int) else str
            if self._key_type is None:
                self._key_type = kind
            if kind is not self._key_type:
                raise TypeError("Mixed key types are not allowed: %r" % (k,))
        return keys

    def _declare(self, key: Key, dtype: int, shape: Sequence[int],
                 flags: int = 0) -> _Known:
        """Returns the key; an undeclared one is declared, and created in the
        job if the flags allow it."""
        known = self._keys.get(key)
        if known is not None:
            return known
        number = c_uint32()
        spec = _lib.KeySpec(dtype=dtype, ndim=len(shape),
                            shape=(c_uint64 * len(shape))(*shape), flags=flags)
        if isinstance(key, str):
            spec.name = _lib.encode(key, "key")
        else:
            spec.number = key
        rc = self._lib.psc_keys(self._open(), byref(spec), 1, byref(number))
        if rc == NOKEY:
            meant = self._meant(key)
            raise error(rc, "%s; init() or broadcast() gives one%s" % (
                self._detail(rc),
                "" if meant is None else ". Did you mean %r?" % meant))
        self._check(rc)
        count = math.prod(shape)
        known = self._keys[key] = _Known(number.value, dtype, count)
        return known

    def _meant(self, key: Key) -> Optional[Key]:
        """An existing key whose name is so similar that it was probably
        meant."""
        return next((known for known in self._keys if _is_slip(key, known)),
                    None)

    def _warn_of_slip(self, key: Key) -> None:
        """Warns if a push creates a key that was probably not meant."""
        meant = None if key in self._keys else self._meant(key)
        if meant is not None:
            warnings.warn("the push creates the key %r, beside %r; call init() "
                          "first if you want both" % (key, meant),
                          stacklevel=2)

    def _known(self, request: _KeyRequest, like: Array, flags: int = 0) -> _Known:
        """The key of a request whose arrays must fit it, as _declare()."""
        known = self._declare(request.key, like.dtype, like.shape, flags)
        for array in request.arrays():
            if array.dtype != known.dtype or array.count != known.count:
                raise ValueError(
                    "key %r is %s of %d elements, but the array is %s of %d" %
                    (request.key, dtype_name(known.dtype), known.count,
                     dtype_name(array.dtype), array.count))
        return known

    def _requests(self, key: Any, given: Any, wanted: Any) -> List[_KeyRequest]:
        """The keys of a call in order; the arrays of a repeated key are
        joined."""
        keys = self._key_list(key)
        by_key: Dict[Key, _KeyRequest] = {}
        for values, writable in ((given, False), (wanted, True)):
            if values is None:
                continue
            what = "outs" if writable else "values"
            for k, objects in zip(keys, _per_key(keys, values, what)):
                request = by_key.setdefault(k, _KeyRequest(k))
                arrays = request.wanted if writable else request.given
                for o in objects:
                    arrays.append(Array(o, writable, self._entrance))
        return list(by_key.values())

    def _given(self, key: Any, given: Any,
               wanted: Any = None) -> List[_KeyRequest]:
        if given is None:
            raise TypeError("key %r: an array is wanted, not None" % (key,))
        requests = self._requests(key, given, wanted)
        _read_before_written(requests)
        return requests

    # --------------------------------------------------------------- operations

    def _end_sending(self, key: Key) -> None:
        """Forgets pushes from GPUs that have ended; raises a failure of those
        of the key, once."""
        sending, self._sending = self._sending, []
        for of, handle in sending:
            if not handle.done():
                self._sending.append((of, handle))
                continue
            try:
                handle.wait()
            except Error as e:
                self._unsent.setdefault(of, e)
        failure = self._unsent.pop(key, None)
        if failure is not None:
            raise error(failure.code, "an earlier operation on '%s' failed: %s"
                        % (key, failure))

    def _op_options(self, given: List[Array], priority: int, reduce: str,
                    root: int, callback: bool, samples: Optional[int] = None
                    ) -> _lib.OpOptions:
        o = _lib.OpOptions(size=ctypes.sizeof(_lib.OpOptions),
                           priority=_lib.number(priority, "priority", int),
                           root=_lib.number(root, "root", int))
        if reduce not in _lib.REDUCE:
            raise ValueError("no reduction %r; there are %s" %
                             (reduce, ", ".join(_lib.REDUCE)))
        o.reduce = _lib.REDUCE[reduce]
        if samples is not None:
            if not 0 < _lib.number(samples, "samples", int) < 1 << 32:
                raise ValueError("samples must be a number from 1 on")
            o.samples = samples
        if len(given) > 1:
            o.srcs = (c_void_p * len(given))(*[a.address for a in given])
            o.src_count = len(given)
        if callback:
            # Does nothing, but a callback makes psc_fd() readable at the end.
            o.callback = self._callback
        return o

    def _start(self, handle: Optional[Handle], what: str, request: _KeyRequest,
               priority: int, reduce: str = "sum", root: int = 0,
               samples: Optional[int] = None) -> None:
        """Starts one operation; without a handle it is detached."""
        self._collect()
        if self._sending or self._unsent:
            self._end_sending(request.key)
        arrays = request.arrays()
        device = request.devices()
        if _NEW.get(what) == _lib.KEY_OF_SUMS:
            self._warn_of_slip(request.key)
        known = self._known(request, arrays[0], _NEW.get(what, 0))
        o = self._op_options(request.given, priority, reduce, root,
                             handle is not None, samples)
        o.device = device
        src = request.given[0].address if request.given else None
        out = request.wanted[0].address if request.wanted else None
        function = getattr(self._lib, "psc_%s_start" % what)
        places = (out,) if what == "pull" else (src, out) \
            if what in ("pushpull", "broadcast") else (src,)

        def start(ret: Any) -> int:
            rc: int = function(self._open(), known.number, *places, byref(o),
                               ret)
            return rc

        if handle is None:
            self._check(start(None))
        else:
            handle._begin(start)
            handle._buffers.extend(arrays)
            for other in request.wanted[1:]:
                if device is None and other.place is None:
                    handle._copies.append((other, request.wanted[0]))
                    continue
                also = _KeyRequest(request.key)
                also.wanted = [other]
                self._start(handle, "pull", also, priority)

    def init(self, key: Any, value: Any) -> None:
        """Sets the first value of keys, that of rank 0. All workers call it;
        an existing value stays."""
        handle = Handle(self)
        for request in self._given(key, value):
            self._start(handle, "init", request, 0)
        handle.wait()
        for k in self._key_list(key):
            self._keys[k].valued = True

    # --------------------------------------------------------------------- rows

    def init_rows(self, key: Key, value: Any) -> None:
        """init() of a rows key: `value` has two dimensions, and pushes and
        pulls name single rows. All workers call it with arrays of one
        shape; the value is rank 0's."""
        self._key_list(key)
        array = Array(value, False)
        if len(array.shape) != 2:
            raise ValueError("a key of rows has two dimensions, not %d" %
                             len(array.shape))
        known = self._keys.get(key)
        if known is None:
            number = c_uint32()
            if isinstance(key, str):
                rc = self._lib.psc_key_rows(
                    self._open(), _lib.encode(key, "key"), array.dtype,
                    array.shape[0], array.shape[1], byref(number))
            else:
                rc = self._lib.psc_key_rows_int(
                    self._open(), key, array.dtype, array.shape[0],
                    array.shape[1], byref(number))
            self._check(rc)
            known = _Known(number.value, array.dtype, array.count)
            known.width = array.shape[1]
            self._keys[key] = known
        if known.width != array.shape[1]:
            raise ValueError("key %r is not one of rows of %d elements" %
                             (key, array.shape[1]))
        handle = Handle(self)
        request = _KeyRequest(key)
        request.given = [array]
        self._start(handle, "init", request, 0)
        handle.wait()
        known.valued = True

    def _rows_key(self, key: Key) -> _Known:
        known = self._keys.get(key)
        if known is None or known.width == 0:
            raise ValueError("key %r is not one of rows; init_rows() makes "
                             "one" % (key,))
        return known

    def _rows(self, what: str, key: Key, rows: Any, array: Array,
              priority: int) -> Handle:
        """A push or pull of rows, with a handle."""
        self._key_list(key)
        known = self._rows_key(key)
        if array.dtype != known.dtype or \
                array.count != len(rows) * known.width:
            raise ValueError(
                "%d rows of key %r are %s of %d elements, but the array is %s "
                "of %d" % (len(rows), key, dtype_name(known.dtype),
                           len(rows) * known.width, dtype_name(array.dtype),
                           array.count))
        self._collect()
        handle = Handle(self)
        o = self._op_options([], priority, "sum", 0, True)
        address = array.address if len(rows) > 0 else None
        call = _lib.Rows(numbers=addressof(rows), count=len(rows),
                         src=address if what == "push" else None,
                         out=address if what == "pull" else None)
        handle._begin(lambda op: getattr(self._lib, "psc_%s_rows_start" % what)(
            self._open(), known.number, byref(call), byref(o), op))
        handle._buffers.append(array)
        return handle

    def push_rows_async(self, key: Key, rows: Any, value: Any,
                        priority: int = 0) -> Handle:
        """push_rows() with a handle that ends when the round is merged."""
        rows = _row_numbers(rows)
        return self._rows("push", key, rows, Array(value, False), priority)

    def push_rows(self, key: Key, rows: Any, value: Any,
                  priority: int = 0) -> None:
        """Contributes rows to the next round of a rows key: `value[i]` to row
        `rows[i]`; duplicates are added. Every worker takes part in a round,
        one without rows with empty arrays. Returns when the round is
        merged."""
        self.push_rows_async(key, rows, value, priority).wait()

    def pull_rows_async(self, key: Key, rows: Any, out: Any,
                        priority: int = 0) -> Handle:
        """pull_rows() with a handle."""
        rows = _row_numbers(rows)
        return self._rows("pull", key, rows, Array(out, True), priority)

    def pull_rows(self, key: Key, rows: Any, out: Any,
                  priority: int = 0) -> None:
        """Fills `out[i]` with row `rows[i]`, in any order and possibly
        repeated, after all rounds that this worker has pushed to."""
        self.pull_rows_async(key, rows, out, priority).wait()

    def row_sparse_pull(self, key: Key, row_ids: Any,
                        priority: int = 0) -> Tuple[Any, Any]:
        """The rows `row_ids`, each once and ascending: their numbers as int64,
        and the rows. Needs NumPy."""
        import numpy  # pylint: disable=import-outside-toplevel
        known = self._rows_key(key)
        numbers = numpy.unique(numpy.asarray(row_ids).astype(numpy.int64))
        out = numpy.empty((len(numbers), known.width),
                          dtype=numpy_name(known.dtype))
        self.pull_rows(key, numbers, out, priority)
        return numbers, out

    # ------------------------------------------------------------------- values

    def push(self, key: Any, value: Any, priority: int = 0,
             reduce: str = "sum", samples: Optional[int] = None) -> None:
        """Contributes to the next round and returns at once. Several arrays
        for one key are summed. With reduce "mean" the sum of all workers is
        divided by their number, or by the total of their `samples`, where
        `value` is a sum over that many. The next call on the key raises a
        failure. An array of empty() must not change until a pull() has
        returned. The first push creates the key, unless the job has an
        optimizer; a warning names an existing key that was probably meant."""
        for request in self._given(key, value):
            if request.given[0].place is not None:
                handle = Handle(self)
                self._start(handle, "push", request, priority, reduce, 0,
                            samples)
                self._sending.append((request.key, handle))
                continue
            self._start(None, "push", request, priority, reduce, 0, samples)
            for array in request.arrays():
                array.release()

    def push_async(self, key: Any, value: Any, priority: int = 0,
                   reduce: str = "sum",
                   samples: Optional[int] = None) -> Handle:
        """push() with a handle that ends when the rounds are merged."""
        handle = Handle(self)
        for request in self._given(key, value):
            self._start(handle, "push", request, priority, reduce, 0, samples)
        return handle

    def pull(self, key: Any, out: Any = None, priority: int = 0) -> None:
        """Fills `out` with the value after all rounds this worker has pushed
        to. A key that no worker has declared is an error."""
        self.pull_async(key, out, priority).wait()

    def pull_async(self, key: Any, out: Any, priority: int = 0) -> Handle:
        """pull() with a handle."""
        if out is None:
            raise ValueError("pull needs an array to write to")
        handle = Handle(self)
        for request in self._requests(key, None, out):
            self._start(handle, "pull", request, priority)
        return handle

    def pushpull(self, key: Any, value: Any, out: Any = None,
                 priority: int = 0, reduce: str = "sum",
                 samples: Optional[int] = None) -> None:
        """push() and pull() in one operation. Without `out` the result is
        written to `value`. Keys may share arrays: all are read before the
        first result is written."""
        self.pushpull_async(key, value, out, priority, reduce, samples).wait()

    def pushpull_async(self, key: Any, value: Any, out: Any = None,
                       priority: int = 0, reduce: str = "sum",
                       samples: Optional[int] = None) -> Handle:
        """pushpull() with a handle."""
        handle = Handle(self)
        for request in self._given(key, value, value if out is None else out):
            self._start(handle, "pushpull", request, priority, reduce, 0,
                        samples)
        return handle

    def broadcast(self, key: Any, value: Any, out: Any = None,
                  priority: int = 0, root: int = 0) -> None:
        """Writes rank root's `value` to every worker's `out`, or to `value`
        without `out`. The first broadcast of a key also initialises it."""
        self.broadcast_async(key, value, out, priority, root).wait()

    def broadcast_async(self, key: Any, value: Any, out: Any = None,
                        priority: int = 0, root: int = 0) -> Handle:
        """broadcast() with a handle."""
        handle = Handle(self)
        for request in self._given(key, value, value if out is None else out):
            known = self._keys.get(request.key)
            if known is not None and known.valued:
                self._start(handle, "broadcast", request, priority, root=root)
                continue
            self._known(request, request.given[0]).valued = True
            pull = _KeyRequest(request.key)
            pull.wanted, request.wanted = request.wanted, []
            self._start(handle, "init", request, priority, root=root)
            self._start(handle, "pull", pull, priority)
        return handle

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Waits until every worker of the job has called it. After a Timeout
        the next call waits for the same barrier."""
        handle = self._late_barrier or self.barrier_async()
        self._late_barrier = None
        try:
            handle.wait(timeout)
        except Error as e:
            if e.code == TIMEOUT:
                self._late_barrier = handle
            raise

    _barrier = barrier

    def barrier_async(self) -> Handle:
        """A barrier with a handle."""
        handle = Handle(self)
        o = self._op_options([], 0, "sum", 0, True)
        handle._begin(lambda op: self._lib.psc_barrier_start(
            self._open(), byref(o), op))
        return handle
