#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training of embedding.py in one process, with NumPy alone.

    python3 embedding_numpy.py [--workers N] [--steps N] [FILE ...]

The baseline for a training with pskv: the batches are those of N workers, and
AdaGrad steps the rows of the summed gradients as the servers do, so the losses
are those of `pslaunch -n N`, to what single precision leaves."""
import argparse
import glob

import numpy as np

from embedding import Batch, WIDTH, begin, read_words

RATE, EPSILON = 0.1, 1e-7


class Table:
    """Rows with AdaGrad."""

    def __init__(self, start):
        self.rows = start
        self.history = np.zeros_like(start)

    def step(self, numbers, gradients):
        """A row that is named several times takes the sum."""
        used, place = np.unique(numbers, return_inverse=True)
        total = np.zeros((len(used), WIDTH), "f")
        np.add.at(total, place, gradients)
        self.history[used] += total * total
        self.rows[used] -= RATE * total / np.sqrt(self.history[used] + EPSILON)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=256,
                        help="of each worker")
    parser.add_argument("--every", type=int, default=100,
                        help="steps between two lines with the loss")
    parser.add_argument("files", nargs="*",
                        default=glob.glob("/usr/share/common-licenses/*"))
    args = parser.parse_args()

    text, known, counts = read_words(args.files)
    share, start = begin(counts)
    word, near = Table(start), Table(np.zeros_like(start))
    draws = [np.random.default_rng([2, rank]) for rank in range(args.workers)]
    total = 0.0
    for step in range(1, args.steps + 1):
        gradients = []
        for draw in draws:
            batch = Batch(draw, text, share, args.batch)
            loss, dv, du = batch.loss(word.rows[batch.word],
                                      near.rows[batch.near])
            gradients.append((batch.word, dv, batch.near.ravel(),
                              du.reshape(-1, WIDTH)))
            total += loss / args.workers
        words, dvs, nears, dus = map(np.concatenate, zip(*gradients))
        word.step(words, dvs)
        near.step(nears, dus)
        if step % args.every == 0:
            print("step %d loss %.4f" % (step, total / args.every), flush=True)
            total = 0.0


if __name__ == "__main__":
    main()
