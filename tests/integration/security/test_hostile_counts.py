# SPDX-License-Identifier: Apache-2.0
"""Wrong counts, and many of what is allowed once, from every position: worker,
agent, server and tool. Beside them a job checks every element of every sum and
takes the time of its rounds. Short forms of tests/soak/neighbours.py."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import trio as support
import wire
from hostile import COUNTS, KINDS, OP, U32, __file__ as hostile_program
from hostile import sealed
from neighbour import Neighbour, die_with_parent
from trio import Job, limit, PATIENCE, SLOW, wait_for, WorkerError
from wire import MESSAGES, message

MIB = 1 << 20
SANITIZED = SLOW > 1  # Address sanitizer keeps what was freed.
SECONDS = 1.5
# Growth of a daemon by all hostile peers, after their end.
RSS_GROWTH = 96 * MIB
LOG_GROWTH = MIB


@pytest.fixture(scope="module")
def place():
    folder = Path(tempfile.mkdtemp(prefix="pskv-test-"))
    folder.chmod(0o755)
    t = support.Trio(folder / "trio", servers=1, agents=1,
                     server_options=["store.memory=256MiB"],
                     agent_options=["client.mode=0666"])
    try:
        t.start()
        t.folder.chmod(0o755)
        job = Neighbour(t.socket(0))
        job.run(0.2)
        yield Place(t, job)
        job.end()
    finally:
        t.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Place:
    def __init__(self, t, job):
        self.trio = t
        self.job = job
        self.rss = {d.name: d.rss() for d in t.daemons.values()}

    def attack(self, kind):
        """The peer's own report, and the figures of the job beside it."""
        t = self.trio
        argv = [sys.executable, hostile_program, kind, "--socket",
                t.socket(0), "--sched", str(t.port), "--server",
                str(t.servers()[0].port), "--seconds", str(SECONDS)]
        if os.geteuid() == 0:
            argv += ["--uid", "65534"]
        peer = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True,
                                preexec_fn=die_with_parent)
        try:
            figures = self.job.run(SECONDS)
            said = peer.communicate(timeout=PATIENCE)[0]
        finally:
            peer.kill()
            peer.wait()
        assert peer.returncode == 0
        return json.loads(said), figures


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_hostile_counts_do_not_disturb_a_job(place, kind):
    log = {d.name: d.log.stat().st_size for d in place.trio.daemons.values()}
    said, figures = place.attack(kind)
    assert said["sent"] > 0, said
    assert figures["rounds"] >= 3, figures
    assert figures["p99"] < limit(5000), figures
    for d in place.trio.daemons.values():
        assert d.alive(), d.text()[-4000:]
        assert d.log.stat().st_size - log[d.name] < LOG_GROWTH, d.name
        if not SANITIZED:  # Its jobs have ended with its connections.
            wait_for(lambda d=d: d.rss() - place.rss[d.name] < RSS_GROWTH,
                     f"memory of {d.name} to be given back: {said}", 10)


class Raw:
    """A worker of its own job with a server, after the handshake."""

    def __init__(self, place, job):
        self.sock = wire.connect_unix(place.trio.socket(0), PATIENCE)
        self.sock.sendall(wire.l_hello(job=job, num_servers=1))
        self.read("l_welcome")

    def read(self, name):
        """Fields of the next message of this name; others are dropped."""
        want = MESSAGES[name]
        while True:
            code, header, _ = wire.read_frame(self.sock)
            if code == want["code"]:
                fields, _ = wire.unpack(header)
                names = {f["id"]: f["name"] for f in want["fields"]}
                return {names[k]: v for k, v in fields.items() if k in names}

    def key(self, name, count, width=0, dtype=0):
        self.sock.sendall(message("l_key", request=1, name=name, dtype=dtype,
                                  count=count, shape=[count], row_width=width,
                                  mxnet_key=-1))
        return self.read("l_key_info")

    def region(self, size):
        fd = sealed(size)
        socket_data = message("l_region", region=1, size=size)
        wire.socket.send_fds(self.sock, [socket_data], [fd])
        os.close(fd)


@pytest.mark.parametrize("op", ["push_rows", "pull_rows"])
def test_row_counts_beyond_the_key_are_refused(place, op):
    """With a region in which the numbers would lie: its pages do not exist."""
    raw = Raw(place, f"rows-{op}")
    info = raw.key("rows", 1 << 16, 1)
    assert info.get("error", 0) == 0, info
    raw.region(1 << 34)
    for rows in [n for n in COUNTS if n > 1 << 16]:
        raw.sock.sendall(message("l_op", op_id=rows, op=OP[op],
                                 key=info.get("key", 0), region=1, row_count=rows,
                                 round=int(op == "push_rows")))
        done = raw.read("l_done")
        assert done["op_id"] == rows and done["error"] < 0, done
        assert "the key has 65536 rows" in done["text"], done
    raw.sock.close()
    assert place.job.run(0.2)["rounds"] > 0


WRONG_KEYS = [
    (1 << 62, 0, 0), ((1 << 64) - 1, 0, 0), (1 << 46, 0, 0), (0, 0, 0),
    (U32, U32, 0), (U32 * 4, U32, 0), (1 << 25, (1 << 24) + 1, 0),
    (1 << 25, 1 << 24, 0), (1 << 26, 1 << 26, 3), (1 << 24, 1 << 24, 1),
    (10, 3, 0), (4, 0, 200)]


@pytest.mark.parametrize("count,width,dtype", WRONG_KEYS)
def test_impossible_keys_are_refused(place, count, width, dtype):
    raw = Raw(place, "keys")
    try:
        info = raw.key("x", count, width, dtype)
    except (EOFError, ConnectionError):
        pass  # The type does not exist: no message is sent.
    else:
        assert info["error"] < 0 and info["text"], info
        assert raw.key("good", 1024).get("error", 0) == 0
    raw.sock.close()
    assert place.job.run(0.2)["rounds"] > 0


def test_an_init_behind_a_push_that_was_refused(place):
    """With an optimizer and two ranks of a node: sums of other partitions are
    still computed when the first one is refused."""
    t = place.trio
    zeros = t.folder / "zeros"
    zeros.write_bytes(bytes(16_000_000))
    with Job(t, 2, "order") as job:
        job.tell("sgd lr=0.1")
        for n in range(4):
            key = job.key(f"w{n}", "float32", 4_000_000)
            job.say(f"push {key} src={zeros}")
            for w in job:
                with pytest.raises(WorkerError, match="no such key"):
                    w.hear()
            job.tell(f"init {key} src={zeros}")
            job.tell(f"push {key} src={zeros}")
    assert t.agents()[0].alive()
