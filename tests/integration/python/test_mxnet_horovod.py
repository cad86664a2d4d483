# SPDX-License-Identifier: Apache-2.0
"""Horovod's interface for MXNet, pskv.mxnet.horovod."""
import textwrap

import pytest

import trio as harness
from test_mxnet import PYTHON, launch, pytestmark, run  # noqa: F401

BEGIN = """
import itertools
import os
import sys
import mxnet as mx
import numpy as np
import pskv.mxnet.horovod as hvd
from mxnet.base import MXNetError
hvd.init()
me, n = hvd.rank(), hvd.size()
TYPES = ('float32', 'float64', 'float16', 'uint8', 'int32', 'int8', 'int64',
         'bool')

def event(name):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    try:
        os.mkfifo(path)
    except FileExistsError:
        pass
    return path

def await_event(name):
    with open(event(name)) as f:
        assert f.read() == name

def tell_event(name):
    with open(event(name), 'w') as f:
        f.write(name)

def raises(kind, text, call, *args, **more):
    try:
        got = call(*args, **more)
        if isinstance(got, mx.nd.NDArray):
            got.wait_to_read()
    except kind as e:
        assert text in str(e), (text, e)
        return
    raise AssertionError('no %s: %s' % (kind, text))

def same(a, b):
    a = a.asnumpy() if hasattr(a, 'asnumpy') else np.asarray(a)
    b = b.asnumpy() if hasattr(b, 'asnumpy') else np.asarray(b)
    assert a.dtype == b.dtype, (a.dtype, b.dtype)
    assert a.shape == b.shape, (a.shape, b.shape)
    assert (a == b).all(), (a, b)

def given(rank, dtype, shape=(3, 5)):
    a = np.arange(np.prod(shape)).reshape(shape) % 7 + 3 * rank
    return (a % 2 if dtype == 'bool' else a).astype(dtype)
"""


def horovod(tmp, workers, text, servers=1):
    script = tmp / "script.py"
    script.write_text(BEGIN + textwrap.dedent(text) + "\nprint('done')\n")
    done = launch(workers, servers, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == workers, done.stdout
    return done


@pytest.mark.parametrize("workers", [2, 3])
def test_values_of_every_type(tmp, workers):
    """Reductions, transfers and objects have the values of NumPy."""
    horovod(tmp, workers, """
    OPS = {hvd.Sum: np.add, hvd.Min: np.minimum, hvd.Max: np.maximum,
           hvd.Product: np.multiply}
    for dtype in TYPES:
        every = [given(r, dtype) for r in range(n)]
        mine = mx.nd.array(every[me], dtype=dtype)
        for op, f in OPS.items():
            same(hvd.allreduce(mine, op=op), f.reduce(every).astype(dtype))
        same(hvd.allreduce(mine, average=False),
             np.add.reduce(every).astype(dtype))
        same(mine, every[me])
        if dtype == 'bool':
            raises(ValueError, 'no mean', hvd.allreduce, mine)
        else:
            wide = np.sum([e.astype('float64') for e in every], axis=0)
            same(hvd.allreduce(mine), (wide / n).astype(dtype))
            same(hvd.allreduce(mine, op=hvd.Sum, postscale_factor=0.5),
                 (wide / 2).astype(dtype))
            half = [(e.astype('float64') / 2).astype(dtype) for e in every]
            same(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5),
                 np.add.reduce(half).astype(dtype))
        place = mine.copy()
        assert hvd.allreduce_(place, op=hvd.Max) is place
        same(place, np.maximum.reduce(every))
        outs = hvd.grouped_allreduce(
            [mine, mx.nd.zeros((3, 5), dtype=dtype)], op=hvd.Sum)
        same(outs[0], np.add.reduce(every).astype(dtype))
        same(outs[1], np.zeros((3, 5), dtype))
        for root in range(n):
            same(hvd.broadcast(mine, root), every[root])
        place = mine.copy()
        hvd.broadcast_(place, n - 1, name='b')
        same(place, every[n - 1])
        rows = mx.nd.array(given(me, dtype, (me + 1, 3)), dtype=dtype)
        joined = np.concatenate([given(r, dtype, (r + 1, 3))
                                 for r in range(n)])
        same(hvd.allgather(rows), joined)
        for got in hvd.grouped_allgather([rows, rows], name='two'):
            same(got, joined)
        long = mx.nd.array(given(me, dtype, (2 * n, 3)), dtype=dtype)
        same(hvd.alltoall(long), np.concatenate(
            [given(r, dtype, (2 * n, 3))[2 * me:2 * me + 2]
             for r in range(n)]))
        sends = [(me + r) % 2 + 1 for r in range(n)]
        got, counts = hvd.alltoall(long, splits=sends)
        parts = []
        for r in range(n):
            to = [(r + q) % 2 + 1 for q in range(n)]
            parts.append(given(r, dtype, (2 * n, 3))[
                sum(to[:me]):sum(to[:me + 1])])
        same(got, np.concatenate(parts))
        same(counts, np.array([len(p) for p in parts], 'int32'))
        total = np.add.reduce([given(r, dtype, (2 * n + 1, 3))
                               for r in range(n)]).astype(dtype)
        odd = mx.nd.array(given(me, dtype, (2 * n + 1, 3)), dtype=dtype)
        start = 2 * me + min(me, 1)
        same(hvd.reducescatter(odd, op=hvd.Sum),
             total[start:start + 2 + (me == 0)])
        for got in hvd.grouped_reducescatter([odd, odd], op=hvd.Sum):
            same(got, total[start:start + 2 + (me == 0)])
    mixed = [mx.nd.ones((2,), dtype=t) * (me + 1) for t in TYPES[:6]]
    hvd.grouped_allreduce_(mixed, op=hvd.Sum, name='mixed')
    for a, t in zip(mixed, TYPES):
        same(a, np.full((2,), n * (n + 1) // 2, t))
    assert hvd.broadcast_object({'a': me}, n - 1) == {'a': n - 1}
    assert hvd.broadcast_object(None if me else [1, 'x']) == [1, 'x']
    assert hvd.allgather_object('x' * me) == ['x' * r for r in range(n)]
    """)


def test_names_and_ranks(tmp):
    """The 48 names of horovod.mxnet 0.28.1, and what a job says of itself."""
    horovod(tmp, 2, """
    NAMES = '''Adasum Average Compression DistributedOptimizer
    DistributedTrainer Max Min ProcessSet Product Sum add_process_set
    allgather allgather_object allreduce allreduce_ alltoall broadcast
    broadcast_ broadcast_object broadcast_parameters ccl_built cross_rank
    cross_size cuda_built ddl_built global_process_set gloo_built gloo_enabled
    grouped_allgather grouped_allreduce grouped_allreduce_
    grouped_reducescatter init is_initialized local_rank local_size mpi_built
    mpi_enabled mpi_threads_supported nccl_built rank reducescatter
    remove_process_set rocm_built shutdown size start_timeline
    stop_timeline'''.split()
    assert len(NAMES) == 48
    for name in NAMES:
        assert hasattr(hvd, name), name
    assert [int(op) for op in (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min,
                               hvd.Max, hvd.Product)] == [0, 1, 2, 3, 4, 5]
    assert (n, hvd.local_size(), hvd.cross_size()) == (2, 2, 1)
    assert (hvd.local_rank(), hvd.cross_rank()) == (me, 0)
    assert hvd.is_homogeneous() and hvd.is_initialized()
    assert hvd.gloo_built() and hvd.gloo_enabled()
    assert not (hvd.mpi_built() or hvd.mpi_enabled() or hvd.nccl_built() or
                hvd.cuda_built() or hvd.rocm_built() or hvd.ddl_built() or
                hvd.ccl_built() or hvd.mpi_threads_supported())
    assert hvd.split_list([1, 2, 3, 4, 5], 2) == [[1, 2, 3], [4, 5]]
    half = hvd.Compression.fp16.compress(mx.nd.ones((2,)))
    assert half[0].dtype == np.float16
    same(hvd.Compression.fp16.decompress(*half), np.ones((2,), 'float32'))
    hvd.shutdown()
    assert not hvd.is_initialized()
    raises(ValueError, 'use hvd.init()', hvd.rank)
    raises(ValueError, 'use hvd.init()', hvd.allreduce, mx.nd.ones((1,)))
    hvd.init()
    same(hvd.allreduce(mx.nd.ones((1,)), op=hvd.Sum), np.full(1, 2, 'float32'))
    """)


def test_operations_wait_for_their_arrays(tmp):
    """Calls return at once; results are read after they have arrived, and in
    any order."""
    horovod(tmp, 2, """
    x = mx.nd.ones((64,)) * (me + 1)
    if me == 1:
        await_event('called')
    outs = []
    for i in range(20):
        outs.append(hvd.allreduce(x * (i + 1), op=hvd.Sum, name=str(i),
                                  priority=-i))
    y = outs[3] + outs[4]
    if me == 0:  # The calls have returned, and rank 1 has not begun.
        tell_event('called')
    for i in reversed(range(20)):
        same(outs[i], np.full(64, 3 * (i + 1), 'float32'))
    same(y, np.full(64, 27, 'float32'))
    # A chain in place: each one reads the result of the one before.
    for _ in range(5):
        hvd.allreduce_(x, op=hvd.Sum, name='x')
    same(x, np.full(64, 3 * 2 ** 4, 'float32'))
    # Ranks that call them in different orders.
    a, b = mx.nd.ones((3,)), mx.nd.ones((4,)) * 2
    for name in ('ab' if me == 0 else 'ba'):
        hvd.allreduce_(a if name == 'a' else b, op=hvd.Sum, name=name)
    same(a, np.full(3, 2, 'float32'))
    same(b, np.full(4, 4, 'float32'))
    with mx.autograd.record():
        w = mx.nd.ones((2,))
        w.attach_grad()
        loss = (w * w).sum()
        hvd.allreduce_(mx.nd.ones((2,)), name='inside')
    loss.backward()
    same(hvd.allreduce(w.grad), np.full(2, 2, 'float32'))
    """)


@pytest.mark.parametrize("workers", [2, 3])
def test_different_requests_fail_on_every_rank(tmp, workers):
    """Readers of the results get an error that lists the requests, and the
    job goes on."""
    horovod(tmp, workers, """
    shapes = mx.nd.ones((17 + me, 3))
    types = mx.nd.ones((17, 3)).astype('int32' if me == 0 else 'float32')
    ranks = mx.nd.ones((6, 4) if me == 0 else (6, 2, 2))
    for call in (hvd.allreduce, hvd.allreduce_, hvd.reducescatter,
                 lambda x: hvd.broadcast(x, 0),
                 lambda x: hvd.broadcast_(x, 0)):
        for x, text in ((shapes, '[18, 3]'), (types, 'int32 [17, 3]'),
                        (ranks, '[6, 2, 2]')):
            raises(MXNetError, text, call, x.copy())
    for call in (hvd.allgather, lambda x: hvd.alltoall(x, [1] * n)):
        for x, text in ((types, 'int32 [*, 3]'), (ranks, '[*, 2, 2]')):
            raises(MXNetError, text, call, x.copy())
    x = mx.nd.ones((2,))
    raises(MXNetError, 'from rank 1', hvd.broadcast, x, me % 2)
    raises(MXNetError, '', hvd.allreduce, x,
           op=hvd.Sum if me == 0 else hvd.Max)
    raises(MXNetError, '', hvd.allreduce, x, prescale_factor=1.0 + me)
    raises(MXNetError, 'out of range', hvd.broadcast, x, n)
    raises(ValueError, 'needs splits', hvd.alltoall, mx.nd.ones((n + 1,)))
    raises(ValueError, 'the splits are', hvd.alltoall, x, [2] * n)
    raises(ValueError, '32-bit', hvd.alltoall, mx.nd.ones((n,)),
           mx.nd.ones((n,)))
    raises(ValueError, 'supersedes', hvd.allreduce, x, average=True,
           op=hvd.Sum)
    raises(AssertionError, '', hvd.allreduce, x, op=hvd.Adasum)
    raises(AssertionError, '', hvd.reducescatter, x, op=hvd.Max)
    raises(TypeError, 'dense', hvd.allreduce, x.tostype('row_sparse'))
    raises(ValueError, 'invalid params', hvd.broadcast_parameters, [x])
    # What has failed fails what is computed from it, too, but not others.
    bad = hvd.allreduce(shapes) + 1
    good = hvd.allreduce(x, op=hvd.Sum)
    raises(MXNetError, '[18, 3]', bad.wait_to_read)
    same(good, np.full(2, n, 'float32'))
    # Names in use: rank 0 begins when the others have been refused.
    outs = []
    if me > 0:
        outs = [hvd.allreduce(x, name='twice', op=hvd.Sum) for _ in range(2)]
        raises(MXNetError, 'use a different tensor name', outs[1].wait_to_read)
        tell_event('refused%d' % me)
    else:
        for rank in range(1, n):
            await_event('refused%d' % rank)
        outs = [hvd.allreduce(x, name='twice', op=hvd.Sum)]
    same(outs[0], np.full(2, n, 'float32'))
    """)


def test_process_sets(tmp):
    """Sets of ranks have collectives of their own."""
    horovod(tmp, 3, """
    even, last = hvd.add_process_set([0, 2]), hvd.add_process_set([1])
    mine = last if me == 1 else even
    x = mx.nd.ones((4,)) * me
    assert (even.size(), even.included()) == (2, me != 1)
    assert isinstance(even, hvd.ProcessSet)
    assert hvd.global_process_set.size() == 3
    same(hvd.allreduce(x, op=hvd.Sum, process_set=mine),
         np.full(4, 1 if me == 1 else 2, 'float32'))
    same(hvd.broadcast(x, me if me == 1 else 2, process_set=mine),
         np.full(4, 1 if me == 1 else 2, 'float32'))
    same(hvd.allgather(x[:1], process_set=mine),
         np.array([1] if me == 1 else [0, 2], 'float32'))
    same(hvd.alltoall(mx.nd.ones((mine.size(),)) * me, process_set=mine),
         np.array([1] if me == 1 else [0, 2], 'float32'))
    if me == 1:
        raises(ValueError, 'not in', hvd.allreduce, x, process_set=even)
    raises(ValueError, 'not in', hvd.broadcast, x, 0 if me == 1 else 1,
           process_set=mine)
    # An optimizer of a set: other ranks step alone.
    for kind in ('optimizer', 'trainer'):
        p = mx.gluon.Parameter('w', shape=(2,), init='zeros')
        p.initialize()
        with mx.autograd.record():
            loss = (p.data() * (me + 1)).sum()
        loss.backward()
        if kind == 'trainer':
            hvd.DistributedTrainer([p], 'sgd', {'learning_rate': 1.0},
                                   process_set=even).step(1)
        else:
            opt = hvd.DistributedOptimizer(
                mx.optimizer.create('sgd', learning_rate=1.0),
                process_set=even)
            opt.update(0, p.data(), p.grad(), opt.create_state(0, p.data()))
        same(p.data(), np.full(2, -1 if me == 1 else -2, 'float32'))
    hvd.remove_process_set(even)
    assert hvd.remove_process_set(last) and not hvd.remove_process_set(last)
    raises(ValueError, 'not added', hvd.allreduce, x, process_set=even)
    """)


TRAIN = """
import json
def data(rank, batch):
    r = np.random.RandomState(100 * batch + rank)
    x = r.randint(-4, 5, (8, 6)).astype('float32') / 4
    return x, (x.sum(axis=1) > 0).astype('float32')

def net():
    mx.random.seed(5 + me)
    net = mx.gluon.nn.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(mx.gluon.nn.Dense(16, activation='relu'))
        net.add(mx.gluon.nn.Dense(2))
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net

LOSS = mx.gluon.loss.SoftmaxCrossEntropyLoss()

def close(a, b, limit):
    for p, q in zip(a, b):
        p, q = p.asnumpy(), q.asnumpy()
        assert abs(p - q).max() <= limit * abs(q).max(), abs(p - q).max()
"""


@pytest.mark.parametrize("workers", [2, 3])
def test_trainer_equals_one_process(tmp, workers):
    """DistributedTrainer has the weights of one process that adds the
    gradients of all batches, with deferred parameters of rank 0."""
    horovod(tmp, workers, TRAIN + """
def weights(net):
    return [p.data() for _, p in sorted(net.collect_params().items())]

for more in ({}, {'num_groups': 2}, {'gradient_predivide_factor': 2.0},
             {'compression': hvd.Compression.fp16}):
    model = net()
    prefix = ''.join(more) + '.'
    hvd.broadcast_parameters(model.collect_params(), prefix=prefix)
    trainer = hvd.DistributedTrainer(
        model.collect_params(), 'sgd', {'learning_rate': 0.5, 'momentum': 0.9},
        prefix=prefix, **more)
    model(mx.nd.zeros((8, 6)))  # The parameters get their shapes.
    first = [w.copy() for w in weights(model)]
    for w in first:
        same(hvd.broadcast(w, 0), w)
    for b in range(5):
        x, y = data(me, b)
        with mx.autograd.record():
            loss = LOSS(model(mx.nd.array(x)), mx.nd.array(y))
        loss.backward()
        trainer.step(8)
    alone = net()
    alone(mx.nd.zeros((8, 6)))
    for w, f in zip(weights(alone), first):
        f.copyto(w)
    one = mx.gluon.Trainer(alone.collect_params(), 'sgd', {
        'learning_rate': 0.5, 'momentum': 0.9}, kvstore=None)
    for p in alone.collect_params().values():
        p.grad_req = 'add'
    for b in range(5):
        for p in alone.collect_params().values():
            p.zero_grad()
        for r in range(n):
            x, y = data(r, b)
            with mx.autograd.record():
                loss = LOSS(alone(mx.nd.array(x)), mx.nd.array(y))
            loss.backward()
        one.step(8 * n)
    limit = 1e-2 if 'compression' in more else 1e-5
    close(weights(model), weights(alone), limit)
    for w in weights(model):
        same(hvd.broadcast(w, 0), w)
""")


def test_module_with_distributed_optimizer(tmp):
    """Module.fit() without a store has the weights of one process with the
    batches of all ranks."""
    horovod(tmp, 2, TRAIN + """
def fit(size, xs, ys, optimizer, params=None):
    d = mx.sym.var('data')
    h = mx.sym.FullyConnected(d, num_hidden=16, name='a')
    h = mx.sym.FullyConnected(mx.sym.relu(h), num_hidden=2, name='b')
    module = mx.mod.Module(mx.sym.SoftmaxOutput(h, name='softmax'))
    it = mx.io.NDArrayIter(xs, ys, batch_size=size)
    module.bind(it.provide_data, it.provide_label)
    mx.random.seed(9 + me)
    module.init_params(mx.init.Xavier())
    if params is None:
        params, aux = module.get_params()
        hvd.broadcast_parameters(params)
        first = {k: v.copy() for k, v in params.items()}
    else:
        first = params
    module.set_params(first, {})
    module.fit(it, kvstore=None, optimizer=optimizer, num_epoch=3)
    got = module.get_params()[0]
    return first, [got[k] for k in sorted(got)]

every = [[data(r, b) for r in range(n)] for b in range(4)]
def sgd(batch):
    return mx.optimizer.create('sgd', learning_rate=0.5, momentum=0.9,
                               rescale_grad=1 / batch)
x, y = (np.concatenate([pairs[me][i] for pairs in every]) for i in (0, 1))
first, mine = fit(8, x, y, hvd.DistributedOptimizer(sgd(8)))
x, y = (np.concatenate([p[i] for pairs in every for p in pairs])
        for i in (0, 1))
_, alone = fit(8 * n, x, y, sgd(8 * n), first)
close(mine, alone, 1e-5)
""")


def test_failures_of_arrays_and_ranks(tmp):
    """An array that has failed does not stop the collectives after it, and
    the death of a rank is an error for readers."""
    script = tmp / "script.py"
    script.write_text(BEGIN + textwrap.dedent("""
    import os
    x = mx.nd.ones((2,))
    bad = hvd.allreduce(mx.nd.ones((2 + me,)))
    worse = hvd.allreduce(bad, name='skipped')
    raises(MXNetError, 'differ', worse.wait_to_read)
    same(hvd.allreduce(x, op=hvd.Sum), np.full(2, 2, 'float32'))
    hvd.start_timeline(sys.argv[1])
    hvd.allreduce(x, name='seen').wait_to_read()
    hvd.stop_timeline()
    if me == 1:
        os._exit(3)
    raises(MXNetError, 'rank 1', hvd.allreduce, x)
    print('named')
    """))
    done = run(harness.program("pslaunch"), "-n", 2, "-s", 1, "--keep-going",
               "--", PYTHON, script, tmp / "timeline")
    assert "named" in done.stdout, done.stdout + done.stderr
    assert "allreduce.seen" in (tmp / "timeline").read_text()


@pytest.mark.parametrize("front", ["horovod", "store"])
def test_a_program_that_an_exception_ends_has_not_left(tmp, front):
    """The other rank is told that it was lost; its threads end, though an
    operation of it is open."""
    script = tmp / "script.py"
    script.write_text(textwrap.dedent("""
    import os, sys
    import mxnet as mx
    if sys.argv[1] == 'horovod':
        import pskv.mxnet.horovod as hvd
        hvd.init()
        me = hvd.rank()
        def total(x, name):
            return hvd.allreduce(x, name=name).asnumpy()
        def begin(x):
            return hvd.allreduce(x, name='of rank 1')
    else:
        import pskv.mxnet
        kv = mx.kv.create('dist_sync')
        me = kv.rank
        for key in 'first', 'second', 'of rank 1':
            kv.init(key, mx.nd.zeros((2,)))
        def total(x, name):
            out = mx.nd.zeros((2,))
            kv.pushpull(name, x, out=out)
            return out.asnumpy()
        def begin(x):
            return kv.pushpull('of rank 1', x)
    x = mx.nd.ones((2,))
    total(x, 'first')
    if me == 1:
        kept = begin(x)
        raise RuntimeError('the end')
    try:
        total(x, 'second')
    except mx.MXNetError as e:
        print('told', e, flush=True)
        os._exit(0)
    """))
    done = run(harness.program("pslaunch"), "-n", 2, "-s", 1, "--keep-going",
               "--", PYTHON, script, front)
    assert "told" in done.stdout and "was lost" in done.stdout and \
        "RuntimeError: the end" in done.stdout + done.stderr, \
        done.stdout + done.stderr
    assert "good order" not in done.stdout, done.stdout
