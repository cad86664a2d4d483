# SPDX-License-Identifier: Apache-2.0
"""MXNet's tests of key-value stores, with `import pskv.mxnet` before them:
those of tests/nightly as its CI starts them, and those of
tests/python/unittest.

The first have 7 workers and 7 servers. Arrays of theirs on GPUs are on
devices of the processor here (mx.gpu(1) is mx.cpu(1)); names that end with
:gpu run without that. The latter are about one process: once with the stores
that they name, which pskv.mxnet must leave as they are, and once with a store
of pskv in their place (names with :pskv)."""
import importlib
import os
import runpy
import sys
from pathlib import Path

import stand_ins
from suite import REPOSITORY, Suite, Test, World, environment_value, imports

# File: command lines, by the name of the test.
NIGHTLY = {
    "dist_sync_kvstore.py": {
        "gluon_step_cpu": ["--type=gluon_step_cpu"],
        "gluon_sparse_step_cpu": ["--type=gluon_sparse_step_cpu"],
        "gluon_type_cpu": ["--type=gluon_type_cpu"],
        "invalid_cpu": ["--type=invalid_cpu"],
        "default_cpu": ["--nrepeat=3"],
        "default_cpu:no-multiprecision": ["--nrepeat=3",
                                          "--no-multiprecision"],
        # The test computes each element in Python.
        "compressed_cpu": ["--type=compressed_cpu", "--nrepeat=2"],
        "compressed_cpu:no-multiprecision": [
            "--type=compressed_cpu", "--nrepeat=1", "--no-multiprecision"],
        "init_gpu": ["--type=init_gpu"],
        "init_gpu:no-gpu": ["--type=init_gpu", "--no-gpu"],
    },
    "dist_async_kvstore.py": {"all": []},
    "dist_device_sync_kvstore.py": {"all": [], "all:gpu": []},
    "dist_device_sync_kvstore_custom.py": {
        "all": [], "dist_sync_device": ["--name=dist_sync_device"]},
    "test_server_profiling.py": {"all": []},
}
UNIT = ("test_kvstore.py", "test_kvstore_custom.py")
LIMITS = {"compressed_cpu": 420.0, "compressed_cpu:no-multiprecision": 300.0,
          "init_gpu": 420.0, "init_gpu:no-gpu": 300.0}
# Stores of one process.
LOCAL = ("local", "device", "local_allreduce_cpu")


def mxnet_python():
    build = Path(environment_value("PSKV_BUILD_DIR", REPOSITORY / "build"))
    return environment_value("PSKV_MXNET_PYTHON",
                             build.absolute() / "mxnet" / "bin" / "python")


def functions_of(path):
    """Names of a file's tests, without importing it."""
    import ast
    return [node.name for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.FunctionDef) and
            node.name.startswith("test_")]


def devices_of_the_processor(mx):
    """mx.gpu(i) is the device i of the processor."""
    mx.gpu = mx.context.gpu = lambda device_id=0: mx.cpu(device_id)


def whole_floats_in_shapes(mx):
    """In Python 2 a shape of (n/2, 2) was one of whole numbers."""
    reshape = mx.nd.NDArray.reshape

    def reshaped(self, *shape, **kwargs):
        if len(shape) == 1 and isinstance(shape[0], tuple):
            shape = (tuple(int(n) for n in shape[0]),)
        return reshape(self, *shape, **kwargs)

    mx.nd.NDArray.reshape = reshaped


def stores_of_pskv(mx):
    """Stores of one process are those of a job with one worker."""
    create = mx.kv.create

    def ours(name="local"):
        return create("dist_sync" if name in LOCAL else name)

    mx.kv.create = mx.kvstore.create = ours


class MXNet(Suite):
    name = "mxnet"
    checkout = "mxnet"
    worlds = (World(1, 1), World(7, 7), World(7, 7, 3))
    limit = 240.0

    def python(self):
        return mxnet_python()

    def ready(self):
        return super().ready() or (
            "" if imports(self.python(), "mxnet") else
            f"{self.python()} has no MXNet")

    def find(self, world):
        if world.workers > 1:
            return [Test(f"{file}:{name}", "", LIMITS.get(name, 0))
                    for file, tests in NIGHTLY.items() for name in tests]
        folder = self.folder / "tests" / "python" / "unittest"
        return [Test(f"{file}:{name}{store}") for file in UNIT
                for name in functions_of(folder / file)
                for store in ("", ":pskv")]

    def prepare(self):
        import pskv.mxnet  # noqa: F401  pylint: disable=unused-import

    def run(self, name, scratch):
        file, _, name = name.partition(":")
        import pskv.mxnet  # noqa: F401  pylint: disable=unused-import
        import mxnet as mx
        if file in UNIT:
            self.run_unit(mx, file, name)
        else:
            if not name.endswith(":gpu"):
                devices_of_the_processor(mx)
            whole_floats_in_shapes(mx)
            self.run_nightly(file, NIGHTLY[file][name], scratch)

    def run_unit(self, mx, file, name):
        name, _, store = name.partition(":")
        if store:
            stores_of_pskv(mx)
        stand_ins.nose()
        sys.path.insert(0, str(self.folder / "tests" / "python" /
                               "unittest"))
        module = importlib.import_module(file.removesuffix(".py"))
        getattr(module, name)()

    def run_nightly(self, file, words, scratch):
        # Ranks read files of others there.
        os.chdir(Path(scratch) / "cwd")
        path = self.folder / "tests" / "nightly" / file
        sys.path.insert(0, str(path.parent))
        sys.argv[:] = [str(path), *words]
        runpy.run_path(str(path), run_name="__main__")


SUITE = MXNet
