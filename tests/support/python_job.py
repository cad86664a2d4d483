# SPDX-License-Identifier: Apache-2.0
"""Training processes in Python on the daemons of a trio: a job of scripts, or
single processes."""
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio as harness
from trio import LIBRARY, PACKAGE

# Of the package dataset-fashion-mnist.
DATA = Path("/usr/share/datasets/fashion-mnist")
PRELUDE = """
import os, sys, time
import numpy as np
import pskv
"""
PRELUDE_WITHOUT_NUMPY = """
import os, sys, time
sys.modules['numpy'] = None  # Importing it fails.
import pskv
"""


def environment(trio, job, rank, ranks, **more):
    """Variables of a rank of a job, whose ranks are spread over the agents."""
    agent = rank * len(trio.agent_names) // ranks
    return harness.clean_env(**{
        "PYTHONPATH": PACKAGE, "PYTHONUNBUFFERED": 1,
        "PYTHONDONTWRITEBYTECODE": 1, "PSKV_LIBRARY": LIBRARY,
        "PSKV_JOB": job, "PSKV_SOCKET": trio.socket(agent),
        "DMLC_NUM_WORKER": ranks, "DMLC_NUM_SERVER": len(trio.server_names),
        "DMLC_WORKER_ID": rank, "OMP_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1, **more})


class Job:
    """Workers of one job: Python text, or a program, one process a rank."""

    def __init__(self, trio, job, workers):
        self.trio = trio
        self.job = job
        self.workers = workers
        self.processes = {}

    def start(self, rank, command, **more):
        env = environment(self.trio, self.job, rank, self.workers,
                          **{"PSKV_ON_LOSS": "wait", **more})
        self.processes[rank] = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)

    def python(self, text, ranks=None, numpy=True, **more):
        text = (PRELUDE if numpy else PRELUDE_WITHOUT_NUMPY) + \
            textwrap.dedent(text)
        for rank in range(self.workers) if ranks is None else ranks:
            self.start(rank, [sys.executable, "-c", text], **more)

    def line(self, rank):
        """The next line a worker prints."""
        return self.processes[rank].stdout.readline().strip()

    def wait(self, rank):
        """How a worker ended: code, output, errors. Training takes longer than
        an operation, on a busy machine."""
        process = self.processes[rank]
        try:
            out, err = process.communicate(timeout=6 * harness.PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            pytest.fail("waited for the end of rank %d: %s%s" % (
                rank, *process.communicate()))
        return process.returncode, out, err

    def wait_all(self):
        """Outputs of all; every one must have ended well."""
        outs = []
        for rank in sorted(self.processes):
            code, out, err = self.wait(rank)
            assert code == 0, f"rank {rank}: {err}"
            outs.append(out)
        return outs

    def close(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()


class World:
    def __init__(self, make):
        self.make = make
        self.trio = None
        self.jobs = []

    def start(self, servers, agents):
        self.trio = self.make(servers=servers, agents=agents)
        return self

    def job(self, workers, name="job"):
        job = Job(self.trio, name, workers)
        self.jobs.append(job)
        return job

    def close(self):
        for job in self.jobs:
            job.close()


def spawn(t, job, rank, text, *arguments, workers=2, **more):
    env = environment(t, job, rank, workers,
                      **{"PSKV_PARTITION_BYTES": 4096, **more})
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)], env=env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)


def finish(workers):
    """Their output; they must end without an error."""
    try:
        said = []
        for w in workers:
            out, err = w.communicate(timeout=harness.PATIENCE)
            assert w.returncode == 0, err
            said.append(out)
        return said
    finally:
        for w in workers:
            if w.poll() is None:
                w.kill()
                w.wait()
