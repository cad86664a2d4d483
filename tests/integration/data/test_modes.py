# SPDX-License-Identifier: Apache-2.0
"""Modes of a job: pushes that are applied when they arrive, each exactly once;
the names of stores; and a request that a mode does not have is an error of its
caller only."""
import subprocess
import sys

import numpy as np
import pytest
import trio as harness
from proxy import Proxy
from python_job import environment


HEAD = """
import os, sys
import numpy as np, pskv
rank = int(os.environ['DMLC_WORKER_ID'])

def push(*given, **more):
    kv.push_async(*given, **more).wait()

def refused(error, word, call, *args, **more):
    try:
        call(*args, **more)
    except error as e:
        assert word in str(e), str(e)
    else:
        raise AssertionError('%s was not refused' % word)
"""


def spawn(t, rank, ranks, text, **more):
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + text], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment(
            t, "modes", rank, ranks, PSKV_OP_TIMEOUT="120s",
            PSKV_ON_LOSS="fail", **more))


def end(workers):
    """Their output, by rank."""
    said = [w.communicate(timeout=8 * harness.PATIENCE) for w in workers]
    assert [w.returncode for w in workers] == [0] * len(workers), \
        "".join(err for _, err in said)
    return [out for out, _ in said]


def run(t, ranks, text, **more):
    """The text in every rank."""
    return end([spawn(t, rank, ranks, text, **more) for rank in range(ranks)])


COUNTING = """
kv = pskv.create('dist_async', rule='accumulate')
kv.init('n', np.zeros(3, 'int64'))
kv.init('wide', np.zeros(40_000, 'int64'))
one = np.array([1, rank, 1 << rank], 'int64')
wide = np.ones(40_000, 'int64')
for i in range(10_000):
    kv.push('n', one)
    if i % 500 == 0:
        kv.push('wide', wide)
        got = np.empty(3, 'int64')
        kv.pull('n', got)
        assert got[2] >> rank >= 1 and got[0] >= i + 1, (i, got)
n, w = np.empty(3, 'int64'), np.empty(40_000, 'int64')
kv.pull('n', n)  # A pull follows the pushes of its rank.
kv.pull('wide', w)
kv.barrier()
kv.pull('n', n)
kv.pull('wide', w)
print(n.tolist(), w.min(), w.max())
kv.close()
"""


def test_counting_with_cuts(trio):
    """8 workers push 10,000 times while connections are cut in the middle of
    frames: the total is exact, and every rank has seen its own pushes."""
    t = trio(servers=2, agents=2,
             agent_options=["scheduler.retry.first=10ms",
                            "scheduler.retry.max=100ms"],
             server_options=["advertise.address=127.0.0.2",
                             "network.same_host=off"])
    proxies = []
    try:
        for i, server in enumerate(t.servers()):
            proxies.append(Proxy(("127.0.0.2", server.port),
                                 ("127.0.0.1", server.port), seed=i))
            proxies[-1].cut_every(100_000, 40)
        said = run(t, 8, COUNTING, PSKV_PARTITION_BYTES=65536)
        assert sum(p.cuts for p in proxies) >= 20
        for d in t.daemons.values():
            assert d.alive(), d.text()
    finally:
        for p in proxies:
            p.close()
    total = [80_000, 10_000 * sum(range(8)), 10_000 * 255]
    assert said == [f"{total} 160 160\n"] * 8
    print(f"8 workers, 10,000 pushes each, {sum(p.cuts for p in proxies)} cuts:"
          f" totals {total} on every rank")
    t.await_empty()


def test_optimizer_steps(trio):
    """Every push is a step of its own, also of workers on one node: with
    momentum, steps one by one differ from a step with their sum."""
    t = trio(servers=2, agents=2)
    said = run(t, 4, """
kv = pskv.create('dist_async')
kv.set_optimizer('sgd', learning_rate=0.5, momentum=0.5)
kv.init('w', np.zeros(5, 'float32'))
kv.barrier()
for _ in range(25):
    kv.push('w', np.ones(5, 'float32'))
w = np.empty(5, 'float32')
kv.pull('w', w)  # A pull follows the pushes of its rank.
kv.barrier()
kv.pull('w', w)
print(w.tolist())
kv.close()
""")
    w = m = np.float32(0)
    for _ in range(100):
        m = np.float32(0.5) * m - np.float32(0.5)
        w = w + m
    for out in said:
        np.testing.assert_allclose(eval(out), [w] * 5, rtol=1e-6)


def test_assign(trio):
    """The value is always one push in full within a partition: of keys that
    travel together with others, and of one in several partitions."""
    t = trio(servers=2, agents=2)
    run(t, 4, """
PART = 1 << 17  # Elements of a partition.
kv = pskv.create('dist_async', rule='assign')
SIZES = {'w': 1000, 'v': 8000, 'big': 300_000}
got = {k: np.empty(n) for k, n in SIZES.items()}
for k, n in SIZES.items():
    kv.init(k, np.zeros(n))

def check(k):
    a = got[k]
    for i in range(0, len(a), PART):
        part = a[i:i + PART]
        assert part.min() == part.max(), (k, i, part)

for i in range(100):
    for k in SIZES if i % 10 == 0 else ('w', 'v'):
        given = np.full(SIZES[k], rank + 4.0 * i)
        kv.push(k, given)
        kv.pull(k, got[k])
        check(k)
        kv.pushpull(k, given, out=got[k])
        check(k)
kv.barrier()
for k in SIZES:
    kv.pull(k, got[k])
    check(k)
assert got['w'][0] >= 4.0 * 99, got['w']
kv.close()
""", PSKV_PARTITION_BYTES=1 << 20)


SSP = """
import mmap, time
RANKS, STALENESS, ROUNDS = 4, 2, 60
with open('CLOCKS', 'r+b') as f:
    shared = np.frombuffer(mmap.mmap(f.fileno(), 0), 'int64')
begun, done = shared[:RANKS], shared[RANKS:]
kv = pskv.create('dist_ssp', rule='accumulate', staleness=STALENESS)
kv.init('n', np.zeros(RANKS, 'int64'))
kv.init('wide', np.zeros((RANKS, 20_000), 'int64'))
mine = np.eye(RANKS, dtype='int64')[rank]
wide = np.repeat(mine[:, None], 20_000, axis=1)
lead = 0
for c in range(1, ROUNDS + 1):
    if rank == 3:
        # Sleeps until no other rank can continue.
        while (done[:3] < min(c - 1 + STALENESS, ROUNDS)).any():
            time.sleep(0.001)
    begun[rank] = c
    for k, given in (('n', mine), ('wide', wide)):
        got = np.empty_like(given)
        if rank == 2:
            kv.pushpull(k, given, out=got)
        else:
            kv.push(k, given)
            kv.pull(k, got)
        assert (got >= c - STALENESS).all(), (k, c, got)
    lead = max(lead, c - begun.min())
    done[rank] = c
    assert lead <= STALENESS, (c, begun)
print(lead)
kv.barrier()
kv.pull('n', got := np.empty(RANKS, 'int64'))
assert got.tolist() == [ROUNDS] * RANKS, got
kv.close()
"""


def test_ssp(trio, tmp):
    """Every worker runs up to the staleness ahead of one that sleeps, and none
    further."""
    t = trio(servers=2, agents=2)
    clocks = tmp / "clocks"
    clocks.write_bytes(bytes(8 * 8))
    said = run(t, 4, SSP.replace("CLOCKS", str(clocks)))
    assert said == ["2\n"] * 3 + ["0\n"]
    print("staleness 2, rank 3 sleeps: ranks were ahead of the slowest by",
          *(s.strip() for s in said))


ACCUMULATE = """
K, ROUNDS, COUNT = 3, 12, 5000
kv = pskv.create('dist_sync')
kv.set_optimizer('adam', learning_rate=0.1, accumulate=K)
w = np.random.default_rng(1).standard_normal(COUNT).astype('f')
kv.init('w', w)
want, m, v = w.astype('d'), np.zeros(COUNT), np.zeros(COUNT)
g, t = np.zeros(COUNT), 0
for r in range(1, ROUNDS + 1):
    given = [np.random.default_rng([r, i]).standard_normal(COUNT).astype('f')
             for i in range(4)]
    before = w.copy()
    kv.pushpull('w', given[rank], out=w, reduce='REDUCE')
    g += np.sum(given, axis=0, dtype='d')
    if r % K != 0:
        assert (w == before).all(), r
        continue
    g /= 4 * K if 'REDUCE' == 'mean' else 1
    t += 1
    m, v, g = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g, np.zeros(COUNT)
    want -= 0.1 * np.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t) * m / (
        np.sqrt(v) + 1e-8)
    np.testing.assert_allclose(w, want, rtol=0, atol=2e-4)
print(w.tobytes().hex())
kv.close()
"""


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_a_step_of_several_rounds(trio, reduce):
    """As NumPy does it, and the same bits on one server and on three."""
    bits = set()
    for servers in (1, 3):
        t = trio(servers=servers, agents=2)
        bits |= set(run(t, 4, ACCUMULATE.replace("REDUCE", reduce)))
    assert len(bits) == 1


def test_a_step_of_several_pushes(trio):
    """Without rounds pushes are counted over all ranks."""
    t = trio(servers=2, agents=2)
    run(t, 4, """
kv = pskv.create('dist_async')
kv.set_optimizer('sgd', learning_rate=1.0, accumulate=10)
kv.init('w', np.zeros(5, 'f'))
w = np.empty(5, 'f')
for i in range(25):
    kv.pushpull('w', np.ones(5, 'f'), out=w)
    assert w[0] == w[4] and w[0] % 10 == 0, w
kv.barrier()
kv.pull('w', w)
assert w.tolist() == [-100.0] * 5, w
kv.close()
""")


def test_misuse_of_accumulation(trio):
    t = trio(servers=1, agents=1)
    run(t, 1, """
kv = pskv.create('dist_sync')
refused(pskv.Error, 'whole number from 1', kv.set_optimizer, 'sgd',
        accumulate=0)
refused(pskv.Error, 'whole number from 1', kv.set_optimizer, 'sgd',
        accumulate=1.5)
kv.set_optimizer('sgd', accumulate=2)
refused(pskv.Error, 'several rounds', kv.set_gradient_compression,
        {'type': '2bit'})
kv.init_rows('r', np.zeros((3, 3), 'f'))
refused(pskv.Error, 'whole arrays', kv.push_rows, 'r', [1],
        np.zeros((1, 3), 'f'))
kv.init('k', np.zeros(3, 'f'))
push('k', np.ones(3, 'f'))
refused(pskv.Error, 'differ', push, 'k', np.ones(3, 'f'), reduce='mean')
push('k', np.ones(3, 'f'))
kv.close()
kv = pskv.create('dist_sync')
kv.set_gradient_compression({'type': '2bit'})
refused(pskv.Error, 'several rounds', kv.set_optimizer, 'sgd', accumulate=2)
kv.set_optimizer('sgd')
kv.close()
""")


SAMPLES = """
SERVED = SERVERS
kv = pskv.create('dist_sync', num_servers=SERVED)
counts = [1, 5, 10]
def given(r, i):
    return np.random.default_rng([r, i]).standard_normal(3000).astype('f')
out = np.zeros(3000, 'f')
kv.init('k', out)
for r in range(1, 6):
    want = sum(given(r, i).astype('d') for i in range(3)) / sum(counts)
    kv.pushpull('k', given(r, rank), out=out, reduce='mean',
                samples=counts[rank])
    np.testing.assert_allclose(out, want, atol=1e-6)
kv.pushpull('k', np.ones(3000, 'f'), out=out, reduce='mean',
            samples=4 if rank == 1 else None)
assert (out == 0.5).all(), out  # 3 by 1 + 4 + 1
# More than 32 bits in all, and whole numbers.
kv.init('i', np.zeros(2, 'int64'))
big = np.empty(2, 'int64')
kv.pushpull('i', np.full(2, 7 * (2 ** 32 - 1), 'int64'), out=big,
            reduce='mean', samples=2 ** 32 - 1)
assert big.tolist() == [7, 7], big
if rank == 0:
    refused(ValueError, 'samples', kv.push, 'k', out, reduce='mean', samples=0)
    refused(pskv.Error, 'samples are for the reduction mean', push, 'k', out, samples=2)
kv.barrier()
kv.close()
if SERVED:
    # A mean over several rounds is the mean of all their samples.
    kv = pskv.create('dist_sync', job='step')
    kv.set_optimizer('sgd', learning_rate=1.0, accumulate=2)
    kv.init('w', np.zeros(4, 'f'))
    w = np.empty(4, 'f')
    for samples in (1, 3):
        kv.pushpull('w', np.full(4, 8, 'f'), out=w, reduce='mean',
                    samples=samples)
    assert w.tolist() == [-4.0] * 4, w  # 6 * 8 by 3 * 4
    kv.close()
"""


@pytest.mark.parametrize("servers", [0, 2])
def test_means_of_samples(trio, servers):
    t = trio(servers=2, agents=1 if servers == 0 else 2)
    run(t, 3, SAMPLES.replace("SERVERS", str(servers)))


def test_collectives_in_async(trio):
    """They have rounds in every mode."""
    t = trio(servers=1, agents=2)
    run(t, 4, """
kv = pskv.create('dist_async', rule='accumulate')
a = np.full(10, 1.0 + rank)
kv.allreduce(a)
assert a.tolist() == [10.0] * 10, a
kv.close()
""")


NAMES = [("dist", "sync"), ("dist_sync", "sync"), ("dist_sync_device", "sync"),
         ("dist_device_sync", "sync"), ("dist_sync_mpi", "sync"),
         ("dist_async", "async"), ("dist_async_device", "async"),
         ("dist_device_async", "async"), ("ssp", "async"),
         ("dist_ssp", "async")]


@pytest.mark.parametrize("name,mode", NAMES)
def test_names(trio, name, mode):
    """A sync job answers with the sum of the round, an async one with the
    value that all pushes were added to; by argument and by environment."""
    t = trio(servers=1, agents=1)
    text = """
kv = pskv.create(%s)
assert kv.type == '""" + name + """'
kv.init('k', np.full(2, 100, 'int32'))
kv.push('k', np.full(2, 1, 'int32'))
out = np.empty(2, 'int32')
kv.pull('k', out)
kv.barrier()
kv.pull('k', out)
print(out.tolist())
kv.close()
"""
    expected = {"sync": "[2, 2]", "async": "[102, 102]"}[mode]
    for said in (run(t, 2, text % repr(name), PSKV_RULE="accumulate"),
                 run(t, 2, text % "", PSKV_MODE=name,
                     **({"PSKV_RULE": "accumulate"} if mode == "async"
                        else {}))):
        for out in said:
            assert out.splitlines()[0] == expected


@pytest.mark.parametrize("name", ["local", "device"])
def test_alone(trio, name):
    """A store of this process alone, whatever the environment says of the
    job: the arrays of one call are summed, and replace the value."""
    t = trio(servers=1, agents=1)
    run(t, 2, f"""
kv = pskv.create({name!r})
assert (kv.rank, kv.num_workers) == (0, 1)
kv.init(3, np.zeros(4, 'float32'))
kv.push(3, [np.ones(4, 'float32'), np.full(4, rank, 'float32')])
out = np.empty(4, 'float32')
kv.pull(3, out)
assert out.tolist() == [1.0 + rank] * 4
kv.close()
""")


MISUSE = {
    "no rule": ("kv = pskv.create('dist_async')", """
refused(pskv.Error, 'needs an optimizer', kv.init, 'k', np.zeros(3, 'f'))
kv.barrier()
kv.set_optimizer('sgd', learning_rate=1.0)
kv.init('k', np.zeros(3, 'f'))
"""),
    "push before init": ("kv = pskv.create('dist_async', rule='accumulate')", """
if rank == 0:
    refused(pskv.Error, 'never initialised', push, 'k', np.ones(3, 'f'))
kv.barrier()
kv.init('k', np.zeros(3, 'f'))
"""),
    "broadcast": ("kv = pskv.create('dist_async', rule='assign')", """
kv.broadcast('k', np.ones(3, 'f'))
if rank == 0:
    refused(pskv.Error, 'broadcast is a round', kv.broadcast, 'k',
            np.ones(3, 'f'))
"""),
    "mean": ("kv = pskv.create('dist_async', rule='assign')", """
kv.init('k', np.zeros(3, 'f'))
if rank == 0:
    refused(pskv.Error, 'needs a round', push, 'k', np.ones(3, 'f'),
            reduce='mean')
"""),
    "rows": ("kv = pskv.create('dist_async', rule='assign')", """
kv.init('k', np.zeros(3, 'f'))
if rank == 0:
    refused(pskv.Error, 'rounds', kv.init_rows, 'r', np.zeros((3, 3), 'f'))
"""),
    "optimizer beside a rule": (
        "kv = pskv.create('dist_async', rule='assign')", """
kv.init('k', np.zeros(3, 'f'))
if rank == 0:
    refused(pskv.Error, "rule 'assign'", kv.set_optimizer, 'sgd')
"""),
    "integers with an optimizer": ("kv = pskv.create('dist_async')", """
kv.set_optimizer('sgd', learning_rate=1.0)
kv.init('k', np.zeros(3, 'f'))
kv.init('i', np.zeros(3, 'int32'))
if rank == 0:
    refused(pskv.Error, 'real numbers', push, 'i', np.ones(3, 'int32'))
"""),
}
COMMON = {
    "other size": """
refused(ValueError, 'of 4', push, 'k', np.ones(4, 'f'))
""",
    "other type": """
refused(ValueError, 'float64', push, 'k', np.ones(3, 'float64'))
""",
    "mixed keys": """
refused(Exception, 'key', kv.init, 7, np.ones(3, 'f'))
""",
    "second optimizer": """
refused(pskv.Error, 'adam', kv.set_optimizer, 'adam')
kv.set_optimizer('sgd', learning_rate=1.0)
""",
}
AFTER = """
kv.barrier()
kv.push('k', np.ones(3, 'f'))
out = np.empty(3, 'f')
kv.pull('k', out)
assert out[0] != 0, out
kv.close()
"""


@pytest.mark.parametrize("what", MISUSE)
def test_misuse_of_async(trio, what):
    """Refused with a reason, and all ranks continue."""
    t = trio(servers=1, agents=2)
    opening, text = MISUSE[what]
    run(t, 4, opening + text + AFTER)


@pytest.mark.parametrize("name", ["dist_sync", "dist_async"])
@pytest.mark.parametrize("what", COMMON)
def test_misuse(trio, name, what):
    """One rank does it: only this rank gets the error."""
    t = trio(servers=1, agents=2)
    text = COMMON[what].strip().replace("\n", "\n    ")
    run(t, 4, f"""
kv = pskv.create({name!r})
kv.set_optimizer('sgd', learning_rate=1.0)
kv.init('k', np.zeros(3, 'f'))
if rank == 2:
    {text}
{AFTER}""")


def test_misuse_at_open(trio):
    """Before there is a job."""
    t = trio(servers=1, agents=1)
    run(t, 1, """
refused(pskv.Error, 'async and ssp jobs only', pskv.create, 'dist_sync',
        rule='accumulate')
refused(ValueError, 'rule', pskv.create, 'dist_async', rule='step')
refused(ValueError, 'dist_async', pskv.create, 'dist_later')
refused(pskv.Error, 'ssp jobs only', pskv.create, 'dist_async',
        rule='assign', staleness=1)
refused(pskv.Error, 'at least one server', pskv.create, 'dist_async',
        rule='assign', num_servers=0)
""")


@pytest.mark.parametrize("other, words", [
    ("rule='accumulate', staleness=7", "rule assign"),
    ("rule='assign', staleness=8", "staleness 7")])
def test_ranks_that_contradict_each_other_at_open(trio, other, words):
    """Both are refused with both options, and go on with the same."""
    t = trio(servers=1, agents=1)
    source = f"""
refused(pskv.Error, {words!r}, pskv.create, 'dist_ssp', %s)
pskv.create('dist_ssp', rule='assign', staleness=7).close()
"""
    first = spawn(t, 0, 2, source % "rule='assign', staleness=7")
    t.await_ranks("modes", 1)
    end([first, spawn(t, 1, 2, source % other)])
