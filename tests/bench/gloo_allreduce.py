#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""all_reduce of torch.distributed over gloo, measured as mpi_allreduce.c and
bench_pushpull.c measure: gloo_allreduce.py RANK RANKS tcp://HOST:PORT
BYTES:ITERATIONS ..."""

import datetime
import json
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
# pylint: disable=wrong-import-position
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

WARM_UP = 3
STRIDE = 997


def run_size(size: int, iterations: int, rank: int, ranks: int) -> None:
    count = size // 4
    places = torch.arange(0, count, STRIDE)
    seconds, wrong = [], 0
    data = torch.zeros(count)
    slowest = torch.zeros(1, dtype=torch.float64)
    for turn in range(WARM_UP + iterations):
        data.fill_(0)
        data[places] = ((places + rank + turn) % 7).float()
        dist.barrier()
        begin = time.monotonic()
        dist.all_reduce(data)
        slowest[0] = time.monotonic() - begin
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        want = sum(((places + r + turn) % 7).float() for r in range(ranks))
        wrong += int((data[places] != want).sum())
        if turn >= WARM_UP:
            seconds.append(slowest.item())
    all_wrong = torch.tensor([wrong])
    dist.all_reduce(all_wrong)
    if rank == 0:
        seconds.sort()
        print(json.dumps({
            "what": "gloo", "bytes": size, "workers": ranks,
            "iterations": iterations,
            "median_ms": seconds[iterations // 2] * 1e3,
            "min_ms": seconds[0] * 1e3, "max_ms": seconds[-1] * 1e3,
            "wrong": int(all_wrong)}), flush=True)


def main() -> None:
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=sys.argv[3], rank=rank,
                            world_size=ranks,
                            timeout=datetime.timedelta(seconds=180))
    for text in sys.argv[4:]:
        size, iterations = text.split(":")
        run_size(int(size), int(iterations), rank, ranks)
    dist.barrier()


main()
