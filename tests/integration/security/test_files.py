# SPDX-License-Identifier: Apache-2.0
"""Files and sockets that others could misuse: a daemon refuses them in words,
and makes its own for its user alone. Memory of a daemon that others of its user
cannot read."""
import ctypes
import grp
import os
import stat
import subprocess

import pytest
import trio as support
from trio import LIBRARY, PACKAGE, Job

CONFIG = 78
USER = 54321  # No account has this number.
GROUP = 54322


def run(name, *options, config="/dev/null", command=()):
    """(exit code, what it said)"""
    argv = [*command, support.program(name), "-c", str(config),
            "--log-format", "text"]
    for option in options:
        argv += ["-o", option]
    done = subprocess.run(argv, capture_output=True, text=True, check=False,
                          timeout=support.PATIENCE, env=support.clean_env())
    return done.returncode, done.stdout + done.stderr


def needs_root():
    if os.geteuid() != 0:
        pytest.skip("only root can give files to others")


@pytest.mark.parametrize("name", ["psched", "psserver", "psworker-agent"])
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_configuration_that_others_can_write_is_refused(tmp, name, mode):
    path = tmp / "x.yaml"
    path.write_text("log:\n  level: debug\n")
    path.chmod(mode)
    code, said = run(name, config=path)
    assert code == CONFIG
    assert (f"{path}: owner {os.geteuid()}, mode {mode:04o}: other users can "
            f"write it; run 'chmod go-w {path}'") in said
    assert said.count("\n") == 1
    path.chmod(0o640)
    argv = [support.program(name), "-c", str(path), "--check-config"]
    assert subprocess.run(argv, env=support.clean_env(),
                          check=False).returncode == 0


def test_configuration_of_another_user_is_refused(tmp):
    needs_root()
    path = tmp / "x.yaml"
    path.write_text("log:\n  level: debug\n")
    os.chown(path, USER, USER)
    path.chmod(0o644)
    code, said = run("psserver", config=path)
    assert code == CONFIG
    assert (f"user {USER} can change it; run this as user {USER} if the daemon "
            f"is that user's, else run 'chown 0 {path}'") in said


@pytest.mark.parametrize("name, option", [
    ("psched", "control.socket"), ("psworker-agent", "client.socket")])
def test_folder_in_which_others_can_replace_the_socket_is_refused(tmp, name,
                                                                  option):
    folder = tmp / "open"
    folder.mkdir()
    folder.chmod(0o777)
    code, said = run(name, f"{option}={folder}/x.sock", "listen.port=0")
    assert code == CONFIG
    assert (f"{option}: {folder}: owner {os.geteuid()}, mode 0777: other users "
            f"can replace the socket; run 'chmod go-w {folder}', or choose "
            "another path") in said
    assert not (folder / "x.sock").exists()


@pytest.mark.parametrize("by_name", [False, True])
def test_sockets_have_the_group_of_the_options(trio, by_name):
    needs_root()
    entry = grp.getgrgid(1)
    group = entry.gr_name if by_name else GROUP
    t = trio(servers=0, agents=1,
             options=[f"control.group={group}", "control.mode=0660"],
             agent_options=[f"client.group={group}"])
    for path in (t.control, t.socket(0)):
        found = os.stat(path)
        assert found.st_gid == (entry.gr_gid if by_name else GROUP)
        assert stat.S_IMODE(found.st_mode) == 0o660


def test_group_that_does_not_exist_is_refused(tmp):
    code, said = run("psworker-agent", f"client.socket={tmp}/x.sock",
                     "client.group=no-such-group")
    assert code == CONFIG
    assert ("client.group: there is no group no-such-group on this host; make "
            "it, or name another") in said


# Daemons of other users, in the place where the packages put them: /run of a
# name space of its own. The socket is one without a listener, which is more
# than a user outside of its group gets to know.
OUTSIDE = """
mount -t tmpfs -o mode=755 none /run && mkdir -m 750 /run/pskv || exit 99
/usr/bin/python3 -c "
import socket
for name in ('agent', 'psched'):
    socket.socket(socket.AF_UNIX).bind('/run/pskv/' + name + '.sock')"
chgrp -R games /run/pskv && chmod 660 /run/pskv/*.sock
mkdir -m 1777 /run/tmp; export TMPDIR=/run/tmp
exec setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"
"""
REMEDY = ("; it is for members of group games: an administrator adds a user by "
          "'usermod -aG games USER', for the next login")


def outside(*words):
    needs_root()
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c",
         OUTSIDE, "-", *words], capture_output=True, text=True, check=False,
        timeout=support.PATIENCE, env=support.clean_env())
    if done.returncode == 99 or "unshare: " in done.stderr:
        pytest.skip(f"no name space for mounts here: {done.stderr}")
    return done.returncode, done.stdout, done.stderr


def test_tools_name_the_group_of_a_socket_of_others():
    code, _, err = outside(support.program("psctl"), "status")
    assert code == 69
    assert err.startswith(
        "psctl: cannot reach psched at unix:/run/pskv/psched.sock: Permission "
        f"denied{REMEDY}; "), err


def test_pslaunch_names_an_agent_that_it_may_not_use():
    """The job has daemons of its own, as without that agent, but not in
    silence, unless they were asked for."""
    command = (support.program("pslaunch"), "-n", "1", "-s", "1")
    code, out, err = outside(*command, "--", "sh", "-c", "echo $PSKV_SOCKET")
    assert code == 0 and "/run/pskv" not in out, err
    assert ("pslaunch: this user may not use the agent at /run/pskv/agent.sock,"
            f" and the job gets daemons of its own{REMEDY}\n") in err
    code, _, err = outside(*command, "--private", "true")
    assert code == 0 and "may not use" not in err


def test_the_library_names_the_group_of_an_agent_of_others():
    text = ("import pskv\ntry:\n    pskv.create('dist_sync')\n"
            "except pskv.Error as e:\n    print(e)\n")
    _, out, err = outside(
        "env", f"PYTHONPATH={PACKAGE}", f"PSKV_LIBRARY={LIBRARY}",
        "PSKV_CONNECT_TIMEOUT=0", "/usr/bin/python3", "-B", "-c", text)
    assert f"client.mode of the agent){REMEDY}" in out, (out, err)


def test_group_of_others_is_refused(tmp):
    needs_root()
    tmp.chmod(0o755)
    folder = tmp / "own"
    folder.mkdir()
    os.chown(folder, USER, USER)
    code, said = run("psched", f"control.socket={folder}/x.sock",
                     f"control.group={GROUP}", "listen.port=0",
                     command=["setpriv", f"--reuid={USER}", f"--regid={USER}",
                              "--clear-groups"])
    assert code == CONFIG
    assert (f"control.group: user {USER} is no member of group {GROUP}; add it "
            "(in a unit: SupplementaryGroups=), or name another group") in said


def test_files_of_daemons_belong_to_their_user_alone(trio):
    t = trio(servers=1, agents=1)
    for d in [t.sched, *t.servers()]:
        assert stat.S_IMODE(d.port_file.stat().st_mode) == 0o600
    for d in t.daemons.values():
        with open(f"/proc/{d.pid}/status", encoding="ascii") as f:
            assert "Umask:\t0077\n" in f.read()


def reads_memory(pid, user):
    """Whether a process of `user` may read the memory of `pid` by address:
    EFAULT instead of EPERM."""
    code = ("import ctypes, os, sys\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            f"os.setresgid({user}, {user}, {user})\n"
            f"os.setresuid({user}, {user}, {user})\n"
            "a = (ctypes.c_size_t * 2)(ctypes.addressof("
            "ctypes.create_string_buffer(1)), 1)\n"
            "b = (ctypes.c_size_t * 2)(0, 1)\n"
            f"libc.process_vm_readv({pid}, a, 1, b, 1, 0)\n"
            "sys.exit(ctypes.get_errno())\n")
    done = subprocess.run(["/usr/bin/python3", "-c", code], check=False)
    return {14: True, 1: False}[done.returncode]


def dumpable(pid):
    """Files of /proc/PID belong to root if the process is not dumpable."""
    return os.stat(f"/proc/{pid}/environ").st_uid != 0


KEYS = (("w", "float32", 400_000), ("b", "float64", 70_000))


def results(t):
    with Job(t, 4, PSKV_PARTITION_BYTES=262144) as job:
        names = " ".join(str(job.key(*k)) for k in KEYS)
        return [job.tell(lambda rank: f"rounds mixed 5 {i * 100 + rank} 20000 "
                                      f"{names}") for i in range(2)]


@pytest.mark.parametrize("hidden", [("server",), ("agent",),
                                    ("server", "agent")])
def test_private_memory_is_not_read_and_jobs_get_the_same_bits(trio, hidden):
    needs_root()
    if ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) < 0:
        pytest.skip("no prctl")
    as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}",
               "--clear-groups"]
    on = {f"{name}_options": ["security.private_memory=true"]
          for name in hidden}
    t = trio(servers=2, agents=2, owner=USER, agent_command=as_user,
             server_command=as_user, **on)
    near = results(t)
    for name, daemons in (("server", t.servers()), ("agent", t.agents())):
        for d in daemons:
            is_hidden = name in hidden
            assert reads_memory(d.pid, USER) != is_hidden
            assert dumpable(d.pid) != is_hidden
            with open(f"/proc/{d.pid}/limits", encoding="ascii") as f:
                core = [x for x in f if x.startswith("Max core")][0].split()
            assert (core[4:6] == ["0", "0"]) or not is_hidden
            assert ("security.private_memory: no core dumps" in
                    d.text()) == is_hidden
    for a in t.agents():  # The memory of either may be hidden: still no TCP.
        assert a.text().count(" server reached on this host ") == 2, a.text()
    assert results(trio(servers=2, agents=2)) == near
