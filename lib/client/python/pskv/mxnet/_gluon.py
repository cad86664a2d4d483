# SPDX-License-Identifier: Apache-2.0
"""Checks of gluon.Trainer and gluon.Parameter that pskv's servers make
needless, and those that they need. MXNet's servers keep the first scale of
gradients and the first values; those of pskv take new ones."""
from __future__ import annotations

import functools
import weakref
from typing import Any, Callable

from mxnet import gluon

from ._errors import translated

# By parameter: the Trainer that has stepped it last, as a weak reference.
_stepped: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()


def _renew(trainer: Any, parameter: Any) -> None:
    """The servers get the value of a parameter before the next step."""
    if all(p is not parameter for p in trainer._params_to_init):
        trainer._params_to_init.append(parameter)


@translated
def _check_owner(trainer: Any) -> None:
    """Raises if the keys of a Trainer are another one's by now."""
    if trainer._kvstore._trainer() is not trainer:
        raise ValueError(
            "another Trainer has taken over this store, where both number "
            "their parameters from 0; create a store for each Trainer, as by "
            "kvstore='dist_sync'")


def _begin_step(trainer: Any, on_servers: bool) -> None:
    """Another Trainer may have stepped the same parameters in between."""
    for p in trainer._params:
        if p.grad_req == "null":
            continue
        last = _stepped.get(p)
        if on_servers and last is not None and last() is not trainer:
            _renew(trainer, p)
        _stepped[p] = weakref.ref(trainer)


def _replace(owner: Any, name: str, by: Callable[..., None]) -> None:
    """Replaces a method by a function that gets it first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(self: Any, *args: Any) -> None:
        by(original, self, *args)

    setattr(owner, name, call)


def register(kind: type) -> None:
    """Prepares Gluon for stores of a class."""

    def on_servers(trainer: Any) -> bool:
        return bool(trainer and trainer._kv_initialized and
                    trainer._update_on_kvstore and
                    isinstance(trainer._kvstore, kind))

    def rescale(original: Any, trainer: Any, scale: float) -> None:
        # The first call of step() and update().
        has_servers = on_servers(trainer)
        if has_servers:
            _check_owner(trainer)
        _begin_step(trainer, has_servers)
        if has_servers:  # MXNet would refuse another scale.
            trainer._optimizer.rescale_grad = scale
        else:
            original(trainer, scale)

    def init_kvstore(original: Any, trainer: Any) -> None:
        original(trainer)
        if on_servers(trainer):
            trainer._kvstore._trainer = weakref.ref(trainer)

    def update(original: Any, trainer: Any, ignore_stale_grad: bool) -> None:
        if ignore_stale_grad and on_servers(trainer):
            trainer._kvstore._warn(
                "ignore_stale_grad", "ignore_stale_grad has no effect with "
                "update_on_kvstore: servers step every parameter in each step, "
                "because all workers take part in it")
        original(trainer, ignore_stale_grad)

    def set_data(original: Any, parameter: Any, data: Any) -> None:
        # MXNet would refuse it when servers have the parameter.
        if on_servers(parameter._trainer) and parameter._data is not None \
                and parameter._stype == "default":
            _renew(parameter._trainer, parameter)
        original(parameter, data)

    _replace(gluon.Trainer, "_check_and_rescale_grad", rescale)
    _replace(gluon.Trainer, "_init_kvstore", init_kvstore)
    _replace(gluon.Trainer, "_update", update)
    _replace(gluon.Parameter, "set_data", set_data)
