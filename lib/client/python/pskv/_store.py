# SPDX-License-Identifier: Apache-2.0
"""The key-value store, with the interface of MXNet's."""
from __future__ import annotations

import asyncio
import atexit
import bisect
import copy
import ctypes
import math
import operator
import os
import sys
import threading
import time
import warnings
import weakref
from ctypes import addressof, byref, c_int, c_int64, c_uint32, c_uint64, c_void_p
from typing import (Any, Callable, ContextManager, Dict, Generator, List,
                    Mapping, Optional, Sequence, Set, Tuple, Union)

from . import _lib
from ._array import Array, device_of, devices_at, dtype_name, dtype_of, \
    dtype_size, new_array, numpy_name, typestr
from ._collective import Collectives
from ._errors import AGAIN, CLOSED, INVAL, NOENT, NOKEY, REFUSED, TIMEOUT, \
    Error, begin_exit, check_open_allowed, error, program_failed
from ._gpu import DeviceArray
from ._role import take_role

Key = Union[int, str]
Shape = Union[int, Sequence[int]]

# Waits check for signals at this interval, so that Ctrl-C works.
_SLICE_MS = 100

# Mode of the job for each store name. "local" and "device" are a job of this
# process only.
_NAMES = {
    "dist": "sync", "dist_sync": "sync", "dist_device_sync": "sync",
    "dist_sync_device": "sync", "dist_sync_mpi": "sync", "sync": "sync",
    "pskv": "sync", "dist_async": "async", "dist_async_device": "async",
    "dist_device_async": "async", "async": "async", "ssp": "ssp",
    "dist_ssp": "ssp", "local": "sync", "device": "sync",
}
_ALONE = {"local", "device"}

# Flags of psc_keys() for an undeclared key, by operation.
_NEW = {"pull": _lib.KEY_KNOWN, "push": _lib.KEY_OF_SUMS,
        "pushpull": _lib.KEY_OF_SUMS}


def _layout(shape: Shape, dtype: Any) -> Tuple[Tuple[int, ...], int, int]:
    """Dimensions, number of the element type, and bytes of a new array."""
    dims = (shape,) if isinstance(shape, int) else tuple(shape)
    number = dtype_of(dtype)
    size = dtype_size(number)
    for d in dims:
        size *= d
    if size <= 0:
        raise ValueError("the array would have no elements")
    return dims, number, size


def _milliseconds(seconds: Optional[float]) -> int:
    if seconds is None:
        return 0
    if seconds < 0:
        raise ValueError("a time limit must not be negative")
    return min(int(seconds * 1000), 2**31 - 1)


class Handle:
    """Open operations. wait() for them, await them, or drop() them: a dropped
    or deleted handle writes nothing any more, except to arrays of a GPU, which
    the store keeps until then."""

    def __init__(self, store: "KVStore") -> None:
        self._store = store
        self._ops: List[int] = []
        self._buffers: List[Array] = []
        # Results for several arrays: the library writes the first one, the
        # others are copied from it.
        self._copies: List[Tuple[Array, Array]] = []
        self._future: Optional["asyncio.Future[None]"] = None
        self._left = 0
        self._error: Optional[Error] = None
        self._finished = False

    def __reduce__(self) -> Any:
        raise TypeError("a handle belongs to its store and cannot be copied or "
                        "pickled; wait() for it")

    def done(self) -> bool:
        """True if wait() would return at once."""
        if self._finished:
            return True
        c = self._store._open()
        return all(self._store._c_op_test(c, op) != AGAIN for op in self._ops)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until all operations have ended. Raises the first failure, or
        Timeout after `timeout` seconds; the operations continue then."""
        if not self._finished:
            self._finish(self._await(timeout))
        if self._error is not None:
            raise self._error.with_traceback(None)

    def drop(self) -> None:
        """Releases open operations; they write nothing any more, except to
        arrays of a GPU."""
        self._finished = True
        self._free()

    def cancel(self) -> bool:
        """Cancels operations that no other rank can count on yet: those that
        were not sent, and pulls that wait. wait() raises Canceled then. True
        if none goes on: each is cancelled or has ended before."""
        if self._finished:
            return True
        self._store._open()
        left = False
        for op in self._ops:
            rc = self._store._lib.psc_op_cancel(op)
            if rc == REFUSED:
                left = True
            elif rc != NOENT:
                self._store._check(rc)
        return not left

    def _await(self, timeout: Optional[float] = None) -> Optional[Error]:
        """Waits until all have ended and returns the first failure. The
        operations stay valid."""
        limit = self._store._limit(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        first: Optional[Error] = None
        for op in self._ops:
            try:
                self._store._wait(op, deadline)
            except Error as e:
                if e.code == TIMEOUT:
                    raise
                first = first or e
        return first

    def why(self) -> str:
        """One sentence: the reason why the first open operation waits."""
        c = self._store._open()
        for op in self._ops:
            if self._store._c_op_test(c, op) == AGAIN:
                return self._store._why(op)
        return "all operations have ended"

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait_in_loop().__await__()

    async def _wait_in_loop(self) -> None:
        while not self.done():
            await self._store._ended_something()
        self.wait()

    def _finish(self, failure: Optional[Error]) -> None:
        if failure is None:
            for to, source in self._copies:
                ctypes.memmove(to.address, source.address, source.nbytes)
        self._error = failure
        self._finished = True
        self._free()

    def _free(self) -> None:
        ops, self._ops = self._ops, []
        arrays, self._buffers = self._buffers, []
        self._copies = []
        self._store._release(ops, arrays)

    def __del__(self) -> None:
        if self.__dict__.get("_ops") and not sys.is_finalizing():
            self._free()


class Registration:
    """An array of KVStore.register(). `shared`: operations use it in place;
    else `why` says why they copy it."""

    def __init__(self, store: "KVStore", address: int,
                 why: Optional[str]) -> None:
        self._store = store
        self._address = address
        self.shared = why is None
        self.why = why

    def unregister(self) -> None:
        """Forgets the array, which may be unmapped then. An Error if an open
        operation uses it."""
        self._store._unregister(self._address)

    def __enter__(self) -> "Registration":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.unregister()


class _Span:
    """Context of KVStore.span()."""

    __slots__ = ("_store", "_name", "_span")

    def __init__(self, store: "KVStore", name: bytes) -> None:
        self._store = store
        self._name = name
        self._span = _lib.Span()

    def __enter__(self) -> None:
        s = self._store
        s._check(s._lib.psc_span_begin(s._open(), self._name,
                                       byref(self._span)))

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        # The store may be closed by now; an exception goes on.
        if self._store._c is not None:
            self._store._lib.psc_span_end(self._store._c, byref(self._span))


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


def _number(value: Any, name: str, kind: Any = float) -> Any:
    """The value as a number, whose name the error has."""
    try:
        return kind(value) if kind is float else operator.index(value)
    except (TypeError, ValueError):
        raise TypeError("%s is a %snumber, not %r" % (
            name, "" if kind is float else "whole ", value)) from None


def _numbers(params: Mapping[str, Any]) -> Tuple[Any, int]:
    """An array of struct psc_param."""
    numbers = {k: _number(v, k) for k, v in params.items() if v is not None}
    return (_lib.Param * len(numbers))(*[
        _lib.Param(_lib.encode(k, "parameter"), v)
        for k, v in numbers.items()]), len(numbers)


class _Multipliers:
    """Factors of the rate and decay of single keys, as this worker has last
    given them. `scales`: the optimizer scales steps by norms, except for
    biases and the like, which number keys are recognised as by their names."""

    def __init__(self, names: Mapping[Key, str], scales: bool) -> None:
        self._plain = {key for key, name in names.items() if scales and
                       not isinstance(key, str) and
                       name.endswith(("gamma", "beta", "bias"))}
        self._numbers: Dict[Key, Key] = {
            name: key for key, name in names.items() if key != name}
        self._table: Dict[Key, Tuple[float, float]] = {
            key: (1.0, 1.0) for key in self._plain}

    def changed(self, lr_mult: Mapping[Key, float],
                wd_mult: Mapping[Key, float]) -> \
            Tuple["_Multipliers", List[Key]]:
        """The same with these factors, and the keys that they are for. A factor
        of a name is one of the key of that name, too, unless the key has its
        own."""
        after = copy.copy(self)
        after._table = dict(self._table)
        changed: Dict[Key, None] = {}
        for place, factors in enumerate((lr_mult, wd_mult)):
            own = {key: float(f) for key, f in factors.items()}
            named = {self._numbers[key]: f for key, f in own.items()
                     if key in self._numbers}
            for key, factor in {**named, **own}.items():
                lr, wd = after._table.get(key, (1.0, 1.0))
                after._table[key] = (lr, factor) if place else (factor, wd)
                changed[key] = None
        return after, list(changed)

    def rows(self, keys: Optional[List[Key]] = None) -> Any:
        """An array of struct psc_key_tuning of these keys; None: of all with
        another setting than is the default."""
        if keys is None:
            keys = [key for key, factors in self._table.items()
                    if factors != (1, 1) or key in self._plain]
        rows = []
        for key in keys:
            lr, wd = self._table[key]
            row = _lib.KeyTuning(
                lr_mult=lr, wd_mult=wd,
                flags=_lib.TUNING_PLAIN if key in self._plain else 0)
            if isinstance(key, str):
                row.name = _lib.encode(key, "key")
            else:
                row.number = int(key)
            rows.append(row)
        return (_lib.KeyTuning * len(rows))(*rows)


_PROFILE_MODES = {"stop": 0, "run": 1, "pause": 2}


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


class KVStore(Collectives):
    """A worker's view of the job's keys. Made by create()."""

    def __init__(self, kind: str, lib: Any,
                 options: Optional[_lib.Options], timeout: Optional[float],
                 client: Optional[int] = None) -> None:
        self._kind = kind
        self._lib = lib
        self._timeout = timeout
        self._pid = os.getpid()
        # Re-entrant: finalizers may run inside a call.
        self._lock = threading.RLock()
        self._left = False
        self._keys: Dict[Key, _Known] = {}
        self._key_type: Optional[type] = None
        # Functions that free arrays of empty() and alloc_device(), by address.
        self._shared: Dict[int, Any] = {}
        self._registered: Dict[int, Array] = {}
        self._garbage: List[int] = []
        self._multipliers = _Multipliers({}, False)
        self._late_barrier: Optional[Handle] = None
        # Pushes from GPUs, whose arrays live until they have ended, and the
        # first failure of each key's.
        self._sending: List[Tuple[Key, Handle]] = []
        self._unsent: Dict[Key, Error] = {}
        # Operations on arrays of GPUs whose handles are gone.
        self._dropped: List[Tuple[List[int], List[Array]]] = []
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._waiters: List["asyncio.Future[None]"] = []
        self._callback = _lib.Callback(_ignore)
        self._c: Optional[int] = client
        self._job: Optional[bytes] = None
        if options is not None:
            self._job = options.job
            self._c = self._connect(options)
        _stores.add(self)
        try:
            check_open_allowed()
        except Error:
            self._leave_at_exit()
            raise

    # ------------------------------------------------------------- library

    def __reduce__(self) -> Any:
        raise TypeError("a KVStore cannot be copied, pickled or sent to "
                        "another process: each process calls pskv.create()")

    def _connect(self, options: _lib.Options) -> int:
        """Opens the client on another thread, so that Ctrl-C ends the wait."""
        client = c_void_p()
        err = ctypes.create_string_buffer(_lib.TEXT_MAX)
        result: List[int] = []

        def run() -> None:
            result.append(self._lib.psc_open(byref(options), byref(client),
                                             err, len(err)))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_SLICE_MS / 1000)
        if result[0] != 0:
            text = err.value.decode(errors="replace") or self._text(result[0])
            if " is taken by a worker" in text and any(
                    s._job == options.job and not s._left and s._alive() and
                    text.startswith("rank %d of" % s.rank) for s in _stores):
                text = ("this process is %s already: a process has one store "
                        "of a job: use that one, or close() it" %
                        text.split(" is taken")[0])
            raise error(result[0], text)
        assert client.value is not None
        return client.value

    def _new_handle(self) -> Handle:
        self._collect()
        return Handle(self)

    def _adopt(self, client: int, name: str) -> "KVStore":
        return KVStore(name, self._lib, None, self._timeout, client)

    def _text(self, rc: int) -> str:
        text: bytes = self._lib.psc_strerror(rc)
        return text.decode()

    def _alive(self) -> bool:
        return self._c is not None and os.getpid() == self._pid

    def _open(self) -> int:
        if self._c is None or self._left:
            raise error(CLOSED, "the store is closed")
        return self._c

    def _detail(self, rc: int) -> str:
        text = ctypes.create_string_buffer(_lib.TEXT_MAX)
        if self._c is not None:
            self._lib.psc_last_detail(self._c, text, len(text))
        return text.value.decode(errors="replace") or self._text(rc)

    def _check(self, rc: int) -> int:
        if rc < 0:
            raise error(rc, self._detail(rc))
        return rc

    def _c_op_test(self, c: int, op: int) -> int:
        rc: int = self._lib.psc_op_test(op)
        return rc

    def _limit(self, timeout: Optional[float]) -> Optional[float]:
        if timeout is not None and timeout < 0:
            raise ValueError("a time limit must not be negative")
        return self._timeout if timeout is None else timeout

    def _wait(self, op: int, deadline: Optional[float]) -> None:
        while True:
            self._open()
            if deadline is None:
                rc = self._lib.psc_op_wait_slice(op, _SLICE_MS)
            else:
                left = int((deadline - time.monotonic()) * 1000)
                left = max(0, min(left, _SLICE_MS))
                rc = self._lib.psc_op_wait(op, left)
            if rc != TIMEOUT:
                self._check(rc)
                return
            if deadline is not None and time.monotonic() >= deadline:
                why = self._why(op)
                # The operation may have ended during the query.
                if self._lib.psc_op_test(op) == AGAIN:
                    raise error(TIMEOUT, why)

    def _why(self, op: int) -> str:
        text = ctypes.create_string_buffer(_lib.TEXT_MAX)
        self._check(self._lib.psc_op_why(op, text, len(text)))
        return text.value.decode(errors="replace")

    # --------------------------------------------------------------- loops

    def fileno(self) -> int:
        """A descriptor that is readable when dispatch() has work; for polling
        only."""
        return self._check(self._lib.psc_fd(self._open()))

    def dispatch(self) -> None:
        """Handles received messages, sends queued operations; never waits."""
        if self._alive():
            # On a failure all operations have ended and report it.
            self._lib.psc_dispatch(self._c)

    # ------------------------------------------------------------- asyncio

    async def _ended_something(self) -> None:
        """Waits until psc_dispatch() had work."""
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[None]" = loop.create_future()
        fd = self.fileno()
        if self._loop is not loop:
            loop.add_reader(fd, self._dispatch)
            self._loop = loop
        self._waiters.append(future)
        try:
            await future
        finally:
            if future in self._waiters:
                self._waiters.remove(future)
            if not self._waiters and self._loop is loop:
                loop.remove_reader(fd)
                self._loop = None

    def _dispatch(self) -> None:
        self.dispatch()
        waiters, self._waiters = self._waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)

    # ---------------------------------------------------------------- keys

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

    def _warn_of_factors(self, what: str, factors: Optional[Mapping[Key, float]],
                         names: Optional[Mapping[Key, str]] = None) -> None:
        """Warns if a factor is for a key that was probably not meant."""
        others = set((names or {}).values())
        for key in factors or ():
            meant = None if key in self._keys or key in others else \
                self._meant(key)
            if meant is not None:
                warnings.warn("%s of %r has no effect: no key has this name so "
                              "far. Did you mean %r?" % (what, key, meant),
                              stacklevel=3)

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

    def _given(self, key: Any, given: Any) -> List[_KeyRequest]:
        if given is None:
            raise TypeError("key %r: an array is wanted, not None" % (key,))
        return self._requests(key, given, None)

    # ---------------------------------------------------------- operations

    def _release(self, ops: List[int], arrays: List[Array]) -> None:
        """Frees operations, and arrays that nothing writes any more: the agent
        may write to a GPU until the operation ends."""
        if self._alive():
            if any(a.place is not None for a in arrays) and any(
                    self._lib.psc_op_test(op) == AGAIN for op in ops):
                self._dropped.append((ops, arrays))
                return
            for op in ops:
                self._lib.psc_op_free(op)
        for array in arrays:
            array.release()

    def _entrance(self, ordinal: int) -> int:
        """A stream of the client on a GPU."""
        stream = c_void_p()
        self._check(self._lib.psc_device_stream(self._open(), ordinal,
                                                byref(stream)))
        return stream.value or 0

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
                    ) -> Tuple[_lib.OpOptions, Any]:
        o = _lib.OpOptions(size=ctypes.sizeof(_lib.OpOptions),
                           priority=_number(priority, "priority", int),
                           root=_number(root, "root", int))
        if reduce not in _lib.REDUCE:
            raise ValueError("no reduction %r; there are %s" %
                             (reduce, ", ".join(_lib.REDUCE)))
        o.reduce = _lib.REDUCE[reduce]
        if samples is not None:
            if not 0 < _number(samples, "samples", int) < 1 << 32:
                raise ValueError("samples must be a number from 1 on")
            o.samples = samples
        srcs = None
        if len(given) > 1:
            srcs = (c_void_p * len(given))(*[a.address for a in given])
            o.srcs = srcs
            o.src_count = len(given)
        if callback:
            # Does nothing, but a callback makes psc_fd() readable at the end.
            o.callback = self._callback
        return o, srcs

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
        o, srcs = self._op_options(request.given, priority, reduce, root,
                                   handle is not None, samples)
        o.device = device
        src = request.given[0].address if request.given else None
        out = request.wanted[0].address if request.wanted else None
        op = c_void_p()
        ret = byref(op) if handle is not None else None
        function = getattr(self._lib, "psc_%s_start" % what)
        if what in ("pushpull", "broadcast"):
            rc = function(self._open(), known.number, src, out, byref(o), ret)
        elif what == "pull":
            rc = function(self._open(), known.number, out, byref(o), ret)
        else:
            rc = function(self._open(), known.number, src, byref(o), ret)
        del srcs
        self._check(rc)
        if handle is not None:
            assert op.value is not None
            handle._ops.append(op.value)
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

    # ---------------------------------------------------------------- rows

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

    def _rows(self, what: str, key: Key, rows: Any, array: Array,
              priority: int) -> Handle:
        """A push or pull of rows, with a handle."""
        self._key_list(key)
        known = self._keys.get(key)
        if known is None or known.width == 0:
            raise ValueError("key %r is not one of rows; init_rows() makes "
                             "one" % (key,))
        if array.dtype != known.dtype or \
                array.count != len(rows) * known.width:
            raise ValueError(
                "%d rows of key %r are %s of %d elements, but the array is %s "
                "of %d" % (len(rows), key, dtype_name(known.dtype),
                           len(rows) * known.width, dtype_name(array.dtype),
                           array.count))
        self._collect()
        handle = Handle(self)
        o, _ = self._op_options([], priority, "sum", 0, True)
        op = c_void_p()
        address = array.address if len(rows) > 0 else None
        call = _lib.Rows(numbers=addressof(rows), count=len(rows),
                         src=address if what == "push" else None,
                         out=address if what == "pull" else None)
        self._check(getattr(self._lib, "psc_%s_rows_start" % what)(
            self._open(), known.number, byref(call), byref(o), byref(op)))
        assert op.value is not None
        handle._ops.append(op.value)
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
        known = self._keys.get(key)
        if known is None or known.width == 0:
            raise ValueError("key %r is not one of rows; init_rows() makes "
                             "one" % (key,))
        numbers = numpy.unique(numpy.asarray(row_ids).astype(numpy.int64))
        out = numpy.empty((len(numbers), known.width),
                          dtype=numpy_name(known.dtype))
        self.pull_rows(key, numbers, out, priority)
        return numbers, out

    # -------------------------------------------------------------- values

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
        wanted = value if out is None else out
        if value is None:
            raise TypeError("key %r: an array is wanted, not None" % (key,))
        requests = self._requests(key, value, wanted)
        _read_before_written(requests)
        for request in requests:
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
        wanted = value if out is None else out
        if value is None:
            raise TypeError("key %r: an array is wanted, not None" % (key,))
        requests = self._requests(key, value, wanted)
        _read_before_written(requests)
        for request in requests:
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
        o, _ = self._op_options([], 0, "sum", 0, True)
        op = c_void_p()
        self._check(self._lib.psc_barrier_start(self._open(), byref(o),
                                                byref(op)))
        assert op.value is not None
        handle._ops.append(op.value)
        return handle

    def set_optimizer(self, name: str, *,
                      lr_mult: Optional[Mapping[Key, float]] = None,
                      wd_mult: Optional[Mapping[Key, float]] = None,
                      names: Optional[Mapping[Key, str]] = None,
                      **params: float) -> None:
        """Declares how servers turn the sum of a round into the new value,
        e.g. set_optimizer('sgd', learning_rate=.1, momentum=.9, wd=0,
        rescale_grad=1/batch, clip_gradient=1). Before the first push; every
        worker may declare the same.

        lr_mult and wd_mult are factors of the rate and decay of single
        keys: {'fc1.bias': 2}. For number keys `names` may give names,
        {0: 'fc1.bias'}, which factors may use, and by which lars finds keys
        whose steps it does not scale."""
        if not isinstance(name, str):
            raise TypeError("an optimizer is a name and numbers, not %r" %
                            (name,))
        if "lr" in params:
            params["learning_rate"] = params.pop("lr")
        numbers, count = _numbers(params)
        multipliers, _ = _Multipliers(names or {}, name == "lars").changed(
            lr_mult or {}, wd_mult or {})
        tunings = multipliers.rows()
        declaration = _lib.Optimizer(
            size=ctypes.sizeof(_lib.Optimizer),
            name=_lib.encode(name, "optimizer"),
            params=numbers, param_count=count, keys=tunings,
            key_count=len(tunings))
        self._started(lambda op: self._lib.psc_optimizer_declare_start(
            self._open(), byref(declaration), None, op))
        self._multipliers = multipliers
        self._warn_of_factors("lr_mult", lr_mult, names)
        self._warn_of_factors("wd_mult", wd_mult, names)

    def set_multipliers(self, lr_mult: Optional[Mapping[Key, float]] = None,
                        wd_mult: Optional[Mapping[Key, float]] = None,
                        round: int = 0) -> None:
        # pylint: disable=redefined-builtin
        """Changes factors of single keys, as set_optimizer() takes them, for
        round `round` of each key and later ones; 0: the next round that this
        worker begins. Other keys keep theirs, and a key keeps the one of its
        two factors that is not given. Every worker may set the same. Waits
        until the servers have them."""
        if round < 0:
            raise ValueError("rounds count from 1")
        multipliers, keys = self._multipliers.changed(lr_mult or {},
                                                      wd_mult or {})
        rows = multipliers.rows(keys)
        if keys:
            self._started(lambda op: self._lib.psc_tune_start(
                self._open(), rows, len(rows), round, None, op))
            self._multipliers = multipliers
        self._warn_of_factors("lr_mult", lr_mult)
        self._warn_of_factors("wd_mult", wd_mult)

    def set_optimizer_param(self, name: str, value: float,
                            round: int = 0) -> None:
        # pylint: disable=redefined-builtin
        """Changes learning_rate, wd, rescale_grad or clip_gradient for round
        `round` of each key and later ones; 0: the next round that this
        worker begins. Every worker may set the same. Waits until the
        servers have it."""
        if round < 0:
            raise ValueError("rounds count from 1")
        self._started(lambda op: self._lib.psc_set_start(
            self._open(), _lib.encode(name, "parameter"), value, round, None,
            op))

    def set_learning_rate(self, lr: float, round: int = 0) -> None:
        # pylint: disable=redefined-builtin
        """set_optimizer_param('learning_rate', ...)"""
        self.set_optimizer_param("learning_rate", lr, round)

    def set_wd(self, wd: float, round: int = 0) -> None:
        # pylint: disable=redefined-builtin
        """set_optimizer_param('wd', ...)"""
        self.set_optimizer_param("wd", wd, round)

    def set_rescale_grad(self, rescale_grad: float, round: int = 0) -> None:
        # pylint: disable=redefined-builtin
        """set_optimizer_param('rescale_grad', ...)"""
        self.set_optimizer_param("rescale_grad", rescale_grad, round)

    def set_clip_gradient(self, clip_gradient: float, round: int = 0) -> None:
        # pylint: disable=redefined-builtin
        """set_optimizer_param('clip_gradient', ...); 0: no limit."""
        self.set_optimizer_param("clip_gradient", clip_gradient, round)

    def report(self, name: Optional[str] = None,
               value: Optional[float] = None, /, *,
               step: Optional[int] = None, **scalars: float) -> None:
        """Reports numbers of the training, finite or not: report('loss', .3)
        or report(step=7, loss=.3, accuracy=.9). `psctl top`, `psctl jobs` and
        the metrics of psched show the last ones over all ranks. Without
        `step`, the step is the last round that this worker has begun. Never
        waits; a failure after the call is raised by the next one. A job has
        at most 32 names of letters, digits and _ . / : -"""
        numbers = dict(scalars)
        if name is not None:
            if value is None:
                raise ValueError("report(%r) needs a value" % name)
            numbers[name] = value
        elif value is not None:
            raise ValueError("a value to report needs a name")
        for key, number in numbers.items():
            _lib.encode(key, "scalar")
            numbers[key] = _number(number, key)
        if step is None:
            for key, number in numbers.items():
                self._check(self._lib.psc_report(
                    self._open(), key.encode(), number))
        elif step < 0:
            raise ValueError("steps count from 0")
        else:
            rows = (_lib.Scalar * len(numbers))(*[
                _lib.Scalar(key.encode(), number)
                for key, number in numbers.items()])
            self._check(self._lib.psc_report_many(self._open(), step, rows,
                                                  len(rows)))

    def span(self, name: str) -> ContextManager[None]:
        """A part of the program, as in `with kv.span("forward"):`. The
        timeline of `psctl trace` shows it beside the operations of this rank.
        Spans may be nested. A worker has at most 64 names of 1 to 63 letters,
        digits and any of _ . / : -"""
        return _Span(self, _lib.encode(name, "span"))

    def profile_servers(self, mode: str = "run") -> None:
        """Records what the job's servers do: 'run' begins a recording or
        continues one that was paused, 'pause' interrupts it, 'stop' ends it.
        For all servers and workers; waits until the servers do so."""
        if mode not in _PROFILE_MODES:
            raise ValueError("a recording has the modes %s, and not %r" %
                             (", ".join(_PROFILE_MODES), mode))
        self._started(lambda op: self._lib.psc_profile_start(
            self._open(), _PROFILE_MODES[mode], None, op))

    def save_server_profiles(self, fname: Any) -> None:
        """Writes the last recording of each server to a file of its own, in
        the format of Chrome's trace viewer: rank0_FNAME, rank1_FNAME and so
        on, in the folder of FNAME. One worker suffices."""
        self._states(self._lib.psc_profile_save, fname)

    def save_optimizer_states(self, fname: Any) -> None:
        """Saves the servers' optimizer state of every key that this worker has
        declared: momenta, step counts, and the float32 weights of 16-bit
        keys. While no worker pushes; one worker suffices."""
        self._states(self._lib.psc_state_save, fname)

    def load_optimizer_states(self, fname: Any) -> None:
        """Restores a file of save_optimizer_states(), also in a job with
        another number of workers or servers. After set_optimizer() of the
        same optimizer and init() of the keys; between rounds. One worker
        suffices, all may call it; training continues when all callers have
        returned."""
        self._states(self._lib.psc_state_load, fname)

    def _states(self, function: Any, fname: Any) -> None:
        """Runs the call on another thread, so that Ctrl-C ends the wait."""
        client = self._open()
        result: List[Tuple[int, bytes]] = []

        def run() -> None:
            rc = function(client, os.fsencode(fname))
            text = ctypes.create_string_buffer(_lib.TEXT_MAX)
            self._lib.psc_last_detail(client, text, len(text))
            result.append((rc, text.value))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_SLICE_MS / 1000)
        rc, detail = result[0]
        if rc != 0:
            raise error(rc, detail.decode(errors="replace") or self._text(rc))

    def set_gradient_compression(
            self, compression_params: Mapping[str, Any]) -> None:
        """Declares the codec for gradients of float32 keys, e.g. {'type':
        '2bit', 'threshold': .5}; docs/compression.md lists types and
        parameters. Before the first key; every worker may declare the same.
        It cannot be undone. The sum of a node's workers is encoded; with
        'per_worker': 1 (2bit, 1bit) the gradient of each worker."""
        params = dict(compression_params)
        name = params.pop("type", None)
        if not isinstance(name, str):
            raise ValueError("gradient compression needs a 'type', such as "
                             "{'type': '2bit', 'threshold': 0.5}")
        numbers, count = _numbers(params)
        self._started(lambda op: self._lib.psc_compression_start(
            self._open(), _lib.encode(name, "codec"), numbers, count, None,
            op))

    def _started(self, start: Callable[[Any], int]) -> None:
        """Runs a declaration of the whole job; waits until the servers have
        it."""
        handle = Handle(self)
        op = c_void_p()
        self._check(start(byref(op)))
        assert op.value is not None
        handle._ops.append(op.value)
        handle.wait()

    # -------------------------------------------------------------- memory

    def empty(self, shape: Shape, dtype: Any = "float32") -> Any:
        """An array in memory shared with the agent, so that pushes need no
        copy. A NumPy array, or a memoryview without NumPy."""
        dims, number, size = _layout(shape, dtype)
        self._collect()
        data = c_void_p()
        self._check(self._lib.psc_alloc(self._open(), size, byref(data)))
        assert data.value is not None
        memory = (ctypes.c_char * size).from_address(data.value)
        self._own(memory, data.value, self._lib.psc_free)
        return new_array(dims, number, memory)

    def alloc_device(self, shape: Shape, dtype: Any = "float32",
                     device: int = 0) -> DeviceArray:
        """Memory of a GPU that the agent of the node reads and writes in place
        (psc_alloc_device()). `shape` is a positive int or a sequence of them,
        `dtype` as for empty(), 'bfloat16' as uint16, and `device` CUDA's
        ordinal in this process. The contents are undefined.

        The result is for other libraries: cupy.asarray(a), or
        torch.as_tensor(a, device="cuda"), share the memory and keep `a` alive.
        It is freed at a later call of the store, once nothing refers to it and
        no operation uses it; work on it must have ended when the last
        reference goes. It stays valid after close().

        ValueError: no elements; TypeError: no such dtype; Error: no driver, no
        such GPU, or not enough memory. An agent that cannot map it is no error:
        operations copy."""
        dims, number, size = _layout(shape, dtype)
        self._collect()
        data = c_void_p()
        self._check(self._lib.psc_alloc_device(self._open(), device, size,
                                               byref(data)))
        assert data.value is not None
        array = DeviceArray(data.value, dims, typestr(number))
        self._own(array, data.value, self._lib.psc_free_device)
        return array

    def _own(self, memory: Any, address: int, free: Any) -> None:
        """Memory of the client, which is freed with the object."""
        self._shared[address] = free
        # Keeps the store alive: its memory must outlive the array.
        weakref.finalize(memory, self._drop, address).atexit = False

    def register(self, array: Any, *, must_share: bool = False,
                 keep_seals: bool = False) -> "Registration":
        """Registers a contiguous, writable array of the program, so that
        operations use it, and views of it, without a copy if it lies in a
        shared memfd: numpy.frombuffer(mmap.mmap(os.memfd_create(...), n)).
        The memfd gets seals against changes of its size, unless
        `keep_seals`. Other memory is copied, or an Error with `must_share`.
        Arrays that are used in place must not change until their operations
        have ended. The store keeps the array until unregister()."""
        pinned = Array(array, True)
        flags = (_lib.BUF_KEEP_SEALS if keep_seals else 0) | \
            (_lib.BUF_MUST_SHARE if must_share else 0)
        state = c_int()
        self._check(self._lib.psc_buf_register(
            self._open(), pinned.address, pinned.nbytes, flags, byref(state)))
        self._registered[pinned.address] = pinned
        why = None
        if state.value == 0:
            text = ctypes.create_string_buffer(_lib.TEXT_MAX)
            self._lib.psc_last_detail(self._c, text, len(text))
            why = text.value.decode(errors="replace")
        return Registration(self, pinned.address, why)

    def _unregister(self, address: int) -> None:
        if address in self._registered and self._alive():
            self._check(self._lib.psc_buf_unregister(self._c, address))
            self._registered.pop(address).release()

    def _drop(self, address: int) -> None:
        """Notes the address only: finalizers may run inside any call."""
        self._garbage.append(address)
        if self._left:
            self._collect()

    def _collect(self) -> None:
        """Frees unreferenced arrays that no operation uses."""
        if not (self._garbage or self._dropped) or not self._alive():
            return
        with self._lock:
            dropped, self._dropped = self._dropped, []
            for ops, arrays in dropped:
                self._release(ops, arrays)
            garbage, self._garbage = self._garbage, []
            for address in garbage:
                if self._shared[address](self._c, address) == AGAIN:
                    self._garbage.append(address)
                else:
                    del self._shared[address]
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        """Frees the client of a closed store. Another thread may be inside a
        call, which fails: then the end of the last reference frees it."""
        if self._left and not self._shared and threading.active_count() == 1:
            self._end()

    def _end(self) -> None:
        c, self._c = self._c, None
        if c is not None and os.getpid() == self._pid:
            self._lib.psc_close(c)
        self._dropped = []
        while self._registered:
            self._registered.popitem()[1].release()

    # ---------------------------------------------------------------- life

    def close(self) -> None:
        """Leaves the job. Arrays of empty() and alloc_device() stay valid."""
        if self._left or not self._alive():
            return
        self._late_barrier = None
        self._lib.psc_leave(self._c)
        self._left = True
        _stores.discard(self)
        self._collect()
        self._end_if_unused()

    def __del__(self) -> None:
        if self.__dict__.get("_left") and not self._shared and \
                not sys.is_finalizing():
            self._end()

    def __enter__(self) -> "KVStore":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is not None and not issubclass(kind, SystemExit):
            self._abort()
        self.close()

    def _abort(self) -> None:
        """Ends the connection, so that the job treats this worker as failed;
        operations that threads wait for fail."""
        if self._alive() and not self._left:
            self._lib.psc_abort(self._c)

    def _leave_at_exit(self) -> None:
        if program_failed():
            self._abort()
        else:
            self.close()

    def stats(self) -> Dict[str, int]:
        """Counters of this client: agents re-attached to, operations, rounds,
        bytes, system calls."""
        s = _lib.Stats(size=ctypes.sizeof(_lib.Stats))
        self._check(self._lib.psc_get_stats(self._open(), byref(s)))
        return {field[0]: getattr(s, field[0])
                for field in _lib.Stats._fields_[1:]}

    # ------------------------------------------------------------ identity

    @property
    def type(self) -> str:
        """The name given to create()."""
        return self._kind

    @property
    def rank(self) -> int:
        """This worker's rank, from 0."""
        return self._check(self._lib.psc_rank(self._open()))

    @property
    def num_workers(self) -> int:
        """Workers of the job."""
        return self._check(self._lib.psc_size(self._open()))

    @property
    def local_rank(self) -> int:
        """This worker's rank on its node."""
        return self._check(self._lib.psc_local_rank(self._open()))

    @property
    def local_size(self) -> int:
        """Workers of the job on this node."""
        return self._check(self._lib.psc_local_size(self._open()))

    @property
    def num_servers(self) -> int:
        """Servers of the job."""
        return self._check(self._lib.psc_num_servers(self._open()))


def _ignore(_op: Optional[int], _rc: int, _user: Optional[int]) -> None:
    pass


# Stores that have not left their job.
_stores: Set[KVStore] = set()


def _leave_at_exit() -> None:
    """Leaves all jobs at the exit of the program. After an exception the jobs
    treat this worker as failed."""
    begin_exit()
    for store in list(_stores):
        store._leave_at_exit()


atexit.register(_leave_at_exit)


def _encode(text: Optional[str]) -> Optional[bytes]:
    if text is not None and "\0" in text:
        raise ValueError("path %r has a NUL character; leave it out" % text)
    return None if text is None else os.fsencode(text)


def _choose(table: Dict[str, int], name: str, what: str) -> int:
    if name not in table:
        raise ValueError("no %s %r; there are %s" % (what, name,
                                                     ", ".join(table)))
    return table[name]


def create(name: Optional[str] = None, *, socket: Optional[str] = None,
           job: Optional[str] = None, rank: Optional[int] = None,
           num_workers: Optional[int] = None,
           num_servers: Optional[int] = None, on_loss: Optional[str] = None,
           placement: Optional[str] = None, rule: Optional[str] = None,
           big_array_bound: Optional[int] = None,
           partition_bytes: Optional[int] = None,
           staleness: Optional[int] = None,
           weight: Optional[int] = None,
           token_file: Optional[str] = None,
           connect_timeout: Optional[float] = None,
           start_timeout: Optional[float] = None,
           timeout: Optional[float] = None) -> KVStore:
    """Joins the job and waits until it is complete.

    Options not given are read from the environment, which pslaunch sets.
    With DMLC_ROLE=scheduler or server, the process becomes psched or
    psserver and the call does not return.

    `name` is the mode: "dist_sync" for rounds of all workers, "dist_async" to
    apply each push when it arrives, "dist_ssp" for the same with pulls that
    wait for workers more than `staleness` pushes behind, "local" for a job of
    this process only; MXNet's other names are aliases. None: PSKV_MODE, or
    "dist_sync".
    `rule` is the effect of a push in an async or ssp job without an optimizer:
    "accumulate" adds it to the value, "assign" replaces the value.
    `weight`, 1 to 1000, is the share of the job where it competes with others
    for a server or a link; 100 unless given.
    `token_file` has a token with the right train (psctl token issue), by which
    this process takes part in a job of the token's user.
    `timeout` is the limit in seconds of every call that waits; None: none."""
    if name is None:
        name = os.environ.get("PSKV_MODE") or "dist_sync"
    if not isinstance(name, str):
        raise TypeError("the store's name must be a str")
    take_role()
    kind = name.lower()
    if kind not in _NAMES:
        raise ValueError("no store %r; there are %s" %
                         (name, ", ".join(sorted(_NAMES))))
    lib = _lib.load()
    o = _lib.Options()
    err = ctypes.create_string_buffer(_lib.TEXT_MAX)
    lib.psc_options_init(byref(o), ctypes.sizeof(o))
    rc = lib.psc_options_env(byref(o), err, len(err))
    if rc != 0:
        raise error(rc, err.value.decode(errors="replace"))
    if _NAMES[kind] == "sync" and rule is None:
        o.rule = 0  # The environment's rule is for jobs without rounds.
    if _NAMES[kind] != "ssp":
        o.staleness = 0
    o.mode = _lib.MODES[_NAMES[kind]]
    if rule is not None:
        o.rule = _choose(_lib.RULES, rule, "rule")
    if socket is not None:
        o.socket = _encode(socket)
    if job is not None:
        o.job = _lib.encode(job, "job")
    if token_file is not None:
        o.token_file = _encode(token_file)
    if rank is not None:
        o.rank = rank
    for field, number in (("num_workers", num_workers),
                          ("num_servers", num_servers),
                          ("big_array_bound", big_array_bound),
                          ("partition_bytes", partition_bytes),
                          ("staleness", staleness), ("weight", weight)):
        if number is not None:
            if number < 0:
                raise error(INVAL, "%s must not be negative" % field)
            setattr(o, field, number)
    if kind in _ALONE:
        o.job = b"local-%d-%s" % (os.getpid(), os.urandom(4).hex().encode())
        o.rank, o.num_workers, o.num_servers = 0, 1, 0
        o.token_file = None
    if on_loss is not None:
        o.on_loss = _choose(_lib.ON_LOSS, on_loss, "policy")
    if placement is not None:
        o.placement = _choose(_lib.PLACEMENTS, placement, "placement")
    if connect_timeout is not None:
        o.connect_timeout_ms = _milliseconds(connect_timeout)
    if start_timeout is not None:
        o.start_timeout_ms = _milliseconds(start_timeout)
    if timeout is not None:
        o.op_timeout_ms = _milliseconds(timeout)
    elif o.op_timeout_ms > 0:
        timeout = o.op_timeout_ms / 1000  # From PSKV_OP_TIMEOUT.
    o.flags = _lib.OPEN_QUIET
    if kind in _ALONE and connect_timeout is None:
        o.connect_timeout_ms = 0  # Nobody starts an agent beside it.
    try:
        return KVStore(kind, lib, o, timeout)
    except Error as e:
        raise error(e.code, _explained(str(e), kind, o)) from None


def _explained(text: str, kind: str, o: _lib.Options) -> str:
    """Why create() failed, in the words of its caller."""
    if kind in _ALONE and text.startswith("no agent "):
        return (
            "%s. A store '%s' is a job of one process, which an agent keeps, "
            "too: pslaunch -n 1 -- python3 SCRIPT" % (text, kind))
    return text
