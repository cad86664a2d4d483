# SPDX-License-Identifier: Apache-2.0
"""Training processes that leave children behind: loaders of data hold copies of
all that the process had open. Its end is seen at once, not theirs."""
import os
import signal
import subprocess
import sys
import time

import pytest
import trio as support
import wire
from trio import limit

# Connects, forks a child that stays, and waits to be killed. The child is made
# by a bare system call, which no library intercepts.
LEAVES_A_CHILD = """
import ctypes, os, sys
sys.path.insert(0, {support!r})
import wire
sock = wire.connect_unix({path!r})
sock.sendall(wire.l_hello(job="orphans", num_workers=2, num_servers=0, rank=0))
assert wire.read_frame(sock)[0] == wire.MESSAGES["l_welcome"]["code"]
child = ctypes.CDLL(None).syscall({clone}, 17, 0, 0, 0, 0)
if child == 0:
    import signal
    signal.pause()
print(child, flush=True)
sys.stdin.read()
"""
CLONE = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine)


@pytest.mark.skipif(CLONE is None or not hasattr(os, "pidfd_open"),
                    reason="no pidfd")
def test_killed_worker_is_lost_while_its_child_lives(trio):
    t = trio(servers=0, agents=1)
    text = LEAVES_A_CHILD.format(
        support=str(support.SOURCE / "tests/support"), path=t.socket(0),
        clone=CLONE)
    other = wire.connect_unix(t.socket(0))
    other.sendall(wire.l_hello(job="orphans", num_workers=2, num_servers=0,
                               rank=1))
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE,
                          preexec_fn=support.die_with_parent) as process:
        child = int(process.stdout.readline())
        try:
            assert wire.read_frame(other)[0] == \
                wire.MESSAGES["l_welcome"]["code"]
            process.kill()
            begun = time.monotonic()
            code, header, _ = wire.read_frame(other)
            assert code == wire.MESSAGES["l_error"]["code"]
            assert b"rank 0" in header
            assert time.monotonic() - begun < limit(5)
            os.kill(child, 0)  # The child lives.
        finally:
            os.kill(child, signal.SIGKILL)
    other.close()
