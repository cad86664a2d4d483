# SPDX-License-Identifier: Apache-2.0
"""Keys of rows: pushes and pulls of rows in jobs of real daemons, against
NumPy, whatever the servers and the cuts."""
import subprocess
import sys

import numpy as np
import pytest
import trio as harness
from proxy import Proxy
from python_job import environment


ROWS, WIDTH, STEPS, RANKS = 7001, 9, 12, 3

WORKER = """
import ast, sys
import numpy as np, pskv
name, params, steps, out = sys.argv[1:]
steps = int(steps)
kv = pskv.create('dist_sync')
if name:
    kv.set_optimizer(name, **ast.literal_eval(params))
w = np.random.default_rng(5).standard_normal((ROWS, WIDTH)).astype('f')
kv.init_rows('emb', w)
seen = []
for step in range(steps):
    rows, values = given(step, kv.rank)
    kv.push_rows('emb', rows, values, priority=-1)
    asked = np.random.default_rng([9, step]).integers(0, ROWS, 500)
    got = np.empty((500, WIDTH), 'f')
    kv.pull_rows('emb', asked, got)
    seen.append(got)
all_rows = np.empty((ROWS, WIDTH), 'f')
kv.pull_rows('emb', np.arange(ROWS), all_rows)
np.concatenate(seen + [all_rows]).tofile(out + str(kv.rank))
kv.close()
"""
GIVEN = f"""
ROWS, WIDTH = {ROWS}, {WIDTH}
def given(step, rank):
    draw = np.random.default_rng([step, rank])
    count = 0 if (step + rank) % 4 == 0 else 400
    rows = draw.integers(0, ROWS // 2, count)
    return rows, draw.standard_normal((count, WIDTH)).astype('f')
"""
exec(GIVEN)  # pylint: disable=exec-used


def start(t, rank, name="", params=None, steps=STEPS, **more):
    text = WORKER.replace("name, params", GIVEN + "\nname, params", 1)
    return subprocess.Popen(
        [sys.executable, "-c", text, name, repr(params or {}), str(steps),
         str(t.folder / "out")],
        stderr=subprocess.PIPE, text=True, env=environment(
            t, "rows", rank, RANKS, PSKV_PARTITION_BYTES=65536, **more))


def run(t, *args, **more):
    """The values of every rank, which must be equal; as bytes."""
    workers = [start(t, rank, *args, **more) for rank in range(RANKS)]
    errors = [w.communicate(timeout=4 * harness.PATIENCE)[1] for w in workers]
    assert [w.returncode for w in workers] == [0] * RANKS, "".join(errors)
    outs = [(t.folder / f"out{r}").read_bytes() for r in range(RANKS)]
    assert outs[0] == outs[1] == outs[2]
    return outs[0]


def gradient(step):
    """Sum of the step, and which rows anybody gave."""
    g = np.zeros((ROWS, WIDTH))
    touched = np.zeros(ROWS, bool)
    for rank in range(RANKS):
        rows, values = given(step, rank)  # noqa: F821
        np.add.at(g, rows, values.astype("f8"))
        touched[rows] = True
    return g, touched


class Model:
    """The optimizers in double, on the rows that are touched or on all."""

    def __init__(self, name, p):
        self.name, self.p = name, p
        self.w = np.random.default_rng(5).standard_normal(
            (ROWS, WIDTH)).astype("f").astype("f8")
        self.a = np.zeros_like(self.w)
        self.b = np.zeros_like(self.w)

    def step(self, t, g, touched):
        p = self.p
        r = touched if p.get("lazy_update", 1) and self.name != "nag" \
            else np.ones(ROWS, bool)
        if not self.name:
            self.w = g
            return
        w, g = self.w[r], g[r] * p.get("rescale_grad", 1)
        lr, wd = p.get("learning_rate", 0.1), p.get("wd", 0)
        if self.name == "sgd" and p.get("momentum"):
            self.a[r] = p["momentum"] * self.a[r] - lr * wd * w - lr * g
            self.w[r] = w + self.a[r]
        elif self.name == "sgd":
            self.w[r] = (1 - lr * wd) * w - lr * g
        elif self.name == "nag":
            h = g + wd * w
            self.a[r] = p["momentum"] * self.a[r] - lr * h
            self.w[r] = w + p["momentum"] * self.a[r] - lr * h
        elif self.name == "adam":
            g = g + wd * w
            self.a[r] = .9 * self.a[r] + .1 * g
            self.b[r] = .999 * self.b[r] + .001 * g * g
            rate = lr * np.sqrt(1 - .999 ** t) / (1 - .9 ** t)
            self.w[r] = w - rate * self.a[r] / (np.sqrt(self.b[r]) + 1e-8)
        elif self.name == "adagrad":
            self.a[r] = self.a[r] + g * g
            self.w[r] = w - lr * (g / np.sqrt(self.a[r] + 1e-7) + wd * w)
        elif self.name == "groupadagrad":
            g = np.clip(g, -p["clip_gradient"], p["clip_gradient"])
            self.a[r] += np.mean(g * g, axis=1, keepdims=True)
            self.w[r] = w - lr * g / np.sqrt(self.a[r] + 1e-5)
        elif self.name == "ftrl":
            n = self.b[r] + g * g
            self.a[r] += g - (np.sqrt(n) - np.sqrt(self.b[r])) * w / lr
            self.b[r] = n
            z = self.a[r]
            self.w[r] = np.where(np.abs(z) <= .01, 0, (
                np.sign(z) * .01 - z) / ((1 + np.sqrt(n)) / lr + wd))


def expected(name, p):
    m = Model(name, p)
    seen = []
    for step in range(STEPS):
        m.step(step + 1, *gradient(step))
        asked = np.random.default_rng([9, step]).integers(0, ROWS, 500)
        seen.append(m.w[asked])
    return np.concatenate(seen + [m.w])


CASES = [
    ("", {}),
    ("sgd", {"learning_rate": .1, "wd": .01, "rescale_grad": .5}),
    ("sgd", {"learning_rate": .1, "momentum": .9, "wd": .01}),
    ("sgd", {"learning_rate": .1, "momentum": .9, "lazy_update": 0}),
    ("adam", {"learning_rate": .01, "wd": .01}),
    ("adam", {"learning_rate": .01, "lazy_update": 0}),
    ("adagrad", {"learning_rate": .1}),
    ("groupadagrad", {"learning_rate": .1, "clip_gradient": 1.5,
                      "rescale_grad": .5}),
    ("ftrl", {"learning_rate": .1, "wd": .01}),
    # This optimizer has no step for rows: missing rows count as zeros.
    ("nag", {"learning_rate": .1, "momentum": .9, "wd": .01}),
]


@pytest.mark.parametrize("name,params", CASES)
def test_row_sums_match_numpy(trio, name, params):
    """20 pieces on 3 servers and 1, on one node and two: the same bits, and
    those of NumPy to what single precision leaves."""
    outs = [run(trio(servers=s, agents=1), name, params) for s in (1, 3)]
    assert outs[0] == outs[1]
    got = np.frombuffer(outs[0], "f").reshape(-1, WIDTH)
    np.testing.assert_allclose(got, expected(name, params), rtol=2e-5,
                               atol=2e-5)


def test_rows_of_two_nodes_match_those_of_one(trio):
    """Rows of two nodes are merged on the servers: integers, so that the
    order cannot matter, and the agents take part with empty pushes."""
    got = np.frombuffer(run(trio(servers=2, agents=2)), "f")
    np.testing.assert_allclose(got.reshape(-1, WIDTH), expected("", {}),
                               rtol=1e-5, atol=1e-5)


def test_cut_connections_change_no_row(trio):
    """Connections are cut in the middle of pushes and pulls."""
    params = {"learning_rate": .1, "momentum": .9}
    calm = run(trio(servers=2, agents=2), "sgd", params, 60)
    t = trio(servers=2, agents=2,
             server_options=["advertise.address=127.0.0.2",
                             "network.same_host=off"],
             agent_options=["scheduler.retry.first=10ms",
                            "scheduler.retry.max=100ms"])
    proxies = [Proxy(("127.0.0.2", s.port), ("127.0.0.1", s.port), seed=i)
               for i, s in enumerate(t.servers())]
    try:
        for p in proxies:
            p.cut_every(20_000, 30)
        assert run(t, "sgd", params, 60) == calm
        assert sum(p.cuts for p in proxies) > 20
    finally:
        for p in proxies:
            p.close()


def test_misuse_of_rows_is_an_error_of_its_caller(trio):
    text = """
import numpy as np, pskv
kv = pskv.create('dist_sync')
def refused(kind, words, call, *args, **more):
    try:
        call(*args, **more)
    except kind as e:
        assert words in str(e), e
    else:
        raise SystemExit('not refused: ' + words)
rows = np.ones((4, 2), 'f')
kv.init_rows('r', np.zeros((10, 2), 'f'))
kv.init('d', np.zeros(20, 'f'))
refused(pskv.Error, 'has the rows 0 to 9, and not 10', kv.push_rows, 'r',
        [1, 2, 3, 10], rows)
refused(pskv.Error, 'and not -1', kv.pull_rows, 'r', [-1, 0, 0, 0], rows)
refused(ValueError, 'not one of rows', kv.push_rows, 'd', [0, 1, 2, 3], rows)
refused(ValueError, '3 rows of key', kv.push_rows, 'r', [1, 2, 3], rows)
refused(ValueError, 'two dimensions', kv.init_rows, 'x', np.zeros(4, 'f'))
refused(ValueError, 'not one of rows of 5', kv.init_rows, 'r',
        np.zeros((4, 5), 'f'))
refused(pskv.Error, 'is a key of rows', kv.push_async, 'r',
        np.zeros(20, 'f'))
refused(pskv.Error, 'is a key of rows', kv.pull, 'r', np.zeros(20, 'f'))
kv.push_rows('r', [1, 1, 9, 0], rows)
out = np.empty((3, 2), 'f')
kv.pull_rows('r', [1, 9, 5], out)
assert out[:, 0].tolist() == [2, 1, 0], out
kv.push_rows('r', [], np.empty((0, 2), 'f'))
kv.pull_rows('r', [], np.empty((0, 2), 'f'))
numbers, got = kv.row_sparse_pull('r', [[3, 1], [1, 3]])
assert numbers.tolist() == [1, 3] and (got == 0).all()
"""
    t = trio(servers=1, agents=1)
    done = subprocess.run(
        [sys.executable, "-c", text], text=True, stderr=subprocess.PIPE,
        check=False, timeout=2 * harness.PATIENCE,
        env=environment(t, "job", 0, 1))
    assert done.returncode == 0, done.stderr


def test_rows_need_a_server(trio):
    t = trio(servers=1, agents=1)
    done = subprocess.run(
        [sys.executable, "-c", """
import numpy as np, pskv
kv = pskv.create('dist_sync')
kv.init_rows('r', np.zeros((10, 2), 'f'))
"""], text=True, stderr=subprocess.PIPE, check=False,
        timeout=2 * harness.PATIENCE,
        env=environment(t, "job", 0, 1, DMLC_NUM_SERVER=0))
    assert done.returncode == 1
    assert "needs a server" in done.stderr
