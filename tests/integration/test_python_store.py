# SPDX-License-Identifier: Apache-2.0
"""The Python package, and the C example, in jobs of real daemons."""

import pathlib
import re
import signal
import subprocess
import sys
import textwrap

import pytest

import trio as harness

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lib" / "client" / "python"
LIBRARY = harness.LIBRARY
EXAMPLE = harness.BUILD / "docs" / "examples" / "fashion_mnist"
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")

PRELUDE = """
import os, sys, time
import numpy as np
import pskv
"""
PRELUDE_WITHOUT_NUMPY = """
import os, sys, time
sys.modules['numpy'] = None  # Importing it fails.
import pskv
"""


class Job:
    """Workers of one job: Python text, or a program, one process a rank."""

    def __init__(self, trio, job, workers):
        self.trio = trio
        self.job = job
        self.workers = workers
        self.processes = {}

    def start(self, rank, command, **more):
        agent = rank * len(self.trio.agent_names) // self.workers
        env = harness.clean_env(
            PYTHONPATH=PACKAGE, PYTHONUNBUFFERED=1,
            PYTHONDONTWRITEBYTECODE=1, PSKV_LIBRARY=LIBRARY,
            PSKV_JOB=self.job, PSKV_SOCKET=self.trio.socket(agent),
            DMLC_NUM_WORKER=self.workers,
            DMLC_NUM_SERVER=len(self.trio.server_names), DMLC_WORKER_ID=rank,
            OMP_NUM_THREADS=1, OPENBLAS_NUM_THREADS=1,
            **{"PSKV_ON_LOSS": "wait", **more})
        self.processes[rank] = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)

    def python(self, text, ranks=None, numpy=True, **more):
        text = (PRELUDE if numpy else PRELUDE_WITHOUT_NUMPY) + \
            textwrap.dedent(text)
        for rank in range(self.workers) if ranks is None else ranks:
            self.start(rank, [sys.executable, "-c", text], **more)

    def line(self, rank):
        """The next line a worker prints."""
        return self.processes[rank].stdout.readline().strip()

    def wait(self, rank):
        """How a worker ended: code, output, errors. Training takes longer than
        an operation, on a busy machine."""
        process = self.processes[rank]
        try:
            out, err = process.communicate(timeout=6 * harness.PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail("waited for the end of rank %d: %s%s" % (
                rank, *process.communicate()))
        return process.returncode, out, err

    def wait_all(self):
        """Outputs of all; every one must have ended well."""
        outs = []
        for rank in sorted(self.processes):
            code, out, err = self.wait(rank)
            assert code == 0, f"rank {rank}: {err}"
            outs.append(out)
        return outs

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()


@pytest.fixture
def world(trio):
    """Daemons, and jobs of scripts on them."""
    w = World(trio)
    yield w
    w.close()


class World:
    def __init__(self, make):
        self.make = make
        self.trio = None
        self.jobs = []

    def start(self, servers, agents):
        self.trio = self.make(servers=servers, agents=agents)
        return self

    def job(self, workers, name="job"):
        job = Job(self.trio, name, workers)
        self.jobs.append(job)
        return job

    def close(self):
        for job in self.jobs:
            job.close()


# --------------------------------------------------------------- arithmetic


def test_store_has_the_interface_of_mxnet(world):
    job = world.start(2, 2).job(4)
    job.python("""
        kv = pskv.create('dist_sync')
        r, n = kv.rank, kv.num_workers
        assert (r, n, kv.type) == (int(os.environ['DMLC_WORKER_ID']), 4,
                                   'dist_sync')
        assert (kv.local_rank, kv.local_size) == (r % 2, 2)

        # The value of rank 0, whatever the others say.
        w = np.full((3, 5), 7 + r, 'float32')
        kv.init(3, w)
        out = np.zeros_like(w)
        kv.pull(3, out=out)
        assert (out == 7).all(), out

        # A round replaces the value by the sum.
        kv.push(3, np.full((3, 5), 2.0 ** r, 'float32'))
        kv.pull(3, out=[out, w])
        assert (out == 15).all() and (w == 15).all(), out

        # Several arrays of one worker are summed.
        kv.pushpull(3, [np.ones((3, 5), 'float32')] * 3, out=out)
        assert (out == 12).all(), out

        # Lists of keys, other types, the mean.
        a, b = np.arange(10, dtype='int64') * (r + 1), np.full(4, r, 'float64')
        kv.init([4, 5], [np.zeros(10, 'int64'), np.zeros(4)])
        kv.push([4, 5], [a, b], priority=-1)
        kv.pull([4, 5], out=[a, b])
        assert (a == np.arange(10) * 10).all() and (b == 6).all()
        kv.pushpull(5, np.full(4, r, 'float64'), out=b, reduce='mean')
        assert (b == 1.5).all(), b

        # Keys that push and pull the same array.
        for shared in np.zeros(300000, 'f'), kv.empty(300000):
            kv.init([10, 11], [shared, shared[:150000]])
            for i in range(3):
                shared[...] = 1
                if r == i:
                    kv.pushpull([10, 11], [shared, shared[:150000]])
                    assert (shared == 4).all(), shared
                else:
                    # The second round ends later than the first. A pause,
                    # because no rank sees when another one has its result.
                    kv.pushpull(10, np.ones(300000, 'f'))
                    time.sleep(0.02)
                    kv.pushpull(11, np.ones(150000, 'f'))

        # Memory shared with the agent.
        s = kv.empty((100, 1000), 'int32')
        kv.init(6, s)
        for i in range(20):
            s[...] = i * n + r
            kv.pushpull(6, s)
            assert (s == i * 16 + 6).all(), s

        # What rank 2 says, twice.
        kv.broadcast(7, np.full(3, r, 'int32'), out=np.zeros(3, 'int32'))
        x = np.full(3, r, 'int32')
        kv.broadcast(7, x, root=2)
        assert (x == 2).all(), x
        kv._barrier()
        kv.close()
        print('good')
    """)
    assert job.wait_all() == ["good\n"] * 4


TYPES = """
def fp32(bits):
    return (bits.astype('uint32') << 16).view('float32')

def bf16(x):
    b = x.astype('float32').view('uint32')
    return ((b + 0x7fff + (b >> 16 & 1)) >> 16).astype('uint16')

def two(t, a, b):  # A sum of two, in NumPy.
    if t == 'bfloat16':
        return bf16(fp32(a) + fp32(b))
    return a | b if t == 'bool' else a + b

def mean(t, s):
    if t == 'bfloat16':
        return bf16(fp32(s) / np.float32(4))
    if t == 'float16':
        return (s.astype('float32') / np.float32(4)).astype('float16')
    return np.trunc(s.astype('float64') / 4).astype(t)

def given(t, rank, count):
    x = np.random.default_rng(rank).standard_normal(count) * 9
    if t == 'bfloat16':
        return bf16(x)
    if t == 'bool':
        return x > 9
    return x.astype(t) if t == 'float16' else \
        np.random.default_rng(rank).integers(0, 256, count, 'uint8').view(t)
"""


@pytest.mark.parametrize("servers", (1, 3))
def test_small_types_add_up_as_numpy_does(world, servers):
    job = world.start(servers, 2).job(4)
    job.python(TYPES + textwrap.dedent("""
    kv = pskv.create('dist_sync')
    r = kv.rank
    # Small keys of odd sizes travel together; the large are split.
    keys = []
    for count in (1, 3, 70, 1300003):
        for t in ('int8', 'float16', 'uint8', 'bfloat16', 'bool'):
            keys.append((t, count))
    keys.append(('float32', 5))
    names = ['%s.%d' % k for k in keys]
    def model(t, count):
        if t == 'float32':
            return np.full(count, 6, t)
        g = [given(t, i, count) for i in range(4)]
        return two(t, two(t, g[0], g[1]), two(t, g[2], g[3]))
    def mine(t, count):
        return np.full(count, r, t) if t == 'float32' else given(t, r, count)
    a = [mine(*k) for k in keys]
    out = [np.zeros_like(x) for x in a]
    kv.init(names, out)
    want = [model(*k) for k in keys]
    for i in range(2):
        kv.push(names, a)
        kv.pull(names, out=out)
        for k, x, y in zip(keys, out, want):
            assert x.tobytes() == y.tobytes(), k
    for k, name, x, o, y in zip(keys, names, a, out, want):
        if k[0] in ('bool', 'float32'):
            continue
        kv.pushpull(name, x, out=o, reduce='mean')
        assert o.tobytes() == mean(k[0], y).tobytes(), k
    try:
        kv.pushpull('bool.3', a[9], out=out[9], reduce='mean')
        raise SystemExit('a mean of bool')
    except (pskv.Error, ValueError) as e:
        assert 'bool, which has no mean' in str(e), e
    # Shared memory, and collectives with a scale.
    s = kv.empty(300, 'bfloat16')
    s[:] = bf16(np.full(300, r + 1.0))
    kv.allreduce(s, prescale=0.5)
    assert (fp32(s) == 5).all(), s
    h = np.full(7, r, 'float16')
    kv.allreduce(h, reduce='mean')
    assert h.dtype == np.float16 and (h == 1.5).all(), h
    kv._barrier()
    kv.close()
    print('good')
    """))
    assert job.wait_all() == ["good\n"] * 4


def test_strings_and_several_jobs_at_once(world):
    world.start(1, 2)
    for name, factor in (("one", 1), ("two", 10)):
        job = world.job(2, name=name)
        job.python(f"""
            kv = pskv.create('dist_sync')
            x = np.full(70000, {factor} * (kv.rank + 1), 'float64')
            out = np.zeros_like(x)
            kv.init('same name', x)
            for i in range(30):
                kv.pushpull('same name', x, out=out)
                assert (out == {factor} * 3).all()
            kv.close()
        """)
    for job in world.jobs:
        job.wait_all()


def test_the_optimizer_takes_the_same_steps_as_numpy(world):
    job = world.start(2, 2).job(3)
    job.python("""
        kv = pskv.create('dist_sync')
        kv.set_optimizer('sgd', learning_rate=0.1, momentum=0.9, wd=0.01,
                         rescale_grad=1 / 3, clip_gradient=0.5)
        f = np.float32
        draw = np.random.default_rng(5)
        n = 300001
        w = draw.standard_normal(n).astype(f)
        kv.init('w', w)
        m = np.zeros(n, f)
        out = np.zeros(n, f)
        for step in range(5):
            grads = draw.standard_normal((3, n)).astype(f)
            # Two workers on one agent, one on another: their tree of additions.
            g = (grads[0] + grads[1]) + grads[2]
            g = np.clip(g * f(1 / 3), f(-0.5), f(0.5))
            m = m * f(0.9) - w * (f(0.1) * f(0.01)) - g * f(0.1)
            w = w + m
            kv.pushpull('w', grads[kv.rank], out=out)
            assert out.tobytes() == w.tobytes(), (step, out, w)
        kv.close()
    """)
    job.wait_all()


def test_sums_do_not_depend_on_arrival_order(world):
    """Contributions whose sum depends on the order of the additions."""
    job = world.start(2, 2).job(4)
    job.python("""
        import random, time
        kv = pskv.create('dist_sync')
        f = np.float32
        all = [np.full(1000, v, f) for v in (1e8, 1, -1e8, 1)]
        want = (all[0] + all[1]) + (all[2] + all[3])
        out = np.zeros(1000, f)
        for i in range(100):
            # Ranks start each round in another order.
            if (i + kv.rank) % 4 == 0:
                kv.barrier()
                kv.pushpull('x', all[kv.rank], out=out)
            else:
                h = kv.pushpull_async('x', all[kv.rank], out=out)
                kv.barrier()
                h.wait()
            assert out.tobytes() == want.tobytes()
        kv.close()
    """)
    job.wait_all()


def test_store_works_without_servers(world):
    job = world.start(0, 1).job(3)
    job.python("""
        kv = pskv.create('dist_sync')
        assert kv.num_servers == 0
        x = np.full(50000, kv.rank, 'float32')
        for i in range(10):
            out = np.zeros_like(x)
            kv.pushpull('x', x, out=out)
            assert (out == 3).all()
        kv.close()
    """)
    job.wait_all()


def test_store_works_without_numpy(world):
    job = world.start(1, 1).job(2)
    job.python("""
        import array
        kv = pskv.create('dist_sync')
        x = array.array('f', [1, 2, 3])
        out = bytearray(12)
        kv.init('x', x)
        kv.pushpull('x', x, out=memoryview(out).cast('f'))
        assert memoryview(out).cast('f').tolist() == [2, 4, 6]
        s = kv.empty((2, 2), 'int64')
        assert isinstance(s, memoryview)
        for i in range(4):
            s[i // 2, i % 2] = i
        kv.pushpull('s', s)
        assert s.tolist() == [[0, 2], [4, 6]], s.tolist()
        kv.close()
    """, numpy=False)
    job.wait_all()


def test_operations_can_be_awaited(world):
    job = world.start(1, 1).job(2)
    job.python("""
        import asyncio
        kv = pskv.create('dist_sync')

        async def work(key):
            x = np.full(1000, key, 'float32')
            for i in range(20):
                out = np.zeros_like(x)
                await kv.pushpull_async(key, x, out=out)
                assert (out == 2 * key).all()

        async def main():
            await asyncio.gather(*[work(k) for k in range(5)])
            await kv.barrier_async()

        asyncio.run(main())
        kv.close()
    """)
    job.wait_all()


# ------------------------------------------------------------------- errors


@pytest.mark.parametrize("how", ["'dist_sync'",
                                 "'ssp', rule='assign', staleness=0"])
def test_a_time_limit_names_the_missing_rank(world, how):
    job = world.start(1, 2).job(4)
    job.python("""
        kv = pskv.create(HOW)
        x = np.zeros(1000, 'float32')
        kv.init('x', x)
        if kv.rank == 3:
            print('here', flush=True)
            sys.stdin.readline()
        h = kv.pushpull_async('x', x)
        while True:
            try:
                h.wait(timeout=0.3)
                break
            except pskv.Timeout as e:
                print(e, flush=True)
                sys.stdin.readline()
        kv.close()
    """.replace("HOW", how))
    assert job.line(3) == "here"
    for rank in range(3):
        text = job.line(rank)
        assert re.search(r"pushpull of 'x', round 1, is open for \d", text)
        assert re.search(r"\brank 3\b", text), text
    for rank in (3, 0, 1, 2):
        job.processes[rank].stdin.write("\n")
        job.processes[rank].stdin.flush()
    job.wait_all()


def test_differing_declarations_of_workers_are_refused(world):
    world.start(1, 1)
    job = world.job(2)
    job.python("""
        kv = pskv.create('dist_sync')
        kv.init('x', np.zeros(10, 'float32'))
        kv.barrier()
        try:
            kv.set_optimizer('sgd', learning_rate=0.1 + kv.rank)
            kv.set_optimizer('sgd', learning_rate=0.1 + kv.rank)
        except pskv.Error as e:
            print('refused')
        kv.barrier()
        kv.close()
    """)
    outs = job.wait_all()
    assert sorted(outs) == ["", "refused\n"]

    job = world.job(2, name="other")
    job.python("""
        kv = pskv.create('dist_sync')
        if kv.rank == 1:
            kv.barrier()
        try:
            kv.init('x', np.zeros(10 + kv.rank, 'float32'))
        except pskv.Error as e:
            print(e)
        if kv.rank == 0:
            kv.barrier()
        kv.close()
    """)
    outs = "".join(job.wait_all())
    assert "10" in outs and "11" in outs, outs


def test_worker_with_another_size_of_the_job_is_refused(world):
    world.start(1, 1)
    first = world.job(2)
    first.python("pskv.create('dist_sync')", ranks=[0])
    world.trio.sched.await_log("joined")
    other = world.job(3)
    other.python("""
        try:
            pskv.create('dist_sync')
        except pskv.Error as e:
            print(e)
    """, ranks=[1])
    _, out, err = other.wait(1)
    assert re.search(r"\b2\b.*\b3\b|\b3\b.*\b2\b", out), (out, err)


def test_an_incomplete_job_names_the_missing_ranks(world):
    job = world.start(1, 1).job(3)
    job.python("""
        print('ready', flush=True)
        sys.stdin.readline()
        try:
            pskv.create('dist_sync', start_timeout=START_S)
        except pskv.Error as e:
            print(e)
    """.replace("START_S", str(harness.SLOW)), ranks=[0, 2])
    # They come together, as neither waits for the start of the other.
    for rank in (0, 2):
        assert job.line(rank) == "ready"
    for rank in (0, 2):
        job.processes[rank].stdin.write("\n")
        job.processes[rank].stdin.flush()
    for rank in (0, 2):
        _, out, _ = job.wait(rank)
        assert re.search(r"\b2\b", out) and re.search(r"\b3\b", out), out
        assert re.search(r"\brank 1\b|missing:? ranks? 1", out), out


def test_dead_worker_fails_a_job_with_policy_fail(world):
    world.start(1, 2)
    job = world.job(4)
    other = world.job(2, name="bystander")
    other.python("""
        kv = pskv.create('dist_sync')
        x = np.ones(1000, 'float32')
        out = np.zeros_like(x)
        kv.pushpull('x', x, out=out)
        print('ready', flush=True)
        sys.stdin.readline()
        for i in range(100):
            kv.pushpull('x', x, out=out)
            assert (out == 2).all()
        kv.close()
    """)
    job.python("""
        kv = pskv.create('dist_sync', on_loss='fail', timeout=20)
        x = np.zeros(1000, 'float32')
        kv.init('x', x)
        print('ready', flush=True)
        if kv.rank == 3:
            sys.stdin.readline()
        try:
            kv.pushpull('x', x)
        except pskv.PeerLost as e:
            assert 3 in e.ranks, e.ranks
            print(e)
            os._exit(7)
    """)
    for rank in range(4):
        assert job.line(rank) == "ready"
    for rank in range(2):
        assert other.line(rank) == "ready"
    job.processes[3].send_signal(signal.SIGKILL)
    for rank in range(3):
        code, out, err = job.wait(rank)
        assert code == 7, err
        assert "rank 3" in out
    for rank in range(2):
        other.processes[rank].stdin.write("\n")
        other.processes[rank].stdin.flush()
    other.wait_all()


def test_returned_worker_continues(world):
    job = world.start(1, 1).job(2)
    text = """
        kv = pskv.create('dist_sync')
        x = np.ones(1000, 'float32')
        out = np.zeros_like(x)
        first = 'FIRST' in os.environ
        if first or kv.rank == 0:
            for i in range(3):
                kv.pushpull('x', x, out=out)
            print('three', flush=True)
            if kv.rank == 1:
                sys.stdin.readline()
        for i in range(3):
            kv.pushpull('x', x, out=out)
            assert (out == 2).all()
        kv.barrier()
        kv.close()
    """
    job.python(text, FIRST="1")
    for rank in range(2):
        assert job.line(rank) == "three"
    job.processes[1].kill()
    job.processes[1].wait()
    job.python(text, ranks=[1])
    job.wait_all()


def test_ctrl_c_ends_a_wait(world):
    job = world.start(1, 1).job(2)
    job.python("""
        kv = pskv.create('dist_sync')
        try:
            print('ready', flush=True)
            if kv.rank == 1:
                sys.stdin.readline()
            kv.barrier()
        except KeyboardInterrupt:
            print('interrupted', flush=True)
            kv.barrier()
    """)
    for rank in range(2):
        assert job.line(rank) == "ready"
    job.processes[0].send_signal(signal.SIGINT)
    assert job.line(0) == "interrupted"
    job.processes[1].stdin.write("\n")
    job.processes[1].stdin.flush()
    # The interrupted barrier counts, and so does the second one.
    job.close()


def test_end_of_a_program_is_a_departure(world):
    world.start(1, 1)
    job = world.job(2)
    job.python("""
        kv = pskv.create('dist_sync', on_loss='fail')
        x = np.zeros(10, 'float32')
        kv.pushpull('x', x)
        if kv.rank == 1:
            sys.exit(0)  # Without close().
        sys.stdin.readline()
        kv.barrier()
        kv.close()
        print('good')
    """)
    code, _, err = job.wait(1)
    assert code == 0, err
    job.processes[0].stdin.write("\n")
    job.processes[0].stdin.flush()
    code, out, err = job.wait(0)
    assert (code, out) == (0, "good\n"), err


def test_a_store_opened_while_a_program_ends_leaves_its_job(world):
    """Nothing would close it."""
    world.start(1, 1)
    job = world.job(1)
    job.python("""
        import atexit
        def late():
            try:
                pskv.create('dist_sync')
            except pskv.Error as e:
                print(e)
        # Functions are called in the reverse order: as if before the import.
        atexit.unregister(pskv._store._leave_at_exit)
        atexit.register(late)
        atexit.register(pskv._store._leave_at_exit)
        kv = pskv.create('dist_sync')
    """)
    code, out, err = job.wait(0)
    assert (code, out) == (0, "the program ends: open stores before its exit\n"), \
        err
    harness.wait_for(lambda: world.trio.sched.text().count(" ENDED") == 2,
                     "the end of both jobs")


@pytest.mark.parametrize("end,lost", [
    ("raise RuntimeError('over')", True),
    ("""
try:
    with kv:
        raise RuntimeError('over')
except RuntimeError:
    sys.stdin.readline()  # It is told before this program ends.
    os._exit(1)
""", True),
    ("with kv:\n    sys.exit(0)", False),
    # An error of an interactive session, which has gone on and ends well.
    ("sys.ps1, sys.last_type = '> ', RuntimeError", False)])
def test_an_exception_that_ends_a_program_is_no_departure(world, end, lost):
    """The others are told so, and a thread that waits is no obstacle."""
    world.start(1, 1)
    job = world.job(2)
    job.python("""
import threading
kv = pskv.create('dist_sync', on_loss='fail')
x = np.zeros(10, 'float32')
kv.pushpull('x', x)
if kv.rank == 0:
    try:
        kv.pushpull('x', x)
    except pskv.Error as e:
        print(e, flush=True)
        os._exit(0)
    sys.exit('no error')


def wait():
    try:
        kv.barrier()
    except pskv.Error as e:
        print('waited', e, flush=True)


thread = threading.Thread(target=wait, daemon=True)
thread.start()
""" + end + "\n")
    code, out, err = job.wait(0)
    assert code == 0, err
    assert ("rank 1 on" in out and "was lost" in out) == lost, out
    assert ("good order" in out) != lost, out
    job.wait(1)


# ------------------------------------------------------------------ example


@pytest.mark.skipif(not DATA.exists() or not EXAMPLE.exists(),
                    reason="no Fashion-MNIST or no example here")
@pytest.mark.parametrize("servers,agents", [(2, 2), (1, 2), (2, 1)])
def test_the_example_has_the_result_of_one_process(world, servers, agents):
    alone = subprocess.run(
        [str(EXAMPLE), "--alone", "--workers", "4", "--epochs", "1",
         "--checksum"], capture_output=True, text=True, check=True,
        env=harness.clean_env()).stdout
    checksum = re.search(r"^checksum [0-9a-f]{16}$", alone, re.M).group(0)
    job = world.start(servers, agents).job(4)
    for rank in range(4):
        job.start(rank, [str(EXAMPLE), "--epochs", "1", "--checksum"])
    outs = job.wait_all()
    for out in outs:
        assert checksum in out
    line = re.search(r"^epoch 1  loss [\d.]+  accuracy ([\d.]+)  [\d.]+ s$",
                     outs[0], re.M)
    assert float(line.group(1)) >= 0.83
    assert re.search(r"^done: 4 workers  234 rounds  [\d.]+ rounds/s  "
                     r"[\d.]+ MB moved  accuracy 0\.8", outs[0], re.M), outs[0]


@pytest.mark.parametrize("name,folder,words", [
    ("dist_sync", "missing/", []),
    ("local", "missing/", ["pslaunch -n 1 -- python3 SCRIPT"]),
    ("local", "", ["pslaunch -n 1 -- python3 SCRIPT"])])
def test_an_agent_that_cannot_come_is_not_waited_for(tmp, name, folder, words):
    """Nothing can listen in a folder that does not exist, and nobody starts an
    agent for a store of one process."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(f"""
            import pskv
            try:
                pskv.create({name!r}, rank=0, num_workers=1)
            except pskv.Error as e:
                print(e)
            """)],
        env=harness.clean_env(
            PYTHONPATH=PACKAGE, PSKV_LIBRARY=harness.LIBRARY,
            PSKV_SOCKET=tmp / f"{folder}agent.sock",
            PSKV_CONNECT_TIMEOUT="3600s"),
        stdout=subprocess.PIPE, text=True, timeout=harness.PATIENCE, check=True)
    for word in ["no agent on the socket", "agent.sock", *words]:
        assert word in done.stdout, done.stdout


ENDS = {
    "exception": (1, "raise RuntimeError('over')"),
    "exit": (3, "sys.exit(3)"),
    "end": (0, ""),
    "signal": (-15, "os.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()"),
    "thread": (0, "t = threading.Thread(target=lambda: 1 / 0)\n"
               "t.start()\nt.join()"),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_program_ends_with_open_operations(world, how):
    """And with arrays of the store that are referred to until the end."""
    code, end = ENDS[how]
    job = world.start(1, 1).job(2)
    job.python("""
import os, signal, sys, threading
kv = pskv.create('dist_sync')
keep = [kv, kv.empty(1000), kv.empty((3, 3), 'int64')]
kv.pushpull('w', keep[1])
if kv.rank == 1:
    sys.stdin.readline()  # Until rank 0 has ended.
    os._exit(0)
keep += [kv.pushpull_async('w', keep[1]), kv.barrier_async(),
         kv.allreduce_async(keep[2]), keep[1][2:5]]
print('open', flush=True)
""" + end + "\n")
    got, out, err = job.wait(0)
    assert got == code, (got, out, err)
    assert "open" in out, (out, err)


def test_a_program_ends_with_threads_in_calls(world):
    """The store is left, and freed only when no thread can be inside it."""
    job = world.start(1, 1).job(2)
    job.python("""
import select, threading
kv = pskv.create('dist_sync')
x = np.zeros(3, 'float32')
busy = threading.Barrier(5)


def dispatch():
    poll = select.poll()
    poll.register(kv.fileno(), select.POLLIN)
    busy.wait()
    while True:
        poll.poll(1)
        kv.dispatch()


for _ in range(4):
    threading.Thread(target=dispatch, daemon=True).start()
busy.wait()
for _ in range(20):
    kv.pushpull('w', x, x)
print('over', flush=True)
""")
    for rank in range(2):
        code, out, err = job.wait(rank)
        assert (code, err) == (0, "") and "over" in out, (code, out, err)
