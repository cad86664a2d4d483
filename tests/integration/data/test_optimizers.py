# SPDX-License-Identifier: Apache-2.0
"""Every optimizer for 20 steps with 2 workers, with weight decay, clipping,
rescaling and a schedule, against NumPy, and the same bits for 1 server and 3.

The reference is float32 NumPy, written from the formulas of
docs/optimizers.md; where it orders their terms in another way than the
servers' loops, both round, but not alike."""
import json
import math

import numpy as np
import pytest

import emulated_gpu
from python_job import finish, spawn

STEPS = 20
COUNT = 5003
COMMON = {"wd": 0.01, "clip_gradient": 0.4, "rescale_grad": 0.5}

WORKER = """
import ast, os, sys
import numpy as np, pskv
name, params, seed, out = sys.argv[1:]
seed = int(seed)
kv = pskv.create('dist_sync')
kv.set_optimizer(name, **ast.literal_eval(params))
w = np.random.default_rng(seed).standard_normal(%d).astype('f')
kv.init('w', w)
seen = []
for step in range(%d):
    draw = np.random.default_rng([seed, step, kv.rank])
    kv.pushpull('w', draw.standard_normal(w.size).astype('f'), out=w)
    seen.append(w.copy())
np.stack(seen).tofile(out + str(kv.rank))
kv.close()
""" % (COUNT, STEPS)


# ----------------------------------------------------------------- reference


def clip(x, c=COMMON["clip_gradient"]):
    return np.minimum(np.maximum(x, -c), c)


def rates(params, base):
    """The rate of each step, as the classic schedulers count: with state."""
    kind = params.get("lr_scheduler", 0)
    get = {k.removeprefix("lr_scheduler_"): v for k, v in params.items()}.get
    warm = get("warmup_steps", 0)
    rate, count, current = base, 0, 0
    steps = [v for k, v in sorted(params.items())
             if k.startswith("lr_scheduler_step_")]
    for n in range(1, STEPS + 1):
        if kind == 1:
            while n > count + get("step"):
                count += get("step")
                rate = max(rate * get("factor"), get("stop_lr", 1e-8))
        elif kind == 2:
            while current < len(steps) and n > steps[current]:
                rate *= get("factor")
                current += 1
        elif kind in (3, 4) and n <= get("max_update"):
            way = (n - warm) / (get("max_update") - warm)
            part = (1 - way) ** get("power", 2) if kind == 3 else \
                (1 + math.cos(math.pi * way)) / 2
            rate = get("final_lr", 0) + (base - get("final_lr", 0)) * part
        begin = get("warmup_begin_lr", 0)
        if n < warm:
            yield begin if get("warmup_constant") else \
                begin + (base - begin) * n / warm
        else:
            yield rate


def norm(x):
    return math.sqrt(np.sum(np.square(x.astype("f8"))))


def name_hash(name):
    """Of a key with a string for a name; see lib/base/name_hash.c."""
    h = 0xcbf29ce484222325
    for byte in b"s:" + name.encode():
        h = (h ^ byte) * 0x100000001b3 % 2 ** 64
    h = (h ^ h >> 32) & ~1
    return h | name.endswith(("gamma", "beta", "bias"))


def normals(name, seed, step, count):
    """The noise of one step of a key: Philox4x32-10 and Box-Muller."""
    low = np.uint64(0xffffffff)
    half = np.uint64(32)
    key = name_hash(name) ^ seed
    pairs = np.arange((count + 1) // 2, dtype="u8")
    c = [pairs & low, pairs >> half, np.full_like(pairs, step & 0xffffffff),
         np.full_like(pairs, step >> 32)]
    k = [key & 0xffffffff, key >> 32]
    for _ in range(10):
        p, q = np.uint64(0xd2511f53) * c[0], np.uint64(0xcd9e8d57) * c[2]
        c = [(q >> half) ^ c[1] ^ np.uint64(k[0]), q & low,
             (p >> half) ^ c[3] ^ np.uint64(k[1]), p & low]
        k = [(k[0] + 0x9e3779b9) % 2 ** 32, (k[1] + 0xbb67ae85) % 2 ** 32]
    m = ((c[0] << half | c[1]) >> np.uint64(11)).astype("f8") + 1
    radius = np.sqrt(-2 * np.log(m * 2.0 ** -53))
    angle = (c[2] << half | c[3]).astype("f8") * (2 * math.pi * 2.0 ** -64)
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)
    return both.reshape(-1)[:count].astype("f")


class Reference:
    """One step after the other; a method for each optimizer."""

    def __init__(self, w, params):
        self.w = w
        self.p = params
        self.a, self.b, self.c = (np.zeros_like(w) for _ in range(3))
        self.old = w.copy()
        self.product = 1.0
        self.wd = np.float32(COMMON["wd"])

    def grad(self, g):
        """Rescaled and clipped, without and with the decay."""
        s = np.float32(COMMON["rescale_grad"])
        return clip(s * g), clip(s * g + self.wd * self.w)

    def moments(self, g, b1, b2):
        self.a = b1 * self.a + (1 - b1) * g
        self.b = b2 * self.b + (1 - b2) * np.square(g)

    def sgd(self, g, lr, t):
        g, _ = self.grad(g)
        if self.p.get("momentum"):
            self.a = self.p["momentum"] * self.a - lr * (self.wd * self.w + g)
            self.w = self.w + self.a
        else:
            self.w = np.float32(1 - lr * COMMON["wd"]) * self.w - lr * g

    def nag(self, g, lr, t):
        g, _ = self.grad(g)
        step = lr * (g + self.wd * self.w)
        self.a = self.p["momentum"] * self.a - step
        self.w = self.w + (self.p["momentum"] * self.a - step)

    def nag_late(self, g, lr, t):
        g, _ = self.grad(g)
        mu = np.float32(self.p["momentum"])
        m = mu * self.a
        self.w = self.w - m + (mu + 1) * (m - lr * (g + self.wd * self.w))
        self.a = m - lr * (g + self.wd * self.w)

    def adam(self, g, lr, t):
        _, g = self.grad(g)
        self.moments(g, 0.9, 0.999)
        rate = lr * math.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
        self.w = self.w - rate * (self.a / (np.sqrt(self.b) + 1e-8))

    def adamw(self, g, lr, t):
        g, _ = self.grad(g)
        self.moments(g, 0.9, 0.999)
        rate = lr
        if self.p.get("correct_bias", 1):
            rate = lr * math.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
        self.w = self.w - rate * (
            self.a / (np.sqrt(self.b) + 1e-6) + self.wd * self.w)

    def adagrad(self, g, lr, t):
        g, _ = self.grad(g)
        self.a = self.a + np.square(g)
        self.w = self.w - lr * (g / np.sqrt(self.a + 1e-7)) - \
            lr * self.wd * self.w

    def rmsprop(self, g, lr, t):
        _, g = self.grad(g)
        self.a = 0.1 * np.square(g) + 0.9 * self.a
        if self.p.get("centered"):
            self.b = 0.1 * g + 0.9 * self.b
            # A small difference under the root, as in the formula.
            self.c = 0.8 * self.c - lr * g / np.sqrt(
                self.a - self.b * self.b + np.float32(self.p["epsilon"]))
            self.w = self.w + self.c
        else:
            self.w = self.w - lr * (g / np.sqrt(self.a + 1e-8))
        if "clip_weights" in self.p:
            self.w = clip(self.w, np.float32(self.p["clip_weights"]))

    def adadelta(self, g, lr, t):
        g, _ = self.grad(g)
        self.a = 0.9 * self.a + 0.1 * np.square(g)
        step = np.sqrt((self.b + 1e-5) / (self.a + 1e-5)) * g
        self.b = 0.9 * self.b + 0.1 * np.square(step)
        self.w = self.w - step - self.wd * self.w

    def ftrl(self, g, lr, t):
        g, _ = self.grad(g)
        n = self.b + np.square(g)
        sigma = (np.sqrt(n) - np.sqrt(self.b)) / np.float32(lr)
        self.a = self.a + g - sigma * self.w
        self.b = n
        shrunk = np.sign(self.a) * 0.05 - self.a
        self.w = np.where(np.abs(self.a) <= 0.05, 0, shrunk / (
            (1 + np.sqrt(n)) / np.float32(lr) + self.wd)).astype("f")

    def adamax(self, g, lr, t):
        _, g = self.grad(g)
        self.a = 0.9 * self.a + 0.1 * g
        self.b = np.maximum(0.999 * self.b, np.abs(g))
        self.w = self.w - lr / (1 - 0.9 ** t) * (self.a / self.b)

    def nadam(self, g, lr, t):
        _, g = self.grad(g)
        pace = 0.9 * (1 - 0.5 * 0.96 ** (t * 0.004))
        after = 0.9 * (1 - 0.5 * 0.96 ** ((t + 1) * 0.004))
        self.product *= pace
        self.moments(g, 0.9, 0.999)
        g_part = g / (1 - self.product)
        m_part = self.a / (1 - self.product * after)
        v_part = self.b / (1 - 0.999 ** t)
        self.w = self.w - lr * ((1 - pace) * g_part + after * m_part) / (
            np.sqrt(v_part) + 1e-8)

    def ftml(self, g, lr, t):
        _, g = self.grad(g)
        self.b = 0.999 * self.b + 0.001 * np.square(g)
        d = (1 - 0.6 ** t) / lr * (np.sqrt(self.b / (1 - 0.999 ** t)) + 1e-8)
        self.a = 0.6 * self.a + 0.4 * g - (d - 0.6 * self.c) * self.w
        self.c = d
        self.w = -self.a / d

    def signum(self, g, lr, t):
        g, _ = self.grad(g)
        self.a = 0.9 * self.a - 0.1 * (self.wd * self.w + g)
        keep = np.float32(1 - lr * self.p["wd_lh"])
        self.w = keep * self.w + lr * np.sign(self.a)

    def signsgd(self, g, lr, t):
        keep = np.float32(1 - lr * COMMON["wd"])
        self.w = keep * self.w - lr * np.sign(g)

    def dcasgd(self, g, lr, t):
        g, _ = self.grad(g)
        late = self.p["lamda"] * np.square(g) * (self.w - self.old)
        self.a = self.p["momentum"] * self.a - lr * (
            g + self.wd * self.w + late)
        self.old = self.w
        self.w = self.w + self.a

    def lamb(self, g, lr, t):
        g, _ = self.grad(g)
        self.moments(g, 0.9, 0.999)
        m, v = self.a, self.b
        if self.p.get("correct_bias", 1):
            m, v = m / (1 - 0.9 ** t), v / (1 - 0.999 ** t)
        u = m / (np.sqrt(v) + 1e-6) + self.wd * self.w
        size = max(norm(self.w), self.p.get("lower_bound", 0))
        size = min(size, self.p.get("upper_bound", math.inf))
        self.w = self.w - lr * (size / norm(u)) * u

    def lars(self, g, lr, t):
        size = norm(self.w)
        ratio = self.p["eta"] * size / (
            COMMON["rescale_grad"] * norm(g) + COMMON["wd"] * size + 1e-3)
        mu = self.p.get("momentum", 0)
        if self.p.get("momentum_correction", 1) and t > 1:
            mu *= lr / self.rate
        self.rate = lr
        g, _ = self.grad(g)
        self.a = mu * self.a - lr * ratio * (self.wd * self.w + g)
        self.w = self.w + self.a

    def sgld(self, g, lr, t):
        g, _ = self.grad(g)
        noise = normals("w", self.p.get("seed", 0), t, COUNT)
        self.w = self.w - np.float32(lr / 2) * (g + self.wd * self.w) + \
            np.float32(math.sqrt(lr)) * noise

    def lbsgd(self, g, lr, t):
        """One round, of which every one in batch_scale is a step."""
        k = self.p["batch_scale"]
        self.b = self.b + g
        if t % k:
            return
        g, self.b = self.b / np.float32(k), np.zeros_like(g)
        way = t + self.p.get("begin_epoch", 0) * self.p["updates_per_epoch"]
        way /= self.p["warmup_epochs"] * self.p["updates_per_epoch"]
        strategy = self.p.get("warmup_strategy", 0)
        if strategy == 3:
            lr *= min(max(norm(self.w) / math.sqrt(
                norm(g) ** 2 + COMMON["wd"] * norm(self.w) ** 2), .01), 100)
        else:
            lr *= k if way >= 1 else \
                1 + (k - 1) * (way, way * way, math.sqrt(way))[strategy]
        self.sgd(g, lr, t)

    def test(self, g, lr, t):
        self.w = self.w + COMMON["rescale_grad"] * g


FACTOR = {"lr_scheduler": 1, "lr_scheduler_step": 6,
          "lr_scheduler_factor": 0.5, "lr_scheduler_warmup_steps": 3}
MULTI = {"lr_scheduler": 2, "lr_scheduler_step_1": 5,
         "lr_scheduler_step_2": 11, "lr_scheduler_factor": 0.3}
POLY = {"lr_scheduler": 3, "lr_scheduler_max_update": 15,
        "lr_scheduler_final_lr": 0.0005, "lr_scheduler_warmup_steps": 4,
        "lr_scheduler_warmup_begin_lr": 0.0001}
COSINE = {"lr_scheduler": 4, "lr_scheduler_max_update": 18,
          "lr_scheduler_final_lr": 0.0001, "lr_scheduler_warmup_steps": 5,
          "lr_scheduler_warmup_begin_lr": 0.0002,
          "lr_scheduler_warmup_constant": 1}

TOLERANCE = 1e-6

# Name, and parameters besides COMMON.
# The place of a case is the seed of its numbers: a new one comes last.
CASES = [
    ("sgd", {"learning_rate": 0.1, **COSINE}),
    ("sgd", {"learning_rate": 0.1, "momentum": 0.9, **FACTOR}),
    ("nag", {"learning_rate": 0.1, "momentum": 0.9, **POLY}),
    ("nag", {"learning_rate": 0.1, "momentum": 0.9, "decay_after_step": 1,
             **POLY}),
    ("adam", {"learning_rate": 0.01, **COSINE}),
    ("adam", {}),
    ("adamw", {"learning_rate": 0.01, **FACTOR}),
    ("adamw", {"learning_rate": 0.01, "correct_bias": 0, **MULTI}),
    ("adagrad", {"learning_rate": 0.05, **MULTI}),
    ("rmsprop", {"learning_rate": 0.01, **POLY}),
    ("rmsprop", {"learning_rate": 0.01, "clip_weights": 1.5}),
    ("rmsprop", {"learning_rate": 0.01, "centered": 1, "gamma2": 0.8,
                 "epsilon": 1e-3, **COSINE}),
    ("adadelta", {}),
    ("ftrl", {"learning_rate": 0.1, "lamda1": 0.05, **FACTOR}),
    ("adamax", {"learning_rate": 0.02, **MULTI}),
    ("nadam", {"learning_rate": 0.01, **POLY}),
    ("ftml", {"learning_rate": 0.01, **COSINE}),
    ("signum", {"learning_rate": 0.01, "momentum": 0.9, "wd_lh": 0.1,
                **MULTI}),
    ("signsgd", {"learning_rate": 0.01, **FACTOR}),
    ("dcasgd", {"learning_rate": 0.1, "momentum": 0.5, "lamda": 0.4,
                **POLY}),
    ("lamb", {}),
    ("lamb", {"learning_rate": 0.01, "correct_bias": 0, "lower_bound": 80,
              **FACTOR}),
    ("lamb", {"learning_rate": 0.01, "upper_bound": 20, **COSINE}),
    ("lars", {"learning_rate": 2, "eta": 0.02, "eps": 1e-3}),
    ("lars", {"learning_rate": 2, "eta": 0.02, "eps": 1e-3, "momentum": 0.9,
              **FACTOR}),
    ("lars", {"learning_rate": 2, "eta": 0.02, "eps": 1e-3, "momentum": 0.9,
              "momentum_correction": 0, **MULTI}),
    ("sgld", {"learning_rate": 0.01, **FACTOR}),
    ("sgld", {"learning_rate": 0.02, "seed": 10 ** 15}),
    ("lbsgd", {"batch_scale": 3, "warmup_epochs": 2, "updates_per_epoch": 5,
               "momentum": 0.9, **MULTI}),
    ("lbsgd", {"batch_scale": 2, "warmup_epochs": 3, "updates_per_epoch": 4,
               "warmup_strategy": 1, "begin_epoch": 1}),
    ("lbsgd", {"batch_scale": 2, "warmup_epochs": 3, "updates_per_epoch": 4,
               "warmup_strategy": 2}),
    ("lbsgd", {"batch_scale": 4, "warmup_epochs": 9, "updates_per_epoch": 9,
               "warmup_strategy": 3, "momentum": 0.5}),
    ("test", {}),
]
DEFAULT_RATE = {"adam": 0.001, "lamb": 0.001, "lbsgd": 0.01}


def expected(name, given, seed):
    w = np.random.default_rng(seed).standard_normal(COUNT).astype("f")
    r = Reference(w, given)
    base = given.get("learning_rate", DEFAULT_RATE.get(name, 0))
    for step, lr in enumerate(rates(given, base)):
        g = [np.random.default_rng([seed, step, rank]).standard_normal(COUNT)
             .astype("f") for rank in (0, 1)]
        late = "_late" if given.get("decay_after_step") else ""
        getattr(r, name + late)(g[0] + g[1], lr, step + 1)
        assert r.w.dtype == np.float32
        yield r.w


def run(t, number, name, params, out):
    """The values of both workers after every step."""
    finish([spawn(t, f"job{number}", rank, WORKER, name, repr(params), number,
                  out) for rank in (0, 1)])
    seen = [np.fromfile(out + str(rank), "f").reshape(STEPS, COUNT)
            for rank in (0, 1)]
    assert seen[0].tobytes() == seen[1].tobytes(), name
    return seen[0]


def test_every_optimizer_is_numpys_and_the_same_on_any_servers(trio, tmp):
    worst = {}
    bad = []
    trios = [trio(servers=1, agents=2), trio(servers=3, agents=2)]
    for number, (name, given) in enumerate(CASES):
        common = COMMON if name != "test" else \
            {"rescale_grad": COMMON["rescale_grad"]}
        params = {**common, **given}
        seen = [run(t, number, name, params, str(tmp / f"{number}-{i}-"))
                for i, t in enumerate(trios)]
        what = f"{name} {given}"
        assert seen[0].tobytes() == seen[1].tobytes(), what
        for step, w in enumerate(expected(name, given, number)):
            # Relative to the number, or to a typical one near zero.
            size = np.maximum(np.abs(w), np.sqrt(np.mean(np.square(w))))
            error = np.max(np.abs(seen[0][step] - w) / size)
            worst[what] = max(worst.get(what, 0), error)
            if error > TOLERANCE or not np.isfinite(error):
                bad.append(f"{what}: {error:.1e} after step {step + 1}")
    for what, error in worst.items():
        print(f"{error:.1e} {what}")
    assert not bad, bad


LANGEVIN = """
import os, sys
import numpy as np
os.environ['PSKV_PARTITION_BYTES'] = sys.argv[1]
import pskv
kv = pskv.create('dist_sync')
kv.set_optimizer('sgld', learning_rate=.01, wd=.1, seed=3)
w = np.random.default_rng(1).standard_normal((500, 9)).astype(sys.argv[2])
by_rows = sys.argv[3] == 'rows'
kv.broadcast('late', w * 0 + 1, w * 0)
(kv.init_rows if by_rows else kv.init)('w', w)
kv.init('v', w)
late = np.empty_like(w)
for step in range(5):
    draw = np.random.default_rng([step, kv.rank])
    g = draw.standard_normal(w.shape).astype(w.dtype)
    if by_rows:
        some = np.arange(kv.rank, 500, 2)
        kv.push_rows('w', some, g[some])
        kv.pull_rows('w', np.arange(500), w)
    else:
        mine = np.arange(500) % 2 == kv.rank
        kv.pushpull('w', g * mine[:, None], out=w)
    kv.pushpull('late', g, out=late)
v = np.empty_like(w)
kv.pushpull('v', w * 0, out=v)
if kv.rank == 0:
    np.stack([w, late, v]).tofile(sys.argv[4])
kv.close()
"""


def test_noise_of_sgld_belongs_to_elements(trio, tmp):
    """The same bits however a key is cut and spread, and by rows; other noise
    for other keys; the stated mean and variance."""
    trios = {n: trio(servers=n, agents=2) for n in (1, 3)}
    for dtype in ("f4", "f2", "f8"):
        seen = []
        for n, cut, form in ((1, 1 << 20, "dense"), (3, 1 << 20, "dense"),
                             (3, 4096, "dense"), (1, 4500, "dense"),
                             (3, 4096, "rows"), (1, 1 << 20, "rows")):
            out = tmp / f"{dtype}-{n}-{cut}-{form}"
            finish([spawn(trios[n], out.name, rank, LANGEVIN, cut, dtype, form,
                          out) for rank in (0, 1)])
            seen.append(out.read_bytes())
        assert all(s == seen[0] for s in seen), dtype
    first = np.random.default_rng(1).standard_normal((500, 9))
    v = np.frombuffer(seen[0], "f8").reshape(3, 500, 9)[2]
    noise = (v - (1 - .01 / 2 * .1) * first) / .1
    assert abs(np.mean(noise)) < 5 / math.sqrt(noise.size)
    assert abs(np.var(noise) - 1) < 5 * math.sqrt(2 / noise.size)
    of_v = normals("v", 3, 1, 4500)
    np.testing.assert_allclose(noise.reshape(-1), of_v, atol=1e-5)
    assert abs(np.mean(of_v * normals("w", 3, 1, 4500))) < 5 / math.sqrt(4500)


def test_large_batches_of_means(trio):
    """The mean of all contributions to a step, divided once."""
    text = """
import numpy as np, pskv
kv = pskv.create('dist_sync')
kv.set_optimizer('lbsgd', learning_rate=1, batch_scale=4, warmup_epochs=0)
w = np.zeros(2000, 'f')
kv.init('w', w)
for step in range(8):
    g = np.full(2000, 1 + step + 10 * kv.rank, 'f')
    kv.pushpull('w', g, out=w, reduce='mean')
    print(*set(w))
kv.close()
"""
    t = trio(servers=2, agents=2)
    said = finish([spawn(t, "means", rank, text) for rank in (0, 1)])
    # The rate is 4, after the warm-up; the means are 7.5 and 11.5.
    assert said[0] == said[1]
    assert [float(x) for x in said[0].split()] == [0, 0, 0] + [-30] * 4 + [-76]


def test_a_wrong_hyper_parameter_is_its_callers_alone(trio):
    t = trio(servers=1, agents=1)
    text = ("import pskv\n"
            "kv = pskv.create('dist_sync')\n"
            "for name, p in (('adam', {'momentum': .9}),\n"
            "                ('sgd', {'lr_scheduler': 1}),\n"
            "                ('nonsense', {})):\n"
            "    try:\n"
            "        kv.set_optimizer(name, **p)\n"
            "    except pskv.Error as e:\n"
            "        print(e)\n"
            "kv.set_optimizer('adam')\n"
            "kv.close()\n")
    said, = finish([spawn(t, "job", 0, text, workers=1)])
    lines = said.splitlines()
    assert len(lines) == 3, lines
    assert "adam has no hyper-parameter 'momentum'" in lines[0]
    assert "lr_scheduler_step" in lines[1]
    assert "there is sgd, nag, adam" in lines[2]


TUNED = """
import numpy as np, pskv, sys
kv = pskv.create('dist_sync')
kv.set_optimizer('adam', learning_rate=.01, wd=.1, begin_num_update=3,
                 lr_mult={'a.bias': 2, 'frozen': 0},
                 wd_mult={'a.bias': 0, 'b': .5})
keys = ['a.weight', 'a.bias', 'b', 'frozen']
ws = [np.random.default_rng(7).standard_normal(5003).astype('f')
      for k in keys]
kv.init(keys[0], ws[0])
kv.init(keys[1:3], ws[1:3])
kv.broadcast(keys[3], ws[3])
for step in range(12):
    if step == 4:
        kv.set_learning_rate(.02)
    if step == 6 and kv.rank == 1:
        kv.set_optimizer_param('rescale', .25, round=9)
        kv.set_wd(.2, round=9)
        kv.set_clip_gradient(.3, round=11)
    kv.barrier()
    g = np.random.default_rng([step, kv.rank]).standard_normal(5003)
    kv.pushpull(keys, [g.astype('f')] * 4, out=ws)
    np.stack(ws).tofile(sys.argv[1] + '%d-%d' % (kv.rank, step))
kv.close()
"""


def tuned():
    """The keys after each step: multipliers, a first step that is none, and
    numbers that change."""
    keys = [np.random.default_rng(7).standard_normal(5003).astype("f")
            for _ in range(4)]
    factors = [(1, 1), (2, 0), (1, .5), (0, 1)]
    m = [np.zeros_like(k) for k in keys]
    v = [np.zeros_like(k) for k in keys]
    for step in range(12):
        r = step + 1
        t = r + 3
        raw = sum(np.random.default_rng([step, rank]).standard_normal(5003)
                  .astype("f") for rank in (0, 1))
        for i, (lr, wd) in enumerate(factors):
            g = np.float32(.25 if r >= 9 else 1) * raw + \
                np.float32((.2 if r >= 9 else .1) * wd) * keys[i]
            if r >= 11:
                g = clip(g, .3)
            m[i] = .9 * m[i] + (1 - .9) * g
            v[i] = .999 * v[i] + (1 - .999) * np.square(g)
            rate = (.02 if r >= 5 else .01) * lr * \
                math.sqrt(1 - .999 ** t) / (1 - .9 ** t)
            keys[i] = keys[i] - rate * (m[i] / (np.sqrt(v[i]) + 1e-8))
        yield np.stack(keys)


def test_keys_differ_and_numbers_change_at_a_round(trio, tmp):
    trios = [trio(servers=1, agents=2), trio(servers=3, agents=2)]
    for i, t in enumerate(trios):
        finish([spawn(t, "tuned", rank, TUNED, tmp / f"{i}-")
                for rank in (0, 1)])
    for step, want in enumerate(tuned()):
        seen = [np.fromfile(tmp / f"{i}-{rank}-{step}", "f")
                for i in (0, 1) for rank in (0, 1)]
        assert all(s.tobytes() == seen[0].tobytes() for s in seen), step
        got = seen[0].reshape(want.shape)
        size = np.maximum(np.abs(want), np.sqrt(np.mean(np.square(want))))
        assert np.max(np.abs(got - want) / size) < TOLERANCE, step
    first = np.random.default_rng(7).standard_normal(5003).astype("f")
    assert got[3].tobytes() == first.tobytes()  # Its rate is 0.


MULTIPLIED = """
import numpy as np, pskv, sys
kv = pskv.create('dist_sync')
kv.set_optimizer('sgd', learning_rate=.25, wd=.5, lr_mult={'a': 2},
                 wd_mult={'a': 0})
keys = ['a', 'b']
ws = [np.random.default_rng(7).standard_normal(5003).astype('f')
      for k in keys]
kv.init(keys, ws)
for step in range(8):
    if step == 2:
        kv.set_multipliers(lr_mult={'b': 0})
    if step == 3:
        kv.set_multipliers({'b': .5}, {'a': 1, 'b': 2}, round=6)
    if step == 6 and kv.rank == 1:
        kv.set_multipliers({'b': 1, 'a': 0}, round=8)
    kv.barrier()
    g = np.random.default_rng([step, kv.rank]).standard_normal(5003)
    kv.pushpull(keys, [g.astype('f')] * 2, out=ws)
    np.stack(ws).tofile(sys.argv[1] + '%d-%d' % (kv.rank, step))
def refused(lr_mult, round):
    try:
        kv.set_multipliers(lr_mult, round=round)
    except pskv.Error as e:
        print(e)
    else:
        print('done')
if kv.rank == 0:
    refused({'a': 1}, 99)
kv.barrier()
if kv.rank == 1:
    refused({'a': 3}, 99)
refused({'a': -1}, 100)
refused({'a': 1}, 3)
kv.close()
"""


def multiplied():
    """The keys after each step."""
    keys = [np.random.default_rng(7).standard_normal(5003).astype("f")
            for _ in range(2)]
    for step in range(8):
        r = step + 1
        raw = sum(np.random.default_rng([step, rank]).standard_normal(5003)
                  .astype("f") for rank in (0, 1))
        for i, (lr, wd) in enumerate([
                (0 if r >= 8 else 2, 1 if r >= 6 else 0),
                (1 if r >= 8 else .5 if r >= 6 else 0 if r >= 3 else 1,
                 2 if r >= 6 else 1)]):
            keys[i] = keys[i] - np.float32(.25 * lr) * (
                raw + np.float32(.5 * wd) * keys[i])
        yield np.stack(keys)


def test_multipliers_of_keys_change_at_a_round(trio, tmp):
    for servers in (1, 3):
        t = trio(servers=servers, agents=2)
        said = finish([spawn(t, "multiplied", rank, MULTIPLIED,
                             tmp / f"{servers}-") for rank in (0, 1)])
        lines = [text.splitlines() for text in said]
        assert lines[0][0] == "done"
        assert "a key of job multiplied has lr_mult 1 and wd_mult 1 from " \
            "round 99 on, and now 3 and 1 are requested" in lines[1][0]
        for of_rank in lines:
            assert "must be finite and not negative" in of_rank[1]
            assert "multipliers cannot change at round 3" in of_rank[2]
    for step, want in enumerate(multiplied()):
        seen = [np.fromfile(tmp / f"{servers}-{rank}-{step}", "f")
                for servers in (1, 3) for rank in (0, 1)]
        assert all(s.tobytes() == seen[0].tobytes() for s in seen), step
        np.testing.assert_allclose(seen[0].reshape(want.shape), want,
                                   rtol=1e-5, atol=1e-5)


REPLACED = """
import sys
import numpy as np, pskv
kv = pskv.create('dist_sync')
kv.set_optimizer('adam', learning_rate=.1, lr_scheduler=1, lr_scheduler_step=2,
                 lr_scheduler_factor=.5)
w, one = np.ones(40, 'f'), np.ones(40, 'f')
kv.init('replaced', w)
kv.init('not', w)
for step in range(5):
    for again in range(step):
        kv.broadcast('replaced', w if kv.rank == 0 else w * 0)
    kv.pushpull('replaced', one * (step + kv.rank), out=w)
    other = np.zeros(40, 'f')
    kv.pushpull('not', one * (step + kv.rank), out=other)
    assert (w == other).all() and (w != 1).all(), (step, w, other)
kv.close()
"""


def test_a_replaced_value_is_no_step(trio):
    """A broadcast of the value that a key has changes nothing: moments and the
    schedule count steps."""
    t = trio(servers=2, agents=2)
    finish([spawn(t, "replaced", rank, REPLACED) for rank in (0, 1)])


def test_changes_that_make_no_sense_are_refused(trio):
    t = trio(servers=1, agents=2)
    text = """
import numpy as np, pskv
kv = pskv.create('dist_sync')
def fails(what, *arguments, **more):
    try:
        what(*arguments, **more)
    except pskv.Error as e:
        print(e)
    else:
        print('done')
fails(kv.set_learning_rate, 1)
fails(kv.set_optimizer, 'sgd', lr_mult={'w': -1})
kv.barrier()
kv.set_optimizer('sgd', lr=1, lr_mult={'w': 2})
fails(kv.set_optimizer, 'sgd', lr=1, lr_mult={'w': 3})
fails(kv.set_optimizer_param, 'momentum', .5)
fails(kv.set_wd, -1)
fails(kv.set_wd, .5, round=9)
kv.barrier()
fails(kv.set_wd, .5 + kv.rank, round=9)
w = np.ones(3, 'f')
kv.init('w', w)
kv.pushpull('w', w, out=w)
fails(kv.set_wd, .5, round=1)
kv.close()
"""
    said = finish([spawn(t, "job", rank, text) for rank in (0, 1)])
    for rank, out in enumerate(said):
        lines = out.splitlines()
        assert "has no optimizer" in lines[0]
        assert "not be negative" in lines[1] or "not negative" in lines[1]
        assert "other lr_mult" in lines[2]
        assert "cannot change 'momentum'" in lines[3] and \
            "learning_rate, wd, rescale_grad, clip_gradient" in lines[3]
        assert "must not be negative" in lines[4]
        assert lines[5] == "done"
        if rank == 0:
            assert lines[6] == "done"
        else:
            assert "wd of job job is 0.5 from round 9 on" in lines[6]
        assert "has begun round 1 already" in lines[7]


def test_an_operator_changes_the_rate(trio):
    t = trio(servers=2, agents=1)
    text = """
import numpy as np, pskv
kv = pskv.create('dist_sync')
kv.set_optimizer('sgd', lr=1)
w = np.zeros(3000, 'f')
kv.init('w', w)
for step in range(3):
    kv.pushpull('w', np.ones(3000, 'f'), out=w)
print('three', flush=True)
input()
for step in range(3):
    kv.pushpull('w', np.ones(3000, 'f'), out=w)
    print(*set(w), flush=True)
kv.close()
"""
    worker = spawn(t, "live", 0, text, workers=1)
    try:
        assert worker.stdout.readline() == "three\n"
        code, out, err = t.psctl("--round", "5", "set", "live", "lr=0.5")
        assert (code, out, err) == (0, "", "")
        code, out, _ = t.psctl("--no-headers", "get", "live")
        assert code == 0 and [line.split() for line in out.splitlines()] == [
            ["live", "weight", "100", "-"],
            ["live", "learning_rate", "1", "-"],
            ["live", "learning_rate", "0.5", "5"]]
        assert t.ask("get")["jobs"][0]["settings"] == [
            {"name": "learning_rate", "value": 1.0, "round": 0},
            {"name": "learning_rate", "value": 0.5, "round": 5}]
        assert t.psctl("get", "other")[0] == 4
        code, _, err = t.psctl("--round", "2", "set", "live", "wd=0")
        assert code == 1 and "a key was at round 3 already" in err
        code, _, err = t.psctl("--round", "9", "set", "live", "beta1=0")
        assert code == 1 and "cannot change 'beta1'" in err
    finally:
        worker.stdin.write("\n")
        worker.stdin.flush()
    said, = finish([worker])
    assert [float(line) for line in said.split()] == [-4, -4.5, -5]


HALF = """
import numpy as np, pskv, sys
kind, out = sys.argv[1:]
def bits(x):
    x = x.astype('f')
    if kind == 'float16':
        return x.astype('float16')
    u = x.view('u4')
    return ((u + 0x7fff + ((u >> 16) & 1)) >> 16).astype('u2')
kv = pskv.create('dist_sync')
kv.set_optimizer('adam', learning_rate=.01, wd=.01)
w = bits(np.random.default_rng(1).standard_normal(5003))
rows = bits(np.random.default_rng(2).standard_normal((50, 8)))
late = w.copy()
kv.init('w', w)
kv.init('late', late * 0)
kv.init_rows('rows', rows)
kv.pushpull('late', late * 0, out=late)
kv.broadcast('late', w, late)  # Replaces the master, too.
seen = []
for step in range(12):
    draw = np.random.default_rng([step, kv.rank])
    g = bits(draw.standard_normal(w.size))
    kv.pushpull('w', g, out=w)
    kv.pushpull('late', g, out=late)
    some = np.arange(step, 50, 3 + kv.rank)
    kv.push_rows('rows', some, bits(draw.standard_normal((some.size, 8))))
    seen += [w.tobytes(), late.tobytes(),
             kv.row_sparse_pull('rows', np.arange(50))[1].tobytes()]
open(out + str(kv.rank), 'wb').write(b''.join(seen))
kv.close()
"""


def from_half(kind, data):
    if kind == "float16":
        return np.frombuffer(data, "float16").astype("f")
    return (np.frombuffer(data, "u2").astype("u4") << 16).view("f")


def to_half(kind, x):
    """The value after it was rounded to the type."""
    if kind == "float16":
        return x.astype("float16").astype("f")
    u = x.astype("f").view("u4")
    return (((u + 0x7fff + ((u >> 16) & 1)) >> 16) << 16).astype("u4").view("f")


def halves(kind):
    """Weights of which float32 masters are kept, whole and by rows."""
    first = to_half(kind, np.random.default_rng(1).standard_normal(5003))
    keys = {}
    # One key had a step before its value was replaced, which is no step.
    for name, w, skipped in (("w", first, 0), ("late", first, 1), (
            "rows", to_half(kind, np.random.default_rng(2).standard_normal(
                (50, 8))), 0)):
        keys[name] = [w, np.zeros_like(w), np.zeros_like(w), skipped]
    for step in range(12):
        draws = [np.random.default_rng([step, rank]) for rank in (0, 1)]
        dense = sum(to_half(kind, d.standard_normal(5003)) for d in draws)
        sparse = np.zeros((50, 8), "f")
        given = np.zeros(50, bool)
        for rank, d in enumerate(draws):
            some = np.arange(step, 50, 3 + rank)
            sparse[some] += to_half(kind, d.standard_normal((some.size, 8)))
            given[some] = True
        for name, (w, m, v, skipped) in keys.items():
            t = step + 1 + skipped
            g = (sparse if name == "rows" else dense) + np.float32(.01) * w
            at = given if name == "rows" else slice(None)
            m[at] = (.9 * m + (1 - .9) * g)[at]
            v[at] = (.999 * v + (1 - .999) * np.square(g))[at]
            rate = .01 * math.sqrt(1 - .999 ** t) / (1 - .9 ** t)
            w = w.copy()
            w[at] = (w - rate * (m / (np.sqrt(v) + 1e-8)))[at]
            keys[name][0] = w
            yield w.reshape(-1)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_half_weights_have_float32_masters(trio, tmp, kind):
    trios = [trio(servers=1, agents=2), trio(servers=3, agents=2)]
    for i, t in enumerate(trios):
        finish([spawn(t, "half", rank, HALF, kind, tmp / f"{i}-")
                for rank in (0, 1)])
    seen = [(tmp / f"{i}-{rank}").read_bytes()
            for i in (0, 1) for rank in (0, 1)]
    assert all(s == seen[0] for s in seen)
    got = from_half(kind, seen[0])
    digits = 2.0 ** -10 if kind == "float16" else 2.0 ** -7
    for want in halves(kind):
        mine, got = got[:want.size], got[want.size:]
        # Equal up to one unit in the last place of the type.
        assert np.all(np.abs(mine - want) <= digits * np.abs(want) + 1e-7)
        assert np.mean(mine == to_half(kind, want)) > .99
    assert got.size == 0


NORMS = """
import ast, sys
import numpy as np, pskv
name, params, numbers, out = sys.argv[1:]
names = ['b.weight', 'b.bias', 'half', 'double', 'c.beta', 'c', 'one']
kv = pskv.create('dist_sync')
kv.set_optimizer(name, accumulate=2, **ast.literal_eval(params),
                 wd_mult={'b.weight': .5},
                 names=dict(enumerate(names)) if int(numbers) else None)
ws = {i if int(numbers) else k: np.random.default_rng(i).standard_normal(
          3 if k == 'one' else 5003).astype({'half': 'f2', 'double': 'f8'}
                                            .get(k, 'f4'))
      for i, k in enumerate(names)}
for k, w in ws.items():
    kv.init(k, w)
seen = []
for step in range(8):
    draw = np.random.default_rng([step, kv.rank])
    gs = [draw.standard_normal(w.size).astype(w.dtype) for w in ws.values()]
    kv.pushpull(list(ws), gs, out=list(ws.values()))
    seen += [w.tobytes() for w in ws.values()]
open(out + str(kv.rank), 'wb').write(b''.join(seen))
kv.close()
"""


def by_norms(name):
    """Keys of all kinds after each round, of which every second is a step."""
    kinds = ["f", "f", "f2", "f8", "f", "f", "f"]
    keys = [np.random.default_rng(i).standard_normal(3 if i == 6 else 5003)
            .astype(k).astype("f8") for i, k in enumerate(kinds)]
    m = [np.zeros_like(w) for w in keys]
    v = [np.zeros_like(w) for w in keys]
    held = [0] * len(keys)
    for step in range(8):
        draws = [np.random.default_rng([step, rank]) for rank in (0, 1)]
        for i, w in enumerate(keys):
            g = held[i] + sum(d.standard_normal(w.size).astype(kinds[i])
                              .astype("f8") for d in draws)
            held[i] = g if step % 2 == 0 else 0
            if step % 2 == 0:
                continue
            t = (step + 1) // 2
            wd = .01 * (.5 if i == 0 else 1)
            if name == "lamb":
                m[i] = .9 * m[i] + .1 * g
                v[i] = .999 * v[i] + .001 * np.square(g)
                u = m[i] / (1 - .9 ** t) / (
                    np.sqrt(v[i] / (1 - .999 ** t)) + 1e-6) + wd * w
                keys[i] = w - .01 * norm(w) / norm(u) * u
            else:
                ratio = 1 if i in (1, 4) else .001 * norm(w) / (
                    norm(g) + wd * norm(w))
                m[i] = .9 * m[i] - .1 * ratio * (wd * w + g)
                keys[i] = w + m[i]
        yield [w.astype(k) for w, k in zip(keys, kinds)]


@pytest.mark.parametrize("name,params", [
    ("lamb", {"lr": .01, "wd": .01}),
    ("lars", {"lr": .1, "wd": .01, "momentum": .9})])
def test_steps_by_norms_are_of_whole_arrays(trio, tmp, name, params):
    """Names that LARS does not scale, those of keys that are numbers, too;
    types, and steps of two rounds."""
    trios = [trio(servers=1, agents=2), trio(servers=3, agents=2)]
    for i, t in enumerate(trios):
        finish([spawn(t, "norms", rank, NORMS, name, params, i,
                      tmp / f"{i}-") for rank in (0, 1)])
    seen = [(tmp / f"{i}-{rank}").read_bytes()
            for i in (0, 1) for rank in (0, 1)]
    assert all(s == seen[0] for s in seen)
    rest = seen[0]
    for step, keys in enumerate(by_norms(name)):
        for i, want in enumerate(keys):
            mine = np.frombuffer(rest[:want.nbytes], want.dtype).astype("f8")
            rest = rest[want.nbytes:]
            size = max(np.max(np.abs(want)), 1)
            bound = 2e-3 if want.dtype == np.float16 else 3e-6
            assert np.max(np.abs(mine - want)) / size < bound, (step, i)
    assert not rest


GUARDED = """
import sys
import numpy as np, pskv
name, out = sys.argv[1:]
kv = pskv.create('dist_sync')
kv.set_optimizer(name, skip_nonfinite=1, learning_rate=.01, wd=.01)
kinds = {'a': 'f4', 'b': 'f4', 'half': 'f2'}
ws = {k: np.random.default_rng(i).standard_normal(5003).astype(t)
      for i, (k, t) in enumerate(kinds.items())}
for k, w in ws.items():
    kv.init(k, w)
seen = []
for step in range(9):
    draw = np.random.default_rng([step, kv.rank])
    gs = [draw.standard_normal(w.size).astype(w.dtype) for w in ws.values()]
    if step in (0, 3, 4) and kv.rank == 1:
        gs[0][4000] = np.nan if step == 3 else np.inf
    if step == 5:
        gs[2][7] = 4e4  # The sum of two exceeds the range of float16.
    kv.pushpull(list(ws), gs, out=list(ws.values()))
    seen += [w.tobytes() for w in ws.values()]
if kv.rank == 0:
    print('done', flush=True)
    input()
open(out + str(kv.rank), 'wb').write(b''.join(seen))
kv.close()
"""


def guarded(name):
    """The keys after each round; of the first, three rounds were none."""
    keys = [np.random.default_rng(i).standard_normal(5003).astype(t)
            .astype("f") for i, t in enumerate(("f4", "f4", "f2"))]
    state = [(0, 0, 0)] * 3
    for step in range(9):
        draws = [np.random.default_rng([step, rank]) for rank in (0, 1)]
        for i, w in enumerate(keys):
            g = sum(d.standard_normal(5003).astype("f2" if i == 2 else "f")
                    .astype("f") for d in draws)
            if i == 2 and step == 5:
                g[7] = 8e4
            m, v, t = state[i]
            if i == 0 and step in (0, 3, 4):
                continue
            t += 1
            if name == "adam":
                g = g + np.float32(.01) * w
            m, v = .9 * m + (1 - .9) * g, .999 * v + (1 - .999) * np.square(g)
            state[i] = m, v, t
            if name == "adam":
                rate = .01 * math.sqrt(1 - .999 ** t) / (1 - .9 ** t)
                keys[i] = w - rate * (m / (np.sqrt(v) + 1e-8))
            else:
                u = m / (1 - .9 ** t) / (np.sqrt(v / (1 - .999 ** t)) + 1e-6) \
                    + np.float32(.01) * w
                keys[i] = w - .01 * (norm(w) / norm(u)) * u
        yield keys


@pytest.mark.parametrize("name", ["adam", "lamb"])
def test_gradients_that_are_not_finite_are_skipped_and_counted(
        trio, tmp, name):
    trios = [trio(servers=1, agents=2), trio(servers=3, agents=2)]
    for i, t in enumerate(trios):
        workers = [spawn(t, "guarded", rank, GUARDED, name, tmp / f"{i}-")
                   for rank in (0, 1)]
        try:
            assert workers[0].stdout.readline() == "done\n"
            code, out, err = t.psctl("-w", "json", "jobs")
            assert code == 0, err
            assert json.loads(out)["jobs"][0]["skipped"] == 3
        finally:
            workers[0].stdin.write("\n")
            workers[0].stdin.flush()
        finish(workers)
    seen = [(tmp / f"{i}-{rank}").read_bytes()
            for i in (0, 1) for rank in (0, 1)]
    assert all(s == seen[0] for s in seen)
    rest = seen[0]
    for step, keys in enumerate(guarded(name)):
        for i, want in enumerate(keys):
            kind = np.dtype("f2" if i == 2 else "f4")
            mine = np.frombuffer(rest[:5003 * kind.itemsize], kind)
            rest = rest[5003 * kind.itemsize:]
            error = np.max(np.abs(mine.astype("f") - want))
            assert error < (3e-3 if i == 2 else 3e-6), (step, i, error)
    assert not rest


CLIPPED = """
import sys
import numpy as np, pskv
name, out = sys.argv[1:]
kv = pskv.create('dist_sync')
kv.set_optimizer(name, clip_global_norm=30, skip_nonfinite=1, rescale_grad=.5,
                 learning_rate=1 if name == 'lars' else .1, momentum=.9,
                 **({'eta': .01} if name == 'lars' else {}))
kinds = {'a': 'f4', 'b.bias': 'f4', 'half': 'f2', 'double': 'f8'}
ws = {k: np.random.default_rng(i).standard_normal(5003 - i).astype(t)
      for i, (k, t) in enumerate(kinds.items())}
for k, w in ws.items():
    kv.init(k, w)
count = np.arange(7)
kv.broadcast('count', count, count)  # Integers have no gradients...
seen = []
for step in range(8):
    if step == 3:  # ...and a later key takes part from now on.
        kv.barrier()
        ws['late'] = np.ones(50, 'f')
        kv.init('late', ws['late'])
    draw = np.random.default_rng([step, kv.rank])
    size = .01 if step == 5 else 1  # Below the limit: not clipped.
    gs = [(size * draw.standard_normal(w.size)).astype(w.dtype)
          for w in ws.values()]
    if step == 6 and kv.rank == 1:
        gs[1][1] = np.nan
    order = list(ws) if kv.rank else list(ws)[::-1]
    by_key = dict(zip(ws, gs))
    kv.pushpull(order, [by_key[k] for k in order], out=[ws[k] for k in order])
    seen += [w.tobytes() for w in ws.values()]
open(out + str(kv.rank), 'wb').write(b''.join(seen))
kv.close()
"""


def clipped(name):
    """Gradients of all keys together are limited; one that is not finite is
    the end of the round."""
    kinds = ["f", "f", "f2", "f8", "f"]
    keys = [np.random.default_rng(i).standard_normal(5003 - i).astype(k)
            .astype("f8") for i, k in enumerate(kinds[:4])]
    m = [0] * 5
    before = None
    for step in range(8):
        if step == 3:
            keys.append(np.ones(50))
        draws = [np.random.default_rng([step, rank]) for rank in (0, 1)]
        size = .01 if step == 5 else 1
        gs = [.5 * sum((size * d.standard_normal(w.size)).astype(k)
                       .astype("f8") for d in draws)
              for w, k in zip(keys, kinds)]
        total = math.sqrt(sum(norm(g) ** 2 for g in gs))
        assert (total < 30) == (step == 5)
        for i, g in enumerate(gs):
            if step == 6:
                break
            g = g * min(1, 30 / (total + 1e-8))
            w = keys[i]
            rate = .1
            if name == "lars":
                rate = 1 if i == 1 else .01 * norm(w) / norm(g)
            m[i] = .9 * m[i] - rate * g
            keys[i] = w + m[i]
        yield [w.astype(k) for w, k in zip(keys, kinds)]


@pytest.mark.parametrize("name", ["sgd", "lars"])
def test_gradients_are_clipped_by_the_norm_of_all(trio, tmp, name):
    trios = [trio(servers=1, agents=2), trio(servers=3, agents=2)]
    for i, t in enumerate(trios):
        finish([spawn(t, "clipped", rank, CLIPPED, name, tmp / f"{i}-")
                for rank in (0, 1)])
    seen = [(tmp / f"{i}-{rank}").read_bytes()
            for i in (0, 1) for rank in (0, 1)]
    assert all(s == seen[0] for s in seen)
    rest = seen[0]
    for step, keys in enumerate(clipped(name)):
        for i, want in enumerate(keys):
            mine = np.frombuffer(rest[:want.nbytes], want.dtype).astype("f8")
            rest = rest[want.nbytes:]
            error = np.max(np.abs(mine - want))
            assert error < (3e-3 if i == 2 else 3e-6), (step, i, error)
    assert not rest


def test_steps_by_norms_need_rounds_and_whole_arrays(trio):
    t = trio(servers=1, agents=1)
    text = """
import numpy as np, pskv
def fails(what, *arguments):
    try:
        what(*arguments)
        print('done')
    except pskv.Error as e:
        print(e)
kv = pskv.create('dist_async')
fails(kv.set_optimizer, 'lamb')
kv.close()
kv = pskv.create('dist_sync', job='rows')
kv.set_optimizer('lars')
kv.init_rows('rows', np.ones((4, 3), 'f'))
fails(kv.push_rows, 'rows', [1], np.ones((1, 3), 'f'))
fails(kv.row_sparse_pull, 'rows', [1])
"""
    said, = finish([spawn(t, "async", 0, text, workers=1)])
    assert "lamb needs norms of whole arrays" in said.splitlines()[0]
    assert "whole arrays" in " ".join(said.splitlines()[1:])


SAVED = """
import numpy as np, pskv, sys
name, first, path, out = sys.argv[1:]
first = int(first)
kv = pskv.create('dist_sync')
kv.set_optimizer(name, learning_rate=.01)
shapes = {'single': ('f4', 5003), 'double': ('f8', 700), 'half': ('f2', 3001)}
if first == 0:
    ws = {k: np.random.default_rng(n).standard_normal(n).astype(t)
          for k, (t, n) in shapes.items()}
    rows = np.random.default_rng(0).standard_normal((40, 5)).astype('f')
else:
    saved = np.load(path + '.npz')
    ws = {k: saved[k] for k in shapes}
    rows = saved['rows']
for k, w in ws.items():
    kv.init(k, w)
if name != 'lamb':
    kv.init_rows('rows', rows)
if first > 0:
    kv.load_optimizer_states(path)
for step in range(first, 6):
    if step == 3 and first == 0:
        if kv.rank == 1:
            kv.save_optimizer_states(path)
            np.savez(path + '.npz', rows=rows, **ws)
        kv.barrier()
    draw = np.random.default_rng([step, kv.rank])
    for k, w in ws.items():
        kv.pushpull(k, draw.standard_normal(w.size).astype(w.dtype), out=w)
    some = np.arange(step, 40, 2 + kv.rank)
    if name == 'lamb':
        continue  # This optimizer takes no rows.
    kv.push_rows('rows', some, draw.standard_normal((some.size, 5))
                 .astype('f'))
    rows = kv.row_sparse_pull('rows', np.arange(40))[1].reshape(40, 5)
open(out + str(kv.rank), 'wb').write(
    b''.join([w.tobytes() for w in ws.values()] + [rows.tobytes()]))
kv.close()
"""


@pytest.mark.parametrize("name", ["adam", "dcasgd", "ftml", "lamb"])
def test_a_saved_state_goes_on_with_the_same_bits(trio, tmp, name):
    """Saved by one worker with 3 servers, loaded by both with 1 server."""
    path = tmp / "states"
    for first, t in ((0, trio(servers=3, agents=2)),
                     (3, trio(servers=1, agents=2))):
        finish([spawn(t, "saved", rank, SAVED, name, first, path,
                      tmp / f"{first}-") for rank in (0, 1)])
    seen = [(tmp / f"{first}-{rank}").read_bytes()
            for first in (0, 3) for rank in (0, 1)]
    assert all(s == seen[0] for s in seen)


@pytest.mark.skipif(not emulated_gpu.DRIVER,
                    reason="PSKV_TEST_CUDA_DRIVER not set")
def test_a_state_of_a_gpu_goes_on_with_the_same_bits(trio, tmp):
    """Saved where states stay on a GPU, loaded into another, and beside a run on
    the CPU."""
    text = SAVED.replace("5003", "150_003").replace("3001", "150_001")
    device = emulated_gpu.servers("device")
    for first, options, out in ((0, {}, "cpu"), (0, device, "gpu"),
                                (3, device, "later")):
        t = trio(servers=1, agents=2, **options)
        finish([spawn(t, "saved", rank, text, "adam", first, tmp / "states",
                      tmp / out, PSKV_PARTITION_BYTES=1 << 20)
                for rank in (0, 1)])
        t.stop()
        log = t.servers()[0].text()
        assert (options == {}) == ("compute device cuda" not in log)
    seen = [(tmp / f"{out}{rank}").read_bytes()
            for out in ("cpu", "gpu", "later") for rank in (0, 1)]
    assert all(s == seen[0] for s in seen)


def test_a_state_that_does_not_fit_is_refused(trio, tmp):
    t = trio(servers=2, agents=1)
    text = """
import sys
import numpy as np, pskv
path = sys.argv[1]
def fails(kv, path):
    try:
        kv.load_optimizer_states(path)
        print('loaded')
    except pskv.Error as e:
        print(e)
kv = pskv.create('dist_sync')
fails(kv, path)
kv.set_optimizer('adam')
w = np.ones(3000, 'f')
kv.init(['a', 'b'], [w, w])
kv.pushpull(['a', 'b'], [w, w], out=[w, w.copy()])
kv.save_optimizer_states(path)
good = open(path, 'rb').read()
for bad in (good[:-9], good[:500] + b'x' + good[501:], b'', good[:30]):
    open(path + '.bad', 'wb').write(bad)
    fails(kv, path + '.bad')
fails(kv, path + '.none')
fails(kv, path)
try:
    kv.save_optimizer_states(path + '/none/such')
except pskv.Error as e:
    print(e)
kv.close()
for name, keys in (('sgd', {'a': 3000, 'b': 3000}), ('adam', {'a': 3000}),
                   ('adam', {'a': 3000, 'b': 2999})):
    kv = pskv.create('dist_sync', job='next' + name + str(len(keys)))
    kv.set_optimizer(name)
    for k, n in keys.items():
        kv.init(k, np.ones(n, 'f'))
    fails(kv, path)
    kv.close()
"""
    said, = finish([spawn(t, "states", 0, text, tmp / "s", workers=1)])
    lines = said.splitlines()
    assert "declared no optimizer" in lines[0]
    assert all("damaged" in line or "no file of" in line
               for line in lines[1:5]), lines
    assert "No such file" in lines[5]
    assert lines[6] == "loaded"
    assert "Not a directory" in lines[7]
    assert "it is of adam, and the job's optimizer is sgd" in lines[8]
    assert "key 'b', which this worker has not initialised" in lines[9]
    assert "state of 'b' is for 3000" in lines[10]
    assert not [p for p in tmp.iterdir() if p.name.startswith("s.") and
                not p.name.endswith("bad")]
