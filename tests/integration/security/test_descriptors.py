# SPDX-License-Identifier: Apache-2.0
"""Daemons with all descriptors in use: new connections get the reason, present
ones continue, and a new configuration is read."""
import os
import resource
import signal

import wire
from trio import Deadline, Daemon, Job, PATIENCE, program, wait_for

KEPT = 32


def open_files(daemon):
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def limit(daemon, count):
    _, most = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (count, most))


def refusal(sock):
    """The reason that a refused connection gets; None: it is accepted."""
    sock.settimeout(PATIENCE)
    code, header, _ = wire.read_frame(sock)
    if code == wire.MESSAGES["reject"]["code"]:
        return wire.unpack(header)[0][9]
    return None


def test_connections_without_descriptors_get_the_reason(trio):
    t = trio(servers=1, agents=1)
    agent = t.agents()[0]
    with Job(t, 2, "bystander") as job:
        key = job.key("w", "float32", 50_000)
        job.tell(lambda rank: f"rounds count 5 {rank} 1000 {key}")
        limit(agent, open_files(agent) + KEPT + 8)
        crowd = []
        text = None
        while text is None:
            assert len(crowd) < 20
            sock = wire.connect_unix(t.socket(0))
            sock.sendall(wire.l_hello(job=f"crowd{len(crowd)}"))
            crowd.append(sock)
            text = refusal(sock)
        assert "descriptors" in text and "LimitNOFILE" in text
        agent.await_log("nearly all the descriptors")
        # A new key of an open job still gets its memory.
        key = job.key("v", "float32", 500_000)
        job.tell(lambda rank: f"rounds count 5 {rank} 1000 {key}")
        for sock in crowd:
            sock.close()
        wait_for(lambda: open_files(agent) < KEPT + 20, "free descriptors")


def test_few_descriptors_are_named_at_the_start(trio):
    few = ["prlimit", "--nofile=80:80"]
    t = trio(servers=1, agents=1, agent_command=few)
    t.agents()[0].await_log("descriptors limit 80 less than client.max_clients "
                            "needs")


def test_configuration_is_reloaded_without_descriptors(tmp):
    config = tmp / "psched.yaml"
    config.write_text("log:\n  level: info\n")
    daemon = Daemon("psched", [
        program("psched"), "-c", str(config), "--log-format", "text",
        "-o", "listen.port=0", "-o", "control.socket=",
        "--port-file", str(tmp / "psched.port")], tmp)
    try:
        daemon.await_ready(Deadline())
        # Only the reserve descriptor is left.
        numbers = sorted(int(n) for n in os.listdir(f"/proc/{daemon.pid}/fd"))
        free = next(n for n in range(1000) if n not in numbers)
        limit(daemon, free)
        with wire.connect(int((tmp / "psched.port").read_text())) as sock:
            assert wire.is_cut(sock)
        daemon.await_log("has all descriptors open that it may have")
        limit(daemon, numbers[-1] + 1)
        config.write_text("log:\n  level: debug\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.await_log("option changed log.level=debug")
        # No descriptor at all: the daemon tries again.
        limit(daemon, 3)
        config.write_text("log:\n  level: notice\n")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.await_log("no descriptor is left, trying again")
        limit(daemon, 64)
        daemon.await_log("option changed log.level=notice")
    finally:
        assert daemon.stop(Deadline()) == 0
