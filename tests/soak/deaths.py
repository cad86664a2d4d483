#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Servers die by SIGKILL at random moments of a job, and come back with their
state memory.

    deaths.py [COUNT] [--seed N] [--servers N...] [--only OPTIMIZER]
              [--elements N]

COUNT deaths for SGD with momentum, Adam and LAMB, with one server and with three.
All results, and the SHA-256 of the last weights, are those of a run in which
nothing dies. One line of JSON for each: from the death to the next value, of a
round that begins after it, median and 99th percentile; the next process starts
0.1 s after the death, as by the unit. Some servers die again at once.

The last line is of a server with 1 GiB of values and states (--elements of
float32 with Adam; 0: none): from the start of its next process until the job goes
on, as its log has it."""
import argparse
import json
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

# As RestartSec= of psserver.service.
RESTART_S = 0.1
# Deaths whose server dies again while it comes back.
TWICE = 0.1


class Deaths(threading.Thread):
    """Kills servers while a job trains; `open` has those whose next value has not
    come."""

    def __init__(self, trio, count, draw):
        super().__init__(daemon=True)
        self.trio = trio
        self.count = count
        self.draw = draw
        self.lock = threading.Lock()
        self.open = []
        self.seconds = []
        self.died = 0
        self.error = None
        self.recovered = threading.Event()
        self.finished = threading.Event()
        self.end = threading.Event()

    def run(self):
        try:
            while self.died < self.count:
                # A round takes some 10 ms: at any moment of one.
                time.sleep(self.draw.uniform(0, 0.1))
                self.die(self.draw.choice(self.trio.server_names))
                if self.draw.random() >= TWICE:
                    self.recovered.wait()
        except (AssertionError, OSError) as e:
            self.error = e
        self.finished.set()
        # Servers die with the thread that has started them.
        self.end.wait()

    def die(self, name):
        import trio as support
        begun = time.monotonic()
        self.trio.daemons[name].stop(support.Deadline(), kill=True)
        with self.lock:
            self.recovered.clear()
            self.open = [begun]  # Of two deaths the second one counts.
        time.sleep(RESTART_S)
        self.trio.launch(name)
        self.died += 1

    def round_ended(self, begun):
        with self.lock:
            now = time.monotonic()
            done = [at for at in self.open if at < begun]
            self.seconds += [now - at for at in done]
            self.open = [at for at in self.open if at >= begun]
            if done:
                self.recovered.set()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def one(folder, optimizer, servers, count, seed):
    import server_deaths
    import trio as support
    t = support.Trio(folder / "deaths", servers=servers, agents=2, keep="store")
    # Default times of leases.
    t.options = [o for o in t.options if o not in support.CALM]
    t.start()
    deaths = Deaths(t, count, random.Random(f"{seed} {optimizer} {servers}"))
    try:
        training = server_deaths.Training(t, optimizer)
        with training.job:
            training.round()
            deaths.start()
            while not deaths.finished.is_set() or deaths.open:
                begun = time.monotonic()
                training.round()
                deaths.round_ended(begun)
                assert deaths.error is None, deaths.error
            training.round()
            digest = training.digest()
            results = training.results
    except BaseException:
        deaths.count = 0
        deaths.recovered.set()
        raise
    finally:
        t.stop()
        deaths.end.set()
    clean = support.Trio(folder / "clean", servers=servers, agents=2)
    clean.start()
    try:
        want = server_deaths.undisturbed(clean, optimizer, len(results))
    finally:
        clean.stop()
    line = {"optimizer": optimizer, "servers": servers, "deaths": count,
            "seed": seed, "rounds": len(results),
            "p50_s": round(percentile(deaths.seconds, 0.5), 3),
            "p99_s": round(percentile(deaths.seconds, 0.99), 3),
            "longest_s": round(max(deaths.seconds), 3), "sha256": digest,
            "ok": (results, digest) == want}
    if not line["ok"]:
        line["first_other_round"] = next(
            (i for i, (a, b) in enumerate(zip(results, want[0])) if a != b),
            len(results))
    print(json.dumps(line), flush=True)
    return line["ok"]


def started_at(pid):
    """Time of the day at which a process began."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
                .split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def large(folder, elements):
    """Restart of a server with this number of weights."""
    import server_deaths
    import trio as support
    t = support.Trio(folder / "large", servers=1, agents=1, keep="store")
    t.start()
    try:
        training = server_deaths.Training(
            t, "adam", workers=1, keys=(("w", "float32", elements),),
            PSKV_PARTITION_BYTES=4 << 20, PSKV_OP_TIMEOUT="600s")
        with training.job:
            training.round()
            seconds = []
            values = []
            for i in range(3):
                begun = time.monotonic()
                server_deaths.kill(t, "ps0")
                daemon = t.daemons["ps0"]
                at = started_at(daemon.pid)
                values.append(server_deaths.next_value(training, begun))
                lines = re.findall(r"^(\S+)Z .* goes on with \d+ partitions? from "
                                   r"state memory$", daemon.text(), re.M)
                assert len(lines) == i + 1, daemon.text()
                end = datetime.fromisoformat(lines[-1]).replace(
                    tzinfo=timezone.utc).timestamp()
                seconds.append(end - at)
            begun = time.monotonic()
            training.round()
            plain = time.monotonic() - begun
        line = {"elements": elements, "bytes": 12 * elements,
                "restart_s": [round(s, 3) for s in seconds],
                "next_value_s": [round(s, 3) for s in values],
                "round_s": round(plain, 3)}
    finally:
        t.stop()
    print(json.dumps(line), flush=True)
    return True


def attempt(case, *words):
    """Runs a case in a folder, which stays when the case fails."""
    import trio as support
    folder = Path(tempfile.mkdtemp(prefix="pskv-deaths-"))
    try:
        ok = case(folder, *words)
    except (AssertionError, support.WorkerError) as e:
        print(json.dumps({"case": [case.__name__, *words], "ok": False,
                          "error": str(e)[:1000]}), flush=True)
        ok = False
    if ok:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"logs are in {folder}", file=sys.stderr)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--build", default=os.environ.get("PSKV_BUILD_DIR",
                                                          "build"))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--servers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--only", default="")
    parser.add_argument("--elements", type=int, default=(1 << 30) // 12)
    args = parser.parse_args()
    os.environ["PSKV_BUILD_DIR"] = str(Path(args.build).resolve())
    import server_deaths
    ok = True
    for servers in args.servers:
        for optimizer in server_deaths.OPTIMIZERS:
            if args.only not in optimizer:
                continue
            ok &= attempt(one, optimizer, servers, args.count, args.seed)
    if args.elements > 0:
        ok &= attempt(large, args.elements)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
