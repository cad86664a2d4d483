# SPDX-License-Identifier: Apache-2.0
"""psctl top, in batch mode and on a terminal."""
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import xml.etree.ElementTree

import pytest
import trio as support
from trio import PATIENCE, Deadline, Job, wait_for

ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


def test_batch_prints_jobs_and_members(trio):
    t = trio(servers=2, agents=1)
    with Job(t, 2, "digits") as job:
        key = job.key("w", "float32", 100000)
        job.tell(f"rounds count 20 1 0 {key}")
        code, out, err = t.psctl("top", "--batch", "-n", "2", "--watch=100ms")
        assert code == 0, err
        assert "\x1b" not in out
        frames = out.split("cluster  ")[1:]
        assert len(frames) == 2
        for frame in frames:
            lines = frame.splitlines()
            assert any(line.split()[:3] == ["job", "digits", "RUNNING"]
                       for line in lines), frame
            table = next(i for i, line in enumerate(lines)
                         if line.startswith("NAME "))
            names = [line.split()[0] for line in lines[table + 1:] if line]
            assert sorted(names) == ["node0", "ps0", "ps1"]
    # Without a terminal it is the batch mode.
    code, out, _ = t.psctl("top", "-n", "1")
    assert code == 0 and "\x1b" not in out and out.count("cluster  ") == 1


def test_order_of_members_is_chosen(trio):
    t = trio(servers=2, agents=1)

    def names(*words):
        code, out, err = t.psctl("--no-headers", "-b", "-n", "1", *words, "top")
        assert code == 0, err
        table = out.split("\n\n", 1)[1]
        return [line.split()[0] for line in table.splitlines()]

    assert names("--sort", "name") == ["ps0", "ps1", "node0"]
    with Job(t, 1) as job:
        key = job.key("w", "float32", 100000)
        job.tell(f"rounds count 3 1 0 {key}")

        def held():
            return {n["name"]: n["stored"] for n in t.ask("nodes")["nodes"]}

        # Each member says what it holds in heartbeats of its own.
        wait_for(lambda: held()["ps0"] + held()["ps1"] == 400_000 and
                 held()["node0"] > 0, "what all members hold")
        by_memory = names("--sort", "memory")
        now = held()
        assert now[by_memory[0]] == max(now.values())
    code, _, err = t.psctl("--sort", "weight", "top")
    assert code == 2 and "give traffic, rounds, memory or name" in err


def test_json_is_that_of_status(trio):
    t = trio(servers=1, agents=1)
    code, out, _ = t.psctl("-w", "jsonl", "-n", "2", "--watch=50ms", "top")
    assert code == 0
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == 2
    assert set(answers[0]) == set(t.ask("status"))


def test_batch_ends_without_a_scheduler(trio):
    t = trio(servers=0, agents=0)
    t.sched.stop(Deadline(), kill=True)
    code, out, err = t.psctl("-b", "top")
    assert (code, out) == (69, "")
    assert "cannot reach psched" in err


class Screen:
    """psctl top on a terminal of its own."""

    def __init__(self, t, *words, columns=80):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ,
                    struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [support.program("psctl"), "-e", t.endpoint, *words, "top"],
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=support.clean_env(TERM="xterm"))
        os.close(slave)
        self.seen = b""

    def read_until(self, what, since=0, times=1):
        def is_shown(seen):
            return seen[since:].count(what) >= times

        self.seen = support.read_until(self.master, is_shown, repr(what),
                                       seen=self.seen)
        assert is_shown(self.seen), self.seen

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.mark.parametrize("key", [b"q", b"\x03"], ids=["q", "ctrl-c"])
def test_terminal_is_left_as_it_was(trio, key):
    t = trio(servers=1, agents=1)
    screen = Screen(t, "--watch=50ms")
    try:
        screen.read_until(ENTER)
        screen.read_until(b"node0")
        first = len(screen.seen)
        screen.read_until(b"ps0")
        # Frame after frame, each from the upper left corner.
        screen.read_until(b"\x1b[H\x1b[J", times=3)
        assert len(screen.seen) > first
        os.write(screen.master, key)
        screen.read_until(LEAVE)
        assert screen.process.wait(PATIENCE) == 0
        assert screen.seen.rstrip().endswith(LEAVE)
    finally:
        screen.end()


def test_lines_are_cut_at_the_edge_and_keys_are_shown(trio):
    """At 60 columns no line is longer, and none is overwritten at its end."""
    t = trio(servers=2, agents=1)
    screen = Screen(t, "--watch=50ms", columns=60)
    try:
        screen.read_until(b"q ends")
        frame = screen.seen.decode().split("\x1b[H\x1b[J")[-1]
        frame = frame.split("q ends")[0]
        lines = frame.split("\r\n")
        assert max(map(len, lines)) <= 60 and len(lines) > 5, frame
        _, whole, _ = t.psctl("-b", "-n", "1", "top")
        heading = next(x for x in whole.splitlines() if x.startswith("NAME "))
        assert len(heading) > 60
        assert any(line == heading[:60] for line in lines), frame
        assert b"\x1b[?7l" not in screen.seen
        order = [x.split()[0] for x in lines if x.startswith(("ps", "node"))]
        assert order == ["ps0", "ps1", "node0"]
        os.write(screen.master, b"mq")
        assert screen.process.wait(PATIENCE) == 0
    finally:
        screen.end()


def test_terminal_waits_for_a_scheduler_that_is_gone(trio):
    t = trio(servers=1, agents=0)
    screen = Screen(t, "--watch=50ms")
    try:
        screen.read_until(b"ps0")
        t.sched.stop(Deadline(), kill=True)
        screen.read_until(b"cannot reach psched")
        since = len(screen.seen)
        t.launch("sched").await_ready(Deadline())
        screen.read_until(b"NAME", since)
        os.write(screen.master, b"q")
        screen.read_until(LEAVE)
    finally:
        screen.end()


def test_picture_of_the_documents_is_drawn(trio):
    """docs/pictures/draw.py has the lines of a real frame."""
    sys.path.insert(0, str(support.SOURCE / "docs/pictures"))
    import draw
    t = trio(servers=1, agents=1)
    lines = draw.capture_top(draw.Programs(support.BUILD), t.endpoint,
                             support.limit(3))
    assert any(line.split()[:2] == ["ps0", "server"] for line in lines), lines
    picture = draw.draw_terminal(lines, "psctl top")
    root = xml.etree.ElementTree.fromstring(picture)
    words = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"$ psctl top", "ps0", "node0", "NAME"} <= set(words), words
