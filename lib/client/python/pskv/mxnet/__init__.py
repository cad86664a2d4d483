# SPDX-License-Identifier: Apache-2.0
"""pskv as a key-value store of MXNet 1.9.

    import mxnet as mx
    import pskv.mxnet

    kv = mx.kv.create('dist_sync')

Importing registers the names 'pskv', 'dist', 'dist_sync',
'dist_sync_device', 'dist_device_sync', 'dist_sync_mpi', 'dist_async',
'dist_async_device' and 'dist_device_async': scripts for gluon.Trainer and
mx.mod.Module run unchanged. `python3 -m pskv.mxnet SCRIPT ARGUMENTS...` runs
one without even that import. Every other name with 'dist' is refused, because
MXNet's own store would wait for MXNet's servers.

A store is a subclass of MXNet's own, because Gluon requires that for sparse
arrays. Each store of a process has keys and an optimizer of its own: the first
is in the job that the environment names, further ones are in jobs beside it.
So is what a store is given after a second optimizer."""
from __future__ import annotations

import atexit
import functools
import json
import types
import warnings
from typing import Any, Callable, Dict, List, Optional, Sequence, Set

from .._role import take_role

# Before MXNet is imported, which would become its own scheduler or server.
take_role()

import mxnet as mx  # noqa: E402
import numpy as np  # noqa: E402
from mxnet.kvstore import KVStoreBase  # noqa: E402
from mxnet.kvstore.kvstore import KVStore as _Native  # noqa: E402

from .._array import dtype_of  # noqa: E402
from .._client import Handle  # noqa: E402
from .._errors import program_failed  # noqa: E402
from .._jobs import Place  # noqa: E402
from .._lib import KEY_KNOWN  # noqa: E402
from .._store import KVStore  # noqa: E402
from . import _gluon, _profiler  # noqa: E402
from ._engine import Engine  # noqa: E402
from ._errors import mxnet_errors, script_level, \
    translated  # noqa: E402
from ._optimizer import CHANGES, Declared, declaration, \
    multipliers  # noqa: E402

__all__ = ["PSKV"]

NAMES = ("dist", "dist_sync", "dist_sync_device", "dist_device_sync",
         "dist_sync_mpi", "dist_async", "dist_async_device",
         "dist_device_async")


class _Worker:
    """This process as a worker of a job."""

    def __init__(self, name: str) -> None:
        self.store = Place().join(name)
        self.engine = Engine(self.store)
        self.arrays: Dict[Any, "_Arrays"] = {}
        self.of_rows: Dict[Any, Any] = {}  # Shapes of row-sparse keys.
        # Shapes of keys that are dense for MXNet, and by rows for servers.
        self.by_rows: Dict[Any, Any] = {}
        self.declared: Optional[Declared] = None
        self.has_checked = False  # Names of factors of the optimizer.
        atexit.register(self._end)

    def _end(self) -> None:
        failed = program_failed()
        if not failed:
            mx.nd.waitall()
        self.engine.stop(failed)
        # Operations left in the engine see the failure and end.
        mx.nd.waitall()


class _Arrays:
    """Memory of one key that MXNet and the agent share: MXNet copies the
    devices' arrays to it and the result from it."""

    def __init__(self, store: KVStore, like: Any) -> None:
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

    def reserve(self, count: int) -> None:
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


def _ndarrays(key: Any, arrays: List[Any]) -> None:
    for a in arrays:
        if not isinstance(a, mx.nd.NDArray):
            raise TypeError("key %r: NDArrays are wanted, not %s" %
                            (key, type(a).__name__))


def _dense(key: Any, arrays: List[Any]) -> None:
    _ndarrays(key, arrays)
    for a in arrays:
        if a.stype != "default":
            raise TypeError("key %r is dense, and the array of type %s" %
                            (key, a.stype))


def _all_rows(arrays: List[Any]) -> Any:
    """Numbers and rows of dense or row-sparse arrays, concatenated."""
    parts = [(np.arange(a.shape[0]), a.asnumpy()) if a.stype == "default" else
             (a.indices.asnumpy(), a.data.asnumpy()) for a in arrays]
    width = int(np.prod(arrays[0].shape[1:]))
    return (np.concatenate([numbers for numbers, _ in parts]),
            np.concatenate([rows.reshape(-1, width) for _, rows in parts]))


def _rows_of(key: Any, arrays: List[Any]) -> Any:
    """Numbers and rows of row-sparse arrays, concatenated."""
    _ndarrays(key, arrays)
    for a in arrays:
        if a.stype != "row_sparse":
            raise TypeError("key %r has rows, and the array is of type %s" %
                            (key, a.stype))
    width = int(np.prod(arrays[0].shape[1:]))
    return (np.concatenate([a.indices.asnumpy() for a in arrays]),
            np.concatenate([a.data.asnumpy().reshape(-1, width)
                            for a in arrays]))


@mxnet_errors
class PSKV(_Native):
    """A worker's view of the keys of its job, with MXNet's interface.
    Operations run in MXNet's engine: calls return at once, and reading an
    array waits for it."""

    _name = "pskv"

    def __init__(self) -> None:  # pylint: disable=super-init-not-called
        self.handle = None  # No handle of the native library.
        self._updater = None
        self._is_p3 = False
        self._worker = _Worker(self._name)
        # Keys from before the present optimizer, with their workers.
        self._earlier: Dict[Any, _Worker] = {}
        self._compression: Any = None
        self._warned: Set[str] = set()
        self.server_profiler = _profiler.ServerProfiler(
            lambda: self._worker.store)
        _profiler.use(self)

    def __del__(self) -> None:
        pass

    def __reduce__(self) -> Any:
        return self._worker.store.__reduce__()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """True for 'optimizer': servers run optimizers."""
        if capability.lower() != KVStoreBase.OPTIMIZER:
            raise ValueError("Unknown capability: {}".format(capability))
        return True

    # -------------------------------------------------------------- values

    def _of(self, key: Any) -> _Worker:
        """The worker that has a key, or the present one."""
        return self._earlier.get(key, self._worker)

    def _to_push(self, key: Any) -> _Worker:
        """The same for a push. ValueError: another optimizer came since."""
        if key in self._earlier:
            raise ValueError(
                "key %r is from before the second set_optimizer(), and keeps "
                "the optimizer of before; init() or broadcast() gives it the "
                "present one" % (key,))
        return self._worker

    def _arrays(self, key: Any, like: Any, is_new: bool = False) -> _Arrays:
        """Memory of a key. An Error if it is not new and nobody has it."""
        worker = self._of(key)
        known = worker.arrays.get(key)
        if known is None:
            if not is_new:
                worker.store._key_list(key)
                worker.store._declare(key, dtype_of(np.dtype(like.dtype)),
                                      like.shape, KEY_KNOWN)
            known = _Arrays(worker.store, like)
            worker.arrays[key] = known
        return known

    def _start(self, what: str, calls: Sequence[Any], priority: int) -> None:
        """Starts an operation on each key of `calls`, (key, arrays to read,
        arrays to write). All arrays are read before the first is written."""
        for key, given, wanted in calls:
            worker = self._to_push(key) if given else self._of(key)
            worker.engine.check()
            _dense(key, given + wanted)
            if given and worker.declared and worker.declared.needs_rows:
                raise ValueError(
                    "key %r: GroupAdaGrad steps the rows of arrays that init() "
                    "or broadcast() has set after set_optimizer()" % (key,))
            memory = self._arrays(key, (given or wanted)[0])
            for a in given + wanted:
                memory.like(key, a)
        for key, given, wanted in calls:
            memory = self._arrays(key, (given or wanted)[0])
            memory.reserve(len(given))
            reads = memory.given_nd[:len(given)]
            for a, to in zip(given, reads):
                a.copyto(to)
            writes = [memory.order]
            if wanted:
                writes.append(memory.result_nd)
            self._of(key).engine.push(
                self._starter(what, key, memory, len(given), priority), reads,
                writes, priority, "pskv_" + what)
        for key, _, wanted in calls:
            for a in wanted:
                self._arrays(key, a).result_nd.copyto(a)

    def _starter(self, what: str, key: Any, memory: _Arrays, count: int,
                 priority: int) -> Callable[[], Handle]:
        """Function that starts the operation with `count` source arrays."""
        store = self._of(key).store
        src = memory.given[:count]

        def start() -> Handle:
            if what == "push":
                return store.push_async(key, src, priority)
            if what == "pull":
                return store.pull_async(key, memory.result, priority)
            return store.pushpull_async(key, src, memory.result, priority)

        return start

    def init(self, key: Any, value: Any) -> None:
        """Sets the first value of keys, that of rank 0. All workers call it
        and wait for each other."""
        worker = self._worker
        worker.engine.check()
        for k, values in _per_key(key, value):
            _ndarrays(k, values)
            self._earlier.pop(k, None)
            if values[0].stype == "row_sparse":
                worker.of_rows[k] = values[0].shape
                worker.store.init_rows(k, values[0].asnumpy().reshape(
                    values[0].shape[0], -1))
                continue
            _dense(k, values)
            if self._is_by_rows(k):
                self._init_by_rows(k, values[0])
                continue
            self._arrays(k, values[0], True).like(k, values[0])
            worker.store.init(k, values[0].asnumpy())
        worker.store.barrier()

    def _is_by_rows(self, key: Any) -> bool:
        """True if servers are to keep a dense key by rows."""
        declared, store = self._worker.declared, self._worker.store
        if declared is None or not declared.is_by_rows(key):
            return False
        return declared.needs_rows or (key not in self._worker.arrays and
                                       "async" not in self._name and
                                       store.num_servers > 0)

    def _init_by_rows(self, key: Any, value: Any) -> None:
        """Sets the first value of a dense key that servers keep by rows."""
        if self._worker.declared.needs_rows and len(value.shape) != 2:
            raise ValueError("GroupAdaGrad steps arrays of two dimensions, and "
                             "key %r has %d" % (key, len(value.shape)))
        self._worker.by_rows[key] = value.shape
        self._worker.store.init_rows(
            key, value.asnumpy().reshape(value.shape[0], -1))

    def _push_by_rows(self, key: Any, values: List[Any], priority: int) -> None:
        worker = self._to_push(key)
        worker.engine.check()
        for a in values:
            if a.shape != worker.by_rows[key]:
                raise ValueError("key %r is of shape %s, but the array of %s" %
                                 (key, worker.by_rows[key], a.shape))
        worker.store.push_rows(key, *_all_rows(values), priority)

    def _pull_by_rows(self, key: Any, outs: List[Any], priority: int) -> None:
        worker = self._of(key)
        worker.engine.check()
        _dense(key, outs)
        shape = worker.by_rows.get(key) or worker.of_rows[key]
        value = np.empty((shape[0], int(np.prod(shape[1:]))), outs[0].dtype)
        worker.store.pull_rows(key, np.arange(shape[0]), value, priority)
        for o in outs:
            o[:] = value.reshape(shape)

    def broadcast(self, key: Any, value: Any, out: Any,
                  priority: int = 0) -> None:
        """Rank 0's `value` becomes the key's value and every worker's `out`.
        May be repeated."""
        self._worker.engine.check()
        outs = dict(_per_key(key, out))
        for k, values in _per_key(key, value):
            self._earlier.pop(k, None)
            _dense(k, values + outs[k])
            if self._is_by_rows(k):
                if k in self._worker.by_rows:
                    raise ValueError("key %r has rows for GroupAdaGrad or "
                                     "lazy_update, and broadcast() replaces "
                                     "none" % (k,))
                self._init_by_rows(k, values[0])
                self._pull_by_rows(k, outs[k], priority)
                continue
            memory = self._arrays(k, values[0], True)
            for a in values + outs[k]:
                memory.like(k, a)
            result = np.empty_like(values[0].asnumpy())
            self._worker.store.broadcast(k, values[0].asnumpy(), result,
                                         priority)
            for o in outs[k]:
                o[:] = result

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Contributes to the next round; arrays of several devices are summed.
        The call waits for row-sparse arrays: their rows are pushed to a
        row-sparse key; for a dense key they are made dense. With GroupAdaGrad
        it returns when the round is merged."""
        self._apply_changes()
        for k, values in _per_key(key, value):
            _ndarrays(k, values)
            worker = self._to_push(k)
            if k in worker.of_rows:
                worker.engine.check()
                rows, data = _rows_of(k, values)
                worker.store.push_rows(k, rows, data, priority)
                continue
            if k in worker.by_rows:
                self._push_by_rows(k, values, priority)
                continue
            if any(v.stype == "row_sparse" for v in values):
                self._warn_of_lazy(k)
            values = [v.tostype("default") if v.stype == "row_sparse" else v
                      for v in values]
            self._start("push", [(k, values, [])], priority)

    def _warn_of_lazy(self, key: Any) -> None:
        """Warns if the optimizer is not lazy for rows of a key, which it is
        in MXNet."""
        declared = self._worker.declared
        if declared and declared.is_lazy():
            self._warn(
                "lazy_update",
                "lazy_update has no effect on the dense key %r: the %s of the "
                "servers steps all its rows, not only those of the gradient. "
                "It has one on row_sparse weights, and on gradients of rows "
                "of gluon.Trainer with sgd or adam over dist_sync" %
                (key, declared.given[0]))

    def _warn(self, what: str, text: str) -> None:
        """Warns once of something."""
        if what not in self._warned:
            self._warned.add(what)
            warnings.warn(text, stacklevel=script_level())

    def pull(self, key: Any, out: Any = None, priority: int = 0,
             ignore_sparse: bool = True) -> None:
        """The value after all rounds that this worker has pushed to. Arrays
        that are row_sparse get it, too, unless the key is."""
        if out is None:
            raise ValueError("pull needs arrays to write to")
        for k, outs in _per_key(key, out):
            _ndarrays(k, outs)
            is_rows = k in self._of(k).of_rows
            if is_rows and not ignore_sparse:
                raise TypeError("key %r has rows, which row_sparse_pull() "
                                "pulls" % (k,))
            if is_rows and any(o.stype != "default" for o in outs):
                # As MXNet's own store does.
                self._warn("pull", "pull() leaves row_sparse arrays of the "
                           "row_sparse key %r as they are; row_sparse_pull(), "
                           "or prepare() of a Module, fills them" % (k,))
            elif is_rows or k in self._of(k).by_rows:
                self._pull_by_rows(k, outs, priority)
            else:
                full = [mx.nd.empty(o.shape, o.ctx, o.dtype)
                        if o.stype != "default" else o for o in outs]
                self._start("pull", [(k, [], full)], priority)
                for o, value in zip(outs, full):
                    if value is not o:
                        value.tostype(o.stype).copyto(o)

    def pushpull(self, key: Any, value: Any, out: Any = None,
                 priority: int = 0) -> None:
        """push() and pull(); without `out` the result is written to `value`.
        Keys may share arrays: all are read before the first is written."""
        self._apply_changes()
        outs = dict(_per_key(key, value if out is None else out))
        calls = list(_per_key(key, value))
        by_rows = [k for k, _ in calls if k in self._of(k).by_rows]
        for k, values in calls:
            if k in by_rows:
                self._push_by_rows(k, values, priority)
        self._start("pushpull", [(k, values, outs[k]) for k, values in calls
                                 if k not in by_rows], priority)
        for k in by_rows:
            self._pull_by_rows(k, outs[k], priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0,
                        row_ids: Any = None) -> None:
        """Pulls rows of row-sparse keys into row-sparse arrays, which hold
        exactly these rows afterwards. Returns when they are complete."""
        if out is None or row_ids is None:
            raise ValueError("row_sparse_pull needs arrays and numbers of rows")
        ids = _list(row_ids)
        for k, outs in _per_key(key, out):
            worker = self._of(k)
            worker.engine.check()
            shape = worker.of_rows.get(k)
            if shape is None:
                raise ValueError("key %r is not row-sparse: it was not "
                                 "initialised by a row_sparse array" % (k,))
            if len(ids) not in (1, len(outs)):
                raise ValueError("%d arrays want as many row_ids, or one" %
                                 len(outs))
            for i, o in enumerate(outs):
                wanted = ids[i if len(ids) > 1 else 0]
                numbers, rows = worker.store.row_sparse_pull(
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
        Every worker may declare the same. Later changes of its lr, wd,
        rescale_grad, clip_gradient and multipliers apply from this worker's
        next round on. After a different one, keys that are initialised from then on
        have the new one."""
        self._worker.engine.check()
        name, numbers = declaration(optimizer)
        declared = Declared(optimizer)
        if self._worker.declared and not declared.equals(
                self._worker.declared):
            self._begin_again()
        lr, wd = multipliers(optimizer)
        self._worker.store.set_optimizer(
            name, lr_mult=lr, wd_mult=wd, names=optimizer.idx2name, **numbers)
        self._worker.declared = declared
        self._worker.has_checked = False
        # Gluon's Trainer reads it here after loading states.
        self._updater = types.SimpleNamespace(optimizer=optimizer)

    def set_gradient_compression(self, compression_params: Any) -> None:
        """Declares the codec to the servers by name and parameters: {'type':
        '2bit', 'threshold': 0.5}, or another type of docs/compression.md.
        Before the first key. As in MXNet, 2bit and 1bit have a residual for
        each worker; with 'per_worker': 0 for each node."""
        params = dict(compression_params)
        if params.get("type") in ("2bit", "1bit"):
            params.setdefault("per_worker", 1)
        self._worker.store.set_gradient_compression(params)
        self._compression = params

    def _begin_again(self) -> None:
        """Further keys are in another job."""
        self._wait_all()
        before = self._worker
        self._worker = _Worker(self._name)
        for key in (*before.arrays, *before.of_rows, *before.by_rows):
            self._earlier.setdefault(key, before)
        if self._compression is not None:
            self._worker.store.set_gradient_compression(self._compression)

    def _set_updater(self, updater: Any) -> None:
        raise TypeError("servers run no code of workers; set_optimizer() "
                        "takes the optimizers that they know")

    def save_optimizer_states(self, fname: str,
                              dump_optimizer: bool = False) -> None:
        """Saves the servers' optimizer state in pskv's own format, which has no
        code: with `dump_optimizer` the optimizer's numbers, too. One worker
        suffices."""
        self._wait_all()
        self._worker.store.save_optimizer_states(fname)
        if dump_optimizer and self._worker.declared:
            self._worker.declared.save(fname)

    def load_optimizer_states(self, fname: str) -> None:
        """Restores a file of save_optimizer_states(), after set_optimizer()
        and init of the keys. The optimizer's rates and multipliers become
        those of the file if it has them."""
        self._wait_all()
        self._worker.store.load_optimizer_states(fname)
        if self._worker.declared:
            self._worker.declared.load(fname)

    def _apply_changes(self) -> None:
        """Gives the servers changes of the optimizer since its declaration,
        for the next round. All workers are expected to make the same."""
        worker = self._worker
        declared = worker.declared
        if declared is None:
            return
        changed = declared.has_changed()
        if changed or not worker.has_checked:
            worker.has_checked = True
            self._warn_of_multipliers(declared)
        if not changed:
            return
        self._wait_all()  # Rounds in MXNet's engine have begun before.
        for name, value in declared.changes().items():
            self._worker.store.set_optimizer_param(name, value)
        self._worker.store.set_multipliers(*declared.changed_multipliers())
        declared.accept()

    def _warn_of_multipliers(self, declared: Declared) -> None:
        """Warns of factors that no key has so far. MXNet says nothing."""
        worker = self._worker
        keys = {*worker.arrays, *worker.of_rows, *worker.by_rows}
        for what, name in declared.unknown_multipliers(keys):
            meant = worker.store._meant(name)
            self._warn("%s %r" % (what, name), (
                "%s of %r has no effect: the parameters of a Trainer have "
                "factors of their own, Parameter.%s" % (what, name, what)
                if declared.has_parameters() else
                "%s of %r has no effect: no key has this name so far%s" %
                (what, name, "" if meant is None else
                 ". Did you mean %r?" % meant)))

    def _wait_all(self) -> None:
        """Waits until all operations given to the engine are done."""
        mx.nd.waitall()
        self._worker.engine.check()

    def _barrier(self) -> None:
        self._worker.engine.check()
        self._worker.store.barrier()

    def _send_command_to_servers(self, head: int, body: Any) -> None:
        """MXNet's commands by number. With 0, the controller, servers accept
        changes of the optimizer as JSON, {"learning_rate": 0.05}, from
        "round" on if given; never a pickled object. 1 and 3 request
        behaviour that this store has anyway. 5 is about the profiler."""
        self._worker.engine.check()
        if head in (1, 3):
            return  # Masters in float32; synchronous mode.
        if head == 5:
            self.server_profiler.command(body)
            return
        if head != 0:
            raise NotImplementedError("servers take no command %d: %s" % (
                head, _REFUSED.get(head, "MXNet has none of this number")))
        numbers = _changes(body)
        since = numbers.pop("round", 0)
        for name, value in numbers.items():
            self._worker.store.set_optimizer_param(name, float(value), int(since))

    @property
    def type(self) -> str:
        """The name given to create()."""
        return self._name

    @property
    def rank(self) -> int:
        """This worker's number, from 0."""
        return self._worker.store.rank

    @property
    def num_workers(self) -> int:
        """Workers of the job."""
        return self._worker.store.num_workers


# Reasons for the refusal of the other commands.
_REFUSED = {
    2: "they outlive jobs, and the job ends with its workers",
    4: "set_gradient_compression() declares it, before the first key",
}


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
    if not set(numbers) <= {*CHANGES, "round"} or \
            not set(numbers) & set(CHANGES):
        raise ValueError("command 0 changes %s, with \"round\" from that round "
                         "on; this one has %s" % (
                             ", ".join(CHANGES),
                             ", ".join(sorted(map(str, numbers))) or "nothing"))
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(
                value, int if name == "round" else (int, float)):
            raise ValueError("command 0: %s is %r, and no number" %
                             (name, value))
    return numbers


_create = mx.kvstore.create


@functools.wraps(_create)
@translated
def _create_known(name: str = "local") -> Any:
    if isinstance(name, str) and "dist" in name.lower() and \
            name.lower() not in KVStoreBase.kv_registry:
        raise ValueError("no store %r; the distributed ones are %s" %
                         (name, ", ".join(NAMES)))
    return _create(name)


def _register() -> None:
    """Registers the stores; MXNet finds them by class name."""
    KVStoreBase.register(PSKV)
    for name in NAMES:
        KVStoreBase.register(type(name, (PSKV,), {"_name": name}))
    mx.kvstore.create = mx.kvstore.base.create = _create_known
    _gluon.register(PSKV)
    _profiler.register()


_register()
