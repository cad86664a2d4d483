# SPDX-License-Identifier: Apache-2.0
"""Several connections of one link, and several I/O threads: all data arrives
complete and in its place, whatever happens to each connection."""
import pytest
import trio as support
from proxy import Proxy
from trio import Job

AGENTS = 2
CUTS = 40
KEYS = (("fc1.weight", "float32", 200_000), ("fc1.bias", "float32", 128),
        ("count", "int64", 70_000))


def work(job, keys, chunk):
    names = " ".join(str(k) for k in keys)
    return job.tell(lambda rank: f"rounds mixed 5 {chunk * 100 + rank} 20000 "
                                 f"{names}")


def start(trio, connections, loops=1, **options):
    return trio(servers=1, agents=AGENTS,
                agent_options=["scheduler.retry.first=10ms",
                               f"network.loops={loops}",
                               "scheduler.retry.max=100ms",
                               f"network.connections_per_server={connections}"],
                **options)


def open_job(t, partition):
    job = Job(t, 4, PSKV_PARTITION_BYTES=partition, PSKV_OP_TIMEOUT="120s")
    return job, [job.key(*k) for k in KEYS]


# I/O threads move large partitions; with loops=3 there are two of them, and
# each has a connection.
@pytest.mark.parametrize("loops,asked,connections,partition",
                         [(1, 3, 3, 65536), (3, "auto", 2, 262144)])
def test_cut_subflows_change_no_bit(trio, loops, asked, connections, partition):
    t = start(trio, asked, loops,
              server_options=["advertise.address=127.0.0.2",
                              f"network.loops={loops}",
                              "network.same_host=off"])
    server = t.servers()[0]
    proxy = Proxy(("127.0.0.2", server.port), ("127.0.0.1", server.port))
    try:
        job, keys = open_job(t, partition)
        with job:
            results = [work(job, keys, 0)]
            deadline = support.Deadline()
            # The scheduler's own dials to the server end at once.
            while len(proxy.pairs) != connections * AGENTS:
                deadline.left("all connections")
                results.append(work(job, keys, len(results)))
            results.append(work(job, keys, len(results)))
            shares = sorted(pair.bytes for pair in list(proxy.pairs)
                            if pair.bytes > 0)
            assert len(shares) == connections * AGENTS
            assert shares[0] > 100_000, shares
            proxy.cut_every(400_000, CUTS)
            deadline = support.Deadline(support.limit(120))
            while proxy.cuts < CUTS:
                deadline.left(f"{CUTS} cuts")
                results.append(work(job, keys, len(results)))
            results.append(work(job, keys, len(results)))
            for d in t.daemons.values():
                assert d.alive(), d.text()
            for d in t.servers() + t.agents():
                state = d.state()
                assert state["loops"] == loops
                assert (state["moved"] > state["in"] / 4) == (loops > 1), state
        t.await_empty()
    finally:
        proxy.close()
    clean = start(trio, 1)
    job, keys = open_job(clean, partition)
    with job:
        assert results == [work(job, keys, i) for i in range(len(results))]
