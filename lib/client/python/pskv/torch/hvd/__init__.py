# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for torch: import pskv.torch as hvd.

    _compression.py types on the wire
    _start.py       collectives start here, and give handles
    _adasum.py, _reduce.py, _move.py
                    the functions, with gradients
    _state.py       parameters, optimizers, objects
    _optimizer.py, _sync_batch_norm.py, elastic.py

A file imports those above it, and ..._horovod, which MXNet's has, too."""
from ..._horovod.job import (ProcessSet, add_process_set, barrier, ccl_built,
                             cross_rank, cross_size, cuda_built, ddl_built,
                             global_process_set, gloo_built, gloo_enabled,
                             is_homogeneous, is_initialized, local_rank,
                             local_size, mpi_built, mpi_enabled,
                             mpi_threads_supported, nccl_built, rank,
                             remove_process_set, rocm_built, shutdown, size,
                             start_timeline, stop_timeline)
from ..._horovod.words import (Adasum, Average, HorovodInternalError, Max, Min,
                               Product, Sum)
from . import elastic
from ._compression import Compression
from ._move import (allgather, allgather_async, alltoall, alltoall_async,
                    broadcast, broadcast_, broadcast_async, broadcast_async_,
                    grouped_allgather, grouped_allgather_async,
                    sparse_allreduce_async)
from ._optimizer import DistributedOptimizer
from ._reduce import (allreduce, allreduce_, allreduce_async, allreduce_async_,
                      grouped_allreduce, grouped_allreduce_,
                      grouped_allreduce_async, grouped_allreduce_async_,
                      grouped_reducescatter, grouped_reducescatter_async,
                      join, reducescatter, reducescatter_async)
from ._start import init, poll, synchronize
from ._state import (allgather_object, broadcast_object,
                     broadcast_optimizer_state, broadcast_parameters)
from ._sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer",
    "HorovodInternalError", "Max", "Min", "ProcessSet", "Product", "Sum",
    "SyncBatchNorm", "add_process_set", "allgather", "allgather_async",
    "allgather_object", "allreduce", "allreduce_", "allreduce_async",
    "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast",
    "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object",
    "broadcast_optimizer_state", "broadcast_parameters", "ccl_built",
    "cross_rank", "cross_size", "cuda_built", "ddl_built",
    "elastic", "global_process_set", "gloo_built", "gloo_enabled", "grouped_allgather",
    "grouped_allgather_async", "grouped_allreduce", "grouped_allreduce_",
    "grouped_allreduce_async", "grouped_allreduce_async_",
    "grouped_reducescatter", "grouped_reducescatter_async", "init",
    "is_homogeneous", "is_initialized", "join", "local_rank", "local_size",
    "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll",
    "rank", "reducescatter", "reducescatter_async", "remove_process_set",
    "rocm_built", "shutdown", "size", "sparse_allreduce_async",
    "start_timeline", "stop_timeline", "synchronize"]
