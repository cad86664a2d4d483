# SPDX-License-Identifier: Apache-2.0
"""torch/testing/_internal/distributed/distributed_test.py of the installed
torch, with the backend pskv where it says gloo.

The file is read with gloo as its backend, so that its tests of what gloo can
do are there, and run with pskv. Its own runner forks the ranks; here pslaunch
starts them. PSKV_TORCH_PYTHON is another interpreter than the system's."""
import importlib
import os
import sys
import unittest
from pathlib import Path

import stand_ins
from suite import Suite, Test, World, environment_value, imports, \
    skip_of_unittest

FILE = "torch.testing._internal.distributed.distributed_test"
COMMON = "torch.testing._internal.common_distributed"
# Wrappers of tests that end the process where there are not enough GPUs.
FOR_GPU = ("skip_if_no_gpu.", "skip_if_lt_x_gpu.",
           "nccl_skip_if_lt_x_gpu.")


def without_replicated_tensors():
    """The file's runner turns on a prototype of torch 1.13 whose module
    Python 3.11 refuses; 2.0 is without it."""
    name = "torch.nn.parallel._replicated_tensor_ddp_utils"
    try:
        prototype = importlib.import_module(name)
    except ImportError:
        return
    prototype._set_ddp_with_replicated_tensor = lambda value: None


def load(backend):
    """The class of all tests, in which `backend` stands for gloo."""
    stand_ins.expecttest()
    os.environ["BACKEND"] = "gloo"
    common = importlib.import_module(COMMON)
    file = importlib.import_module(FILE)
    os.environ["BACKEND"] = file.BACKEND = backend
    for names in common.DistTestCases.backend_feature.values():
        if "gloo" in names:
            names.add(backend)

    class Tests(file.TestDistBackend, file.DistributedTest._DistTestBase):
        """Every test as a process of a world that has begun."""

    return common, file, Tests


def needs_gpu(function):
    """Whether a decorator of a test will find no GPU."""
    import torch
    if torch.cuda.is_available():
        return False
    while function is not None:
        code = getattr(function, "__code__", None)
        # Python 3.11 has the name of the enclosing function.
        if getattr(code, "co_qualname", "").startswith(FOR_GPU):
            return True
        function = getattr(function, "__wrapped__", None)
    return False


class Torch(Suite):
    name = "torch"
    worlds = (World(3), World(4, 2, 2))
    limit = 120.0

    def python(self):
        return environment_value("PSKV_TORCH_PYTHON", "/usr/bin/python3")

    def ready(self):
        return "" if imports(self.python(), "torch.distributed") else \
            f"{self.python()} has no torch"

    def environment(self, world):
        return {"WORLD_SIZE": world.workers, "BACKEND": "gloo",
                "TEMP_DIR": "/nonexistent"}

    def find(self, world):
        _, _, tests = load("gloo")
        found = []
        for name in unittest.TestLoader().getTestCaseNames(tests):
            skip = skip_of_unittest(tests, name)
            if not skip and needs_gpu(getattr(tests, name)):
                skip = "CUDA is not available."
            found.append(Test(name, skip))
        return found

    def prepare(self):
        import pskv.torch  # noqa: F401  pylint: disable=unused-import
        without_replicated_tensors()
        load("pskv")

    def run(self, name, scratch):
        common, file, tests = load("pskv")
        scratch = Path(scratch)
        for folder in ("barrier", "test_dir", "init_dir"):
            (scratch / folder).mkdir(exist_ok=True)
        os.environ["TEMP_DIR"] = str(scratch)
        file.INIT_METHOD = f"file://{scratch}/init_dir/shared"
        from torch.multiprocessing import Pipe
        ours, theirs = Pipe()
        code = None
        try:
            tests._run(int(os.environ["RANK"]), name, f"{scratch}/store",
                       theirs)
        except SystemExit as e:
            code = e.code
        for skip in common.TEST_SKIPS.values():
            if code == skip.exit_code:
                raise unittest.SkipTest(skip.message)
        if code not in (None, 0):
            text = ours.recv() if ours.poll(1) else f"exit code {code}"
            sys.stderr.write(text)
            raise AssertionError(text)


SUITE = Torch
