# SPDX-License-Identifier: Apache-2.0
"""pskv for PyTorch. Importing registers the backend 'pskv' with
torch.distributed; no connection is made before a group is created, or
before init().

    import pskv.torch as hvd     # Horovod's interface"""
from ._backend import ProcessGroup, register
from ._ddp import HookState, comm_hook
from ._hvd import (Average, Compression, Max, Min, ProcessSet, Product, Sum,
                   add_process_set, allgather, allgather_async,
                   allgather_object, allreduce, allreduce_, allreduce_async,
                   allreduce_async_, alltoall, alltoall_async, barrier,
                   broadcast, broadcast_, broadcast_async, broadcast_async_,
                   broadcast_object, broadcast_optimizer_state,
                   broadcast_parameters, cross_rank, cross_size,
                   global_process_set, grouped_allgather, grouped_allreduce,
                   grouped_allreduce_, grouped_allreduce_async,
                   grouped_allreduce_async_, grouped_reducescatter, init,
                   is_homogeneous, is_initialized, join, local_rank,
                   local_size, poll, rank, reducescatter, reducescatter_async,
                   remove_process_set, shutdown, size, synchronize)
from ._optimizer import DistributedOptimizer

register()

__all__ = [
    "Average", "Compression", "DistributedOptimizer", "HookState", "Max",
    "Min", "ProcessGroup", "ProcessSet", "Product", "Sum", "add_process_set",
    "allgather", "allgather_async", "allgather_object", "allreduce",
    "allreduce_", "allreduce_async", "allreduce_async_", "alltoall",
    "alltoall_async", "barrier", "broadcast", "broadcast_", "broadcast_async",
    "broadcast_async_", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "comm_hook", "cross_rank", "cross_size",
    "global_process_set", "grouped_allgather", "grouped_allreduce",
    "grouped_allreduce_", "grouped_allreduce_async",
    "grouped_allreduce_async_", "grouped_reducescatter", "init",
    "is_homogeneous", "is_initialized", "join", "local_rank", "local_size", "poll",
    "rank", "reducescatter", "reducescatter_async", "remove_process_set",
    "shutdown", "size", "synchronize"]
