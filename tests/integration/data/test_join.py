# SPDX-License-Identifier: Apache-2.0
"""join and the rounds of keys: workers with different numbers of batches,
against NumPy; conflicts, missing ranks, and losses meanwhile."""
import pathlib

import pytest

import trio as harness
from proxy import Proxy
from python_job import World

# Members of a slow build must not be taken for dead.
QUICK = [f"heartbeat.suspect_after={harness.limit(500):.0f}ms",
         f"heartbeat.dead_after={harness.limit(2000):.0f}ms"]

# Every rank computes the batches of all ranks.
HEAD = f"""
    sys.path.append({str(pathlib.Path(harness.__file__).parent)!r})
    kv = pskv.create()
    r, n = kv.rank, kv.num_workers

    def another(job):
        global kv
        kv.close()
        os.environ['PSKV_JOB'] = job
        kv = pskv.create()

    def given(rank, turn, *dims):
        # Sums and products of a few are exact in any type.
        a = np.arange(np.prod(dims, dtype=int)).reshape(dims)
        return 1 + (a + 3 * rank + turn) % 4

    def left(counts, turn):
        return [i for i in range(n) if turn < counts[i]]

    def joined(counts):
        last = kv.join()
        assert last == max(range(n), key=lambda i: (counts[i], i)), last

    def refused(word, call):
        try:
            call()
        except pskv.Error as e:
            assert word in str(e), e
        else:
            raise AssertionError('%s was not refused' % word)
"""


def everybody(world, shape, text, **more):
    servers, agents, workers = shape
    job = world.start(servers, agents).job(workers)
    job.python(HEAD + text, PSKV_PARTITION_BYTES=65536, PSKV_OP_TIMEOUT="120s",
               **more)
    return job.wait_all()


@pytest.mark.parametrize("shape", [(0, 1, 3), (1, 2, 3), (3, 2, 5)])
def test_rounds_cover_the_ranks_that_have_not_joined(world, shape):
    everybody(world, shape, """
    kinds = {'sum': 'f4', 'mean': 'f4', 'min': 'i8', 'max': 'f2',
             'product': 'f8', 'sums': 'u1'}
    dims = {'sum': (70001,), 'product': (3, 5)}
    for k, dtype in kinds.items():
        kv.init(k, np.zeros(dims.get(k, (7,)), dtype))
    kv.init('cast', np.zeros(9, 'i4'))
    turns = 0
    for epoch in range(3):
        # No rank has a batch in the last round.
        counts = [(3 * i + 2 * epoch) % 5 * (epoch < 2) for i in range(n)]
        for turn in range(counts[r]):
            some = left(counts, turn)
            turns += 1
            for k, dtype in kinds.items():
                give = lambda i: given(i, turns, *dims.get(k, (7,))) \\
                    .astype(dtype)
                a = give(r)
                if turn == counts[r] - 1 and k == 'sum':
                    kv.push(k, a)  # The join follows the push.
                    continue
                if k == 'mean':
                    kv.pushpull(k, a * (r + 1), out=a, reduce='mean',
                                samples=r + 1)
                    want = sum(give(i) * (i + 1) for i in some) / \\
                        np.float32(sum(i + 1 for i in some))
                elif k in ('min', 'max', 'product'):
                    kv.pushpull(k, a, out=a, reduce=k)
                    f = {'min': np.min, 'max': np.max, 'product': np.prod}[k]
                    want = f([give(i) for i in some], axis=0)
                else:
                    kv.pushpull(k, a, out=a)
                    want = sum(give(i) for i in some)
                assert np.allclose(a, want, rtol=1e-6, atol=0), \\
                    (k, some, a, want)
            a = np.full(9, 100 * turns + r, 'i4')
            kv.broadcast('cast', a, out=a, root=some[-1])
            assert (a == 100 * turns + some[-1]).all(), a
        joined(counts)
        turns = turns - counts[r] + max(counts)
        # The value is that of the last round with a contribution.
        a = np.empty(70001, 'f4')
        kv.pull('sum', a)
        if epoch < 2:
            some, at = left(counts, max(counts) - 1), turns
        assert (a == sum(given(i, at, 70001) for i in some)).all()
    # All are at the same round.
    a = np.ones(70001, 'f4')
    kv.pushpull('sum', a, out=a)
    assert (a == n).all()
    kv.close()
    """)


def test_optimizers_step_on_rounds_with_a_contribution(world):
    everybody(world, (3, 2, 4), """
    def model(rounds, params, dtype, w):
        # Exact: numbers with few digits, in powers of two.
        w, m, held, steps = w.astype('f4'), 0, 0, 0
        for number, some in enumerate(rounds, 1):
            if not some:
                continue
            steps += 1
            held = held + sum(gradient(i, number) for i in some)
            if steps % params.get('accumulate', 1) == 0:
                m = np.float32(.5) * m - np.float32(.5) * held
                w, held = (w + m).astype('f4'), 0
        return w.astype(dtype)

    def gradient(rank, number):
        return (given(rank, number, 20011) - 2).astype('f4')

    for case, (dtype, params) in enumerate([
            ('f4', {}), ('f2', {}), ('f4', {'accumulate': 2})]):
        another('job%d' % case)
        kv.set_optimizer('sgd', learning_rate=.5, momentum=.5, **params)
        begin = np.zeros(20011, dtype)
        kv.init('w', begin)
        rounds = []
        for epoch in range(2):
            counts = [(2 * i + epoch) % 4 + epoch for i in range(n)]
            for turn in range(max(counts)):
                rounds.append(left(counts, turn))
            for turn in range(counts[r]):
                number = len(rounds) - max(counts) + turn + 1
                g = gradient(r, number).astype(dtype)
                kv.pushpull('w', g, out=g)
                want = model(rounds[:number], params, dtype, begin)
                assert (g == want).all(), (case, epoch, turn, g, want)
            joined(counts)
            rounds.append([])  # The round that all ranks skip.
            a = np.empty(20011, dtype)
            kv.pull('w', a)
            want = model(rounds, params, dtype, begin)
            assert (a == want).all(), (case, epoch, a, want)

    # Steps by norms of arrays and of all keys: that round is no step.
    for name, params in [('lamb', {}), ('sgd', {'clip_global_norm': 1.0})]:
        another(name)
        kv.set_optimizer(name, learning_rate=.125, **params)
        keys = ['a', 'b', 'c']
        kv.init(keys, [np.ones(30011, 'f4') for k in keys])
        before = None
        for epoch in range(2):
            counts = [(i + epoch) % 3 for i in range(n)]
            for turn in range(counts[r]):
                outs = [np.full(30011, r + 1, 'f4') for k in keys]
                kv.pushpull(keys, outs, out=outs)
                assert all((o == outs[0]).all() for o in outs)
                assert np.isfinite(outs[0]).all()
            joined(counts)
            outs = [np.empty(30011, 'f4') for k in keys]
            kv.pull(keys, outs)
            assert all((o == outs[0]).all() for o in outs)
            assert before is None or (before != outs[0]).all()
            before = outs[0].copy()
            joined([0] * n)
            kv.pull(keys, outs)
            assert (outs[0] == before).all()
    kv.close()
    """)


def test_join_works_with_rows_and_codecs(world):
    """Empty rounds touch no row; residuals stay where a node gives nothing."""
    everybody(world, (2, 2, 3), """
    from grad_codec_model import Node, rng_key

    for name, params in [('', {}),
                         ('sgd', {'learning_rate': .5, 'momentum': .5,
                                  'lazy_update': 1})]:
        another('rows' + name)
        if name:
            kv.set_optimizer(name, **params)
        w = np.ones((1000, 40), 'f4')
        m = np.zeros_like(w)
        kv.init_rows('emb', w)
        number = 0
        for epoch in range(2):
            counts = [(2 * i + epoch) % 4 for i in range(n)]
            for turn in range(max(counts)):
                number += 1
                rows = {i: (7 * i + 11 * number + np.arange(30) * 13) % 1000
                        for i in left(counts, turn)}
                if r in rows:
                    kv.push_rows('emb', rows[r],
                                 given(r, number, 30, 40).astype('f4'))
                g = np.zeros_like(w)
                touched = np.zeros(1000, bool)
                for i, some in rows.items():
                    np.add.at(g, some, given(i, number, 30, 40))
                    touched[some] = True
                if name:
                    m[touched] = .5 * m[touched] - .5 * g[touched]
                    w = w + m * touched[:, None]
                else:
                    w = g
            joined(counts)
            got = np.empty_like(w)
            kv.pull_rows('emb', np.arange(1000), got)
            assert (got == w).all(), (name, epoch)

    for number, case in enumerate([
            {'type': '2bit', 'threshold': .5, 'momentum': .5},
            {'type': 'topk', 'k': .1}, {'type': 'onebit', 'both': 1},
            {'type': '2bit', 'threshold': .4, 'both': 1}]):
        another('codes%d' % number)
        kv.set_gradient_compression(case)
        w = np.zeros(5003, 'f4')
        kv.init('w', w)
        nodes = [Node(case, 5003, rng_key('w'), 0, slot) for slot in (0, 1)]
        on = [[i for i in range(n) if i * 2 // n == slot] for slot in (0, 1)]
        back = nodes[0].back()
        round = 0
        want = w
        draw = lambda rank: np.random.default_rng([number, round, rank]) \\
            .standard_normal(5003).astype('f')
        for epoch in range(2):
            counts = [(2 * i + epoch) % 5 for i in range(n)]
            for turn in range(max(counts)):
                round += 1
                some = left(counts, turn)
                want = None
                for slot in (0, 1):
                    here = [i for i in on[slot] if i in some]
                    nodes[slot].round = round - 1
                    if here:
                        g = sum(draw(i) for i in here)
                        code = nodes[slot].push(g)
                        want = code if want is None else want + code
                if back.both:
                    back.round = round - 1
                    want = back.push(want)
                if r in some:
                    kv.pushpull('w', draw(r), out=w)
                    assert (w == want).all(), (case, epoch, turn, w, want)
            joined(counts)
            round += 1
            kv.pull('w', w)
            assert (w == want).all(), (case, epoch, w, want)
    kv.close()
    """)


@pytest.mark.parametrize("shape", [(0, 1, 3), (2, 3, 3)])
def test_mistakes_during_a_join_are_errors_of_their_callers(world, shape):
    everybody(world, shape, """
    kv.init('w', np.zeros(5, 'f4'))
    if r == 1:
        kv.join()
    else:
        w = np.zeros(5, 'f4')
        for i in range(2):
            refused('rank 1 has joined and cannot be the root',
                    lambda: kv.broadcast('w', w, out=w, root=1))
            refused('requests of the ranks differ',
                    lambda: kv.pushpull('w', w, out=w,
                                        reduce='mean' if r else 'sum'))
            w[:] = r + 1
            kv.pushpull('w', w, out=w)
            assert (w == 4).all()
        kv.join()
    w = np.ones(5, 'f4')
    kv.pushpull('w', w, out=w)
    assert (w == 3).all()
    # A key that some ranks have not declared.
    if r != 1:
        kv.init('mine', w)
    refused('rank 0, 2: join with 2 keys declared', kv.join)
    """)


def test_missing_ranks_are_named(world):
    """And joined ranks are not named."""
    job = world.start(1, 2).job(3)
    job.python(HEAD + """
    kv.init('w', np.zeros(5, 'f4'))
    kv.barrier()
    w = np.ones(5, 'f4')
    if r == 2:
        print('here', flush=True)
        sys.stdin.readline()
    if r == 1:
        try:
            kv.join(timeout=.1)
            raise AssertionError('no error')
        except pskv.Timeout as e:
            assert str(e).startswith('join is open for'), e
        print('over', flush=True)  # The limit is; the join goes on.
    else:
        kv.pushpull('w', w, out=w)
        assert (w == 2).all()
    kv.join()
    """, PSKV_OP_TIMEOUT="120s")
    assert job.line(2) == "here"
    assert job.line(1) == "over"

    def missing():
        stalls = world.trio.ask("--after", "1ms", "stall", "job")["stalls"]
        rows = [s for s in stalls if s["what"].startswith("key w round")]
        return [m["rank"] for m in rows[0]["missing"]] if rows else []

    # Rank 0 may push later than rank 1 has joined.
    harness.wait_for(lambda: missing() == [2], "a stall of the key by rank 2")
    job.processes[2].stdin.write("\n")
    job.processes[2].stdin.flush()
    job.wait_all()


def test_join_of_an_async_job_skips_no_key(world):
    everybody(world, (2, 2, 3), """
    for mode, more in [('dist_async', {}), ('dist_ssp', {'staleness': 9})]:
        kv.close()
        os.environ['PSKV_JOB'] = mode
        kv = pskv.create(mode, rule='accumulate', **more)
        kv.init('w', np.zeros(5, 'f4'))
        for turn in range(r):
            kv.push('w', np.ones(5, 'f4'))
        kv.pull('w', np.empty(5, 'f4'))
        kv.join()
        w = np.empty(5, 'f4')
        kv.pull('w', w)
        assert (w == 3).all(), w
        kv.join()
    kv.close()
    """)


# ----------------------------------------------------------------------- losses

# Ranks with different numbers of batches; all servers have partitions.
LOOP = HEAD + """
    kv.init('many', np.zeros(40000, 'i8'))
    keys = ['k%d' % i for i in range(9)]
    kv.init(keys, [np.zeros(3, 'i8') for k in keys])
    print('ready', flush=True)
    turns = 0
    try:
        for epoch in range(EPOCHS):
            counts = [2 + (i + epoch) % n * TURNS for i in range(n)]
            for turn in range(counts[r]):
                some = left(counts, turn)
                a = np.full(40000, turns + turn << 8 | 1 << r, 'i8')
                outs = [np.full(3, i + r) for i in range(9)]
                kv.pushpull(keys, outs, out=outs)
                kv.pushpull('many', a, out=a)
                assert (a == (turns + turn << 8) * len(some) +
                        sum(1 << i for i in some)).all(), a
                for i, out in enumerate(outs):
                    assert (out == sum(i + j for j in some)).all()
                if turn == 3:
                    print('on the way', flush=True)
            joined(counts)
            turns += max(counts)
        print('well')
    except pskv.Error as e:
        print('error:', e)
"""


def loop(world, epochs, turns, workers=4, **more):
    job = world.job(workers)
    job.python(LOOP.replace("EPOCHS", str(epochs)).replace("TURNS",
                                                           str(turns)),
               PSKV_PARTITION_BYTES=65536, PSKV_OP_TIMEOUT="120s", **more)
    for rank in range(workers):
        assert job.line(rank) == "ready"
    return job


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


def ends(job):
    return [out.splitlines()[-1] for out in job.wait_all()]


def test_join_survives_cut_connections(make_world):
    w = make_world(servers=2, agents=2,
                   server_options=["advertise.address=127.0.0.2",
                                   "network.same_host=off"],
                   agent_options=["scheduler.retry.first=10ms",
                                  "scheduler.retry.max=100ms"])
    proxies = [Proxy(("127.0.0.2", s.port), ("127.0.0.1", s.port), seed=i)
               for i, s in enumerate(w.trio.servers())]
    try:
        for p in proxies:
            p.cut_every(50_000, 30)
        assert ends(loop(w, 6, 3)) == ["well"] * 4
        assert sum(p.cuts for p in proxies) > 20
    finally:
        for p in proxies:
            p.close()


def test_join_survives_the_loss_of_a_server(make_world):
    w = make_world(servers=3, agents=2, options=QUICK)
    job = loop(w, 2, 10)
    assert job.line(3) == "on the way"  # Rank 0 has joined.
    w.trio.daemons["ps1"].stop(harness.Deadline(), kill=True)
    assert ends(job) == ["well"] * 4


@pytest.mark.parametrize("what", ["agent", "worker"])
def test_death_of_a_joined_rank_fails_the_job(make_world, what):
    """The other ranks get the error, and so do ranks whose agent is lost."""
    w = make_world(servers=2, agents=2, options=QUICK)
    # More rounds than there are before rank 0 is killed.
    job = loop(w, 1, 100_000, workers=2, PSKV_ON_LOSS="fail")
    assert job.line(1) == "on the way"  # Rank 0 has joined.
    if what == "agent":
        w.trio.daemons["node0"].stop(harness.Deadline(), kill=True)
    else:
        job.processes[0].kill()
    for rank in (0, 1) if what == "agent" else (1,):
        code, out, err = job.wait(rank)
        assert code == 0 and out.splitlines()[-1].startswith("error:"), err
