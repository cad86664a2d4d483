# SPDX-License-Identifier: Apache-2.0
"""The death of a killed daemon is detected at once, long before its lease
ends: its connection breaks, and its port refuses connections."""
import time

import pytest
import trio as support
from trio import Job, WorkerError

# Below any lease: here these last 30 s.
SOON = support.limit(5)


def test_killed_server_changes_no_sum(trio):
    """Another one takes over, to the same sums."""
    t = trio(servers=2, agents=2)
    with Job(t, 2) as job:
        keys = [job.key(f"k{i}", "float32", 100_000) for i in range(4)]
        names = " ".join(str(k) for k in keys)
        before = job.tell(f"rounds mixed 1 1 0 {names}")
        began = time.monotonic()
        t.servers()[1].stop(support.Deadline(), kill=True)
        assert job.tell(f"rounds mixed 1 1 0 {names}") == before
        assert time.monotonic() - began < SOON
    assert "its process has ended" in t.sched.text()


def test_killed_server_with_an_optimizer_fails_the_job(trio):
    """Every worker gets the error."""
    t = trio(servers=2, agents=2)
    with Job(t, 2) as job:
        path = t.folder / "zeros"
        path.write_bytes(bytes(400_000))
        k = job.key("w", "float32", 100_000)
        job.tell(f"init {k} src={path}")
        job.tell("sgd learning_rate=0.1")
        job.tell(f"rounds mixed 1 1 0 {k}")
        began = time.monotonic()
        t.servers()[1].stop(support.Deadline(), kill=True)
        for w in job:
            w.say(f"rounds mixed 1000000 1 0 {k}")
        for w in job:
            with pytest.raises(WorkerError, match="ps1"):
                w.hear()
        assert time.monotonic() - began < SOON


def test_killed_agent_fails_jobs_with_policy_fail(trio):
    """Workers on other nodes get the lost ranks."""
    t = trio(servers=1, agents=2)
    with Job(t, 2, PSKV_ON_LOSS="fail", PSKV_AGENT_RETRY="0s") as job:
        k = job.key("w", "float32", 1000)
        job.tell(f"rounds mixed 1 1 0 {k}")
        began = time.monotonic()
        t.agents()[1].stop(support.Deadline(), kill=True)
        job[0].say(f"rounds mixed 1000000 1 0 {k}")
        with pytest.raises(WorkerError, match="rank 1"):
            job[0].hear()
        assert time.monotonic() - began < SOON
        assert "its process has ended" in t.sched.text()
        job[1].kill()


def liveness_ports(t):
    """Ports by the names of agents, as psctl shows them."""
    return {n["name"]: int(n["address"].rpartition(":")[2])
            for n in t.ask("nodes")["nodes"] if n["role"] == "agent"}


def test_liveness_ports_are_the_first_free_ones(trio):
    t = trio(servers=0, agents=2, agent_options=["listen.port=auto"])
    ports = liveness_ports(t)
    assert len(set(ports.values())) == 2
    assert all(9156 <= port < 9156 + 64 for port in ports.values()), ports
    assert str(ports["node0"]) in t.psctl("nodes")[1]


def test_a_stated_liveness_port_is_taken(trio):
    """Without the port the agent works, and logs that it is missing."""
    with support.reserve_port() as kept:
        port = kept.getsockname()[1]
        t = trio(servers=0, agents=2, agent_options=[f"listen.port={port}"])
        rows = {n["name"]: n["address"] for n in t.ask("nodes")["nodes"]
                if n["role"] == "agent"}
        assert sorted(rows.values()) == ["", f"127.0.0.1:{port}"]
        without = next(n for n in rows if rows[n] == "")
        t.daemons[without].await_log("see listen.port")
