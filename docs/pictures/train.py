#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker of the jobs of timeline.py and dashboard.py: a classifier,
784-128-10, on Fashion-MNIST. Its parts are spans, and its loss and accuracy are
reported.

    train.py STEPS SLOW_RANK SLOW_MS [FROM_STEP TO_STEP]

The slow rank gets each batch later by so many milliseconds, as if its storage
were slow: in all steps, or in those of the range. Prints "trained", and leaves
when its standard input ends."""
import gzip
import sys
import time
from pathlib import Path

import numpy as np

import pskv

DATA = Path("/usr/share/datasets/fashion-mnist")
BATCH = 64
SHAPES = {"fc1.weight": (784, 128), "fc1.bias": (128,),
          "fc2.weight": (128, 10), "fc2.bias": (10,)}


def read(name, head):
    with gzip.open(DATA / name) as file:
        return np.frombuffer(file.read(), np.uint8, offset=head)


def share(kv):
    """Pictures and classes of this rank."""
    images = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 784)
    labels = read("train-labels-idx1-ubyte.gz", 8)
    own = slice(kv.rank, None, kv.num_workers)
    return images[own], labels[own]


def first_weights(kv):
    draw = np.random.default_rng(1)
    weights = {}
    for name, shape in SHAPES.items():
        weights[name] = np.zeros(shape, "f4") if len(shape) == 1 else \
            draw.normal(0, 1 / shape[0] ** .5, shape).astype("f4")
        kv.init(name, weights[name])
    return weights


class Training:
    def __init__(self, kv):
        self.kv = kv
        self.images, self.labels = share(kv)
        self.weights = first_weights(kv)
        self.gradients = {n: np.zeros_like(w)
                          for n, w in self.weights.items()}
        self.draw = np.random.default_rng(7 + kv.rank)
        kv.set_optimizer("sgd", learning_rate=0.1, momentum=0.9,
                         rescale_grad=1 / (BATCH * kv.num_workers))

    def batch(self, late_s):
        with self.kv.span("input"):
            time.sleep(late_s)
            some = self.draw.integers(0, len(self.labels), BATCH)
            return self.images[some].astype("f4") / 255, self.labels[some]

    def forward(self, x):
        w = self.weights
        with self.kv.span("forward"):
            hidden = np.maximum(x @ w["fc1.weight"] + w["fc1.bias"], 0)
            scores = hidden @ w["fc2.weight"] + w["fc2.bias"]
            powers = np.exp(scores - scores.max(1, keepdims=True))
            return hidden, powers / powers.sum(1, keepdims=True)

    def start(self, *names):
        return [self.kv.pushpull_async(n, self.gradients[n],
                                       out=self.weights[n]) for n in names]

    def backward(self, x, hidden, error):
        """The sums of the last layer are under way while the gradient of the
        first one is computed."""
        g = self.gradients
        with self.kv.span("backward"):
            np.matmul(hidden.T, error, out=g["fc2.weight"])
            g["fc2.bias"][:] = error.sum(0)
            below = (error @ self.weights["fc2.weight"].T) * (hidden > 0)
            sums = self.start("fc2.weight", "fc2.bias")
            np.matmul(x.T, below, out=g["fc1.weight"])
            g["fc1.bias"][:] = below.sum(0)
            return sums + self.start("fc1.weight", "fc1.bias")

    def step(self, number, late_s):
        with self.kv.span("step"):
            x, classes = self.batch(late_s)
            hidden, shares = self.forward(x)
            own = shares[np.arange(BATCH), classes]
            right = (shares.argmax(1) == classes).mean()
            shares[np.arange(BATCH), classes] -= 1
            with self.kv.span("sums"):
                for sum_ in self.backward(x, hidden, shares):
                    sum_.wait()
        if number % 10 == 0:
            self.kv.report(step=number, loss=float(-np.log(own + 1e-9).mean()),
                           accuracy=float(right))


def main():
    if len(sys.argv) not in (4, 6):
        sys.exit(__doc__)
    steps, slow_rank, slow_ms, begin, end = map(
        int, sys.argv[1:] + [0, sys.maxsize][:6 - len(sys.argv)])
    with pskv.create("dist_sync") as kv:
        training = Training(kv)
        for number in range(1, steps + 1):
            is_late = kv.rank == slow_rank and begin <= number <= end
            training.step(number, slow_ms / 1000 if is_late else 0)
        kv.barrier()
        print("trained", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
