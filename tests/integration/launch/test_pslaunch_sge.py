# SPDX-License-Identifier: Apache-2.0
"""pslaunch within a job of Grid Engine, and its array jobs. Runs of these are in
test_pslaunch_hosts.py, too."""
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import gridengine
import pytest
import trio as support
from launched import (FAMILY, SHELL, STUBBORN, Running, argv, await_nothing,
                      launch, marked)
from places import Sge
from trio import limit, wait_for

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

import netns  # noqa: E402


@pytest.fixture
def place(tmp):
    reason = Sge.missing()
    if reason is not None:
        pytest.skip(reason)
    one = Sge(tmp)
    yield one
    one.close()


class Apart:
    """Grid Engine on the second of two hosts."""

    def __init__(self, tmp, stack):
        self.top = stack.enter_context(netns.Topology(2, 0, 0, packets=True))
        own = socket.gethostbyname(socket.gethostname())
        if not own.startswith("127."):
            netns.command("ip", "-n", self.top.name(2), "addr", "add",
                          f"{own}/32", "dev", "lo")
        self.place = Sge(tmp, self.top.inside(2))
        stack.callback(self.place.close)
        # The clients reach Grid Engine by another network than that of the job.
        (tmp / "bin").mkdir()
        for name in ("qsub", "qdel", "qstat"):
            client = tmp / "bin" / name
            client.write_text("#!/bin/sh\nexec nsenter --net=/run/netns/"
                              f"{self.top.name(2)} {gridengine.PROGRAMS}/{name} "
                              '"$@"\n')
            client.chmod(0o755)
        self.env = {**self.place.env, "PSKV_HOST_ADDRESS": self.top.address(1),
                    "PATH": f"{tmp}/bin:{self.place.env['PATH']}"}

    def cut(self):
        """Drops all packets between the two hosts."""
        for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o")):
            netns.command(*self.top.inside(2), "iptables", "-I", chain, way,
                          "eth0", "-j", "DROP")

    def tasks(self):
        """Processes of the job on the second host."""
        there = os.stat(f"/run/netns/{self.top.name(2)}").st_ino
        found = []
        for pid, _ in marked(self.place.mark):
            with contextlib.suppress(FileNotFoundError):
                if os.stat(f"/proc/{pid}/ns/net").st_ino == there:
                    found.append(pid)
        return found


@pytest.fixture
def apart(tmp):
    reason = Sge.missing()
    if reason is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        try:
            with netns.Topology(1, 0, 0, packets=True):
                pass
        except (netns.Missing, AssertionError) as e:
            pytest.skip(f"no hosts can be made here: {e}")
        yield Apart(tmp, stack)


def test_a_cut_network_ends_the_job_on_both_sides(apart, tmp):
    """Without a message, and long before a supervisor would miss one."""
    with Running("-n", "2", "-s", "1", *Sge.words, *SHELL, FAMILY,
                 mark=apart.place.mark, env=apart.env,
                 inside=(*apart.top.inside(1), "env", "-C", tmp)) as r:
        r.await_text(b"ready", 2)
        assert apart.tasks()
        begin = time.monotonic()
        apart.cut()
        wait_for(lambda: not apart.tasks(),
                 "the end of the job on the host that was cut off")
        assert time.monotonic() - begin < limit(5) + 1
        assert r.wait() == 69
        r.await_text(b"its host does not answer", name="err")
        await_end(apart.place, tmp)


@pytest.mark.parametrize("how, want", [("exit 0", 0), ("exit 7", 7)])
def test_a_job_with_a_parallel_environment(place, tmp, how, want):
    """Its hosts are those of the job, with their slots; its code is that of
    pslaunch."""
    worker = support.BUILD / "tests/integration/integration_worker"
    script = (f"printf 'open\\nbarrier\\nclose\\n' | {worker}; "
              f"test $RANK != 1 || {how}")
    done = subprocess.run(
        ["qsub", "-sync", "y", "-b", "y", "-shell", "no", "-cwd", "-j", "y",
         "-o", str(tmp / "output"), "-pe", "pskv", "3", *argv(
             "-n", "3", "-s", "1", "--launcher", "sge", *SHELL, script)],
        cwd=tmp, env=place.engine.env, capture_output=True, text=True,
        check=False, timeout=limit(90), stdin=subprocess.DEVNULL)
    output = (tmp / "output").read_text()
    assert done.returncode == want, (done.stdout, done.stderr, output)
    for rank in range(3):
        assert f":{rank}] ok {rank} 3 {rank} 3\n" in output, output
    await_nothing(place.mark)


def test_hosts_are_those_of_the_job(tmp):
    hosts = tmp / "hosts"
    hosts.write_text("n1 2 main.q@n1 UNDEFINED\nn2 1 main.q@n2 UNDEFINED\n")
    words = ("-n", "3", "-s", "1", "--launcher", "sge", "--dry-run", "true")
    code, out, err = launch(*words, env={"PE_HOSTFILE": str(hosts)})
    assert code == 0, err
    assert [line for line in out.split("\n") if line.startswith("host ")] == \
        ["host n1:", "host n2:"]
    assert "\n  qrsh -inherit n1 'exec sh -c " in out
    code, _, err = launch("-n", "4", *words[2:],
                          env={"PE_HOSTFILE": str(hosts)})
    assert code == 2 and "slots for 3 workers" in err
    code, _, err = launch(*words, env={"PE_HOSTFILE": "/nonexistent/hosts"})
    assert code == 2 and "/nonexistent/hosts, the hosts of the job" in err
    hosts.write_text("n1\n")
    code, _, err = launch(*words, env={"PE_HOSTFILE": str(hosts)})
    assert code == 2 and "it is not understood" in err


def has_jobs(place):
    return place.engine.run("qstat")[1] != ""


def set_slots(place, count):
    code, out = place.engine.run("qconf", "-rattr", "queue", "slots",
                                 str(count), "main.q")
    assert code == 0, out


def start(place, tmp, *words, script=FAMILY):
    return Running("-n", "2", "-s", "1", *place.words, *words, *SHELL, script,
                   mark=place.mark, env=place.env, inside=("env", "-C", tmp))


def await_end(place, tmp):
    """Neither processes, nor tasks, nor files."""
    await_nothing(place.mark)
    wait_for(lambda: not has_jobs(place), "the end of the array job", step=0.2)
    assert not list(tmp.glob("pskv-*"))


def test_a_deleted_task_ends_the_job(place, tmp):
    """By the command of Grid Engine, and with all that they have started."""
    with start(place, tmp) as r:
        r.await_text(b"ready", 2)
        assert not list(tmp.glob("pskv-*"))  # All have connected.
        job = place.engine.run("qstat")[1].split("\n")[2].split()[0]
        assert place.engine.run("qdel", job, "-t", "2")[0] == 0
        assert r.wait() == 69
        r.await_text(b"lost the host task2: the connection to its supervisor "
                     b"has ended", name="err")
        await_end(place, tmp)


def test_interrupt_twice_ends_ranks_at_once(place, tmp):
    """Also those that ignore TERM."""
    with start(place, tmp, "--grace", "1000s", script=STUBBORN) as r:
        r.await_text(b"ready", 2)
        r.process.send_signal(signal.SIGINT)
        r.await_text(b"asked", 2)
        r.process.send_signal(signal.SIGINT)
        assert r.wait() == 130
        await_end(place, tmp)


def test_tasks_without_slots_are_named(place, tmp):
    """They do not stay when time is up."""
    set_slots(place, 1)
    with start(place, tmp, "--start-timeout", f"{4 + limit(4):.0f}s") as r:
        # After two seconds, when the first task may not have its slot either.
        r.await_text(b"2; qstat -j shows why", name="err")
        assert r.wait() == 69
        r.await_text(b"at the same time: 2; --nodes asks for fewer", name="err")
        await_end(place, tmp)


def test_keys_are_not_shown_and_late_tasks_end(place, tmp):
    """A file of the user alone has the keys. A task that gets its slot after
    the end of pslaunch does nothing."""
    set_slots(place, 1)
    with start(place, tmp) as r:
        wait_for(lambda: list(tmp.glob("pskv-*/order")) and has_jobs(place),
                 "the array job")
        (order,) = tmp.glob("pskv-*/order")
        assert order.stat().st_mode & 0o777 == 0o600
        assert order.parent.stat().st_mode & 0o777 == 0o700
        keys = order.read_text().split("\n")[1:3]
        assert all(len(key) == 64 for key in keys) and keys[0] != keys[1]
        shown = place.engine.run("qstat", "-j", "*")[1].encode()
        assert str(order).encode() in shown
        wait_for(lambda: marked(place.mark), "the first task")
        shown += b"".join(command for _, command in marked(place.mark))
        assert not any(key.encode() in shown for key in keys)
        r.process.kill()
        r.wait()
        set_slots(place, 8)
        await_end(place, tmp)


def test_hosts_are_chosen_by_grid_engine():
    """A task a worker, or as many as --nodes says."""
    code, _, err = launch("-n", "1", "--launcher", "sge", "--hosts", "h1",
                          "true")
    assert code == 2 and "Grid Engine chooses the hosts" in err
    for words, tasks in ((), 3), (("--nodes", "2"), 2):
        code, out, err = launch("-n", "3", "-s", "1", "--launcher", "sge",
                                *words, "--queue", "long.q", "--dry-run",
                                "true")
        assert code == 0, err
        assert "\n  qsub -terse -N pskv -r n -j y -o /dev/null -t " \
            f"1-{tasks} -q long.q -b y -shell no /bin/sh -c " in out
        assert out.count("\nhost task") == tasks


def test_tasks_say_why_they_cannot_connect(tmp):
    order = tmp / "order"
    for text, mode, want in (
            (None, 0, "the job has ended, or this host has not the folder"),
            ("127.0.0.1 1\n" + "00" * 32, 0o644, "not a file of this user alone"),
            ("127.0.0.1 1\n", 0o600, "has no line for task 1"),
            ("127.0.0.1 1\n" + "00" * 32, 0o600, "port 1 is not reached")):
        if text is not None:
            order.write_text(text)
            order.chmod(mode)
        code, _, err = launch("--join", str(order), env={"SGE_TASK_ID": "1"})
        assert code == 69 and want in err, err
