# SPDX-License-Identifier: Apache-2.0
"""A cluster on this host, and a job of train.py on it, for pictures of what
tools show of them."""
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def load_support(build):
    """tests/support/trio.py, for the programs of that build directory."""
    os.environ["PSKV_BUILD_DIR"] = str(Path(build).resolve())
    sys.path.insert(0, str(ROOT / "tests/support"))
    import trio  # pylint: disable=import-outside-toplevel
    return trio


@contextlib.contextmanager
def cluster(support, servers, agents, options=()):
    """Daemons, each with the options."""
    with tempfile.TemporaryDirectory() as folder:
        t = support.Trio(Path(folder) / "daemons", servers, agents,
                         options=["node.name=sched", *options],
                         server_options=options, agent_options=options)
        try:
            t.start()
            yield t
        finally:
            t.stop()


@contextlib.contextmanager
def job(support, t, name, workers, *words):
    """train.py with these words as ranks of a job, on the agents in turn; the
    job is over when the context ends."""
    processes = []
    try:
        for rank in range(workers):
            agent = rank * len(t.agent_names) // workers
            processes.append(subprocess.Popen(
                [sys.executable, str(HERE / "train.py"), *map(str, words)],
                env=support.clean_env(
                    PYTHONPATH=ROOT / "lib/client/python",
                    PYTHONDONTWRITEBYTECODE=1, PSKV_LIBRARY=support.LIBRARY,
                    PSKV_JOB=name, PSKV_SOCKET=t.socket(agent),
                    DMLC_NUM_WORKER=workers, DMLC_WORKER_ID=rank,
                    DMLC_NUM_SERVER=len(t.server_names), OMP_NUM_THREADS=1,
                    OPENBLAS_NUM_THREADS=1), text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for p in processes:
            if p.stdout.readline() != "trained\n":
                sys.exit("the training has failed")
        yield
        for p in processes:
            p.stdin.close()
        if any(p.wait(60) != 0 for p in processes):
            sys.exit("the training has failed at its end")
    finally:
        for p in processes:
            p.kill()
            p.wait()
