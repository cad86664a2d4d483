# SPDX-License-Identifier: Apache-2.0
"""pslaunch at work, and what it has started: processes are found by a mark in
their environment or arguments, never by name."""
import os
import signal
import subprocess
import threading
import uuid
from pathlib import Path

import trio as support
from trio import limit, wait_for


def argv(*words):
    return [support.program("pslaunch"), *words]


def launch(*words, env=None, seconds=60):
    done = subprocess.run(argv(*words), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=limit(seconds),
                          env=support.clean_env(**(env or {})), check=False)
    return done.returncode, done.stdout, done.stderr


# ------------------------------------------------------------------ processes

def stat_of(pid):
    """(state, parent) or None."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    words = text.rsplit(")", 1)[1].split()
    return words[0], int(words[1])


def kill_at_once(pids):
    """Kills processes of pslaunch so that none of them does anything in between:
    a parent resumes a child that is stopped, and its death does, too."""
    parents = {pid: stat_of(pid)[1] for pid in pids}

    def depth(pid):
        return 1 + depth(parents[pid]) if parents[pid] in parents else 0

    for pid in sorted(pids, key=depth):
        os.kill(pid, signal.SIGSTOP)
        wait_for(lambda pid=pid: stat_of(pid)[0] == "T", f"{pid} has stopped")
    for pid in sorted(pids, key=depth, reverse=True):
        os.kill(pid, signal.SIGKILL)


def marked(mark):
    """Processes that carry the mark in environment or arguments and are not
    zombies. The test itself carries neither."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            text = (entry / "environ").read_bytes() + command
        except OSError:
            continue
        stat = stat_of(entry.name)
        if mark.encode() in text and stat and stat[0] != "Z":
            found.append((int(entry.name), command))
    return found


def children_of(pid):
    """In the order of their starts, also where numbers have begun again."""
    numbers = int(Path("/proc/sys/kernel/pid_max").read_text())
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = stat_of(entry.name)
            if stat and stat[1] == pid and stat[0] != "Z":
                found.append(int(entry.name))
    return sorted(found, key=lambda child: (child - pid) % numbers)


def await_nothing(mark):
    try:
        wait_for(lambda: not marked(mark), "end of all processes")
    except AssertionError as e:
        raise AssertionError(f"{e}: {marked(mark)}") from e


class Running:
    """pslaunch at work; its output is gathered aside."""

    def __init__(self, *words, env=None, mark=None, inside=()):
        """`inside`: a command in front, such as that of a host."""
        self.mark = mark or f"mark-{uuid.uuid4().hex}"
        self.process = subprocess.Popen(
            [*inside, *argv(*words)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=support.clean_env(PSKV_MARK=self.mark, **(env or {})))
        self.text = {"out": b"", "err": b""}
        self.changed = threading.Condition()
        for name, pipe in (("out", self.process.stdout),
                           ("err", self.process.stderr)):
            threading.Thread(target=self.gather, args=(name, pipe),
                             daemon=True).start()

    def gather(self, name, pipe):
        while True:
            data = os.read(pipe.fileno(), 65536)
            with self.changed:
                self.text[name] += data
                self.changed.notify_all()
            if not data:
                return

    def await_text(self, word, count=1, name="out"):
        with self.changed:
            assert self.changed.wait_for(
                lambda: self.text[name].count(word) >= count, limit(60)), \
                self.text

    def wait(self, seconds=30):
        return self.process.wait(limit(seconds))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid, _ in marked(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


# Two offspring in sessions of their own, one of which has lost the mark in
# its environment and carries it in its name alone.
FAMILY = """
setsid bash -c 'exec -a "$PSKV_MARK" sleep 1000' &
env -i setsid bash -c "exec -a $PSKV_MARK sleep 1000" &
(setsid setsid sleep 1000 &)
echo ready
exec sleep 1000
"""
# Ends by KILL alone.
STUBBORN = """
trap 'echo asked' TERM
echo ready
while :; do read -t 0.2 x <> <(:); done
"""
SHELL = ("bash", "-c")
