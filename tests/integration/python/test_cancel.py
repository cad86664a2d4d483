# SPDX-License-Identifier: Apache-2.0
"""Handle.cancel() in jobs of real daemons."""


def test_sums_are_those_of_the_pushes_that_were_not_cancelled(trio, job):
    """Rank 0 cancels what it can at many moments. Each round has one push of
    each rank, so the sums are those of a job in which rank 0 pushed only what
    was not cancelled."""
    t = trio(servers=2, agents=2)
    one = job(t, 2)
    one.python("""
        import random
        kv = pskv.create('dist_sync')
        rounds = 60
        draw = random.Random(7)
        given = []
        cancelled = 0
        if kv.rank == 0:
            open_handles = []
            value = 0
            while len(given) < rounds:
                value += 1
                x = np.full(3000, value, 'f4')
                h = kv.push_async('w', x)
                if draw.random() < .5 and h.cancel():
                    try:
                        h.wait()
                        given.append(value)  # It had ended before.
                    except pskv.Canceled:
                        cancelled += 1
                        x[:] = -1  # The array is ours again.
                else:
                    given.append(value)
                    open_handles.append(h)
                    if draw.random() < .3:
                        kv.dispatch()
                if len(open_handles) > 8:
                    open_handles.pop(0).wait()
            for h in open_handles:
                h.wait()
            assert cancelled > 5, cancelled
            print(*given)
        else:
            out = np.zeros(3000, 'f4')
            sums = []
            for i in range(rounds):
                kv.pushpull('w', np.full(3000, 1000, 'f4'), out=out)
                assert (out == out[0]).all()
                sums.append(int(out[0]) - 1000)
            print(*sums)
        kv.barrier()
        kv.close()
    """)
    given, sums = one.wait_all()
    assert given.split() == sums.split()


def test_a_pull_of_an_ssp_job_is_cancelled(trio, job):
    """A pull waits for a slow worker; the next push needs no end of it."""
    t = trio(servers=1, agents=2)
    one = job(t, 2)
    one.python("""
        kv = pskv.create('dist_ssp', staleness=1, rule='accumulate')
        w = np.zeros(1000, 'f4')
        kv.init('w', w)
        if kv.rank == 0:
            for i in range(5):
                kv.push_async('w', w + 1).wait()
            out = np.full(1000, 7, 'f4')
            h = kv.pull_async('w', out)
            assert not h.done()
            assert h.cancel()
            try:
                h.wait(20)
                print('ended well')
            except pskv.Canceled as e:
                assert e.code == -7
            assert (out == 7).all()
            kv.push_async('w', w + 1).wait(20)
            kv.barrier()
            kv.barrier()
            kv.pull('w', out=out)
            print(out[0], (out == out[0]).all())
        else:
            kv.barrier()
            for i in range(6):
                kv.push_async('w', w + 10).wait()
            kv.barrier()
        kv.close()
    """)
    assert one.wait_all()[0] == "66.0 True\n"


def test_pushes_that_the_agent_has_go_on(trio, job):
    t = trio(servers=1, agents=2)
    one = job(t, 2)
    one.python("""
        kv = pskv.create('dist_sync')
        w = np.ones(1000, 'f4')
        kv.init('w', w)
        if kv.rank == 0:
            first, second = kv.push_async('w', w), kv.push_async('w', w)
            kv.dispatch()
            print(first.cancel(), second.cancel(), second.cancel())
            kv.barrier()
            first.wait()
            print(first.cancel())
        else:
            kv.barrier()
            kv.push_async('w', w).wait()
        kv.close()
    """)
    assert one.wait_all()[0].split() == ["False", "True", "True", "True"]
