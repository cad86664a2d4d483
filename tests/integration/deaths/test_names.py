# SPDX-License-Identifier: Apache-2.0
"""Two daemons that have one name in their configuration."""
import signal

import pytest

import trio as harness
from trio import Job

PROGRAMS = {"ps0": "psserver", "node0": "psworker-agent"}


def second(trio, name):
    """Another one that calls itself so."""
    argv = [harness.program(PROGRAMS[name]), "-c", "/dev/null", "--log-format",
            "text", "--sched", trio.endpoint, "-o", f"node.name={name}",
            "-o", "scheduler.retry.max=200ms"]
    argv += (["-o", "listen.port=0"] if name == "ps0" else
             ["-o", f"client.socket={trio.folder}/second.sock"])
    daemon = harness.Daemon("second", argv, trio.folder)
    trio.daemons["second"] = daemon
    return daemon


@pytest.mark.parametrize("name", PROGRAMS)
def test_member_with_a_taken_name_waits(trio, name):
    t = trio(servers=1, agents=1)
    with Job(t, 2) as job:
        k = job.key("w", "float32", 1000)
        late = second(t, name)
        late.await_log("is that of a running process at 127.0.0.1")
        job.tell(f"rounds count 10 1 0 {k}")
        assert t.daemons[name].alive()
    t.daemons[name].stop(harness.Deadline(), kill=True)
    late.await_ready(harness.Deadline())
    t.daemons.pop(name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_member_that_lost_its_name_ends(trio, name):
    """It was silent for a while, and the second process was registered."""
    t = trio(servers=1, agents=1, options=["heartbeat.interval=200ms",
                                           "heartbeat.suspect_after=500ms",
                                           "heartbeat.dead_after=120s"])
    first = t.daemons[name]
    first.process.send_signal(signal.SIGSTOP)
    second(t, name).await_ready(harness.Deadline())
    first.process.send_signal(signal.SIGCONT)
    assert first.await_end(harness.Deadline()) == 78
    assert "ending: " in first.text()
    assert "another process has taken the name" in first.text()
