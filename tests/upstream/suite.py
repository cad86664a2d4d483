# SPDX-License-Identifier: Apache-2.0
"""Tests of another project as a suite: a subclass of Suite, called SUITE in
its module, tells the runner which tests there are, and runs one of them on a
rank of a job. The runner has one interpreter, the ranks have another: modules
of suites import what they test in find() and run() only."""
import os
import subprocess
import unittest
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class World:
    """The shape of a job."""
    workers: int
    servers: int = 0
    nodes: int = 1

    @property
    def name(self):
        text = f"{self.workers}x{self.servers}"
        return text if self.nodes == 1 else f"{text}/{self.nodes}"


@dataclass(frozen=True)
class Test:
    """One test. `skip` is the project's own reason not to run it, if that is
    known without a job; `limit` is in seconds."""
    name: str
    skip: str = ""
    limit: float = 0


class Suite:
    """What the runner and the ranks need to know of a suite."""

    name = ""
    worlds = (World(2),)
    limit = 60.0
    # The option of the runner that names the folder of the checkout.
    checkout = ""

    def __init__(self, folder=""):
        self.folder = Path(folder) if folder else None

    # ------------------------------------------------- asked by the runner

    def python(self):
        """The interpreter of listing and of the ranks."""
        return "/usr/bin/python3"

    def ready(self):
        """Why the suite cannot run; empty if it can."""
        if self.checkout and not (self.folder and self.folder.is_dir()):
            return f"--{self.checkout} DIR names no folder"
        return ""

    def environment(self, world):
        """Further variables of listing and of the ranks."""
        return {}

    # ------------------------------------- asked in the suite's interpreter

    def prepare(self):
        """Imports what all tests need, before a process is forked for each.
        Nothing of it may join a job."""

    def find(self, world):
        """All tests of the suite in a world, as Test."""
        raise NotImplementedError

    def run(self, name, scratch):
        """Runs a test on this rank; returns if it passed, raises
        unittest.SkipTest or the error. `scratch` is a folder that all ranks
        of this run share."""
        raise NotImplementedError


def environment_value(name, default):
    return os.environ.get(name) or default


def imports(python, module):
    """Whether an interpreter has a module."""
    try:
        return subprocess.run([str(python), "-c", f"import {module}"],
                              capture_output=True, check=False,
                              timeout=300).returncode == 0
    except OSError:
        return False


def skip_of_unittest(cls, method):
    """The reason of unittest.skip on a class or on one of its tests."""
    for what in (cls, getattr(cls, method)):
        if getattr(what, "__unittest_skip__", False):
            return getattr(what, "__unittest_skip_why__", "") or "skipped"
    return ""


def run_case(case):
    """Runs a unittest.TestCase with the fixtures of its class."""
    result = unittest.TestResult()
    unittest.TestSuite([case]).run(result)
    for _, text in result.errors + result.failures:
        raise AssertionError(text)
    for _, reason in result.skipped:
        raise unittest.SkipTest(reason)
    if result.testsRun != 1:
        raise AssertionError(f"{result.testsRun} tests ran")


def cases_of(module, prefix):
    """Tests of the unittest classes that a module defines or inherits."""
    for cls in vars(module).values():
        if not isinstance(cls, type) or cls.__module__ != module.__name__ or \
                not issubclass(cls, unittest.TestCase):
            continue
        for method in unittest.TestLoader().getTestCaseNames(cls):
            yield Test(f"{prefix}:{method}", skip_of_unittest(cls, method))


def case_of(module, method):
    for cls in vars(module).values():
        if isinstance(cls, type) and cls.__module__ == module.__name__ and \
                issubclass(cls, unittest.TestCase) and hasattr(cls, method):
            return cls(method)
    raise LookupError(f"{module.__name__} has no test {method}")
