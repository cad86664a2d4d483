# SPDX-License-Identifier: Apache-2.0
"""Scripts for MXNet 1.9.1, as they are, on pskv."""
import os
import pathlib
import subprocess
import textwrap

import pytest

import trio as harness
from trio import LIBRARY, PACKAGE, SOURCE

EXAMPLES = SOURCE / "docs" / "examples" / "mxnet"
PYTHON = pathlib.Path(os.environ.get("PSKV_MXNET_PYTHON",
                                     harness.BUILD / "mxnet/bin/python"))

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"no MXNet: {PYTHON} does not exist; ./dev test --all installs it")

# The largest difference of two files of parameters, relative to the largest
# parameter of each array.
COMPARE = """
import sys
import mxnet as mx
a, b = (mx.nd.load(name) for name in sys.argv[1:])
assert sorted(a) == sorted(b)
print(max(float(((a[k] - b[k]).abs().max() / b[k].abs().max()).asscalar())
          for k in a))
"""


def env():
    return harness.clean_env(
        PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE=1, PSKV_LIBRARY=LIBRARY,
        OMP_NUM_THREADS=1, OPENBLAS_NUM_THREADS=1)


def run(*command):
    return subprocess.run([str(c) for c in command], env=env(), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=4 * harness.PATIENCE, check=False)


def launch(workers, servers, *command):
    return run(harness.program("pslaunch"), "-n", workers, "-s", servers,
               "--", PYTHON, *command)


def python(tmp, workers, servers, text):
    script = tmp / "script.py"
    script.write_text("import mxnet as mx\nimport numpy as np\n"
                      "import pskv.mxnet\n" + textwrap.dedent(text))
    return launch(workers, servers, script)


def difference(a, b):
    done = run(PYTHON, "-c", COMPARE, a, b)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.parametrize("workers,script,arguments", [
    (4, "gluon_dist.py", ["--batches", 6]),
    (2, "gluon_dist.py", ["--batches", 2, "--optimizer", "adam"]),
    (2, "module_dist.py", ["--samples", 2560]),
    (4, "module_dist.py", ["--samples", 2560]),
])
def test_script_trains_as_in_one_process(tmp, workers, script, arguments):
    """Same total batch, same weights within single precision."""
    script = EXAMPLES / script
    done = launch(workers, 2, "-m", "pskv.mxnet", script, "--kvstore",
                  "dist_sync", *arguments, "--save", tmp / "dist")
    assert done.returncode == 0, done.stderr
    assert "[0] " in done.stdout and "accuracy" in done.stdout
    alone = run(PYTHON, script, "--kvstore", "local", *arguments, "--save",
                tmp / "local")
    assert alone.returncode == 0, alone.stderr
    apart = difference(tmp / "dist.0", tmp / "local.0")
    print(f"{done.stdout}largest relative difference of the weights from those"
          f" of one process: {apart:.1e}")
    assert apart < 1e-4
    for rank in range(1, workers):
        assert (tmp / f"dist.{rank}").read_bytes() == \
            (tmp / "dist.0").read_bytes()


def test_values(tmp):
    """Lists, keys that come twice, devices, results in place."""
    done = python(tmp, 2, 1, """
        kv = mx.kv.create('dist_sync')
        assert isinstance(kv, mx.kvstore.KVStore) and kv.type == 'dist_sync'
        assert kv.num_workers == 2 and kv.is_capable('optimizer')
        one = mx.nd.ones((2, 3))
        kv.init([3, 5], [one * kv.rank, one * 7])
        a, b = mx.nd.zeros((2, 3)), mx.nd.zeros((2, 3))
        kv.pull([3, 5], out=[a, b])
        assert (a.asnumpy() == 0).all() and (b.asnumpy() == 7).all()
        # Two arrays for key 3, and key 3 once more.
        kv.push([3, 5, 3], [[one, one * 2], [one], [one * 4]])
        kv.pull([3, 5], out=[[a, b], [one]], priority=-1)
        assert (a.asnumpy() == 14).all() and (b.asnumpy() == 14).all()
        assert (one.asnumpy() == 2).all()
        for i in range(30):
            g = mx.nd.ones((2, 3)) * i
            kv.pushpull(3, g)
            kv.pushpull(5, mx.nd.ones((2, 3)) * (kv.rank + i), out=[a, b])
        assert (g.asnumpy() == 58).all()
        assert (a.asnumpy() == 59).all() and (b.asnumpy() == 59).all()
        for i in range(3):
            kv.broadcast(3, mx.nd.ones((2, 3)) * (kv.rank + 5 + i), out=[a, b])
            assert (a.asnumpy() == 5 + i).all(), a
        kv._barrier()
        print('well', kv.rank)
        """)
    assert done.returncode == 0, done.stderr
    assert "well 0" in done.stdout and "well 1" in done.stdout


@pytest.mark.parametrize("name", ["dist_async", "dist_async_device",
                                  "dist_device_async"])
def test_async_stores(tmp, name):
    """Each push is a step of its own; a Trainer updates on the servers."""
    done = python(tmp, 2, 1, f"""
        from mxnet import autograd, gluon
        kv = mx.kv.create({name!r})
        assert isinstance(kv, pskv.mxnet.PSKV) and kv.type == {name!r}
        assert type(mx.kv.create({name!r})) is type(kv)
        net = gluon.nn.Dense(1, in_units=3, use_bias=False)
        net.initialize(mx.init.Zero())
        trainer = gluon.Trainer(net.collect_params(), 'sgd',
                                {{'learning_rate': 1}}, kvstore=kv)
        for step in range(5):
            with autograd.record():
                loss = net(mx.nd.ones((1, 3))).sum()
            loss.backward()
            trainer.step(1)
        mx.nd.waitall()
        kv._barrier()
        w = mx.nd.zeros((1, 3))
        kv.pull(0, out=w)
        assert (w.asnumpy() == -10).all(), w
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_stores_of_a_process_are_apart(tmp):
    """Each has keys and an optimizer of its own; so have the keys that a store
    is given after a second optimizer."""
    done = python(tmp, 2, 1, """
        def of(kv, key, shape):
            out = mx.nd.zeros(shape)
            kv.pull(key, out=out)
            return out.asnumpy()

        a, b = mx.kv.create('dist_sync'), mx.kv.create('dist_sync')
        c = mx.kv.create('dist_async')
        assert a.rank == b.rank == c.rank
        a.set_optimizer(mx.optimizer.SGD(learning_rate=1))
        b.set_optimizer(mx.optimizer.SGD(learning_rate=2))
        c.set_optimizer(mx.optimizer.SGD(learning_rate=3))
        a.init(0, mx.nd.zeros((2,)))
        b.init(0, mx.nd.zeros((3,)))
        c.init('text', mx.nd.zeros((4,)))
        a.push(0, mx.nd.ones((2,)))
        b.push(0, mx.nd.ones((3,)))
        c.push('text', mx.nd.ones((4,)))
        assert (of(a, 0, (2,)) == -2).all()
        assert (of(b, 0, (3,)) == -4).all()
        mx.nd.waitall()
        c._barrier()
        assert (of(c, 'text', (4,)) == -6).all()
        a.set_optimizer(mx.optimizer.SGD(learning_rate=5))
        a.init(1, mx.nd.zeros((2,)))
        a.push(1, mx.nd.ones((2,)))
        assert (of(a, 1, (2,)) == -10).all() and (of(a, 0, (2,)) == -2).all()
        try:
            a.push(0, mx.nd.ones((2,)))
            raise SystemExit('no error')
        except ValueError as e:
            assert 'second set_optimizer()' in str(e), e
        a.init(0, mx.nd.ones((2,)))
        a.push(0, mx.nd.ones((2,)))
        assert (of(a, 0, (2,)) == -9).all()
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_trainers_of_a_process_are_apart(tmp):
    """Two of them, with different optimizers, which take turns: as in one
    process."""
    done = python(tmp, 2, 2, """
        from mxnet import autograd, gluon

        def train(store, copies):
            nets, trainers = [], []
            for units, optimizer, numbers in (
                    (1, 'sgd', {'learning_rate': .25, 'momentum': .5}),
                    (4, 'adam', {'learning_rate': .125})):
                nets.append(gluon.nn.Dense(units, in_units=3))
                nets[-1].initialize(mx.init.One())
                trainers.append(gluon.Trainer(
                    nets[-1].collect_params(), optimizer, numbers,
                    kvstore=store))
            for step in range(5):
                for net, trainer in zip(nets, trainers):
                    with autograd.record():
                        loss = net(mx.nd.ones((2, 3)) * (step + 1)).sum()
                        loss = loss * copies
                    loss.backward()
                    trainer.step(1)
            return [net.weight.data().asnumpy() for net in nets]

        for got, want in zip(train('dist_sync', 1), train(None, 2)):
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_distributed_store_is_mxnets(tmp):
    done = python(tmp, 1, 1, """
        from mxnet.model import _create_kvstore
        for name in 'dist_nosuch', 'p3store_dist':
            for create in mx.kv.create, lambda n: _create_kvstore(n, 1, {}):
                try:
                    create(name)
                except ValueError as e:
                    assert repr(name) in str(e) and 'dist_async' in str(e), e
                else:
                    raise SystemExit(name)
        assert mx.kv.create('LOCAL').type == 'local'
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_keys_share_arrays_in_place(tmp):
    done = python(tmp, 2, 2, """
        kv = mx.kv.create('dist_sync')
        for n in 5, 100000:
            keys = [n + i for i in range(4)]
            kv.init(keys, [mx.nd.zeros((n,))] * 4)
            for i in range(10):
                a, b = mx.nd.ones((n,)), mx.nd.ones((n,)) * 3
                kv.pushpull(keys, [a, a, b, [a, b]], out=[a, b, a, b])
                # Results are written in the order of the keys.
                assert (a.asnumpy() == 6).all() and (b.asnumpy() == 8).all()
                kv.pushpull(keys, [a, a, a, a])
                assert (a.asnumpy() == 12).all(), a
        """)
    assert done.returncode == 0, done.stdout + done.stderr


SPARSE = """
import sys
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
which, save = sys.argv[1:]
mx.random.seed(2)
kv = mx.kv.create(which)
net = gluon.contrib.nn.SparseEmbedding(300, 8)
out = gluon.nn.Dense(3, in_units=8)
for n in (net, out):
    n.initialize(mx.init.Normal(0.5))
params = gluon.ParameterDict()
params.update(net.collect_params())
params.update(out.collect_params())
# The store is made by the first look-up, before a step says the batch.
trainer = gluon.Trainer(params, 'sgd', {'learning_rate': .5, 'momentum': .9,
                                        'rescale_grad': 1 / 32}, kvstore=kv)
loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
draw = np.random.RandomState(4)
for step in range(8):
    words, labels = draw.randint(0, 200, 32), draw.randint(0, 3, 32)
    mine = slice(kv.rank * 32 // kv.num_workers,
                 (kv.rank + 1) * 32 // kv.num_workers)
    x, y = mx.nd.array(words[mine]), mx.nd.array(labels[mine])
    with autograd.record():
        loss = loss_of(out(net(x)), y)
    loss.backward()
    trainer.step(1)
everything = net.weight.row_sparse_data(mx.nd.arange(300))
mx.nd.save(save + '.%d' % kv.rank, {
    'embedding': everything.tostype('default'), 'dense': out.weight.data()})
"""


def test_sparse_gluon_trains_as_in_one_process(tmp):
    """An embedding with row_sparse weights, lazy momentum and all."""
    script = tmp / "sparse.py"
    script.write_text(SPARSE)
    done = launch(2, 2, "-m", "pskv.mxnet", script, "dist_sync", tmp / "dist")
    assert done.returncode == 0, done.stderr + done.stdout
    alone = run(PYTHON, script, "local", tmp / "local")
    assert alone.returncode == 0, alone.stderr
    assert difference(tmp / "dist.0", tmp / "local.0") < 1e-5
    assert (tmp / "dist.0").read_bytes() == (tmp / "dist.1").read_bytes()


def test_rows(tmp):
    """Repeated numbers, any order, none; two devices."""
    done = python(tmp, 2, 1, """
        kv = mx.kv.create('dist_sync')
        dense = mx.nd.array(np.arange(20).reshape(10, 2))
        kv.init('r', dense.tostype('row_sparse'))
        out = mx.nd.sparse.zeros('row_sparse', (10, 2))
        kv.row_sparse_pull('r', out=out, row_ids=mx.nd.array([7, 1, 7]))
        assert out.indices.asnumpy().tolist() == [1, 7]
        assert out.data.asnumpy().tolist() == [[2, 3], [14, 15]]
        kv.row_sparse_pull('r', out=[out], row_ids=[mx.nd.array([])])
        assert out.indices.shape == (0,)
        def rows(at):
            return mx.nd.sparse.row_sparse_array(
                (np.ones((len(at), 2), 'f'), at), shape=(10, 2))
        kv.push('r', [rows([1, 4]), rows([4, 9])] if kv.rank else rows([4]))
        kv.row_sparse_pull('r', out=out, row_ids=mx.nd.arange(10))
        assert out.asnumpy()[:, 0].tolist() == [0, 1, 0, 0, 3, 0, 0, 0, 0, 1]
        none = mx.nd.sparse.zeros('row_sparse', (10, 2))
        kv.push('r', [none, rows([2]), rows([])] if kv.rank else none)
        kv.row_sparse_pull('r', out=out, row_ids=mx.nd.arange(10))
        assert out.asnumpy()[:, 0].tolist() == [0, 0, 1] + [0] * 7, out
        kv.push('r', none)
        kv.row_sparse_pull('r', out=out, row_ids=mx.nd.arange(10))
        assert (out.asnumpy() == 0).all(), out
        try:
            kv.pull('r', out=dense, ignore_sparse=False)
        except TypeError as e:
            assert 'row_sparse_pull' in str(e)
        else:
            raise SystemExit('a pull of rows was not refused')
        """)
    assert done.returncode == 0, done.stderr + done.stdout


def test_mistakes_are_named(tmp):
    """Each error goes to its caller, which can continue."""
    done = python(tmp, 1, 1, """
        def refused(kind, words, call, *args, **more):
            try:
                call(*args, **more)
            except kind as e:
                assert words in str(e), e
            else:
                raise SystemExit('not refused: ' + words)
        kv = mx.kv.create('dist_sync')
        one = mx.nd.ones((2, 3))
        kv.init('a', one)
        refused(TypeError, 'Mixed key types', kv.init, 7, one)
        refused(ValueError, 'of shape', kv.push, 'a', mx.nd.ones((4,)))
        refused(ValueError, 'float32', kv.push, 'a', one.astype('int32'))
        refused(ValueError, 'arrays', kv.push, ['a', 'b'], [one])
        refused(ValueError, 'Unknown capability', kv.is_capable, 'magic')
        refused(ValueError, 'pull needs', kv.pull, 'a')

        @mx.optimizer.register
        class Mine(mx.optimizer.SGD):
            pass

        refused(TypeError, 'run no code of workers', kv.set_optimizer, Mine())
        refused(TypeError, 'run no code of workers', kv._set_updater, print)
        refused(pskv.Error, 'declared no optimizer', kv.save_optimizer_states,
                'x')
        refused(NotImplementedError, 'command 0', kv._send_command_to_servers,
                0, '')
        import pickle
        refused(NotImplementedError, 'unpickle nothing',
                kv._send_command_to_servers, 0,
                pickle.dumps(mx.optimizer.SGD(), 0).decode('latin1'))
        refused(ValueError, 'momentum', kv._send_command_to_servers, 0,
                '{"momentum": 0.5}')
        refused(ValueError, 'no number', kv._send_command_to_servers, 0,
                '{"wd": "much"}')
        refused(pskv.Error, 'optimizer', kv._send_command_to_servers, 0,
                '{"wd": 0.5}')
        for head, word in ((2, 'outlive'), (4, 'set_gradient_compression'),
                           (9, 'none of this number')):
            refused(NotImplementedError, word, kv._send_command_to_servers,
                    head, '')
        for body, word in (('', 'no command'), ('x:10', "no option 'x'")):
            refused(ValueError, word, kv._send_command_to_servers, 5, body)
        refused(ValueError, 'linear, power2, sqrt, lars', kv.set_optimizer,
                mx.optimizer.LBSGD(warmup_strategy='cubic'))
        refused(ValueError, 'weight decay', kv.set_optimizer,
                mx.optimizer.contrib.GroupAdaGrad(wd=0.1))
        kv._send_command_to_servers(3, '')
        kv.pushpull('a', one * 4, out=one)
        assert (one.asnumpy() == 4).all()
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_commands_change_the_optimizer(tmp):
    done = python(tmp, 2, 1, """
        kv = mx.kv.create('dist_sync')
        w = mx.nd.ones((3, 4))
        kv.init('w', w)
        kv.set_optimizer(mx.optimizer.SGD(learning_rate=0.5))
        kv._send_command_to_servers(
            0, '{"learning_rate": 0.25, "rescale_grad": 2, "round": 3}')
        for want in (0, -1, -2, -3):  # Each step: 2, of both workers.
            kv.push('w', mx.nd.ones((3, 4)))
            kv.pull('w', out=w)
            assert (w.asnumpy() == want).all(), (w, want)
        """)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_compression_has_the_numbers_of_mxnet(tmp, nodes):
    """2-bit codes and residuals of each worker, wherever it runs."""
    script = tmp / "script.py"
    script.write_text(textwrap.dedent("""
        import numpy as np
        import mxnet as mx
        import pskv.mxnet
        kv = mx.kv.create('dist_sync')
        t = np.float32(0.5)
        kv.set_gradient_compression({'type': '2bit', 'threshold': .5})
        kv.init(3, mx.nd.zeros((50, 40)))
        residual = np.zeros((3, 50, 40), 'f')
        for step in range(12):
            g = [np.random.RandomState(step + 100 * rank).normal(
                size=(50, 40)).astype('f') for rank in range(3)]
            out = mx.nd.zeros((50, 40))
            kv.push(3, mx.nd.array(g[kv.rank]))
            kv.pull(3, out=out)
            residual += g
            codes = np.where(residual >= t, t, np.where(residual <= -t, -t, 0))
            residual -= codes.astype('f')
            assert (out.asnumpy() == codes.sum(0)).all(), step
        print('well', kv.rank)
        """))
    done = run(harness.program("pslaunch"), "-n", 3, "-s", 2, "--nodes", nodes,
               "--", PYTHON, script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("well") == 3


def test_compression_may_be_that_of_nodes(tmp):
    """'per_worker': 0 encodes the sum of a node's workers."""
    done = python(tmp, 2, 1, """
        kv = mx.kv.create('dist_sync')
        t = np.float32(.5)
        kv.set_gradient_compression({'type': '2bit', 'threshold': .5,
                                     'per_worker': 0})
        kv.init(3, mx.nd.zeros((50, 40)))
        residual = np.zeros((50, 40), 'f')
        for step in range(12):
            g = [np.random.RandomState(step + 100 * rank).normal(
                size=(50, 40)).astype('f') for rank in range(2)]
            out = mx.nd.zeros((50, 40))
            kv.push(3, mx.nd.array(g[kv.rank]))
            kv.pull(3, out=out)
            residual += g[0] + g[1]
            code = np.where(residual >= t, t, np.where(residual <= -t, -t, 0))
            residual -= code.astype('f')
            assert (out.asnumpy() == code).all(), step
        """)
    assert done.returncode == 0, done.stdout + done.stderr


TRAINER = """
from mxnet import autograd, gluon
def train(kv, optimizer, numbers, change, copies=1):
    net = gluon.nn.Dense(1, in_units=3, prefix='net_')
    net.initialize(mx.init.One())
    numbers = dict(numbers, rescale_grad=1.0)
    trainer = gluon.Trainer(net.collect_params(), optimizer, numbers,
                            kvstore=kv)
    for step in range(9):
        change(trainer, step)
        with autograd.record():
            loss = net(mx.nd.ones((2, 3)) * (step + 1)).sum() * copies
        loss.backward()
        trainer.step(1)
    return [p.data().asnumpy() for p in net.collect_params().values()]
"""


@pytest.mark.parametrize("workers", [1, 3])
def test_changes_of_the_optimizer_take_effect(tmp, workers):
    """From the next step on, as with updates in the workers."""
    done = python(tmp, workers, 2, TRAINER + textwrap.dedent("""
        def change(trainer, step):
            if step in (2, 3, 7):
                trainer.set_learning_rate(1 / (step + 1))
            if step == 4:
                trainer.optimizer.wd = 0.5
            if step == 5:
                trainer.optimizer.rescale_grad = trainer._scale = 0.25
            if step == 6:
                trainer.optimizer.clip_gradient = 0.125
            weight, bias = trainer._params
            if step == 1:
                weight.lr_mult = 0.5
            if step == 4:
                bias.lr_mult, weight.wd_mult = 0, 2
            if step == 8:
                bias.lr_mult = weight.lr_mult = 1

        kv = mx.kv.create('dist_sync')
        for got, want in zip(
                train(kv, 'sgd', {'momentum': .5, 'learning_rate': 1}, change),
                train(None, 'sgd', {'momentum': .5, 'learning_rate': 1}, change,
                      copies=kv.num_workers)):
            np.testing.assert_allclose(got, want, rtol=1e-5)
        """))
    assert done.returncode == 0, done.stdout + done.stderr


def test_unsupported_optimizer_changes_are_reported(tmp):
    done = python(tmp, 1, 1, TRAINER + textwrap.dedent("""
        kv = mx.kv.create('dist_sync')

        def momentum(trainer, step):
            if step == 3:
                trainer.optimizer.momentum = 0.75

        try:
            train(kv, 'sgd', {'momentum': .5}, momentum)
        except ValueError as e:
            assert isinstance(e, mx.MXNetError), type(e).__mro__
            assert 'momentum' in str(e) and '0.75' in str(e), e
        else:
            raise SystemExit('not refused')
        """))
    assert done.returncode == 0, done.stdout + done.stderr


def test_errors_are_mxnets(tmp):
    """And of the class that they have without MXNet."""
    done = python(tmp, 1, 1, """
        def refused(kind, words, call, *args, **more):
            try:
                call(*args, **more)
            except mx.MXNetError as e:
                assert isinstance(e, kind) and words in str(e), e
                assert type(e).__name__ == kind.__name__
            else:
                raise SystemExit('not refused: ' + words)
        kv = mx.kv.create('dist_sync')
        one = mx.nd.ones((2, 3))
        kv.init('a', one)
        refused(ValueError, 'of shape', kv.push, 'a', mx.nd.ones((4,)))
        refused(ValueError, 'NUL', kv.init, 'a\\0b', one)
        refused(TypeError, 'Mixed', kv.init, 3, one)
        refused(pskv.Error, 'optimizer', kv._send_command_to_servers, 0,
                '{"wd": 0.5}')
        refused(ValueError, 'dist_nosuch', mx.kv.create, 'dist_nosuch')
        refused(NotImplementedError, 'outlive', kv._send_command_to_servers,
                2, '')
        refused(ValueError, 'no option', mx.profiler.set_config,
                profile_process='server', file='x')
        refused(pskv.Error, 'nosuch', kv.pull, 'nosuch', out=one)
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_group_adagrad_of_rows(tmp):
    """Against MXNet's own, in one process."""
    done = python(tmp, 2, 2, """
        kv = mx.kv.create('dist_sync')
        optimizer = mx.optimizer.contrib.GroupAdaGrad(
            learning_rate=0.1, eps=1e-4, clip_gradient=1.5, rescale_grad=0.5)
        rng = np.random.RandomState(7)
        first = mx.nd.array(rng.normal(size=(50, 6)))
        kv.init('w', first.tostype('row_sparse'))
        kv.set_optimizer(optimizer)
        alone = mx.optimizer.get_updater(optimizer)
        want = first.tostype('row_sparse')
        for step in range(4):
            rows = [np.sort(rng.choice(50, 9, replace=False))
                    for _ in range(2)]
            given = [rng.normal(size=(9, 6)).astype('f') * 3 for _ in rows]
            both = np.zeros((50, 6), 'f')
            for r, g in zip(rows, given):
                both[r] += g
            kv.push('w', mx.nd.sparse.row_sparse_array(
                (given[kv.rank], rows[kv.rank]), shape=(50, 6)))
            alone('w', mx.nd.sparse.retain(
                mx.nd.array(both).tostype('row_sparse'),
                mx.nd.array(np.union1d(*rows))), want)
        got = mx.nd.sparse.zeros('row_sparse', (50, 6))
        kv.row_sparse_pull('w', out=got, row_ids=mx.nd.arange(50))
        np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=1e-5,
                                   atol=1e-5)
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_group_adagrad_of_dense_arrays(tmp):
    """Dense weights and gradients, those of several devices and row-sparse
    ones, of a store and of Gluon's Trainer, against MXNet's own."""
    done = python(tmp, 2, 2, """
        from mxnet import autograd, gluon
        kv = mx.kv.create('dist_sync')
        numbers = dict(learning_rate=0.1, eps=1e-4, clip_gradient=1.5,
                       rescale_grad=0.5)
        optimizer = mx.optimizer.contrib.GroupAdaGrad(**numbers)
        rng = np.random.RandomState(7)
        first = mx.nd.array(rng.normal(size=(50, 6)))
        early = mx.nd.ones((4, 4))
        kv.init('early', early)
        kv.set_optimizer(optimizer)
        got = mx.nd.zeros((50, 6))
        kv.broadcast('w', first, out=got)
        assert np.array_equal(got.asnumpy(), first.asnumpy())
        kv.init('v', first)
        alone = mx.optimizer.get_updater(optimizer)
        want = first.copy()
        want_v = first.copy()
        got_v = mx.nd.zeros((50, 6))
        for step in range(12):
            given = [mx.nd.array(rng.normal(size=(50, 6)) * 3)
                     for _ in range(4)]
            mine = given[2 * kv.rank:2 * kv.rank + 2]
            if step % 3 == 0:
                kv.push('w', mine)
                kv.pull('w', out=got)
                kv.pushpull('v', mine[0], out=got_v)
            else:
                if step % 3 == 1:
                    mine[1] = mine[1].tostype('row_sparse')
                kv.pushpull(['w', 'v'], [mine, [mine[0]]],
                            out=[got, [got_v]])
            alone('w', given[0] + given[1] + (given[2] + given[3]), want)
            alone('v', given[0] + given[2], want_v)
            np.testing.assert_allclose(got.asnumpy(), want.asnumpy(),
                                       rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(got_v.asnumpy(), want_v.asnumpy(),
                                       rtol=1e-5, atol=1e-5)

        def refused(says, call, *arguments, **named):
            try:
                call(*arguments, **named)
            except ValueError as e:
                assert says in str(e), e
            else:
                raise AssertionError(says)

        refused('after set_optimizer()', kv.push, 'early', early)
        refused('two dimensions', kv.init, 'b', mx.nd.ones((3,)))
        refused('replaces none', kv.broadcast, 'w', first, out=got)
        refused('of shape', kv.push, 'w', early)

        def train(store):
            net = gluon.nn.Embedding(20, 4)
            net.initialize(mx.init.Constant(0.5))
            trainer = gluon.Trainer(
                net.collect_params(), 'groupadagrad',
                {'learning_rate': 0.1}, kvstore=store)
            for step in range(5):
                with autograd.record():
                    loss = sum((net(mx.nd.array([step + i, 3])) ** 3).sum()
                               for i in ([kv.rank] if store else [0, 1]))
                loss.backward()
                trainer.step(2)
            return net.weight.data().asnumpy()

        np.testing.assert_allclose(train('dist_sync'), train(None), rtol=1e-5)
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_langevin_dynamics(tmp):
    """The drift of SGLD is that of MXNet's own optimizer, and the noise has
    its mean and deviation. Two stores with one key and one seed have the same
    noise, which the difference of their values does not show."""
    done = python(tmp, 1, 2, """
        import math
        numbers = dict(learning_rate=.01, wd=.1, rescale_grad=.5,
                       clip_gradient=.8)
        rng = np.random.RandomState(3)
        first = mx.nd.array(rng.randn(400, 100))
        gradients = [mx.nd.array(rng.randn(400, 100)) for _ in range(12)]

        def train(own, gradients):
            optimizer = mx.optimizer.SGLD(**numbers)
            w = first.copy()
            if own:
                updater = mx.optimizer.get_updater(optimizer)
                for g in gradients:
                    updater('w', g, w)
                return w.asnumpy()
            kv = mx.kv.create('dist_sync')
            kv.init('w', w)
            kv.set_optimizer(optimizer)
            for g in gradients:
                kv.push('w', g)
            kv.pull('w', out=w)
            return w.asnumpy()

        zeros = [g * 0 for g in gradients]
        drawn = mx.optimizer.optimizer.normal
        mx.optimizer.optimizer.normal = lambda *_, **k: mx.nd.zeros(k['shape'])
        still = train(True, zeros)
        drift = train(True, gradients) - still
        mx.optimizer.optimizer.normal = drawn
        mine = train(False, zeros)
        np.testing.assert_allclose(train(False, gradients) - mine, drift,
                                   atol=2e-6)
        for seen in mine, train(True, zeros):
            noise = (seen - still) / math.sqrt(.01 * 12)
            assert abs(noise.mean()) < 5 / 200
            assert abs(noise.std() - 1) < .02
        optimizer = mx.optimizer.SGLD(**numbers)
        optimizer.seed = 1
        kv = mx.kv.create('dist_sync')
        kv.init('w', first)
        kv.set_optimizer(optimizer)
        kv.push('w', zeros[0])
        other = mx.nd.zeros((400, 100))
        kv.pull('w', out=other)
        assert abs((other.asnumpy() - train(False, zeros[:1])).std() / .1 -
                   math.sqrt(2)) < .03
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_keys_in_the_order_of_mxnet(tmp):
    """Where MXNet's numbers depend on the order in which one process steps its
    keys (docs/optimizers.md)."""
    done = python(tmp, 1, 2, """
        rng = np.random.RandomState(3)
        keys = list(range(6))
        first = [mx.nd.array(rng.randn(20, 10)) for _ in keys]
        gradients = [[mx.nd.array(rng.randn(20, 10)) for _ in keys]
                     for _ in range(8)]

        def of_servers(make):
            kv = mx.kv.create('dist_sync')
            kv.set_optimizer(make())
            kv.init(keys, first)
            out = [w.copy() for w in first]
            for g in gradients:
                kv.pushpull(keys, g, out=out)
            return [w.asnumpy() for w in out]

        def of_mxnet(make, apart=False, together=False):
            updaters = [mx.optimizer.get_updater(make())
                        for _ in (keys if apart else keys[:1])]
            out = [w.copy() for w in first]
            for g in gradients:
                if together:
                    updaters[0](keys, g, out)
                    continue
                for k in keys:
                    updaters[k % len(updaters)](k, g[k], out[k])
            return [w.asnumpy() for w in out]

        def equal(a, b):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)

        def lars(correct):
            return mx.optimizer.LARS(
                momentum=.9, eta=.02, wd=.01, momentum_correction=correct,
                lr_scheduler=mx.lr_scheduler.FactorScheduler(
                    3, .5, base_lr=2))

        # The first group of keys has the correction, all others have none.
        corrected = of_servers(lambda: lars(True))
        plain = of_servers(lambda: lars(False))
        equal(of_mxnet(lambda: lars(False), together=True), plain)
        equal(of_mxnet(lambda: lars(True), together=True),
              corrected[:4] + plain[4:])
        equal(of_mxnet(lambda: lars(True), apart=True), corrected)

        # One product of the momentum for each key.
        mine = of_servers(mx.optimizer.Nadam)
        equal(of_mxnet(mx.optimizer.Nadam, apart=True), mine)

        # The first key of a round has the rate of the round before.
        def lbsgd():
            return mx.optimizer.LBSGD(
                momentum=.9, batch_scale=2, warmup_epochs=1,
                updates_per_epoch=6,
                lr_scheduler=mx.lr_scheduler.FactorScheduler(
                    3, .5, base_lr=.1))

        equal(of_mxnet(lbsgd)[1:], of_servers(lbsgd)[1:])
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_failure_reaches_the_script(trio, tmp):
    """The death of a worker is an error of the arrays that others read, and of
    their next calls."""
    script = tmp / "script.py"
    script.write_text(textwrap.dedent("""
        import os
        import mxnet as mx
        import pskv
        import pskv.mxnet
        kv = mx.kv.create('dist_sync')
        one = mx.nd.ones((2, 3))
        kv.init(0, one)
        if kv.rank == 1:
            os._exit(3)
        try:
            while True:
                kv.pushpull(0, one, out=one)
                one.wait_to_read()
        except mx.MXNetError as e:
            print('read', e, flush=True)
        try:
            kv.pull(0, out=one)
        except pskv.Error as e:
            print('told', type(e).__name__, flush=True)
            raise
        """))
    t = trio(servers=1, agents=1)
    workers = [subprocess.Popen(
        [str(PYTHON), str(script)], text=True, stdout=subprocess.PIPE,
        env=dict(env(), PSKV_JOB="j", PSKV_SOCKET=t.socket(0),
                 PSKV_ON_LOSS="fail", DMLC_NUM_WORKER="2",
                 DMLC_NUM_SERVER="1", DMLC_WORKER_ID=str(rank)),
        stderr=subprocess.PIPE) for rank in range(2)]
    out, err = workers[0].communicate(timeout=2 * harness.PATIENCE)
    workers[1].communicate(timeout=harness.PATIENCE)
    assert workers[1].returncode == 3
    assert workers[0].returncode == 1, out + err
    assert "read" in out and "was lost" in out, out + err
    assert "told PeerLost" in out or "told JobFailed" in out, out + err


def test_profiler_has_a_timeline_of_each_server(tmp):
    """As MXNet's tests/nightly/test_server_profiling.py, and what is in the
    files."""
    done = python(tmp, 2, 3, f"""
        import json, os
        os.chdir({str(tmp)!r})
        kv = mx.kv.create('dist_sync')
        mx.profiler.set_config(filename='s.json', profile_all=True,
                               profile_process='server')
        mx.profiler.set_config(filename='w%d.json' % kv.rank,
                               profile_all=True, profile_process='worker')
        mx.profiler.set_state(state='run', profile_process='server')
        mx.profiler.set_state(state='run', profile_process='worker')
        kv.init('99', mx.nd.ones((1200, 1200)))
        kv.init('small"', mx.nd.ones((3,)))
        kv.set_optimizer(mx.optimizer.create('sgd'))

        def rounds(count, key='99', shape=(1200, 1200)):
            for i in range(count):
                kv.push(key, mx.nd.ones(shape))
                out = mx.nd.zeros(shape)
                kv.pull(key, out=out)
                mx.nd.waitall()
            kv._barrier()

        rounds(4)
        mx.profiler.pause(profile_process='server')
        kv._barrier()
        rounds(2, 'small"', (3,))
        mx.profiler.resume('server')
        kv._barrier()
        rounds(3)
        mx.profiler.dump(False, 'server')
        rounds(1, 'small"', (3,))
        mx.profiler.set_state('stop', 'server')
        mx.profiler.set_state('stop')
        seen = {{}}
        for rank in range(3) if kv.rank == 0 else ():
            with open('rank%d_s.json' % rank) as f:
                events = json.load(f)['traceEvents']
            names = [e['args']['name'] for e in events
                     if e['name'] == 'process_name']
            assert names[0].startswith('server %d (' % rank), names
            for e in events:
                if e['ph'] == 'X':
                    assert e['dur'] >= 0 and e['ts'] >= 0 and \\
                        e['pid'] == rank
                    rounds_of = seen.setdefault(
                        (e['name'], e['args']['key']), set())
                    rounds_of.add(e['args']['round'])
        if kv.rank == 0:
            for kind in ('push', 'gather', 'step'):
                assert seen[kind, '99'] == set(range(1, 8)), seen
                assert seen[kind, 'small"'] == {{3}}, seen
            assert not os.path.exists('rank3_s.json')
        print('well')
        """)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("well") == 2


@pytest.mark.parametrize("keys", ["number", "name"])
def test_multipliers_of_keys(tmp, keys):
    """By the number of Gluon's parameters and by Module's names; with names,
    what is no weight does not decay. As MXNet's own updater."""
    done = python(tmp, 1, 1, f"        key = {keys!r}" + """
        rng = np.random.RandomState(3)
        names = {0: 'fc_weight', 1: 'fc_bias', 2: 'out_weight'}

        def make(**more):
            opt = mx.optimizer.Adam(learning_rate=.05, wd=.1,
                                    begin_num_update=4, **more)
            opt.set_lr_mult({'fc_bias': 2.0, 2: .5})
            return opt

        opt, again = make(param_idx2name=names), make(param_idx2name=names)
        assert opt._get_wd(1) == 0 and opt._get_lrs([1, 2]) == [.1, .025]
        key = (lambda i: names[i]) if key == 'name' else lambda i: i
        kv = mx.kv.create('dist_sync')
        updater = mx.optimizer.get_updater(again)
        ws = [mx.nd.array(rng.randn(40, 30)) for i in names]
        for i in names:
            kv.init(key(i), ws[i])
        kv.set_optimizer(opt)
        for step in range(5):
            for i in names:
                g = mx.nd.array(rng.randn(40, 30))
                kv.push(key(i), g)
                updater(i, g, ws[i])
        for i in names:
            got = mx.nd.zeros((40, 30))
            kv.pull(key(i), out=got)
            np.testing.assert_allclose(got.asnumpy(), ws[i].asnumpy(),
                                       rtol=2e-5, atol=1e-5)

        # Keys are names, as Module's are, and multipliers change.
        opt, again = make(param_idx2name=names), make(param_idx2name=names)
        kv = mx.kv.create('dist_sync')
        updater = mx.optimizer.get_updater(again)
        kv.set_optimizer(opt)
        for i, name in names.items():
            kv.init(name, ws[i])
        for step in range(6):
            if step == 3:
                for o in opt, again:
                    o.set_lr_mult({'fc_bias': 0, 'out_weight': 3})
                    o.set_wd_mult({'fc_weight': 0})
            for i, name in names.items():
                g = mx.nd.array(rng.randn(40, 30))
                kv.push(name, g)
                updater(i, g, ws[i])
        for i, name in names.items():
            got = mx.nd.zeros((40, 30))
            kv.pull(name, out=got)
            np.testing.assert_allclose(got.asnumpy(), ws[i].asnumpy(),
                                       rtol=2e-5, atol=1e-5)
        print('well')
        """)
    assert done.returncode == 0, done.stderr
    assert "well" in done.stdout


def test_trainer_saves_and_loads_states(tmp):
    """A trainer of another job continues as the first one did."""
    script = tmp / "script.py"
    script.write_text(textwrap.dedent("""
        import os
        import sys
        import mxnet as mx, numpy as np
        import pskv.mxnet
        from mxnet import autograd, gluon
        first, path = int(sys.argv[1]), sys.argv[2]
        kv = mx.kv.create('dist_sync')
        net = gluon.nn.Dense(6, in_units=20)
        net.initialize(mx.init.One())
        if first:
            net.load_parameters(path + '.net')
        trainer = gluon.Trainer(net.collect_params(), 'adam',
                                {'learning_rate': .05, 'wd': .01,
                                 'rescale_grad': 1 / 16}, kvstore=kv)
        if first:
            trainer.load_states(path)
        for step in range(first, 8):
            if step == 4 and not first:
                if kv.rank == 0:
                    trainer.save_states(path)
                    net.save_parameters(path + '.net')
                kv._barrier()
            rng = np.random.RandomState(step + 100 * kv.rank)
            with autograd.record():
                loss = (net(mx.nd.array(rng.randn(16, 20))) ** 2).sum()
            loss.backward()
            trainer.step(1)
        w = net.weight.data().asnumpy().tobytes()
        open('%s.%d.%d' % (path, first, kv.rank), 'wb').write(w)
        """))
    for first in (0, 4):
        done = launch(2, 2, script, first, tmp / "t")
        assert done.returncode == 0, done.stderr
    one = (tmp / "t.0.0").read_bytes()
    for end in ("0.1", "4.0", "4.1"):
        assert (tmp / f"t.{end}").read_bytes() == one


COMMON = "rescale_grad=.5, wd=.01, clip_gradient=.8"
S = "mx.lr_scheduler."
OPTIMIZERS = [
    f"SGD(learning_rate=.1, {COMMON})",
    f"SGD(momentum=.9, {COMMON}, lr_scheduler={S}FactorScheduler("
    "3, .5, base_lr=.2))",
    f"NAG(learning_rate=.1, momentum=.9, {COMMON})",
    f"Adam({COMMON}, lr_scheduler={S}CosineScheduler(9, base_lr=.2, "
    "warmup_steps=2))",
    f"AdaGrad(learning_rate=.1, {COMMON})",
    f"RMSProp({COMMON})", f"RMSProp(centered=True, {COMMON})",
    f"AdaDelta({COMMON})", f"Ftrl({COMMON})", f"Adamax({COMMON})",
    f"Nadam({COMMON})", f"FTML(learning_rate=.1, {COMMON})",
    f"Signum({COMMON}, lr_scheduler={S}MultiFactorScheduler("
    "[2, 5], .5, base_lr=.2))",
    f"DCASGD(learning_rate=.1, {COMMON}, lr_scheduler="
    f"{S}PolyScheduler(9, base_lr=.2))",
    f"LAMB({COMMON}, learning_rate=.01)",
    f"LAMB({COMMON}, bias_correction=False, lower_bound=50, lr_scheduler={S}"
    "FactorScheduler(3, .5, base_lr=.02))",
    f"LAMB({COMMON}, upper_bound=10)",
    f"LARS({COMMON}, learning_rate=2, eta=.02, eps=.001)",
    f"LARS({COMMON}, momentum=.9, eta=.02, lr_scheduler={S}FactorScheduler("
    "3, .5, base_lr=2))",
    f"LARS({COMMON}, momentum=.9, momentum_correction=False, lr_scheduler={S}"
    "FactorScheduler(3, .5, base_lr=2))",
    f"LARS({COMMON}, learning_rate=.1, param_idx2name={{0: 'a_bias'}})",
    f"LBSGD(learning_rate=.05, {COMMON})",
    f"LBSGD(learning_rate=.05, momentum=.9, batch_scale=3, warmup_epochs=2, "
    f"updates_per_epoch=4, {COMMON})",
    f"LBSGD(learning_rate=.05, batch_scale=2, warmup_epochs=4, "
    f"updates_per_epoch=4, warmup_strategy='power2', begin_epoch=1, {COMMON})",
    f"LBSGD(learning_rate=.05, batch_scale=4, warmup_epochs=2, "
    f"updates_per_epoch=5, warmup_strategy='sqrt', {COMMON})",
    f"LBSGD(learning_rate=.05, momentum=.9, batch_scale=2, "
    f"warmup_strategy='lars', {COMMON})",
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_optimizer_has_the_numbers_of_mxnet(tmp, make):
    """Declared from objects, with schedules: steps equal those of MXNet's own
    updater."""
    script = tmp / "script.py"
    script.write_text(textwrap.dedent("""
        import sys
        import mxnet as mx, numpy as np
        import pskv.mxnet
        make = eval(sys.argv[1])
        kv = mx.kv.create('dist_sync')
        rng = np.random.RandomState(3)
        w = mx.nd.array(rng.randn(40, 30))
        kv.init(0, w)
        kv.set_optimizer(make())
        opt = make()
        updater = mx.optimizer.get_updater(opt)
        for i in range(12):
            g = mx.nd.array(rng.randn(40, 30))
            kv.push(0, g)
            updater(0, g, w)
        got = mx.nd.zeros((40, 30))
        kv.pull(0, out=got)
        np.testing.assert_allclose(got.asnumpy(), w.asnumpy(), rtol=2e-5,
                                   atol=1e-5)
        """))
    done = launch(1, 1, script, f"lambda: mx.optimizer.{make}")
    assert done.returncode == 0, done.stderr


# Trains, saves, goes on; and from the file and the parameters in a new net.
RESUME = """
    import sys, warnings
    from mxnet import autograd, gluon, nd
    warnings.simplefilter('error')
    kv0 = mx.kv.create('dist_sync')
    rank, path = kv0.rank, {path!r}

    def make(optimizer, numbers, on_servers):
        net = gluon.nn.Dense(1, in_units=3)
        net.initialize(mx.init.Constant(.5))
        return net, gluon.Trainer(
            net.collect_params(), optimizer, numbers,
            kvstore=mx.kv.create('dist_sync'), update_on_kvstore=on_servers)

    def steps(net, trainer, first, last, batch):
        for i in range(first, last):
            with autograd.record():
                x = nd.ones((2, 3)) * (rank + 1 + i) / 4
                loss = (net(x) ** 2).mean()
            loss.backward()
            trainer.step(batch(i))

    def check(optimizer, numbers, on_servers, order, batch):
        net, trainer = make(optimizer, numbers, on_servers)
        steps(net, trainer, 0, 3, batch)
        trainer.set_learning_rate(trainer.learning_rate / 2)
        steps(net, trainer, 3, 4, batch)
        mx.nd.waitall()
        if rank == 0:
            trainer.save_states(path)
            net.save_parameters(path + '.net')
        kv0._barrier()
        steps(net, trainer, 4, 7, batch)
        want = net.weight.data().asnumpy()
        net, trainer = make(optimizer, numbers, on_servers)
        for what in order.split():
            if what == 'step':
                steps(net, trainer, 0, 1, batch)
            elif what == 'states':
                trainer.load_states(path)
            else:
                net.load_parameters(path + '.net')
        steps(net, trainer, 4, 7, batch)
        got = net.weight.data().asnumpy()
        assert (got == want).all(), (order, got, want)
        kv0._barrier()
    """


@pytest.mark.parametrize("optimizer,numbers", [
    ("sgd", {"learning_rate": .01, "momentum": .9, "wd": .01}),
    ("adam", {"learning_rate": .01}),
    ("nag", {"learning_rate": .01, "momentum": .9}),
    ("ftrl", {"learning_rate": .1})])
def test_trainer_goes_on_from_saved_states(tmp, optimizer, numbers):
    """With the same bits: whatever the batch, in either order of the states
    and the parameters, after a step, and with a rate that has changed."""
    done = python(tmp, 2, 1, RESUME.format(path=str(tmp / "states")) + f"""
    for order in ('net states', 'states net', 'step net states',
                  'step states net'):
        for batch in (lambda i: 2), (lambda i: 2 + i % 2):
            check({optimizer!r}, {numbers!r}, True, order, batch)
    check({optimizer!r}, {numbers!r}, False, 'net states', lambda i: 2 + i % 2)
    print('well', rank)
    """)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "well 0" in done.stdout and "well 1" in done.stdout


def test_numbers_of_a_saved_optimizer(tmp):
    """A file of save_states() has them, as in MXNet; what servers cannot
    change is named in a warning."""
    done = python(tmp, 1, 1, f"""
        import warnings
        def store(**numbers):
            kv = mx.kv.create('dist_sync')
            optimizer = mx.optimizer.SGD(**numbers)
            kv.init(0, mx.nd.ones((2,)))
            kv.set_optimizer(optimizer)
            return kv, optimizer
        path = {str(tmp / 'states')!r}
        kv, optimizer = store(learning_rate=.5, momentum=.5)
        optimizer.lr = .25
        optimizer.wd = .125
        optimizer.set_lr_mult({{0: 2}})
        kv.push(0, mx.nd.ones((2,)))
        kv.save_optimizer_states(path, dump_optimizer=True)
        kv.save_optimizer_states(path + '2')
        for name, want in (path, (.25, .125, 2)), (path + '2', (.5, 0, 1)):
            kv, optimizer = store(learning_rate=.5, momentum=.75)
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter('always')
                kv.load_optimizer_states(name)
            assert (optimizer.lr, optimizer.wd,
                    optimizer.lr_mult.get(0, 1)) == want
            texts = [str(w.message) for w in seen]
            assert len(texts) == (name == path), texts
            assert all('momentum=0.5' in t and 'keeps 0.75' in t
                       for t in texts), texts
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_module_goes_on_from_a_checkpoint(tmp):
    done = python(tmp, 2, 1, f"""
        import mxnet.io as io
        path = {str(tmp / 'module')!r}
        kv0 = mx.kv.create('dist_sync')
        out = mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=2, name='fc')
        net = mx.sym.LinearRegressionOutput(out, name='lin')
        shapes = dict(data_shapes=[('data', (4, 3))],
                      label_shapes=[('lin_label', (4, 2))])

        def ready(module, optimizer):
            module.bind(**shapes)
            module.init_params(mx.init.Constant(.5))
            module.init_optimizer(
                kvstore=mx.kv.create('dist_sync'), optimizer=optimizer,
                optimizer_params=(('learning_rate', .125),))
            return module

        def steps(module, first, last):
            for i in range(first, last):
                data = mx.nd.ones((4, 3)) * (kv0.rank + i + 1) / 8
                module.forward_backward(
                    io.DataBatch([data], [mx.nd.ones((4, 2))]))
                module.update()
            return module.get_params()[0]['fc_weight'].asnumpy()

        for optimizer in 'sgd', 'adam':
            module = ready(mx.mod.Module(net, label_names=['lin_label']),
                           optimizer)
            steps(module, 0, 3)
            if kv0.rank == 0:
                module.save_checkpoint(path, 3, save_optimizer_states=True)
            kv0._barrier()
            want = steps(module, 3, 6)
            module = ready(mx.mod.Module.load(
                path, 3, load_optimizer_states=True,
                label_names=['lin_label']), optimizer)
            got = steps(module, 3, 6)
            assert (got == want).all() and (got != .5).all(), (got, want)
            kv0._barrier()
        """)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("on_servers", [True, False])
def test_trainers_share_a_parameter(tmp, on_servers):
    """Each has its own momentum, and both step the same weight, as in one
    process."""
    done = python(tmp, 2, 1, f"""
        from mxnet import autograd, gluon

        def train(store, copies):
            net = gluon.nn.Dense(1, in_units=3)
            net.initialize(mx.init.One())
            trainers = [gluon.Trainer(
                {{n: p for n, p in net.collect_params().items()
                  if name in n}}, optimizer, numbers, kvstore=store,
                update_on_kvstore={on_servers} if store else None)
                for name, optimizer, numbers in (
                    ('', 'sgd', {{'learning_rate': .25, 'momentum': .5}}),
                    ('weight', 'adam', {{'learning_rate': .125}}))]
            for step in range(6):
                with autograd.record():
                    loss = net(mx.nd.ones((2, 3)) * (step + 1)).sum() * copies
                loss.backward()
                trainers[step % 4 // 2].step(8)
            return net.weight.data().asnumpy()

        got, want = train('dist_sync', 1), train(None, 2)
        np.testing.assert_allclose(got, want, rtol=2e-5)
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_store_serves_one_trainer(tmp):
    """Two Trainers number their parameters from 0."""
    done = python(tmp, 1, 1, """
        from mxnet import autograd, gluon
        kv = mx.kv.create('dist_sync')
        nets, trainers = [], []
        for i in range(2):
            nets.append(gluon.nn.Dense(1, in_units=3))
            nets[-1].initialize(mx.init.One())
            trainers.append(gluon.Trainer(nets[-1].collect_params(), 'sgd',
                                          kvstore=kv))
            with autograd.record():
                loss = nets[-1](mx.nd.ones((2, 3))).sum()
            loss.backward()
            trainers[-1].step(1)
        try:
            trainers[0].step(1)
        except mx.MXNetError as e:
            assert 'create a store for each Trainer' in str(e), e
        else:
            raise SystemExit('not refused')
        trainers[1].step(1)
        """)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("make", [
    "Adam(learning_rate=.1{})", "SGD(learning_rate=.1, momentum=.9, wd=.1{})",
    "SGD(learning_rate=.1, wd=.1{})", "AdaGrad(learning_rate=.1)",
    "Ftrl(learning_rate=.1)", "NAG(learning_rate=.1, momentum=.9)"])
def test_gradients_of_rows_step_as_in_mxnet(tmp, make):
    """lazy_update steps the rows of the gradient only, also of a dense
    weight."""
    done = python(tmp, 2, 1, f"""
        from mxnet import autograd, gluon
        rows = [[[1, 3], [2, 4], [3, 5]], [[3, 9], [4, 9], [1, 9]]]

        def train(store, make, stype):
            if stype == 'default':
                net = gluon.nn.Embedding(12, 2, sparse_grad=True)
            else:
                net = gluon.contrib.nn.SparseEmbedding(12, 2)
            net.initialize(mx.init.One())
            trainer = gluon.Trainer(net.collect_params(), make(),
                                    kvstore=store)
            for step in range(3):
                ids = rows[store.rank][step] if store.num_workers > 1 else \\
                    rows[0][step] + rows[1][step]
                with autograd.record():
                    loss = (net(mx.nd.array(ids)) * 2).sum()
                loss.backward()
                trainer.step(1)
            weight = net.weight
            if stype != 'default':
                return weight.row_sparse_data(mx.nd.arange(12)).asnumpy()
            return weight.data().asnumpy()

        for lazy in '', ', lazy_update=True', ', lazy_update=False':
            make = lambda: eval('mx.optimizer.' + {make!r}.format(lazy))
            for stype in 'default', 'row_sparse':
                got = train(mx.kv.create('dist_sync'), make, stype)
                want = train(mx.kv.create('local'), make, stype)
                np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-6,
                                           err_msg=stype + lazy)
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_lazy_update_without_effect_is_named(tmp):
    """Once, where a server keeps no rows."""
    done = python(tmp, 1, 1, """
        import warnings
        for name, optimizer, count in (
                ('dist_sync', mx.optimizer.Adam(), 1),
                ('dist_async', mx.optimizer.Adam(), 1),
                ('dist_sync', mx.optimizer.SGD(momentum=.5), 1),
                ('dist_sync', mx.optimizer.LARS(momentum=.5), 1),
                ('dist_sync', mx.optimizer.SGD(), 0),
                ('dist_sync', mx.optimizer.Adam(lazy_update=False), 0),
                ('dist_sync', mx.optimizer.NAG(momentum=.5), 0)):
            kv = mx.kv.create(name)
            kv.set_optimizer(optimizer)
            kv.init('w', mx.nd.ones((3, 2)))
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter('always')
                for step in range(3):
                    kv.push('w', mx.nd.ones((3, 2)).tostype('row_sparse'))
            assert len(seen) == count, (name, optimizer, seen)
            for w in seen:
                assert "lazy_update has no effect on the dense key 'w'" in \\
                    str(w.message), w
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_multipliers_of_keys_act_as_in_mxnet(tmp):
    """Of a key, of its index or its name, also of one that is initialised
    later; a name that no key has is in a warning, once, at the line of the
    script."""
    done = python(tmp, 1, 1, """
        import warnings

        def values(name, factors, keys, later, names):
            kv = mx.kv.create(name)
            optimizer = mx.optimizer.SGD(learning_rate=.5,
                                         param_idx2name=names)
            optimizer.set_lr_mult(factors)
            kv.set_optimizer(optimizer)
            kv.init(keys, [mx.nd.ones((2,)) for _ in keys])
            for step in range(2):
                for k in keys:
                    kv.push(k, mx.nd.ones((2,)))
            for k in later:
                kv.init(k, mx.nd.ones((2,)))
                kv.push(k, mx.nd.ones((2,)))
            out = [mx.nd.zeros((2,)) for _ in keys + later]
            kv.pull(keys + later, out=out)
            return [o.asnumpy().tolist() for o in out]

        no_key = 'has no effect: no key has this name so far'
        for factors, keys, later, names, text in (
                ({'a': 2.}, ['a', 'b'], [], None, None),
                ({0: 2.}, [0, 1], [], None, None),
                ({'fc': 2., 1: 3.}, [0, 1], [], {0: 'fc', 1: 'x'}, None),
                ({'c': 2.}, ['a'], ['c'], None, "'c' " + no_key),
                ({'wieght': 2.}, ['weight'], [], None, "'wieght' " + no_key +
                 ". Did you mean 'weight'?")):
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter('always')
                got = values('dist_sync', factors, keys, later, names)
            assert got == values('local', factors, keys, later, names), factors
            assert [str(w.message) for w in seen] == (
                [] if text is None else ['lr_mult of ' + text]), seen
            assert all(w.filename == __file__ for w in seen), seen

        net = mx.gluon.nn.Dense(1, in_units=3, prefix='d_')
        net.initialize()
        trainer = mx.gluon.Trainer(net.collect_params(), 'sgd',
                                   kvstore='dist_sync')
        trainer._optimizer.set_wd_mult({'d_weight': 3.})
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter('always')
            for step in range(2):
                with mx.autograd.record():
                    loss = net(mx.nd.ones((2, 3))).sum()
                loss.backward()
                trainer.step(2)
        assert [str(w.message) for w in seen] == [
            "wd_mult of 'd_weight' has no effect: the parameters of a Trainer "
            "have factors of their own, Parameter.wd_mult"], seen
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_sums_of_rows_reach_arrays_of_rows(tmp):
    """As of a Module that updates in the workers; a row_sparse key is left to
    row_sparse_pull(), which a warning names."""
    done = python(tmp, 2, 1, """
        import warnings
        kv = mx.kv.create('dist_sync')
        kv.init('dense', mx.nd.zeros((4, 2)))
        g = mx.nd.zeros((4, 2))
        g[kv.rank] = 1
        g = g.tostype('row_sparse')
        kv.push('dense', g)
        kv.pull('dense', out=g)
        assert g.stype == 'row_sparse'
        assert g.asnumpy().tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]], g
        kv.init('rows', mx.nd.ones((4, 2)).tostype('row_sparse'))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter('always')
            kv.pull('rows', out=g)
            kv.pull('rows', out=g)
        assert len(seen) == 1 and 'row_sparse_pull()' in str(seen[0].message)
        whole = mx.nd.zeros((4, 2))
        kv.pull('rows', out=whole)
        assert (whole.asnumpy() == 1).all()
        """)
    assert done.returncode == 0, done.stdout + done.stderr


def test_unknown_keys_are_refused(tmp):
    """At the call, as by MXNet's local store; other keys go on."""
    done = python(tmp, 2, 1, """
        kv = mx.kv.create('dist_sync')
        kv.init('weight', mx.nd.ones((2,)))
        out = mx.nd.zeros((2,))
        for call in (lambda: kv.push('wieght', out),
                     lambda: kv.pushpull('wieght', out),
                     lambda: kv.pushpull(['weight', 'wieght'], [out, out]),
                     lambda: kv.pull('wieght', out=out),
                     lambda: kv.push('bias', out)):
            for again in range(2):
                try:
                    call()
                except mx.MXNetError as e:
                    assert 'no worker has declared it' in str(e), e
                    assert ("Did you mean 'weight'?" in str(e)) == \\
                        ("'wieght'" in str(e)), e
                else:
                    raise SystemExit('not refused')
        kv.pushpull('weight', mx.nd.ones((2,)), out=out)
        assert (out.asnumpy() == 2).all(), out
        """)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("code,end", [
    (1, "raise RuntimeError('over')"), (3, "sys.exit(3)"), (0, ""),
    (143, "os.kill(os.getpid(), signal.SIGTERM); signal.pause()")])
def test_a_script_ends_with_open_operations(tmp, code, end):
    """And with arrays in memory of the store that MXNet refers to."""
    done = python(tmp, 2, 1, f"""
        import os, signal, sys
        kv = mx.kv.create('dist_sync')
        g = mx.nd.ones((1000,))
        kv.init('w', g)
        kv.pushpull('w', g)
        keep = [kv, g, kv._worker.arrays['w'].result_nd[2:5]]
        if kv.rank == 0:
            kv.pushpull('w', g)
            keep.append(g * 2)
            print('open', flush=True)
            {end}
        """)
    assert "open" in done.stdout, done.stdout + done.stderr
    assert done.returncode == code, done.stdout + done.stderr
