# SPDX-License-Identifier: Apache-2.0
"""Processes that send a server the hello of an agent without being one."""
import pytest

import trio as harness
import wire
from named import NamedAgent, fields_of
from trio import Job
from wire import MESSAGES


def reply_of(server, hello):
    """The server's answer: (name of the message, its fields)."""
    with wire.connect(server.port, seconds=harness.PATIENCE) as sock:
        sock.sendall(hello)
        code, data, _ = wire.read_frame(sock)
        name = next(m["name"] for m in MESSAGES.values() if m["code"] == code)
        return name, fields_of(name, data)


@pytest.mark.parametrize("newer", [1, 1 << 62])
def test_forged_hello_does_not_replace_an_agent(trio, newer):
    t = trio(servers=1, agents=2)
    server = t.servers()[0]
    with Job(t, 4) as job:
        k = job.key("w", "float32", 5000)
        job.tell(f"rounds count 3 1 0 {k}")
        agent = next(n for n in t.ask("nodes")["nodes"]
                     if n["name"] == "node0")
        name, answer = reply_of(server, wire.hello(
            "agent", name="node0", node=agent["node"], session=5,
            incarnation=agent["incarnation"] + newer))
        assert name == "reject"
        assert f"has not named node {agent['node']}" in answer["text"]
        job.tell(f"rounds count 20 1 0 {k}")
        assert "agent node" not in server.text().rpartition("not named")[2]
    t.await_empty()


def test_agent_of_a_job_gets_a_welcome(trio):
    t = trio(servers=1, agents=1)
    server = t.servers()[0]
    agent = NamedAgent(t.port)
    assert reply_of(server, agent.hello())[0] == "welcome"
    # The instance number of the process is secret.
    name, answer = reply_of(server, agent.hello(instance=77))
    assert name == "reject" and "is another process" in answer["text"]
    agent.close()
    t.await_empty()
