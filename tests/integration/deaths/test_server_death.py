# SPDX-License-Identifier: Apache-2.0
"""Servers whose process dies under a job, and whose memory outlives it: the
next process goes on, and no value is another one than if nothing had
happened."""
import os
import random
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import trio as support
from launched import Running, marked
from trio import Job, WorkerError, wait_for

LIMIT = {"PSKV_OP_TIMEOUT": "120s", "PSKV_PARTITION_BYTES": "4096"}
SIZES = [7 + 911 * i for i in range(9)]
OPTIMIZERS = {
    "sums": None,
    "momentum": "sgd learning_rate=0.01 momentum=0.9",
    "adam": "adam learning_rate=0.01",
}


def child_of(daemon):
    """The process that serves, below the keeper."""
    return wait_for(daemon.kept, f"a process of {daemon.name}")


def declare(job, folder, optimizer):
    """Keys with values."""
    if optimizer is not None:
        job.tell(f"optimizer {optimizer}")
    keys = [job.key(f"k{i}", "float32", size)
            for i, size in enumerate(SIZES)]
    for key, size in zip(keys, SIZES):
        zero = folder / f"zero{size}"
        np.zeros(size, "f").tofile(zero)
        job.tell(f"init {key} src={zero}")
    return " ".join(map(str, keys))


def rounds(t, name, optimizer, disturb, phases=6, count=60, **options):
    """Hashes over all results of rounds, while `disturb` does what it does."""
    with Job(t, 4, name, **LIMIT, **options) as job:
        keys = declare(job, t.folder, optimizer)
        seen = []
        for phase in range(phases):
            job.say(f"rounds mixed {count} 5 400 {keys}")
            disturb(phase)
            seen.append({words[-1] for words in job.hear()})
    assert all(len(hashes) == 1 for hashes in seen)
    return [hashes.pop() for hashes in seen]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_killed_servers_change_no_bit(trio, name):
    """Each phase one of two servers is killed, at a random time, and now and
    then both, or one again before the job has heard of the next process."""
    t = trio(servers=2, agents=2, keep="keeper")
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    killed = []

    def kill(phase):
        support.be_slow(rng.random() * 0.1)
        for daemon in rng.sample(t.servers(), rng.choice([1, 1, 2])):
            killed.append(child_of(daemon))
            os.kill(killed[-1], signal.SIGKILL)
        if phase % 3 == 2:
            wait_for(lambda: child_of(daemon) != killed[-1], "the next process")
            os.kill(child_of(daemon), signal.SIGKILL)

    shaken = rounds(t, "shaken", OPTIMIZERS[name], kill)
    log = t.sched.text()
    assert log.count("is back with its memory") >= 6, log
    assert shaken == rounds(t, "still", OPTIMIZERS[name], lambda phase: None)
    t.await_empty()


def test_a_job_that_waits_says_so_and_ends_in_the_end(trio):
    """The keeper and its child are dead, and nobody starts the server."""
    t = trio(servers=1, agents=1, keep="keeper",
             options=["failure.server_return=3s"])
    with Job(t, 1, **LIMIT) as job:
        keys = declare(job, t.folder, OPTIMIZERS["adam"])
        job.tell(f"rounds mixed 1 5 0 {keys}")
        job.say(f"rounds mixed 1 5 0 {keys}")
        job.hear()
        t.kill("ps0")
        job.say(f"rounds mixed 100 5 0 {keys}")
        wait_for(lambda: "waits for server ps0, which has the only copy of 9 "
                 "keys (" in t.psctl("status")[1], "the wait in psctl status")
        assert "start it on the same host as before" in t.psctl("doctor")[1]
        with pytest.raises(WorkerError, match="server ps0 was lost: .*; it had "
                           "the only copy of 9 keys of job job, and did not "
                           "come back within 3 s"):
            job.hear()
        assert " waits " in t.psctl("events")[1]


def test_a_server_without_a_keeper_ends_jobs_at_once(trio):
    t = trio(servers=1, agents=1)
    with Job(t, 1, **LIMIT) as job:
        keys = declare(job, t.folder, OPTIMIZERS["adam"])
        job.tell(f"rounds mixed 1 5 0 {keys}")
        begin = time.monotonic()
        t.kill("ps0")
        job.say(f"rounds mixed 100 5 0 {keys}")
        with pytest.raises(WorkerError, match="; a server comes back with it "
                           "that is started with --keep"):
            job.hear()
        assert time.monotonic() - begin < support.limit(5)


# ------------------------------------------------------------------ pslaunch

WORKER = support.BUILD / "tests/integration/integration_worker"
# A worker of one key, which waits in between until the test opens the fifo.
TRAIN = (f"(printf 'open\\noptimizer adam learning_rate=0.01\\n"
         f"key w float32 5000\\ninit 0 src=%s\\nrounds mixed 5 1 0 0\\n' "
         f"$PSKV_TEST_DIR/zero; cat $PSKV_TEST_DIR/go; "
         f"printf 'rounds mixed 5 1 0 0\\nclose\\n') | {WORKER}")


def hashes(text):
    return re.findall(rb" ok ([0-9a-f]{16})\n", text)


@pytest.mark.parametrize("tls", ["off", "on"])
def test_pslaunch_starts_servers_that_come_back(tmp, tls):
    """The certificate, too, is that of the process before."""
    results = []
    for killing in (False, True):
        folder = tmp / f"job{killing}"
        folder.mkdir()
        np.zeros(5000, "f").tofile(folder / "zero")
        os.mkfifo(folder / "go")
        with Running("-n", "2", "-s", "1", "--private", "--tls", tls,
                     "bash", "-c", TRAIN,
                     env={"PSKV_TEST_DIR": str(folder)}) as r:
            gate = os.open(folder / "go", os.O_RDWR)
            wait_for(lambda: len(hashes(r.text["out"])) == 2, "the first rounds")
            if killing:
                serving = [pid for pid, _ in marked(r.mark)
                           if Path(f"/proc/{pid}/comm").read_text() ==
                           "psserver\n"]
                assert len(serving) == 1
                os.kill(serving[0], signal.SIGKILL)
            (folder / "go").unlink()
            os.close(gate)
            assert r.wait() == 0, r.text["err"]
            results.append(sorted(hashes(r.text["out"])))
            killed = b"was killed by signal 9" in r.text["err"]
            assert killed == killing, r.text["err"]
    assert len(results[0]) == 4 and results[0] == results[1]


# ----------------------------------------------------------- service manager

def test_a_stop_under_a_service_manager_waits_for_no_job(trio):
    """The end in good order is a restart to the job, as the manager has the
    memory."""
    t = trio(servers=2, agents=2, keep="store")

    def stop(phase):
        name = f"ps{phase % 2}"
        begin = time.monotonic()
        assert t.daemons[name].stop(support.Deadline()) == 0
        assert time.monotonic() - begin < support.limit(5)
        t.launch(name)

    shaken = rounds(t, "shaken", OPTIMIZERS["adam"], stop)
    assert t.sched.text().count("is back with its memory") == 6
    assert shaken == rounds(t, "still", OPTIMIZERS["adam"], lambda phase: None)
