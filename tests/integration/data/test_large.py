# SPDX-License-Identifier: Apache-2.0
"""Large arrays of a program's own memory: they are summed as they are copied
in, and results are copied as they come; a worker that dies during a copy
delays no other, and half of its array never counts."""

import signal

import pytest

COUNT = 6 * 1024 * 1024 + 77  # Some 24 MiB of float32.


@pytest.mark.parametrize("policy", ["wait", "fail"])
@pytest.mark.parametrize("servers", [0, 2])
def test_large_arrays_arrive_complete(world, servers, policy):
    job = world.start(servers, 2 if servers > 0 else 1).job(2)
    job.python(f"""
        kv = pskv.create('dist_sync')
        x = np.arange({COUNT}, dtype='float32') % 1000
        for i in range(4):
            out = np.full({COUNT}, -1, 'float32')
            mine = x + i * (kv.rank + 1)
            kv.pushpull('x', mine, out=out)
            assert (out == 2 * x + 3 * i).all(), i
            # In place, while another array is sent.
            y = np.full({COUNT}, kv.rank + i, 'float32')
            wait = kv.pushpull_async('y', y, out=out)
            kv.pushpull('x', mine)
            assert (mine == 2 * x + 3 * i).all(), i
            wait.wait()
            assert (out == 2 * i + 1).all(), i
            z = y if kv.rank == 0 else np.zeros_like(y)
            kv.broadcast('z', z)
            assert (z == i).all(), i
        kv.close()
    """, PSKV_ON_LOSS=policy)
    job.wait_all()


def test_bits_do_not_depend_on_the_order_of_copies(world):
    """Sums of numbers whose order would show, of three workers: the same with
    arrays that are offered while they are copied, with arrays that are all
    there, and with memory that is not copied at all."""
    w = world.start(2, 1)
    seen = []
    for how in ("fail", "wait", "shared"):
        job = w.job(3, how)
        job.python(f"""
            import hashlib
            kv = pskv.create('dist_sync')
            r = np.random.RandomState(kv.rank)
            n = 3 * 1024 * 1024 + 5
            x = r.randn(n).astype('float32') * 10.0 ** r.randint(-6, 7, n)
            x = x.astype('float32')
            if {how!r} == 'shared':
                y = kv.empty(n, 'float32')
                y[:] = x
                x = y
            out = np.empty(n, 'float32')
            h = hashlib.blake2b()
            for i in range(6):
                kv.pushpull('x', x, out=out)
                h.update(out)
                x *= np.float32(-0.75)
            print(h.hexdigest(), flush=True)
            kv.close()
        """, PSKV_ON_LOSS="wait" if how == "wait" else "fail")
        lines = job.wait_all()
        assert len(set(lines)) == 1
        seen.append(lines[0])
    assert len(set(seen)) == 1, seen


def half(rounds):
    """A worker that takes part in `rounds` rounds, and then gives an array
    whose memory ends in the middle: it dies while it copies the array."""
    return f"""
        import tempfile
        kv = pskv.create('dist_sync')
        for i in range({rounds}):
            kv.pushpull('x', np.ones({COUNT}, 'float32'))
        with tempfile.NamedTemporaryFile() as f:
            x = np.memmap(f.name, 'float32', 'w+', shape=({COUNT},))
            x[:] = 100
            os.truncate(f.name, 11 << 20)
            kv.pushpull('x', x)
    """


@pytest.mark.parametrize("servers", [0, 1])
def test_death_within_a_gradient_ends_a_job_that_fails(world, servers):
    job = world.start(servers, 1).job(2)
    job.python(f"""
        kv = pskv.create('dist_sync')
        x, out = np.ones({COUNT}, 'float32'), np.empty({COUNT}, 'float32')
        kv.pushpull('x', x, out=out)
        assert (out == 2).all()
        try:
            kv.pushpull('x', x, out=out)
            print('got', out[0])
        except pskv.Error as e:
            print(e)
    """, ranks=[0], PSKV_ON_LOSS="fail")
    job.python(half(1), ranks=[1], PSKV_ON_LOSS="fail")
    code, _, err = job.wait(1)
    assert code == -signal.SIGBUS, err
    code, out, err = job.wait(0)
    assert code == 0, err
    assert "rank 1" in out, out


@pytest.mark.parametrize("servers", [0, 1])
def test_part_of_a_gradient_does_not_count_in_a_waiting_job(world, servers):
    job = world.start(servers, 1).job(2)
    text = f"""
        kv = pskv.create('dist_sync')
        x, out = np.ones({COUNT}, 'float32'), np.empty({COUNT}, 'float32')
        kv.pushpull('x', x, out=out)
        assert (out == 2).all(), (out[0], out[-1])
        kv.close()
    """
    job.python(text, ranks=[0], PSKV_ON_LOSS="wait")
    job.python(half(0), ranks=[1], PSKV_ON_LOSS="wait")
    code, _, err = job.wait(1)
    assert code == -signal.SIGBUS, err
    job.python(text, ranks=[1], PSKV_ON_LOSS="wait")
    job.wait_all()


@pytest.mark.parametrize("servers", [0, 1])
def test_worker_that_replaces_a_dead_one_continues_its_round(world, servers):
    """The worker that takes its place continues its round, and no rank ends
    early or with a part of a result."""
    job = world.start(servers, 1).job(2)
    text = f"""
        kv = pskv.create('dist_sync')
        x = np.ones({COUNT}, 'float32')
        out = np.zeros_like(x)
        i = 0
        while out[0] < 50:
            i += 1
            if kv.rank == 0 and i == 10:
                sys.stdin.readline()  # The other worker has been replaced.
                x[:] = 100  # The last one.
            kv.pushpull('x', x, out=out)
            assert (out == x + 1 if kv.rank == 0 else out == out[0]).all()
            print(i, flush=True)
        kv.barrier()
        kv.close()
    """
    job.python(text)
    for _ in range(3):
        assert job.line(1) != ""
    job.processes[1].kill()
    job.processes[1].wait()
    job.python(text, ranks=[1])
    job.processes[0].stdin.write("\n")
    job.processes[0].stdin.flush()
    job.wait_all()
