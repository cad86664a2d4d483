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

    def reserve_port(self):
        self.reserved = harness.reserve_port()
        self.port = self.reserved.getsockname()[1]

    def wait(self, rank):
        """Training takes longer than an operation, on a busy machine."""
        out, err = self.processes[rank].communicate(
            timeout=6 * harness.PATIENCE)
        return self.processes[rank].returncode, out, err

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
    job.reserve_port()
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


@pytest.mark.parametrize("servers, agents", [(0, 1), (2, 3)])
def test_horovods_words(world, servers, agents):
    """Every function, and DistributedOptimizer against one process with the
    batches of all."""
    outs = torch_job(world, servers, agents, 3).launch(["-c", WORDS])
    assert [o.split()[0] for o in outs] == (
        ["0", "1", "2"] if agents == 1 else ["0"] * 3)


WORDS = """
import torch
import pskv.torch as hvd

hvd.init()
r, n = hvd.rank(), hvd.size()


def same(a, b):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    assert a.shape == b.shape and \\
        torch.allclose(a.double(), b.double(), rtol=1e-5), (a, b)


def full(value, *shape):
    return torch.full(shape, float(value))


assert hvd.cross_size() * hvd.local_size() == n and hvd.is_homogeneous()
assert hvd.cross_rank() + hvd.local_rank() == r
t = full(r, 3)
same(hvd.allreduce(t), [1] * 3)
same(t, [r] * 3)
same(hvd.allreduce(t, op=hvd.Sum), [3] * 3)
same(hvd.allreduce(t, average=False), [3] * 3)
same(hvd.allreduce(t, op=hvd.Max), [2] * 3)
same(hvd.allreduce(t + 1, op=hvd.Min), [1] * 3)
same(hvd.allreduce(t + 1, op=hvd.Product), [6] * 3)
same(hvd.allreduce(t, average=False, prescale_factor=2, postscale_factor=3),
     [18] * 3)
same(hvd.allreduce(t, compression=hvd.Compression.fp16), [1] * 3)
h = hvd.allreduce_async_(t, op=hvd.Sum, name='x')
assert hvd.synchronize(h) is t and hvd.poll(h)
same(t, [3] * 3)
a, b = hvd.grouped_allreduce([full(r, 2), full(r, 3, 2)], op=hvd.Sum)
same(a, [3] * 2)
same(b, full(3, 3, 2))
a, b = hvd.grouped_allreduce([full(r, 2), full(r, 2).double()])
same(a, [1, 1])
same(b, [1, 1])
t = torch.full((2,), r, dtype=torch.float16)
same(hvd.broadcast(t, 1), [1, 1])
same(t, [r, r])
assert hvd.broadcast_(t, 2) is t
same(t, [2, 2])
t = torch.full((3,), r, dtype=torch.uint8)
hvd.broadcast_(t, 1)
same(t, [1] * 3)
got = hvd.allgather(torch.full((r + 1, 3), r, dtype=torch.int16))
same(got, torch.cat([torch.full((i + 1, 3), i) for i in range(n)]))
x, came = hvd.alltoall(torch.arange(n) + 10 * r, splits=[1] * n)
same(x, torch.arange(n) * 10 + r)
same(came, [1] * n)
x, came = hvd.alltoall(full(r, r), splits=[r, 0, 0])
same(x, [1, 2, 2] if r == 0 else full(0, 0))
same(hvd.reducescatter(full(r, n + 1, 2), op=hvd.Sum),
     full(3, 2 if r == 0 else 1, 2))
s = hvd.add_process_set([0, 2])
assert s.included() == (r != 1) and s.size() == 2
if r != 1:
    same(hvd.allreduce(full(r, 2), process_set=s), [1, 1])
    same(hvd.broadcast(full(r, 2), 2, process_set=s), [2, 2])
    assert s.rank() == r // 2
assert hvd.remove_process_set(s) and not hvd.remove_process_set(s)
assert hvd.broadcast_object({'a': r}, 1) == {'a': 1}
assert hvd.allgather_object(r) == [0, 1, 2]

# Gradients of collectives.
w = full(1, 3).requires_grad_()
hvd.allreduce(w * (r + 1), op=hvd.Sum).sum().backward()
same(w.grad, [3 * (r + 1)] * 3)
w = full(1, 2, 3).requires_grad_()
(hvd.allgather(w) * torch.arange(6.)[:, None]).sum().backward()
same(w.grad, 3 * torch.arange(6.)[2 * r:2 * r + 2, None].expand(2, 3))
w = full(r, 3).requires_grad_()
(hvd.broadcast(w, 1) * (r + 1)).sum().backward()
same(w.grad, [6 if r == 1 else 0] * 3)
w = full(1, n).requires_grad_()
(hvd.alltoall(w) * (r + 1)).sum().backward()
same(w.grad, [1, 2, 3])


def net():
    return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(),
                               torch.nn.Linear(4, 2))


for passes, compression, factor in ((1, hvd.Compression.none, 1),
                                    (2, hvd.Compression.none, 4),
                                    (1, hvd.Compression.fp16, 1)):
    torch.manual_seed(r)
    model = net()
    adam = torch.optim.Adam(model.parameters(), lr=0.01 * (r + 1))
    model(torch.ones(1, 5)).sum().backward()
    adam.step()
    adam.zero_grad()
    hvd.broadcast_optimizer_state(adam, 0)
    assert adam.param_groups[0]['lr'] == 0.01
    moments = [v['exp_avg'] for v in adam.state_dict()['state'].values()]
    for m in hvd.allgather_object(moments):
        assert all(torch.equal(a, b) for a, b in zip(m, moments))
    hvd.broadcast_parameters(model.state_dict(), 0)
    one = net()
    one.load_state_dict(model.state_dict())
    alone = torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9)
    opt = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(), compression=compression,
        backward_passes_per_step=passes, gradient_predivide_factor=factor)
    places = [p.grad.data_ptr() for p in model.parameters()]
    size = sum(p.numel() for p in model.parameters()) * 4
    stats = hvd._hvd._engine().kv.stats
    before = stats()['bytes_copied']
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 2) for o in (opt, alone)]
    for step in range(4):
        alone.zero_grad()
        if step == 2:
            for p in model.parameters():
                p.grad = None  # As model.zero_grad() may do.
        else:
            opt.zero_grad()
        for k in range(passes):
            for i in range(n):
                x = torch.randn(6, 5, generator=torch.Generator().manual_seed(
                    100 * step + 10 * k + i))
                (one(x).pow(2).mean() / n).backward()
                if i == r:
                    model(x).pow(2).mean().backward()
        if step == 1:
            opt.synchronize()
            with opt.skip_synchronize():
                opt.step()
        else:
            opt.step()
        alone.step()
        for s in schedulers:
            s.step()
    # Nothing is copied to be sent, unless it is scaled: only results are.
    if compression is hvd.Compression.none and factor == 1:
        assert stats()['bytes_copied'] - before == 4 * size
    # Gradients stay where the agent reads them.
    assert places == [p.grad.data_ptr() for p in model.parameters()]
    for p, q in zip(model.parameters(), one.parameters()):
        assert torch.allclose(p, q, rtol=1e-5, atol=1e-6 if compression is
                              hvd.Compression.none else 1e-3), (p, q)
    weights = [p.detach() for p in model.parameters()]
    for w in hvd.allgather_object(weights):
        assert all(torch.equal(a, b) for a, b in zip(w, weights))

# As many batches as the rank has: join() gives nothing to the others.
model = net()
hvd.broadcast_parameters(model.named_parameters(), 0)
opt = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                               named_parameters=model.named_parameters())
for step in range(2 * r):
    opt.zero_grad()
    model(full(step, 4, 5)).pow(2).mean().backward()
    opt.step()
assert hvd.join() == 2
hvd.broadcast_parameters(model.state_dict(), hvd.size() - 1)

try:
    hvd.allreduce(full(0, 3 + (r == 1)), name='grad')
    raise SystemExit('no error')
except RuntimeError as e:
    assert "rank 1: allreduce 'grad' float32 [4]" in str(e), e
print(hvd.local_rank(), flush=True)
hvd.shutdown()
hvd.init()
hvd.barrier()
hvd.shutdown()
"""


@pytest.mark.parametrize("servers, agents", [(0, 1), (1, 2)])
def test_send_and_receive(world, servers, agents):
    """A pipeline, a ring in which all send first, tags that cross, what does
    not fit, and nothing is left."""
    torch_job(world, servers, agents, 3).launch(["-c", SENDS])
    world.trio.await_empty()


SENDS = """
import torch, torch.distributed as dist
import pskv.torch

dist.init_process_group('pskv')
r, n = dist.get_rank(), dist.get_world_size()
for i in range(10):  # What each stage adds comes out at the end.
    t = torch.full((3, 1001), i)
    if r > 0:
        t.zero_()
        assert dist.recv(t, r - 1) in (None, r - 1)
        assert (t == i + r - 1).all(), t
    if r < n - 1:
        dist.send(t + (r > 0), r + 1)
for dtype in (torch.float32, torch.bfloat16, torch.bool, torch.uint8):
    mine = torch.full((5, 7), r).to(dtype)
    got = torch.empty(7, 5, dtype=dtype).t()  # Not one after the other.
    works = [dist.isend(mine, (r + 1) % n), dist.irecv(got, (r - 1) % n)]
    for w in works:
        w.wait()
    assert torch.equal(got, torch.full((5, 7), (r - 1) % n).to(dtype)), got
a, b = torch.full((4,), 10.), torch.full((400000,), 20.)
if r == 0:
    works = [dist.isend(a, 2, tag=1), dist.isend(b, 2, tag=2)]
    for w in works:
        w.wait()
elif r == 2:
    for count, tag, want in ((400000, 2, 20), (4, 1, 10)):
        t = torch.zeros(count)
        dist.recv(t, 0, tag=tag)
        assert (t == want).all()
ops = [dist.P2POp(dist.isend, torch.full((2,), float(r)), (r + 1) % n),
       dist.P2POp(dist.irecv, torch.zeros(2), (r - 1) % n)]
for w in dist.batch_isend_irecv(ops):
    w.wait()
assert (ops[1].tensor == (r - 1) % n).all()
if r != 2:
    try:
        dist.send(torch.ones(3), 1) if r == 0 else dist.recv(torch.ones(5), 0)
        raise SystemExit('no error')
    except RuntimeError as e:
        assert 'differ' in str(e), e
    t = torch.full((3,), float(2 * r))
    dist.send(t, 1) if r == 0 else dist.recv(t, 0)
    assert (t == 0).all()
if r == 1:
    try:
        dist.recv(torch.ones(5))
        raise SystemExit('no error')
    except NotImplementedError as e:
        assert 'name it' in str(e), e
group = dist.new_group([0, n - 1])
if r != 1:
    t = torch.full((2,), float(r))
    dist.send(t, n - 1, group=group) if r == 0 else \\
        dist.recv(t, 0, group=group)
    assert (t == 0).all()
dist.barrier()
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
def test_a_horovod_script_with_another_import(world, tmp):
    text = (EXAMPLES / "horovod_mnist.py").read_text()
    script = tmp / "script.py"
    script.write_text(text.replace("import horovod.torch as hvd",
                                   "import pskv.torch as hvd"))
    assert script.read_text() != text
    out = torch_job(world, 2, 2, 4).launch([script, "--images", 6000])
    print("4 ranks:", out[0].strip())
    assert len(set(out)) == 1 and float(out[0].split()[1]) > 0.65, out


def test_a_hook_under_gloo(world):
    """Gradients through pskv, the rest through gloo: as gloo alone, bit by bit
    on all ranks."""
    torch_job(world, 1, 2, 4).launch(["-c", HOOK])


HOOK = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import pskv.torch

dist.init_process_group('gloo')
torch.manual_seed(1)
nets = [DDP(torch.nn.Linear(50, 30), gradient_as_bucket_view=view)
        for view in (False, True, False)]
for net in nets[1:]:
    net.load_state_dict(nets[0].state_dict())
for net in nets[1:]:
    net.register_comm_hook(pskv.torch.HookState(), pskv.torch.comm_hook)
for step in range(3):
    for net in nets:
        net.zero_grad()
        x = torch.randn(8, 50, generator=torch.Generator().manual_seed(
            10 * step + dist.get_rank()))
        net(x).pow(2).mean().backward()
    want = nets[0].module.weight.grad
    for net in nets[1:]:
        assert torch.allclose(net.module.weight.grad, want, rtol=1e-5)
    every = [torch.empty_like(want) for _ in range(dist.get_world_size())]
    dist.all_gather(every, nets[1].module.weight.grad)
    assert all(torch.equal(e, every[0]) for e in every)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.skipif(not pathlib.Path(DATA).exists(), reason="no data set")
def test_a_ddp_script_as_it_is(world):
    """The same script with gloo and with pskv: the same accuracy, and the same
    weights on all ranks."""
    outs = {}
    for backend, more in (("gloo", []), ("pskv", ["-m", "pskv.torch"])):
        job = TorchJob(world.trio or world.start(2, 2).trio, backend, 4)
        job.reserve_port()
        world.jobs.append(job)
        out = job.launch([*more, EXAMPLES / "ddp.py", "--backend", backend,
                          "--images", 6000])
        assert len(set(out)) == 1, out
        outs[backend] = float(out[0].split()[1])
        print(backend, "4 ranks:", out[0].strip())
    assert outs["gloo"] > 0.65 and abs(outs["gloo"] - outs["pskv"]) < 0.02, outs
