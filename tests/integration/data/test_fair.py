# SPDX-License-Identifier: Apache-2.0
"""Jobs that share an agent and servers: a job with small rounds beside others
with large arrays and with many keys, and the weight of a job. Shares and waits
are tested in virtual time (unit/test_agent_fair.c, unit/test_server_fair.c)."""
import subprocess

import pytest
import trio as support
from trio import Job, Worker, WorkerError

SMALL_ROUNDS = 60


def small_rounds(job):
    """Rounds whose float sums depend on the order of additions."""
    keys = [job.key(f"w{i}", "float32", 1000 + i) for i in range(4)]
    job.say(lambda rank: f"rounds mixed {SMALL_ROUNDS} 7 0 "
                         + " ".join(map(str, keys)))


def test_small_rounds_are_right_beside_large_arrays(trio):
    """The bits are those of the job alone, also with the least weight, and the
    others get right sums."""
    t = trio(servers=2, agents=2)
    with Job(t, 2, "small") as job:
        small_rounds(job)
        alone = job.hear()
    assert len({h[0] for h in alone}) == 1
    with Job(t, 2, "large", PSKV_WEIGHT=1000) as large, \
            Job(t, 2, "many") as many, \
            Job(t, 2, "small", PSKV_WEIGHT=1) as job:
        arrays = [large.key(f"a{i}", "float32", 2_000_000) for i in range(4)]
        keys = [many.key(f"k{i}", "int64", 500) for i in range(60)]
        large.say(lambda rank: f"rounds count 6 {rank} 0 "
                               + " ".join(map(str, arrays)))
        many.say(lambda rank: f"rounds count 40 {rank} 0 "
                              + " ".join(map(str, keys)))
        small_rounds(job)
        assert job.hear() == alone
        many.hear()
        large.hear()
    t.await_empty()


def test_death_beside_small_rounds_changes_no_bit(trio):
    """A job that dies with arrays on their way leaves no queue behind."""
    t = trio(servers=1, agents=1)
    with Job(t, 2, "small") as job:
        small_rounds(job)
        alone = job.hear()
    with Job(t, 2, "small") as job:
        small_rounds(job)
        for i in range(3):
            large = Job(t, 2, f"large{i}", PSKV_ON_LOSS="fail")
            key = large.key("a", "float32", 4_000_000)
            large.say(lambda rank: f"rounds count 100 {rank} 0 {key}")
            for w in large:
                w.kill()
        assert job.hear() == alone
    t.await_empty()


def test_weight_is_shown_and_the_same_for_all_workers(trio):
    t = trio(servers=1, agents=1)
    with Job(t, 1, "heavy", PSKV_WEIGHT=300), Job(t, 1, "plain"):
        shown = {j["name"]: j["weight"] for j in t.ask("jobs")["jobs"]}
        assert shown == {"heavy": 300, "plain": 100}
    first = Worker(t.socket(0), "pair", 0, 2, PSKV_WEIGHT=300,
                   PSKV_NUM_SERVERS=1)
    other = Worker(t.socket(0), "pair", 1, 2, PSKV_WEIGHT=200,
                   PSKV_NUM_SERVERS=1)
    first.say("open")
    support.wait_for(lambda: any(j["name"] == "pair"
                                 for j in t.ask("jobs")["jobs"]),
                     "the job's first worker")
    with pytest.raises(WorkerError, match="weight 300 for rank 0 on .*, and "
                       "rank 1 on .* states 200"):
        other.ask("open")
    with pytest.raises(WorkerError, match="and rank 1 on .* states 200"):
        first.hear()
    first.kill()
    other.end()


def test_an_operator_changes_the_weight(trio):
    """Beside another job, and without a bit of difference; a rank that is taken
    again says the weight of the start."""
    t = trio(servers=1, agents=1)
    with Job(t, 2, "small", PSKV_WEIGHT=50) as job:
        small_rounds(job)
        alone = job.hear()
    with Job(t, 2, "small", PSKV_WEIGHT=50) as job, Job(t, 1, "other"):
        small_rounds(job)
        for words in (("weight", "200"), ("weight=1000",), ("weight", "1")):
            assert t.psctl("set", "small", *words) == (0, "", "")
        assert job.hear() == alone
        shown = {j["name"]: j["weight"] for j in t.ask("jobs")["jobs"]}
        assert shown == {"small": 1, "other": 100}
        assert "set to weight 1000" in t.psctl("events")[1]
        job[1].kill()
        job.workers[1] = job.make(1, 0)
        job[1].ask("open")
    t.await_empty()


@pytest.mark.parametrize("weight", ["0", "1001", "-1", "much"])
def test_weight_out_of_range_is_refused(trio, weight):
    t = trio(servers=1, agents=1)
    worker = Worker(t.socket(0), "job", 0, 1, PSKV_WEIGHT=weight)
    with pytest.raises(WorkerError, match="PSKV_WEIGHT"):
        worker.ask("open")
    worker.end()


def test_pslaunch_passes_the_weight(trio):
    t = trio(servers=1, agents=1)
    out = subprocess.run(
        [str(support.BUILD / "daemons/pslaunch/pslaunch"), "--socket",
         t.socket(0), "-n", "1", "--output", "plain", "--weight", "250",
         "printenv", "PSKV_WEIGHT"],
        capture_output=True, text=True, timeout=support.limit(60),
        env=support.clean_env())
    assert out.returncode == 0, out.stderr
    assert out.stdout == "250\n"
