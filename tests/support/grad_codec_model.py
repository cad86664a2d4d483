# SPDX-License-Identifier: Apache-2.0
"""Compression in NumPy, written from docs/compression.md: what a node makes of
the sum of its workers, partition by partition, and how many bytes that takes.
It keeps values, not codes, so it shares nothing with the packing it checks."""
import numpy as np

F = np.float32
M64 = (1 << 64) - 1


def mix64(x):
    x = (x + 0x9e3779b97f4a7c15) & M64
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & M64
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & M64
    return x ^ (x >> 31)


def mix32(x):
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x7feb352d)
    x = x ^ (x >> np.uint32(15))
    x = x * np.uint32(0x846ca68b)
    return x ^ (x >> np.uint32(16))


def stream(seed, key, index, rnd, slot):
    x = mix64(seed)
    x = mix64(x ^ (key << 32 | index))
    x = mix64(x ^ rnd)
    return x if slot is None else mix64(x ^ slot)


def rng_key(name):
    """What stands for a string key in random numbers."""
    h = 0xcbf29ce484222325
    for byte in b"s:" + name.encode():
        h = (h ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return h >> 32


def lane_sum(x):
    """Doubles in 16 lanes, then the lanes in order."""
    padded = np.zeros(-(-len(x) // 16) * 16, "f8")
    padded[:len(x)] = x
    total = 0.0
    for lane in np.cumsum(padded.reshape(-1, 16), axis=0)[-1]:
        total += lane
    return total


def kept(k, n):
    return max(1, min(int(k * n) if k < 1 else int(k), n // 2))


class Node:
    """One partition on one node: residual and momentum."""

    def __init__(self, decl, n, key, index, slot):
        self.d = dict(decl)
        self.type = self.d["type"]
        self.residual = np.zeros(n, "f")
        self.moment = np.zeros(n, "f")
        self.n, self.key, self.index, self.slot = n, key, index, slot
        self.round = 0

    def get(self, name, default):
        return self.d.get(name, default)

    @property
    def feedback(self):
        return self.get("ef", self.type not in ("fp16", "bf16"))

    @property
    def plain(self):
        return 4 * self.n < self.get("min_bytes", 0)

    def bytes(self):
        n = self.n
        if self.plain:
            return 4 * n
        if self.type == "2bit":
            return -(-n // 16) * 4
        if self.type == "1bit":
            return -(-n // 32) * 4
        if self.type in ("fp16", "bf16"):
            return -(-n // 2) * 4
        if self.type == "onebit":
            return -(-n // 32) * 4 + (4 if self.get("scaling", 1) else 0)
        if self.type == "topk":
            return 8 * kept(self.get("k", 0.01), n)
        if self.type == "randomk":
            return 4 * kept(self.get("k", 0.01), n)
        levels = self.get("levels", 7)
        width = 2 if levels <= 1 else 4 if levels <= 7 else 8
        return 4 + -(-n * width // 32) * 4

    @property
    def both(self):
        return bool(self.get("both", 0))

    def back(self):
        """The same on the server, for the value: no momentum."""
        d = {**self.d, "momentum": 0}
        return Node(d, self.n, self.key, self.index, 0xffffffff)

    def push(self, g):
        """What the servers make of the next round's sum `g`."""
        self.round += 1
        if self.plain:
            return g
        mu = F(self.get("momentum", 0))
        p = g
        if mu > 0:
            self.moment = mu * self.moment + g
            p = g + mu * self.moment
        x = self.residual + p if self.feedback else p
        v = getattr(self, "of_" + {"2bit": "two", "1bit": "one"}.get(
            self.type, self.type))(x).astype("f")
        r = self.left(x, v)
        self.residual = np.where(np.isfinite(r), r, F(0)).astype("f")
        return v

    def left(self, x, v):
        return x - v

    def of_two(self, x):
        t = F(self.get("threshold", 0.5))
        return np.where(x >= t, t, np.where(x <= -t, -t, F(0)))

    def of_one(self, x):
        return np.where(x > F(self.get("threshold", 0)), F(1), F(-1))

    def of_fp16(self, x):
        return x.astype(np.float16).astype("f")

    def of_bf16(self, x):
        u = x.view(np.uint32)
        u = u + np.uint32(0x7fff) + ((u >> np.uint32(16)) & np.uint32(1))
        return (u & np.uint32(0xffff0000)).view("f")

    def of_onebit(self, x):
        s = F(lane_sum(np.abs(x).astype("f8")) / len(x)) \
            if self.get("scaling", 1) else F(1)
        return np.where(x < 0, -s, s)

    def of_topk(self, x):
        order = np.argsort(-np.abs(x), kind="stable")
        keep = order[:kept(self.get("k", 0.01), len(x))]
        v = np.zeros_like(x)
        v[keep] = x[keep]
        return v

    def of_randomk(self, x):
        n = len(x)
        k = kept(self.get("k", 0.01), n)
        s = stream(self.get("seed", 0), self.key, self.index, self.round, None)
        v = np.zeros_like(x)
        for i in range(k):
            first, last = i * n // k, (i + 1) * n // k
            u = mix64((s + i) & M64) >> 32
            at = first + (u * (last - first) >> 32)
            v[at] = x[at]
        return v

    def of_dithering(self, x):
        if self.get("l2", 0):
            norm = F(np.sqrt(lane_sum(x.astype("f8") * x.astype("f8"))))
        else:
            norm = np.abs(x).max()
        if not norm > 0:
            return np.zeros_like(x)
        s = stream(self.get("seed", 0), self.key, self.index, self.round,
                   self.slot)
        i = np.arange(len(x), dtype=np.uint32)
        u = mix32(mix32(i ^ np.uint32(s & 0xffffffff)) +
                  np.uint32(s >> 32)) >> np.uint32(8)
        u = u.astype("f") * F(2.0 ** -24)
        levels = self.get("levels", 7)
        if self.get("natural", 0):
            q = np.minimum(np.abs(x) / norm, F(1))
            least = F(2.0 ** (1 - levels))
            _, e = np.frexp(q)
            low = np.where(q >= least, np.ldexp(F(1), e - 1), F(0))
            high = np.where(q >= least, 2 * low, least)
            share = (q - low) / (high - low)
            v = norm * np.where(u < share, high, low)
        else:
            q = np.minimum(np.abs(x) / norm * F(levels), F(levels))
            low = np.floor(q)
            v = np.where(u < q - low, low + F(1), low) * (norm / F(levels))
        return np.where(np.signbit(x), -v, v)
