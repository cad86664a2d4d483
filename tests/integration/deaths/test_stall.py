# SPDX-License-Identifier: Apache-2.0
"""psctl stall and the errors of blocked calls name the rank, key and round that
a job waits for: a worker that is stopped, slow, or never started, a server that
is stopped, a network that is cut. And no other rank."""
import contextlib
import os
import re
import signal
import sys

import pytest
from trio import SOURCE, Job, WorkerError, limit, wait_for

sys.path += [str(SOURCE / "tests" / folder) for folder in ("soak", "bench")]

import hosts  # noqa: E402
import netns  # noqa: E402

RANK = re.compile(r"\brank (\d+) (?:on |\(absent)")
FLOATS = 1000


@contextlib.contextmanager
def stopped(process):
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def begin(t, folder):
    """A job of three ranks on three nodes that has made round 1 of key w, and
    its command for the next one."""
    job = Job(t, 3)
    key = job.key("w", "float32", FLOATS)
    zeros = folder / "zeros"
    zeros.write_bytes(bytes(4 * FLOATS))
    job.tell(f"pushpull {key} src={zeros}")
    return job, f"start a pushpull {key} src={zeros}"


def stall(t, ranks, *words, what="key w round 2"):
    """The row of psctl stall, once it names these ranks alone, and each of the
    texts."""
    def found():
        rows = t.ask("--after", "1ms", "stall", "job")["stalls"]
        if len(rows) != 1 or \
                [m["rank"] for m in rows[0]["missing"]] != ranks or \
                not all(w in rows[0]["also"] for w in words):
            seen.append(rows)
            return None
        return rows[0]

    seen = []
    try:
        row = wait_for(found, "the row of psctl stall", step=0.2)
    except AssertionError as e:
        raise AssertionError(seen[-1]) from e
    assert row["what"] == what and row["waited_s"] > 0
    code, out, _ = t.psctl("--after", "1ms", "stall", "job")
    assert code == 3 and what in out, out
    assert [int(r) for r in RANK.findall(out)] == ranks, out
    return row


def blocked(worker, ranks, *words, name="pushpull of 'w' round 2"):
    """The error of a call that waits no longer, which names the same."""
    def found():
        with pytest.raises(WorkerError) as e:
            worker.ask("wait a timeout=300")
        text = str(e.value)
        named = [int(r) for r in RANK.findall(text)]
        if named != ranks or not all(w in text for w in words):
            seen.append(text)
            return None
        return text

    seen = []
    try:
        text = wait_for(found, "the error of a blocked call")
    except AssertionError as e:
        raise AssertionError(seen[-1]) from e
    assert name in text and re.search(r"waited \d+\.\d s", text), text
    return text


def finish(t, job, ranks=(0, 1, 2)):
    for rank in ranks:
        job[rank].ask("wait a")
    job.close()
    t.await_empty()


def test_a_stopped_worker_is_named(trio, tmp):
    t = trio(servers=1, agents=3)
    job, start = begin(t, tmp)
    with stopped(job[2].process):
        job[2].say(start)
        for rank in (0, 1):
            job[rank].ask(start)
        row = stall(t, [2])
        assert row["missing"][0]["state"] == "live" and row["also"] == ""
        for rank in (0, 1):
            blocked(job[rank], [2])
    job[2].hear()
    finish(t, job)


def test_a_slow_worker_is_named_with_the_key_it_lacks(trio, tmp):
    """It has contributed to another key of the same step."""
    t = trio(servers=2, agents=3)
    job, start = begin(t, tmp)
    other = job.key("b", "float32", FLOATS)
    both = start.replace("start a", "start b").split()
    both[3] = str(other)
    for rank in (0, 1):
        job[rank].ask(start)
        job[rank].ask(" ".join(both))
    job[2].ask(" ".join(both))
    for rank in range(3):
        job[rank].ask("wait b")
    stall(t, [2])
    text = blocked(job[1], [2])
    assert "'b'" not in text
    job[2].ask(start)
    finish(t, job)


def test_a_stopped_server_is_named(trio, tmp):
    """No rank is missing then."""
    t = trio(servers=1, agents=3)
    job, start = begin(t, tmp)
    with stopped(t.servers()[0].process):
        job.tell(start)
        stall(t, [], "a message from server ps0, which agent node")
        for w in job:
            blocked(w, [], "a message from server ps0, which agent node")
        _, out, _ = t.psctl("stall", "job")
        assert "a message from server ps0" in out
    finish(t, job)


@pytest.fixture
def cut_hosts(tmp):
    try:
        with netns.Topology(1, 0, 0, packets=True):
            pass
    except (netns.Missing, AssertionError) as e:
        pytest.skip(f"no hosts can be made here: {e}")
    # Nobody is given up meanwhile.
    with hosts.Hosts(tmp / "net", servers=1, agents=3,
                     options=["heartbeat.suspect_after=2s",
                              "heartbeat.dead_after=120s"]) as h:
        yield h


def test_a_node_that_is_cut_off_is_named(cut_hosts, tmp):
    """Its rank has contributed, and the other nodes cannot know."""
    t = cut_hosts
    job, start = begin(t, tmp)
    t.cut("node2", True)
    job.tell(start)
    stall(t, [2], "a message from agent node2, which the scheduler last heard")
    blocked(job[0], [2], "a message from agent node2")
    # Its own agent knows the connections that are silent.
    blocked(job[2], [], "server ps0")
    t.cut("node2", False)
    finish(t, job)


def test_a_cut_between_a_node_and_a_server_is_named(cut_hosts, tmp):
    """The scheduler hears both."""
    t = cut_hosts
    job, start = begin(t, tmp)
    for here, there in (("node2", "ps0"), ("ps0", "node2")):
        hosts.run(t.inside(here) + ["iptables", "-A", "INPUT", "-s",
                                    t.address(there), "-j", "DROP"])
    job.tell(start)
    cause = "a message from server ps0, which agent node2 last heard"
    stall(t, [2], cause)
    for w in job:
        blocked(w, [2], cause)
    for name in ("node2", "ps0"):
        hosts.run(t.inside(name) + ["iptables", "-F", "INPUT"])
    finish(t, job)


def test_a_worker_that_never_started_is_named(trio):
    t = trio(servers=1, agents=3)
    # psctl, which is slow under sanitizers, asks twice within this time.
    job = Job(t, 3, open_now=False, PSKV_START_TIMEOUT=f"{limit(3):g}s")
    for rank in (0, 1):
        job[rank].say("open")
    row = stall(t, [2], what="start")
    assert row["missing"][0]["state"] == "absent" and row["waits"] == 2
    for rank in (0, 1):
        with pytest.raises(WorkerError) as e:
            job[rank].hear()
        assert re.search(r"\brank 2\b", str(e.value)), str(e.value)
        assert not re.search(r"\brank [01]\b", str(e.value)), str(e.value)
    for w in job:
        w.kill()
        w.end()
    t.await_empty()
