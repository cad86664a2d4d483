# SPDX-License-Identifier: Apache-2.0
"""Every compression for 50 rounds on random input, four workers on two nodes:
values and bytes are those of an independent NumPy model, on 1 server and on 3,
also while connections are cut. Misuse is an error of its caller alone."""
import subprocess
import sys

import numpy as np
import pytest
import trio as harness
from grad_codec_model import Node, rng_key
from proxy import Proxy
from python_job import environment


ROUNDS = 50
COUNT = 5003
PIECE = 1024  # Elements of a partition of 4096 bytes.
MEAN = 3      # Every third round is a mean.

CASES = [
    {"type": "2bit", "threshold": 0.5},
    {"type": "2bit", "threshold": 1.5, "momentum": 0.9},
    {"type": "1bit"},
    {"type": "fp16"},
    {"type": "fp16", "ef": 1},
    {"type": "bf16"},
    {"type": "onebit"},
    {"type": "onebit", "scaling": 0, "momentum": 0.5},
    {"type": "topk", "k": 0.05},
    {"type": "topk", "k": 20, "ef": 0},
    {"type": "randomk", "k": 0.1, "seed": 7},
    {"type": "dithering", "levels": 1, "seed": 1},
    {"type": "dithering", "levels": 100, "l2": 1, "ef": 0},
    {"type": "dithering", "natural": 1, "levels": 6, "seed": 3},
    {"type": "2bit", "threshold": 0.4, "both": 1},
    {"type": "fp16", "both": 1},
    {"type": "onebit", "momentum": 0.5, "both": 1},
    {"type": "topk", "k": 0.1, "both": 1},
    {"type": "randomk", "k": 0.2, "both": 1},
    {"type": "dithering", "both": 1, "min_bytes": 3700},
    {"type": "2bit", "threshold": 0.3, "per_worker": 1},
    {"type": "2bit", "momentum": 0.5, "per_worker": 1, "both": 1},
    {"type": "1bit", "threshold": 0.1, "per_worker": 1, "min_bytes": 3700},
]

WORKER = """
import ast, os, sys
import numpy as np, pskv
cases, out = ast.literal_eval(sys.argv[1]), sys.argv[2]
for number, case in enumerate(cases):
    os.environ['PSKV_JOB'] = 'job%%d' %% number
    kv = pskv.create('dist_sync')
    kv.set_gradient_compression(case)
    w = np.zeros(%d, 'f')
    kv.init('w', w)
    seen = []
    for step in range(%d):
        draw = np.random.default_rng([number, step, kv.rank])
        g = draw.standard_normal(w.size).astype('f')
        reduce = 'mean' if step %% %d == 0 else 'sum'
        kv.pushpull('w', g, out=w, reduce=reduce, priority=-step)
        seen.append(w.copy())
    np.stack(seen).tofile('%%s%%d.%%d' %% (out, number, kv.rank))
    kv.close()
""" % (COUNT, ROUNDS, MEAN)


def pieces():
    return [(i, min(i + PIECE, COUNT)) for i in range(0, COUNT, PIECE)]


def expected(number, case):
    """Values after each round, and bytes pushed by both nodes in all, and
    those of values to both."""
    each = 2 if case.get("per_worker") else 1  # Encoders of a node.
    nodes = [[Node(case, b - a, rng_key("w"), i, slot)
              for i, (a, b) in enumerate(pieces())] for slot in range(2 * each)]
    back = [n.back() for n in nodes[0]]
    seen = []
    for step in range(ROUNDS):
        g = [np.random.default_rng([number, step, rank])
             .standard_normal(COUNT).astype("f") for rank in range(4)]
        w = np.empty(COUNT, "f")
        for i, (a, b) in enumerate(pieces()):
            if each == 2:
                parts = [n[i].push(x[a:b]) for n, x in zip(nodes, g)]
                parts = [parts[0] + parts[1], parts[2] + parts[3]]
            else:
                parts = [nodes[s][i].push(g[2 * s][a:b] + g[2 * s + 1][a:b])
                         for s in (0, 1)]
            w[a:b] = parts[0] + parts[1]
            if step % MEAN == 0:
                w[a:b] /= np.float32(4)
            if back[i].both:
                w[a:b] = back[i].push(w[a:b])
        seen.append(w)
    size = sum(n.bytes() // (each if n.plain else 1)
               for node in nodes for n in node)
    values = 2 * sum(n.bytes() for n in back) if back[0].both else \
        2 * 4 * COUNT
    return np.stack(seen), size * ROUNDS, values * ROUNDS


def spawn(t, rank, source, *args, **env):
    env = environment(t, "compression", rank, 4,
                      **{"PSKV_PARTITION_BYTES": 4 * PIECE, **env})
    return subprocess.Popen([sys.executable, "-c", source, *args], env=env,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def run(t, cases, out):
    workers = [spawn(t, rank, WORKER, repr(cases), out) for rank in range(4)]
    try:
        for w in workers:
            _, err = w.communicate(timeout=harness.PATIENCE * 5)
            assert w.returncode == 0, err
    finally:
        for w in workers:
            if w.poll() is None:
                w.kill()
                w.wait()
    results = []
    for number, case in enumerate(cases):
        seen = [np.fromfile(f"{out}{number}.{rank}", "f")
                .reshape(ROUNDS, COUNT) for rank in range(4)]
        assert len({s.tobytes() for s in seen}) == 1, case
        results.append(seen[0])
    return results


def counted(t, names):
    """Payload bytes that members have sent."""
    return sum(n["bytes_out"] for n in t.ask("nodes")["nodes"]
               if n["name"] in names)


@pytest.mark.parametrize("servers", [1, 3])
def test_values_and_bytes_are_those_of_the_model(trio, tmp, servers):
    t = trio(servers=servers, agents=2)
    results = run(t, CASES, str(tmp / f"seen{servers}-"))
    pushed = returned = 0
    for number, (case, seen) in enumerate(zip(CASES, results)):
        want, size, values = expected(number, case)
        pushed += size + 4 * COUNT  # The init, from one agent.
        returned += values + 2 * 4 * COUNT
        for step in range(ROUNDS):
            bad = np.flatnonzero(seen[step] != want[step])
            assert not len(bad), (
                f"{case}, round {step + 1}: element {bad[0]} is "
                f"{seen[step][bad[0]]!r}, not {want[step][bad[0]]!r}, "
                f"{len(bad)} of them")
    for names, total in ((t.agent_names, pushed),
                         (t.server_names, returned)):
        harness.wait_for(lambda: counted(t, names) >= total, "counts")
        assert counted(t, names) == total
    print(f"{len(CASES)} codecs, {ROUNDS} rounds, {servers} servers: no bit "
          f"differs; {pushed} bytes pushed, {returned} returned, as computed")


def test_cut_connections_change_no_bit(trio, tmp):
    """A residual moves once for a round, whatever has to be sent again."""
    cases = [CASES[0], CASES[8], CASES[14], CASES[19]]
    t = trio(servers=2, agents=2,
             server_options=["advertise.address=127.0.0.2"],
             agent_options=["scheduler.retry.first=10ms",
                            "scheduler.retry.max=100ms",
                            "network.same_host=off"])
    proxies = []
    try:
        for i, server in enumerate(t.servers()):
            proxies.append(Proxy(("127.0.0.2", server.port),
                                 ("127.0.0.1", server.port), seed=i))
            proxies[-1].cut_every(30_000, 30)
        results = run(t, cases, str(tmp / "cut-"))
        assert sum(p.cuts for p in proxies) >= 30
    finally:
        for p in proxies:
            p.close()
    for number, (case, seen) in enumerate(zip(cases, results)):
        want, _, _ = expected(number, case)
        assert seen.tobytes() == want.tobytes(), case


DECLARED = {"type": "2bit", "threshold": 1.5, "momentum": 0.9}


class Story:
    """Four workers on two nodes that train round by round, and the model."""

    def __init__(self, t, tmp):
        self.tmp = tmp
        self.trio = t
        self.job = harness.Job(t, 4, "story", PSKV_ON_LOSS="wait",
                               PSKV_PARTITION_BYTES=4 * PIECE,
                               PSKV_OP_TIMEOUT="120s")
        self.nodes = [[Node(DECLARED, b - a, rng_key("w"), i, slot)
                       for i, (a, b) in enumerate(pieces())]
                      for slot in (0, 1)]
        self.round = 0
        for w in self.job:
            self.declare(w)

    @staticmethod
    def declare(worker):
        worker.ask("compress 2bit threshold=1.5 momentum=0.9")
        worker.key("w", "float32", COUNT)

    def back(self, rank):
        """A new process in the place of a dead one."""
        self.job[rank].kill()
        self.job[rank].end()
        self.job.workers[rank] = self.job.make(rank, rank // 2)
        assert self.job[rank].ask("open")[0] == str(rank)
        self.declare(self.job[rank])

    def rounds(self, count):
        for _ in range(count):
            given = [np.random.default_rng([self.round, rank])
                     .standard_normal(COUNT).astype("f") for rank in range(4)]
            files = [self.tmp / f"g{rank}" for rank in range(4)]
            for array, name in zip(given, files):
                array.tofile(name)
            self.round += 1
            versions = self.job.tell(
                lambda rank, f=files: f"pushpull 0 src={f[rank]} "
                                      f"out={self.tmp}/w{rank}")
            assert {v[0] for v in versions} == {str(self.round)}
            want = self.model(given)
            for rank in range(4):
                seen = np.fromfile(self.tmp / f"w{rank}", "f")
                bad = np.flatnonzero(seen != want)
                assert not len(bad), (self.round, rank, len(bad))

    def model(self, given):
        want = np.empty(COUNT, "f")
        for i, (a, b) in enumerate(pieces()):
            want[a:b] = np.add(*(
                self.nodes[s][i].push(given[2 * s][a:b] +
                                      given[2 * s + 1][a:b])
                for s in (0, 1)))
        return want

    def await_live(self, count):
        harness.wait_for(
            lambda: [j["live"] for j in self.trio.ask("jobs")["jobs"]] ==
            [count], "the loss to be noticed")


def test_residuals_outlive_agents_and_workers(trio, tmp):
    """Residual and momentum are the node's: they outlive its workers, any
    server and any agent whose workers live."""
    t = trio(servers=2, agents=2)
    story = Story(t, tmp)

    def replace(name):
        """Killed; the new one under its name says that the old one is gone."""
        t.daemons[name].stop(harness.Deadline(), kill=True)
        t.launch(name).await_ready(harness.Deadline())

    with story.job:
        story.rounds(3)
        for rank in (2, 3):  # Only the agent of the node is left.
            story.job[rank].kill()
        story.await_live(2)
        for rank in (2, 3):
            story.back(rank)
        story.rounds(3)
        replace("ps1")
        story.rounds(3)
        for names in (["node1"], ["node0", "node1"], ["node0"]):
            for name in names:
                replace(name)
            story.rounds(3)
        story.job[3].kill()
        story.await_live(3)
        story.back(3)
        story.rounds(3)


MISUSE = """
import sys
import numpy as np, pskv
kv = pskv.create('dist_sync')
def refused(word, declaration):
    try:
        kv.set_gradient_compression(declaration)
    except (pskv.Error, ValueError) as e:
        assert word in str(e), str(e)
    else:
        sys.exit('%r is taken' % (declaration,))
refused("type", {})
refused("no compression is called '3bit'; there is 2bit", {'type': '3bit'})
refused('must be above 0', {'type': '2bit', 'threshold': 0})
refused('must be a finite number', {'type': '2bit', 'threshold': float('nan')})
refused("no parameter 'k'; it has threshold", {'type': '2bit', 'k': 3})
refused('from 1 to 127', {'type': 'dithering', 'levels': 128})
refused('at most 31', {'type': 'dithering', 'levels': 32, 'natural': 1})
refused('share below 1 or a whole', {'type': 'topk', 'k': 1.5})
kv.barrier()
if kv.rank == 0:
    kv.set_gradient_compression({'type': '2bit', 'threshold': .25})
kv.barrier()
kv.set_gradient_compression({'type': '2bit', 'threshold': .25})
out = np.zeros(8, 'f')
kv.init('w', out)
kv.set_gradient_compression({'threshold': .25, 'type': '2bit'})
kv.pushpull('w', np.full(8, .3, 'f'), out=out)
assert (out == 1).all() or (out == .5).all(), out
d = np.zeros(8, 'f8')
kv.init('d', d)
kv.pushpull('d', np.full(8, .3), out=d)
assert abs(d - 1.2).max() < 1e-12, d
b = np.zeros(8, 'f')
kv.broadcast('b', np.full(8, .3, 'f'), out=b)
assert (b == np.float32(.3)).all(), b
kv.close()
"""

LATE = """
import sys
import numpy as np, pskv
kv = pskv.create('dist_sync')
kv.init('w', np.zeros(8, 'f'))
try:
    kv.set_gradient_compression({'type': '2bit'})
except pskv.Error as e:
    assert 'before the first' in str(e), str(e)
else:
    sys.exit('taken after the first key')
out = np.zeros(8, 'f')
kv.pushpull('w', np.full(8, .3, 'f'), out=out)
assert abs(out - 1.2).max() < 1e-6, out
kv.close()
"""

BOTH = """
import sys
import numpy as np, pskv
kv = pskv.create('dist_sync')
optimizer = lambda: kv.set_optimizer('sgd', learning_rate=.5)
compression = lambda: kv.set_gradient_compression(
    {'type': 'fp16', 'both': int(sys.argv[1])})
acts = [optimizer, compression] if int(sys.argv[2]) else [
    compression, optimizer]
acts[0]()
kv.barrier()
try:
    acts[1]()
except pskv.Error as e:
    assert int(sys.argv[1]) and 'weights' in str(e), str(e)
else:
    assert not int(sys.argv[1]), 'both with an optimizer is taken'
    w = np.zeros(8, 'f')
    kv.init('w', w)
    kv.pushpull('w', np.full(8, .25, 'f'), out=w)
    assert (w == -.5).all(), w
kv.close()
"""

SERVERLESS = """
import sys
import pskv
kv = pskv.create('dist_sync')
try:
    kv.set_gradient_compression({'type': '2bit'})
except pskv.Error as e:
    assert 'servers' in str(e), str(e)
else:
    sys.exit('taken without servers')
kv.close()
"""


ASYNC = """
import sys
import pskv
kv = pskv.create('dist_async')
try:
    kv.set_gradient_compression({'type': '2bit'})
except pskv.Error as e:
    assert 'only gradients of rounds' in str(e), str(e)
else:
    sys.exit('taken in an asynchronous job')
kv.close()
"""


@pytest.mark.parametrize("both", ["0", "1"])
@pytest.mark.parametrize("optimizer_first", ["0", "1"])
def test_values_that_are_weights_come_back_as_they_are(trio, both,
                                                       optimizer_first):
    t = trio(servers=1, agents=2)
    workers = [spawn(t, rank, BOTH, both, optimizer_first)
               for rank in range(4)]
    for w in workers:
        _, err = w.communicate(timeout=harness.PATIENCE)
        assert w.returncode == 0, err


@pytest.mark.parametrize("name,source,more", [
    ("twice", MISUSE, {}), ("late", LATE, {}), ("async", ASYNC, {}),
    ("none", SERVERLESS, {"DMLC_NUM_SERVER": 0})],
    ids=["twice", "late", "async", "none"])
def test_misuse_is_an_error_of_its_caller(trio, name, source, more):
    t = trio(servers=1, agents=2)
    if name == "none":  # All on one node.
        more = {**more, "PSKV_SOCKET": t.socket(0)}
    workers = [spawn(t, rank, source, PSKV_JOB=name, **more)
               for rank in range(4)]
    errors = [w.communicate(timeout=harness.PATIENCE)[1] for w in workers]
    assert [w.returncode for w in workers] == [0] * 4, "\n".join(errors)
    shown = {j["name"]: j["compression"] for j in t.ask("jobs")["jobs"]}
    assert shown[name] == ("2bit(threshold=0.25)" if name == "twice" else "")
