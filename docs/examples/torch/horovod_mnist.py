#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fashion-MNIST with Horovod. To run it on pskv only the import changes:

    sed 's/import horovod.torch/import pskv.torch/' horovod_mnist.py >train.py
    pslaunch -n 4 -s 2 -- python3 train.py
"""
import argparse
import gzip
import hashlib

import horovod.torch as hvd
import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load(folder, name, count):
    with gzip.open(f"{folder}/{name}-images-idx3-ubyte.gz") as f:
        images = numpy.frombuffer(f.read(16 + count * 784), "u1")[16:]
    with gzip.open(f"{folder}/{name}-labels-idx1-ubyte.gz") as f:
        labels = numpy.frombuffer(f.read(8 + count), "u1")[8:]
    return TensorDataset(
        torch.tensor(images.reshape(-1, 1, 28, 28) / 255).float(),
        torch.tensor(labels).long())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="/usr/share/datasets/fashion-mnist")
    p.add_argument("--images", type=int, default=12000)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--fp16-allreduce", action="store_true")
    args = p.parse_args()

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(400, 64), nn.ReLU(), nn.Linear(64, 10))
    train = load(args.data, "train", args.images)
    sampler = DistributedSampler(train, num_replicas=hvd.size(),
                                 rank=hvd.rank(), seed=1)
    batches = DataLoader(train, batch_size=32, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce
        else hvd.Compression.none)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for images, labels in batches:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()

    test = load(args.data, "t10k", 10000)
    model.eval()
    with torch.no_grad():
        right = sum((model(i).argmax(1) == t).sum() for i, t in
                    list(DataLoader(test, 1000))[hvd.rank()::hvd.size()])
    right = hvd.allreduce(right, name="right", op=hvd.Sum)
    weights = torch.cat([q.detach().reshape(-1) for q in model.parameters()])
    print(f"accuracy {right.item() / 10000:.4f} weights",
          hashlib.sha1(weights.numpy().tobytes()).hexdigest(), flush=True)


if __name__ == "__main__":
    main()
