# SPDX-License-Identifier: Apache-2.0
"""test/parallel/test_mxnet1.py of Horovod, with the tests of its
base_test_mxnet.py, and its examples for MXNet, with pskv.mxnet.horovod as
horovod.mxnet. test_mxnet2.py and mxnet2_mnist.py are for MXNet 2, of which
there is no release.

The examples get data and sizes for a test: mxnet_mnist.py digits that are made
up, of which it demands 96 %; the other one, whose data is made up without
ImageNet, a few images, and models of MXNet itself in place of gluoncv's."""
import os
import sys
import zipfile
from pathlib import Path

import stand_ins
from suite import Test, World, imports
from suite_horovod_torch import HorovodSuite
from suite_mxnet import mxnet_python

IMAGENET = ["--no-cuda", "--num-epochs=1", "--batch-size=2",
            "--model=resnet18_v1", "--log-interval=1", "--warmup-epochs=0"]
# File: command lines, by the name of the test.
EXAMPLES = {
    "mxnet_mnist.py": {
        "all": ["--no-cuda", "--epochs=2"],
        "fp16": ["--no-cuda", "--epochs=2", "--fp16-allreduce",
                 "--gradient-predivide-factor=2"]},
    "mxnet_imagenet_resnet50.py": {
        "gluon": [*IMAGENET, "--mode=gluon", "--lr-mode=cosine"],
        "module": [*IMAGENET, "--mode=module"]},
}
LIMIT = 300.0  # Seconds.
STEPS = 3  # Of each rank in an epoch of the second example.


def write_idx(file, array):
    """An array of bytes in the format of MNIST's files."""
    head = bytes([0, 0, 8, array.ndim])
    for size in array.shape:
        head += size.to_bytes(4, "big")
    file.write(head + array.astype("uint8").tobytes())


def write_digits(path):
    """A file in place of mnist.zip: ten patterns, with noise."""
    import numpy as np
    draw = np.random.RandomState(7)
    patterns = draw.randint(0, 2, (10, 28, 28)) * 160
    with zipfile.ZipFile(path, "w") as whole:
        for part, count in (("train", 6000), ("t10k", 1000)):
            labels = draw.randint(0, 10, count)
            images = patterns[labels] + draw.randint(0, 96, (count, 28, 28))
            with whole.open(f"{part}-images-idx3-ubyte", "w") as file:
                write_idx(file, images)
            with whole.open(f"{part}-labels-idx1-ubyte", "w") as file:
                write_idx(file, labels)


def made_up_download(_url, dirname):
    """In place of mxnet.test_utils.download."""
    path = Path(dirname) / "mnist.zip"
    write_digits(path)
    return str(path)


class HorovodMXNet(HorovodSuite):
    name = "horovod_mxnet"
    worlds = (World(2), World(4), World(2, 2, 2), World(4, 2, 2))
    files = ("test_mxnet1.py",)

    def python(self):
        return mxnet_python()

    def ready(self):
        return super().ready() or (
            "" if imports(self.python(), "mxnet") else
            f"{self.python()} has no MXNet")

    def names(self):
        super().names()
        stand_ins.horovod("mxnet", "pskv.mxnet.horovod")

    def find(self, world):
        return super().find(world) + [
            Test(f"{file}:{name}", "", LIMIT)
            for file, tests in EXAMPLES.items() for name in tests]

    def run(self, name, scratch):
        file, _, which = name.partition(":")
        if file not in EXAMPLES:
            super().run(name, scratch)
            return
        self.names()
        self.run_example(file, EXAMPLES[file][which])

    def run_example(self, file, words):
        import mxnet as mx
        mx.test_utils.download = made_up_download
        stand_ins.module("gluoncv")
        stand_ins.module("gluoncv.model_zoo",
                         get_model=mx.gluon.model_zoo.vision.get_model)
        path = self.folder / "examples" / "mxnet" / file
        sys.argv[:] = [str(path), *words]
        workers = os.environ["WORLD_SIZE"]
        text = path.read_text().replace(
            "num_training_samples = 1281167",
            f"num_training_samples = {2 * STEPS * int(workers)}")
        exec(compile(text, str(path), "exec"),  # pylint: disable=exec-used
             {"__name__": "__main__", "__file__": str(path)})


SUITE = HorovodMXNet
