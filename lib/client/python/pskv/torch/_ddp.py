# SPDX-License-Identifier: Apache-2.0
"""Communication hook for DistributedDataParallel under any backend: the
default group may be NCCL's or gloo's while gradients use pskv."""
from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist

from .._collective import options
from . import _tensor
from ._backend import Engine, ProcessGroup, create_engine

_tag = [0]


class HookState:
    """State of comm_hook(): the group's connection. `group` is a process group
    of torch; None: the default one. A group of another backend gets a job
    of its own."""

    def __init__(self, group: Optional[Any] = None) -> None:
        pg = group if group is not None else dist.group.WORLD
        if isinstance(pg, ProcessGroup):
            self.engine: Engine = pg.engine
            return
        store = dist.distributed_c10d._get_default_store()
        ranks = sorted(dist.distributed_c10d._pg_group_ranks[pg]) \
            if hasattr(dist.distributed_c10d, "_pg_group_ranks") else \
            dist.get_process_group_ranks(pg)
        _tag[0] += 1
        prefix = "pskv-hook-%d-%s" % (_tag[0], "-".join(map(str, ranks)))
        self.engine = create_engine(dist.PrefixStore(prefix, store),
                                    dist.get_rank(pg), dist.get_world_size(pg),
                                    None)


def comm_hook(state: HookState,
              bucket: "dist.GradBucket") -> "torch.futures.Future[Any]":
    """The mean of a bucket over all ranks. DDP reads it from the agent's
    memory, which saves one copy against the backend."""
    e = state.engine
    buffer = bucket.buffer()
    spans = e.acquire([buffer])
    src = _tensor.summable(buffer, "AVG")
    number = _tensor.number_of(src.dtype)
    assert number is not None
    out = None if src.data_ptr() != buffer.data_ptr() else src
    if out is None:
        out = torch.empty_like(src)

    def finish() -> Any:
        return buffer if out is src else out.to(buffer.dtype)
    return _tensor.cxx_future(_tensor.track(spans, e.run(e.starter.allreduce(
        None, number, src.shape, src.data_ptr(), out.data_ptr(),
        _tensor.placed(options("mean", priority=-bucket.index()),
                       _tensor.place_of(src))), (src, out), finish)))


# torch reads these annotations and does not accept strings.
comm_hook.__annotations__["bucket"] = dist.GradBucket
comm_hook.__annotations__["return"] = torch.futures.Future[torch.Tensor]
