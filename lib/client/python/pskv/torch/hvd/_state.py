# SPDX-License-Identifier: Apache-2.0
"""Broadcasts of parameters, optimizers and objects."""
from __future__ import annotations

import io
from typing import Any, List, Optional

import torch
from torch import Tensor

from ..._horovod.job import ProcessSet, global_process_set, rank
from ._move import allgather, broadcast_, broadcast_async_


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Broadcasts the tensors of rank root_rank in place; `params` is a
    state_dict(), named_parameters() or parameters()."""
    if isinstance(params, Tensor) or not hasattr(params, "__iter__"):
        raise ValueError("invalid params of type: %s" % type(params))
    items = params.items() if isinstance(params, dict) else params
    handles = []
    for item in items:
        name, p = item if isinstance(item, tuple) else (None, item)
        if isinstance(p, Tensor):
            handles.append(broadcast_async_(p.data, root_rank, name))
    for handle in handles:
        handle.wait()


def _load(data: Tensor) -> Any:
    buffer = io.BytesIO(data.numpy().tobytes())
    try:
        return torch.load(buffer, weights_only=False)
    except TypeError:  # torch 1.12 and before.
        return torch.load(buffer)


def _saved(obj: Any) -> Tensor:
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    # A copy in memory of torch's own.
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8).clone()


def broadcast_object(obj: Any = None, root_rank: int = 0,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """The object of rank root_rank, serialised by torch.save()."""
    name = name or "object"
    mine = rank() == root_rank
    data = _saved(obj) if mine else torch.empty(0, dtype=torch.uint8)
    size = torch.tensor([data.numel()])
    broadcast_(size, root_rank, name + ".size", process_set)
    if not mine:
        data = torch.empty(int(size), dtype=torch.uint8)
    broadcast_(data, root_rank, name + ".data", process_set)
    return obj if mine else _load(data)


def allgather_object(obj: Any, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set
                     ) -> List[Any]:
    """The objects of all ranks."""
    name = name or "object"
    data = _saved(obj)
    sizes = allgather(torch.tensor([data.numel()]), name + ".size",
                      process_set)
    every = allgather(data, name + ".data", process_set)
    return [_load(part) for part in every.split(sizes.tolist())]


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer,
                              root_rank: int,
                              model: Optional[torch.nn.Module] = None
                              ) -> None:
    """Broadcasts state and hyper-parameters of rank root_rank's optimizer.
    `model` is Horovod's, which makes missing states with it; here states
    that the root lacks are absent on all ranks."""
    del model
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    state = broadcast_object(optimizer.state_dict(), root_rank,
                             "optimizer state")
    if rank() != root_rank:
        optimizer.load_state_dict(state)
