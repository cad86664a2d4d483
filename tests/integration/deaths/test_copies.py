# SPDX-License-Identifier: Apache-2.0
"""Jobs with replicas: 2 outlive the loss of a server with all its memory: their
results have the bits of a job in which nothing dies."""
import time

import pytest
from python_job import finish, spawn
from server_deaths import OPTIMIZERS, Training, kill, undisturbed
from trio import Job, WorkerError, limit, wait_for


def filled(t):
    """Backups that have been filled so far."""
    return t.sched.text().count("backup filled: server")


def await_copies(t, count):
    wait_for(lambda: filled(t) >= count,
             f"{count} filled backups in the log of psched")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_lost_servers_change_no_bit(trio, optimizer):
    t = trio(servers=3, agents=2)
    training = Training(t, optimizer, PSKV_REPLICAS=2)
    times = []
    with training.job:
        await_copies(t, 3)
        assert t.ask("jobs")["jobs"][0]["copies"] == "two"
        training.round()
        for i in range(3):
            workers = training.job.workers
            begun = 2 * i % (len(workers) + 1)
            training.say(workers[:begun])
            before = filled(t)
            t.kill(f"ps{i}")
            began = time.monotonic()
            training.say(workers[begun:])
            training.hear()
            times.append(time.monotonic() - began)
            training.round()
            t.launch(f"ps{i}")
            # Of the two places that are left, and the new server is a spare one.
            await_copies(t, before + 2)
            training.round()
        digest = training.digest()
    texts = t.sched.text()
    assert texts.count("partitions moved from node") == 3, texts
    t.await_empty()
    print("seconds from a death to the values of its round:",
          " ".join(f"{s:.2f}" for s in times))
    clean = trio(servers=3, agents=2)
    assert (training.results, digest) == undisturbed(clean, optimizer,
                                                     len(training.results))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_both_processes_of_a_place_die_at_once(trio, optimizer):
    """A memory has copies of the other server's partitions, too: the one that takes
    over may die before it has heard of that."""
    t = trio(servers=2, agents=2, keep="store")
    training = Training(t, optimizer, PSKV_REPLICAS=2)
    with training.job:
        training.round()
        for i in range(4):
            wait_for(lambda: t.ask("jobs")["jobs"][0]["copies"] == "two",
                     "two copies of all partitions")
            training.say(training.job.workers[:i])
            servers = ["ps0", "ps1"] if i % 2 else ["ps1", "ps0"]
            for name in servers:
                t.daemons[name].process.kill()
            for name in servers:
                kill(t, name)
            training.say(training.job.workers[i:])
            training.hear()
            training.round()
        digest = training.digest()
    t.await_empty()
    clean = trio(servers=2, agents=2)
    assert (training.results, digest) == undisturbed(clean, optimizer,
                                                     len(training.results))


def test_a_job_without_another_server_goes_on_alone(trio):
    t = trio(servers=2, agents=1)
    training = Training(t, "adam", workers=2, PSKV_REPLICAS=2)
    await_copies(t, 2)
    training.round()
    t.kill("ps1")
    training.round()
    assert t.ask("jobs")["jobs"][0]["copies"] == "alone 1 of 1"
    code, out, _ = t.psctl("status")
    assert code == 3 and ", copies: alone 1 of 1\n" in out, out
    assert ("job job has no backup for 1 of 1 servers (replicas: 2): no other server "
            "fits") in out, out
    t.kill("ps0")
    training.say()
    for w in training.job:
        with pytest.raises(WorkerError, match="server ps0 was lost: .*; it had "
                                              "the only copy of 3 keys of job"):
            w.hear()
        w.end()


LOADED = """
import sys, pathlib, numpy as np, pskv
path, out = sys.argv[1:]
kv = pskv.create('dist_sync', replicas=2)
kv.set_optimizer('adam', learning_rate=.01)
w = np.arange(50000, dtype='f')
first = 0
if pathlib.Path(path).exists():
    first, w = 3, np.load(path + '.npy')
kv.init('w', w)
if first > 0:
    print('init', flush=True)
    sys.stdin.readline()
    kv.load_optimizer_states(path)
    print('loaded', flush=True)
    sys.stdin.readline()
for step in range(first, 6):
    if step == 3 and first == 0:
        kv.save_optimizer_states(path)
        np.save(path + '.npy', w)
    kv.pushpull('w', np.full(w.size, step + 1, 'f'), out=w)
w.tofile(out)
kv.close()
"""


def test_a_loaded_state_is_at_the_backup_too(trio, tmp):
    """The owner is lost when the worker has just heard that it is loaded."""
    for out in ("saved", "loaded"):
        t = trio(servers=2, agents=1)
        p = spawn(t, "loads", 0, LOADED, tmp / "states", tmp / out, workers=1)
        if out == "loaded":
            assert p.stdout.readline() == "init\n"
            await_copies(t, 2)
            p.stdin.write("\n")
            p.stdin.flush()
            assert p.stdout.readline() == "loaded\n"
            t.kill("ps0")
        finish([p])
    assert (tmp / "saved").read_bytes() == (tmp / "loaded").read_bytes()


def refusal(t, replicas=2, **env):
    job = Job(t, 1, open_now=False, PSKV_REPLICAS=replicas, **env)
    try:
        with pytest.raises(WorkerError) as refused:
            job.tell("open")
        return str(refused.value)
    finally:
        for w in job:
            w.end()


def test_jobs_that_have_no_copies_are_refused(trio):
    t = trio(servers=1, agents=1)
    assert "replicas: 2 is for jobs with rounds" in refusal(
        t, PSKV_MODE="dist_async", PSKV_RULE="accumulate")
    assert "replicas: 2 needs servers" in refusal(t, PSKV_NUM_SERVERS=0)
    assert "have 1/2 servers" in refusal(
        t, PSKV_START_TIMEOUT=f"{limit(1):.0f}s")
    assert "PSKV_REPLICAS" in refusal(t, "3")
