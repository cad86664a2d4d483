# SPDX-License-Identifier: Apache-2.0
"""A worker that waits names the missing ranks, if that is enabled; otherwise
the library writes nothing."""
import os
import pty
import select
import subprocess

import pytest
import trio as support
from trio import Job


class Listener(support.Worker):
    """A worker whose standard error is kept: of a pipe, or of a terminal."""

    def __init__(self, *args, terminal=False, **env):
        self.err, end = pty.openpty() if terminal else os.pipe()
        before = os.dup(2)
        os.dup2(end, 2)
        try:
            super().__init__(*args, **env)
        finally:
            os.dup2(before, 2)
            os.close(before)
            os.close(end)
        self.said = ""

    def await_word(self, word):
        deadline = support.Deadline()
        while word not in self.said:
            ready, _, _ = select.select([self.err], [], [],
                                        deadline.left(f"'{word}' in what the "
                                                      "worker says"))
            self.said += os.read(self.err, 65536).decode() if ready else ""

    def rest(self):
        """All that it said until its end."""
        self.end()
        while True:
            try:
                data = os.read(self.err, 65536)
            except OSError:  # A terminal without a writer.
                data = b""
            if not data:
                break
            self.said += data.decode()
        os.close(self.err)
        return self.said


@pytest.mark.parametrize("terminal", [False, True])
def test_a_waiting_worker_names_the_missing_ranks(trio, tmp, terminal):
    t = trio(servers=1, agents=1)
    job = Job(t, 2, "slow", open_now=False)
    job[0].end()
    first = job.workers[0] = Listener(t.socket(0), "slow", 0, 2,
                                      terminal=terminal,
                                      PSKV_WAIT_NOTES="200ms")
    zeros = tmp / "zeros"
    zeros.write_bytes(bytes(64))
    first.say("open")
    first.await_word("pskv: job slow, rank 0: the job has not begun for")
    first.await_word("2 workers")
    job[1].ask("open")
    first.hear()
    job.key("w", "float32", 16)
    first.say(f"pushpull {first.keys.get('w', 0)} src={zeros}")
    first.await_word("pskv: job slow, rank 0: ")
    first.await_word("is open for")
    first.await_word("rank 1")
    assert "'w'" in first.said
    job[1].ask(f"pushpull 0 src={zeros}")
    first.hear()
    job.tell("close")
    job[1].end()
    assert first.rest().count("\n") >= 2


def test_no_notes_into_files_or_when_disabled(trio):
    """Not if standard error is a file, and not if notes are disabled."""
    t = trio(servers=1, agents=1)
    for env in ({}, {"PSKV_WAIT_NOTES": "0"}, {"PSKV_WAIT_NOTES": "auto"}):
        w = Listener(t.socket(0), "quiet", 0, 2, PSKV_START_TIMEOUT="400ms",
                     **env)
        with pytest.raises(support.WorkerError) as e:
            w.ask("open")
        assert "rank 1" in str(e.value)
        assert w.rest() == ""


def test_pslaunch_on_a_terminal_asks_two_workers():
    master, slave = pty.openpty()
    argv = [support.program("pslaunch"), "-n", "3", "-s", "0", "--", "sh",
            "-c", "echo $RANK=$PSKV_WAIT_NOTES"]

    def out(stderr):
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=stderr,
                              text=True, check=True, env=support.clean_env(),
                              timeout=support.PATIENCE)
        return sorted(line.split()[-1] for line in done.stdout.splitlines())

    assert out(slave) == ["0=30s", "1=30s", "2="]
    assert out(subprocess.PIPE) == ["0=", "1=", "2="]
    os.close(master)
    os.close(slave)
