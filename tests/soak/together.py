#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""All faults together: three hosts in network namespaces, each with a server and
an agent, psched on the first; two jobs with Adam, one of them compressed, and one
whose workers check each sum. Needs root, ip, iptables and ethtool.

    together.py SECONDS [--seed N] [--keep]

Daemons are killed and start again 0.1 s later, servers with their state memory
and psched with its file; daemons are stopped and continued; hosts are cut off;
each host loses 5 % of its packets; partitions move. The results of each round and
the SHA-256 of the last weights are those of a run without faults. One line of
JSON."""
import argparse
import collections
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "support"))

LOSS = 0.05
# As RestartSec= of the units.
RESTART_S = 0.1
# Of a server, whose memory stays; of others shorter than the lease of 2 s, after
# which a member is dead to the others.
STOP_SERVER_S = 4.0
STOP_S = 1.2
HOSTS = {"sched": 1, "ps0": 1, "node0": 1, "ps1": 2, "node1": 2, "ps2": 3,
         "node2": 3}
JOBS = {"adam": ("adam", None),
        "small": ("adam", "compress 2bit threshold=1.5"),
        "sums": (None, None)}


def open_job(trio, name):
    import server_deaths
    optimizer, codec = JOBS[name]
    # "count": each worker checks its sums.
    return server_deaths.Training(
        trio, optimizer, workers=3, name=name, codec=codec,
        kind="mixed" if optimizer else "count", PSKV_OP_TIMEOUT="300s")


class Runner(threading.Thread):
    """Trains until it is told the end, and some rounds more."""

    def __init__(self, training):
        super().__init__(daemon=True)
        self.training = training
        self.over = threading.Event()
        self.error = None

    def run(self):
        try:
            while not self.over.is_set():
                self.training.round()
            for _ in range(3):
                self.training.round()
            self.digest = self.training.digest()
        except Exception as e:  # noqa: B902
            self.error = f"{type(e).__name__}: {e}"


class Faults:
    """One after the other, from one seed; what recovers may meet the next."""

    def __init__(self, hosts, seed):
        self.hosts = hosts
        self.draw = random.Random(seed)
        self.count = collections.Counter()
        self.weights = {self.kill: 4, self.stop: 3, self.cut: 2, self.move: 2}

    def one(self):
        for d in self.hosts.daemons.values():
            assert d.alive(), (f"{d.name} has ended by itself:\n"
                               f"{d.text()[-2000:]}")
        fault = self.draw.choices(list(self.weights),
                                  list(self.weights.values()))[0]
        fault()
        time.sleep(self.draw.uniform(0.02, 0.6))

    def kill(self):
        import trio as support
        name = self.draw.choice(self.hosts.all)
        self.hosts.daemons[name].stop(support.Deadline(), kill=True)
        time.sleep(RESTART_S)
        self.hosts.launch(name)
        self.count[f"killed {name.rstrip('012')}"] += 1

    def stop(self):
        name = self.draw.choice(self.hosts.all)
        process = self.hosts.daemons[name].process
        process.send_signal(signal.SIGSTOP)
        time.sleep(self.draw.uniform(0.05, STOP_SERVER_S if name in
                                     self.hosts.server_names else STOP_S))
        process.send_signal(signal.SIGCONT)
        self.count[f"stopped {name.rstrip('012')}"] += 1

    def cut(self):
        name = self.draw.choice(self.hosts.agent_names)
        self.hosts.cut(name, True)
        time.sleep(self.draw.uniform(0.05, STOP_S))
        self.hosts.cut(name, False)
        self.hosts.lose([name], LOSS)
        self.count["cut"] += 1

    def move(self):
        """A server that is away takes or gives no partition: a refusal is an
        answer, too."""
        job = self.draw.choice(list(JOBS))
        words = ["rebalance", job]
        if self.draw.random() < 0.5:
            words += ["--off", self.draw.choice(self.hosts.server_names)]
        code, _, _ = self.hosts.psctl(*words, timeout="5s",
                                       endpoint=f"unix:{self.hosts.control}")
        self.count["moved" if code == 0 else "move refused"] += 1


def disturb(folder, seconds, seed):
    """Results of the jobs under faults, and the number of each fault."""
    from hosts import Hosts
    faulty = folder / "faults"
    with Hosts(faulty, servers=3, agents=3, hosts=HOSTS, keep="store",
               options=[f"control.socket={faulty}/psched.sock",
                        f"state.file={faulty}/psched.state"]) as h:
        jobs = {name: open_job(h, name) for name in JOBS}
        runners = {}
        for name, training in jobs.items():
            training.round()
            runners[name] = Runner(training)
            runners[name].start()
        h.lose(h.agent_names, LOSS)
        faults = Faults(h, seed)
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end and not errors(runners):
                faults.one()
        finally:
            h.lose(h.agent_names, 0)
            for r in runners.values():
                r.over.set()
        for r in runners.values():
            r.join()
        if errors(runners):
            raise AssertionError(f"{errors(runners)}; {dict(faults.count)}")
        for training in jobs.values():
            training.job.close()
        corrupt = [d.name for d in h.daemons.values()
                   if "bytes were changed on the way" in d.text()]
        assert not corrupt, corrupt
    return ({name: (r.training.results, r.digest)
             for name, r in runners.items()}, faults.count)


def errors(runners):
    return {name: r.error for name, r in runners.items() if r.error}


def undisturbed(folder, results):
    """The same number of rounds without faults."""
    import trio as support
    found = {}
    t = support.Trio(folder / "clean", servers=3, agents=3)
    t.start()
    try:
        for name, (rounds, _) in results.items():
            training = open_job(t, name)
            with training.job:
                for _ in rounds:
                    training.round()
                found[name] = (training.results, training.digest())
    finally:
        t.stop()
    return found


def run(folder, seconds, seed):
    """The line of one run."""
    results, count = disturb(folder, seconds, seed)
    want = undisturbed(folder, results)
    return {"seconds": seconds, "seed": seed, "faults": dict(count),
            "rounds": {name: len(r[0]) for name, r in results.items()},
            "sha256": {name: r[1][:16] for name, r in results.items()},
            "other_bits": [n for n in JOBS if results[n] != want[n]],
            "ok": results == want}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float, nargs="?", default=600)
    parser.add_argument("--build", default=os.environ.get("PSKV_BUILD_DIR",
                                                          "build"))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    os.environ["PSKV_BUILD_DIR"] = str(Path(args.build).resolve())
    folder = Path(tempfile.mkdtemp(prefix="pskv-all-"))
    line = {"seconds": args.seconds, "seed": args.seed, "ok": False}
    try:
        line = run(folder, args.seconds, args.seed)
    except Exception as e:  # noqa: B902
        line["error"] = f"{type(e).__name__}: {e}"[:3000]
    print(json.dumps(line), flush=True)
    if args.keep or not line["ok"]:
        print(f"logs are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if line["ok"] else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
