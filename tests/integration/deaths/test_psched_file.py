# SPDX-License-Identifier: Apache-2.0
"""A scheduler with a file (state.file) that is killed and restarted: no rank
notices, and the next job begins at once."""
import contextlib
import os
import sqlite3
import subprocess

import pytest

import trio as harness
from disks import fill, small_disk
from psched_deaths import await_members, begin, kill, start, train
from trio import Job, WorkerError, wait_for

GOES_ON = "the scheduler was restarted, and goes on from its file"
ENDS = "jobs that it does not know end"
IOERR, TEMPFAIL, CONFIG = 74, 75, 78


@pytest.fixture(name="filed")
def trio_with_file(trio, tmp):
    def make(path=None, options=(), **more):
        where = path or tmp / "psched.state"
        return trio(options=[f"state.file={where}", *options], **more)
    return make


def gen_of(trio, name):
    return [j["gen"] for j in trio.ask("jobs")["jobs"] if j["name"] == name]


def psched(*words):
    done = subprocess.run([harness.program("psched"), *map(str, words)],
                          capture_output=True, text=True, check=False,
                          timeout=harness.PATIENCE, env=harness.clean_env())
    return done.returncode, done.stdout, done.stderr


def test_no_rank_notices(filed):
    t = filed(servers=2, agents=2)
    job, k = begin(t, "x")
    gens = gen_of(t, "x")
    job.say(f"rounds count 3000 1 0 {k}")
    for _ in range(4):
        kill(t)
        start(t)
        await_members(t)
        assert gen_of(t, "x") == gens
    job.hear()
    train(t, "next")
    job.tell("barrier")
    job.close()
    t.await_empty()
    for d in t.servers() + t.agents():
        assert d.text().count(GOES_ON) == 4 and ENDS not in d.text()


def test_requests_wait_for_its_return(filed):
    """Idle at the death: barrier, key and optimizer of ranks are answered by the
    next scheduler, and what was declared holds."""
    t = filed(servers=2, agents=2)
    job, k = begin(t, "x")
    job[0].say("barrier")  # In progress at the death.
    kill(t)
    job[1].say("barrier")
    job[2].say("key fresh float32 100")
    start(t)
    fresh = job[2].hear()
    job[2].say("barrier")
    job[3].say("barrier")
    for w in job:
        w.hear()
    assert job[3].key("fresh", "float32", 100) == int(fresh[0])
    with pytest.raises(WorkerError, match="was declared float32 of 50000 before"):
        job[3].key("w", "float32", 7)
    job.tell(f"rounds count 20 1 0 {k}")
    # Barriers that were open are open.
    kill(t)
    start(t)
    job.tell("barrier")
    job.close()
    t.await_empty()


def test_a_rank_is_lost_while_it_is_away(filed):
    t = filed(servers=1, agents=2)
    job, k = begin(t, "x", PSKV_ON_LOSS="fail")
    job.say(f"rounds count 100000 1 0 {k}")
    kill(t)
    job[3].kill()
    start(t)
    for w in list(job)[:3]:
        with pytest.raises(WorkerError, match="rank 3 on node1 was lost"):
            w.hear()
    train(t, "next")
    for w in job:
        w.kill()
        w.end()
    t.await_empty()


def test_a_member_that_does_not_return_is_lost(filed):
    t = filed(servers=2, agents=1, options=["heartbeat.suspect_after=1s",
                                            "heartbeat.dead_after=2s"])
    job, k = begin(t, "x")
    job.say(f"rounds count 2000 1 0 {k}")
    kill(t)
    kill(t, "ps1")
    start(t)
    t.await_node("ps1", "state", "gone")
    job.hear()  # Sums: the other server has taken over.
    job.close()
    start(t, "ps1")
    t.await_empty()


def test_an_old_file_is_noticed(filed, tmp):
    t = filed(servers=2, agents=1)
    train(t, "first")
    t.await_empty()
    code, out, err = psched("--copy-state", tmp / "psched.state",
                            tmp / "copy")
    assert code == 0 and "of cluster 'default'" in out, err
    t.replace("ps1")  # Another process is another epoch.
    await_members(t)
    kill(t)
    os.replace(tmp / "copy", tmp / "psched.state")
    (tmp / "psched.state-wal").unlink()
    start(t)
    await_members(t)
    t.sched.await_log("state.file is older than the cluster (epoch ")
    assert any(e["what"] == "old file" for e in t.ask("events")["events"])
    train(t, "next")
    t.await_empty()


def test_another_psched_is_refused(filed, tmp):
    t = filed(servers=1, agents=1)
    code, _, err = psched("-c", "/dev/null", "-o", "listen.port=0", "-o",
                          f"control.socket={tmp}/other.sock", "-o",
                          f"state.file={tmp}/psched.state")
    assert code == TEMPFAIL
    assert "psched.state: another psched has it open" in err
    train(t, "x")


def test_files_are_checked(filed, tmp):
    t = filed(servers=1, agents=1)
    job, _ = begin(t, "x")
    # While it runs, and after its death.
    for _ in range(2):
        code, out, err = psched("--check-state", tmp / "psched.state")
        assert code == 0 and ", 1 jobs, of cluster 'default'" in out, err
        kill(t)
    with sqlite3.connect(tmp / "psched.state") as db:
        # It died while it made its reserve, and the disk is full since then.
        db.execute("INSERT INTO row VALUES (0, 0, 0, zeroblob(9000))")
    db.close()
    code, out, err = psched("--check-state", tmp / "psched.state")
    assert code == 0, err
    junk = tmp / "junk"
    junk.write_bytes(b"x" * 9000)
    code, _, err = psched("--check-state", junk)
    assert code == CONFIG and "file is not a database" in err
    code, _, err = psched("--check-state", tmp / "none")
    assert code == CONFIG and "unable to open database file" in err
    code, _, err = psched("-c", "/dev/null", "-o", "listen.port=0", "-o",
                          f"control.socket={tmp}/other.sock", "-o",
                          f"state.file={junk}")
    assert code == CONFIG and "state.file: " in err
    start(t)
    job.tell("barrier")
    job.close()


# ------------------------------------------------------------------ full disks

@pytest.fixture(name="disk")
def mounted(tmp):
    with contextlib.ExitStack() as made:
        yield lambda size: made.enter_context(small_disk(tmp / "disk", size))


def test_a_full_disk_refuses_jobs_and_no_more(filed, disk):
    folder = disk(16 << 20)
    t = filed(path=folder / "psched.state", servers=2, agents=2)
    job, k = begin(t, "x")
    filler = fill(folder)
    job.say(f"rounds count 500 1 0 {k}")
    with pytest.raises(WorkerError, match="no room in state.file: the disk"):
        Job(t, 4, "late").close()
    kill(t, "ps1")  # Changes have room.
    t.await_node("ps1", "state", "gone")
    job.hear()
    kill(t)
    start(t)
    job.tell(f"rounds count 20 1 0 {k}")
    job.tell("barrier")
    with pytest.raises(WorkerError, match="no room in state.file"):
        job[0].key("fresh", "float32", 100)
    filler.unlink()
    start(t, "ps1")
    await_members(t)
    train(t, "next")
    job.close()
    t.await_empty()


def test_a_commit_that_fails_ends_psched_and_no_job(filed, disk):
    folder = disk(800 << 10)  # Less than the reserve.
    t = filed(path=folder / "psched.state", servers=1, agents=2)
    assert "no reserve for a full disk" in t.sched.text()
    filler = fill(folder)
    for _ in range(60):  # Each process is a row in the log.
        kill(t, "node1")
        t.launch("node1")
        if t.sched.process.poll() is not None:
            break
        wait_for(lambda: t.sched.process.poll() is not None or
                 t.daemons["node1"].text().count("serving name"),
                 "node1, or the end of psched")
    assert t.sched.process.returncode == IOERR
    assert "database or disk is full" in t.sched.text()
    filler.unlink()
    start(t)
    await_members(t)
