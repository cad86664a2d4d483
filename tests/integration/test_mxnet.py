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
LIBRARY = harness.BUILD / "lib" / "client" / "libpsclient.so.0"
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
    assert difference(tmp / "dist.0", tmp / "local.0") < 1e-4
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
        refused(AssertionError, 'states', kv.save_optimizer_states, 'x')
        refused(NotImplementedError, 'command 0', kv._send_command_to_servers,
                0, '')
        kv._send_command_to_servers(3, '')
        kv.pushpull('a', one * 4, out=one)
        assert (one.asnumpy() == 4).all()
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
