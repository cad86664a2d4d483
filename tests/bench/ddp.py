#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel over gloo and over pskv on the shapes of ResNet-50.

    ddp.py [--build DIR] [--workers N] [--servers S] [--steps K] [--json FILE]
           [--device cpu|cuda] [--systems NAME,...]

A step is forward, backward and the sums of 161 gradients, 102 MB, in DDP's
buckets; their computation is as cheap as possible, so the step is mostly
communication. Both systems run the same code in as many processes, one after
the other and again, and the table has the medians of rank 0. 'pskv+hook' is
the backend with pskv.torch's communication hook. With cuda, the parameters are in
the memory of GPUs; 'nccl' needs one for each process."""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = ("gloo", "pskv", "pskv+hook")


def resnet50():
    """Sizes of the parameters of ResNet-50, in order."""
    shapes = [(64, 3, 7, 7), (64,), (64,)]
    width = 64
    for blocks, planes in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            shapes += [(planes, width, 1, 1), (planes,), (planes,),
                       (planes, planes, 3, 3), (planes,), (planes,),
                       (planes * 4, planes, 1, 1), (planes * 4,),
                       (planes * 4,)]
            if block == 0:
                shapes += [(planes * 4, width, 1, 1), (planes * 4,),
                           (planes * 4,)]
            width = planes * 4
    return shapes + [(1000, 2048), (1000,)]


def worker(system, steps, device):
    import torch
    import torch.distributed as dist
    from torch import nn

    if system != "gloo":
        import pskv.torch
    torch.set_num_threads(1)
    dist.init_process_group(system.split("+")[0])
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())

    class Cheap(torch.autograd.Function):
        """A loss of all parameters whose gradients are given arrays."""

        @staticmethod
        def forward(ctx, gradients, *parameters):
            ctx.gradients = gradients
            return parameters[0].reshape(-1)[0].clone()

        @staticmethod
        def backward(ctx, _):
            return (None, *ctx.gradients)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ParameterList(
                [nn.Parameter(torch.zeros(s, device=device))
                 for s in resnet50()])
            self.gradients = [torch.full(s, float(dist.get_rank()),
                                         device=device) for s in resnet50()]

        def forward(self):
            return Cheap.apply(self.gradients, *self.parts)

    model = Model()
    ddp = nn.parallel.DistributedDataParallel(model)
    if system.endswith("+hook"):
        ddp.register_comm_hook(pskv.torch.HookState(), pskv.torch.comm_hook)
    times = []
    for _ in range(steps + 3):
        dist.barrier()
        begin = time.perf_counter()
        ddp().backward()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    # Gradients are added to existing arrays: a step allocates nothing.
    want = (steps + 3) * (dist.get_world_size() - 1) / 2
    assert all((p.grad == want).all() for p in model.parts)
    if dist.get_rank() == 0:
        print("STEPS", json.dumps(times[3:]), flush=True)
    dist.destroy_process_group()


def measure(options, system):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
               PYTHONPATH=str(ROOT / "lib" / "client" / "python"),
               PSKV_LIBRARY=str(options.build / "lib" / "client" /
                                "libpsclient.so.0"), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [options.build / "daemons" / "pslaunch" / "pslaunch", "-n",
         str(options.workers), "-s", str(options.servers), "--private",
         "--env", f"PSKV_NUM_SERVERS={options.servers}", "--",
         options.python, __file__, "--worker", system, "--steps",
         str(options.steps), "--device", options.device], env=env,
        capture_output=True, text=True, timeout=600, check=False)
    for line in done.stdout.splitlines():
        if "STEPS" in line:
            return json.loads(line.split("STEPS", 1)[1])
    raise SystemExit(f"{system} failed: {done.stdout}{done.stderr}")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--build", type=Path,
                   default=os.environ.get("PSKV_BUILD_DIR", ROOT / "build"))
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--workers", type=int, default=8)
    p.add_argument("--servers", type=int, default=0)
    p.add_argument("--steps", type=int, default=10)
    p.add_argument("--repeat", type=int, default=2)
    p.add_argument("--systems", default=",".join(SYSTEMS))
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--json", type=Path)
    p.add_argument("--worker", help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.worker:
        worker(options.worker, options.steps, options.device)
        return
    options.build = Path(options.build).resolve()
    times = {s: [] for s in options.systems.split(",")}
    for _ in range(options.repeat):
        for system, found in times.items():
            found += measure(options, system)
    rows = {s: {"median_ms": statistics.median(t) * 1e3,
                "min_ms": min(t) * 1e3, "max_ms": max(t) * 1e3,
                "steps": len(t)} for s, t in times.items()}
    print(f"DDP, ResNet-50 shapes, {options.workers} local processes, "
          f"{options.servers} servers")
    for system, row in rows.items():
        ratio = row["median_ms"] / rows["gloo"]["median_ms"] \
            if "gloo" in rows else float("nan")
        print(f"{system:10} {row['median_ms']:8.1f} ms "
              f"({row['min_ms']:.1f} .. {row['max_ms']:.1f})  "
              f"{ratio:.2f} of gloo")
    if options.json:
        options.json.write_text(json.dumps(
            {"workers": options.workers, "servers": options.servers,
             "ddp": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
