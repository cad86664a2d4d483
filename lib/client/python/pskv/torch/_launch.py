# SPDX-License-Identifier: Apache-2.0
"""The variables of torch's env:// under launchers that do not set them:
mpirun, srun, and DMLC_* by hand."""
from __future__ import annotations

import os
import socket
from typing import Dict, List, Optional, Tuple

from .._store import KVStore, create

# Variables that env:// reads.
_WANTED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# A process with one of these is a worker of a job of several.
_LAUNCHED = ("PSKV_NUM_WORKERS", "DMLC_NUM_WORKER", "OMPI_COMM_WORLD_RANK",
             "SLURM_PROCID", "PMI_RANK", "JOB_COMPLETION_INDEX")

# Rank 0 keeps its port until torch's store listens there.
_reserved: List[socket.socket] = []


def _free_port() -> int:
    """A port of this host that no other process is given by chance."""
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("", 0))
    _reserved.append(s)
    return int(s.getsockname()[1])


def _learn(kv: KVStore) -> Dict[str, str]:
    """The variables of this rank. Rank 0 chooses where torch's store is."""
    mine: Tuple[str, Optional[int]] = (
        os.uname().nodename, _free_port() if kv.rank == 0 else None)
    places = kv.allgather_object(mine)
    host, port = places[0]
    if all(node == host for node, _ in places):
        host = "127.0.0.1"
    return {"RANK": str(kv.rank), "WORLD_SIZE": str(kv.num_workers),
            "LOCAL_RANK": str(kv.local_rank),
            "LOCAL_WORLD_SIZE": str(kv.local_size),
            "MASTER_ADDR": host, "MASTER_PORT": str(port)}


def set_variables() -> None:
    """Sets those of torch's variables that are missing, if the environment
    names a worker in the words of another launcher. All ranks call it: they
    learn the rest from each other, in a job of its own."""
    if all(name in os.environ for name in _WANTED) or \
            not any(name in os.environ for name in _LAUNCHED):
        return
    kv = create("dist_sync", on_loss="fail", job="%s-start" %
                os.environ.get("PSKV_JOB", "torch")[:40])
    try:
        found = _learn(kv)
    finally:
        kv.close()
    for name, value in found.items():
        os.environ.setdefault(name, value)
