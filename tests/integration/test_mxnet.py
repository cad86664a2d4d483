# SPDX-License-Identifier: Apache-2.0
"""Scripts for MXNet 1.9.1, as they are, on pskv."""
import os
import pathlib
import subprocess
import textwrap

import pytest

import trio as harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "mxnet"
PACKAGE = ROOT / "lib" / "client" / "python"
LIBRARY = harness.LIBRARY
PYTHON = pathlib.Path(os.environ.get("PSKV_MXNET_PYTHON",
                                     harness.BUILD / "mxnet/bin/python"))

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"no MXNet: {PYTHON} does not exist; ./dev test installs it")

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


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("script,arguments", [
    ("gluon_dist.py", ["--batches", 6]),
    ("gluon_dist.py", ["--batches", 2, "--optimizer", "adam"]),
    ("module_dist.py", ["--samples", 2560]),
])
def test_script_trains_as_in_one_process(tmp, workers, script, arguments):
    """Same total batch, same weights, to what single precision leaves."""
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
        try:
            kv.pull('r', out=dense, ignore_sparse=False)
        except TypeError as e:
            assert 'row_sparse_pull' in str(e)
        else:
            raise SystemExit('a pull of rows was not refused')
        """)
    assert done.returncode == 0, done.stderr + done.stdout


def test_what_is_wrong_is_said(tmp):
    """Each error goes to its caller, who can go on."""
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
                           (5, 'profiler'), (9, 'none of this number')):
            refused(NotImplementedError, word, kv._send_command_to_servers,
                    head, '')
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


def test_failure_reaches_the_script(trio, tmp):
    """The death of a worker is an error of the others' next calls."""
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
    assert "told PeerLost" in out or "told JobFailed" in out, out + err


def test_multipliers_of_keys(tmp):
    """By the number of Gluon's parameters and by Module's names; with names,
    what is no weight does not decay. As MXNet's own updater."""
    done = python(tmp, 1, 1, """
        import numpy as np
        rng = np.random.RandomState(3)
        names = {0: 'fc_weight', 1: 'fc_bias', 2: 'out_weight'}

        def make(**more):
            opt = mx.optimizer.Adam(learning_rate=.05, wd=.1,
                                    begin_num_update=4, **more)
            opt.set_lr_mult({'fc_bias': 2.0, 2: .5})
            return opt

        opt, again = make(param_idx2name=names), make(param_idx2name=names)
        assert opt._get_wd(1) == 0 and opt._get_lrs([1, 2]) == [.1, .025]
        kv = mx.kv.create('dist_sync')
        updater = mx.optimizer.get_updater(again)
        ws = [mx.nd.array(rng.randn(40, 30)) for i in names]
        for i in names:
            kv.init(i, ws[i])
        kv.set_optimizer(opt)
        for step in range(5):
            for i in names:
                g = mx.nd.array(rng.randn(40, 30))
                kv.push(i, g)
                updater(i, g, ws[i])
        for i in names:
            got = mx.nd.zeros((40, 30))
            kv.pull(i, out=got)
            np.testing.assert_allclose(got.asnumpy(), ws[i].asnumpy(),
                                       rtol=2e-5, atol=1e-5)
        print('well')
        """)
    assert done.returncode == 0, done.stderr
    assert "well" in done.stdout


def test_trainer_saves_and_loads_states(tmp):
    """A trainer of another job goes on as the first one did."""
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
    # MXNet's kernel takes the new weight in the decay of the momentum.
    "NAG(learning_rate=.1, momentum=.9, rescale_grad=.5, clip_gradient=.8)",
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
