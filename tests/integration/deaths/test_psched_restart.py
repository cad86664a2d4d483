# SPDX-License-Identifier: Apache-2.0
"""A scheduler that is killed and restarted: training continues while it is
away; when it is back without its state, every rank of every job gets the
reason for the job's end, and the cluster accepts the next job without a
restart."""
import random
import signal

import pytest

import trio as harness
from psched_deaths import await_members, begin, kill, start, train
from trio import Job, WorkerError

# From the scheduler's return to the words at every rank, where processors are
# free; the tests leave room for machines that are busy.
WORDS_WITHIN = 5
SAYS = r"the scheduler was restarted and does not know job '%s'.*start the " \
       r"job again"


def expect_words(worker, job, seconds=WORDS_WITHIN):
    """The answers to the worker's open command and to this one."""
    for again in (False, True):
        if again:
            worker.say("barrier")
        with pytest.raises(WorkerError, match=SAYS % job):
            worker.hear(harness.limit(seconds * 3))


def drop(job):
    for w in job:
        w.kill()
        w.end()


def test_ranks_get_the_cause_and_the_next_job_begins(trio):
    t = trio(servers=2, agents=2)
    job, k = begin(t, "x")
    other, _ = begin(t, "y", PSKV_ON_LOSS="fail")
    kill(t)
    # Rounds need no scheduler.
    job.tell(f"rounds count 20 1 0 {k}")
    job[0].say(f"rounds count 1 1 0 {k}")  # Waits for the others.
    job[1].say("barrier")
    job[2].say("key fresh float32 100")
    other[0].say("barrier")
    start(t)
    for rank in (0, 1, 2):
        expect_words(job[rank], "x")
    expect_words(other[0], "y")
    # A process without a call in progress gets the error in its next call.
    for worker, name in ((job[3], "x"), (other[1], "y"), (other[3], "y")):
        worker.say("barrier")
        expect_words(worker, name)
    train(t, "x")
    drop(job)
    drop(other)
    t.await_empty()


@pytest.mark.parametrize("seed", range(4))
def test_members_register_in_any_order(trio, seed):
    """Node numbers of this scheduler differ from those of its predecessor,
    which servers remember."""
    t = trio(servers=2, agents=2)
    chance = random.Random(seed)
    names = t.server_names + t.agent_names
    train(t, "first")
    for turn in range(3):
        chance.shuffle(names)
        for name in names:
            t.daemons[name].process.send_signal(signal.SIGSTOP)
        kill(t)
        start(t)
        for name in names:
            t.daemons[name].process.send_signal(signal.SIGCONT)
            t.await_node(name, "state", "active")
        train(t, f"next{turn}")


def test_scheduler_and_server_die_together(trio):
    t = trio(servers=2, agents=2)
    job, k = begin(t, "x")
    job.say(f"rounds count 100000 1 0 {k}")
    kill(t)
    kill(t, "ps1")
    start(t)
    for w in job:
        expect_words(w, "x")
    start(t, "ps1")
    await_members(t)
    train(t, "next")
    drop(job)
    t.await_empty()


def test_scheduler_and_agent_die_together(trio):
    t = trio(servers=2, agents=2)
    job, k = begin(t, "x", PSKV_AGENT_RETRY="60s")
    job.say(f"rounds count 100000 1 0 {k}")
    kill(t)
    kill(t, "node1")
    start(t)
    start(t, "node1")
    for w in job:
        expect_words(w, "x")
    await_members(t)
    train(t, "next")
    drop(job)
    t.await_empty()


def test_a_job_that_forms_while_the_scheduler_is_away_begins(trio):
    t = trio(servers=1, agents=2)
    train(t, "first")
    kill(t)
    job = Job(t, 4, "x", open_now=False)
    job.say("open")
    start(t)
    job.hear()
    k = job.key("w", "float32", 100)
    job.tell(f"rounds count 3 1 0 {k}")
    job.close()
    t.await_empty()


def test_a_job_that_was_forming_forms_again(trio):
    """Its ranks wait to begin; their agents offer them to the next scheduler."""
    t = trio(servers=1, agents=2)
    job = Job(t, 4, "x", open_now=False)
    for rank in (0, 1, 3):
        job[rank].say("open")
    harness.wait_for(lambda: t.sched.text().count(" joined, ") == 3,
                     "three workers")
    kill(t)
    start(t)
    job[2].say("open")
    job.hear()
    k = job.key("w", "float32", 100)
    job.tell(f"rounds count 3 1 0 {k}")
    job.close()
    t.await_empty()


def test_optimizer_with_norms_waits_and_ends_with_an_error(trio):
    """The scheduler adds up norms of keys; all else of a step is the
    servers'."""
    t = trio(servers=2, agents=2)
    job = Job(t, 4, "x")
    job.tell("optimizer lamb learning_rate=0.01")
    k = job.key("w", "float32", 5000)
    zero = t.folder / "zero"
    zero.write_bytes(bytes(20000))
    job.tell(f"init {k} src={zero}")
    job.tell(f"rounds mixed 3 1 0 {k}")
    kill(t)
    job.say(f"rounds mixed 5 1 0 {k}")
    start(t)
    for w in job:
        expect_words(w, "x")
    train(t, "next")
    drop(job)
    t.await_empty()
