# SPDX-License-Identifier: Apache-2.0
"""pskv as a key-value store of MXNet 1.9.

    import mxnet as mx
    import pskv.mxnet

    kv = mx.kv.create('dist_sync')

Importing registers the names 'pskv', 'dist', 'dist_sync',
'dist_sync_device', 'dist_device_sync' and 'dist_sync_mpi': scripts for
gluon.Trainer and mx.mod.Module run unchanged. `python3 -m pskv.mxnet SCRIPT
ARGUMENTS...` runs one without even that import.

A store is a subclass of MXNet's own, because Gluon requires that for sparse
arrays. All stores of a process are one worker of one job."""
from __future__ import annotations

import atexit
import json
import types
from typing import Any, Dict, List, Optional

from .._role import take_role

# Before MXNet is imported, which would become its own scheduler or server.
take_role()

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from mxnet.kvstore import KVStoreBase  # noqa: E402
from mxnet.kvstore.kvstore import KVStore as _Native  # noqa: E402

from .. import _store  # noqa: E402
from .._errors import INVAL, error  # noqa: E402
from ._engine import Engine, program_failed  # noqa: E402
from ._optimizer import declaration, multipliers  # noqa: E402

__all__ = ["PSKV"]

NAMES = ("dist", "dist_sync", "dist_sync_device", "dist_device_sync",
         "dist_sync_mpi")


class _Worker:
    """This process as a worker of the job."""

    def __init__(self, name: str) -> None:
        self.store = _store.create(name)
        self.engine = Engine(self.store)
        self.arrays: Dict[Any, "_Arrays"] = {}
        self.of_rows: Dict[Any, Any] = {}  # Shapes of row-sparse keys.
        atexit.register(self._end)

    def _end(self) -> None:
        failed = program_failed()
        if not failed:
            mx.nd.waitall()
        self.engine.stop(failed)
        # Operations left in the engine see the failure and end.
        mx.nd.waitall()


_worker: Optional[_Worker] = None


def _join(name: str) -> _Worker:
    global _worker  # pylint: disable=global-statement
    if _worker is None:
        _worker = _Worker(name)
    elif _worker.store.type != name:
        raise error(INVAL, "this process is a worker of a job of type '%s' and"
                    " cannot open a store '%s' besides" %
                    (_worker.store.type, name))
    return _worker


class _Arrays:
    """Memory of one key that MXNet and the agent share: MXNet copies the
    devices' arrays to it and the result from it."""

    def __init__(self, store: _store.KVStore, like: Any) -> None:
        self._store = store
        self.shape = like.shape
        self.dtype = np.dtype(like.dtype)
        self.given: List[Any] = []
        self.given_nd: List[Any] = []
        self.result, self.result_nd = self._new()
        # Operations on a key run in the order of their calls, because each of
        # them writes this array.
        self.order = mx.nd.zeros((1,))

    def _new(self) -> Any:
        array = self._store.empty(self.shape, self.dtype)
        # from_numpy() makes its argument read-only, so it gets a view.
        return array, mx.nd.from_numpy(array.view())

    def like(self, key: Any, value: Any) -> None:
        """Raises unless an array fits the key."""
        if value.shape != self.shape or np.dtype(value.dtype) != self.dtype:
            raise ValueError(
                "key %r is %s of shape %s, but the array is %s of shape %s" %
                (key, self.dtype, self.shape, np.dtype(value.dtype),
                 value.shape))

    def room(self, count: int) -> None:
        """Extends the memory to `count` source arrays."""
        while len(self.given) < count:
            array, nd = self._new()
            self.given.append(array)
            self.given_nd.append(nd)


def _list(value: Any) -> List[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _per_key(key: Any, value: Any) -> Any:
    """Keys with their arrays; the arrays of a repeated key are joined."""
    keys = _list(key)
    if not isinstance(key, (list, tuple)):
        values = [_list(value)]
    else:
        values = [_list(v) for v in _list(value)]
    if len(keys) != len(values):
        raise ValueError("%d keys want a list of %d arrays or lists of arrays,"
                         " not %d" % (len(keys), len(keys), len(values)))
    grouped: Dict[Any, List[Any]] = {}
    for k, v in zip(keys, values):
        grouped.setdefault(k, []).extend(v)
    return grouped.items()


def _dense(key: Any, arrays: List[Any]) -> None:
    for a in arrays:
        if not isinstance(a, mx.nd.NDArray):
            raise TypeError("key %r: NDArrays are wanted, not %s" %
                            (key, type(a).__name__))
        if a.stype != "default":
            raise TypeError("key %r is dense, and the array of type %s" %
                            (key, a.stype))


def _rows_of(key: Any, arrays: List[Any]) -> Any:
    """Numbers and rows of row-sparse arrays, concatenated."""
    for a in arrays:
        if a.stype != "row_sparse":
            raise TypeError("key %r has rows, and the array is of type %s" %
                            (key, a.stype))
    return (np.concatenate([a.indices.asnumpy() for a in arrays]),
            np.concatenate([a.data.asnumpy().reshape(len(a.indices), -1)
                            for a in arrays]))


class PSKV(_Native):
    """A worker's view of the keys of its job, with MXNet's interface.
    Operations run in MXNet's engine: calls return at once, and reading an
    array waits for it."""

    _name = "pskv"

    def __init__(self) -> None:  # pylint: disable=super-init-not-called
        self.handle = None  # No handle of the native library.
        self._updater = None
        self._is_p3 = False
        self._worker = _join(self._name)
        self._store = self._worker.store
        self._engine = self._worker.engine
        self._optimizer: Optional[Any] = None

    def __del__(self) -> None:
        pass

    @staticmethod
    def is_capable(capability: str) -> bool:
        """True for 'optimizer': servers run optimizers."""
        if capability.lower() != KVStoreBase.OPTIMIZER:
            raise ValueError("Unknown capability: {}".format(capability))
        return True

    # -------------------------------------------------------------- values

    def _arrays(self, key: Any, like: Any) -> _Arrays:
        known = self._worker.arrays.get(key)
        if known is None:
            known = _Arrays(self._store, like)
            self._worker.arrays[key] = known
        return known

    def _start(self, what: str, key: Any, given: List[Any],
               wanted: List[Any], priority: int) -> None:
        self._engine.check()
        _dense(key, given)
        _dense(key, wanted)
        memory = self._arrays(key, (given or wanted)[0])
        for a in given + wanted:
            memory.like(key, a)
        memory.room(len(given))
        reads = memory.given_nd[:len(given)]
        for a, to in zip(given, reads):
            a.copyto(to)
        src = memory.given[:len(given)]
        writes = [memory.order]
        if wanted:
            writes.append(memory.result_nd)
        store = self._store

        def start() -> _store.Handle:
            if what == "push":
                return store.push_async(key, src, priority)
            if what == "pull":
                return store.pull_async(key, memory.result, priority)
            return store.pushpull_async(key, src, memory.result, priority)

        self._engine.push(start, reads, writes, priority, "pskv_" + what)
        for a in wanted:
            memory.result_nd.copyto(a)

    def init(self, key: Any, value: Any) -> None:
        """Sets the first value of keys, that of rank 0. All workers call it
        and wait for each other."""
        self._engine.check()
        for k, values in _per_key(key, value):
            if values[0].stype == "row_sparse":
                self._worker.of_rows[k] = values[0].shape
                self._store.init_rows(k, values[0].asnumpy().reshape(
                    values[0].shape[0], -1))
                continue
            _dense(k, values)
            self._arrays(k, values[0]).like(k, values[0])
            self._store.init(k, values[0].asnumpy())
        self._store.barrier()

    def broadcast(self, key: Any, value: Any, out: Any,
                  priority: int = 0) -> None:
        """Rank 0's `value` becomes the key's value and every worker's `out`.
        May be repeated."""
        self._engine.check()
        outs = dict(_per_key(key, out))
        for k, values in _per_key(key, value):
            _dense(k, values + outs[k])
            memory = self._arrays(k, values[0])
            for a in values + outs[k]:
                memory.like(k, a)
            result = np.empty_like(values[0].asnumpy())
            self._store.broadcast(k, values[0].asnumpy(), result, priority)
            for o in outs[k]:
                o[:] = result

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Contributes to the next round; arrays of several devices are summed.
        The call waits for row-sparse arrays: their rows are pushed to a
        row-sparse key; for a dense key they are made dense."""
        for k, values in _per_key(key, value):
            if k in self._worker.of_rows:
                self._engine.check()
                rows, data = _rows_of(k, values)
                self._store.push_rows(k, rows, data, priority)
                continue
            values = [v.tostype("default") if v.stype == "row_sparse" else v
                      for v in values]
            self._start("push", k, values, [], priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0,
             ignore_sparse: bool = True) -> None:
        """The value after all rounds that this worker has pushed to."""
        if out is None:
            raise ValueError("pull needs arrays to write to")
        for k, outs in _per_key(key, out):
            if k in self._worker.of_rows or outs[0].stype != "default":
                if ignore_sparse:
                    continue  # As MXNet's own store does.
                raise TypeError("key %r has rows, which row_sparse_pull() "
                                "pulls" % (k,))
            self._start("pull", k, [], outs, priority)

    def pushpull(self, key: Any, value: Any, out: Any = None,
                 priority: int = 0) -> None:
        """push() and pull(); without `out` the result is written to `value`.
        """
        outs = dict(_per_key(key, value if out is None else out))
        for k, values in _per_key(key, value):
            self._start("pushpull", k, values, outs[k], priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0,
                        row_ids: Any = None) -> None:
        """Pulls rows of row-sparse keys into row-sparse arrays, which hold
        exactly these rows afterwards. Returns when they are complete."""
        if out is None or row_ids is None:
            raise ValueError("row_sparse_pull needs arrays and numbers of rows")
        self._engine.check()
        ids = _list(row_ids)
        for k, outs in _per_key(key, out):
            shape = self._worker.of_rows.get(k)
            if shape is None:
                raise ValueError("key %r is not row-sparse: it was not "
                                 "initialised by a row_sparse array" % (k,))
            if len(ids) not in (1, len(outs)):
                raise ValueError("%d arrays want as many row_ids, or one" %
                                 len(outs))
            for i, o in enumerate(outs):
                wanted = ids[i if len(ids) > 1 else 0]
                numbers, rows = self._store.row_sparse_pull(
                    k, wanted.asnumpy(), priority)
                rows = rows.reshape((len(numbers),) + tuple(shape[1:]))
                with mx.autograd.pause():  # `o` may be in a graph.
                    if len(numbers) == 0:
                        mx.nd.sparse.zeros("row_sparse", shape,
                                           dtype=rows.dtype).copyto(o)
                    else:
                        mx.nd.sparse.row_sparse_array(
                            (rows, numbers), shape=shape,
                            dtype=rows.dtype).copyto(o)

    # ------------------------------------------------------------- control

    def set_optimizer(self, optimizer: Any) -> None:
        """Declares the optimizer to the servers by name and parameters, with
        lr_mult and wd_mult of keys; _optimizer.py lists the supported ones.
        Every worker may declare the same."""
        self._engine.check()
        name, numbers = declaration(optimizer)
        lr, wd = multipliers(optimizer)
        self._store.set_optimizer(name, lr_mult=lr, wd_mult=wd,
                                  names=optimizer.idx2name, **numbers)
        self._optimizer = optimizer
        # Gluon's Trainer reads it here after loading states.
        self._updater = types.SimpleNamespace(optimizer=optimizer)

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Declares the codec to the servers by name and parameters: {'type':
        '2bit', 'threshold': 0.5}, or another type of docs/compression.md.
        Before the first key."""
        self._store.set_gradient_compression(compression_params)

    def _set_updater(self, updater: Any) -> None:
        raise TypeError("servers run no code of workers; set_optimizer() "
                        "takes the optimizers that they know")

    def save_optimizer_states(self, fname: str,
                              dump_optimizer: bool = False) -> None:
        """Saves the servers' optimizer state in pskv's own format. The script
        keeps the optimizer; the file contains no code. One worker suffices."""
        self._settle()
        self._store.save_optimizer_states(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Restores a file of save_optimizer_states(), after set_optimizer()
        and init of the keys."""
        self._settle()
        self._store.load_optimizer_states(fname)

    def _settle(self) -> None:
        """Waits until all operations given to the engine are done."""
        mx.nd.waitall()
        self._engine.check()

    def _barrier(self) -> None:
        self._engine.check()
        self._store.barrier()

    def _send_command_to_servers(self, head: int, body: Any) -> None:
        """MXNet's commands by number. With 0, the controller, servers accept
        changes of the optimizer as JSON, {"learning_rate": 0.05}, from
        "round" on if given; never a pickled object. 1 and 3 request
        behaviour that this store has anyway."""
        self._engine.check()
        if head in (1, 3):
            return  # Masters in float32; synchronous mode.
        if head != 0:
            raise NotImplementedError("servers take no command %d: %s" % (
                head, _REFUSED.get(head, "MXNet has none of this number")))
        numbers = _changes(body)
        since = numbers.pop("round", 0)
        for name, value in numbers.items():
            self._store.set_optimizer_param(name, float(value), int(since))

    @property
    def type(self) -> str:
        """The name given to create()."""
        return self._name

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._store.rank

    @property
    def num_workers(self) -> int:
        """Workers of the job."""
        return self._store.num_workers


# Reasons for the refusal of the other commands.
_REFUSED = {
    2: "they outlive jobs, and the job ends with its workers",
    4: "set_gradient_compression() declares it, before the first key",
    5: "they have no profiler; psctl status and their logs say what they do",
}
_CHANGES = ("learning_rate", "wd", "rescale_grad", "clip_gradient")


def _changes(body: Any) -> Dict[str, Any]:
    """Changes of the optimizer in a command."""
    try:
        numbers = json.loads(body)
    except (TypeError, ValueError):
        numbers = None
    if not isinstance(numbers, dict):
        raise NotImplementedError(
            "servers take no command 0 but JSON such as {\"learning_rate\": "
            "0.05}: they unpickle nothing; set_optimizer() declares an "
            "optimizer")
    if not set(numbers) <= {*_CHANGES, "round"} or \
            not set(numbers) & set(_CHANGES):
        raise ValueError("command 0 changes %s, with \"round\" from that round "
                         "on; this one has %s" % (
                             ", ".join(_CHANGES),
                             ", ".join(sorted(map(str, numbers))) or "nothing"))
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(
                value, int if name == "round" else (int, float)):
            raise ValueError("command 0: %s is %r, and no number" %
                             (name, value))
    return numbers


def _register() -> None:
    """Registers the stores; MXNet finds them by class name."""
    KVStoreBase.register(PSKV)
    for name in NAMES:
        KVStoreBase.register(type(name, (PSKV,), {"_name": name}))


_register()
