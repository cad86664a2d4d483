# SPDX-License-Identifier: Apache-2.0
"""The sandbox of the units, without systemd: it forbids what the units forbid,
and daemons under it train. Other files of this folder run in it when
PSKV_TEST_SANDBOX is set (docs/testing.md)."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio as support
from trio import Job

sys.path.insert(0, str(support.SOURCE / "tests/support"))

import sandbox  # noqa: E402

UNITS = support.BUILD / "systemd"

pytestmark = pytest.mark.skipif(sandbox.MISSING is not None,
                                reason=str(sandbox.MISSING))

PROBE = '''
import ctypes, mmap, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def refused(call):
    ctypes.set_errno(0)
    try:
        return (call() or 0) < 0 and os.strerror(ctypes.get_errno())
    except OSError as e:
        return os.strerror(e.errno)
for name, call in (
        ("unshare", lambda: libc.unshare(0x10000000)),
        ("packets", lambda: socket.socket(socket.AF_PACKET).close()),
        ("netlink", lambda: socket.socket(socket.AF_NETLINK).close()),
        ("inet", lambda: socket.socket(socket.AF_INET).close()),
        ("inet6", lambda: socket.socket(socket.AF_INET6).close()),
        ("unix", lambda: socket.socket(socket.AF_UNIX).close()),
        ("code", lambda: mmap.mmap(-1, 4096, prot=7).close()),
        ("data", lambda: mmap.mmap(-1, 4096, prot=3).close()),
        ("nice", lambda: os.setpriority(os.PRIO_PROCESS, 0, 5)),
        ("chown", lambda: os.chown("/dev/null", 0, 0)),
        ("setuid", lambda: os.setresuid(0, 0, 0)),
        ("hostname", lambda: libc.sethostname(b"x", 1)),
        ("set user id", lambda: os.chmod("/dev/null", 0o4666)),
        ("kill", lambda: os.kill(os.getpid(), 0))):
    print(name, refused(call) or "allowed", sep=": ")
'''


@pytest.mark.parametrize("name", ["psched", "psserver", "psworker-agent"])
def test_sandbox_has_the_limits_of_the_unit(name):
    done = subprocess.run(
        ["/usr/bin/python3", str(Path(sandbox.__file__)),
         str(UNITS / f"{name}.service"), "/usr/bin/python3", "-c", PROBE],
        capture_output=True, text=True, check=True, env=support.clean_env())
    no = "Operation not permitted"
    family = "Address family not supported by protocol"
    assert done.stdout.split("\n")[:-1] == [
        f"unshare: {no}", f"packets: {family}", f"netlink: {family}",
        "inet: allowed", "inet6: allowed", "unix: allowed", f"code: {no}",
        "data: allowed", f"nice: {no}", f"chown: {no}", f"setuid: {no}",
        f"hostname: {no}", f"set user id: {no}", "kill: allowed"], done.stderr


def test_group_of_a_socket_needs_a_call_that_the_unit_forbids(tmp):
    done = subprocess.run(
        ["/usr/bin/python3", str(Path(sandbox.__file__)),
         str(UNITS / "psworker-agent.service"),
         support.program("psworker-agent"), "-c", "/dev/null", "-o",
         f"client.socket={tmp}/x.sock", "-o", "client.group=1"],
        capture_output=True, text=True, check=False, env=support.clean_env())
    assert done.returncode == 77, done.stderr
    assert "SystemCallFilter=chown fchownat permits it" in done.stderr
    unit = tmp / "x.service"
    unit.write_text((UNITS / "psworker-agent.service").read_text().replace(
        "[Install]", "SystemCallFilter=chown fchownat\n[Install]"))
    calls = sandbox.allowed_calls(
        sandbox.read_unit(unit)["SystemCallFilter"], sandbox.call_groups())
    assert {"chown", "fchownat"} <= calls and "fchown" not in calls


def test_daemons_train_in_the_sandbox(trio, monkeypatch):
    monkeypatch.setenv("PSKV_TEST_SANDBOX", str(UNITS))
    t = trio(servers=2, agents=2,
             server_options=["security.private_memory=true"],
             agent_options=["network.loops=2", "local.reduce_threads=2"])
    for d in t.daemons.values():
        status = Path(f"/proc/{d.pid}/status").read_text(encoding="ascii")
        for line in ("CapEff:\t0000000000000000", "NoNewPrivs:\t1",
                     "Seccomp:\t2", "Umask:\t0077"):
            assert line in status, (d.name, status)
    with Job(t, 4) as job:
        key = job.key("w", "float32", 400_000)
        job.tell(lambda rank: f"rounds mixed 5 {rank} 20000 {key}")
    for a in t.agents():
        assert a.text().count(" server reached on this host ") == 2, a.text()


# As ProcSubset=pid of the units does on a host without limits of cgroups; the
# sandbox leaves mounts out.
HIDE_HOST = ["unshare", "--mount", "sh", "-c",
             "mount -t proc -o subset=pid proc /proc && "
             'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_daemons_know_the_memory_of_a_host_that_is_hidden(trio):
    t = trio(servers=1, agents=1, server_command=HIDE_HOST,
             agent_command=HIDE_HOST)
    with Job(t, 1) as job:
        k = job.key("w", "float32", 100)
        job.tell(f"rounds count 2 1 0 {k}")
