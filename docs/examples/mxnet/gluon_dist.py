# SPDX-License-Identifier: Apache-2.0
"""Trains LeNet on Fashion-MNIST with gluon.Trainer and a distributed store:
plain MXNet, as its documentation of distributed training has it.

    pslaunch -n 4 -s 2 -- python3 -m pskv.mxnet gluon_dist.py --epochs 3

Every worker takes its part of each batch. `--kvstore local` trains in one
process, with the same result: the batch is that of all workers together."""
import argparse
import gzip
import os

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon


def load(folder, which):
    """Images as float32 of shape (n, 1, 28, 28), and labels."""
    arrays = []
    for kind, header in (("images-idx3", 16), ("labels-idx1", 8)):
        path = os.path.join(folder, "%s-%s-ubyte" % (which, kind))
        opener = open if os.path.exists(path) else gzip.open
        with opener(path if opener is open else path + ".gz", "rb") as f:
            arrays.append(np.frombuffer(f.read(), np.uint8, offset=header))
    images = arrays[0].reshape(-1, 1, 28, 28).astype("float32") / 255
    return images, arrays[1].astype("float32")


def lenet():
    net = gluon.nn.HybridSequential(prefix="lenet_")
    with net.name_scope():
        net.add(gluon.nn.Conv2D(20, kernel_size=5, activation="tanh"),
                gluon.nn.MaxPool2D(pool_size=2, strides=2),
                gluon.nn.Conv2D(50, kernel_size=5, activation="tanh"),
                gluon.nn.MaxPool2D(pool_size=2, strides=2),
                gluon.nn.Flatten(),
                gluon.nn.Dense(128, activation="tanh"),
                gluon.nn.Dense(10))
    return net


def accuracy(net, images, labels):
    right = 0
    for i in range(0, len(images), 1000):
        out = net(mx.nd.array(images[i:i + 1000])).asnumpy()
        right += int((out.argmax(axis=1) == labels[i:i + 1000]).sum())
    return right / len(images)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kvstore", default="dist_sync")
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--batch", type=int, default=256,
                        help="of all workers together")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batches", type=int, default=0,
                        help="of an epoch; 0: all")
    parser.add_argument("--data",
                        default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--save", help="file for the parameters")
    args = parser.parse_args()

    mx.random.seed(1)
    store = mx.kv.create(args.kvstore)
    share = args.batch // store.num_workers
    images, labels = load(args.data, "train")
    test = load(args.data, "t10k")

    net = lenet()
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 1, 28, 28)))
    settings = {"learning_rate": 0.05, "wd": 1e-4}
    if args.optimizer == "sgd":
        settings["momentum"] = 0.9
    elif args.optimizer == "adam":
        settings["learning_rate"] = 0.001
    trainer = gluon.Trainer(net.collect_params(), args.optimizer, settings,
                            kvstore=store)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    count = len(images) // args.batch
    if args.batches > 0:
        count = min(count, args.batches)
    for epoch in range(args.epochs):
        order = np.random.RandomState(epoch).permutation(len(images))
        total = 0.0
        for b in range(count):
            first = b * args.batch + store.rank * share
            mine = order[first:first + share]
            with autograd.record():
                loss = loss_of(net(mx.nd.array(images[mine])),
                               mx.nd.array(labels[mine]))
            loss.backward()
            # The servers add what the workers give: the batch is all of it.
            trainer.step(args.batch)
            total += float(loss.mean().asscalar())
        if store.rank == 0:
            print("epoch %d loss %.4f accuracy %.4f" %
                  (epoch + 1, total / count, accuracy(net, *test)),
                  flush=True)
    if args.save:
        net.save_parameters("%s.%d" % (args.save, store.rank))


if __name__ == "__main__":
    main()
