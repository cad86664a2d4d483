#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that lies beside a job that checks its sums. The server has a valid
certificate and a small job of its own, by which the agents of the other job are
linked with it. For SECONDS it sends values, commits, refusals, rows and states of
the partitions of the other job, which are another server's: in frames of one
partition, behind a partition of its own, and for rounds that are far away.

    liar.py [SECONDS]

Each round of the job has to end with the right sum. Prints what was sent, how
often the agents closed the connection, what their logs say, and the rounds of
the job alone and beside the server. Ends with 1 when a sum was wrong, a round
hung, or an agent did not name the server."""
import random
import shutil
import ssl
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "soak")]

import trio as support  # noqa: E402
from named import NamedServer  # noqa: E402
from neighbour import FLOATS, Neighbour, percentile  # noqa: E402
from neighbours import encrypted, issue  # noqa: E402

PIECE = 16384  # Elements of the partitions of the job.
ALONE = 10     # Seconds.


def own_job(t):
    """The worker of a job on the lying server, whose round never ends."""
    w = support.Worker(t.socket(0), "small", 0, 1, PSKV_NUM_SERVERS=1,
                       PSKV_OP_TIMEOUT="36000s")
    w.ask("open")
    key = w.key("s", "float32", 4)
    w.say(f"rounds count 1 1 0 {key}")
    return w


class Liar:
    def __init__(self, server, gens, seconds):
        self.server, self.gens = server, gens
        self.end = time.monotonic() + seconds
        self.random = random.Random(1)
        self.sent, self.kinds, self.cuts = 0, {}, 0
        self.round = 0

    def a_lie(self, own):
        r = self.random
        key, index = r.randrange(2), r.randrange(4)
        # The round that is open, or near it; or far away.
        number = r.choice([r.randrange(1, 4000), 1_000_000])
        count = min(PIECE, FLOATS - index * PIECE) if key == 0 else 1
        if index > 3 or count <= 0:
            count = 1
        part = [key, index, number, 0, count]
        data = struct.pack("<f", 666.0) * count
        fields = dict(gen=r.choice(self.gens), epoch=1)
        kind = r.choice(["value", "value", "batch", "commit", "refuse", "rows",
                         "state"])
        if kind == "value":
            return kind, "value", dict(fields, credit=0, parts=[part]), data
        if kind == "batch":
            mine = [0, 0, 1, 0, 4]
            small = part[:4] + [1]
            return kind, "value", dict(
                fields, credit=0, parts=[mine, small][::r.choice([1, -1])]), \
                struct.pack("<f", 666.0) * 5
        if kind == "commit":
            return kind, kind, dict(fields, credit=0, parts=[part]), b""
        if kind == "refuse":
            return kind, kind, dict(fields, credit=0, error=-20, text="a lie",
                                    parts=[part]), b""
        if kind == "rows":
            return kind, kind, dict(fields, request=r.randrange(1, 9),
                                    parts=[[key, index, number, 0, 1, 2]]), \
                struct.pack("<ff", 666, 666)
        fields.pop("epoch")
        return kind, kind, dict(fields, request=r.randrange(1, 9), error=0,
                                text="", steps=1, buffers=1,
                                parts=[part]), data

    def run(self):
        """Lies on each connection until an agent closes it."""
        threads = []
        while time.monotonic() < self.end:
            try:
                link = self.server.link(seconds=1)
            except AssertionError:
                continue
            threads.append(threading.Thread(target=self.lie_on, args=(link,)))
            threads[-1].start()
        for thread in threads:
            thread.join()

    def lie_on(self, link):
        while time.monotonic() < self.end:
            kind, name, fields, data = self.a_lie(link)
            if not link.say(name, data, **fields):
                self.cuts += 1
                return
            self.sent += 1
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            link.closed.wait(0.002)


def main():
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    folder = Path(tempfile.mkdtemp(prefix="pskv-liar-"))
    options = encrypted(folder / "pki")
    files = issue(folder / "pki", "lab", "server", "liar")
    t = support.Trio(folder / "cluster", servers=1, agents=1,
                     daemon_options=options)
    t.tools = f"unix:{t.control}"
    t.start()
    job = Neighbour(t.socket(0), ranks=2, servers=1)
    failed = True
    try:
        alone = job.rounds(ALONE, pause=0.002)
        gens = [row["gen"] for row in t.ask("jobs")["jobs"]]
        own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        own.check_hostname, own.verify_mode = False, ssl.CERT_NONE
        accepts = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for context in (own, accepts):
            context.load_cert_chain(files / "server.crt", files / "server.key")
        server = NamedServer(t.port, "liar", cluster="lab", own=own,
                             accepts=accepts)
        small = own_job(t)
        liar = Liar(server, gens, seconds)
        thread = threading.Thread(target=liar.run)
        thread.start()
        beside = job.rounds(seconds, pause=0.002)
        thread.join()
        job.end()
        lines = [line for d in t.agents() for line in d.text().split("\n")
                 if "server liar" in line and (
                     "sent a message (" in line or " is closed: " in line)]
        small.kill()
        print(f"lies {liar.sent}: " + ", ".join(
            f"{k} {n}" for k, n in sorted(liar.kinds.items())))
        print(f"connections closed by the agents: {liar.cuts}")
        print(f"lines of the agents about the server: {len(lines)}, such as")
        for line in lines[:2]:
            print("   ", line)
        for what, times in (("alone", alone), ("beside", beside)):
            print(f"rounds {what}: {len(times)}, each sum right; ms p50 "
                  f"{percentile(times, .5):.2f} p99 {percentile(times, .99):.2f} "
                  f"most {max(times):.1f}")
        failed = not lines or liar.cuts == 0 or liar.sent == 0
    finally:
        if failed:
            job.kill()
        t.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
