# SPDX-License-Identifier: Apache-2.0
"""A server dies during collectives: they continue with the same values, or all
ranks get an error."""

import pytest

import trio as harness
from python_job import World

LOOP = """
    kv = pskv.create()
    r, n = kv.rank, kv.num_workers
    # Few large and many small arrays, with partitions on all servers.
    print('ready', flush=True)
    try:
        for i in range(ROUNDS):
            a = np.full(30000, r + i, 'int64')
            kv.allreduce(a)
            assert (a == n * (n - 1) // 2 + n * i).all(), 'allreduce'
            got = kv.allgather(np.full((r + 1, 500), 10 * i + r, 'int32'))
            want = np.repeat(10 * i + np.arange(n), np.arange(1, n + 1))
            assert (got == want[:, None]).all(), 'allgather'
            b = np.full(9000, 7 * i + r)
            kv.bcast(b, root=i % n)
            assert (b == 7 * i + i % n).all(), 'broadcast'
            got = kv.reducescatter(np.full((n, 2000), r * i, 'int32'))
            assert (got == n * (n - 1) // 2 * i).all(), 'reduce-scatter'
            got, rows = kv.alltoall(
                np.repeat(np.arange(n) + 100 * r + i, 2)[:, None]
                * np.ones((1, 700), 'int64'))
            want = np.repeat(100 * np.arange(n) + r + i, 2)
            assert rows == [2] * n and (got == want[:, None]).all(), 'alltoall'
            if i == FIRST:
                print('on the way', flush=True)
        print('well')
    except pskv.Error as e:
        print('error:', e)
    """


@pytest.fixture
def make_world(trio):
    made = []

    def make(**options):
        w = World(trio)
        w.trio = trio(**options)
        made.append(w)
        return w

    yield make
    for w in made:
        w.close()


def lose_server_after(make_world, rounds, first):
    w = make_world(servers=3, agents=2, options=[
        f"heartbeat.suspect_after={harness.limit(500):.0f}ms",
        f"heartbeat.dead_after={harness.limit(2000):.0f}ms"])
    job = w.job(4)
    text = LOOP.replace("ROUNDS", str(rounds)).replace("FIRST", str(first))
    job.python(text, PSKV_PARTITION_BYTES=4096, PSKV_OP_TIMEOUT="120s")
    for rank in range(4):
        assert job.line(rank) == "ready"
    assert job.line(0) == "on the way"
    w.trio.daemons["ps1"].stop(harness.Deadline(), kill=True)
    ends = [out.splitlines()[-1] for out in job.wait_all()]
    if "well" not in ends:
        assert all(e.startswith("error:") and "lost" in e for e in ends), ends
    else:
        assert set(ends) == {"well"}, ends
    return ends


def test_collectives_survive_the_loss_of_a_server(make_world):
    lose_server_after(make_world, 14, 3)
