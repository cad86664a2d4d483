# SPDX-License-Identifier: Apache-2.0
"""Connections between agents and servers are cut again and again in the
middle of a job, or bits of what they carry are changed: the result is that of
an undisturbed run, bit for bit, and no process ends."""
import re

import pytest
import trio as support
from proxy import Proxy
from trio import Job

CUTS = 200
CHANGES = 100
PIECES = 60
KEYS = (("fc1.weight", "float32", 200_000), ("fc1.bias", "float32", 128),
        ("fc2.weight", "float64", 1280), ("count", "int64", 70_000))


def work(job, keys, chunk):
    """One piece of the job: its results on every worker."""
    names = " ".join(str(k) for k in keys)
    return job.tell(lambda rank: f"rounds mixed 5 {chunk * 100 + rank} 20000 "
                                 f"{names}")


def start(trio, loops=1, **options):
    return trio(servers=2, agents=2,
                agent_options=["scheduler.retry.first=10ms",
                               "scheduler.retry.max=100ms",
                               f"network.loops={loops}"], **options)


def open_job(t, sgd, partition):
    job = Job(t, 4, PSKV_PARTITION_BYTES=partition, PSKV_OP_TIMEOUT="120s")
    keys = [job.key(*k) for k in KEYS if not sgd or k[1].startswith("float")]
    if sgd:
        for k in keys:
            job.tell(f"init {k} src={t.folder}/zeros{k}")
        job.tell("sgd learning_rate=0.0000001 momentum=0.9")
    return job, keys


def write_zeros(t):
    size = {"float32": 4, "float64": 8, "int64": 8}
    floats = [k for k in KEYS if k[1].startswith("float")]
    for i, (_, dtype, count) in enumerate(floats):
        (t.folder / f"zeros{i}").write_bytes(bytes(size[dtype] * count))


def corrupt_frames(folder):
    """The number that the daemons have counted."""
    found = [re.search(r"^ps\w+_corrupt_frames_total{.*} (\d+)$",
                       f.read_text(), re.M) for f in folder.glob("*.prom")]
    return sum(int(m.group(1)) for m in found if m)


def checked(name, folder):
    """Options of a daemon whose frames have checksums, also on this host. A
    header that has become longer does not end."""
    return ["network.checksums=on", "limits.header=1s",
            f"metrics.file={folder}/{name}.prom", "metrics.interval=100ms"]


def run(trio, sgd, loops=1, partition=65536, folder=None):
    """Cuts, or with a folder for metrics changed bits."""
    t = start(trio, loops, server_options=["advertise.address=127.0.0.2",
                                           f"network.loops={loops}",
                                           "network.same_host=off"],
              daemon_options=folder and (lambda name: checked(name, folder)))
    count = CHANGES if folder else CUTS
    write_zeros(t)
    proxies = []
    try:
        for i, server in enumerate(t.servers()):
            proxies.append(Proxy(("127.0.0.2", server.port),
                                 ("127.0.0.1", server.port), seed=i))
        job, keys = open_job(t, sgd, partition)
        with job:
            results = [work(job, keys, 0)]
            assert sum(p.bytes for p in proxies) > 1_000_000, \
                "nothing goes through the proxies"
            for p in proxies:
                harm = p.change_every if folder else p.cut_every
                harm(400_000, count // len(proxies))
            deadline = support.Deadline(support.limit(240))
            while sum(p.cuts + p.changes for p in proxies) < count:
                deadline.left(f"{count} cuts or changes")
                results.append(work(job, keys, len(results)))
            results.append(work(job, keys, len(results)))
            for d in t.daemons.values():
                assert d.alive(), d.text()
        if folder:
            # The others are in a prefix, or behind another one.
            support.wait_for(lambda: corrupt_frames(folder) > count / 2,
                             "corrupt frames in the metrics")
            assert "its bytes were changed on the way" in "".join(
                d.text() for d in t.daemons.values())
        else:
            assert sum(p.connections for p in proxies) >= count
        t.await_empty()
    finally:
        for p in proxies:
            p.close()
    clean = start(trio)
    write_zeros(clean)
    job, keys = open_job(clean, sgd, partition)
    with job:
        expected = [work(job, keys, i) for i in range(len(results))]
    assert results == expected
    assert all(len({tuple(r) for r in chunk}) == 1 for chunk in results)
    if sgd:
        assert len({tuple(chunk[0]) for chunk in results}) == len(results)


# Further loops transfer large payloads.
@pytest.mark.parametrize("loops,partition", [(1, 65536), (3, 262144)])
def test_cut_links_change_no_sum(trio, loops, partition):
    run(trio, False, loops, partition)


@pytest.mark.parametrize("loops,partition", [(1, 65536), (3, 262144)])
def test_cut_links_change_no_optimizer_step(trio, loops, partition):
    """Each step builds on the last: one contribution counted twice, or lost,
    would stay visible for ever."""
    run(trio, True, loops, partition)


@pytest.mark.parametrize("loops,partition", [(1, 65536), (3, 262144)])
def test_changed_bits_change_no_optimizer_step(trio, tmp, loops, partition):
    """Each connection with such a bit is cut, and its link sends again."""
    folder = tmp / "metrics"
    folder.mkdir()
    run(trio, True, loops, partition, folder)


def test_cut_links_to_the_scheduler_lose_no_member(trio):
    """Members lose the scheduler all the time, in the middle of registering
    keys and of barriers; they stay members, and ranks stay live."""
    proxies = []

    def between(port):
        proxies.append(Proxy(("127.0.0.2", port), ("127.0.0.1", port)))
        return f"127.0.0.2:{port}"

    def pieces(job, count):
        """Each with keys of its own, several barriers and two rounds."""
        results = []
        for i in range(count):
            keys = [job.key(f"k{i}-{n}", "float32", 50 + n) for n in range(8)]
            for _ in range(3):
                job.tell("barrier")
            names = " ".join(str(k) for k in keys)
            results.append(job.tell(f"rounds mixed 2 1 0 {names}"))
        return results

    t = start(trio, sched_ready=between,
              server_options=["scheduler.retry.first=10ms",
                              "scheduler.retry.max=100ms"])
    try:
        with Job(t, 4) as job:
            assert proxies[0].connections == 4
            proxies[0].cut_every(1500, CUTS)
            results = pieces(job, PIECES)
            assert proxies[0].cuts >= 50, proxies[0].cuts
            proxies[0].cut_every(1500, 0)
            assert [j["live"] for j in t.ask("jobs")["jobs"]] == [4]
            for d in t.daemons.values():
                assert d.alive(), d.text()
        t.await_empty()
    finally:
        for p in proxies:
            p.close()
    clean = start(trio)
    with Job(clean, 4) as job:
        assert pieces(job, PIECES) == results
