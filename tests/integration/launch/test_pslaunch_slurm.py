# SPDX-License-Identifier: Apache-2.0
"""pslaunch inside an allocation of a real Slurm with two virtual nodes."""
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest
import trio as support
from launched import FAMILY, SHELL, argv, children_of, launch, marked
from slurm import MISSING, PROGRAMS, Slurm
from trio import limit, wait_for

WORKER = str(support.BUILD / "tests/integration/integration_worker")
needs_slurm = pytest.mark.skipif(MISSING, reason="there is no Slurm, or no root")


@pytest.fixture
def slurm(tmp):
    folder = tmp / "slurm"
    folder.mkdir()
    one = Slurm(folder)
    one.mark = f"mark-{uuid.uuid4().hex}"
    # Virtual nodes have no names that resolve.
    (folder / "hosts").write_text("n1 address=127.0.0.2\n"
                                  "n2 address=127.0.0.3\n")
    yield one
    one.close()


def start(slurm, *words):
    return subprocess.Popen(
        [PROGRAMS["salloc"], "-Q", "-N", "2", *argv(
            "--launcher", "slurm", "-H", str(slurm.tmp / "hosts"),
            *words)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
        env={**slurm.env, "PSKV_MARK": slurm.mark})


def assert_ends_in_time(slurm):
    """All but salloc itself."""
    begin = time.monotonic()
    wait_for(lambda: not marked(slurm.mark), f"end of {marked(slurm.mark)}")
    assert time.monotonic() - begin < limit(5)


@needs_slurm
def test_workers_of_two_nodes_train_together(slurm):
    """No rank takes itself for the only one of srun."""
    script = (f"printf 'open\\nkey w float32 1000\\nrounds count 3 1 0 0\\n"
              f"close\\n' | {WORKER}; env | grep -c ^SLURM_ || true")
    p = start(slurm, "-n", "4", "-s", "2", *SHELL, script)
    out, err = p.communicate(timeout=limit(60))
    assert p.returncode == 0, (out, err)
    opened = sorted(line for line in out.split("\n")
                    if len(line.split()) == 6)
    assert opened == ["[n1:0] ok 0 4 0 2", "[n1:2] ok 2 4 1 2",
                      "[n2:1] ok 1 4 0 2", "[n2:3] ok 3 4 1 2"]
    assert out.count("] 0\n") == 4


@needs_slurm
def test_the_first_failing_rank_is_named_last(slurm):
    p = start(slurm, "-n", "2", "-s", "1", *SHELL,
              "test $RANK != 1 && exec sleep 1000; exit 7")
    out, err = p.communicate(timeout=limit(60))
    assert p.returncode == 7, (out, err)
    assert "pslaunch: first to fail: rank 1 on n1 exited with code 7\n" in err
    assert_ends_in_time(slurm)


@needs_slurm
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL],
                         ids=["interrupted", "killed"])
def test_the_end_of_pslaunch_leaves_nothing(slurm, how):
    p = start(slurm, "-n", "4", "-s", "2", *SHELL, FAMILY)
    for _ in range(4):
        assert "ready" in p.stdout.readline()
    front = children_of(p.pid)
    assert len(front) == 1
    os.kill(front[0], how)
    assert_ends_in_time(slurm)
    p.communicate(timeout=limit(60))


@needs_slurm
def test_a_killed_connection_ends_the_job(slurm):
    """The srun that is connected to the second node."""
    p = start(slurm, "-n", "4", "-s", "2", *SHELL, FAMILY)
    for _ in range(4):
        assert "ready" in p.stdout.readline()
    own = p.pid  # salloc, then three processes of pslaunch.
    for _ in range(3):
        (own,) = children_of(own)
    programs = children_of(own)
    assert len(programs) == 2
    # The numbers of processes begin again after the last one.
    [second] = [p for p in programs if b"--nodelist=n2\0" in
                Path(f"/proc/{p}/cmdline").read_bytes()]
    os.kill(second, signal.SIGKILL)
    assert_ends_in_time(slurm)
    _, err = p.communicate(timeout=limit(60))
    assert p.returncode == 69, err
    assert ("lost the host n2: the connection to its supervisor has "
            "ended") in err


def test_hosts_are_the_nodes_of_the_allocation():
    code, out, err = launch("-n", "3", "-s", "1", "--launcher", "slurm",
                            "--dry-run", "true",
                            env={"SLURM_JOB_NODELIST": "n[01-02],m7"})
    assert code == 0, err
    assert [line for line in out.split("\n") if line.startswith("host ")] == \
        ["host n01:", "host n02:", "host m7:"]
    assert " srun --nodes=1 --ntasks=1 " in out and "--nodelist=n02 " in out


def test_without_an_allocation_hosts_are_needed():
    code, _, err = launch("-n", "3", "--launcher", "slurm", "true")
    assert code == 2 and "the launcher slurm needs hosts" in err
