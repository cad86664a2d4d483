# SPDX-License-Identifier: Apache-2.0
"""kv.register() in jobs of real daemons."""


PRELUDE = """
        import mmap

        def memfd_array(count, seals=None, flags=os.MFD_ALLOW_SEALING):
            fd = os.memfd_create('gradients', os.MFD_CLOEXEC | flags)
            os.ftruncate(fd, 4 * count)
            memory = mmap.mmap(fd, 4 * count)  # Has a descriptor of its own.
            os.close(fd)
            return np.frombuffer(memory, 'f4')

        def copied():
            return kv.stats()['bytes_copied']
"""


def test_arrays_in_a_memfd_are_not_copied(trio, job):
    t = trio(servers=2, agents=2)
    one = job(t, 2)
    one.python(PRELUDE + """
        kv = pskv.create('dist_sync')
        whole = memfd_array(30000)
        with kv.register(whole) as r:
            assert r.shared and r.why is None
            parts = whole[:10000], whole[10000:25000]
            sums = []
            before = copied()
            for i in range(20):
                for k, part in enumerate(parts):
                    part[:] = np.arange(len(part)) % 7 + kv.rank + i
                    kv.push_async('w%d' % k, part).wait()
            assert copied() == before, copied() - before
            out = np.zeros(15000, 'f4')
            kv.pull('w1', out=out)
            expected = 2 * (np.arange(15000) % 7) + 1 + 2 * 19
            assert (out == expected).all()
            total = np.zeros(10000, 'f4')
            kv.allreduce(parts[0], out=total)
            assert (total == 2 * (np.arange(10000) % 7) + 1 + 2 * 19).all()
            h = kv.push_async('w0', parts[0])
            try:
                if not h.done():
                    r.unregister()
                    assert h.done()
            except pskv.Error as e:
                assert 'open operations use this memory' in str(e)
            h.wait()
        kv.barrier()
        kv.push_async('w0', parts[0]).wait()
        assert copied() >= before + 40000
        kv.close()
        print('done')
    """)
    assert one.wait_all() == ["done\n"] * 2


def test_other_arrays_are_copied(trio, job):
    t = trio(servers=1, agents=1)
    one = job(t, 1)
    one.python(PRELUDE + """
        kv = pskv.create('dist_sync')
        x = np.ones(1000, 'f4')
        r = kv.register(x)
        print(r.shared, r.why)
        before = copied()
        kv.push_async('w', x).wait()
        print(copied() - before)
        r.unregister()
        r.unregister()
        for bad in (x[::2], np.ones(3, 'f4').tobytes()):
            try:
                kv.register(bad)
                print('taken')
            except TypeError:
                pass
        for y, more in ((x, {}), (memfd_array(1024, flags=0), {}),
                        (memfd_array(1024), {'keep_seals': True})):
            try:
                kv.register(y, must_share=True, **more)
                print('shared')
            except pskv.Error as e:
                print(e.code, str(e).split(': ', 1)[1])
        kv.register(memfd_array(1024), must_share=True)
        kv.close()
    """)
    lines = one.wait_all()[0].splitlines()
    assert lines[0].startswith("False operations copy the memory at 0x")
    assert lines[0].endswith(": it is private to this process")
    assert lines[1] == "4000"
    assert lines[2:] == [
        "-25 it is private to this process",
        "-25 its file cannot be sealed: memfd_create() needs "
        "MFD_ALLOW_SEALING",
        "-25 its memfd is not sealed"]


def test_an_async_job_writes_values_to_its_own_memory(trio, job):
    """Pushes use the array in place; values go elsewhere, so it keeps what the
    program wrote."""
    t = trio(servers=1, agents=1)
    one = job(t, 2)
    one.python(PRELUDE + """
        kv = pskv.create('dist_async', rule='accumulate')
        x = memfd_array(4096)
        kv.register(x, must_share=True)
        kv.init('w', np.zeros(4096, 'f4'))
        x[:] = 1
        for i in range(10):
            kv.push_async('w', x).wait()
        out = np.zeros(4096, 'f4')
        kv.pushpull('w', x, out=out)
        assert (x == 1).all() and out[0] >= 11
        kv.barrier()
        kv.pull('w', out=x)
        assert (x == 22).all()
        kv.close()
        print('done')
    """)
    assert one.wait_all() == ["done\n"] * 2
