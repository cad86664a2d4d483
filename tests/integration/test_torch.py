# SPDX-License-Identifier: Apache-2.0
"""pskv.torch: the backend of torch.distributed, DDP scripts as they are, and
Horovod's words. With PSKV_TORCH_PYTHON another interpreter than the system's."""
import os
import pathlib
import subprocess
import sys

import pytest

import trio as harness

from test_python_store import DATA, ROOT, Job, World

PYTHON = os.environ.get("PSKV_TORCH_PYTHON", sys.executable)
EXAMPLES = ROOT / "docs" / "examples" / "torch"

pytestmark = pytest.mark.skipif(
    subprocess.run([PYTHON, "-c", "import torch.distributed"],
                   capture_output=True, check=False).returncode != 0,
    reason="there is no torch")


@pytest.fixture
def world(trio):
    w = World(trio)
    yield w
    w.close()


class TorchJob(Job):
    """What torchrun sets, in the environment."""

    port = 0

    def launch(self, command):
        for rank in range(self.workers):
            self.start(rank, [PYTHON, *map(str, command)], RANK=rank,
                       WORLD_SIZE=self.workers, MASTER_ADDR="127.0.0.1",
                       MASTER_PORT=self.port, LOCAL_RANK=rank,
                       PSKV_NUM_SERVERS=len(self.trio.server_names))
        return self.wait_all()


def torch_job(world, servers, agents, workers):
    world.start(servers, agents)
    job = TorchJob(world.trio, "torch", workers)
    job.port = harness.free_port()
    world.jobs.append(job)
    return job


@pytest.mark.parametrize("servers, agents", [(0, 1), (2, 2)])
def test_every_collective(world, servers, agents):
    """Against what it must be, for types that the library adds up and types
    that it does not."""
    torch_job(world, servers, agents, 3).launch(["-c", COLLECTIVES])


COLLECTIVES = """
import torch, torch.distributed as dist
import pskv.torch

dist.init_process_group('pskv')
r, n = dist.get_rank(), dist.get_world_size()
R = dist.ReduceOp


def same(a, b):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    assert a.shape == b.shape and torch.equal(a.double(), b.double()), (a, b)


for dt in (torch.float32, torch.float64, torch.int32, torch.int64,
           torch.float16, torch.bfloat16, torch.uint8, torch.int8):
    t = torch.full((3, 2), r + 1).to(dt)
    dist.all_reduce(t)
    same(t, torch.full((3, 2), 6))
    assert t.dtype == dt
    for op, want in ((R.MAX, 3), (R.MIN, 1), (R.PRODUCT, 6)):
        t = torch.full((3, 2), r + 1).to(dt)
        dist.all_reduce(t, op)
        same(t, torch.full((3, 2), want))
    for count in (1, 5, 0):
        t = torch.full((count,), r).to(dt)
        dist.broadcast(t, n - 1)
        same(t, torch.full((count,), n - 1))
        outs = [torch.empty(count, dtype=dt) for _ in range(n)]
        dist.all_gather(outs, torch.full((count,), r).to(dt))
        same(torch.stack(outs), torch.arange(n)[:, None].expand(n, count))
t = torch.tensor([1 << r])
dist.all_reduce(t, R.BOR)
same(t, [7])
t = torch.arange(6.).view(2, 3).t()  # Not one element after the other.
want = 3 * t.clone()
dist.all_reduce(t)
same(t, want)
t = torch.empty(2, 4)[:, ::2]
t[:] = r
dist.broadcast(t, 1)
same(t, torch.ones(2, 2))
t = torch.full((4,), float(r))
dist.reduce(t, 1)
same(t, torch.full((4,), 3 if r == 1 else r))
outs = [torch.empty(2) for _ in range(n)] if r == 0 else None
dist.gather(torch.full((2,), float(r)), outs, 0)
if r == 0:
    same(torch.stack(outs), [[0, 0], [1, 1], [2, 2]])
out = torch.empty(3, dtype=torch.int16)
dist.scatter(out, [torch.full((3,), i, dtype=torch.int16) for i in range(n)]
             if r == 1 else None, 1)
same(out, [r] * 3)
for op, want in ((R.SUM, 3 * r + 3), (R.MAX, r + 2)):
    out = torch.empty(2)
    dist.reduce_scatter(out, [torch.full((2,), float(i + r))
                              for i in range(n)], op)
    same(out, [want] * 2)
outs = [torch.empty(r + 1, dtype=torch.int64) for i in range(n)]
dist.all_to_all(outs, [torch.full((i + 1,), 10 * r + i) for i in range(n)])
for i, out in enumerate(outs):
    same(out, [10 * i + r] * (r + 1))
out = torch.empty((n, 2), dtype=torch.int64)
dist.all_to_all_single(out, torch.arange(n * 2).view(n, 2) + 100 * r)
same(out[:, 0], torch.arange(n) * 100 + 2 * r)
out = torch.empty(n * 3)
dist._all_gather_base(out, torch.full((3,), float(r))) \\
    if hasattr(dist, '_all_gather_base') else \\
    dist.all_gather_into_tensor(out, torch.full((3,), float(r)))
same(out.view(n, 3)[:, 0], [0, 1, 2])
objects = [None] * n
dist.all_gather_object(objects, {'rank': r})
assert objects == [{'rank': i} for i in range(n)], objects
objects = [{'x': 'y' * 100}] if r == 0 else [None]
dist.broadcast_object_list(objects, 0)
assert objects == [{'x': 'y' * 100}]
dist.barrier()
works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(100)]
for w in works:
    w.wait()
    assert w.is_completed()
group = dist.new_group([0, n - 1])
if r != 1:
    t = torch.ones(3)
    dist.all_reduce(t, group=group)
    same(t, [2] * 3)
for call in (lambda: dist.all_reduce(torch.ones(3 + (r == 1))),
             lambda: dist.all_reduce(torch.ones(
                 3, dtype=torch.float64 if r == 1 else torch.float32)),
             lambda: dist.all_reduce(torch.ones(3)) if r == 1 else
             dist.broadcast(torch.ones(3), 0)):
    try:
        call()
        raise SystemExit('no error')
    except RuntimeError as e:
        assert 'rank 1: allreduce float' in str(e), e
        assert 'rank 0, 2: ' in str(e), e
t = torch.ones(2)
dist.all_reduce(t)
same(t, [3, 3])
dist.destroy_process_group()
"""


def test_a_lost_rank_is_an_error(world):
    job = torch_job(world, 1, 2, 3)
    for rank in range(3):
        job.start(rank, [PYTHON, "-c", """
import os, torch, torch.distributed as dist
import pskv.torch
dist.init_process_group('pskv')
t = torch.ones(4)
dist.all_reduce(t)
if dist.get_rank() == 1:
    os.kill(os.getpid(), 9)
try:
    dist.all_reduce(t)
except RuntimeError as e:
    assert 'rank 1' in str(e), e
    print('told', flush=True)
    os._exit(0)  # The store of torch waits for the dead.
"""], RANK=rank, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=job.port,
                  PSKV_NUM_SERVERS=1)
    assert job.wait(1)[0] == -9
    for rank in (0, 2):
        code, out, err = job.wait(rank)
        assert (code, out) == (0, "told\n"), err


@pytest.mark.skipif(not pathlib.Path(DATA).exists(), reason="no data set")
def test_a_ddp_script_as_it_is(world):
    """The same script with gloo and with pskv: the same accuracy, and the same
    weights on all ranks."""
    outs = {}
    for backend, more in (("gloo", []), ("pskv", ["-m", "pskv.torch"])):
        job = TorchJob(world.trio or world.start(2, 2).trio, backend, 4)
        job.port = harness.free_port()
        world.jobs.append(job)
        out = job.launch([*more, EXAMPLES / "ddp.py", "--backend", backend])
        assert len(set(out)) == 1, out
        outs[backend] = float(out[0].split()[1])
    assert outs["gloo"] > 0.7 and abs(outs["gloo"] - outs["pskv"]) < 0.02, outs
