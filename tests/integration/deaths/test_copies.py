# SPDX-License-Identifier: Apache-2.0
"""Jobs with replicas: 2 outlive the loss of a server with all its memory: their
results have the bits of a job in which nothing dies."""
import time

import pytest
from server_deaths import OPTIMIZERS, Training, undisturbed
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


def test_a_job_without_another_server_goes_on_alone(trio):
    t = trio(servers=2, agents=1)
    training = Training(t, "adam", workers=2, PSKV_REPLICAS=2)
    await_copies(t, 2)
    training.round()
    t.kill("ps1")
    training.round()
    assert t.ask("jobs")["jobs"][0]["copies"] == "alone 1 of 1"
    t.kill("ps0")
    training.say()
    for w in training.job:
        with pytest.raises(WorkerError, match="server ps0 was lost: .*; it had "
                                              "the only copy of 3 keys of job"):
            w.hear()
        w.end()


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
