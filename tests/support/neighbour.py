# SPDX-License-Identifier: Apache-2.0
"""A job that does what it should, beside others that do not. Each rank checks
every element of every sum and takes the time of every round.

    neighbour.py SOCKET RANKS

reads lines from standard input: "run SECONDS" ends with a line of JSON:
rounds, and the 50th and 99th percentile of their times in ms; "end" closes."""
import ctypes
import json
import signal
import subprocess
import sys
from pathlib import Path

import trio as support

ROOT = Path(__file__).resolve().parents[2]
FLOATS = 50_000
SAMPLES = 4  # Of each rank, in a job that trains.

RANK = f"""
import json, sys, time
import numpy as np, pskv
kv = pskv.create('dist_sync')
kv.init('w', np.zeros({FLOATS}, 'f'))
kv.init('go', np.zeros(1, 'f'))
size, number = kv.num_workers, 0
out, go = np.empty({FLOATS}, 'f'), np.empty(1, 'f')
base = np.arange({FLOATS}, dtype='f') % 1000
for line in sys.stdin:
    words = line.split()
    if words[0] == 'end':
        break
    # Rounds until the time is up or `most` are made, with a pause before each.
    end, times = time.monotonic() + float(words[1]), []
    most, pause = int(words[2]), float(words[3])
    while True:
        number += 1
        time.sleep(pause)
        mine = base + (number + kv.rank) % 64
        begun = time.perf_counter()
        kv.pushpull('w', mine, out)
        times.append(time.perf_counter() - begun)
        wanted = size * base + sum((number + r) % 64 for r in range(size))
        if not (out == wanted).all():
            raise SystemExit('wrong sum in round %d' % number)
        # Rank 0 ends the job, on all ranks in the same round.
        more = (kv.rank == 0 and time.monotonic() < end and
                len(times) != most)
        kv.pushpull('go', np.full(1, more, 'f'), go)
        if go[0] == 0:
            break
    print(json.dumps([round(t * 1e6) for t in times]), flush=True)
kv.close()
"""

# Each "run" is a job of its own that trains from the same start: steps of SGD on
# the servers, whose bits depend on the order of additions.
TRAINING = f"""
import hashlib, json, sys, time
import numpy as np, pskv
for line in sys.stdin:
    words = line.split()
    if words[0] == 'end':
        break
    end, times = time.monotonic() + float(words[1]), []
    most, pause = int(words[2]), float(words[3])
    kv = pskv.create('dist_sync')
    kv.set_optimizer('sgd', lr=1e-5, momentum=0.9)
    random = np.random.default_rng(kv.rank)
    x = random.standard_normal(({SAMPLES}, {FLOATS})).astype('f')
    y = random.standard_normal({SAMPLES}).astype('f')
    weights = np.ones({FLOATS}, 'f')
    kv.init('w', weights)
    bits, more = hashlib.blake2b(digest_size=8), np.ones(1, 'f')
    while more[0] != 0:
        time.sleep(pause)
        gradient = (x @ weights - y) @ x
        begun = time.perf_counter()
        kv.pushpull('w', gradient, weights)
        times.append(time.perf_counter() - begun)
        bits.update(weights)
        # Rank 0 ends the job, on all ranks in the same round.
        more[0] = (kv.rank == 0 and time.monotonic() < end and
                   len(times) != most)
        kv.allreduce(more)
    kv.close()
    print(json.dumps([round(t * 1e6) for t in times]), flush=True)
    print(bits.hexdigest(), flush=True)
"""


def percentile(times, part):
    return sorted(times)[int(len(times) * part)]


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Neighbour:
    program = RANK

    def __init__(self, socket, name="neighbour", ranks=2, servers=1):
        self.ranks = [subprocess.Popen(
            [sys.executable, "-c", self.program], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent,
            env=support.clean_env(
                PYTHONPATH=ROOT / "lib" / "client" / "python",
                PSKV_LIBRARY=support.LIBRARY, PYTHONDONTWRITEBYTECODE=1,
                OPENBLAS_NUM_THREADS=1, PSKV_SOCKET=socket, PSKV_JOB=name,
                PSKV_OP_TIMEOUT="120s", DMLC_NUM_WORKER=ranks,
                DMLC_NUM_SERVER=servers, DMLC_WORKER_ID=rank))
            for rank in range(ranks)]

    def pids(self):
        return [p.pid for p in self.ranks]

    def rounds(self, seconds, most=0, pause=0.0):
        """Times of the rounds in ms, each that of the slower rank: until the
        time is up, or `most` of them. Fails when a sum was wrong or a round
        hung."""
        for p in self.ranks:
            p.stdin.write(f"run {seconds} {most} {pause}\n")
            p.stdin.flush()
        lines = [p.stdout.readline() for p in self.ranks]
        assert all(lines), "a rank of the neighbour has ended"
        return [max(ranks) / 1e3 for ranks in zip(*map(json.loads, lines))]

    def bits(self):
        """Of the values of all rounds of the last run, where the job trains;
        else the sums were checked."""
        return None

    def run(self, seconds):
        times = self.rounds(seconds)
        return dict(rounds=len(times), p50=percentile(times, 0.5),
                    p99=percentile(times, 0.99))

    def end(self):
        for p in self.ranks:
            try:
                p.stdin.write("end\n")
                p.stdin.close()
            except BrokenPipeError:
                pass
        codes = [p.wait(support.PATIENCE) for p in self.ranks]
        assert codes == [0] * len(codes), codes

    def kill(self):
        for p in self.ranks:
            p.kill()
            p.wait()


class Trainer(Neighbour):
    """Each rounds() trains again from the start; bits() are the same after as many rounds."""
    program = TRAINING

    def rounds(self, seconds, most=0, pause=0.0):
        times = super().rounds(seconds, most, pause)
        lines = {p.stdout.readline().strip() for p in self.ranks}
        assert len(lines) == 1, f"ranks of one job have other bits: {lines}"
        self.last, = lines
        assert self.last, "a rank of the neighbour has ended"
        return times

    def bits(self):
        return self.last


def main():
    n = Neighbour(sys.argv[1], ranks=int(sys.argv[2]))
    for line in sys.stdin:
        if line.startswith("run"):
            print(n.run(float(line.split()[1])), flush=True)
        else:
            break
    n.end()



if __name__ == "__main__":
    main()
