#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Learns vectors of words from plain text, with keys of rows.

    pslaunch -n 4 -s 2 -- python3 embedding.py [--steps N] [FILE ...]

The model is skip-gram with negative samples (Mikolov et al., 2013): a word's
vector is to tell which words stand near it. There are two tables of one row a
word; a step needs the rows of its words alone, so each worker pulls these,
computes, and pushes their gradients. AdaGrad runs on the servers, lazily.
Without FILE the licences that every Debian system has are read."""
import argparse
import collections
import glob
import re
import zlib

import numpy as np

WIDTH = 48
WINDOW = 3
NEGATIVE = 5


def read_words(files):
    """All words of the files, and each one's number by falling frequency."""
    words = []
    for name in sorted(files):
        with open(name, encoding="utf-8", errors="replace") as f:
            words += re.findall(r"[a-z]+", f.read().lower())
    counts = collections.Counter(words)
    known = [w for w, n in counts.most_common() if n >= 3]
    number = {w: i for i, w in enumerate(known)}
    text = np.array([number[w] for w in words if w in number])
    return text, known, np.array([counts[w] for w in known], float)


def begin(counts):
    """How often a word is drawn as a negative sample, and first vectors."""
    share = counts ** 0.75 / (counts ** 0.75).sum()
    draw = np.random.default_rng(1)
    start = (draw.random((len(counts), WIDTH)) - 0.5) / WIDTH
    return share, start.astype("f")


def sigmoid(x):
    return 1 / (1 + np.exp(-np.clip(x, -30, 30)))


class Batch:
    """Pairs of words that stand near each other, and words drawn at random."""

    def __init__(self, draw, text, share, size):
        at = draw.integers(WINDOW, len(text) - WINDOW, size)
        step = draw.integers(1, WINDOW + 1, size) * draw.choice([-1, 1], size)
        self.word = text[at]
        self.near = np.concatenate([
            text[at + step][:, None],
            draw.choice(len(share), (size, NEGATIVE), p=share)], axis=1)

    def loss(self, v, u):
        """Loss, and gradients of the vectors v (n, d) and u (n, k, d)."""
        score = np.einsum("nd,nkd->nk", v, u)
        want = np.zeros_like(score)
        want[:, 0] = 1
        p = sigmoid(score)
        loss = -np.log(np.where(want > 0, p, 1 - p) + 1e-12).sum(axis=1).mean()
        wrong = ((p - want) / len(v)).astype("f")
        return loss, np.einsum("nk,nkd->nd", wrong, u), \
            wrong[:, :, None] * v[:, None, :]


def nearest(table, known, word):
    """The words whose vectors point where that of `word` does."""
    if word not in known:
        return []
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    order = np.argsort(-unit @ unit[known.index(word)])
    return [known[i] for i in order[1:6]]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=256,
                        help="of each worker")
    parser.add_argument("--every", type=int, default=100,
                        help="steps between two lines with the loss")
    parser.add_argument("files", nargs="*",
                        default=glob.glob("/usr/share/common-licenses/*"))
    args = parser.parse_args()

    import pskv  # Here: embedding_numpy.py has the model without it.

    kv = pskv.create("dist_sync")
    text, known, counts = read_words(args.files)
    share, start = begin(counts)
    kv.set_optimizer("adagrad", learning_rate=0.1)
    kv.init_rows("word", start)
    kv.init_rows("near", np.zeros_like(start))
    draw = np.random.default_rng([2, kv.rank])
    total = 0.0
    for step in range(1, args.steps + 1):
        batch = Batch(draw, text, share, args.batch)
        near = batch.near.ravel()
        v = np.empty((args.batch, WIDTH), "f")
        u = np.empty((near.size, WIDTH), "f")
        handles = [kv.pull_rows_async("word", batch.word, v),
                   kv.pull_rows_async("near", near, u)]
        for handle in handles:
            handle.wait()
        loss, dv, du = batch.loss(v, u.reshape(args.batch, -1, WIDTH))
        handles = [kv.push_rows_async("word", batch.word, dv),
                   kv.push_rows_async("near", near, du.reshape(-1, WIDTH))]
        for handle in handles:
            handle.wait()
        total += loss
        if step % args.every == 0:
            mean = np.array([total / args.every])
            kv.allreduce(mean, reduce="mean", name="loss")
            total = 0.0
            if kv.rank == 0:
                print("step %d loss %.4f" % (step, mean[0]), flush=True)
    if kv.rank == 0:
        table = np.empty_like(start)
        kv.pull_rows("word", np.arange(len(known)), table)
        for word in ("license", "copy", "program", "you"):
            print("near '%s': %s" % (word, ", ".join(
                nearest(table, known, word))))
        # Another run of as many workers ends with the same bits.
        print("checksum %08x" % zlib.crc32(table.tobytes()))
    kv.barrier()
    kv.close()


if __name__ == "__main__":
    main()
