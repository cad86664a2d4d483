# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of parameters and objects."""
from __future__ import annotations

import pickle
from typing import Any, List, Optional

import mxnet as mx
import numpy as np

from ..._horovod.job import rank, size
from .._errors import translated
from ._move import allgather, broadcast_

try:
    import cloudpickle as pickler
except ImportError:
    pickler = pickle


def _broadcast_parameter(parameter: Any, root_rank: int, name: str) -> None:
    """Of a Gluon parameter, which has an array for each device."""
    first, *others = parameter.list_data()
    broadcast_(first, root_rank, name)
    with mx.autograd.pause():
        for other in others:
            first.copyto(other)


def _broadcast_later(parameter: Any, root_rank: int, name: str) -> None:
    """Broadcasts a parameter when it has got its shape and first value."""
    initialise = parameter._init_impl

    def initialise_and_broadcast(*args: Any, **more: Any) -> None:
        initialise(*args, **more)
        _broadcast_parameter(parameter, root_rank, name)
    parameter._init_impl = initialise_and_broadcast


@translated
def broadcast_parameters(params: Any, root_rank: int = 0,
                         prefix: Optional[str] = None) -> None:
    """Overwrites parameters by those of rank root_rank: a dict of arrays, as
    of Module.get_params(), or of Gluon's parameters, as of
    Block.collect_params(). Parameters without a shape follow when they get
    one."""
    assert prefix is None or isinstance(prefix, str)
    if not isinstance(params, (dict, mx.gluon.ParameterDict)):
        raise ValueError("invalid params of type: %s" % type(params))
    if size() == 1:
        return
    for key, p in sorted(params.items()):
        name = (prefix or "") + str(key)
        if not isinstance(p, mx.gluon.Parameter):
            broadcast_(p, root_rank, name)
            continue
        try:
            p.list_data()
        except mx.gluon.parameter.DeferredInitializationError:
            _broadcast_later(p, root_rank, name)
        else:
            _broadcast_parameter(p, root_rank, name)


def _bytes_of(obj: Any) -> Any:
    return mx.nd.array(np.frombuffer(pickler.dumps(obj), np.uint8),
                       dtype="uint8")


@translated
def broadcast_object(obj: Any, root_rank: int = 0,
                     name: Optional[str] = None) -> Any:
    """The object of rank root_rank, by cloudpickle if it is installed, or by
    pickle: for ranks that trust one another."""
    name = name or "object"
    mine = rank() == root_rank
    data = _bytes_of(obj) if mine else None
    length = mx.nd.array([data.size if data is not None else 0],
                         dtype="int64")
    broadcast_(length, root_rank, name + ".sz")
    count = int(length.asnumpy()[0])
    if data is None:
        data = mx.nd.zeros((count,), dtype="uint8")
    broadcast_(data, root_rank, name + ".t")
    received = data.asnumpy().tobytes()
    return obj if mine else pickler.loads(received)


@translated
def allgather_object(obj: Any, name: Optional[str] = None) -> List[Any]:
    """The objects of all ranks."""
    name = name or "object"
    data = _bytes_of(obj)
    sizes = allgather(mx.nd.array([data.size], dtype="int64"),
                      name + ".sz").asnumpy()
    every = allgather(data, name + ".t").asnumpy()
    ends = np.cumsum(sizes)
    return [pickler.loads(every[end - count:end].tobytes())
            for count, end in zip(sizes, ends)]
