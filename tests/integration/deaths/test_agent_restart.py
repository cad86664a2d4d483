# SPDX-License-Identifier: Apache-2.0
"""Agents that die under their workers: the next one on the socket takes them
up, and no value is another one than if nothing had happened."""

import numpy as np
import pytest

import trio as harness
from trio import Job, WorkerError

from test_collectives_loss import LOOP, make_world  # noqa: F401

LIMIT = {"PSKV_AGENT_RETRY": "120s", "PSKV_OP_TIMEOUT": "120s"}
PATIENT = ["registration.rejoin_grace=300s"]
COUNT = 100


def rounds(trio, name, kills, killing, optimizer=None):
    """Hashes over all results of rounds of many keys, during which these
    agents are replaced one after the other."""
    with Job(trio, 4, name, PSKV_PARTITION_BYTES=4096, **LIMIT) as job:
        if optimizer is not None:
            job.tell(f"optimizer {optimizer}")
        keys = [job.key(f"k{i}", "float32", 7 + 911 * i) for i in range(9)]
        if optimizer is not None:
            for i, k in enumerate(keys):
                zero = trio.folder / f"zero{i}"
                np.zeros(7 + 911 * i, "f").tofile(zero)
                job.tell(f"init {k} src={zero}")
        seen = []
        for agent in kills:
            job.say(f"rounds mixed {COUNT} 5 400 " + " ".join(map(str, keys)))
            if killing:
                trio.replace(agent)
            seen.append({words[-1] for words in job.hear()})
    assert all(len(hashes) == 1 for hashes in seen)
    return [hashes.pop() for hashes in seen]


@pytest.mark.parametrize("optimizer", [None, "adam learning_rate=0.01"])
def test_rounds_continue_with_the_same_bits(trio, optimizer):
    t = trio(servers=2, agents=2, options=PATIENT)
    kills = ["node0", "node1", "node1", "node0"]
    shaken = rounds(t, "shaken", kills, True, optimizer)
    # The death of an agent between two rounds is not noticed.
    assert t.sched.text().count("taken again") >= 2
    assert shaken == rounds(t, "still", kills, False, optimizer)


def test_rounds_survive_the_loss_of_all_agents(trio):
    t = trio(servers=2, agents=2, options=PATIENT)
    with Job(t, 4, **LIMIT) as job:
        k = job.key("w", "int64", 5000)
        job.say(f"rounds count {COUNT} 1 400 {k}")
        for name in t.agent_names:
            t.kill(name)
        for name in t.agent_names:
            t.launch(name).await_ready(harness.Deadline())
        assert len({words[-1] for words in job.hear()}) == 1
        # The same without a call in progress: departures reach the next agent.
        for name in t.agent_names:
            t.replace(name)
        job.tell("barrier")
        t.replace("node1")
    t.await_empty()


def test_collectives_survive_the_loss_of_an_agent(make_world):  # noqa: F811
    w = make_world(servers=2, agents=2, options=PATIENT)
    job = w.job(4)
    job.python(LOOP.replace("ROUNDS", "25").replace("FIRST", "2"),
               PSKV_PARTITION_BYTES=4096, **LIMIT)
    for rank in range(4):
        assert job.line(rank) == "ready"
    assert job.line(0) == "on the way"
    for name in ("node1", "node0"):
        w.trio.replace(name)
    assert {out.splitlines()[-1] for out in job.wait_all()} == {"well"}


MIXED = """
    kv = pskv.create()
    r, n = kv.rank, kv.num_workers
    group = kv.group([1, 3], name='odd') if r % 2 else None
    for i in range(150):
        a = np.full(3000, r + i, 'f')
        kv.push('w', a)
        out = np.empty_like(a)
        kv.pull('w', out=out)
        assert (out == n * (n - 1) / 2 + n * i).all(), (i, out[0])
        kv.barrier()
        if group is not None:
            b = np.full(50, r, 'int64')
            group.allreduce(b)
            assert (b == 4).all()
        if i == 5:
            print('on the way', flush=True)
    print('well', kv.stats()['resumes'])
    """


def test_groups_and_barriers_survive_a_lost_agent(make_world):  # noqa: F811
    w = make_world(servers=2, agents=2, options=PATIENT)
    job = w.job(4)
    job.python(MIXED, **LIMIT)
    for rank in range(4):
        assert job.line(rank) == "on the way"
    for name in ("node0", "node1"):
        w.trio.replace(name)
    ends = [out.splitlines()[-1] for out in job.wait_all()]
    assert all(e.startswith("well ") for e in ends), ends


def test_a_rank_that_does_not_return_is_named(trio):
    t = trio(servers=1, agents=2)
    job = Job(t, 2, PSKV_AGENT_RETRY="1s")
    k = job.key("w", "int64", 100)
    job.tell(f"rounds count 3 1 0 {k}")
    t.kill("node1")
    with pytest.raises(WorkerError, match="node1.sock") as e:
        job[1].ask("barrier")
    assert e.value.code == -8
    for w in job:
        w.kill()
        w.end()


def test_a_new_process_at_a_new_agent_is_refused(trio):
    """No process knows the rounds of the dead worker."""
    t = trio(servers=1, agents=2, options=PATIENT)
    job = Job(t, 4, **LIMIT)
    k = job.key("w", "int64", 100)
    job.tell(f"rounds count 3 1 0 {k}")
    job[3].kill()
    job[3].end()
    t.replace("node1")
    job.workers[3] = job.make(3, 1)
    with pytest.raises(WorkerError, match="node1 was restarted"):
        job[3].ask("open")
    for rank in (0, 1, 2):
        with pytest.raises(WorkerError, match="start the job"):
            job[rank].ask("barrier")
    for w in job:
        w.kill()
        w.end()
