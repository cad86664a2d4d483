# SPDX-License-Identifier: Apache-2.0
"""A rank of test_torch2.py: torch2_features.py BACKEND FILE [FEATURE...]. Runs
functions of torch 2 and writes what each gives on this rank, as text."""
import datetime
import pathlib
import sys
import traceback

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (DTensor, Partial, Replicate, Shard,
                                      distribute_tensor)
from torch.distributed.tensor.parallel import (ColwiseParallel,
                                               RowwiseParallel,
                                               parallelize_module)

BACKEND, FILE = sys.argv[1:3]
if BACKEND == "pskv":
    import pskv.torch  # noqa: F401  pylint: disable=unused-import

SECONDS = datetime.timedelta(seconds=60)
FEATURES = {}


def feature(f):
    FEATURES[f.__name__] = f
    return f


def value(*dims):
    """Another tensor on each rank, of whole numbers."""
    t = torch.zeros(dims)
    return t + torch.arange(float(t.numel())).view(dims) + 100 * dist.get_rank()


def plain(x):
    """A result as lists and numbers that compare."""
    if isinstance(x, DTensor):
        return ["dtensor", str(x.placements), plain(x.to_local())]
    if isinstance(x, torch.Tensor):
        x = x.detach()
        if x.is_sparse:
            return ["sparse", plain(x.coalesce().to_dense())]
        # Sums in another order differ in the last bits.
        return [str(x.dtype), list(x.shape),
                [round(v, 4) for v in x.double().reshape(-1).tolist()]]
    if isinstance(x, (list, tuple)):
        return [plain(y) for y in x]
    if isinstance(x, dict):
        return {str(k): plain(v) for k, v in x.items()}
    return x if isinstance(x, (int, str, type(None))) else repr(x)


def error_of(call):
    try:
        call()
    except Exception as e:  # pylint: disable=broad-except
        return e
    return None


# ------------------------------------------------------------------- groups


@feature
def group_names():
    world = dist.group.WORLD
    own = dist.new_group([0, 2], group_desc="mine")
    found = dist.distributed_c10d._resolve_process_group(world.group_name)
    got = [world.group_name, world.group_desc, found == world, found.size(),
           dist.get_process_group_ranks(world)]
    if dist.get_rank() in (0, 2):
        found = dist.distributed_c10d._resolve_process_group(own.group_name)
        got += [own.group_name, own.group_desc, found == own,
                dist.get_process_group_ranks(own), dist.get_group_rank(own, 2)]
        dist.destroy_process_group(own)
    return got


@feature
def devices_of_a_group():
    world = dist.group.WORLD
    return [torch.device("cpu") in world._device_types,
            world._get_backend(torch.device("cpu")).size(),
            world.bound_device_id, dist.get_backend() == BACKEND]


@feature
def groups_made_again():
    got = []
    for turn in range(3):
        group = dist.new_group([0, 1, 3])
        if dist.get_rank() != 2:
            t = value(3) + turn
            dist.all_reduce(t, group=group)
            got.append(t)
            dist.destroy_process_group(group)
    return got


@feature
def subgroups():
    group, every = dist.new_subgroups(2)
    t = value(2)
    dist.all_reduce(t, group=group)
    again, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    u = value(2)
    dist.all_reduce(u, group=again)
    return t, u, len(every)


@feature
def split_of_a_group():
    part = dist.split_group(split_ranks=[[0, 3], [1, 2]])
    t = value(2)
    dist.all_reduce(t, group=part)
    return t, dist.get_rank(part), dist.get_process_group_ranks(part)


@feature
def time_limit_of_a_group():
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    failure = None
    if dist.get_rank() == 0:
        failure = error_of(lambda: dist.barrier(group))
    dist.barrier()
    return isinstance(failure, RuntimeError), \
        "timed out waiting 1000ms" in str(failure).lower()


@feature
def time_limit_of_a_barrier():
    group = dist.new_group(timeout=SECONDS)
    failure = None
    if dist.get_rank() == 0:
        failure = error_of(lambda: group.barrier(
            timeout=datetime.timedelta(milliseconds=50)).wait())
    dist.barrier()
    return "timed out waiting 50ms" in str(failure).lower()


@feature
def monitored_barrier():
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=SECONDS, wait_all_ranks=True)
    got = []
    for every in False, True:
        group = dist.new_group()
        failure = None
        if dist.get_rank() not in (1, 3):
            failure = error_of(lambda g=group, w=every: dist.monitored_barrier(
                g, datetime.timedelta(seconds=0.5), wait_all_ranks=w))
        dist.barrier()
        text = str(failure)
        got.append([
            isinstance(failure, RuntimeError),
            "Rank 1 failed to pass monitoredBarrier in 500 ms" in text,
            "Ranks 1, 3 failed to pass monitoredBarrier in 500 ms" in text,
            "successfully reached monitoredBarrier, but received errors "
            "while waiting for send/recv from rank 0" in text])
    return got


# ------------------------------------------------------------- collectives


@feature
def into_one_tensor():
    n = dist.get_world_size()
    flat, rows = torch.empty(n * 6), torch.empty(n * 2, 3)
    dist.all_gather_into_tensor(flat, value(6))
    dist.all_gather_into_tensor(rows, value(2, 3))
    out, whole = torch.empty(2, 3), torch.empty(3)
    dist.reduce_scatter_tensor(out, value(n * 2, 3))
    dist.reduce_scatter_tensor(whole, value(n * 3), dist.ReduceOp.MAX)
    return flat, rows, out, whole


@feature
def all_to_all():
    n, r = dist.get_world_size(), dist.get_rank()
    outs = [torch.empty(3) for _ in range(n)]
    dist.all_to_all(outs, [value(3) + i for i in range(n)])
    single = torch.empty(n * 2)
    dist.all_to_all_single(single, value(n * 2))
    some = torch.empty(r * n, 2)
    dist.all_to_all_single(some, value(sum(range(n)), 2), [r] * n,
                           list(range(n)))
    return outs, single, some


@feature
def every_type():
    got = []
    for kind in (torch.float64, torch.float16, torch.bfloat16, torch.int8,
                 torch.uint8, torch.int32, torch.int64):
        t = torch.arange(5).to(kind)
        dist.all_reduce(t)
        dist.broadcast(t, 2)
        got.append(t)
    for kind in torch.complex64, torch.complex128:
        t = torch.complex(value(3), value(3)).to(kind)
        dist.all_reduce(t)
        got.append(torch.view_as_real(t))
    return got


@feature
def objects():
    n, r = dist.get_world_size(), dist.get_rank()
    scattered = [None]
    dist.scatter_object_list(scattered, [{"to": i} for i in range(n)]
                             if r == 1 else None, 1)
    gathered = [None] * n if r == 2 else None
    dist.gather_object(("from", r), gathered, 2)
    every = [None] * n
    dist.all_gather_object(every, "x" * r)
    cast = [r, str(r)]
    dist.broadcast_object_list(cast, 3)
    sent = [None, None]
    if r == 0:
        dist.send_object_list([1, {"a": 2}], 1)
    elif r == 1:
        dist.recv_object_list(sent, 0)
    return scattered, gathered, every, cast, sent


@feature
def receive_from_any_rank():
    n, r = dist.get_world_size(), dist.get_rank()
    got = []
    for turn in range(3):
        if r == 0:
            senders = []
            for _ in range(n - 1):
                t = torch.empty(4)
                sender = dist.recv(t)
                assert (t == 100 * sender + turn).all(), (sender, t)
                senders.append(sender)
            got.append(sorted(senders))
        else:
            dist.send(torch.full((4,), 100. * r + turn), 0)
        dist.barrier()
    # A tag of its own, another size; then a sender with its name.
    if r == 3:
        a, b, c = torch.empty(2), torch.empty(5), torch.empty(3)
        work = dist.irecv(b, tag=6)
        got.append(dist.recv(a, tag=5))
        work.wait()
        got.append(work._source_rank())
        dist.recv(c, src=1, tag=5)
        return got, a, b, c
    if r == 1:
        works = [dist.isend(value(2), 3, tag=5)]
        works.append(dist.isend(value(3), 3, tag=5))
        for work in works:
            work.wait()
    if r == 2:
        dist.send(value(5), 3, tag=6)
    return got


@feature
def batches_of_messages():
    n, r = dist.get_world_size(), dist.get_rank()
    came = torch.empty(3)
    for work in dist.batch_isend_irecv([
            dist.P2POp(dist.isend, value(3), (r + 1) % n),
            dist.P2POp(dist.irecv, came, (r - 1) % n)]):
        work.wait()
    return came


@feature
def sparse_sums():
    r = dist.get_rank()
    got = []
    for kind in torch.float32, torch.float64, torch.int64:
        t = torch.sparse_coo_tensor([[0, r, r], [1, 2, 2]],
                                    torch.tensor([1, 2, 3]).to(kind), (5, 4))
        dist.all_reduce(t)
        got.append(t)
    rows = torch.sparse_coo_tensor([list(range(r))], torch.ones(r, 3), (4, 3))
    work = dist.all_reduce(rows, async_op=True)
    work.wait()
    failure = error_of(lambda: dist.all_reduce(rows, dist.ReduceOp.MAX))
    return got, rows, type(failure).__name__


@feature
def coalescing():
    n = dist.get_world_size()
    tensors = [value(3), value(2, 2)]
    with dist.distributed_c10d._coalescing_manager():
        for t in tensors:
            dist.all_reduce(t)
    outs = [torch.empty(n * 3), torch.empty(n * 4)]
    with dist.distributed_c10d._coalescing_manager(async_ops=True) as work:
        for o, t in zip(outs, [value(3), value(4)]):
            dist.all_gather_into_tensor(o, t)
    work.wait()
    parts = [torch.empty(3), torch.empty(4)]
    with dist.distributed_c10d._coalescing_manager():
        for o, t in zip(parts, [value(n * 3), value(n * 4)]):
            dist.reduce_scatter_tensor(o, t)
    return tensors, outs, parts


@feature
def futures():
    t = value(3)
    work = dist.all_reduce(t, async_op=True)
    doubled = work.get_future().then(lambda f: f.value()[0] * 2)
    return doubled.wait()


@feature
def functional_collectives():
    group = dist.group.WORLD
    n = dist.get_world_size()
    got = [
        funcol.all_reduce(value(3), "sum", group),
        funcol.all_reduce(value(3), "max", [0, 1, 2, 3]),
        funcol.all_gather_tensor(value(2, 3), 0, group),
        funcol.all_gather_tensor(value(2, 3), 1, group),
        funcol.reduce_scatter_tensor(value(n * 2, 3), "sum", 0, group),
        funcol.reduce_scatter_tensor(value(2, n * 3), "sum", 1, group),
        funcol.all_to_all_single(value(n * 2), None, None, group),
        funcol.broadcast(value(3), 2, group),
        funcol.permute_tensor(value(3), [1, 2, 3, 0], group),
        funcol.all_reduce_coalesced([value(2), value(3)], "sum", group),
        funcol.all_gather_into_tensor_coalesced([value(2), value(3)], group),
        funcol.reduce_scatter_tensor_coalesced(
            [value(n), value(n * 2)], "sum", [0, 0], group)]
    return [[y + 0 for y in x] if isinstance(x, list) else x + 0 for x in got]


@feature
def gradients_of_functional_collectives():
    group = dist.group.WORLD
    n = dist.get_world_size()
    got = []
    for call in (
            lambda t: funcol.all_gather_tensor_autograd(t, 0, group),
            lambda t: funcol.reduce_scatter_tensor_autograd(t, "sum", 0,
                                                            group),
            lambda t: funcol.all_to_all_single_autograd(
                t, [2] * n, [2] * n, group)):
        t = value(n * 2).requires_grad_()
        out = call(t)
        (out * value(*out.shape)).sum().backward()
        got += [out + 0, t.grad]
    return got


# ------------------------------------------------------- meshes and DTensor


@feature
def meshes():
    line = init_device_mesh("cpu", (4,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    got = [line.get_rank(), line.size(), grid.get_coordinate(),
           grid["tp"].get_local_rank(), grid.get_local_rank("dp")]
    for name in "dp", "tp":
        t = value(2)
        dist.all_reduce(t, group=grid.get_group(name))
        got += [t, dist.get_process_group_ranks(grid[name].get_group())]
    all_of = grid._flatten("all")
    t = value(2)
    dist.all_reduce(t, group=all_of.get_group())
    mine = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    return got, t, mine.size(), [g.size() for g in grid.get_all_groups()]


@feature
def tensors_that_are_distributed():
    mesh = init_device_mesh("cpu", (4,))
    whole = torch.arange(60.).view(10, 6)
    got = []
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    columns = rows.redistribute(mesh, [Shard(1)])
    got += [rows, columns, rows.redistribute(mesh, [Replicate()]),
            columns.full_tensor()]
    part = DTensor.from_local(value(8, 3), mesh, [Partial()])
    got += [part.redistribute(mesh, [Shard(0)]),
            part.redistribute(mesh, [Replicate()])]
    # Of one rank alone the data counts.
    got.append(distribute_tensor(value(5, 2), mesh, [Replicate()]))
    return got


@feature
def products_of_distributed_tensors():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    torch.manual_seed(1)
    x, w = torch.randn(8, 6), torch.randn(6, 4)
    left = distribute_tensor(x, mesh, [Shard(0), Shard(1)])
    right = distribute_tensor(w, mesh, [Replicate(), Shard(0)])
    left.requires_grad_()
    out = left @ right
    out.sum().backward()
    return out.full_tensor(), left.grad.full_tensor(), \
        torch.nn.functional.softmax(left.detach(), 1).full_tensor()


# ------------------------------------------------------------------ models


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.second = nn.Linear(12, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def trained(model, share, steps=3):
    """Losses, and weights after some steps; ranks of one share have the same
    data."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, foreach=False)
    losses = []
    for step in range(steps):
        g = torch.Generator().manual_seed(100 * step + share)
        loss = model(torch.randn(5, 6, generator=g)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    weights = [p.full_tensor() if isinstance(p, DTensor) else p
               for p in model.parameters()]
    return losses, weights


@feature
def fully_sharded():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (4,))
    model = Net()
    fully_shard(model.first, mesh=mesh)
    fully_shard(model.second, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return trained(model, dist.get_rank())


@feature
def fully_sharded_and_replicated():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("r", "s"))
    return trained(fully_shard(Net(), mesh=mesh), dist.get_rank())


@feature
def tensor_parallel():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (4,))
    model = parallelize_module(Net(), mesh, {"first": ColwiseParallel(),
                                             "second": RowwiseParallel()})
    return trained(model, 0)


@feature
def tensor_parallel_and_fully_sharded():
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(Net(), mesh["tp"], {
        "first": ColwiseParallel(), "second": RowwiseParallel()})
    return trained(fully_shard(model, mesh=mesh["dp"]),
                   mesh["dp"].get_local_rank())


@feature
def replicated():
    torch.manual_seed(0)
    return trained(nn.parallel.DistributedDataParallel(Net()),
                   dist.get_rank())


@feature
def sparse_gradients():
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(
        nn.Embedding(10, 3, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    r = dist.get_rank()
    for _ in range(2):
        model(torch.tensor([r, r + 1, 9])).pow(2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


@feature
def checkpoint():
    from torch.distributed import checkpoint as dcp
    torch.manual_seed(0)
    folder = pathlib.Path(f"{FILE}.{BACKEND}.dcp")
    mesh = init_device_mesh("cpu", (4,))
    model = fully_shard(Net(), mesh=mesh)
    dcp.save(model.state_dict(), checkpoint_id=folder)
    torch.manual_seed(1)
    other = fully_shard(Net(), mesh=mesh)
    state = other.state_dict()
    dcp.load(state, checkpoint_id=folder)
    other.load_state_dict(state)
    return [p.full_tensor() for p in other.parameters()]


@feature
def optimizer_of_shards():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(),
                                        torch.optim.Adam, lr=0.05)
    for _ in range(2):
        model(value(2, 6) / 100).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


@feature
def stages_of_a_pipeline():
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    torch.manual_seed(0)
    n, r = dist.get_world_size(), dist.get_rank()
    layers = [nn.Linear(3, 3) for _ in range(n)]
    stage = PipelineStage(layers[r], r, n, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=lambda a, b: (a - b).pow(2).sum())
    x, losses = torch.ones(4, 3), []
    if r == 0:
        schedule.step(x)
    elif r == n - 1:
        schedule.step(target=2 * x, losses=losses)
    else:
        schedule.step()
    return losses, [p.grad for p in layers[r].parameters()]


def the_world_made_again():
    """Last: all groups end. The store is the same in each turn."""
    got = []
    store = dist.distributed_c10d._get_default_store()
    r, n = dist.get_rank(), dist.get_world_size()
    for turn in range(2):
        dist.barrier()
        dist.destroy_process_group()
        got.append(dist.is_initialized())
        dist.init_process_group(BACKEND, store=store if BACKEND == "pskv" else
                                dist.PrefixStore(str(turn), store),
                                rank=r, world_size=n, timeout=SECONDS)
        t = value(2)
        dist.all_reduce(t)
        got.append(t)
    return got


def main():
    dist.init_process_group(BACKEND, timeout=SECONDS)
    got = {}
    chosen = sys.argv[3:] or [*FEATURES, "the_world_made_again"]
    for name in chosen:
        call = FEATURES.get(name) or globals()[name]
        try:
            got[name] = plain(call())
        except Exception:  # pylint: disable=broad-except
            got[name] = traceback.format_exc()
            print(f"{name}: {got[name]}", file=sys.stderr, flush=True)
    torch.save(got, f"{FILE}.{BACKEND}.{dist.get_rank()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
