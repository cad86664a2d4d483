# SPDX-License-Identifier: Apache-2.0
"""Jobs that wait for lost ranks: the workers that continue meanwhile, the
processes that may take a rank again, and the end if none does."""
import pytest

import trio as harness
from trio import Job, WorkerError

ASYNC = {"PSKV_MODE": "async", "PSKV_RULE": "accumulate",
         "PSKV_AGENT_RETRY": "60s"}


def kill(trio, name):
    trio.daemons[name].stop(harness.Deadline(), kill=True)


def start(trio, name):
    trio.launch(name).await_ready(harness.Deadline())


def drop(*workers):
    for w in workers:
        w.kill()
        w.end()


def ones(t, job):
    """A key of zeros, and the array that a push adds to it."""
    k = job.key("w", "int64", 100)
    zero, one = t.folder / "zero", t.folder / "one"
    zero.write_bytes(bytes(800))
    one.write_bytes((1).to_bytes(8, "little") * 100)
    job.tell(f"init {k} src={zero}")
    return k, one


def test_an_async_job_goes_on_without_an_agent(trio):
    """Processes of the lost agent's node end with a text; others continue, and
    new processes take their ranks at the agent that is started there."""
    t = trio(servers=1, agents=2)
    job = Job(t, 4, **ASYNC)
    k, one = ones(t, job)
    kill(t, "node1")
    job[0].ask(f"push {k} src={one}")
    job[1].ask(f"push {k} src={one}")
    start(t, "node1")
    for rank in (2, 3):
        with pytest.raises(WorkerError, match="the agent closed the "
                                              "connection"):
            job[rank].ask("barrier")
    job[0].say("barrier")
    job[1].say("barrier")
    drop(job[2], job[3])
    for rank in (2, 3):
        job.workers[rank] = job.make(rank, 1)
        job[rank].ask("open")
        job[rank].key("w", "int64", 100)
        job[rank].say("barrier")
    for w in job:
        w.hear()
    out = t.folder / "out"
    job[3].ask(f"pull {k} out={out}")
    assert out.read_bytes() == (2).to_bytes(8, "little") * 100
    job.close()
    t.await_empty()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_lost_rank_without_a_successor_ends_the_job(trio, mode):
    t = trio(servers=1, agents=2, options=["registration.rejoin_timeout=2s"])
    env = ASYNC if mode == "async" else {}
    job = Job(t, 4, **env)
    job[0].say("barrier")
    drop(job[3])
    with pytest.raises(WorkerError,
                       match=r"rank 3 on .* was lost .* no process has taken "
                             r"it again .*start the job again"):
        job[0].hear()
    drop(job[0], job[1], job[2])
    with Job(t, 4, "next") as job:
        job.tell("barrier")
    t.await_empty()
