# SPDX-License-Identifier: Apache-2.0
"""Outputs that cannot be written: each program says which and why, in its
status, too, and goes on with the others."""
import json
import os
import subprocess
from pathlib import Path

import pytest
import trio as support
from disks import fill, small_disk
from launched import SHELL, argv, launch
from python_job import finish, spawn
from trio import PATIENCE, Trio, wait_for

ALONE = ("--socket", "/nonexistent/agent.sock")
IOERR = 74
REASON = "No space left on device"
SIZE = 64 << 10


@pytest.fixture(name="small")
def mounted(tmp):
    """A folder with room for SIZE bytes."""
    with small_disk(tmp / "small", SIZE) as folder:
        yield folder


def to_full(words, env=None):
    """(code, standard error) of a program whose standard output is full."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=full,
                              stderr=subprocess.PIPE, text=True, check=False,
                              timeout=PATIENCE, env=env or support.clean_env())
    return done.returncode, done.stderr


# -------------------------------------------------------------------- pslaunch

def test_files_of_output_dir(tmp, small):
    """The rank whose file is full is named once; the file of the other, and
    standard output, have all."""
    script = (f"if [ $RANK = 1 ]; then echo one; exit; fi; "
              f"until [ -s {small}/rank-1.log ]; do :; done; seq 100000")
    code, out, err = launch("-n", "2", *ALONE, "--output-dir", str(small),
                            *SHELL, script)
    path = f"{small}/rank-0.log"
    assert code == IOERR, err
    assert err.count(f"pslaunch: cannot write {path}: {REASON}; it lacks "
                     "the rest of the output, the job goes on\n") == 1, err
    assert err.count("cannot write") == 1, err
    assert out.count("\n") == 100001 and "[0] 100000\n" in out
    assert (small / "rank-1.log").read_text() == "one\n"
    kept = (small / "rank-0.log").read_text()
    everything = "".join(f"{i}\n" for i in range(1, 100001))
    assert kept and everything.startswith(kept), "the file has a gap"


def test_a_failed_rank_keeps_its_code(small):
    fill(small)
    code, _, err = launch("-n", "2", *ALONE, "--keep-going", "--output-dir",
                          str(small), *SHELL, "echo one; exit $((RANK * 7))")
    assert code == 7, err
    assert err.count(REASON) == 2, err
    assert err.strip().split("\n")[-1].endswith("exited with code 7"), err


def test_a_file_that_cannot_be_opened(tmp):
    where = tmp / "logs"
    where.mkdir()
    (where / "rank-1.log").mkdir()
    code, out, err = launch("-n", "2", *ALONE, "--output-dir", str(where),
                            *SHELL, "echo one")
    assert code == IOERR and out.count("one") == 2, err
    assert f"cannot write {where}/rank-1.log: Is a directory" in err
    assert (where / "rank-0.log").read_text() == "one\n"


def test_standard_output_of_a_job(tmp):
    """The ranks end well, and the files of --output-dir are whole."""
    where = tmp / "logs"
    code, err = to_full(argv("-n", "2", *ALONE, "--output-dir", str(where),
                             *SHELL, "seq 100000"))
    assert code == IOERR
    assert err == ("pslaunch: cannot write standard output: No space left on "
                   "device; it lacks the rest of the output, the job goes on\n")
    for rank in range(2):
        text = (where / f"rank-{rank}.log").read_text()
        assert text == "".join(f"{i}\n" for i in range(1, 100001))


def test_standard_error_of_a_job():
    """There is no other place for words; the status stays."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            argv("-n", "1", *ALONE, *SHELL, "echo one >&2; echo two"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=full,
            text=True, check=False, timeout=PATIENCE, env=support.clean_env())
    assert (done.returncode, done.stdout) == (IOERR, "[0] two\n")


# ------------------------------------------------------------- standard output

@pytest.mark.parametrize("name, words", [
    ("psctl", ("--help",)), ("psctl", ("--version",)),
    ("psctl", ("help", "status")), ("psctl", ("completion", "bash")),
    ("psctl", ("__complete", "")), ("psctl", ("explain",)),
    ("psctl", ("-w", "json", "explain")), ("psctl", ("context", "list")),
    ("pslaunch", ("--help",)), ("pslaunch", ("--version",)),
    ("pslaunch", ("--print-config=defaults",)),
    ("pslaunch", ("--print-config=schema",)),
    ("pslaunch", ("-n", "2", "--dry-run", "--private", "true")),
    ("pslaunch", ("-n", "2", "--dry-run", "--launcher", "yarn",
                  "--insecure-network", "true"))]
    + [(name, words) for name in ("psched", "psserver", "psworker-agent")
       for words in (("--help",), ("--version",), ("--print-config",),
                     ("--print-config=defaults",),
                     ("--print-config=schema",))])
def test_text_that_a_program_prints(tmp, name, words):
    """`psctl context list` needs a context to have anything to print."""
    config = tmp / "config"
    env = support.clean_env(XDG_CONFIG_HOME=config)
    if words[0] == "context":
        subprocess.run([support.program("psctl"), "-e", "h:1", "context",
                        "set", "one"], check=True, env=env)
    else:
        env = support.clean_env()
    code, err = to_full([support.program(name), *words], env)
    assert (code, err) == (IOERR, f"{name}: standard output: {REASON}\n")


@pytest.mark.parametrize("words", [
    ("status",), ("-w", "json", "status"), ("nodes",), ("jobs",), ("events",),
    ("top", "-n", "1"), ("doctor",), ("--watch=1s", "nodes"),
    ("events", "--follow")], ids=" ".join)
def test_answers_of_psctl(trio, words):
    """A command that repeats itself ends, too."""
    t = trio(servers=1, agents=1)
    code, err = to_full([support.program("psctl"), "-e", t.endpoint, *words])
    assert code != 0 and code in (3, IOERR), err
    assert err == f"psctl: standard output: {REASON}\n"


def test_no_standard_output_is_no_failure_without_words(trio):
    """A command that prints nothing needs none."""
    t = trio(servers=1, agents=1)
    words = [support.program("psctl"), "-e", f"unix:{t.control}", "log-level",
             "info"]
    done = subprocess.run(["bash", "-c", '"$@" >&-', "-", *words],
                          capture_output=True, text=True, check=False,
                          timeout=PATIENCE, env=support.clean_env())
    printed = subprocess.run(words, capture_output=True, text=True,
                             check=True, timeout=PATIENCE,
                             env=support.clean_env()).stdout
    assert (done.returncode == 0) == (printed == ""), (done, printed)


# ----------------------------------------------------------------------- files

def test_trace_file(trio):
    t = trio(servers=1, agents=1)
    text = ("import pskv, sys, numpy as np\nkv = pskv.create('dist_sync')\n"
            "w = np.ones(100, 'f')\nkv.init('w', w)\n"
            "for _ in range(100):\n    kv.pushpull('w', w, out=w)\n"
            "print('ready', flush=True)\nsys.stdin.read()\nkv.close()\n")
    worker = spawn(t, "job", 0, text, workers=1, stdin=subprocess.PIPE)
    try:
        assert worker.stdout.readline() == "ready\n"
        code, _, err = t.psctl("trace", "job", "-o", "/dev/full")
        assert code == IOERR and f"psctl: /dev/full: {REASON}\n" in err
    finally:
        worker.stdin.close()
    worker.wait(PATIENCE)


def test_states_and_profiles(trio, small):
    """The user's exception has path and reason; no half file is left."""
    text = """
import numpy as np, os, pskv, sys
folder = sys.argv[1]
kv = pskv.create('dist_sync')
kv.set_optimizer('adam')
w = np.ones(100000, 'f')
kv.init('w', w)
kv.profile_servers()
for _ in range(10):
    kv.pushpull('w', w, out=w)
kv.profile_servers('stop')
def fails(save):
    try:
        save()
        print('saved')
    except pskv.Error as e:
        print(e)
fails(lambda: kv.save_optimizer_states(folder + '/states'))
with open(folder + '/filler', 'wb', buffering=0) as f:
    try:
        while True:
            f.write(bytes(4096))
    except OSError:
        pass
fails(lambda: kv.save_server_profiles(folder + '/profile'))
print(sorted(os.listdir(folder)))
kv.close()
"""
    t = trio(servers=1, agents=1)
    said, = finish([spawn(t, "job", 0, text, small, workers=1)])
    states, profile, files = said.splitlines()
    assert f"{small}/states: {REASON}" in states
    assert f"{small}/rank0_profile: {REASON}" in profile
    assert files == "['filler']"


def test_metrics_file_and_port_file(tmp, small):
    """A file of metrics that comes late is better than no daemon; a port file
    that nobody can read is none."""
    filler = fill(small)
    path = small / "psched.prom"
    base = [support.program("psched"), "-c", "/dev/null", "-o",
            "listen.port=0", "-o", f"control.socket={tmp}/s"]
    done = subprocess.run(base + ["--port-file", str(small / "port")],
                          capture_output=True, text=True, check=False,
                          timeout=PATIENCE, env=support.clean_env())
    assert done.returncode == 73
    assert f"cannot write {small}/port: {REASON}" in done.stderr
    t = Trio(tmp / "trio", servers=0, agents=0, options=[
        f"metrics.file={path}", "metrics.interval=1s"])
    try:
        t.start()
        t.sched.await_log(f"metrics.file: cannot write {path}: {REASON}")
        assert list(small.iterdir()) == [filler]
        filler.unlink()
        wait_for(path.exists, "the file of metrics, with space again")
        assert "psched_build_info" in path.read_text()
    finally:
        t.stop()


def test_a_log_tells_how_many_lines_it_lost(tmp, small):
    """Standard error of a daemon in a file: psctl makes it log again when there
    is space again."""
    filler = fill(small)
    log = open(small / "log", "wb")
    read, write = os.pipe()
    daemon = subprocess.Popen(
        [support.program("psched"), "-c", "/dev/null", "--log-format", "json",
         "-o", "listen.port=0", "-o", f"control.socket={tmp}/s",
         "--ready-fd", str(write)], stdin=subprocess.DEVNULL, stderr=log,
        pass_fds=[write], env=support.clean_env(),
        preexec_fn=support.die_with_parent)
    log.close()
    os.close(write)
    try:
        assert os.read(read, 1) == b"\n"
        filler.unlink()
        daemon.terminate()
        assert daemon.wait(PATIENCE) == 0
    finally:
        daemon.kill()
        daemon.wait()
        os.close(read)
    lines = [json.loads(line)
             for line in Path(small / "log").read_text().splitlines() if line]
    assert lines[0]["level"] == "warning"
    count = int(lines[0]["msg"].split()[0])
    assert count > 0 and lines[0]["msg"] == (
        f"{count} lines of this log are lost: standard error: {REASON}")
    assert "msg" in lines[1]
