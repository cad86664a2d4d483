#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""all_reduce of torch.distributed on tensors of a GPU, measured as
gloo_allreduce.py measures: device_allreduce.py nccl|gloo RANK RANKS
tcp://HOST:PORT BYTES:ITERATIONS ...

With gloo, each process copies its tensor to the host's memory and the sum
back."""

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


def sum_up(data: torch.Tensor, host: torch.Tensor, by_nccl: bool) -> None:
    if by_nccl:
        dist.all_reduce(data)
    else:
        host.copy_(data)
        dist.all_reduce(host)
        data.copy_(host)
    torch.cuda.synchronize()


def run_size(size: int, iterations: int, by_nccl: bool) -> None:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = size // 4
    places = torch.arange(0, count, STRIDE, device="cuda")
    seconds, wrong = [], 0
    data = torch.zeros(count, device="cuda")
    host = torch.zeros(0 if by_nccl else count, pin_memory=True)
    small = "cuda" if by_nccl else "cpu"
    slowest = torch.zeros(1, dtype=torch.float64, device=small)
    for turn in range(WARM_UP + iterations):
        data.fill_(0)
        data[places] = ((places + rank + turn) % 7).float()
        torch.cuda.synchronize()
        dist.barrier()
        begin = time.monotonic()
        sum_up(data, host, by_nccl)
        slowest[0] = time.monotonic() - begin
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        want = sum(((places + r + turn) % 7).float() for r in range(ranks))
        wrong += int((data[places] != want).sum())
        if turn >= WARM_UP:
            seconds.append(slowest.item())
    all_wrong = torch.tensor([wrong], device=small)
    dist.all_reduce(all_wrong)
    if rank == 0:
        seconds.sort()
        print(json.dumps({
            "what": "nccl" if by_nccl else "gloo", "bytes": size,
            "workers": ranks, "iterations": iterations,
            "median_ms": seconds[iterations // 2] * 1e3,
            "min_ms": seconds[0] * 1e3, "max_ms": seconds[-1] * 1e3,
            "wrong": int(all_wrong)}), flush=True)


def main() -> None:
    backend, rank, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(backend, init_method=sys.argv[4], rank=rank,
                            world_size=ranks,
                            timeout=datetime.timedelta(seconds=180))
    for text in sys.argv[5:]:
        size, iterations = text.split(":")
        run_size(int(size), int(iterations), backend == "nccl")
    dist.barrier()
    dist.destroy_process_group()


main()
