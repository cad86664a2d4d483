# SPDX-License-Identifier: Apache-2.0
"""Large arrays of a program's own memory: results are copied as they come, and
a worker that dies amid them holds nobody up."""

import pytest

from test_python_store import World

COUNT = 6 * 1024 * 1024 + 77  # Some 24 MiB of float32.


@pytest.fixture
def world(trio):
    w = World(trio)
    yield w
    w.close()


@pytest.mark.parametrize("servers", [0, 2])
def test_every_byte_comes(world, servers):
    job = world.start(servers, 2 if servers > 0 else 1).job(2)
    job.python(f"""
        kv = pskv.create('dist_sync')
        x = np.arange({COUNT}, dtype='float32') % 1000
        for i in range(4):
            out = np.full({COUNT}, -1, 'float32')
            mine = x + i * (kv.rank + 1)
            kv.pushpull('x', mine, out=out)
            assert (out == 2 * x + 3 * i).all(), i
            # In place, and another array on its way meanwhile.
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
    """)
    job.wait_all()


@pytest.mark.parametrize("servers", [0, 1])
def test_a_worker_dies_amid_a_large_array(world, servers):
    """Whoever takes its place goes on in its round, and nobody ends early or
    with a part of a result."""
    job = world.start(servers, 1).job(2)
    text = f"""
        kv = pskv.create('dist_sync')
        x = np.ones({COUNT}, 'float32')
        out = np.zeros_like(x)
        i = 0
        while out[0] < 50:
            i += 1
            if kv.rank == 0 and i == 10:
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
    job.wait_all()
