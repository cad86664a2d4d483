# SPDX-License-Identifier: Apache-2.0
"""psserver.service under a systemd: it keeps the memory of jobs over a restart by
an operator and over deaths of the process, and drops it at a stop."""
import pytest
import systemd_box
import trio as support
from test_server_death import OPTIMIZERS, rounds
from trio import wait_for

NAME = "psserver.service"


class Unit:
    """The unit in the box, with the program of the build."""

    def __init__(self, box, trio):
        self.box = box
        self.log = trio.folder / "unit.log"
        folder = box.tree / "etc/systemd/system"
        text = (support.BUILD / "systemd" / NAME).read_text()
        words = (f"{support.program('psserver')} -c /dev/null --log-format "
                 f"text --log-level info --sched {trio.endpoint} "
                 f"-o node.name=unit -o listen.port=0")
        # The box has no user pskv, and its sandbox is not what is tested.
        keep = [line for line in text.split("[Service]")[1].split("\n")
                if line.split("=")[0] in (
                    "Type", "Restart", "RestartSec", "RestartPreventExitStatus",
                    "FileDescriptorStoreMax", "Environment", "OOMPolicy",
                    "TimeoutStopSec")]
        assert len(keep) == 8
        (folder / NAME).write_text("\n".join(
            ["[Unit]", "StartLimitIntervalSec=0", "[Service]", *keep,
             f"ExecStart={words}", f"StandardOutput=append:{self.log}",
             f"StandardError=append:{self.log}", ""]))
        self.control("daemon-reload")
        self.control("start")

    def control(self, verb):
        words = [verb] if verb == "daemon-reload" else [verb, NAME]
        assert self.box.run("systemctl", *words)[0] == 0, self.text()

    def show(self, field):
        return self.box.run("systemctl", "show", "-P", field, NAME)[1].strip()

    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def kill(self):
        """With the signal of the kernel's memory killer."""
        before = self.show("MainPID")
        assert self.box.run("systemctl", "kill", "-s", "KILL", NAME)[0] == 0
        wait_for(lambda: self.show("MainPID") not in (before, "0") and
                 self.show("ActiveState") == "active", "the next process")


@pytest.fixture
def unit(trio):
    why = systemd_box.missing()
    if why is not None:
        pytest.skip(why)
    t = trio(servers=0, agents=2)
    box = systemd_box.Box(t.folder)
    try:
        yield t, Unit(box, t)
    finally:
        box.close()


def test_memory_outlives_restarts_of_the_unit(unit):
    t, u = unit
    ways = [u.kill, lambda: u.control("restart")]
    shaken = rounds(t, "shaken", OPTIMIZERS["adam"],
                    lambda phase: ways[phase % 2](), servers=1)
    assert t.sched.text().count("is back with its memory") == 6, u.text()
    assert shaken == rounds(t, "still", OPTIMIZERS["adam"],
                            lambda phase: None, servers=1)
    assert u.show("NFileDescriptorStore") == "1"
    u.control("stop")
    assert u.show("NFileDescriptorStore") == "0"
