# SPDX-License-Identifier: Apache-2.0
"""Rows keys with rows of nearly the size of a frame: such a key works, or its
declaration is refused with a text. In either case the link between agent and
server keeps serving other jobs."""
import subprocess
import sys

import trio as harness
from python_job import environment


# Of an operation: a push of 80 MiB of rows takes long on a busy machine.
LIMIT = int(harness.PATIENCE) + 90

WIDE = """
import numpy as np, pskv
kv = pskv.create('dist_sync')
# 64 rows of 1 MiB and 4 bytes: together beyond 64 MiB.
w = np.zeros((64, 262145), 'f')
w[:, -1] = np.arange(64)
kv.init_rows('odd', w)
kv.push_rows('odd', np.arange(64), w)
got = np.empty((2, 262145), 'f')
kv.pull_rows('odd', [1, 63], got)
assert got[:, -1].tolist() == [1, 63], got[:, -1]
del w, got
"""
NARROW = """
import numpy as np, pskv
kv = pskv.create('dist_sync')
# A number of 4 bytes for each row of one: 80 MiB for 16 Mi rows.
kv.init_rows('bytes', np.zeros((16 << 20, 1), 'u1'))
kv.push_rows('bytes', np.arange(16 << 20), np.ones((16 << 20, 1), 'u1'))
got = np.empty((2, 1), 'u1')
kv.pull_rows('bytes', [0, (16 << 20) - 1], got)
assert got.ravel().tolist() == [1, 1], got
"""
NEIGHBOUR = """
import numpy as np, pskv
kv = pskv.create('dist_sync')
kv.init('w', np.zeros(1000, 'f'))
kv.push('w', np.full(1000, 3, 'f'))
out = np.empty(1000, 'f')
kv.pull('w', out)
assert (out == 3).all()
kv.close()
"""


def run(t, job, text, **env):
    done = subprocess.run(
        [sys.executable, "-c", text], text=True, stderr=subprocess.PIPE,
        check=False, timeout=2 * LIMIT,
        env=environment(t, job, 0, 1, PSKV_OP_TIMEOUT=f"{LIMIT}s", **env))
    return done.returncode, done.stderr


def test_rows_near_a_frame_travel(trio):
    t = trio(servers=1, agents=1)
    assert run(t, "wide", WIDE) == (0, "")
    assert run(t, "narrow", NARROW, PSKV_PARTITION_BYTES=16 << 20) == (0, "")
    assert run(t, "neighbour", NEIGHBOUR) == (0, "")


def test_a_row_beyond_a_frame_is_refused(trio):
    t = trio(servers=1, agents=1)
    rc, text = run(t, "wide", """
import numpy as np, pskv
kv = pskv.create('dist_sync')
kv.init_rows('w', np.zeros((2, (16 << 20) + 1), 'f'))
""")
    assert rc == 1
    assert "a row of 16777217 elements of float32 is larger than" in text
    assert run(t, "neighbour", NEIGHBOUR) == (0, "")
