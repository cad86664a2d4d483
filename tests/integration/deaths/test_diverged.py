# SPDX-License-Identifier: Apache-2.0
"""Ranks that wait for each other are named, and end with an error; programs that
end by themselves are never called DIVERGED, whatever their threads do."""
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio as support
from trio import wait_for

PROGRAM = str(Path(__file__).parent / "diverging.py")
# Programs of one run, and the seed of the first one: ./dev soak diverged.
PROGRAMS = int(os.environ.get("PSKV_DIVERGED_PROGRAMS", "48"))
FIRST = int(os.environ.get("PSKV_DIVERGED_SEED", "0"))
PAIRS = 8

# Name -> ranks, and what each side is in.
RINGS = {
    "keys": (2, "rank 0 is in pushpull of a round 1, rank 1 in pushpull of b "
                "round 1"),
    "barrier_and_key": (2, "rank 0 is in barrier 2, rank 1 in pushpull of a "
                           "round 1"),
    "barrier_and_pull": (2, "rank 0 is in barrier 2, rank 1 in pull of a"),
    "collective": (2, "rank 0 is in allreduce of x, rank 1 in barrier 2"),
    "groups": (2, "rank 0 is in barrier 1 of job "),
    "norms": (2, "rank 0 is in pushpull of a round 1, rank 1 in pushpull of b "
                 "round 1"),
    "lars": (2, "rank 0 is in pushpull of a round 1, rank 1 in pushpull of b "
                "round 1"),
    "init": (2, "rank 0 is in barrier 2, rank 1 in "),
    "eight_in_two_orders": (8, "ranks 0-4,6-7 are in pushpull of a round 1, "
                               "rank 5 in pushpull of b round 1"),
    "eight_and_a_barrier": (8, "ranks 0-2,4-7 are in pushpull of a round 1, "
                               "rank 3 in barrier 2"),
    "threads_and_handles": (2, "rank 0 is in pushpull of "),
}


def start(t, tmp, ranks, *words, **env):
    """Processes of all ranks, and their files of output."""
    made = []
    for rank in range(ranks):
        path = tmp / f"out-{words[-1]}-{rank}"
        with open(path, "wb") as out:
            made.append((subprocess.Popen(
                [sys.executable, PROGRAM, *map(str, words)], stdout=out,
                stderr=out, preexec_fn=support.die_with_parent,
                env=support.clean_env(
                    PYTHONPATH=support.SOURCE / "lib/client/python",
                    PSKV_LIBRARY=support.LIBRARY,
                    PYTHONDONTWRITEBYTECODE=1, OMP_NUM_THREADS=1,
                    PSKV_SOCKET=t.socket(rank * len(t.agent_names) // ranks),
                    PSKV_RANK=rank, PSKV_NUM_WORKERS=ranks,
                    PSKV_NUM_SERVERS=len(t.server_names), **env)), path))
    return made


def end(made, limit=support.PATIENCE):
    """(exit codes, outputs)"""
    codes = []
    for process, path in made:
        try:
            codes.append(process.wait(timeout=limit))
        except subprocess.TimeoutExpired:
            for one, _ in made:
                one.send_signal(signal.SIGKILL)
            raise AssertionError("not ended: " + path.read_text()) from None
    return codes, [path.read_text() for _, path in made]


@pytest.mark.parametrize("name", RINGS)
def test_a_ring_is_named_and_ends_the_job(trio, tmp, name):
    ranks, words = RINGS[name]
    t = trio(servers=1, agents=2, options=["failure.diverged_after=3s"])
    made = start(t, tmp, ranks, "ring", name, PSKV_JOB=name)

    def shown():
        assert all(process.poll() is None for process, _ in made), \
            end(made)[1]
        rows = [r for r in t.ask("stall")["stalls"] if r["diverged"]]
        return rows[0] if rows else None

    row = wait_for(shown, f"DIVERGED in psctl stall for {name}", step=.2)
    assert row["what"].startswith("DIVERGED: " + words), row
    assert len(row["ring"]) == ranks
    for one, (process, _) in zip(row["ring"], made):
        assert one["pid"] == process.pid
        assert one["node"] == f"node{one['rank'] * 2 // ranks}"
    _, out, _ = t.psctl("status")
    assert re.search(r"! job \S+ is DIVERGED: rank", out), out
    codes, texts = end(made)
    assert codes == [7] * ranks, texts
    for text in texts:
        assert "DIVERGED: " + words in text
        assert "make the same calls in the same order" in text
    _, out, _ = t.psctl("events")
    assert "DIVERGED" in out


def test_a_rank_that_sleeps_is_no_ring(trio, tmp):
    t = trio(servers=1, agents=2, options=["failure.diverged_after=1s"])
    made = start(t, tmp, 2, "ring", "sleeps", PSKV_JOB="sleeps", SLEEP=8,
                 PSKV_WAIT_NOTES="2s")

    def named():
        # Before that, rank 1 may wait for a rank 0 that has not begun.
        rows = t.ask("stall")["stalls"]
        missing = rows[0]["missing"] if rows else []
        return [(m["rank"], m["does"]) for m in missing] == \
            [(1, "in no call")] and rows

    rows = wait_for(named, "the sleeping rank in psctl stall", step=.2)
    assert rows[0]["missing"][0]["node"] == "node1"
    pid = made[1][0].pid
    assert rows[0]["missing"][0]["pid"] == pid
    codes, texts = end(made)
    assert codes == [0, 0], texts
    assert f"rank 1 on node1 (pid {pid}, in no call)" in texts[0]
    assert f"'py-spy dump --pid {pid}'" in texts[0]
    _, out, _ = t.psctl("events")
    assert "DIVERGED" not in out


def test_programs_that_end_are_never_diverged(trio, tmp):
    """Random programs of several threads and handles, many at a time. psched
    looks at those that pause, or a false DIVERGED had no chance."""
    t = trio(servers=2, agents=2, options=["failure.diverged_after=1s"])
    each = max(1, PROGRAMS // PAIRS)
    made = []
    for pair in range(PAIRS):
        made += start(t, tmp, 2 + pair % 2, "random", FIRST + pair * each,
                      each)
    codes, texts = end(made, limit=support.PATIENCE + 15 * each)
    assert not any(codes), texts
    _, out, _ = t.psctl("events")
    assert "DIVERGED" not in out, out
    assert "DIVERGED" not in t.sched.text()
    print(f"{PAIRS * each} programs from seed {FIRST}: none is DIVERGED")
