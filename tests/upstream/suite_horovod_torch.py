# SPDX-License-Identifier: Apache-2.0
"""test/parallel/test_torch.py, test_adasum_pytorch.py and test_timeline.py of
Horovod, and test/single/test_torch_elastic.py, with pskv.torch as
horovod.torch."""
import importlib
import os
import sys

import stand_ins
from suite import Suite, World, case_of, cases_of, environment_value, \
    imports

FILES = ("test_torch.py", "test_adasum_pytorch.py", "test_timeline.py")
# Of test/single, for one rank.
SINGLE = ("test_torch_elastic.py",)


class HorovodSuite(Suite):
    """Files of test/parallel with unittest's classes."""

    checkout = "horovod"
    worlds = (World(2), World(4), World(2, 2, 2), World(4, 2, 2))
    limit = 90.0
    files = ()

    def names(self):
        """Makes the names that the files import."""
        stand_ins.pytest()
        stand_ins.mock()
        stand_ins.cloudpickle()
        stand_ins.packaging()
        # As horovodrun does: they tell tests that MPI is not there.
        for name in ("RANK", "LOCAL_RANK"):
            os.environ["HOROVOD_" + name] = os.environ.get(name, "0")
        os.environ["HOROVOD_SIZE"] = os.environ.get("WORLD_SIZE", "1")
        for folder in ("single", "parallel"):
            sys.path.insert(0, str(self.folder / "test" / folder))

    def files_of(self, workers):
        return self.files

    def prepare(self):
        self.names()
        for file in self.files_of(int(os.environ["WORLD_SIZE"])):
            self.load(file)

    def load(self, file):
        return importlib.import_module(file.removesuffix(".py"))

    def find(self, world):
        self.names()
        return [test for file in self.files_of(world.workers)
                for test in cases_of(self.load(file), file)]

    def run(self, name, scratch):
        from suite import run_case
        self.names()
        file, _, method = name.partition(":")
        run_case(case_of(self.load(file), method))


class HorovodTorch(HorovodSuite):
    name = "horovod_torch"
    worlds = (World(1), *HorovodSuite.worlds)
    files = FILES

    def files_of(self, workers):
        return SINGLE if workers == 1 else FILES

    def python(self):
        return environment_value("PSKV_TORCH_PYTHON", "/usr/bin/python3")

    def ready(self):
        return super().ready() or (
            "" if imports(self.python(), "torch.distributed") else
            f"{self.python()} has no torch")

    def names(self):
        super().names()
        stand_ins.horovod("torch", "pskv.torch")
        stand_ins.module("horovod.torch.mpi_ops",
                         synchronize=sys.modules["pskv.torch"].synchronize)


SUITE = HorovodTorch
