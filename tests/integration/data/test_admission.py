# SPDX-License-Identifier: Apache-2.0
"""Jobs that do not fit into the memory of their servers, beside one that
checks every sum: their declarations are refused with a text, and nothing of
them remains."""
import os
from pathlib import Path

import pytest
from trio import Job, SLOW, WorkerError, wait_for

MIB = 1 << 20
FULL = -26


class Bystander:
    """A job of two ranks that checks every sum."""

    def __init__(self, t):
        self.job = Job(t, 2, "bystander")
        self.keys = [self.job.key("w", "float32", 50_000),
                     self.job.key("n", "int64", 10)]

    def work(self, rounds=30):
        keys = " ".join(str(k) for k in self.keys)
        self.job.say(lambda rank: f"rounds count {rounds} {rank} 500 {keys}")

    def rest(self):
        results = self.job.hear()
        assert len({tuple(r) for r in results}) == 1

    def close(self):
        self.job.close()


def row(t):
    """The row of the server in psctl's output."""
    return next(n for n in t.ask("nodes")["nodes"] if n["role"] == "server")


def declare(job, names, count):
    """Keys that were taken, and the refusal of the first one that was not."""
    taken = []
    for name in names:
        try:
            taken.append(job.key(name, "float32", count))
        except WorkerError as e:
            for w in job.workers[1:]:
                with pytest.raises(WorkerError):
                    w.hear()
            return taken, e
    return taken, None


def test_keys_beyond_the_store_are_refused(trio):
    t = trio(servers=1, agents=2, server_options=["store.memory=48MiB"])
    bystander = Bystander(t)
    bystander.work()
    with Job(t, 2, "big", PSKV_OP_TIMEOUT="20s") as job:
        # Twice 4 MiB each, and 4 MiB for open rounds.
        taken, error = declare(job, [f"w{i}" for i in range(7)], MIB)
        assert len(taken) == 5
        assert error.code == FULL
        assert "key 'w5' does not fit on server ps0: job big would need " \
            "8.0 MiB more there" in str(error)
        assert "of 48.0 MiB are free" in str(error)
        # The whole memory is free again.
        keys = " ".join(str(number) for number in taken)
        job.say(lambda rank: f"rounds count 3 {rank} 0 {keys}")
        assert len({tuple(r) for r in job.hear()}) == 1
        assert len([k for k in t.ask("keys")["keys"]
                    if k["job"] == "big"]) == len(taken)
    bystander.rest()
    bystander.close()
    t.await_empty()


def test_refused_jobs_leave_no_memory(trio):
    t = trio(servers=1, agents=1, server_options=["store.memory=32MiB"])
    bystander = Bystander(t)
    bystander.work(100)
    server, sched = t.servers()[0], t.sched
    before = None
    for i in range(20):
        with Job(t, 1, f"big{i}") as job:
            with pytest.raises(WorkerError) as e:
                job[0].key("w", "float32", 8 * MIB)
            assert row(t)["memory"] == 32 * MIB
            assert row(t)["reserved"] <= MIB  # The bystander's alone.
            assert e.value.code == FULL
            assert "does not fit on server ps0" in str(e.value)
        if before is None:
            before = server.rss(), sched.rss()
    bystander.rest()
    assert server.rss() - before[0] < 8 * MIB * SLOW
    assert sched.rss() - before[1] < 8 * MIB * SLOW
    with Job(t, 1, "fits") as job:
        number = job[0].key("w", "float32", 2 * MIB)
        job[0].ask(f"rounds count 3 0 0 {number}")
    bystander.close()
    t.await_empty()


def test_tables_of_refused_keys_are_freed(trio):
    """Some bytes that ask for 65,536 partitions each: 150 MiB of tables."""
    t = trio(servers=1, agents=1, options=["placement.partition_bytes=4KiB"],
             server_options=["store.memory=64GiB"],
             agent_options=["local.memory=64GiB"])
    bystander = Bystander(t)
    bystander.work(100)
    before = [d.rss() for d in t.daemons.values()]
    with Job(t, 1, "tables") as job:
        texts = set()
        for i in range(300):
            try:
                job[0].key(f"w{i}", "float32", 65_536 * 1024)
            except WorkerError as e:
                assert e.code == FULL
                texts.add(str(e)[-80:])
        assert len([k for k in t.ask("keys")["keys"]
                    if k["job"] == "tables"]) == 4
        assert texts and all("partitions" in text and
                             "(limits.job.partitions)" in text
                             for text in texts)
    bystander.rest()
    for d, was in zip(t.daemons.values(), before):
        assert d.rss() - was < 64 * MIB * SLOW, d.name
    bystander.close()
    t.await_empty()


def test_optimizer_without_memory_for_its_state_is_refused(trio, tmp):
    array = tmp / "array"
    array.write_bytes(bytes(8 * MIB))
    t = trio(servers=1, agents=1, server_options=["store.memory=32MiB"])
    with Job(t, 1, "train") as job:
        number = job[0].key("w", "float32", 2 * MIB)
        job[0].ask(f"init {number} src={array}")
        with pytest.raises(WorkerError) as e:
            job[0].ask("optimizer adam lr=0.1")
        assert e.value.code == FULL
        assert "optimizer adam does not fit on server ps0: job train would " \
            "need 16.0 MiB more there" in str(e.value)
        job[0].ask("sgd lr=0.1")
        job[0].ask(f"pushpull {number} src={array}")
    t.await_empty()


@pytest.fixture
def memory_group():
    """Makes a control group with a limit of memory."""
    made = []
    base = Path("/sys/fs/cgroup/memory")

    def make(limit):
        own = base
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                own = base / path.lstrip("/")
        group = own / f"pskv-test-{os.getpid()}"
        try:
            group.mkdir()
            made.append(group)
            (group / "memory.limit_in_bytes").write_text(str(limit))
        except OSError as e:
            pytest.skip(f"no control group of memory can be made here: {e}")
        return group

    yield make
    for group in made:
        wait_for(lambda g=group: not (g / "cgroup.procs").read_text(),
                 "the end of all processes of the group")
        group.rmdir()


@pytest.mark.skipif(SLOW > 1, reason="a sanitizer needs more than the group has")
def test_server_respects_the_memory_limit_of_its_cgroup(tmp, memory_group):
    import trio as support
    group = memory_group(160 * MIB)
    enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
    t = support.Trio(tmp / "trio", servers=1, agents=1, server_command=enter)
    try:
        t.start()
        with Job(t, 2, "first", PSKV_OP_TIMEOUT="30s") as first:
            number = first.key("w", "float32", 10 * MIB)
            first.say(lambda rank: f"rounds count 3 {rank} 0 {number}")
            with Job(t, 1, "second") as second:
                with pytest.raises(WorkerError) as e:
                    second[0].key("w", "float32", 6 * MIB)
                assert e.value.code == FULL
                assert "of 128.0 MiB are free" in str(e.value)
            results = first.hear()
            assert len({tuple(r) for r in results}) == 1
            assert t.servers()[0].alive()
        t.await_empty()
    finally:
        t.stop()
