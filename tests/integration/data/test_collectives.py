# SPDX-License-Identifier: Apache-2.0
"""Collectives: values against NumPy, errors that name the differing ranks,
groups, and that no state is left behind."""

import pytest

import trio as harness


pytestmark = pytest.mark.filterwarnings("ignore")

# (servers, agents, workers)
SHAPES = [(0, 1, 3), (1, 1, 4), (2, 2, 4), (3, 3, 3)]


def everybody(world, shape, text, **more):
    servers, agents, workers = shape
    job = world.start(servers, agents).job(workers)
    job.python(text, **more)
    return job.wait_all()


@pytest.mark.parametrize("shape", SHAPES)
def test_collectives_have_the_values_of_numpy(world, shape):
    everybody(world, shape, """
        kv = pskv.create()
        r, n = kv.rank, kv.num_workers

        def given(rank, *dims, dtype='float32'):
            a = np.random.default_rng(rank + 1).normal(size=dims) * 100
            return np.array(a, dtype=dtype)

        def total(*dims, dtype='float32'):
            return sum(given(i, *dims, dtype=dtype).astype('float64')
                       for i in range(n))

        for dtype in ('float32', 'float64', 'int32', 'int64'):
            for dims in ((), (1,), (7, 5), (400001,)):
                a = given(r, *dims, dtype=dtype)
                want = total(*dims, dtype=dtype)
                out = np.empty_like(a)
                kv.allreduce(a, out)
                assert np.allclose(out, want, rtol=1e-4, atol=1e-2)
                kv.allreduce(a, reduce='mean')  # In place.
                assert np.allclose(a, np.trunc(want / n)
                                   if dtype[0] == 'i' else want / n,
                                   rtol=1e-4, atol=1e-2)

        # Scales.
        a = given(r, 33)
        kv.allreduce(a, prescale=0.5, postscale=4)
        assert np.allclose(a, 2 * total(33), rtol=1e-4, atol=1e-2)

        # Memory of the store's is given without a copy.
        a = kv.empty((1000,), 'float32')
        a[:] = r
        before = kv.stats()['bytes_copied']
        handle = kv.allreduce_async(a)
        handle.wait()
        assert (a == n * (n - 1) / 2).all()
        assert kv.stats()['bytes_copied'] - before == 4000  # The result.

        # Many arrays in one call.
        parts = [given(r, k) for k in (3, 1, 50000)]
        outs = [np.empty_like(p) for p in parts]
        kv.grouped_allreduce(parts, outs)
        for k, out in zip((3, 1, 50000), outs):
            assert np.allclose(out, total(k), rtol=1e-4, atol=1e-2)

        # Every root; sizes that are no multiple of a word.
        for root in range(n):
            for count in (1, 3, 100001):
                a = given(r, count)
                kv.bcast(a, root)
                assert (a == given(root, count)).all()

        # The first dimension may differ, and be zero.
        got = kv.allgather(np.full((r, 3), r, 'float32'))
        want = np.concatenate([np.full((i, 3), i) for i in range(n)])
        assert got.shape == want.shape and (got == want).all()
        assert kv.allgather(np.empty((0, 2), 'int32')).shape == (0, 2)
        got = kv.allgather(given(r, 3 + r, 1001))
        want = np.concatenate([given(i, 3 + i, 1001) for i in range(n)])
        assert (got == want).all()

        # Even and uneven shares, and none for the last rank.
        for rows in (2 * n, 2 * n + 1, 1):
            got = kv.reducescatter(given(r, rows, 11))
            sizes = [rows // n + (i < rows % n) for i in range(n)]
            at = sum(sizes[:r])
            assert got.shape == (sizes[r], 11)
            assert np.allclose(got, total(rows, 11)[at:at + sizes[r]],
                               rtol=1e-4, atol=1e-2)

        # i sends (i + j) % 3 rows to j.
        splits = [(r + j) % 3 for j in range(n)]
        a = np.concatenate([np.full((k, 2), 10 * r + j, 'int64')
                            for j, k in enumerate(splits)])
        got, rows = kv.alltoall(a, splits)
        assert rows == [(i + r) % 3 for i in range(n)]
        assert (got == np.concatenate([
            np.full((k, 2), 10 * i + r) for i, k in enumerate(rows)])).all()
        got, rows = kv.alltoall(np.full((n, 1), float(r)))
        assert rows == [1] * n and (got[:, 0] == range(n)).all()

        assert kv.allgather_object({'rank': r}) == \\
            [{'rank': i} for i in range(n)]
        assert kv.bcast_object(['x' * r, r], root=n - 1) == \\
            ['x' * (n - 1), n - 1]
        import asyncio

        async def wait():
            a, b = np.full(5, r, 'float32'), np.full(3, r, 'int32')
            await asyncio.gather(*[one(kv.allreduce_async(a)),
                                   one(kv.bcast_async(b, n - 1))])
            assert (a == n * (n - 1) / 2).all() and (b == n - 1).all()

        async def one(handle):
            await handle
        asyncio.run(wait())
        kv.barrier()
        kv.close()
    """)


def test_alltoall_sends_a_node_only_its_own_rows(world):
    """Bytes are counted by the agents; rows of odd sizes, in parts that begin
    in the middle of words, are the right ones."""
    everybody(world, (2, 4, 4), """
        kv = pskv.create()
        r, n = kv.rank, kv.num_workers
        for width, dtype in ((1, 'uint8'), (3, 'float16'), (701, 'int32'),
                             (5001, 'uint8')):
            for even in (False, True):
                splits = [3 if even else (2 * r + j) % 5 for j in range(n)]
                a = np.concatenate([
                    np.full((k, width), 16 * r + j) for j, k in
                    enumerate(splits)]).astype(dtype)
                for out in (None, a):
                    got, rows = kv.alltoall(a, splits)
                    want = [3 if even else (2 * i + r) % 5 for i in range(n)]
                    assert rows == want, rows
                    assert got.dtype == a.dtype and got.shape[1] == width
                    assert (got == np.repeat(
                        16 * np.arange(n) + r, want)[:, None]).all()
        """)
    before = {d["name"]: d["bytes_in"] for d in world.trio.ask("nodes")["nodes"]
              if d["role"] == "agent"}
    job = world.job(4, "measured")
    job.python("""
        kv = pskv.create()
        n = kv.num_workers
        a = np.zeros((4 * 1024, 256), 'int32')  # 4 MiB, 1 MiB to each.
        for i in range(3):
            got, rows = kv.alltoall(a)
            assert rows == [1024] * n and len(got) == 4096
        kv.allreduce(np.zeros(2 << 20, 'float32'))  # After it, 8 MiB to each.
        """)
    job.wait_all()

    def came():
        return [d["bytes_in"] - before[d["name"]]
                for d in world.trio.ask("nodes")["nodes"]
                if d["role"] == "agent"]

    least = 17 << 20  # Three from each of the others, three times, and 8 MiB.
    harness.wait_for(lambda: min(came()) >= least, "what agents count")
    assert max(came()) < least + (1 << 20), came()


def test_bits_do_not_depend_on_arrival_order(world):
    """Sums whose value depends on the order of additions, again and again,
    with ranks that come in every order."""
    outs = everybody(world, (2, 3, 6), """
        import hashlib, random, time
        kv = pskv.create()
        a = np.array([1e8, 1e-8, -1e8, 3.3e7, 1.1e-7, -7e7][kv.rank:] +
                     [1e8, 1e-8, -1e8, 3.3e7, 1.1e-7, -7e7][:kv.rank],
                     'float32')
        a = np.tile(a, 10000)
        seen = set()
        for turn in range(20):
            if (kv.rank + turn) % 3 == 0:
                np.linalg.norm(np.random.rand(200, 200))
            out = np.empty_like(a)
            kv.allreduce(a, out)
            seen.add(hashlib.sha1(out.tobytes()).hexdigest())
        assert len(seen) == 1
        print(seen.pop())
        kv.close()
    """)
    assert len(set(outs)) == 1


@pytest.mark.parametrize("servers, agents", [(0, 1), (2, 2)])
def test_joined_ranks_contribute_zeros(world, servers, agents):
    """Ranks without further data contribute zeros to collectives of the
    others."""
    everybody(world, (servers, agents, 3), """
        kv = pskv.create()
        r, n = kv.rank, kv.num_workers
        for lives in range(2):
            # Rank 1 has no rounds, rank 0 four, rank 2 eight.
            for turn in range({0: 4, 1: 0, 2: 8}[r]):
                left = [i for i in range(n) if turn < (4, 0, 8)[i]]
                a = np.full(70001, r + 1, 'float32')
                kv.allreduce(a)
                assert (a == sum(i + 1 for i in left)).all(), a
                a = np.full(3, r + 1, 'float32')
                kv.allreduce(a, reduce='mean')
                assert np.allclose(a, sum(i + 1 for i in left) / len(left))
                assert kv.allgather(np.array([r, r])).tolist() == \
                    [i for i in left for _ in (0, 1)]
                got, rows = kv.alltoall(np.full(n, r))
                assert rows == [int(i in left) for i in range(n)]
                assert got.tolist() == left
                got = kv.reducescatter(np.full((n, 2), r))
                assert (got == sum(left)).all()
                a = np.array([r])
                kv.bcast(a, 2)
                assert a == 2
                try:
                    kv.bcast(a, 1)
                    raise SystemExit('no error')
                except pskv.Error as e:
                    assert 'rank 1, which has joined' in str(e), e
                if len(left) == 2:
                    try:
                        kv.allreduce(np.zeros(3 + r))
                        raise SystemExit('no error')
                    except pskv.Error as e:
                        assert 'rank 0: allreduce float64 [3]' in str(e), e
                        assert 'rank 1: join' in str(e), e
            assert kv.join() == 2
        a = np.array([1.0])
        kv.allreduce(a)
        assert a == n
        assert kv.join() == 2  # All at once: the highest.
        kv.close()
    """)


@pytest.mark.parametrize("servers, agents", [(0, 1), (2, 2)])
def test_collectives_check_descriptions_of_arrays(world, servers, agents):
    """Extra fields of requests by front ends that send bytes: different ones
    are a mismatch; a mean may count joined ranks; a collective may refuse
    them."""
    everybody(world, (servers, agents, 3), """
        from pskv._array import Array
        from pskv._collective import options
        kv = pskv.create()
        r, n = kv.rank, kv.num_workers

        def allreduce(a, **more):
            kv._begin(kv._starter().allreduce(
                'x', 1 if a.dtype == 'float64' else 0, a.shape,
                a.ctypes.data, a.ctypes.data, options('mean', **more)),
                [Array(a, True)]).wait()
            return a

        def gather(a, **more):
            kv._begin(kv._starter().gather(
                'allgather', 'y', 0, a.shape, a.ctypes.data, None, 0,
                options(**more)), [Array(a, False)]).wait()

        a = np.full(4, r, 'float32')
        for words in (('int16 [3]', 'uint8 [6]'), ('z' * 999 + '0',
                                                   'z' * 999 + '1')):
            try:
                allreduce(a, words=words[r == 1])
                raise SystemExit('no error')
            except pskv.Error as e:
                assert 'rank 0, 2: ' in str(e) and 'rank 1: ' in str(e), e
                assert words[0][:60] in str(e) and words[1][:60] in str(e), e
        assert (allreduce(a, words='int16 [3]') == 1).all()
        for turn in range(2):
            if r == 1:
                assert kv.join() != 1
                continue
            a = np.full(4, 3., 'float32')
            assert (allreduce(a, joined=1) == 2).all()
            assert (allreduce(np.full(4, 3., 'float32')) == 3).all()
            try:
                gather(a, joined=2)
                raise SystemExit('no error')
            except pskv.Error as e:
                assert 'allgather is not supported with join: rank 1 has ' \\
                    'joined' in str(e), e
            assert kv.join() != 1
        gather(a, joined=2)
        kv.close()
    """)


@pytest.mark.parametrize("servers, agents", [(0, 1), (2, 3)])
def test_differing_ranks_are_named_on_every_rank(world, servers, agents):
    everybody(world, (servers, agents, 3), """
        kv = pskv.create()
        r = kv.rank
        odd = r == 1

        def expect(call, *words):
            try:
                call()
            except pskv.Error as e:
                text = str(e)
                assert 'rank 0, 2: ' in text and 'rank 1: ' in text, text
                for word in words:
                    assert word in text, (word, text)
                return
            raise AssertionError('no error')

        f = lambda *dims: np.zeros(dims, 'float32')
        for turn in range(2):  # The second time with all keys known.
            expect(lambda: kv.allreduce(f(3) if odd else f(4)),
                   'float32 [3]', 'float32 [4]')
            expect(lambda: kv.allreduce(
                np.zeros(4, 'int32') if odd else f(4)), 'int32', 'float32')
            expect(lambda: kv.allreduce(f(4), reduce='mean' if odd else 'sum'),
                   'mean', 'sum')
            expect(lambda: kv.allreduce(f(4), name='a' if odd else 'b'),
                   "'a'", "'b'")
            expect(lambda: kv.allgather(f(3, 2)) if odd else
                   kv.allreduce(f(3, 2)), 'allgather', 'allreduce')
            expect(lambda: kv.allgather(f(3, 2) if odd else f(3, 4)),
                   '[*, 2]', '[*, 4]')
            expect(lambda: kv.bcast(f(3), root=1 if odd else 0),
                   'from rank 1', 'from rank 0')
            expect(lambda: kv.allreduce(f(3), prescale=2 if odd else 1),
                   'times 2')
            expect(lambda: kv.grouped_allreduce(
                [f(3), f(4)] if odd else [f(4), f(3)]))
            # Later operations succeed.
            a = f(4) + 1
            kv.allreduce(a)
            assert (a == 3).all()
        kv.close()
    """)


@pytest.mark.parametrize("shape", SHAPES)
def test_minimum_maximum_and_product_match_numpy(world, shape):
    """Of every type, by keys and by collectives, NaN and all: the bits that
    NumPy gives. Where nodes are several their own results meet again."""
    everybody(world, shape, """
        kv = pskv.create()
        r, n = kv.rank, kv.num_workers
        folds = {'min': np.minimum, 'max': np.maximum, 'product': np.multiply}

        def given(rank, dtype, size, reduce):
            draw = np.random.default_rng(1000 * rank + size)
            if dtype == 'bool':
                return draw.random(size) < .7
            if dtype[0] in 'iu':
                info = np.iinfo(dtype)
                return draw.integers(info.min, info.max, size, dtype,
                                     endpoint=True)
            # Products of powers of two are exact in any order.
            a = 2.0 ** draw.integers(-1, 2, size) * draw.choice([-1, 1], size)
            if reduce != 'product':
                a = draw.normal(size=size) * 100
                a[draw.random(size) < .05] = np.nan
                a[draw.random(size) < .05] = np.inf
            return a.astype(dtype)

        def want(dtype, size, reduce):
            total = given(0, dtype, size, reduce)
            for i in range(1, n):
                with np.errstate(all='ignore'):
                    total = folds[reduce](total, given(i, dtype, size, reduce))
            return total

        for dtype in ('float32', 'float64', 'float16', 'int8', 'uint8',
                      'int32', 'int64', 'bool'):
            for reduce in folds:
                for size in (1, 1001):
                    a = given(r, dtype, size, reduce)
                    expected = want(dtype, size, reduce)
                    out = np.empty_like(a)
                    kv.pushpull('%s %d' % (dtype, size), a, out, reduce=reduce)
                    assert np.array_equal(out, expected, dtype[0] == 'f'), \
                        (dtype, reduce, out, expected)
                    kv.allreduce(a, out, reduce=reduce)
                    assert np.array_equal(out, expected, dtype[0] == 'f')
                got = kv.reducescatter(given(r, dtype, 1001, reduce),
                                       reduce=reduce)
                cut = np.array_split(want(dtype, 1001, reduce), n)[r]
                assert np.array_equal(got, cut, dtype[0] == 'f')

        # Several arrays of one worker are reduced in the same way.
        big = np.full(5, 3.0 + r, 'float32')
        kv.pushpull('several', [big, big + 10, big - 20], out=big,
                    reduce='min')
        assert (big == -17).all()
        # Scales come before and behind.
        a = np.full(7, r + 1.0, 'float32')
        kv.allreduce(a, reduce='max', prescale=2, postscale=.5)
        assert (a == n).all()
        # Another round of the same key may have another reduction.
        for reduce, total in (('sum', n), ('product', 1), ('mean', 1)):
            one = np.ones(1001, 'float32')
            kv.pushpull('float32 1001', one, reduce=reduce)
            assert (one == total).all()
        # Joined ranks change no result.
        if r == n - 1:
            kv.join()
        else:
            for reduce, value in (('min', 4.0), ('max', -4.0),
                                  ('product', 3.0)):
                for dtype in ('float32', 'int8', 'float16'):
                    a = np.full(9, value, dtype)
                    kv.allreduce(a, reduce=reduce)
                    total = value ** (n - 1) if reduce == 'product' else value
                    assert (a == total).all(), (reduce, dtype, a)
            kv.join()
        kv.close()
    """)


def test_misuse_is_an_error_of_its_caller_only(world):
    everybody(world, (1, 1, 2), """
        kv = pskv.create()

        def expect(kind, call):
            try:
                call()
            except kind as e:
                return str(e)
            raise AssertionError('no error')

        if kv.rank == 0:
            a = np.zeros(4, 'float32')
            expect(ValueError, lambda: kv.allreduce(a, reduce='median'))
            expect(pskv.Error, lambda: kv.bcast(a, root=2))
            expect(pskv.Error, lambda: kv.allreduce(np.zeros(3, 'int32'),
                                                    prescale=2))
            expect(pskv.Error, lambda: kv.allreduce(a, name='x' * 300))
            expect(ValueError, lambda: kv.alltoall(a, [1, 2, 3]))
            assert 'send 3 rows' in expect(pskv.Error,
                                           lambda: kv.alltoall(a, [1, 2]))
            expect(ValueError, lambda: kv.allreduce(a, np.zeros(5, 'float32')))
            expect(pskv.Error, lambda: kv.group([0, 7]))
            expect(pskv.Error, lambda: kv.group([1]))
            expect(pskv.Error, lambda: kv.group([0, 0]))
        kv.barrier()
        b = np.ones(3, 'float32')
        kv.allreduce(b)
        assert (b == 2).all()
        kv.close()
    """)


def test_groups_work_beside_an_optimizer(world):
    """Subsets of the ranks, several at a time, beside keys with an optimizer
    on the servers."""
    everybody(world, (2, 2, 4), """
        kv = pskv.create()
        r = kv.rank
        kv.init('w', np.ones(10, 'float32'))
        kv.set_optimizer('sgd', learning_rate=0.5)
        even = kv.group([0, 2]) if r % 2 == 0 else kv.group([3, 1])
        everyone = kv.group()
        assert even.num_workers == 2 and everyone.num_workers == 4
        assert even.rank == {0: 0, 2: 1, 3: 0, 1: 1}[r]
        for turn in range(3):
            a = np.full(5, r, 'float32')
            even.allreduce(a)
            assert (a == (2 if r % 2 == 0 else 4)).all()
            a[:] = r
            everyone.allreduce(a)
            assert (a == 6).all()
            assert (even.allgather(np.array([r])) ==
                    ([0, 2] if r % 2 == 0 else [3, 1])).all()
            w = np.empty(10, 'float32')
            kv.pushpull('w', np.ones(10, 'float32'), w)
            assert (w == 1 - 2 * (turn + 1)).all()
        even.barrier()
        even.close()
        everyone.close()
        kv.close()
    """)


def test_a_group_with_other_members_is_an_error(world):
    everybody(world, (1, 1, 3), """
        kv = pskv.create()
        g = None
        if kv.rank < 2:
            # Ranks 0 and 1 take place 0 and 1, but think of other partners.
            g = kv.group([0, 2] if kv.rank == 0 else [2, 1], name='g')
            try:
                g.allreduce(np.zeros(3, 'float32'))
            except pskv.Error as e:
                assert 'rank 0: ' in str(e) and 'rank 1: ' in str(e)
            else:
                raise AssertionError('no error')
        kv.barrier()
        if g is not None:
            g.close()
        kv.close()
    """)


def test_a_late_rank_is_named(world):
    job = world.start(1, 2).job(2)
    job.python("""
        kv = pskv.create()
        a = np.ones(3, 'float32')
        if kv.rank == 0:
            handle = kv.allreduce_async(a, name='grad')
            text = ''
            for _ in range(100):
                if 'rank 1' in text:
                    break
                try:  # Until its key is declared, it waits for that.
                    handle.wait(timeout=0.2)
                except pskv.Timeout as e:
                    text = str(e)
                else:
                    raise AssertionError('no time limit')
            assert 'grad' in text and 'rank 1' in text, text
            print('late', flush=True)
            handle.wait()
        else:
            sys.stdin.readline()
            kv.allreduce(a, name='grad')
        assert (a == 2).all()
        kv.close()
    """)
    assert job.line(0) == "late"
    job.processes[1].stdin.write("\n")
    job.processes[1].stdin.flush()
    job.wait_all()


def test_collectives_of_many_sizes_share_keys(world):
    """Every size once: after some, they share keys; and nothing stays."""
    job = world.start(2, 1).job(2)
    job.python("""
        kv = pskv.create()
        for size in range(1, 1201):
            a = np.full(size, kv.rank + 1, 'float32')
            kv.allreduce(a)
            assert (a == 3).all(), size
            if size % 100 == 0:
                b = np.full(size, kv.rank, 'int32')
                kv.bcast(b, 1)
                assert (b == 1).all()
                c = kv.empty(size, 'float32')  # Without a copy.
                c[:] = 1
                kv.allreduce(c)
                assert (c == 2).all()
                got = kv.allgather(np.full(size + kv.rank, kv.rank, 'int32'))
                assert got.sum() == size + 1
                got = kv.reducescatter(np.full(size, 2.0))
                assert got.shape == (size // 2,) and (got == 4).all()
        print('done', flush=True)
        sys.stdin.readline()
        kv.close()
    """)
    for rank in range(2):
        assert job.line(rank) == "done"
    keys = job.trio.ask("keys", "job")["keys"]
    assert len({k["name"] for k in keys}) < 400
    for rank in range(2):
        job.processes[rank].stdin.write("\n")
        job.processes[rank].stdin.flush()
    job.wait_all()
    # Servers hear of the end of the job from psched.
    for server in job.trio.servers():
        harness.wait_for(lambda s=server: s.state()["residue"] == 0,
                         f"nothing left on {server.name}")


def test_collectives_work_without_numpy(world):
    everybody(world, (1, 1, 2), """
        import array
        kv = pskv.create()
        a = array.array('f', [1, 2, 3])
        kv.allreduce(a)
        assert list(a) == [2, 4, 6]
        assert kv.allgather(a).tolist() == [2, 4, 6] * 2
        assert kv.bcast_object('x' if kv.rank == 1 else None, 1) == 'x'
        kv.close()
    """, numpy=False)


def test_dead_worker_fails_collectives_of_a_job_that_fails(world):
    job = world.start(1, 2).job(3)
    job.python("""
        kv = pskv.create(on_loss='fail')
        a = np.ones(3, 'float32')
        kv.allreduce(a)
        kv.barrier()  # All have the sum.
        if kv.rank == 2:
            os.kill(os.getpid(), 9)
        try:
            kv.allreduce(a)
        except pskv.PeerLost as e:
            assert 'rank 2' in str(e), str(e)
            print('refused')
        """)
    assert job.wait(2)[0] == -9
    for rank in range(2):
        code, out, err = job.wait(rank)
        assert (code, out) == (0, "refused\n"), err


@pytest.mark.parametrize("servers, agents", [(0, 1), (1, 2)])
def test_a_round_without_a_rank_that_has_left_is_an_error(world, servers,
                                                          agents):
    """A rank that waits for one that has closed its store gets an error that
    names it, whatever the job does about deaths. Barriers go on."""
    everybody(world, (servers, agents, 2), """
    kv = pskv.create()
    kv.allreduce(np.ones(3, "f4"))
    if kv.rank == 0:
        kv.barrier()
        kv.barrier()
        try:
            kv.allreduce(np.ones(3, "f4"))
        except pskv.JobFailed as e:
            assert "rank 1 on " in str(e) and "has left job" in str(e), e
        else:
            raise AssertionError("no error")
    else:
        kv.barrier()
        kv.close()
    """)


def test_collectives_bypass_the_optimizer(world):
    """The sum of a collective is not a gradient, integers included."""
    everybody(world, (2, 2, 4), """
        kv = pskv.create()
        kv.set_optimizer('sgd', learning_rate=0.5, momentum=0.9)
        w = np.ones(70000, 'f')
        kv.init('w', w)
        for i in range(3):
            a = np.full(70000, kv.rank + 1, 'f')
            kv.allreduce(a, name='a')
            assert (a == 10).all()
            b = np.arange(5) + kv.rank
            kv.allreduce(b, name='b')
            assert (b == 4 * np.arange(5) + 6).all()
        kv.pushpull('w', np.ones(70000, 'f'), out=w)
        assert (w == -1).all()
        """)


def test_compression_may_follow_collectives(world):
    """Their keys are no keys of the job, and are never compressed."""
    everybody(world, (2, 2, 4), """
        kv = pskv.create()
        assert kv.bcast_object('x' if kv.rank == 1 else None, 1) == 'x'
        a = np.full(70000, .25, 'f')
        kv.allreduce(a, name='a')
        assert (a == 1).all()
        kv.set_gradient_compression({'type': '2bit', 'threshold': .5})
        kv.init('w', np.zeros(8, 'f'))
        out = np.zeros(8, 'f')
        kv.pushpull('w', np.full(8, .3, 'f'), out=out)
        assert (out == 1).all(), out  # 0.6 a node: 0.5 each.
        for name in ('a', 'b'):  # One from before, and one from after.
            a = np.full(70000, .25, 'f')
            kv.allreduce(a, name=name)
            assert (a == 1).all()
        """)
