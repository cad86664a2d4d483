# SPDX-License-Identifier: Apache-2.0
"""Peers that ask and do not read: what waits for them is bounded in memory,
for each and for all together, they are cut off, the memory comes back, and a
job that runs meanwhile checks every sum."""
import resource
import socket
from pathlib import Path

import pytest
import wire
from trio import SLOW, Deadline, Job, limit, wait_for, wait_ready
from wire import message

MIB = 1 << 20
CROWD = 4
# Memory that they may cost at any moment, and that may be left 10 s later.
GROWTH = 64 * MIB
LEFT = 12 * MIB
SANITIZED = SLOW > 1  # Address sanitizer keeps what was freed.


def peak(daemon):
    text = Path(f"/proc/{daemon.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in text.split("\n") if line)
    return int(fields["VmHWM"].split()[0]) * 1024


def callers(t):
    """(who, daemon, connect, hello, question)"""
    return {
        "psched": (t.sched, lambda: wire.connect(t.port), wire.hello("ctl"),
                   message("query", what=0)),
        "agent": (t.agents()[0], lambda: wire.connect_unix(t.socket(0)),
                  wire.l_hello(), message("l_op", op_id=1, op=3, key=4242,
                                          region=1, offset=0, round=1)),
    }


def send_hello(connect, hello):
    """A connection that reads only the reply to its hello."""
    sock = connect()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.sendall(hello)
    wire.read_frame(sock)
    sock.setblocking(False)
    return sock


def ask_all(daemon, crowd, question, most):
    """Until all of them are cut off."""
    asks = question * 200
    sent = dict.fromkeys(crowd, 0)
    deadline = Deadline(limit(90))
    while sent:
        ready = wait_ready("the cut", write=list(sent), seconds=deadline)
        assert SANITIZED or daemon.rss() < most
        for sock in ready:
            try:
                n = sock.send(asks[sent[sock]:])
                sent[sock] = (sent[sock] + n) % len(asks)
            except BlockingIOError:
                pass
            except ConnectionError:
                sock.close()
                del sent[sock]


@pytest.mark.parametrize("who", ["psched", "agent"])
def test_a_peer_that_does_not_read_is_cut_off(trio, who):
    t = trio(servers=1, agents=1)
    daemon, connect, hello, question = callers(t)[who]
    with Job(t, 2, "bystander", PSKV_OP_TIMEOUT="120s") as job:
        key = job.key("w", "float32", 50_000)
        job.tell(lambda rank: f"rounds count 5 {rank} 1000 {key}")
        before = daemon.rss()
        job.say(lambda rank: f"rounds count 30 {rank} 1000 {key}")
        crowd = []
        for i in range(CROWD):
            if who == "agent":
                hello = wire.l_hello(job=f"crowd{i}")
            crowd.append(send_hello(connect, hello))
        ask_all(daemon, crowd, question, before + GROWTH)
        assert SANITIZED or peak(daemon) < before + GROWTH
        daemon.await_log("peer does not read")
        assert SANITIZED or wait_for(lambda: daemon.rss() < before + LEFT,
                                     "memory that comes back", limit(10))
        results = job.hear()
        assert len({tuple(r) for r in results}) == 1
        assert daemon.alive()


@pytest.mark.skipif(SANITIZED, reason="sanitizers need the address space")
def test_memory_that_is_used_up(trio):
    """Limits above the available memory: the connection that holds most is
    closed, and the daemon lives."""
    t = trio(servers=1, agents=1,
             agent_options=["limits.output=1GiB", "limits.output_total=8GiB"])
    agent = t.agents()[0]
    _, connect, hello, question = callers(t)["agent"]
    with Job(t, 2, "bystander", PSKV_OP_TIMEOUT="120s") as job:
        key = job.key("w", "float32", 50_000)
        job.tell(lambda rank: f"rounds count 5 {rank} 1000 {key}")
        text = Path(f"/proc/{agent.pid}/status").read_text()
        size = int(text.partition("VmSize:")[2].split()[0]) * 1024
        most = size + 48 * MIB
        resource.prlimit(agent.pid, resource.RLIMIT_AS, (most, most))
        job.say(lambda rank: f"rounds count 30 {rank} 1000 {key}")
        ask_all(agent, [send_hello(connect, hello)], question, size + GROWTH)
        agent.await_log("this agent is out of memory, and this connection "
                        "holds most of it")
        assert agent.alive()
        results = job.hear()
        assert len({tuple(r) for r in results}) == 1
