# SPDX-License-Identifier: Apache-2.0
"""Permission to change a job: for its owner, root and psched's own user, over
the Unix socket of psched. Over TCP every user may query."""
import os
import pwd
import re
import subprocess

import pytest
import trio as support
import wire
from trio import Job

NOBODY = pwd.getpwnam("nobody").pw_uid
needs_root = pytest.mark.skipif(os.getuid() != 0,
                                reason="only root can become another user")


def as_other_user(*words, env=None):
    done = subprocess.run([support.program("psctl"), *words],
                          capture_output=True, text=True,
                          timeout=support.PATIENCE, check=False, user=NOBODY,
                          group=NOBODY, extra_groups=[], cwd="/",
                          env=support.clean_env(**(env or {})))
    return done.returncode, done.stdout, done.stderr


def readable(folder):
    """By users other than the test's."""
    folder.chmod(0o755)
    support.let_others_read(folder.parent)


CHANGES = [("jobs", "cancel", "job"), ("--round", "9", "set", "job", "lr=1e9"),
           ("rebalance", "job"), ("--off", "ps0", "rebalance", "job")]


@needs_root
@pytest.mark.parametrize("way", ["tcp", "found", "unix"])
def test_jobs_of_another_user_cannot_be_changed(trio, way):
    t = trio(servers=2, agents=1)
    if way != "tcp":
        readable(t.folder)
    endpoint = f"unix:{t.control}" if way == "unix" else t.endpoint
    with Job(t, 1) as job:
        for words in CHANGES:
            code, _, err = as_other_user("-e", endpoint, *words)
            assert code == 77, (words, err)
            assert "not allowed: job 'job' belongs to user " \
                f"{os.getuid()}" in err
            assert "as that user or root" in err
        for words in (("status",), ("jobs",), ("nodes",), ("keys",),
                      ("stall",), ("--dry-run", "rebalance", "job")):
            code, _, err = as_other_user("-e", endpoint, *words)
            assert code == 0, (words, err)
        assert "job" in t.open_jobs()
        job[0].ask("barrier")


@needs_root
def test_owner_may_change_a_job(trio):
    t = trio(servers=1, agents=1, agent_options=["client.mode=0666"])
    readable(t.folder)
    mine = Job(t, 1, "mine", open_now=False)
    theirs = Job(t, 1, "theirs", open_now=False, user=NOBODY)
    try:
        mine.tell("open")
        theirs.tell("open")
        assert as_other_user("-e", t.endpoint, "jobs", "cancel", "mine")[0] == 77
        code, _, err = as_other_user("-e", t.endpoint, "jobs", "cancel", "theirs")
        assert code == 0, err
        assert re.search(r"job theirs gen \d+ of uid "
                         rf"{NOBODY} cancelled by an operator at "
                         rf"local:uid={NOBODY},", t.sched.text())
        assert t.open_jobs() == ["mine"]
        # Root may change jobs of all users.
        assert t.psctl("jobs", "cancel", "mine")[0] == 0
    finally:
        for w in list(mine) + list(theirs):
            w.kill()
            w.end()
    t.await_empty()


def test_tcp_endpoint_is_read_only(trio):
    """Where no socket can be found, words say where to go."""
    t = trio(servers=1, agents=1, options=["control.socket="])
    with Job(t, 1) as job:
        for words in CHANGES[:3]:
            code, _, err = t.psctl(*words)
            assert code == 77 and "control.socket" in err, (words, err)
        assert t.psctl("jobs")[0] == 0
        job[0].ask("barrier")


def test_psctl_accepts_unix_and_tcp_endpoints(trio, tmp):
    t = trio(servers=1, agents=1)
    with Job(t, 1):
        code, out, err = t.psctl("jobs", endpoint=f"unix:{t.control}")
        assert code == 0 and "job" in out, err
        done = subprocess.run(
            [support.program("psctl"), "jobs"], capture_output=True, text=True,
            timeout=support.PATIENCE, check=False,
            env=support.clean_env(PSKV_SCHED=f"unix:{t.control}"))
        assert done.returncode == 0 and "job" in done.stdout
    code, _, err = t.psctl("jobs", endpoint=f"unix:{tmp}/none.sock")
    assert code == 69 and "none.sock" in err
    code, _, err = t.psctl("jobs", endpoint="unix:")
    assert code == 2
    code, _, err = t.psctl("jobs", endpoint="unix:/" + "x" * 200)
    assert code == 2 and "107" in err


def test_members_are_rejected_at_the_control_socket(trio):
    """A connection whose hello has another role than a tool is closed."""
    t = trio(servers=1, agents=0)
    with wire.connect_unix(t.control) as s:
        s.sendall(wire.hello("agent"))
        assert wire.is_cut(s)
    assert t.psctl("nodes")[0] == 0


def test_impossible_control_socket_is_an_error_or_a_warning(tmp):
    """Asked for: an error; by default: a warning, and no changes."""
    argv = [support.program("psched"), "-c", "/dev/null", "-o",
            "listen.port=0"]
    done = subprocess.run(argv + ["-o", "control.socket=/proc/none/x.sock"],
                          capture_output=True, text=True,
                          timeout=support.PATIENCE, check=False,
                          env=support.clean_env())
    assert done.returncode == 73, done.stderr
    assert "/proc/none/x.sock" in done.stderr
    port = tmp / "port"
    p = subprocess.Popen(argv + ["--port-file", str(port)],
                         stderr=subprocess.PIPE, text=True,
                         env=support.clean_env(RUNTIME_DIRECTORY="/proc/none"))
    try:
        support.wait_for(port.exists, "psched")
        code = subprocess.run(
            [support.program("psctl"), "-e",
             f"127.0.0.1:{port.read_text().strip()}", "jobs"],
            timeout=support.PATIENCE, check=False,
            env=support.clean_env()).returncode
        assert code == 0
    finally:
        p.terminate()
        _, err = p.communicate(timeout=support.PATIENCE)
    assert "control.socket" in err
