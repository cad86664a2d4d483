# SPDX-License-Identifier: Apache-2.0
"""libpsclient through ctypes: search path, structs and function types."""
from __future__ import annotations

import ctypes
import glob
import operator
import os
from ctypes import (CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int,
                    c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p)
from typing import Any, List, Optional

NAME = "libpsclient.so.0"
RANK_ANY = -1
WAIT_FOREVER = -2
OPEN_QUIET = 1
TEXT_MAX = 1024

ON_LOSS = {"wait": 0, "fail": 1}
PLACEMENTS = {"balanced": 0, "mxnet": 1}
MODES = {"sync": 0, "async": 1, "ssp": 2}
RULES = {"none": 0, "accumulate": 2, "assign": 3}
# enum psc_joined
JOINED_LEAVE, JOINED_COUNT, JOINED_REFUSE = 0, 1, 2
REDUCE = {"sum": 0, "mean": 1, "min": 2, "max": 3, "product": 4}

Callback = CFUNCTYPE(None, c_void_p, c_int, c_void_p)


def encode(text: str, kind: str) -> bytes:
    """The name `text` as bytes for C. ValueError for a NUL character: C would
    end the name there, and two names would be equal."""
    if "\0" in text:
        raise ValueError("%s %r has a NUL character; leave it out" %
                         (kind, text))
    return text.encode()


def number(value: Any, name: str, kind: Any = float) -> Any:
    """The value as a number, whose name the error has."""
    try:
        return kind(value) if kind is float else operator.index(value)
    except (TypeError, ValueError):
        raise TypeError("%s is a %snumber, not %r" % (
            name, "" if kind is float else "whole ", value)) from None


class Options(Structure):
    """struct psc_options"""

    _fields_ = [
        ("size", c_uint32),
        ("rank", c_int32),
        ("socket", c_char_p),
        ("job", c_char_p),
        ("num_workers", c_uint32),
        ("num_servers", c_uint32),
        ("mode", c_uint32),
        ("on_loss", c_uint32),
        ("placement", c_uint32),
        ("partition_bytes", c_uint32),
        ("big_array_bound", c_uint64),
        ("connect_timeout_ms", c_int32),
        ("start_timeout_ms", c_int32),
        ("op_timeout_ms", c_int32),
        ("close_timeout_ms", c_int32),
        ("flags", c_uint32),
        ("spin_us", c_int32),
        ("rule", c_uint32),
        ("staleness", c_uint32),
        ("agent_retry_ms", c_int32),
        ("wait_notes_ms", c_int32),
        ("weight", c_uint32),
        ("token_file", c_char_p),
        ("replicas", c_uint32),
    ]


class Device(Structure):
    """struct psc_device"""

    _fields_ = [("size", c_uint32), ("ordinal", c_int32),
                ("stream", c_void_p), ("flags", c_uint32),
                ("reserved", c_uint32)]


DEVICE_COMPLETE = 1


class OpOptions(Structure):
    """struct psc_op_options"""

    _fields_ = [
        ("size", c_uint32),
        ("priority", c_int32),
        ("reduce", c_uint32),
        ("root", c_uint32),
        ("src_count", c_uint32),
        ("samples", c_uint32),
        ("srcs", POINTER(c_void_p)),
        ("callback", Callback),
        ("user", c_void_p),
        ("device", POINTER(Device)),
    ]


class Param(Structure):
    """struct psc_param"""

    _fields_ = [("name", c_char_p), ("value", c_double)]


class Scalar(Structure):
    """struct psc_scalar"""

    _fields_ = [("name", c_char_p), ("value", c_double)]


class Span(Structure):
    """struct psc_span"""

    _fields_ = [("begun_ns", c_uint64), ("name", c_uint32),
                ("reserved", c_uint32)]


class KeyTuning(Structure):
    """struct psc_key_tuning"""

    _fields_ = [("name", c_char_p), ("number", c_int64),
                ("lr_mult", c_double), ("wd_mult", c_double),
                ("flags", c_uint32), ("reserved", c_uint32)]


class Optimizer(Structure):
    """struct psc_optimizer"""

    _fields_ = [("size", c_uint32), ("param_count", c_uint32),
                ("name", c_char_p), ("params", POINTER(Param)),
                ("keys", POINTER(KeyTuning)), ("key_count", c_uint32),
                ("reserved", c_uint32)]


class Array(Structure):
    """struct psc_array"""

    _fields_ = [("dtype", c_uint32), ("ndim", c_uint32),
                ("dims", POINTER(c_uint64)), ("src", c_void_p),
                ("out", c_void_p), ("out_size", c_size_t)]


class CollOptions(Structure):
    """struct psc_coll_options"""

    _fields_ = [
        ("size", c_uint32),
        ("priority", c_int32),
        ("reduce", c_uint32),
        ("root", c_uint32),
        ("prescale", c_double),
        ("postscale", c_double),
        ("callback", Callback),
        ("user", c_void_p),
        ("array_words", c_char_p),
        ("joined", c_uint32),
        ("device", POINTER(Device)),
    ]


class Piece(Structure):
    """struct psc_piece"""

    _fields_ = [("src", c_void_p), ("out", c_void_p), ("count", c_uint64)]


class Pieces(Structure):
    """struct psc_pieces"""

    _fields_ = [("dtype", c_uint32), ("count", c_uint32),
                ("pieces", POINTER(Piece))]


class Rows(Structure):
    """struct psc_rows"""

    _fields_ = [("numbers", c_void_p), ("count", c_size_t), ("src", c_void_p),
                ("out", c_void_p)]


class Stats(Structure):
    """struct psc_stats"""

    _fields_ = [
        ("size", c_uint32),
        ("resumes", c_uint32),
        ("ops", c_uint64),
        ("rounds", c_uint64),
        ("bytes_given", c_uint64),
        ("bytes_got", c_uint64),
        ("bytes_copied", c_uint64),
        ("sends", c_uint64),
        ("receives", c_uint64),
    ]


_ROWS = [c_void_p, c_uint32, POINTER(Rows), POINTER(OpOptions),
         POINTER(c_void_p)]
_OP = [c_void_p, c_uint32, c_void_p, POINTER(OpOptions), POINTER(c_void_p)]
_OP_OUT = [c_void_p, c_uint32, c_void_p, c_void_p, POINTER(OpOptions),
           POINTER(c_void_p)]


class KeySpec(Structure):
    """struct psc_key_spec"""
    _fields_ = [
        ("name", c_char_p),
        ("number", c_int64),
        ("dtype", c_uint32),
        ("ndim", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("width", c_uint32),
        ("flags", c_uint32),
    ]


BUF_KEEP_SEALS, BUF_MUST_SHARE = 1, 2
KEY_KNOWN = 1
KEY_OF_SUMS = 2
TUNING_PLAIN = 1
_COLL = [POINTER(CollOptions), POINTER(c_void_p)]
_ARRAY = [c_void_p, c_char_p, POINTER(Array), *_COLL]

_FUNCTIONS = {
    "psc_options_init": (None, [POINTER(Options), c_size_t]),
    "psc_options_env": (c_int, [POINTER(Options), c_char_p, c_size_t]),
    "psc_open": (c_int, [POINTER(Options), POINTER(c_void_p), c_char_p,
                         c_size_t]),
    "psc_abort": (c_int, [c_void_p]),
    "psc_leave": (c_int, [c_void_p]),
    "psc_close": (None, [c_void_p]),
    "psc_rank": (c_int, [c_void_p]),
    "psc_size": (c_int, [c_void_p]),
    "psc_local_rank": (c_int, [c_void_p]),
    "psc_local_size": (c_int, [c_void_p]),
    "psc_num_servers": (c_int, [c_void_p]),
    "psc_alloc": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "psc_free": (c_int, [c_void_p, c_void_p]),
    "psc_alloc_device": (c_int, [c_void_p, c_int32, c_size_t,
                                 POINTER(c_void_p)]),
    "psc_free_device": (c_int, [c_void_p, c_void_p]),
    "psc_device_stream": (c_int, [c_void_p, c_int32, POINTER(c_void_p)]),
    "psc_buf_register": (c_int, [c_void_p, c_void_p, c_size_t, c_uint32,
                                 POINTER(c_int)]),
    "psc_buf_unregister": (c_int, [c_void_p, c_void_p]),
    "psc_keys": (c_int, [c_void_p, POINTER(KeySpec), c_size_t,
                         POINTER(c_uint32)]),
    "psc_key_rows": (c_int, [c_void_p, c_char_p, c_uint32, c_uint64, c_uint32,
                             POINTER(c_uint32)]),
    "psc_key_rows_int": (c_int, [c_void_p, c_int64, c_uint32, c_uint64,
                                 c_uint32, POINTER(c_uint32)]),
    "psc_push_rows_start": (c_int, _ROWS),
    "psc_pull_rows_start": (c_int, _ROWS),
    "psc_init_start": (c_int, _OP),
    "psc_push_start": (c_int, _OP),
    "psc_pull_start": (c_int, _OP),
    "psc_pushpull_start": (c_int, _OP_OUT),
    "psc_broadcast_start": (c_int, _OP_OUT),
    "psc_barrier_start": (c_int, [c_void_p, POINTER(OpOptions),
                                  POINTER(c_void_p)]),
    "psc_compression_start": (c_int, [c_void_p, c_char_p, POINTER(Param),
                                      c_uint32, POINTER(OpOptions),
                                      POINTER(c_void_p)]),
    "psc_optimizer_declare_start": (c_int, [c_void_p, POINTER(Optimizer),
                                            POINTER(OpOptions),
                                            POINTER(c_void_p)]),
    "psc_state_save": (c_int, [c_void_p, c_char_p]),
    "psc_state_load": (c_int, [c_void_p, c_char_p]),
    "psc_set_start": (c_int, [c_void_p, c_char_p, c_double, c_uint64,
                              POINTER(OpOptions), POINTER(c_void_p)]),
    "psc_tune_start": (c_int, [c_void_p, POINTER(KeyTuning), c_uint32,
                               c_uint64, POINTER(OpOptions),
                               POINTER(c_void_p)]),
    "psc_profile_start": (c_int, [c_void_p, c_uint32, POINTER(OpOptions),
                                  POINTER(c_void_p)]),
    "psc_profile_save": (c_int, [c_void_p, c_char_p]),
    "psc_report": (c_int, [c_void_p, c_char_p, c_double]),
    "psc_report_many": (c_int, [c_void_p, c_uint64, POINTER(Scalar),
                                c_uint32]),
    "psc_span_begin": (c_int, [c_void_p, c_char_p, POINTER(Span)]),
    "psc_span_end": (c_int, [c_void_p, POINTER(Span)]),
    "psc_allreduce_start": (c_int, _ARRAY),
    "psc_allreduce_many_start": (c_int, [c_void_p, c_char_p, POINTER(Pieces),
                                         *_COLL]),
    "psc_bcast_start": (c_int, _ARRAY),
    "psc_allgather_start": (c_int, _ARRAY),
    "psc_reducescatter_start": (c_int, _ARRAY),
    "psc_alltoall_start": (c_int, [c_void_p, c_char_p, POINTER(Array),
                                   POINTER(c_uint64), *_COLL]),
    "psc_join_start": (c_int, [c_void_p, *_COLL]),
    "psc_op_rows": (c_int, [c_void_p, POINTER(c_uint64), c_uint32]),
    "psc_op_view": (c_int, [c_void_p, POINTER(c_void_p), POINTER(c_size_t)]),
    "psc_group_open": (c_int, [c_void_p, c_char_p, POINTER(c_uint32),
                               c_uint32, POINTER(c_void_p)]),
    "psc_op_wait": (c_int, [c_void_p, c_int]),
    "psc_op_wait_slice": (c_int, [c_void_p, c_int]),
    "psc_op_test": (c_int, [c_void_p]),
    "psc_op_why": (c_int, [c_void_p, c_char_p, c_size_t]),
    "psc_op_version": (c_int, [c_void_p, POINTER(c_uint64)]),
    "psc_op_cancel": (c_int, [c_void_p]),
    "psc_op_free": (None, [c_void_p]),
    "psc_fd": (c_int, [c_void_p]),
    "psc_dispatch": (c_int, [c_void_p]),
    "psc_strerror": (c_char_p, [c_int]),
    "psc_last_detail": (c_int, [c_void_p, c_char_p, c_size_t]),
    "psc_version": (c_char_p, []),
    "psc_get_stats": (c_int, [c_void_p, POINTER(Stats)]),
}

_loaded: Optional[Any] = None


def _candidates() -> List[str]:
    named = os.environ.get("PSKV_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    found = glob.glob(os.path.join(glob.escape(here), NAME))
    # Installed in a prefix: this file in
    # PREFIX/lib/python3.11/site-packages/pskv, the library in PREFIX/lib,
    # PREFIX/lib64 or PREFIX/lib/x86_64-linux-gnu.
    above = os.path.dirname(here)
    while above != os.path.dirname(above):
        prefix, name = os.path.split(above)
        if name in ("lib", "lib64"):
            for place in ("lib", "lib64", os.path.join("lib", "*")):
                found += glob.glob(os.path.join(glob.escape(prefix), place,
                                                NAME))
        above = prefix
    return found + [NAME]


def load() -> Any:
    """The library, loaded once. Searched in PSKV_LIBRARY, beside this file, in
    the prefix that this file is installed in, and in the system."""
    global _loaded  # pylint: disable=global-statement
    if _loaded is None:
        problems = []
        for path in _candidates():
            try:
                lib = ctypes.CDLL(path)
                break
            except OSError as e:
                problems.append(str(e))
        else:
            raise ImportError("cannot load %s; set PSKV_LIBRARY to its path: "
                              "%s" % (NAME, "; ".join(problems)))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(lib, name)
            function.restype = result
            function.argtypes = arguments
        _loaded = lib
    return _loaded
