# SPDX-License-Identifier: Apache-2.0
"""What a worker declares and reports about the training of its job."""
from __future__ import annotations

import copy
import ctypes
import os
import warnings
from ctypes import byref
from typing import Any, ContextManager, Dict, List, Mapping, Optional, Tuple

from . import _lib
from ._client import interruptible
from ._errors import error
from ._values import Key, Values

_PROFILE_MODES = {"stop": 0, "run": 1, "pause": 2}


class _Span:
    """Context of KVStore.span()."""

    __slots__ = ("_store", "_name", "_span")

    def __init__(self, store: "Training", name: bytes) -> None:
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


def _numbers(params: Mapping[str, Any]) -> Tuple[Any, int]:
    """An array of struct psc_param."""
    numbers = {k: _lib.number(v, k) for k, v in params.items() if v is not None}
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


class Training(Values):
    """The calls of a store about the whole job. Its optimizer has factors for
    single keys, so these calls know the keys."""

    def __init__(self, *options: Any) -> None:
        self._multipliers = _Multipliers({}, False)
        super().__init__(*options)

    # ---------------------------------------------------------------- optimizer

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

    # -------------------------------------------------------------- compression

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

    # ------------------------------------------------------------------ reports

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
            numbers[key] = _lib.number(number, key)
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

    # -------------------------------------------------------------------- files

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
        client = self._open()
        text = ctypes.create_string_buffer(_lib.TEXT_MAX)

        def run() -> int:
            rc: int = function(client, os.fsencode(fname))
            self._lib.psc_last_detail(client, text, len(text))
            return rc

        rc = interruptible(run)
        if rc != 0:
            raise error(rc, text.value.decode(errors="replace") or
                        self._text(rc))
