# SPDX-License-Identifier: Apache-2.0
"""pslaunch over ssh: a real sshd on two loopback addresses plays two hosts.
Whatever dies, no process of the job is left after five seconds."""
import os
import re
import shutil
import signal
import subprocess
import time

import pytest
import trio as support
from launched import (FAMILY, SHELL, STUBBORN, Running, argv, marked,
                      stat_of)
from sshd import HOSTS, SSHD
from trio import limit, wait_for

pytestmark = pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None,
                                reason="there is no sshd")

WORKER = str(support.BUILD / "tests/integration/integration_worker")
SPREAD = ("--hosts", ",".join(HOSTS))


def start(sshd, *words, env=None):
    return Running(*words, mark=sshd.mark, env={"PSKV_SSH": sshd.command,
                                                **(env or {})})


def run(sshd, *words, env=None, cwd=None):
    done = subprocess.run(
        argv(*words), capture_output=True, text=True, check=False, cwd=cwd,
        stdin=subprocess.DEVNULL, timeout=limit(60),
        env=support.clean_env(PSKV_SSH=sshd.command, PSKV_MARK=sshd.mark,
                              **(env or {})))
    return done.returncode, done.stdout, done.stderr


def assert_ends_in_time(mark):
    """Processes on the "hosts" carry the mark, too: sshd sets it."""
    begin = time.monotonic()
    wait_for(lambda: not marked(mark), f"end of {marked(mark)}")
    assert time.monotonic() - begin < limit(5)


# ------------------------------------------------------------------------ runs

def test_workers_of_two_hosts_train_together(sshd, tmp):
    """The sums are those of all four ranks, on each of them."""
    script = (f"printf 'open\\nkey w float32 1000\\nrounds count 3 1 0 0\\n"
              f"close\\n' | {WORKER}")
    code, out, err = run(sshd, "-n", "4", "-s", "2", *SPREAD, *SHELL, script,
                         env={"TMPDIR": str(tmp)})
    assert code == 0, (out, err)
    opened = sorted(line for line in out.split("\n")
                    if len(line.split()) == 6)
    assert opened == ["[127.0.0.2:0] ok 0 4 0 2", "[127.0.0.2:2] ok 2 4 1 2",
                      "[127.0.0.3:1] ok 1 4 0 2", "[127.0.0.3:3] ok 3 4 1 2"]
    results = {line.split(" ", 1)[1] for line in out.split("\n")
               if " ok " in line and len(line.split()) == 3 and
               len(line.split()[2]) == 16}
    assert len(results) == 1, out
    assert "psched at 127.0.0.2:" in err
    assert_ends_in_time(sshd.mark)


def test_variables_of_workers_on_hosts(sshd):
    """Nothing of this host's environment but the stated names; the values pass
    whole."""
    code, out, err = run(
        sshd, "-n", "3", "-s", "1", *SPREAD, "--env", "A=one 'two' \"$RANK\"",
        "--env", "PASSED", "env",
        env={"PASSED": "through", "UNRELATED": "x", "PSKV_OP_TIMEOUT": "77s"})
    assert code == 0, err
    for rank, host, local, size, group in ((0, 3, 0, 1, 1), (1, 2, 0, 2, 0),
                                           (2, 3, 1, 2, 1)):
        del local, size
        tag = f"[127.0.0.{host}:{rank}] "
        env = dict(line[len(tag):].split("=", 1) for line in out.split("\n")
                   if line.startswith(tag))
        assert env["RANK"] == str(rank) and env["WORLD_SIZE"] == "3"
        assert env["GROUP_RANK"] == str(group)
        assert env["MASTER_ADDR"] == "127.0.0.3"
        assert env["DMLC_PS_ROOT_URI"] == "127.0.0.2"
        assert env["DMLC_JOB_CLUSTER"] == "ssh"
        assert env["A"] == "one 'two' \"$RANK\""
        assert env["PASSED"] == "through" and env["PSKV_OP_TIMEOUT"] == "77s"
        assert "UNRELATED" not in env and "SSH_CONNECTION" in env


def test_the_folder_is_copied_first(sshd, tmp):
    source, copy = tmp / "source", tmp / "a copy"
    source.mkdir()
    (source / "train.sh").write_text("echo trained in $PWD\n")
    code, out, err = run(sshd, "-n", "2", "-s", "1", *SPREAD, "--sync-dst-dir",
                         str(copy), "sh train.sh", cwd=source)
    assert code == 0, err
    assert out.count(f"trained in {copy}\n") == 2


def test_hosts_that_share_the_folder_do_not_make_it_twice(sshd, tmp):
    """The second copy starts after the first one has ended."""
    log, rsync = tmp / "log", tmp / "bin" / "rsync"
    rsync.parent.mkdir()
    rsync.write_text(f"#!/bin/sh\necho starts >>{log}\nsleep 0.3\n"
                     f"/usr/bin/rsync \"$@\" || exit\necho ends >>{log}\n")
    rsync.chmod(0o755)
    code, _, err = run(
        sshd, "-n", "1", "-s", "1", *SPREAD, "--sync-dst-dir",
        str(tmp / "copy"), "true", cwd=rsync.parent,
        env={"PATH": f"{rsync.parent}:{os.environ['PATH']}"})
    assert code == 0, err
    assert log.read_text().split() == ["starts", "ends"] * 2


def test_a_copy_that_fails_starts_nothing(sshd, tmp):
    """launch.py did not look at the result."""
    code, out, err = run(sshd, "-n", "2", "-s", "1", *SPREAD, "--sync-dst-dir",
                         str(tmp / "no" / "such" / "parent"), "echo started")
    assert code == 69 and out == ""
    assert re.search(r"lost the host 127\.0\.0\.[23]: rsync ended with code",
                     err)
    assert re.search(r"\[127\.0\.0\.[23] rsync\] ", err)
    assert_ends_in_time(sshd.mark)


def test_a_folder_that_is_not_there_is_named(sshd, tmp):
    rsync = tmp / "bin" / "rsync"
    rsync.parent.mkdir()
    rsync.write_text("#!/bin/sh\nexit 0\n")
    rsync.chmod(0o755)
    code, out, err = run(
        sshd, "-n", "1", "-s", "1", *SPREAD, "--sync-dst-dir", "/no/folder",
        "echo", "started",
        env={"PATH": f"{rsync.parent}:{os.environ['PATH']}"})
    assert code == 69 and out == ""
    assert re.search(r"host 127\.0\.0\.[23]: cannot enter the folder "
                     r"/no/folder: No such file or directory", err)
    assert_ends_in_time(sshd.mark)


def test_hosts_have_agents_already(sshd, trio):
    """With --socket no daemon is started, and none listens insecurely."""
    t = trio(servers=1, agents=1)
    code, out, err = run(
        sshd, "-n", "2", "-s", "1", "--hosts", "127.0.0.2", "--socket",
        t.socket(0), *SHELL, f"printf 'open\\nbarrier\\nclose\\n' | {WORKER}")
    assert code == 0, err
    assert "[127.0.0.2:1] ok 1 2 1 2" in out


def test_output_dir_is_on_this_host(sshd, tmp):
    where = tmp / "logs"
    code, _, err = run(sshd, "-n", "2", "-s", "1", *SPREAD, "--output-dir",
                       str(where), *SHELL, "seq 20000; echo e$RANK >&2")
    assert code == 0, err
    for rank in range(2):
        lines = (where / f"rank-{rank}.log").read_text().split()
        assert sorted(lines) == sorted([str(i) for i in range(1, 20001)] +
                                       [f"e{rank}"])


def test_slow_reader_gets_everything_from_hosts(sshd):
    """More than the credit of a host, read when all has been written."""
    p = subprocess.Popen(
        argv("-n", "2", "-s", "1", *SPREAD, *SHELL, "seq 200000"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=support.clean_env(PSKV_SSH=sshd.command, PSKV_MARK=sshd.mark))
    first = os.read(p.stdout.fileno(), 1)
    wait_for(lambda: len([c for _, c in marked(sshd.mark)
                          if c.startswith(b"seq")]) <= 2, "workers that wait")
    out, _ = p.communicate(timeout=limit(120))
    assert p.returncode == 0
    text = (first + out).decode()
    for rank, host in ((0, 3), (1, 2)):
        tag = f"[127.0.0.{host}:{rank}] "
        own = [line for line in text.split("\n") if line.startswith(tag)]
        assert own == [f"{tag}{i}" for i in range(1, 200001)]


# -------------------------------------------------------------------- failures

def test_the_first_failing_rank_is_named_last(sshd):
    code, out, err = run(
        sshd, "-n", "4", "-s", "1", *SPREAD, *SHELL,
        "test $RANK != 2 && exec sleep 1000; echo broken gradient >&2; exit 7")
    assert code == 7, (out, err)
    lines = err.strip().split("\n")
    assert lines[-1] == \
        "pslaunch: first to fail: rank 2 on 127.0.0.3 exited with code 7"
    assert "broken gradient" in err
    assert_ends_in_time(sshd.mark)


def test_a_signal_on_a_host_is_128_and_its_number(sshd):
    code, _, err = run(sshd, "-n", "2", "-s", "1", *SPREAD, *SHELL,
                       "test $RANK = 1 && kill -SEGV $$; exec sleep 1000")
    assert code == 128 + signal.SIGSEGV
    assert "rank 1 on 127.0.0.2 was killed by signal 11" in err
    assert_ends_in_time(sshd.mark)


def test_a_host_without_sshd_is_named(sshd):
    """The others start nothing."""
    code, out, err = run(sshd, "-n", "2", "-s", "1", "--hosts",
                         "127.0.0.2,127.0.0.9",
                         "echo", "started")
    assert code == 69 and out == ""
    assert "lost the host 127.0.0.9: its supervisor did not start" in err
    assert "[127.0.0.9 ssh] " in err
    assert_ends_in_time(sshd.mark)


# --------------------------------------------------------------- ends of a job

# On each host: three processes of pslaunch, two ranks with four processes, and
# an agent; psched and psservers in all.
FAMILY_COUNT = 2 * (3 + 2 * 4 + 1) + 1 + 2


def start_family(sshd):
    """A job whose ranks have children in sessions of their own."""
    r = start(sshd, "-n", "4", "-s", "2", *SPREAD, *SHELL, FAMILY)
    r.await_text(b"ready", 4)
    wait_for(lambda: len(on_hosts(sshd)) >= FAMILY_COUNT, "the whole family")
    return r


def on_hosts(sshd):
    """Marked processes that are neither ssh nor the pslaunch of the user."""
    return [(pid, command) for pid, command in marked(sshd.mark)
            if not command.startswith(b"ssh\0") and b"-n\0" not in command]


def test_interrupt_once_asks_the_ranks(sshd):
    polite = ("/usr/bin/python3", "-S", "-u", "-c", """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
print("ready")
signal.sigwait({signal.SIGTERM})
print("asked")
""")
    with start(sshd, "-n", "2", "-s", "1", *SPREAD, *polite) as r:
        r.await_text(b"ready", 2)
        r.process.send_signal(signal.SIGINT)
        assert r.wait() == 130
        r.await_text(b"asked", 2)
        assert_ends_in_time(sshd.mark)


def test_interrupt_twice_ends_ranks_at_once(sshd):
    """Also those that ignore TERM."""
    with start(sshd, "-n", "2", "-s", "1", *SPREAD, "--grace", "1000s", *SHELL,
               STUBBORN) as r:
        r.await_text(b"ready", 2)
        r.process.send_signal(signal.SIGINT)
        r.await_text(b"asked", 2)
        r.process.send_signal(signal.SIGINT)
        assert r.wait() == 130
        assert_ends_in_time(sshd.mark)


def test_interrupt_leaves_no_family(sshd):
    with start_family(sshd) as r:
        r.process.send_signal(signal.SIGINT)
        assert r.wait() == 130
        assert_ends_in_time(sshd.mark)


def test_killed_pslaunch_leaves_nothing_on_hosts(sshd):
    with start_family(sshd) as r:
        r.process.kill()
        assert r.wait() == -signal.SIGKILL
        assert_ends_in_time(sshd.mark)


@pytest.mark.parametrize("stopped", [(2,), (1, 2), (0, 1, 2), (2, 1, 0)],
                         ids=str)
def test_a_stopped_supervisor_ends_its_processes(sshd, stopped):
    """Processes of pslaunch on a host, which a rank there stops: 0 the front, 1
    the guard, 2 the supervisor. They end when pslaunch does."""
    with start_family(sshd) as r:
        own = {pid for pid, command in on_hosts(sshd)
               if b"--supervise" in command and b"sh\0" not in command}
        assert len(own) == 6
        fronts = [pid for pid in own if stat_of(pid)[1] not in own]
        for front in fronts:
            chain = [front]
            while len(chain) < 3:
                chain += [pid for pid in own if stat_of(pid)[1] == chain[-1]]
            for i in stopped:
                os.kill(chain[i], signal.SIGSTOP)
        if 0 in stopped:
            for front in fronts:
                wait_for(lambda front=front: stat_of(front)[0] == "T",
                         "the front stopped")
        r.process.kill()
        assert r.wait() == -signal.SIGKILL
        assert_ends_in_time(sshd.mark)


def test_a_killed_connection_ends_the_job(sshd):
    """That host's processes end because standard input does."""
    with start_family(sshd) as r:
        clients = [pid for pid, command in marked(sshd.mark)
                   if command.startswith(b"ssh\0")
                   and b"127.0.0.3\0" in command]
        assert len(clients) == 1
        os.kill(clients[0], signal.SIGKILL)
        assert r.wait() == 69
        r.await_text(b"lost the host 127.0.0.3: the connection to its "
                     b"supervisor has ended", name="err")
        r.await_text(b"was lost with the connection to its host", name="err")
        assert_ends_in_time(sshd.mark)


@pytest.mark.parametrize("victim", range(3),
                         ids=["front", "guard", "supervisor"])
def test_a_killed_supervisor_leaves_nothing(sshd, victim):
    """Whichever of the three processes of pslaunch on a host is killed."""
    with start_family(sshd) as r:
        own = sorted(pid for pid, command in on_hosts(sshd)
                     if b"--supervise" in command and b"sh\0" not in command)
        assert len(own) == 6
        os.kill(own[victim if own[1] < own[0] + 100000 else 0],
                signal.SIGKILL)
        assert r.wait() != 0
        assert_ends_in_time(sshd.mark)
