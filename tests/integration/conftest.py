# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of real processes. The build directory comes in
PSKV_BUILD_DIR; a factor for slow builds (sanitizers) in PSKV_TEST_SLOW."""
import sys
import uuid
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import python_job  # noqa: E402
import trio as trio_module  # noqa: E402
from sshd import Sshd  # noqa: E402


@pytest.fixture
def tmp(tmp_path_factory):
    """A folder with a short name: Unix sockets allow 107 bytes."""
    import shutil
    import tempfile
    path = Path(tempfile.mkdtemp(prefix="pskv-test-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def trio(tmp):
    """Makes trios; ends all of them, and wants each daemon to end well."""
    made = []

    def make(**options):
        t = trio_module.Trio(tmp / f"trio{len(made)}", **options)
        made.append(t)
        t.start()
        return t

    yield make
    for t in made:
        t.stop()


@pytest.fixture
def world(trio):
    """Daemons, and jobs of scripts on them."""
    w = python_job.World(trio)
    yield w
    w.close()


@pytest.fixture
def sshd(tmp):
    """A daemon of ssh for HOSTS, whose home must be empty at the end."""
    folder = tmp / "sshd"
    folder.mkdir()
    one = Sshd(folder, mark=f"mark-{uuid.uuid4().hex}")
    yield one
    one.close()
    assert list(one.home.iterdir()) == []


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Shows the daemons' logs of a test that failed."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed and "tmp" in item.funcargs:
        for log in sorted(item.funcargs["tmp"].rglob("*.log")):
            text = log.read_text(errors="replace")
            if text:
                report.sections.append((log.name, text[-4000:]))


@pytest.fixture
def job(trio):
    """make(trio, workers, name): a job of Python's store, closed at the end."""
    jobs = []

    def make(t, workers, name="job"):
        jobs.append(python_job.Job(t, name, workers))
        return jobs[-1]

    yield make
    for one in jobs:
        one.close()
