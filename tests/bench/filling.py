#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Rounds of a job while its new backup is filled.

    filling.py [BYTES]

Two workers train 16 MiB with Adam on two servers, with replicas: 2; each server has
BYTES (1 GiB) of another key, too, which nobody trains. One of them dies, and a third
begins, to which the other copies all. Prints a line of JSON: milliseconds of a round
without a backup, during the filling, and with two copies."""
import json
import re
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

ROUNDS = 40


def rounds(training, until):
    """Milliseconds of rounds, until there are enough."""
    seconds = []
    while not until(seconds):
        begun = time.monotonic()
        training.round()
        seconds.append(time.monotonic() - begun)
    ms = [1e3 * s for s in seconds]
    return {"rounds": len(ms), "median_ms": statistics.median(ms),
            "mean_ms": statistics.mean(ms),
            "min_ms": min(ms), "max_ms": max(ms)}


def measure(folder, size):
    import server_deaths
    import trio as support
    t = support.Trio(folder / "trio", servers=3, agents=1,
                     server_options=[f"store.memory={4 + (size >> 27)}GiB"],
                     agent_options=[f"local.memory={4 + (size >> 27)}GiB"])
    t.start()
    deadline = support.Deadline(600)
    try:
        t.daemons["ps2"].stop(deadline)
        training = server_deaths.Training(
            t, "adam", workers=2, PSKV_REPLICAS=2, PSKV_NUM_SERVERS=2,
            PSKV_PARTITION_BYTES=1 << 20, PSKV_OP_TIMEOUT="600s",
            keys=(("trained", "float32", 4 << 20),
                  ("waits", "float32", size // 2)))
        training.names = str(training.keys[0])
        with training.job:
            owner, backup = re.findall(r"backup filled: server (\S+), (\S+)",
                                   t.sched.text())[-1]
            t.daemons[backup].stop(deadline, kill=True)
            rounds(training, lambda s: len(s) == 5)
            alone = rounds(training, lambda s: len(s) == ROUNDS)
            mark = len(t.sched.text())
            t.launch("ps2").await_ready(deadline)
            begun = time.monotonic()
            filled = f"backup filled: server {owner}, ps2\n"
            during = rounds(training,
                            lambda s: filled in t.sched.text()[mark:])
            seconds = time.monotonic() - begun
            two = rounds(training, lambda s: len(s) == ROUNDS)
            return {"what": "filling", "bytes": size,
                    "seconds": seconds, "alone": alone,
                    "filling": during, "two": two, "wrong": 0}
    finally:
        t.stop()


def main():
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 1 << 30
    folder = Path(tempfile.mkdtemp(prefix="pskv-filling-"))
    try:
        print(json.dumps(measure(folder, size)), flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
