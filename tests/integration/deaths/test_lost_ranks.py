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


# Rank 1 ends between two keys in its step 5, if it has not been started again.
STEPS = """
kv = pskv.create('dist_sync')
f = lambda: np.ones(4, 'float32')
kv.init('a', f())
kv.init('b', f())
try:
    for step in range(1, 9):
        kv.pushpull('a', f(), out=f())
        if kv.rank == 1 and step == 5 and len(sys.argv) == 1:
            os.kill(os.getpid(), 9)
        kv.pushpull('b', f(), out=f())
except pskv.Error as e:
    print(e)
"""


def test_a_rank_that_is_started_again_within_a_step_is_refused_in_words(
        world):  # noqa: F811
    """It begins at the first key, whose round waits for the others, and these
    wait for its round of the second key: all ranks get both."""
    world.start(1, 2)
    j = world.job(4)
    j.python(STEPS, PSKV_ON_LOSS="wait")
    j.processes[1].wait(timeout=6 * harness.PATIENCE)
    t = world.trio

    # The others wait in the round that it has not reached.
    def wait_in_b():
        return any("b" in row["what"].split()
                   for row in t.ask("stall")["stalls"])
    harness.wait_for(wait_in_b, "ranks that wait for rank 1")
    j.python(STEPS.replace("len(sys.argv) == 1", "False"), ranks=[1],
             PSKV_ON_LOSS="wait")
    for rank in (1, 0, 2, 3):
        code, out, err = j.wait(rank)
        assert code == 0, (rank, out, err)
        assert ("rank 1 was started again and begins with round 6 of 'a', and "
                "the others wait for its round 5 of 'b', in which its "
                "predecessor ended: start all ranks again") in out, (rank, out)


def test_both_sides_of_a_rank_that_is_started_again_are_named(
        world):  # noqa: F811
    """Each rank has its own node, so only the scheduler sees both waits."""
    t = world.trio = world.make(servers=1, agents=3,
                                options=["failure.diverged_after=5s"])
    j = world.job(3)
    j.python(STEPS, PSKV_ON_LOSS="wait")
    j.processes[1].wait(timeout=6 * harness.PATIENCE)
    harness.wait_for(
        lambda: any("b" in row["what"].split()
                    for row in t.ask("stall")["stalls"]),
        "ranks that wait for rank 1")
    j.python(STEPS.replace("len(sys.argv) == 1", "False"), ranks=[1],
             PSKV_ON_LOSS="wait")
    words = ("rank 1 was lost and taken again: a process that takes a rank "
             "must begin with the round in which its predecessor ended, or all "
             "ranks start again, from a checkpoint")

    def ring():
        rows = [r for r in t.ask("stall")["stalls"] if r["diverged"]]
        return rows[0] if rows and len(rows[0]["ring"]) == 3 else None

    row = harness.wait_for(ring, "both sides in psctl stall", step=0.2)
    does = [one["does"] for one in row["ring"]]
    assert does == ["in pushpull of b round 5", "in pushpull of a round 6",
                    "in pushpull of b round 5"]
    assert row["also"] == words and words not in row["what"]
    _, out, _ = t.psctl("stall")
    assert "in pushpull of b round 5" in out
    assert "in pushpull of a round 6" in out and words in out, out
    assert words in t.psctl("status")[1]
    for rank in range(3):
        code, out, err = j.wait(rank)
        assert code == 0, (rank, out, err)
        assert "DIVERGED: ranks 0,2 are in pushpull of b round 5" in out, out
        assert words in out, (rank, out)
