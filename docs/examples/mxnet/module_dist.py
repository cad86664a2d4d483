# SPDX-License-Identifier: Apache-2.0
"""Trains a small net on Fashion-MNIST with the Module API: plain MXNet.

    pslaunch -n 2 -s 1 -- python3 -m pskv.mxnet module_dist.py \\
        --kvstore dist_sync

`--kvstore local` trains in one process; with the batch of all workers together
the result is the same."""
import argparse
import gzip
import logging
import os

import mxnet as mx
import numpy as np


def load(folder, which):
    """Images as float32 of shape (n, 784), and labels."""
    arrays = []
    for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):
        path = os.path.join(folder, "%s-%s-ubyte" % (which, kind))
        opener = open if os.path.exists(path) else gzip.open
        with opener(path if opener is open else path + ".gz", "rb") as f:
            arrays.append(np.frombuffer(f.read(), np.uint8, offset=header))
    return (arrays[0].reshape(-1, 784).astype("float32") / 255,
            arrays[1].astype("float32"))


def mlp():
    net = mx.sym.Variable("data")
    net = mx.sym.FullyConnected(net, name="fc1", num_hidden=128)
    net = mx.sym.Activation(net, name="relu1", act_type="relu")
    net = mx.sym.FullyConnected(net, name="fc2", num_hidden=10)
    return mx.sym.SoftmaxOutput(net, name="softmax")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvstore", default="dist_sync")
    parser.add_argument("--batch", type=int, default=256,
                        help="of all workers together")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--samples", type=int, default=60000)
    parser.add_argument("--wd", type=float, default=0.0)
    parser.add_argument("--data",
                        default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--save", help="file for the parameters")
    args = parser.parse_args()

    logging.basicConfig(level=logging.INFO)
    mx.random.seed(1)
    store = mx.kv.create(args.kvstore)
    images, labels = load(args.data, "train")
    batches = args.samples // args.batch
    share = args.batch // store.num_workers
    # This worker's part of each batch, one batch after the other.
    mine = np.concatenate([
        np.arange(share) + b * args.batch + store.rank * share
        for b in range(batches)])
    train = mx.io.NDArrayIter(images[mine], labels[mine], share)
    module = mx.mod.Module(mlp())
    module.fit(train, kvstore=store, optimizer="sgd",
               optimizer_params={"learning_rate": 0.1, "momentum": 0.9,
                                 "wd": args.wd},
               initializer=mx.init.Xavier(), num_epoch=args.epochs,
               eval_metric="acc")
    test = mx.io.NDArrayIter(*load(args.data, "t10k"), 1000)
    if store.rank == 0:
        print("accuracy %.4f" % module.score(test, "acc")[0][1], flush=True)
    if args.save:
        module.save_params("%s.%d" % (args.save, store.rank))


if __name__ == "__main__":
    main()
