# SPDX-License-Identifier: Apache-2.0
"""Guarantees to a job, with real daemons: exact sums, the same bits for all
workers, placement, the optimizer, several jobs at once, deaths."""
import os
import random
import re
import subprocess
import threading

import numpy as np
import pytest
import trio as support
from trio import Job, limit, SLOW, wait_for, Worker, WorkerError

# For tests of deaths; members of a slow build must not be taken for dead.
QUICK = [f"heartbeat.suspect_after={limit(500):.0f}ms",
         f"heartbeat.dead_after={limit(2000):.0f}ms"]
DTYPES = ("float32", "float64", "int32", "int64")


class Arrays:
    """Arrays in files, for workers to read and write."""

    def __init__(self, folder):
        self.folder = folder
        self.count = 0

    def put(self, array):
        self.count += 1
        path = self.folder / f"array{self.count}"
        array.tofile(path)
        return str(path)

    def out(self):
        self.count += 1
        return str(self.folder / f"out{self.count}")


@pytest.fixture
def arrays(tmp):
    return Arrays(tmp)


def values(rank, dtype, count, salt=0):
    rng = np.random.default_rng([rank, count, salt])
    return rng.integers(-1000, 1000, count).astype(dtype)


# ------------------------------------------------------------------- counting

def mxnet_pieces(key, count, servers, bound):
    """Elements of the key on each server, by the classic formula."""
    if count < bound:
        pieces = [0] * servers
        pieces[key * 9973 % servers] = count
        return pieces

    def half_up(x):
        return int(np.floor(x + 0.5))

    cuts = [half_up(count / servers * i) for i in range(servers + 1)]
    return [b - a for a, b in zip(cuts, cuts[1:])]


def test_worked_numbers_of_the_formula():
    assert mxnet_pieces(5, 10, 3, 1000000) == [0, 0, 10]
    assert mxnet_pieces(0, 1000000, 3, 1000000) == [333333, 333334, 333333]
    assert mxnet_pieces(0, 1440000, 7, 1000000) == \
        [205714, 205715, 205714, 205714, 205714, 205715, 205714]


def test_counted_rounds_have_exact_sums(trio):
    """7 workers, 7 servers, sizes around the bound: every element is exactly
    the sum in each of 50 rounds (10 in a slow build), and every key lies where
    the formula says."""
    rounds = 50 if SLOW == 1 else 10
    t = trio(servers=7, agents=3)
    sizes = {3: 6, 5: 999_999, 11: 1_000_000, 2**31 - 1: 1_000_001,
             215_330: 1_440_000}
    with Job(t, 7, "counting", PSKV_PLACEMENT="mxnet",
             PSKV_BIG_ARRAY_BOUND=1_000_000, PSKV_OP_TIMEOUT="300s") as job:
        keys = {number: job.key(f"#{number}", "float32", count)
                for number, count in sizes.items()}
        found = {}
        for row in t.ask("keys", "counting")["keys"]:
            assert row["bytes"] % 4 == 0
            found.setdefault(int(row["name"]), {})[
                row["server"]] = row["bytes"] // 4
        for number, count in sizes.items():
            pieces = mxnet_pieces(number, count, 7, 1_000_000)
            assert found[number] == {f"ps{i}": n for i, n in
                                     enumerate(pieces) if n > 0}, number
        for row in t.ask("keys", "counting")["keys"]:
            assert row["count"] == sizes[int(row["name"])]
        names = " ".join(str(k) for k in keys.values())
        job.say(lambda rank: f"rounds count {rounds} {rank} 1000 {names}")
        results = [w.hear(limit(300)) for w in job]
        assert len({tuple(r) for r in results}) == 1
    t.await_empty()


def test_string_keys_count_from_zero(trio):
    """mxnet placement of string keys: by their order of registration."""
    t = trio(servers=3, agents=1)
    with Job(t, 1, PSKV_PLACEMENT="mxnet") as job:
        for name in ("b", "a", "c", "d"):
            job.key(name, "int64", 5)
        rows = {r["name"]: r["server"] for r in t.ask("keys", "job")["keys"]}
        assert rows == {f"{n}": f"ps{i * 9973 % 3}"
                        for i, n in enumerate(("b", "a", "c", "d"))}


def test_accumulating_with_an_optimizer(trio, arrays):
    """Steps of -1 times the sum: after 50 rounds exactly 50 times 28."""
    t = trio(servers=2, agents=2)
    with Job(t, 7) as job:
        k = job.key("w", "float64", 100_001)
        job.tell("sgd learning_rate=1")
        job.tell(f"init {k} src={arrays.put(np.zeros(100_001))}")
        job.tell(lambda rank: f"rounds same 50 {rank} 1000 {k}")
        out = arrays.out()
        job[4].ask(f"pull {k} out={out}")
        assert (np.fromfile(out) == 50 * 28).all()


# ------------------------------------------------------------------- same bits

def test_order_of_arrival_does_not_change_bits(trio):
    """8 workers give 1e8, 1, -1e8 and such, in 100 rounds each of which is met
    in another order; all of it with 1 server, with 2, and with the daemons
    started in another order."""
    seen = set()
    for servers, agents, order in (
            (2, 3, None), (1, 3, None),
            (2, 3, ["node2", "ps1", "node0", "sched", "ps0", "node1"])):
        t = trio(servers=servers, agents=agents, order=order)
        with Job(t, 8, PSKV_PARTITION_BYTES=4096) as job:
            keys = [job.key("a", "float32", 3001), job.key("b", "float32", 7)]
            results = job.tell(lambda rank: f"rounds mixed 100 "
                               f"{random.getrandbits(60) + rank} 60000 "
                               f"{keys[0]} {keys[1]}")
            assert len({r[0] for r in results}) == 1, results
            seen.add(results[0][0])
        t.await_empty()
    assert len(seen) == 1


def test_plain_sums_depend_on_the_order():
    """The test above would be worthless otherwise."""
    values_ = np.array([1e8, 1, -1e8, 3, -2e7, 0.125], np.float32)
    sums = set()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        picked = rng.permutation(np.resize(values_, 8))
        total = np.float32(0)
        for v in picked:
            total = np.float32(total + v)
        sums.add(float(total))
    assert len(sums) > 1


EXAMPLE = support.BUILD / "docs/examples/fashion_mnist"


WORDS = ["--epochs", "1", "--batch", "250", "--checksum"]
if SLOW > 1:
    WORDS += ["--pictures", "6000"]


def checksum_of(text):
    """Every worker prints that of its weights."""
    found = re.findall(r"checksum ([0-9a-f]{16})\b", text)
    assert len(found) == 4 and len(set(found)) == 1, text
    return found[0]


def launched_example(tmp, servers):
    done = subprocess.run(
        [support.program("pslaunch"), "-n", "4", "-s", str(servers),
         "--nodes", "2", "--private", str(EXAMPLE), *WORDS],
        capture_output=True, text=True, timeout=limit(300),
        env=support.clean_env(TMPDIR=str(tmp)), check=False)
    assert done.returncode == 0, done.stderr
    return checksum_of(done.stdout)


def example_on(t, ranks):
    """The same on daemons that run already; workers start in this order."""
    running = {rank: subprocess.Popen(
        [str(EXAMPLE), *WORDS], stdout=subprocess.PIPE, text=True,
        env=support.clean_env(PSKV_SOCKET=t.socket(rank // 2),
                              PSKV_JOB="example", RANK=rank, WORLD_SIZE=4,
                              PSKV_NUM_SERVERS=2, OMP_NUM_THREADS=1))
        for rank in ranks}
    texts = {r: p.communicate(timeout=limit(300))[0]
             for r, p in running.items()}
    assert all(p.returncode == 0 for p in running.values()), texts
    return checksum_of("".join(texts.values()))


@pytest.mark.skipif(not EXAMPLE.exists() or not os.path.isdir(
    "/usr/share/datasets/fashion-mnist"), reason="no example or no data")
def test_example_gives_the_same_weights(tmp, trio):
    """Bit for bit: in two runs, with one server or two, and in any order of
    starts."""
    want = launched_example(tmp, 2)
    assert launched_example(tmp, 2) == want
    assert launched_example(tmp, 1) == want
    names = ["sched", "ps0", "ps1", "node0", "node1"]
    for seed in (1, 2):
        rng = random.Random(seed)
        t = trio(servers=2, agents=2, order=rng.sample(names, 5))
        assert example_on(t, rng.sample(range(4), 4)) == want
        t.await_empty()


# ----------------------------------------------------------------- operations

@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["a.b/c weight".replace(" ", "_"), "#42"])
def test_operations_match_numpy(trio, arrays, dtype, name):
    """init, push, pull, pushpull, broadcast and barrier, each against NumPy."""
    t = trio(servers=2, agents=2)
    n, count = 4, 10_007
    with Job(t, n, PSKV_PARTITION_BYTES=8192) as job:
        k = job.key(name, dtype, count)
        first = values(99, dtype, count)
        outs = [arrays.out() for _ in range(n)]

        def result(rank):
            return np.fromfile(outs[rank], dtype)

        def all_equal(want):
            for rank in range(n):
                np.testing.assert_array_equal(result(rank), want)

        # init: the value of rank 0; the others' is not looked at.
        job.tell(lambda rank: f"init {k} src=" + arrays.put(
            first if rank == 0 else values(rank, dtype, count)))
        job.tell(lambda rank: f"pull {k} out={outs[rank]}")
        all_equal(first)
        # push, then pull: the sum of all.
        given = [values(rank, dtype, count, 1) for rank in range(n)]
        job.tell(lambda rank: f"push {k} src={arrays.put(given[rank])}")
        job.tell(lambda rank: f"pull {k} out={outs[rank]}")
        all_equal(sum(given))
        # A second init keeps the value.
        job.tell(f"init {k} src={arrays.put(first)}")
        job.tell(lambda rank: f"pull {k} out={outs[rank]}")
        all_equal(sum(given))
        # pushpull, from ordinary memory too.
        given = [values(rank, dtype, count, 2) for rank in range(n)]
        answers = job.tell(
            lambda rank: f"pushpull {k} src={arrays.put(given[rank])} "
            f"out={outs[rank]} priority={rank - 2}" +
            (" copy" if rank % 2 else ""))
        all_equal(sum(given))
        assert {a[0] for a in answers} == {"2"}  # The version.
        # Several arrays of one worker count together.
        more = [[values(rank, dtype, count, 3 + i) for i in range(rank + 1)]
                for rank in range(n)]
        job.tell(lambda rank: f"pushpull {k} src=" + ",".join(
            arrays.put(a) for a in more[rank]) + f" out={outs[rank]}" +
            (" copy" if rank == 1 else ""))
        all_equal(sum(a for some in more for a in some))
        # broadcast from a rank that is not the first.
        job.tell(lambda rank: f"broadcast {k} root=2 out={outs[rank]} src=" +
                 arrays.put(given[rank]))
        all_equal(given[2])
        job.tell("barrier")
        if dtype.startswith("float"):
            job.tell(lambda rank: f"pushpull {k} mean out={outs[rank]} src=" +
                     arrays.put(given[rank]))
            np.testing.assert_allclose(result(3), sum(given) / n, rtol=1e-6)
            all_equal(result(3))
    t.await_empty()


def test_barrier_holds_until_the_last(trio):
    t = trio(servers=1, agents=2)
    with Job(t, 4) as job:
        for rank in (3, 1, 0):
            job[rank].ask("start b barrier")
        for rank in (3, 1, 0):
            with pytest.raises(WorkerError) as e:
                job[rank].ask("wait b timeout=100")
            assert e.value.code == -6 and "rank 2" in str(e.value)
        job[2].ask("barrier")
        for rank in (3, 1, 0):
            job[rank].ask("wait b")


def test_many_small_and_one_large_key(trio, arrays):
    """Small partitions travel together; all at once with priorities."""
    t = trio(servers=2, agents=2)
    with Job(t, 4) as job:
        keys = [job.key(f"k{i}", "int32", 1 + i * 7 % 50) for i in range(100)]
        keys.append(job.key("large", "float32", 2_000_000))
        names = " ".join(str(k) for k in keys)
        results = job.tell(lambda rank: f"rounds count 5 {rank} 100 {names}")
        assert len({r[0] for r in results}) == 1


def sgd_model(w, grads, lr, momentum, wd, rescale, clip):
    """In float32, as the servers compute."""
    f = np.float32
    w = w.astype(f)
    state = np.zeros_like(w)
    for g in grads:
        g = g.astype(f) * f(rescale)
        if clip > 0:
            g = np.clip(g, -f(clip), f(clip))
        g = g + f(wd) * w
        if momentum != 0:
            state = f(momentum) * state - f(lr) * g
            w = w + state
        else:
            w = w - f(lr) * g
    return w


@pytest.mark.parametrize("lr,momentum,wd,rescale,clip", [
    (0.1, 0, 0, 1, 0), (0.1, 0.9, 0, 1, 0), (0.05, 0.9, 0.01, 0.25, 0),
    (0.1, 0.5, 0.001, 1, 0.75)])
def test_sgd_matches_numpy(trio, arrays, lr, momentum, wd, rescale, clip):
    t = trio(servers=2, agents=2)
    n, count, steps = 3, 5003, 6
    rng = np.random.default_rng(5)
    w = rng.standard_normal(count).astype(np.float32)
    grads = rng.standard_normal((steps, n, count)).astype(np.float32)
    words = f"sgd learning_rate={lr} momentum={momentum} wd={wd} " \
            f"rescale_grad={rescale}" + \
            (f" clip_gradient={clip}" if clip else "")
    with Job(t, n, PSKV_PARTITION_BYTES=4096) as job:
        k = job.key("w", "float32", count)
        job.tell(f"init {k} src={arrays.put(w)}")
        job.tell(words)
        out = arrays.out()
        for step in range(steps):
            job.tell(lambda rank, s=step: f"pushpull {k} src=" +
                     arrays.put(grads[s][rank]) +
                     (f" out={out}" if rank == 0 else ""))
        want = sgd_model(w, grads.sum(axis=1), lr, momentum, wd, rescale,
                         clip)
        np.testing.assert_allclose(np.fromfile(out, np.float32), want,
                                   rtol=2e-5, atol=2e-6)
        # A broadcast sets the value without the optimizer.
        job.tell(f"broadcast {k} root=1 src={arrays.put(w)}")
        job.tell(lambda rank: f"pull {k}" +
                 (f" out={out}" if rank == 0 else ""))
        np.testing.assert_array_equal(np.fromfile(out, np.float32), w)


def test_sgd_matches_a_worked_example(trio, arrays):
    """lr .1, momentum .9, gradient 1: -0.1, -0.29, -0.561, -0.9049."""
    t = trio(servers=1, agents=1)
    with Job(t, 1) as job:
        k = job.key("#0", "float32", 1)
        job.tell(f"init {k} src={arrays.put(np.zeros(1, np.float32))}")
        job.tell("sgd learning_rate=0.1 momentum=0.9")
        out = arrays.out()
        one = arrays.put(np.ones(1, np.float32))
        for want in (-0.1, -0.29, -0.561, -0.9049):
            job.tell(f"pushpull {k} src={one} out={out}")
            assert np.fromfile(out, np.float32)[0] == pytest.approx(want,
                                                                    rel=1e-5)


def test_job_without_servers_runs_at_the_agent(trio, arrays):
    """The agent answers by itself."""
    t = trio(servers=0, agents=1)
    with Job(t, 3, servers=0) as job:
        k = job.key("w", "float32", 100_000)
        results = job.tell(lambda rank: f"rounds count 10 {rank} 1000 {k}")
        assert len({r[0] for r in results}) == 1
        job.tell("barrier")
    t.await_empty()


def test_misuse_is_reported_to_the_caller(trio, arrays):
    t = trio(servers=1, agents=1)
    with Job(t, 2) as job:
        job.key("w", "float32", 10)
        for again in ("key w float64 10", "key w float32 11"):
            with pytest.raises(WorkerError) as e:
                job[1].ask(again)
            assert e.value.code == -15
            assert "float" in str(e.value) or "11" in str(e.value)
        with pytest.raises(WorkerError) as e:
            job[0].ask("sgd learning_rate=nan")
        assert e.value.code == -1
        # Another size of the same job is refused, with both named.
        stray = Worker(t.socket(0), "job", None, 3)
        with pytest.raises(WorkerError) as e:
            stray.ask("open")
        assert "3" in str(e.value) and "2" in str(e.value)
        stray.kill()
        stray.end()


def test_incomplete_job_names_the_missing_ranks(trio):
    t = trio(servers=1, agents=1)
    job = Job(t, 3, open_now=False, PSKV_START_TIMEOUT="700ms")
    for rank in (0, 2):
        job[rank].say("open")
    for rank in (0, 2):
        with pytest.raises(WorkerError) as e:
            job[rank].hear()
        assert "1" in str(e.value) and "rank" in str(e.value), str(e.value)
    for w in job:
        w.kill()
        w.end()
    t.await_empty()


# ----------------------------------------------------------------- several jobs

def test_keys_of_two_jobs_are_separate(trio):
    """They never meet."""
    t = trio(servers=2, agents=2)
    with Job(t, 2, "one") as one, Job(t, 3, "two") as two:
        a, b = one.key("w", "int64", 1000), two.key("w", "float32", 77)
        one.say(lambda rank: f"rounds count 40 {rank} 20000 {a}")
        two.say(lambda rank: f"rounds count 40 {rank} 20000 {b}")
        one.hear()
        two.hear()
        assert {j["name"] for j in t.ask("jobs")["jobs"]} == {"one", "two"}
    t.await_empty()


def memory(t):
    return {d.name: d.state() for d in t.daemons.values()}


def test_a_job_leaves_nothing(trio):
    """Neither in the books nor in memory, however it ended."""
    t = trio(servers=2, agents=2)

    def all_back():
        for name, s in memory(t).items():
            for field in ("residue", "memory", "stored", "unmerged", "sums",
                          "results", "sessions"):
                if s.get(field, 0) != 0:
                    return False
        return True

    for ending in ("clean", "killed", "canceled", "clean"):
        job = Job(t, 4, f"job-{ending}", PSKV_ON_LOSS="fail")
        k = job.key("w", "float32", 3_000_000)
        job.tell(lambda rank: f"rounds count 2 {rank} 0 {k}")
        assert sum(s.get("stored", 0) for s in memory(t).values()) >= 12e6
        if ending == "clean":
            job.close()
        elif ending == "canceled":
            assert t.psctl("jobs", "cancel", "job-canceled")[0] == 0
        if ending != "clean":
            for w in job:
                w.kill()
                w.end()
        t.await_empty()
        wait_for(all_back, f"memory to come back after {ending}")
    names = {j["name"]: j["phase"] for j in t.ask("jobs")["jobs"]}
    assert names["job-clean"] == "ended"


# ----------------------------------------------------------------------- deaths

def begin(job, keys, arrays, ranks):
    zeros = arrays.put(np.zeros(1000, np.float32))
    for rank in ranks:
        for k in keys:
            job[rank].ask(f"start op{k} pushpull {k} src={zeros}")


def test_dead_worker_fails_a_job_with_policy_fail(trio, arrays):
    """Every waiting call of every worker names the rank, at once; a second job
    on the same daemons continues."""
    t = trio(servers=2, agents=2)
    with Job(t, 3, "bystander") as other:
        ok = other.key("w", "float32", 1000)
        job = Job(t, 4, "victim", PSKV_ON_LOSS="fail", PSKV_OP_TIMEOUT="60s")
        k = job.key("w", "float32", 1000)
        job.tell(lambda rank: f"rounds count 3 {rank} 0 {k}")
        other.say(lambda rank: f"rounds count 100 {rank} 30000 {ok}")
        begin(job, [k], arrays, (0, 1, 3))
        job[2].kill()
        deadline = support.Deadline()
        for rank in (0, 1, 3):
            with pytest.raises(WorkerError) as e:
                job[rank].ask(f"wait op{k}", deadline.left("the error"))
            assert e.value.code in (-18, -19)
            assert "rank 2" in str(e.value)
        other.hear()
        for w in job:
            w.kill()
            w.end()
    t.await_empty()


def test_dead_worker_of_a_job_with_policy_wait_may_return(trio, arrays):
    """The time-out names the rank as lost; a new process under the same rank
    continues at the old one's round; the sums are exact."""
    t = trio(servers=2, agents=2)
    job = Job(t, 4, "patient", PSKV_ON_LOSS="wait")
    k = job.key("w", "float32", 1000)
    job.tell(lambda rank: f"rounds count 3 {rank} 0 {k}")
    given = [np.full(1000, rank + 1, np.float32) for rank in range(4)]
    out = arrays.out()
    for rank in (0, 1, 3):
        job[rank].ask(f"start op pushpull {k} src={arrays.put(given[rank])} "
                      f"out={out if rank == 0 else arrays.out()}")
    job[2].kill()
    wait_for(lambda: [j["live"] for j in t.ask("jobs")["jobs"]] == [3],
             "the loss to be noticed")
    for rank in (0, 1, 3):
        with pytest.raises(WorkerError) as e:
            job[rank].ask("wait op timeout=300")
        assert e.value.code == -6
        assert "rank 2" in str(e.value) and "lost" in str(e.value)
    code, stdout, _ = t.psctl("stall", "patient")
    assert code == 3 and "rank 2" in stdout and "lost" in stdout
    assert t.psctl("status")[0] == 3
    job[2].end()
    job.workers[2] = job.make(2, 1)
    assert job[2].ask("open")[0] == "2"
    assert int(job[2].ask("key w float32 1000")[0]) == 0
    answer = job[2].ask(f"pushpull 0 src={arrays.put(given[2])}")
    assert answer[0] == "4"  # Round 4: the three before count.
    for rank in (0, 1, 3):
        assert job[rank].ask("wait op")[0] == "4"
    assert (np.fromfile(out, np.float32) == 10).all()
    job.tell("barrier")
    job.close()
    t.await_empty()


def test_killed_agent_fails_its_ranks(trio, arrays):
    t = trio(servers=1, agents=2, options=QUICK)
    job = Job(t, 4, "half", PSKV_ON_LOSS="fail")
    k = job.key("w", "float32", 1000)
    begin(job, [k], arrays, (0, 1))
    t.daemons["node1"].stop(support.Deadline(), kill=True)
    for rank in (0, 1):
        with pytest.raises(WorkerError) as e:
            job[rank].ask(f"wait op{k}")
        assert e.value.code in (-18, -19)
        assert re.search(r"ranks? [23]", str(e.value)), str(e.value)
    for rank in (2, 3):  # Their error names the lost agent.
        with pytest.raises(WorkerError) as e:
            job[rank].ask("barrier")
        assert e.value.code == -8
    for w in job:
        w.kill()
        w.end()
    wait_for(lambda: not t.open_jobs(), "the end of the job")


def test_killed_server_moves_its_keys(trio):
    """Without an optimizer the agents hold all that is needed."""
    t = trio(servers=3, agents=2, options=QUICK)
    with Job(t, 4, "mover", PSKV_PARTITION_BYTES=4096,
             PSKV_OP_TIMEOUT="120s") as job:
        k = job.key("w", "int64", 20_000)
        before = job.tell(lambda rank: f"rounds count 20 {rank} 1000 {k}")
        job.say(lambda rank: f"rounds count 400 {rank} 100000 {k}")
        t.daemons["ps1"].stop(support.Deadline(), kill=True)
        results = job.hear()
        assert len({r[0] for r in results}) == 1
        assert {r["server"] for r in t.ask("keys", "mover")["keys"]} == \
            {"ps0", "ps2"}
        assert job.tell(lambda rank: f"rounds count 20 {rank} 0 {k}") == before


def test_workers_may_die_before_and_after_the_start(trio):
    """Processes that die before, while and after the job forms."""
    t = trio(servers=1, agents=2)
    for i in range(10):
        job = Job(t, 3, f"short{i}", open_now=False,
                  PSKV_START_TIMEOUT="5s", PSKV_ON_LOSS="fail")
        threads = [threading.Timer(0.01 * i * w.rank, w.process.kill)
                   for w in job]
        for w in job:
            w.say("open")
        for th in threads:
            th.start()
        for th in threads:
            th.join()
        for w in job:
            w.process.wait()
            w.end()
    wait_for(lambda: not t.open_jobs(), "the end of all jobs")
    with Job(t, 2, "after") as job:
        k = job.key("w", "int32", 5)
        job.tell(lambda rank: f"rounds count 5 {rank} 0 {k}")
    t.await_empty()


# ------------------------------------------------------------------- draining

def drained(trio, **options):
    """A trio whose daemons wait long for the jobs that there are."""
    return trio(servers=2, options=["shutdown.grace=100s"],
                server_options=["shutdown.grace=100s"], **options)


def refused(trio, servers):
    with Job(trio, 1, "other", servers=servers, open_now=False) as other:
        with pytest.raises(WorkerError) as e:
            other[0].ask("open")
        other[0].kill()
    return str(e.value)


def test_draining_scheduler_refuses_new_jobs(trio):
    t = drained(trio)
    job = Job(t, 2, "old")
    k = job.key("w", "float32", 1000)
    before = job.tell(lambda rank: f"rounds count 3 {rank} 0 {k}")
    t.sched.process.send_signal(support.signal.SIGTERM)
    wait_for(lambda: t.ask("nodes")["nodes"][0]["draining"],
             "the scheduler drains")
    assert "the scheduler is shutting down" in refused(t, 1)
    # The scheduler ends after its last job.
    job.key("v", "float32", 1000)
    assert job.tell(lambda rank: f"rounds count 3 {rank} 0 {k}") == before
    job.close()
    assert t.sched.process.wait(support.PATIENCE) == 0


def test_draining_server_gets_no_new_job(trio):
    t = drained(trio)
    job = Job(t, 2, "old")
    k = job.key("w", "float32", 100_000)
    before = job.tell(lambda rank: f"rounds count 3 {rank} 0 {k}")
    server = t.daemons["ps1"]
    server.process.send_signal(support.signal.SIGTERM)
    t.await_node("ps1", "draining", True)
    assert "ps1 is shutting down" in refused(t, 2)
    code, text, _ = t.psctl("nodes")
    assert code == 0 and re.search(r"ps1 +DRAINING", text), text
    with Job(t, 1, "small", servers=1) as other:
        other.key("w", "float32", 1000)
        assert {r["server"] for r in t.ask("keys", "small")["keys"]} == {"ps0"}
    assert job.tell(lambda rank: f"rounds count 3 {rank} 0 {k}") == before
    job.close()
    assert server.process.wait(support.PATIENCE) == 0
    # Another server replaces it, and jobs with two servers start again.
    t.launch("ps1").await_ready(support.Deadline())
    with Job(t, 1, "other", servers=2) as other:
        other.key("w", "float32", 1000)
