# SPDX-License-Identifier: Apache-2.0
"""A worker that waits names the missing ranks wherever its standard error goes,
after 30 s and then at growing intervals."""
import os
import pty
import re

import pytest
import trio as support
from trio import Job


class Listener(support.Worker):
    """A worker whose standard error is kept: of a pipe, or of a terminal."""

    def __init__(self, *args, terminal=False, **env):
        env.setdefault("PSKV_ON_LOSS", "wait")  # As the others of its Job.
        self.err, end = pty.openpty() if terminal else os.pipe()
        before = os.dup(2)
        os.dup2(end, 2)
        try:
            super().__init__(*args, **env)
        finally:
            os.dup2(before, 2)
            os.close(before)
            os.close(end)
        self.notes = b""

    def await_word(self, word):
        self.notes = support.read_until(
            self.err, lambda seen: word.encode() in seen,
            f"'{word}' in what the worker says", support.limit(60), self.notes)
        assert word.encode() in self.notes, self.notes

    def rest(self):
        """All that it said until its end."""
        self.end()
        self.notes = support.read_until(self.err, lambda seen: False,
                                        "the end of the worker's notes",
                                        seen=self.notes)
        os.close(self.err)
        return self.notes.decode()


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
    first.await_word("pskv: job slow, rank 0: has waited 0 s for its start: "
                     "the job has not begun; missing: rank 1")
    job[1].ask("open")
    first.hear()
    job.key("w", "float32", 16)
    first.say(f"pushpull {first.keys.get('w', 0)} src={zeros}")
    first.await_word("pskv: job slow, rank 0 on node0: ")
    first.await_word("is open for")
    first.await_word("rank 1")
    assert b"'w'" in first.notes
    job[1].ask(f"pushpull 0 src={zeros}")
    first.hear()
    job.tell("close")
    job[1].end()
    assert first.rest().count("\n") >= 2


def waiting_pair(t, name, **env):
    """A job whose rank 0 waits for rank 1 in a pushpull of `w`."""
    job = Job(t, 2, name, open_now=False)
    job[0].end()
    job.workers[0] = Listener(t.socket(0), name, 0, 2, **env)
    job.tell("open")
    job.key("w", "float32", 16)
    return job


def test_notes_come_at_growing_intervals(trio, tmp):
    """Each line comes when the wait has lasted twice as long as at the line
    before."""
    t = trio(servers=1, agents=1)
    zeros = tmp / "zeros"
    zeros.write_bytes(bytes(64))
    job = waiting_pair(t, "grow", PSKV_WAIT_NOTES="200ms")
    first = job[0]
    first.say(f"pushpull 0 src={zeros}")
    times = []
    while len(times) < 4:
        first.await_word("\n")
        line, _, first.notes = first.notes.partition(b"\n")
        line = line.decode()
        assert line.startswith("pskv: job grow, rank 0 on node0: pushpull of 'w'")
        assert line.endswith("'psctl stall' shows the waits of all ranks")
        times.append(float(re.search(r"is open for ([\d.]+) s", line)[1]))
    for earlier, later in zip(times, times[1:]):
        assert later >= 2 * earlier - 0.2, times
    job[1].ask(f"pushpull 0 src={zeros}")
    first.hear()
    job.tell("close")
    job[1].end()
    first.rest()


def test_first_note_goes_to_a_file_after_half_a_minute(trio, tmp):
    """Without any option, and where standard error is no terminal."""
    t = trio(servers=1, agents=1)
    zeros = tmp / "zeros"
    zeros.write_bytes(bytes(64))
    job = waiting_pair(t, "file", PSKV_WAIT_NOTES=None)
    job[0].say(f"pushpull 0 src={zeros}")
    job[0].await_word("rank 1")
    assert 30 <= float(re.search(rb"is open for ([\d.]+) s", job[0].notes)[1])
    job[1].ask(f"pushpull 0 src={zeros}")
    job[0].hear()
    job.tell("close")
    job[1].end()
    assert job[0].rest().count("\n") == 1


def test_no_notes_before_their_time_or_when_disabled(trio):
    t = trio(servers=1, agents=1)
    for notes in (None, "0", "auto"):
        w = Listener(t.socket(0), "quiet", 0, 2, PSKV_START_TIMEOUT="400ms",
                     PSKV_WAIT_NOTES=notes)
        with pytest.raises(support.WorkerError) as e:
            w.ask("open")
        assert "rank 1" in str(e.value)
        assert w.rest() == ""


LACKS_SERVERS = ("needs 4 servers, 2 are here: start more, or ask for fewer "
                 "(PSKV_NUM_SERVERS, pslaunch -s)")


def test_a_job_that_lacks_servers_says_how_many(trio):
    """The worker, psctl status, stall and doctor; it begins when they come."""
    t = trio(servers=2, agents=1)
    w = Listener(t.socket(0), "wide", 0, 1, PSKV_NUM_SERVERS=4,
                 PSKV_WAIT_NOTES="200ms")
    w.say("open")
    w.await_word(f"missing: servers: the job {LACKS_SERVERS}")
    code, out, _ = t.psctl("status")
    assert (code, f"! job wide {LACKS_SERVERS}" in out) == (3, True), out
    code, out, _ = t.psctl("doctor")
    assert code == 3 and f"job wide {LACKS_SERVERS}" in out, out
    assert "start more servers, or ask for fewer" in out
    row, = t.ask("stall")["stalls"]
    assert row["what"] == "start: servers" and row["missing"] == []
    assert row["also"] == f"servers: the job {LACKS_SERVERS}"
    assert t.ask("jobs")["jobs"][0]["standstill"] == LACKS_SERVERS
    t.server_names += ["ps2", "ps3"]
    for name in ("ps2", "ps3"):
        t.launch(name).await_ready(support.Deadline())
    w.hear()
    assert t.ask("jobs")["jobs"][0]["standstill"] == ""
    w.ask("close")
    w.rest()
    t.await_empty()
