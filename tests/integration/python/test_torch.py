# SPDX-License-Identifier: Apache-2.0
"""pskv.torch: the backend of torch.distributed, DDP scripts as they are, and
Horovod's words. With PSKV_TORCH_PYTHON another interpreter than the system's."""
import os
import pathlib
import subprocess
import sys

import pytest

import trio as harness
from trio import LIBRARY, PACKAGE, SOURCE
from python_job import DATA, Job

PYTHON = os.environ.get("PSKV_TORCH_PYTHON", sys.executable)
TORCH2 = pathlib.Path(os.environ.get("PSKV_TORCH2_PYTHON",
                                     harness.BUILD / "torch2/bin/python"))
PYTHONS = [PYTHON] + [str(TORCH2)] * TORCH2.exists()
EXAMPLES = SOURCE / "docs" / "examples" / "torch"

each_torch = pytest.mark.parametrize("python", PYTHONS,
                                     ids=["torch", "torch2"][:len(PYTHONS)])
pytestmark = pytest.mark.skipif(
    subprocess.run([PYTHON, "-c", "import torch.distributed"],
                   capture_output=True, check=False).returncode != 0,
    reason="there is no torch")


class TorchJob(Job):
    """The environment that torchrun sets."""

    port = 0

    def reserve_port(self):
        self.reserved = harness.reserve_port()
        self.port = self.reserved.getsockname()[1]

    def start(self, rank, command, **more):
        """With the default: a lost rank ends the job."""
        super().start(rank, command, **{"PSKV_ON_LOSS": "fail", **more})

    def launch(self, command, python=PYTHON):
        for rank in range(self.workers):
            self.start(rank, [python, *map(str, command)], RANK=rank,
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
    """Against the expected values, for types that the library adds and types
    that it does not."""
    torch_job(world, servers, agents, 3).launch(["-c", COLLECTIVES])


COLLECTIVES = """
import datetime
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
for dt in (torch.float32, torch.float16, torch.int64):
    t = torch.sparse_coo_tensor([[0, r, r]], torch.ones(3, 2).to(dt), (4, 2))
    want = torch.tensor([[5, 5], [2, 2], [2, 2], [0, 0]])
    dist.all_reduce(t)
    assert t.is_sparse
    same(t.to_dense(), want)
t = torch.sparse_coo_tensor([[]], torch.ones(0, 2), (4 + (r == 1), 2))
try:
    dist.all_reduce(t)
    raise SystemExit('no error')
except RuntimeError as e:
    assert 'rank 1: allgather sparse float32 [5, 2]' in str(e), e
    assert 'rank 0, 2: ' in str(e), e
dist.destroy_process_group(group)
group = dist.new_group()
limit = datetime.timedelta(seconds=20)
group.monitored_barrier(limit)
if r != 1:
    try:
        dist.monitored_barrier(group, 0.3, True)
        raise SystemExit('no error')
    except RuntimeError as e:
        assert ('Ranks 1 failed to pass monitoredBarrier in 300 ms'
                if r == 0 else 'Rank 2 successfully reached') in str(e), e
if r == 0:
    try:
        group.barrier().wait(datetime.timedelta(seconds=0.1))
        raise SystemExit('no error')
    except TimeoutError as e:
        assert ' Timed out waiting 100ms' in str(e), e
dist.barrier()
dist.destroy_process_group(group)
group.shutdown()
try:
    group.allreduce([torch.ones(3)])
    raise SystemExit('no error')
except RuntimeError as e:
    assert ' closed ' in str(e), e
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
same(w.grad, torch.arange(6.)[2 * r:2 * r + 2, None].expand(2, 3))
w = full(r, 3).requires_grad_()
(hvd.broadcast(w, 1) * (r + 1)).sum().backward()
same(w.grad, [2 if r == 1 else 0] * 3)
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
    stats = hvd.global_process_set.engine().kv.stats
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


@pytest.mark.parametrize("servers, agents", [(0, 1), (2, 2)])
def test_horovods_errors(world, servers, agents):
    """Other types and shapes, names in use, ranks that have joined: errors on
    every rank that say who asks for what, and nothing is broken after."""
    torch_job(world, servers, agents, 3).launch(["-c", ERRORS])


ERRORS = """
import torch
import pskv.torch as hvd

hvd.init()
r, n = hvd.rank(), hvd.size()
odd = r == 1


def expect(call, others, own, error=hvd.HorovodInternalError):
    try:
        call()
    except error as e:
        assert 'rank 0, 2: ' + others in str(e), e
        assert 'rank 1: ' + own in str(e), e
        return
    raise SystemExit('no error')


def zeros(kind, *dims):
    return torch.zeros(dims, dtype=kind)


i16, u8, f16, f32 = torch.int16, torch.uint8, torch.float16, torch.float32
for turn in range(2):
    # As many bytes on all ranks.
    expect(lambda: hvd.broadcast(zeros(f32, 2) if odd else zeros(i16, 4), 0),
           'broadcast int16 [4] from rank 0', 'broadcast float32 [2] from')
    expect(lambda: hvd.broadcast_(zeros(i16, 2, 3) if odd else
                                  zeros(i16, 3, 2), 0, name='x'),
           "broadcast 'x' int16 [3, 2]", "broadcast 'x' int16 [2, 3]")
    expect(lambda: hvd.broadcast(zeros(f32, 2), 1 if odd else 0),
           'broadcast float32 [2] from rank 0', 'broadcast float32 [2] from '
           'rank 1')
    expect(lambda: hvd.allgather(zeros(u8, 2, 4) if odd else zeros(f32, 2, 1)),
           'allgather float32 [*, 1]', 'allgather uint8 [*, 4]')
    expect(lambda: hvd.allgather(zeros(f32, 2, 1, 2) if odd else
                                 zeros(f32, 2, 2)),
           'allgather float32 [*, 2]', 'allgather float32 [*, 1, 2]')
    expect(lambda: hvd.alltoall(zeros(u8, 3, 4) if odd else zeros(f32, 3, 1)),
           'alltoall float32 [*, 1]', 'alltoall uint8 [*, 4]')
    expect(lambda: hvd.allreduce(zeros(f16, 3) if odd else zeros(f32, 3)),
           'allreduce float32 [3] mean', 'allreduce float16 [3] mean')
    expect(lambda: hvd.allreduce(zeros(f32, 2, 3) if odd else
                                 zeros(f32, 3, 2), op=hvd.Sum),
           'allreduce float32 [3, 2] sum', 'allreduce float32 [2, 3] sum')
    expect(lambda: hvd.reducescatter(zeros(i16, 3) if odd else zeros(u8, 3)),
           'reduce-scatter uint8 [3]', 'reduce-scatter int16 [3]')
    expect(lambda: hvd.grouped_allreduce(
        [zeros(f32, 2, 3), zeros(f32, 6)] if odd else
        [zeros(f32, 6), zeros(f32, 6)]),
        'allreduce float32 [6]; float32 [6]',
        'allreduce float32 [2, 3]; float32 [6]')
    t = torch.full((2,), float(r))
    assert (hvd.allreduce(t) == 1).all()

# A name is in use until its collective ends.
for kind, start in (
        ('allreduce', lambda: hvd.allreduce_async(zeros(f32, 3), name='x')),
        ('allgather', lambda: hvd.allgather_async(zeros(f32, 3), name='x')),
        ('broadcast', lambda: hvd.broadcast_async(zeros(f32, 3), 0, name='x')),
        ('alltoall', lambda: hvd.alltoall_async(zeros(f32, 3), name='x')),
        ('reducescatter',
         lambda: hvd.reducescatter_async(zeros(f32, 3), name='x')),
        ('group', lambda: hvd.grouped_allreduce_async([zeros(f32, 3)],
                                                      name='x'))):
    if r > 0:
        hvd.barrier()
    first = start()
    if r == 0:
        assert not hvd.poll(first), kind  # The others come later.
        try:
            start()
            raise SystemExit('no error')
        except ValueError as e:
            assert 'with the same name as another tensor' in str(e), e
        hvd.barrier()
    hvd.synchronize(first)
    assert hvd.poll(first)
    hvd.synchronize(start())
for call in (lambda: hvd.alltoall(zeros(f32, 4)),
             lambda: hvd.alltoall(zeros(f32, 4), [2, 2, 2]),
             lambda: hvd.alltoall(zeros(f32, 4), torch.ones(3)),
             lambda: hvd.reducescatter(torch.zeros(())),
             lambda: hvd.broadcast(zeros(f32, 4), 3)):
    try:
        call()
        raise SystemExit('no error')
    except ValueError:
        pass

# Ranks that have joined count in means, in every type.
for turn in range(2):
    if odd:
        assert hvd.join() != 1
        continue
    for kind in (torch.int32, torch.int64, f16, f32, torch.float64):
        t = torch.full((4,), 7 + r).to(kind)
        want = (t * 0 + 16) / 3
        if not kind.is_floating_point:
            want = want.trunc()
        assert torch.allclose(hvd.allreduce(t).double(), want.double(),
                              rtol=1e-3), hvd.allreduce(t)
        assert (hvd.allreduce(t, op=hvd.Sum) == 16).all()
    for kind, call in (
            ('allgather', lambda: hvd.allgather(zeros(f32, 3))),
            ('broadcast', lambda: hvd.broadcast(zeros(f32, 3), 0)),
            ('alltoall', lambda: hvd.alltoall(zeros(f32, 3))),
            ('reduce-scatter', lambda: hvd.reducescatter(zeros(f32, 3)))):
        try:
            call()
            raise SystemExit('no error')
        except hvd.HorovodInternalError as e:
            assert str(e) == kind + ' is not supported with join: rank 1 ' \\
                'has joined', e
    assert hvd.join() != 1
hvd.barrier()
hvd.shutdown()
try:
    hvd.rank()
    raise SystemExit('no error')
except ValueError as e:
    assert 'use hvd.init()' in str(e), e
"""


def test_horovods_gradients(world):
    """Of every collective, as Horovod defines them: means over ranks."""
    torch_job(world, 0, 1, 3).launch(["-c", GRADIENTS])


GRADIENTS = """
import torch
import pskv.torch as hvd

hvd.init()
r, n = hvd.rank(), hvd.size()


def same(a, b):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    assert a.shape == b.shape and torch.allclose(a.double(), b.double()), \\
        (a, b)


def leaf(*dims):
    return torch.ones(dims).requires_grad_()


def weights(*dims):
    return torch.arange(float(torch.Size(dims).numel())).view(dims)


w, v = leaf(2, 3), leaf(4)
a, b = hvd.grouped_allreduce([w, v], op=hvd.Sum)
((a * weights(2, 3)).sum() * (r + 1) + (b * weights(4)).sum()).backward()
same(w.grad, 6 * weights(2, 3))
same(v.grad, 3 * weights(4))
w = leaf(2, 3)
a, = hvd.grouped_allreduce([w], prescale_factor=2, postscale_factor=3)
(a * (r + 1)).sum().backward()
same(w.grad, torch.full((2, 3), 12.))
# Rows of the ranks: 1, 2, 3, of which each rank gets the mean of gradients.
w, v = leaf(r + 1, 2), leaf(1)
a, b = hvd.grouped_allgather([w, v])
((a * weights(6, 2)).sum() * (r + 1) + b.sum()).backward()
first = r * (r + 1) // 2
same(w.grad, 2 * weights(6, 2)[first:first + r + 1])
same(v.grad, [1])
w = leaf(2)
(hvd.broadcast(w, 2) * (r + 1)).sum().backward()
same(w.grad, [2 if r == 2 else 0] * 2)
for op, factor in ((hvd.Average, 1), (hvd.Sum, 3)):
    w, v = leaf(4, 2), leaf(3)
    a = hvd.reducescatter(w, op=op)
    b, c = hvd.grouped_reducescatter([w, v], op=op, prescale_factor=2,
                                     postscale_factor=0.5)
    assert a.shape == (2 if r == 0 else 1, 2)
    ((a.sum() + b.sum()) * (r + 1) + c.sum()).backward()
    same(w.grad, torch.tensor([1., 1, 2, 3])[:, None].expand(4, 2) * 2 *
         factor)
    same(v.grad, torch.full((3,), float(factor)))
w = leaf(4, 2)
x, came = hvd.alltoall(w, torch.tensor([1, 1, 1], dtype=torch.int32))
assert came.dtype == torch.int32 and x.shape == (3, 2)
(x * (r + 1)).sum().backward()
same(w.grad, torch.tensor([1., 2, 3, 0])[:, None].expand(4, 2))
hvd.shutdown()
"""


@pytest.mark.parametrize("servers, agents", [(0, 1), (2, 2)])
def test_horovods_names(world, servers, agents):
    """Ranks start collectives in different orders: names bring them
    together."""
    torch_job(world, servers, agents, 3).launch(["-c", NAMES])


NAMES = """
import os
os.environ['HOROVOD_STALL_SHUTDOWN_TIME_SECONDS'] = '2'
import torch
import pskv.torch as hvd

hvd.init()
r, n = hvd.rank(), hvd.size()


def full(value, *dims):
    return torch.full(dims, float(value))


for turn in range(10):
    # Each rank starts all of them, in an order of its own.
    order = [(i + r * 3 + turn) % 8 for i in range(8)]
    if r == 2:
        order.reverse()
    handles = {}
    for i in order:
        name = 'c%d' % i
        handles[i] = (
            hvd.allreduce_async(full(i + r, i + 1), name=name, op=hvd.Sum)
            if i < 3 else hvd.allgather_async(full(i, r + 1, 2), name=name)
            if i < 5 else hvd.broadcast_async(full(r, i), i - 5, name=name))
    for i in order[::-1]:
        got = hvd.synchronize(handles[i])
        if i < 3:
            assert torch.equal(got, full(n * i + 3, i + 1)), (i, got)
        elif i < 5:
            assert torch.equal(got, full(i, 6, 2)), (i, got)
        else:
            assert torch.equal(got, full(i - 5, i)), (i, got)
    t = hvd.allreduce(full(r, 3))  # Without a name, in order.
    assert torch.equal(t, full(1, 3)), t

# A request that another rank starts much later, or after the others' end.
if r != 1:
    a = hvd.allreduce_async(full(r, 2), name='a', op=hvd.Sum)
b = hvd.allreduce(full(r, 2), name='b', op=hvd.Sum)
assert torch.equal(b, full(3, 2))
if r == 1:
    a = hvd.allreduce_async(full(r, 2), name='a', op=hvd.Sum)
assert torch.equal(hvd.synchronize(a), full(3, 2))

# Of one name, other types: an error on all ranks, in whatever order.
first, second = ('x', 'y') if r == 0 else ('y', 'x')
handles = {name: hvd.allreduce_async(
    full(r, 2).double() if name == 'x' and r == 1 else full(r, 2), name=name)
    for name in (first, second)}
assert torch.equal(hvd.synchronize(handles['y']), full(1, 2))
try:
    hvd.synchronize(handles['x'])
    raise SystemExit('no error')
except hvd.HorovodInternalError as e:
    assert "rank 1: allreduce 'x' float64" in str(e), e

# What the others do not start ends with an error, some time later.
h = hvd.allreduce_async(full(r, 2), name='of %d' % r)
t = hvd.allreduce(full(r, 2), name='all')
assert torch.equal(t, full(1, 2))
try:
    hvd.synchronize(h)
    raise SystemExit('no error')
except hvd.HorovodInternalError as e:
    assert "rank 1: allreduce 'of 1'" in str(e), e
    assert "rank 2: allreduce 'of 2'" in str(e), e
s = hvd.add_process_set([0, 2])
if r != 1:
    names = ('p', 'q') if r == 0 else ('q', 'p')
    hs = [hvd.allreduce_async(full(r, 2), name=x, process_set=s)
          for x in names]
    assert all(torch.equal(hvd.synchronize(h), full(1, 2)) for h in hs)
hvd.barrier()
hvd.shutdown()
hvd.init()
assert torch.equal(hvd.allreduce(full(r, 2)), full(1, 2))
hvd.shutdown()
"""


PHASES = """
import json
import sys
from pskv._horovod.timeline import Timeline

timeline = Timeline()
timeline.start(sys.argv[1], False)
for name in ('late', 'early'):
    span = timeline.begin('allreduce', name)
    for step in ((span.started, span.end) if name == 'late' else
                 (span.end, span.started)):
        step()
timeline.stop()
phases = [(e['name'], e['ph']) for e in json.load(open(sys.argv[1]))
          if e['ph'] != 'M']
assert phases == [('NEGOTIATE_ALLREDUCE', 'B'), ('NEGOTIATE_ALLREDUCE', 'E'),
                  ('ALLREDUCE', 'B'), ('ALLREDUCE', 'E')] * 2, phases
"""


def test_a_timeline_orders_the_phases_of_a_collective(tmp_path):
    """The report of the end may come before the call of the start returns."""
    subprocess.run([PYTHON, "-c", PHASES, tmp_path / "timeline"], check=True,
                   env=harness.clean_env(
                       PYTHONPATH=PACKAGE,
                       PSKV_LIBRARY=LIBRARY))


def test_horovods_extras(world):
    """Adasum, whole numbers that are scaled, sparse tensors, batch norms,
    optimizers with groups and sets, the timeline."""
    torch_job(world, 0, 1, 4).launch(["-c", EXTRAS])


EXTRAS = """
import json, os, tempfile, torch
import pskv.torch as hvd

hvd.init()
r, n = hvd.rank(), hvd.size()


def same(a, b):
    assert a.shape == b.shape and torch.allclose(a.double(), b.double(),
                                                 rtol=1e-5), (a, b)


# Adasum keeps equal vectors and adds those at right angles.
t = torch.ones(3)
same(hvd.allreduce(t, op=hvd.Adasum), t)
t = torch.zeros(n)
t[r] = r + 1
same(hvd.allreduce_(t, op=hvd.Adasum), torch.arange(1., n + 1))
# Whole numbers are scaled towards zero.
t = torch.tensor([-7, 7])
same(hvd.allreduce(t, op=hvd.Sum, prescale_factor=0.5),
     torch.tensor([-3 * n, 3 * n]))
same(hvd.allreduce(t, op=hvd.Sum, postscale_factor=0.3),
     (t * n * 0.3).trunc())
# Sparse sums.
t = torch.zeros(5, 2)
t[r] = t[4] = 1
got = hvd.sparse_allreduce_async(t.to_sparse(), name='s', op=hvd.Average)()
same(got.to_dense(), hvd.allreduce(t))
# Batches of all ranks.
torch.manual_seed(3)
x = torch.randn(n, 6, 4, 3, dtype=torch.float64)
one, all_of = torch.nn.BatchNorm1d(4).double(), hvd.SyncBatchNorm(4).double()
a = x[r].clone().requires_grad_()
b = x.view(-1, 4, 3).clone().requires_grad_()
for turn in range(2):
    y, z = all_of(a), one(b)
    same(y, z.view(n, 6, 4, 3)[r])
(y * x[r]).sum().backward()
(z * x.view(-1, 4, 3)).sum().backward()
same(a.grad, b.grad.view(n, 6, 4, 3)[r])
same(hvd.allreduce(all_of.weight.grad, op=hvd.Sum), one.weight.grad)
same(all_of.running_var, one.running_var)
same(all_of.running_mean, one.running_mean)
# Groups of gradients, and none outside the set.
s = hvd.add_process_set([0, 1])
for more, members in (({'groups': 2}, n), ({'num_groups': 1}, n),
                      ({'op': hvd.Adasum}, 1), ({'process_set': s}, 2)):
    torch.manual_seed(1)
    model, own = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    own.load_state_dict(model.state_dict())
    if more.get('groups') == 2:
        more = {'groups': [[model.bias, model.weight]]}
    opt = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5),
        named_parameters=model.named_parameters(), **more)
    opt.zero_grad()
    alone = members == 1 or (members == 2 and r > 1)
    (model(torch.ones(1, 3)).sum() * (1 if alone else r)).backward()
    opt.step()
    factor = 1 if alone else (members - 1) / 2
    (own(torch.ones(1, 3)).sum() * factor).backward()
    same(model.weight, own.weight - 0.5 * own.weight.grad)
for bad in ({'groups': 0}, {'groups': [[1]]}, {'num_groups': -1},
            {'backward_passes_per_step': 0}):
    try:
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1),
                                 **bad)
        raise SystemExit('no error')
    except ValueError:
        pass
embedding = torch.nn.Embedding(6, 2, sparse=True)
hvd.broadcast_parameters(embedding.state_dict(), 0)
opt = hvd.DistributedOptimizer(torch.optim.SparseAdam(
    list(embedding.parameters()), lr=0.1), sparse_as_dense=False)
before = embedding.weight.detach().clone()
embedding(torch.tensor([r])).sum().backward()
opt.step()
moved = (embedding.weight.detach() != before).any(1)
assert moved.tolist() == [i < n for i in range(6)], moved
# A timeline.
path = os.path.join(tempfile.mkdtemp(), 'timeline')
hvd.start_timeline(path, mark_cycles=True)
hvd.allreduce(torch.ones(3), name='step')
if r == 0:
    early = open(path).read()
    assert '"NEGOTIATE_ALLREDUCE"' in early and 'CYCLE_START' in early, early
hvd.stop_timeline()
if r == 0:
    events = json.load(open(path))
    names = [e['name'] for e in events]
    assert 'NEGOTIATE_ALLREDUCE' in names and 'CYCLE_START' in names, names
    lanes = [e['args'].get('name') for e in events if e['ph'] == 'M']
    assert 'allreduce.step' in lanes, lanes
    spans = [e for e in events if e['name'] == 'ALLREDUCE']
    assert [e['ph'] for e in spans] == ['B', 'E'], spans
else:
    assert not os.path.exists(path)
# One that a variable names; it ends with shutdown().
assert hvd.gloo_built() and not hvd.mpi_built() and hvd.nccl_built() == 0
hvd.shutdown()
os.environ.update(HOROVOD_TIMELINE=path + '-named')
hvd.init()
hvd.allreduce(torch.ones(3), name='named')
hvd.shutdown()
if r == 0:
    text = json.dumps(json.load(open(path + '-named')))
    assert 'allreduce.named' in text and 'CYCLE_START' not in text, text
else:
    assert not os.path.exists(path + '-named')
"""


@pytest.mark.parametrize("servers, agents", [(0, 1), (1, 2)])
def test_horovods_functions(world, servers, agents):
    """All names of horovod.torch 0.28.1; forms with handles, and arguments,
    that other tests do not use."""
    torch_job(world, servers, agents, 2).launch(["-c", FUNCTIONS])


FUNCTIONS = """
import torch
import pskv.torch as hvd

NAMES = '''Adasum Average Compression DistributedOptimizer
HorovodInternalError Max Min ProcessSet Product Sum SyncBatchNorm
add_process_set allgather allgather_async allgather_object allreduce
allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier
broadcast broadcast_ broadcast_async broadcast_async_ broadcast_object
broadcast_optimizer_state broadcast_parameters ccl_built cross_rank cross_size
cuda_built ddl_built elastic global_process_set gloo_built gloo_enabled
grouped_allgather grouped_allgather_async grouped_allreduce grouped_allreduce_
grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter
grouped_reducescatter_async init is_initialized join local_rank local_size
mpi_built mpi_enabled mpi_threads_supported nccl_built poll rank reducescatter
reducescatter_async remove_process_set rocm_built shutdown size
sparse_allreduce_async start_timeline stop_timeline synchronize'''.split()
missing = [name for name in NAMES if not hasattr(hvd, name)]
assert len(NAMES) == 67 and not missing, missing
for name in 'State', 'ObjectState', 'TorchState', 'ElasticSampler', 'run':
    assert hasattr(hvd.elastic, name), name
assert issubclass(hvd.HorovodInternalError, RuntimeError)

hvd.init()
r, n = hvd.rank(), hvd.size()
assert hvd.gloo_built() and hvd.gloo_enabled()
for built in (hvd.mpi_built, hvd.mpi_enabled, hvd.mpi_threads_supported,
              hvd.nccl_built, hvd.ddl_built, hvd.ccl_built, hvd.cuda_built,
              hvd.rocm_built):
    assert not built(), built


def same(a, b):
    a, b = torch.as_tensor(a), torch.as_tensor(b)
    assert a.shape == b.shape and torch.allclose(a.double(), b.double()), \\
        (a, b)


# Each form with a handle returns before rank 1 has begun.
t = torch.full((2, 3), float(r))
both, rows = torch.tensor([[0.] * 3] * 2 + [[1.] * 3] * 2), torch.ones(1, 3)
for kind, start, wants in (
        ('allreduce', lambda: hvd.allreduce_async(t, name='x'), t * 0 + 0.5),
        ('allreduce_', lambda: hvd.allreduce_async_(
            t.clone(), name='x', op=hvd.Sum), t * 0 + 1),
        ('grouped_allreduce', lambda: hvd.grouped_allreduce_async(
            [t, t[:1]], name='x', op=hvd.Sum), [t * 0 + 1, rows]),
        ('grouped_allreduce_', lambda: hvd.grouped_allreduce_async_(
            [t.clone()], name='x', op=hvd.Sum), [t * 0 + 1]),
        ('broadcast', lambda: hvd.broadcast_async(t, 1, name='x'), t * 0 + 1),
        ('broadcast_', lambda: hvd.broadcast_async_(t.clone(), 1, name='x'),
         t * 0 + 1),
        ('allgather', lambda: hvd.allgather_async(t, name='x'), both),
        ('grouped_allgather', lambda: hvd.grouped_allgather_async(
            [t, t[:1]], name='x'), [both, both[1:3]]),
        ('alltoall', lambda: hvd.alltoall_async(t, name='x'),
         [both[1:3], [1, 1]]),
        ('reducescatter', lambda: hvd.reducescatter_async(
            t, name='x', op=hvd.Sum), rows),
        ('grouped_reducescatter', lambda: hvd.grouped_reducescatter_async(
            [t, t + 1], name='x', op=hvd.Sum), [rows, 3 * rows])):
    if r == 1:
        hvd.barrier()
    handle = start()
    if r == 0:
        assert not hvd.poll(handle), kind
        hvd.barrier()
    got = hvd.synchronize(handle)
    assert hvd.poll(handle), kind
    if isinstance(wants, list):
        assert len(got) == len(wants), (kind, got)
    else:
        got, wants = [got], [wants]
    for a, b in zip(got, wants):
        same(a, b)
if r == 1:
    hvd.barrier()
result = hvd.sparse_allreduce_async(t.to_sparse(), name='s', op=hvd.Sum)
if r == 0:
    hvd.barrier()
same(result().to_dense(), t * 0 + 1)

# An optimizer whose state the root alone has.
torch.manual_seed(r)
model = torch.nn.Linear(3, 2)
adam = torch.optim.Adam(model.parameters(), lr=0.1 * (r + 1))
if r == 0:
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(adam, root_rank=0, model=model)
assert adam.param_groups[0]['lr'] == 0.1
adam.zero_grad()
model(torch.full((1, 3), 2.)).sum().backward()
adam.step()
for weights in hvd.allgather_object(list(model.parameters())):
    for a, b in zip(weights, model.parameters()):
        assert torch.equal(a, b), (a, b)

# Gradients of embeddings become dense where the caller wants that.
for kind in torch.optim.SparseAdam, torch.optim.SGD:
    for dense in False, True:
        torch.manual_seed(5)
        ours, own = [torch.nn.Embedding(6, 2, sparse=True) for _ in range(2)]
        own.load_state_dict(ours.state_dict())
        opt = hvd.DistributedOptimizer(
            kind(list(ours.parameters()), lr=0.1),
            named_parameters=ours.named_parameters(), sparse_as_dense=dense)
        alone = kind(list(own.parameters()), lr=0.1)
        for step in range(2):
            opt.zero_grad()
            alone.zero_grad()
            ours(torch.tensor([r, 5])).pow(2).sum().backward()
            opt.step()
            for i in range(n):
                (own(torch.tensor([i, 5])).pow(2).sum() / n).backward()
            alone.step()
            same(ours.weight.detach(), own.weight.detach())

if r == 1:
    assert hvd.join(device=-1) == 0
else:  # The last one.
    same(hvd.allreduce(torch.ones(2), name='last'), [0.5, 0.5])
    assert hvd.join(0) == 0
hvd.shutdown()
"""


@pytest.mark.parametrize("servers, agents", [(0, 1), (1, 2)])
def test_send_and_receive(world, servers, agents):
    """A pipeline, a ring in which all send first, crossing tags, arrays that
    do not fit, and no state left behind."""
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
for tag in (0, 3):  # From any rank.
    if r == 1:
        t, senders = torch.empty(5), set()
        for _ in range(n - 1):
            sender = dist.recv(t, tag=tag)
            assert (t == 10 * sender).all(), (sender, t)
            senders.add(sender)
        assert senders == {0, 2}, senders
    else:
        dist.send(torch.full((5,), 10. * r), 1, tag=tag)
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
    assert 'rank 1' in str(e) and 'Connection closed by peer' in str(e), e
    print('told', flush=True)
    os._exit(0)  # The store of torch waits for the dead.
"""], RANK=rank, WORLD_SIZE=3, MASTER_ADDR="127.0.0.1", MASTER_PORT=job.port,
                  PSKV_NUM_SERVERS=1)
    assert job.wait(1)[0] == -9
    for rank in (0, 2):
        code, out, err = job.wait(rank)
        assert (code, out) == (0, "told\n"), err


@pytest.mark.parametrize("victim", [0, 1])
def test_elastic_training_survives_the_death_of_a_rank(world, victim):
    """A process takes the rank of the dead one, gets the state of the others,
    and training ends with the weights of an undisturbed one."""
    job = torch_job(world, 1, 2, 3)

    def start(rank, **more):
        job.start(rank, [PYTHON, "-c", ELASTIC], RANK=rank, WORLD_SIZE=3,
                  PSKV_NUM_SERVERS=1, **more)
    for rank in range(3):
        start(rank, DIES_AT=3 if rank == victim else -1)
    assert job.wait(victim)[0] == -9
    job.processes[victim].stdin.close()
    start(victim, DIES_AT=-1)
    outs = job.wait_all()
    for rank, out in enumerate(outs):
        words = out.split()
        assert words[-1] == "same", outs
        # Steps of before the last commit are not repeated.
        assert words[:-1] == (["3", "4", "5"] if rank == victim else
                              ["0", "1", "2", "3", "4", "5"]), outs


ELASTIC = """
import os, torch
import pskv.torch as hvd

DIES_AT = int(os.environ['DIES_AT'])
hvd.init()
r, n = hvd.rank(), hvd.size()
torch.manual_seed(r)


def make():
    model = torch.nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)


def loss_of(model, rank, step):
    x = torch.arange(12.).view(3, 4) * (rank + 1) / (step + 10)
    return model(x).square().mean()


model, optimizer = make()
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(list(range(36)), shuffle=False)
begin = {}


@hvd.elastic.run
def train(state):
    if not begin and state.step == 0:
        begin.update({k: v.clone() for k, v in model.state_dict().items()})
    state.begin = state.begin or dict(begin)
    batches = iter(state.sampler)
    while state.step < 6:
        if state.step == DIES_AT:
            os.kill(os.getpid(), 9)
        mine = [next(batches), next(batches)]
        assert mine == [6 * state.step + r, 6 * state.step + r + n], mine
        optimizer.zero_grad()
        loss_of(model, r, state.step).backward()
        optimizer.step()
        print(state.step, flush=True)
        state.sampler.record_batch(state.step, 2)
        state.step += 1
        state.commit()
    return 'done'


resets = []
state = hvd.elastic.TorchState(model=model, optimizer=optimizer,
                               sampler=sampler, step=0, begin=None)
state.register_reset_callbacks([lambda: resets.append(state.step)])
assert train(state) == 'done' and state.step == 6
assert resets in ([], [3]), resets
# The same training in this process alone.
alone, stepper = make()
alone.load_state_dict(state.begin)
for step in range(6):
    stepper.zero_grad()
    sum(loss_of(alone, rank, step) for rank in range(n)).div(n).backward()
    stepper.step()
for a, b in zip(alone.parameters(), model.parameters()):
    assert torch.allclose(a, b, rtol=1e-5), (a, b)
print('same')
hvd.shutdown()
"""


@pytest.mark.parametrize("hook", [False, True])
@pytest.mark.parametrize("python", PYTHONS)
def test_a_lost_rank_is_an_error_of_ddp(world, python, hook):
    """DDP's C++ code reads the failure of a bucket."""
    job = torch_job(world, 1, 1, 2)
    for rank in range(2):
        job.start(rank, [python, "-c", """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import pskv.torch
dist.init_process_group('pskv')
model = DDP(torch.nn.Linear(20, 1))
if %r:
    model.register_comm_hook(pskv.torch.HookState(), pskv.torch.comm_hook)
model(torch.ones(8, 20)).sum().backward()
try:
    loss = model(torch.ones(8, 20)).sum()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 9)
    loss.backward()
except RuntimeError as e:
    assert 'rank 1' in str(e), e
    print('told', flush=True)
    os._exit(0)  # The store of torch waits for the dead.
""" % hook], RANK=rank, WORLD_SIZE=2, MASTER_ADDR="127.0.0.1",
                  MASTER_PORT=job.port, PSKV_NUM_SERVERS=1)
    assert job.wait(1)[0] == -9
    code, out, err = job.wait(0)
    assert (code, out) == (0, "told\n"), err


@each_torch
def test_a_gradient_in_flight_has_one_owner(world, python):
    """Parameters in several optimizers, tied weights, an optimizer wrapped
    twice, reductions of p.grad beside it, of one tensor twice: the results are
    those of one operation behind the other."""
    torch_job(world, 1, 2, 2).launch(["-c", OWNERS], python)


OWNERS = """
import torch, torch.distributed as dist, torch.nn as nn
import pskv.torch
hvd = pskv.torch

hvd.init()
r, n = hvd.rank(), hvd.size()
SGD = torch.optim.SGD


def own(step, rank=None):  # A gradient of whole numbers, large ones.
    g = torch.Generator().manual_seed(100 * step + (r if rank is None else rank))
    return torch.randint(-1000, 1000, (200, 200), generator=g).float() * n


def mean(step):
    return sum(own(step, k) for k in range(n)) / n


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        for name in 'abc':
            setattr(self, name, nn.Parameter(torch.ones(200, 200)))

    def loss(self, step, names='abc'):
        return sum((getattr(self, p) * own(step + i)).sum()
                   for i, p in enumerate(names))


def same(got, want):
    assert torch.equal(got, want), (got - want).abs().max()


def refused(words, call):
    try:
        call()
    except ValueError as e:
        assert words in str(e), e
    else:
        assert False, words


# Three optimizers, of which the last two share with the first.
for op, factor, compression in ((hvd.Average, 1, hvd.Compression.none),
                                (hvd.Sum, n, hvd.Compression.none)):
    net = Net()
    made = [hvd.DistributedOptimizer(
        SGD(some, lr=0.0), op=op, compression=compression) for some in
        (net.parameters(), [net.a], [net.b, net.c])]
    for step in range(8):
        for o in made:
            o.zero_grad()
        net.loss(10 * step).backward()
        for o in made[step % 3:] + made[:step % 3]:
            o.synchronize()
        for i, p in enumerate(net.parameters()):
            same(p.grad, factor * mean(10 * step + i))
    del made, o

# Tied weights: a in two optimizers, which step in turn.
net = Net()
one, two = [hvd.DistributedOptimizer(SGD(some, lr=1.0)) for some in
            ([net.a, net.b], [net.a, net.c])]
want = {p: torch.ones(200, 200) for p in 'abc'}
for step in range(6):
    for o, names in (one, 'ab'), (two, 'ac'):
        o.zero_grad()
        net.loss(10 * step, names).backward()
        o.step()
        for i, p in enumerate(names):
            want[p] -= mean(10 * step + i)
for p in 'abc':
    same(getattr(net, p).detach(), want[p])

# In one backward, and both step.
for step in range(6):
    one.zero_grad()
    two.zero_grad()
    net.loss(10 * step).backward()
    one.step()
    two.step()
    for i, p in enumerate('abc'):
        want[p] -= (2 if p == 'a' else 1) * mean(10 * step + i)
for p in 'abc':
    same(getattr(net, p).detach(), want[p])
del one, two, o

# Wrapped twice, while the first one lives and after it.
net = Net()
plain = SGD(net.parameters(), lr=1.0)
first = hvd.DistributedOptimizer(plain)
second = hvd.DistributedOptimizer(plain)
net.loss(1).backward()
second.step()
first.zero_grad()
for i, p in enumerate('abc'):
    same(getattr(net, p).detach(), 1 - mean(1 + i))
refused('a DistributedOptimizer already',
        lambda: hvd.DistributedOptimizer(first))
refused("'allreduce.noname.0.0' is in another DistributedOptimizer, too, which "
        "sums its gradient in another way: op=Sum, and Average there",
        lambda: hvd.DistributedOptimizer(plain, op=hvd.Sum))
refused('backward_passes_per_step=2, and 1 there',
        lambda: hvd.DistributedOptimizer(plain, backward_passes_per_step=2))
del first, second
only = hvd.DistributedOptimizer(plain, op=hvd.Sum)
only.zero_grad()
net.loss(2).backward()
only.synchronize()
for i, p in enumerate(net.parameters()):
    same(p.grad, n * mean(2 + i))

# Reductions beside the optimizer's.
net = Net()
o = hvd.DistributedOptimizer(SGD(net.parameters(), lr=0.0))
for step in range(8):
    o.zero_grad()
    net.loss(10 * step).backward()
    handles = [hvd.allreduce_async_(p.grad) for p in net.parameters()]
    if step % 2:
        o.synchronize()
    for h in handles:
        h.wait()
    if not step % 2:
        o.synchronize()
    for i, p in enumerate(net.parameters()):
        same(p.grad, mean(10 * step + i))

# Parameters that come later, by a group and because they are not frozen.
net = Net()
net.c.requires_grad_(False)
o = hvd.DistributedOptimizer(SGD([net.a, net.c], lr=1.0))
o.add_param_group({'params': [net.b], 'lr': 1.0})
o.step()
net.c.requires_grad_(True)
for step in range(3):
    o.zero_grad()
    net.loss(10 * step).backward()
    o.step()
for i, p in enumerate(net.parameters()):
    same(p.detach(), 1 - sum(mean(10 * step + i) for step in range(3)))

# One tensor in several operations.
for step in range(8):
    t = own(step)
    h = hvd.allreduce_async_(t), hvd.allreduce_async_(t, op=hvd.Sum), \
        hvd.allreduce_async_(t[3:60])
    u = hvd.broadcast_async_(t, 1)
    v = hvd.allgather_async(t)
    for one in (*h, u, v):
        hvd.synchronize(one)
    same(t, n * mean(step))
    same(hvd.synchronize(v), torch.cat([t] * n))
hvd.shutdown()

dist.init_process_group('pskv')
for step in range(8):
    t = own(step)
    works = [dist.all_reduce(t, async_op=True),
             dist.all_reduce(t, async_op=True),
             dist.all_reduce(t.t(), dist.ReduceOp.MAX, async_op=True),
             dist.broadcast(t[:7], 1, async_op=True)]
    rows = [torch.empty_like(t) for _ in range(n)]
    works.append(dist.all_gather(rows, t, async_op=True))
    works.append(dist.all_reduce(rows[0], async_op=True))
    for w in works:
        w.wait()
    same(t, n * n * mean(step))
    same(rows[0], n * t)
    same(rows[1], t)


def twice(state, bucket):
    pskv.torch.comm_hook(state, bucket)
    return pskv.torch.comm_hook(state, bucket)


twice.__annotations__.update(pskv.torch.comm_hook.__annotations__)
net = Net()
net.forward = net.loss
ddp = nn.parallel.DistributedDataParallel(net)
ddp.register_comm_hook(pskv.torch.HookState(), twice)
for step in range(4):
    net.zero_grad()
    ddp(10 * step).backward()
    for i, p in enumerate(net.parameters()):
        same(p.grad, mean(10 * step + i))
dist.barrier()
dist.destroy_process_group()
"""


@each_torch
@pytest.mark.parametrize("way, code", [("end", 0), ("error", 1), ("exit", 3),
                                       ("signal", 4)])
def test_a_process_ends_with_tensors_left(world, python, way, code):
    """Something of torch in C++ keeps gradients in memory of the agent, and
    results, when the interpreter ends."""
    job = torch_job(world, 0, 1, 1)
    job.start(0, [python, "-c", REMAINS, way])
    ended, out, err = job.wait(0)
    assert (ended, out) == (code, "too often\ntoo often\nlast line\n"), err


REMAINS = """
import os, signal, sys, torch, torch.nn as nn
import pskv.torch as hvd

hvd.init()
net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
table = nn.Embedding(5, 3, sparse=True)
o = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=.1))
sparse = hvd.DistributedOptimizer(torch.optim.SparseAdam(table.parameters()))
kept = [hvd.allgather(torch.ones(3, 3)), hvd.alltoall(torch.ones(3, 3)),
        hvd.broadcast_object({'a': torch.ones(3)}, 0),
        hvd.allgather_object([torch.ones(3)])]
table(torch.arange(3)).sum().backward()
sparse.step()
x = torch.ones(4, 3)
# The last backward fails: torch keeps its graph.
for turn in range(3):
    try:
        (net(x) ** 2).mean().backward()
    except AssertionError as e:
        assert 'more than backward_passes_per_step' in str(e), e
        print('too often', flush=True)
print('last line', flush=True)
if sys.argv[1] == 'error':
    raise RuntimeError('the end')
if sys.argv[1] == 'exit':
    sys.exit(3)
if sys.argv[1] == 'signal':
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))
    os.kill(os.getpid(), signal.SIGTERM)
"""


@each_torch
def test_groups_can_be_made_again(world, python):
    """The world and groups in it, at once behind their end, though one rank is
    behind the others."""
    torch_job(world, 1, 2, 3).launch(["-c", AGAIN], python)


AGAIN = """
import datetime, torch, torch.distributed as dist
import pskv.torch

for turn in range(4):
    dist.init_process_group('pskv', timeout=datetime.timedelta(seconds=120))
    r, n = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([0, 2])
    t = torch.ones(3)
    dist.all_reduce(t)
    assert t.tolist() == 3 * [n], t
    if r != 1:
        dist.all_reduce(t, group=pair)
        assert t.tolist() == 3 * [2 * n], t
    if r == turn % n:  # The others are about to make the next world.
        torch.randn(1500, 1500) @ torch.randn(1500, 1500)
    dist.destroy_process_group()
"""


@each_torch
def test_errors_have_the_words_of_the_program(world, python):
    """Its types, shapes, calls and ranks, not those of what is sent; and what
    gloo takes is taken."""
    torch_job(world, 1, 2, 3).launch(["-c", ERRORS_IN_WORDS], python)


ERRORS_IN_WORDS = """
import copy, datetime, pickle, torch, torch.distributed as dist
import pskv, pskv.torch
hvd = pskv.torch

dist.init_process_group('pskv')
r, n = dist.get_rank(), dist.get_world_size()
R = dist.ReduceOp


def wants(words, call, error=Exception):
    try:
        call()
    except error as e:
        assert words in str(e), (words, str(e))
    else:
        assert False, 'no error: ' + words


def f(*dims):
    return torch.ones(*dims)


# Contradictions, at every rank.
z = f(3, 4) if r == 0 else torch.tensor(0.)
wants('rank 0: allgather float32 [3, 4]; rank 1, 2: allgather float32 []',
      lambda: dist.all_gather([z.clone() for _ in range(n)], z))
wants("rank 0: allreduce 'reduce to rank 0' float32 [2] sum; rank 1, 2: "
      "allreduce float32 [2] sum",
      lambda: dist.all_reduce(f(2)) if r else dist.reduce(f(2), 0))
wants('rank 0: allreduce float16 [2] sum; rank 1, 2: allreduce int8 [2] sum',
      lambda: dist.all_reduce(f(2).char() if r else f(2).half()))
wants('rank 0, 2: broadcast float64 [2] from rank 0; rank 1: broadcast '
      'float64 [2] from rank 1', lambda: dist.broadcast(f(2).double(), r % 2))
wants("rank 0: allgather 'gather to rank 0' float32 [5]; rank 1, 2: allgather "
      "'gather to rank 1' float32 [5]", lambda: dist.gather(
          f(5), [f(5)] * n if r < 2 else None, dst=min(r, 1)))
if r != 1:
    wants('rank 2 sends float32 [3]; rank 0 receives float32 [2, 2]',
          lambda: dist.send(f(3), 0, tag=4) if r == 2 else
          dist.recv(f(2, 2), 2, tag=4))
# Other shapes of as many elements.
outs = [f(4) for _ in range(n)]
dist.all_gather(outs, f(2, 2) * r if r else f(4) * r)
assert [o.tolist() for o in outs] == [[float(k)] * 4 for k in range(n)]

# Errors of one rank.
wants('all_gather: expected 3 output tensors, one for each rank, got 2',
      lambda: dist.all_gather([f(1)] * 2, f(1)), ValueError)
wants('all_gather: output tensor 1 is float32 [2], the other tensor is float32 '
      '[1]', lambda: dist.all_gather([f(1), f(2), f(1)], f(1)), ValueError)
wants('BAND of tensors of float16 is not supported',
      lambda: dist.all_reduce(f(2).half(), R.BAND), TypeError)
if hasattr(torch, 'uint64'):
    wants('MIN of tensors of uint64 is not supported; there are float32',
          lambda: dist.all_reduce(torch.ones(2).to(torch.uint64), R.MIN))
wants('cannot be copied, pickled or sent to another process',
      lambda: copy.deepcopy(pskv.torch.HookState()), TypeError)
premul = getattr(dist, '_make_nccl_premul_sum', None)
if premul is not None:
    wants('pskv has no reduction ReduceOp.PREMUL_SUM; it has SUM, AVG',
          lambda: dist.all_reduce(f(2), premul(2.0)), ValueError)

# A time limit of one call.
if r == 0:
    wants('waiting 500ms', lambda: dist.group.WORLD.allreduce(
        [f(2)], timeout=datetime.timedelta(seconds=0.5)).wait())
dist.barrier()
if r != 0:
    dist.all_reduce(f(2))  # Which rank 0 has begun.

# As gloo: parts of different sizes, and types of torch 2.
dist.barrier()
parts = [torch.full((2 + k,), float(r + 1)) for k in range(n)]
out = torch.zeros(2 + r)
dist.reduce_scatter(out, parts)
assert out.tolist() == [6.0] * (2 + r), out
if hasattr(torch, 'uint16'):
    for kind in torch.uint16, torch.uint32:
        t = torch.tensor([5 + r]).to(kind)
        dist.all_reduce(t, R.MIN)
        assert t.item() == 5 and t.dtype == kind, t
    from torch.distributed.distributed_c10d import _coalescing_manager
    a, b = f(2), f(3) * r
    with _coalescing_manager(device=torch.device('cpu'), async_ops=True) as cm:
        dist.all_reduce(a)
        dist.broadcast(b, 1)
    cm.wait()
    assert a.tolist() == [3.0] * 2 and b.tolist() == [1.0] * 3, (a, b)
    dist.group.WORLD._wait_for_pending_works()
    dist.destroy_process_group()
    wants('the ranks of a job of pskv are fixed', lambda:
          dist.init_process_group('pskv', enable_reconfigure=True),
          NotImplementedError)
else:
    dist.destroy_process_group()

hvd.init()
wants('Average of tensors of bool is not supported',
      lambda: hvd.allreduce(torch.tensor([True])), TypeError)
wants('a KVStore cannot be copied', lambda: pickle.dumps(
    hvd.global_process_set.engine().kv), TypeError)
wants('this process is rank %d of job' % r, lambda: pskv.create('dist_sync'))
hvd.shutdown()
"""


@each_torch
def test_time_limits_name_the_operation_and_the_missing_ranks(world, python):
    """Those of a wait, a monitored barrier, a new group, a receive."""
    torch_job(world, 1, 2, 3).launch(["-c", LIMITS], python)


LIMITS = """
import datetime, torch, torch.distributed as dist
import pskv.torch


def after(s):
    return datetime.timedelta(seconds=s)


dist.init_process_group('pskv', timeout=after(600))
r, n = dist.get_rank(), dist.get_world_size()
store = dist.distributed_c10d._get_default_store()
W = dist.group.WORLD


def meet(place):
    store.set('%s of %d' % (place, r), '1')
    for k in range(n):
        store.get('%s of %d' % (place, k))


def f(kind=torch.float32):
    return torch.ones(2, dtype=kind)


def wants(words, call):
    try:
        call()
    except (TimeoutError, RuntimeError) as e:
        assert all(w in str(e) for w in words), (words, str(e))
        assert 'Traceback' not in str(e), e
    else:
        assert False, ('no error', words)


CALLS = [
    ('allreduce', lambda: dist.all_reduce(f(), async_op=True)),
    ("allgather of 'BAND'", lambda: dist.all_reduce(
        f(torch.int32), dist.ReduceOp.BAND, async_op=True)),
    ('allgather', lambda: dist.all_reduce(f().to_sparse(), async_op=True)),
    ('broadcast', lambda: dist.broadcast(f(), 2, async_op=True)),
    ('allgather', lambda: dist.all_gather([f(), f(), f()], f(),
                                          async_op=True)),
    ('reduce-scatter', lambda: dist.reduce_scatter(f(), [f(), f(), f()],
                                                   async_op=True)),
    ('allreduce', lambda: W.allreduce_coalesced(
        [f(), f(torch.float64)], dist.AllreduceCoalescedOptions())),
    ('barrier', lambda: dist.barrier(async_op=True))]
MAIL = [
    ('recv from rank 2 with tag 5 is open: rank 2 has not sent it',
     lambda: dist.irecv(f(), 2, tag=5)),
    ('send to rank 2 with tag 6 is open: rank 2 has not received it',
     lambda: dist.isend(f(), 2, tag=6)),
    ('recv from any rank with tag %d is open: no rank has sent' % r,
     lambda: dist.irecv(f(), tag=r))]
if r == 2:
    meet('limits')
    works = [call() for _, call in CALLS]
    for k in 0, 1:
        dist.send(f(), k, tag=5)
        dist.recv(f(), k, tag=6)
        dist.send(f(), k, tag=k)
else:
    works = []
    for words, call in CALLS + MAIL:
        works.append(call())
        wants(['[pskv] Timed out waiting 50ms: ' + words,
               'open' if (words, call) in MAIL else 'missing: rank 2 on '],
              lambda: works[-1].wait(after(.05)))
    meet('limits')
for w in works:  # A limit of a wait ends the wait alone.
    w.wait()
meet('waits')

# One tensor in two operations, of which the first waits.
if r == 0:
    t = f()
    w = dist.all_reduce(t, async_op=True)
    wants(['Timed out waiting 50ms: another operation on the same tensor has '
           'not ended: allreduce is open', 'missing: rank 1 on '],
          lambda: pskv.torch._tensor.acquire([t], (), .05))
    meet('owner')
else:
    meet('owner')
    w = dist.all_reduce(f(), async_op=True)
w.wait()

if r == 2:
    meet('monitored 0')
else:
    wants(['Rank 2 failed to pass'] if r == 0 else
          ['Rank 1 successfully reached', 'Rank 2 had not reached it'],
          lambda: dist.monitored_barrier(timeout=after(3)))
    meet('monitored 0')
if r == 2:
    wants(['Rank 2 successfully reached'], lambda: dist.monitored_barrier())
if r == 0:
    meet('monitored 2')
    meet('monitored 1')
else:
    meet('monitored 2')
    wants(['Rank %d successfully reached' % r, 'Rank 0 had not reached it'],
          lambda: W.monitored_barrier(after(6)))
    meet('monitored 1')

# Ranks of a new group that do not come: one, and the one that names it.
for absent in 2, 0:
    if r != absent:
        wants(['Timed out waiting 3000ms', 'new_group()',
               'missing: rank 2' if absent == 2 else
               'missing: rank 0 of 3' if r == 1 else
               # Of the group of before, which it was late for.
               'missing: ranks 0-1'], lambda: dist.new_group(timeout=after(3)))
    meet('group without %d' % absent)
meet('end')
"""


@each_torch
@pytest.mark.parametrize("front", ["backend", "horovod"])
def test_a_program_that_an_exception_ends_has_not_left(world, python, front):
    """The others are told that it was lost, at once; its threads, one of which
    waits for an operation that the others do not make, end."""
    job = torch_job(world, 1, 2, 2)
    for rank in range(2):
        job.start(rank, [python, "-c", FAILING, front], RANK=rank,
                  WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=job.port,
                  PSKV_NUM_SERVERS=1)
    code, _, err = job.wait(1)
    assert code == 1 and "the end" in err, err
    code, out, err = job.wait(0)
    assert code == 0 and "rank 1 on" in out and "was lost" in out, (out, err)
    assert "good order" not in out, out


FAILING = """
import os, sys, torch, torch.distributed as dist
import pskv.torch as hvd

if sys.argv[1] == 'horovod':
    hvd.init()
    r, total, more = hvd.rank(), hvd.allreduce, hvd.allreduce_async
else:
    dist.init_process_group('pskv')
    r, total = dist.get_rank(), dist.all_reduce
    def more(t, name):
        return dist.barrier(async_op=True)
total(torch.ones(4))
if r == 1:
    kept = [more(torch.ones(4), name='of rank 1')]
    raise RuntimeError('the end')
try:
    total(torch.ones(4))
except RuntimeError as e:
    print(e, flush=True)
    os._exit(0)  # The store of torch waits for the dead.
"""


@pytest.mark.parametrize("when", ["before the names", "among the names"])
def test_a_rank_lost_while_names_are_exchanged(world, when):
    """Collectives that differ, of which the ranks exchange the names: those of
    the others fail."""
    job = torch_job(world, 1, 2, 2)
    for rank in range(2):
        job.start(rank, [PYTHON, "-c", LOST_NAMES, when], RANK=rank,
                  WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=job.port,
                  PSKV_NUM_SERVERS=1)
    harness.wait_for(lambda: "torch/names" in world.trio.open_jobs(),
                     "the job of the names")
    job.processes[1].stdin.write("\n")
    job.processes[1].stdin.flush()
    assert job.wait(1)[0] == 1
    code, out, err = job.wait(0)
    assert code == 0 and "rank 1 on" in out and "was lost" in out, (out, err)


LOST_NAMES = """
import os, sys, torch
import pskv, pskv._horovod.match
import pskv.torch as hvd

hvd.init()
if hvd.rank() == 0:
    try:
        hvd.allreduce(torch.ones(4), name='of rank 0')
    except RuntimeError as e:
        print(e, flush=True)
        os._exit(0)


def end(*_, **__):
    sys.stdin.readline()
    os._exit(1)


if sys.argv[1] == 'before the names':
    pskv.KVStore.group = end
else:
    pskv._horovod.match.Matcher._exchange = end
hvd.allreduce(torch.ones(4), name='of rank 1')
"""


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


@pytest.mark.parametrize("servers, agents", [(0, 1), (1, 2)])
def test_continuations_that_wait_for_collectives(world, servers, agents):
    """A callback of a future starts and waits for another collective, as
    torch's PowerSGD hook does."""
    torch_job(world, servers, agents, 2).launch(["-c", CONTINUATIONS])


CONTINUATIONS = """
import torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP
import pskv.torch

dist.init_process_group('pskv')
r, n = dist.get_rank(), dist.get_world_size()


def again(depth):
    def then(future):
        t = future.value()[0].clone()
        work = dist.all_reduce(t, async_op=True)
        if depth == 0:
            work.wait()
            return [t]
        return work.get_future().then(again(depth - 1)).wait()
    return then


works = [dist.all_reduce(torch.full((3,), float(i)), async_op=True)
         for i in range(4)]
futures = []
for w in works:  # One after the other: their collectives have an order.
    futures.append(w.get_future().then(again(2)))
    futures[-1].wait()
for i, f in enumerate(futures):
    assert (f.value()[0] == i * n ** 4).all(), f.value()

# Continuations that wait for a collective that the program has started.
gate = torch.futures.Future()
started = [dist.all_reduce(torch.ones(2), async_op=True).get_future()
           for i in range(2)]  # then() may call a continuation itself.
started[1].then(lambda f: gate.set_result(f.value()))
first = started[0].then(lambda f: gate.wait()[0] + f.value()[0])
assert (first.wait() == 2 * n).all()

torch.manual_seed(1)
model = DDP(torch.nn.Sequential(torch.nn.Linear(40, 30),
                                torch.nn.Linear(30, 20)))
state = powerSGD_hook.PowerSGDState(process_group=None,
                                    matrix_approximation_rank=2,
                                    start_powerSGD_iter=2)
model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(
        10 * step + r))
    model(x).pow(2).mean().backward()
    optimizer.step()
for p in model.parameters():
    every = [torch.empty_like(p) for _ in range(n)]
    dist.all_gather(every, p.detach())
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
