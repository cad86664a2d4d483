# SPDX-License-Identifier: Apache-2.0
"""Several connections for one link: what they share is complete and in its
place whatever happens to each of them, bit for bit."""
import trio as support
from proxy import Proxy
from trio import Job

CONNECTIONS = 3
AGENTS = 2
CUTS = 40
KEYS = (("fc1.weight", "float32", 200_000), ("fc1.bias", "float32", 128),
        ("count", "int64", 70_000))


def work(job, keys, chunk):
    names = " ".join(str(k) for k in keys)
    return job.tell(lambda rank: f"rounds mixed 5 {chunk * 100 + rank} 20000 "
                                 f"{names}")


def start(trio, connections, **options):
    return trio(servers=1, agents=AGENTS,
                agent_options=["scheduler.retry.first=10ms",
                               "scheduler.retry.max=100ms",
                               f"network.connections_per_server={connections}"],
                **options)


def open_job(t):
    job = Job(t, 4, PSKV_PARTITION_BYTES=65536, PSKV_OP_TIMEOUT="120s")
    return job, [job.key(*k) for k in KEYS]


def test_cuts(trio):
    t = start(trio, CONNECTIONS,
              server_options=["advertise.address=127.0.0.2",
                              "network.same_host=off"])
    server = t.servers()[0]
    proxy = Proxy(("127.0.0.2", server.port), ("127.0.0.1", server.port))
    try:
        job, keys = open_job(t)
        with job:
            results = [work(job, keys, 0)]
            deadline = support.Deadline()
            while proxy.connections < CONNECTIONS * AGENTS:
                deadline.left("all connections")
                results.append(work(job, keys, len(results)))
            assert proxy.connections == CONNECTIONS * AGENTS
            results.append(work(job, keys, len(results)))
            shares = sorted(pair.bytes for pair in list(proxy.pairs))
            assert len(shares) == CONNECTIONS * AGENTS
            assert shares[0] > 100_000, shares
            proxy.cut_every(400_000, CUTS)
            deadline = support.Deadline(120 * support.SLOW)
            while proxy.cuts < CUTS:
                deadline.left(f"{CUTS} cuts")
                results.append(work(job, keys, len(results)))
            results.append(work(job, keys, len(results)))
            for d in t.daemons.values():
                assert d.alive(), d.text()
        t.await_empty()
    finally:
        proxy.close()
    clean = start(trio, 1)
    job, keys = open_job(clean)
    with job:
        assert results == [work(job, keys, i) for i in range(len(results))]
