# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for MXNet: import pskv.mxnet.horovod as hvd.

    _arrays.py    arrays as memory that is sent, and back
    _start.py     collectives in MXNet's engine
    _move.py      the functions
    _state.py     parameters and objects
    _trainer.py   DistributedTrainer, DistributedOptimizer, Compression

A file imports those above it, and ..._horovod, which torch's has, too."""
from ..._horovod.job import (ProcessSet, add_process_set, ccl_built,
                             cross_rank, cross_size, cuda_built, ddl_built,
                             global_process_set, gloo_built, gloo_enabled,
                             is_homogeneous, is_initialized, local_rank,
                             local_size, mpi_built, mpi_enabled,
                             mpi_threads_supported, nccl_built, rank,
                             rocm_built, size, start_timeline, stop_timeline)
from ..._horovod.words import (Adasum, Average, Max, Min, Product, Sum,
                               split_list)
from ._move import (allgather, allreduce, allreduce_, alltoall, broadcast,
                    broadcast_, grouped_allgather, grouped_allreduce,
                    grouped_allreduce_, grouped_reducescatter, reducescatter)
from ._start import init, remove_process_set, shutdown
from ._state import (allgather_object, broadcast_object, broadcast_parameters)
from ._trainer import Compression, DistributedOptimizer, DistributedTrainer

__all__ = [
    "Adasum", "Average", "Compression", "DistributedOptimizer",
    "DistributedTrainer", "Max", "Min", "ProcessSet", "Product", "Sum",
    "add_process_set", "allgather", "allgather_object", "allreduce",
    "allreduce_", "alltoall", "broadcast", "broadcast_", "broadcast_object",
    "broadcast_parameters", "ccl_built", "cross_rank", "cross_size",
    "cuda_built", "ddl_built", "global_process_set", "gloo_built",
    "gloo_enabled", "grouped_allgather", "grouped_allreduce",
    "grouped_allreduce_", "grouped_reducescatter", "init", "is_homogeneous",
    "is_initialized", "local_rank", "local_size", "mpi_built", "mpi_enabled",
    "mpi_threads_supported", "nccl_built", "rank", "reducescatter",
    "remove_process_set", "rocm_built", "shutdown", "size", "split_list",
    "start_timeline", "stop_timeline"]
