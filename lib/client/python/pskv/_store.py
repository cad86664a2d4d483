# SPDX-License-Identifier: Apache-2.0
"""The key-value store, with the interface of MXNet's."""
from __future__ import annotations

import ctypes
import os
from ctypes import byref
from typing import Dict, Optional

from . import _lib
from ._collective import Collectives
from ._errors import INVAL, Error, error
from ._memory import Memory
from ._role import take_role
from ._training import Training

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


def _milliseconds(seconds: Optional[float]) -> int:
    if seconds is None:
        return 0
    if seconds < 0:
        raise ValueError("a time limit must not be negative")
    return min(int(seconds * 1000), 2**31 - 1)


class KVStore(Training, Memory, Collectives):
    """A worker's view of the job's keys. Made by create()."""

    def _adopt(self, client: int, name: str) -> "KVStore":
        return KVStore(name, self._lib, None, self._timeout, client)


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
           replicas: Optional[int] = None,
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
    `replicas`, 1 or 2, is the number of servers that have each value: with 2, a
    sync job outlives the loss of a server's host.
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
                          ("staleness", staleness), ("weight", weight),
                          ("replicas", replicas)):
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
