# SPDX-License-Identifier: Apache-2.0
"""pslaunch with supervisors started by mpirun, which itself reaches two
loopback addresses by a real sshd."""
import os
import shutil
import signal
import subprocess
import time
import uuid

import pytest
import trio as support
from launched import FAMILY, SHELL, Running, argv, marked
from sshd import HOSTS, SSHD, Sshd
from trio import SLOW, wait_for

pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("mpirun") is None,
    reason="there is no mpirun, or no sshd")

WORKER = str(support.BUILD / "tests/integration/integration_worker")
SPREAD = ("--launcher", "mpi", "--hosts", ",".join(HOSTS))


@pytest.fixture
def reach(tmp):
    """Environment of an mpirun that reaches the hosts."""
    folder = tmp / "sshd"
    folder.mkdir()
    one = Sshd(folder, mark=f"mark-{uuid.uuid4().hex}")
    yield {"OMPI_ALLOW_RUN_AS_ROOT": "1",  # Open MPI refuses root otherwise.
           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
           "OMPI_MCA_plm_rsh_agent": one.command,
           # Else one run removes a folder that the next one has just found.
           "OMPI_MCA_orte_tmpdir_base": str(one.home), "PSKV_MARK": one.mark}
    one.close()


def run(*words, env=None):
    done = subprocess.run(
        argv(*words), capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL, timeout=90 * SLOW,
        env=support.clean_env(**(env or {})))
    return done.returncode, done.stdout, done.stderr


def test_workers_of_two_hosts_train_together(reach):
    """The sums are those of all four ranks, and no rank takes itself for the
    only one of mpirun."""
    script = (f"printf 'open\\nkey w float32 1000\\nrounds count 3 1 0 0\\n"
              f"close\\n' | {WORKER}; env | grep -c ^OMPI_COMM_WORLD_ "
              "|| true")
    code, out, err = run("-n", "4", "-s", "2", *SPREAD, *SHELL, script,
                         env=reach)
    assert code == 0, (out, err)
    opened = sorted(line for line in out.split("\n")
                    if len(line.split()) == 6)
    assert opened == ["[127.0.0.2:0] ok 0 4 0 2", "[127.0.0.2:2] ok 2 4 1 2",
                      "[127.0.0.3:1] ok 1 4 0 2", "[127.0.0.3:3] ok 3 4 1 2"]
    results = {line.split(" ", 1)[1] for line in out.split("\n")
               if " ok " in line and len(line.split()) == 3 and
               len(line.split()[2]) == 16}
    assert len(results) == 1, out
    assert out.count("] 0\n") == 4


def test_the_first_failing_rank_is_named_last(reach):
    code, out, err = run(
        "-n", "2", "-s", "1", *SPREAD, *SHELL,
        "test $RANK != 1 && exec sleep 1000; echo broken gradient >&2; exit 7",
        env=reach)
    assert code == 7, (out, err)
    lines = [line for line in err.strip().split("\n") if line]
    assert lines[-1] == \
        "pslaunch: first to fail: rank 1 on 127.0.0.2 exited with code 7"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL],
                         ids=["interrupted", "killed"])
def test_the_end_of_pslaunch_leaves_nothing(reach, how):
    mark = reach["PSKV_MARK"]
    with Running("-n", "4", "-s", "2", *SPREAD, *SHELL, FAMILY, mark=mark,
                 env={k: v for k, v in reach.items() if k != "PSKV_MARK"}) as r:
        r.await_text(b"ready", 4)
        r.process.send_signal(how)
        assert r.wait() == (130 if how == signal.SIGINT else -signal.SIGKILL)
        begin = time.monotonic()
        wait_for(lambda: not marked(mark), f"end of {marked(mark)}")
        assert time.monotonic() - begin < 5 * SLOW


@pytest.mark.parametrize("text, want", [
    ("mpirun (Open MPI) 4.1.4", "mpirun -n 1 --bind-to none --host h1 /bin/sh"),
    ("HYDRA build details:", "mpirun -n 1 -hosts h1 /bin/sh")])
def test_the_command_is_that_of_the_kind_of_mpi(tmp, text, want):
    program = tmp / "mpirun"
    program.write_text(f"#!/bin/sh\necho '{text}'\n")
    program.chmod(0o755)
    code, out, err = run("-n", "1", *SPREAD[:2], "--hosts", "h1", "--dry-run",
                         "true", env={"PATH": f"{tmp}:{os.environ['PATH']}"})
    assert code == 0, err
    assert f"\n  {want} -c " in out


def test_without_mpi_the_reason_is_named(tmp):
    program = tmp / "mpirun"
    program.write_text("#!/bin/sh\necho something else\n")
    program.chmod(0o755)
    code, _, err = run("-n", "1", *SPREAD, "true",
                       env={"PATH": f"{tmp}:{os.environ['PATH']}"})
    assert code == 69
    assert "there is no mpirun of Open MPI or MPICH in PATH" in err
