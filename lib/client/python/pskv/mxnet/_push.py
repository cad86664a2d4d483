# SPDX-License-Identifier: Apache-2.0
"""Asynchronous functions in MXNet's engine.

The engine calls a function when the arrays it reads are computed, and delays
all readers of the arrays it writes until the function has notified it of its
end (MXEnginePushAsyncND of c_api.h)."""
from __future__ import annotations

import ctypes
import itertools
import threading
from ctypes import CFUNCTYPE, Structure, byref, c_char_p, c_int, c_void_p
from typing import Any, Callable, Dict, Optional, Sequence, Set, Tuple

from mxnet.base import _LIB, NDArrayHandle, check_call

# void f(run context, CallbackOnComplete *, argument of the push)
_Function = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
# void f(argument of the push)
_Deleter = CFUNCTYPE(None, c_void_p)
# void f(engine, its argument, error or NULL)
_Callback = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)


class _Context(Structure):
    """Context of MXNet 1.9's base.h."""

    _fields_ = [("dev_type", c_int), ("dev_id", c_int)]


_CPU = _Context(1, 0)
# FnProperty::kCPUPrioritized of engine.h: ahead of computations.
_PRIORITIZED = c_int(3)
# Seconds for which drain() waits.
_DRAIN_S = 5.0


class OnComplete(Structure):
    """CallbackOnComplete of MXNet 1.9's engine.h."""

    _fields_ = [("callback", c_void_p), ("engine", c_void_p),
                ("argument", c_void_p)]

    def notify(self) -> None:
        """Notifies the engine, which starts operations that wait for the
        arrays."""
        _Callback(self.callback)(self.engine, self.argument, None)

    def fail(self, text: str) -> None:
        """Notifies the engine of a failure, which readers of the arrays that
        the operation writes raise."""
        # A dmlc::Error of the engine, which copies it: a std::runtime_error
        # without members of its own.
        failure = (c_void_p * 8)()
        _new_error(failure, text.encode())
        _Callback(self.callback)(self.engine, self.argument,
                                 ctypes.addressof(failure))
        _end_error(failure)


_libstdcxx = ctypes.CDLL("libstdc++.so.6")
# std::runtime_error::runtime_error(const char *) and its destructor.
_new_error = getattr(_libstdcxx, "_ZNSt13runtime_errorC1EPKc")
_end_error = getattr(_libstdcxx, "_ZNSt13runtime_errorD1Ev")
_new_error.argtypes = [c_void_p, c_char_p]
_end_error.argtypes = [c_void_p]
_new_error.restype = _end_error.restype = None


class Pushes:
    """Asynchronous functions in MXNet's engine."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._numbers = itertools.count(1)
        # By number: a function, and one for the case that the engine skips
        # the first because an array that it reads has failed.
        self._pushed: Dict[int, Tuple[Callable[[OnComplete], None],
                                      Optional[Callable[[], None]]]] = {}
        self._started: Set[int] = set()
        self._function = _Function(self._start)
        self._deleter = _Deleter(self._delete)

    def push(self, start: Callable[[OnComplete], None], reads: Sequence[Any],
             writes: Sequence[Any], priority: int, name: str,
             skipped: Optional[Callable[[], None]] = None) -> None:
        """Calls start() when `reads` are computed and `writes` are unused;
        `writes` count as computed when it has called its argument's notify().
        start() must not raise. If an array has failed, skipped() is called
        instead."""
        number = next(self._numbers)
        with self._lock:
            self._pushed[number] = start, skipped
        check_call(_LIB.MXEnginePushAsyncND(
            self._function, c_void_p(number),
            None if skipped is None else self._deleter, byref(_CPU),
            _handles(reads), c_int(len(reads)), _handles(writes),
            c_int(len(writes)), byref(_PRIORITIZED), c_int(priority),
            c_char_p(name.encode()), False))

    def drain(self) -> None:
        """Waits until the engine has forgotten all functions. All must have
        ended."""
        with self._lock:
            self._lock.wait_for(lambda: not self._pushed, _DRAIN_S)

    # By threads of the engine.

    def _start(self, _context: int, on_complete: int, number: int) -> None:
        done = OnComplete.from_buffer_copy(
            ctypes.string_at(on_complete, ctypes.sizeof(OnComplete)))
        with self._lock:
            start, skipped = self._pushed[number]
            if skipped is None:
                del self._pushed[number]  # No _delete() follows.
            else:
                self._started.add(number)
        start(done)

    def _delete(self, number: int) -> None:
        with self._lock:
            _, skipped = self._pushed[number]
            has_started = number in self._started
            self._started.discard(number)
        if skipped is not None and not has_started:
            skipped()
        with self._lock:
            del self._pushed[number]
            self._lock.notify_all()


def _handles(arrays: Sequence[Any]) -> Any:
    return (NDArrayHandle * len(arrays))(*[a.handle for a in arrays])
