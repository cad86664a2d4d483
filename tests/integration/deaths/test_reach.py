# SPDX-License-Identifier: Apache-2.0
"""A server that registers and cannot be dialled is seen before a job waits for
it; a daemon that does not reach its scheduler warns, with the reason."""
import re
import subprocess

import pytest
import trio as support
import wire


def test_server_at_a_wrong_address_is_reported(trio):
    with support.reserve_port("127.0.0.1") as nobody:
        port = nobody.getsockname()[1]
        t = trio(servers=1, agents=1)
        assert t.psctl("status")[0] == 0
        with wire.connect(t.port) as s:
            s.sendall(wire.hello("server", name="lost", instance=77,
                                 address=f"127.0.0.1:{port}"))

            def row():
                return next((n for n in t.ask("nodes")["nodes"]
                             if n["name"] == "lost" and n["unreachable"]),
                            None)

            support.wait_for(row, "an answer to psched's dial")
            code, out, _ = t.psctl("status")
            assert code == 3, out
            assert "! server lost is UNREACHABLE from psched at " \
                f"127.0.0.1:{port} (" in out
            assert "UNREACHABLE" in t.psctl("nodes")[1]
            assert f"server lost cannot be reached at 127.0.0.1:{port}" in \
                t.sched.text()
        rows = {n["name"]: n for n in t.ask("nodes")["nodes"]}
        assert rows["ps0"]["unreachable"] == ""


@pytest.mark.parametrize("name", ["psserver", "psworker-agent"])
def test_a_scheduler_that_is_not_reached_is_a_warning(name, tmp):
    with support.reserve_port("127.0.0.1") as nobody:
        port = nobody.getsockname()[1]
        refused = said_of(name, tmp, f"scheduler.port={port}")
        assert f"scheduler at 127.0.0.1:{port} cannot be reached: connection " \
            "refused" in refused
    assert "cannot be reached: cannot resolve 'none.invalid': " in \
        said_of(name, tmp, "scheduler.address=none.invalid")


def said_of(name, tmp, option):
    """The first warning of a daemon that is alone."""
    own = ["listen.port=0"] if name == "psserver" else [
        f"client.socket={tmp / 'agent.sock'}"]
    argv = [support.program(name), "-c", "/dev/null", "--log-format", "text"]
    for o in [option, *own]:
        argv += ["-o", o]
    line = re.compile(r"^.* warning .*\n", re.M)
    with subprocess.Popen(argv, stderr=subprocess.STDOUT, bufsize=0,
                          stdout=subprocess.PIPE,
                          env=support.clean_env()) as p:
        try:
            text = support.read_until(
                p.stdout.fileno(), lambda seen: line.search(seen.decode()),
                "a warning").decode()
            assert line.search(text), f"it ended: {text}"
            return line.search(text)[0]
        finally:
            p.kill()
