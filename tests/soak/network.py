#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Faults under a job: packet loss, flapping links, interrupted links, an
isolated scheduler, and killed daemons.

    network.py [--build DIR] [--only PART] [--short] [--keep]

Each case trains as long as the fault lasts and some rounds more, with sums and
with Adam. It fails when a bit differs from those of an undisturbed run, when a
member is taken for dead, or when a worker ends with an error. It prints how
long the first round took after the network was whole again; for kills, the
times to the error text and to the next round. One JSON line a case."""
import argparse
import json
import os
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

KEYS = (("fc1.weight", "float32", 200_000), ("fc1.bias", "float32", 128),
        ("fc2.weight", "float32", 30_000))
# To the first round when the network is whole again.
FIRST_MAX_S = 1.5
ADAM = "optimizer adam learning_rate=0.001"


class Training:
    """Rounds on all workers, one after the other, with times."""

    def __init__(self, cluster, kind, workers=2, **env):
        import trio as support
        self.kind = kind
        env.setdefault("PSKV_OP_TIMEOUT", "120s")
        self.job = support.Job(cluster, workers, **env)
        self.keys = [self.job.key(*k) for k in KEYS]
        self.results = []
        self.ends = []
        if kind == "adam":
            for i, (_, _, count) in enumerate(KEYS):
                path = cluster.folder / f"zeros{i}"
                path.write_bytes(bytes(4 * count))
                self.job.tell(f"init {self.keys[i]} src={path}")
            self.job.tell(ADAM)
        self.names = " ".join(str(k) for k in self.keys)

    def round(self):
        self.results.append(self.job.tell(f"rounds mixed 1 1 0 {self.names}"))
        self.ends.append(time.monotonic())

    def rounds_until(self, end):
        while time.monotonic() < end:
            self.round()

    def longest(self, since, until):
        """The longest time between two ends of rounds."""
        times = [since] + [t for t in self.ends if since < t < until]
        return max(b - a for a, b in zip(times, times[1:] + [until]))


def expected(folder, kind, count, workers=2):
    """Hashes of an undisturbed run."""
    import trio as support
    t = support.Trio(folder, servers=2, agents=2)
    t.start()
    try:
        training = Training(t, kind, workers)
        with training.job:
            for _ in range(count):
                training.round()
        return training.results
    finally:
        t.stop()


class Case:
    """One fault while a job trains."""

    def __init__(self, name, kind, begin, end, seconds, after=3.0, flap=None,
                 limit=FIRST_MAX_S, options=()):
        self.name = name
        self.kind = kind
        self.begin = begin    # Of the cluster: the fault begins.
        self.end = end
        self.seconds = seconds
        self.after = after
        self.flap = flap      # Seconds of each half of a period.
        self.limit = limit    # To the first round after the end.
        self.options = options

    def disturb(self, h):
        """Causes the fault; runs in its own thread."""
        until = time.monotonic() + self.seconds
        self.begin(h)
        if self.flap is None:
            while time.monotonic() < until:
                time.sleep(max(0, until - time.monotonic()))
        else:
            bad = True
            while time.monotonic() < until:
                time.sleep(self.flap)
                (self.end if bad else self.begin)(h)
                bad = not bad
        self.end(h)
        self.healed = time.monotonic()

    def run(self, folder):
        from hosts import Hosts
        with Hosts(folder / "net", servers=2, agents=2,
                   options=self.options) as h:
            training = Training(h, self.kind)
            with training.job:
                for _ in range(3):
                    training.round()
                self.healed = None
                thread = threading.Thread(target=self.disturb, args=(h,))
                began = time.monotonic()
                thread.start()
                while self.healed is None:
                    training.round()
                thread.join()
                healed = self.healed
                while training.ends[-1] < healed:
                    training.round()
                first = next(t for t in training.ends if t > healed) - healed
                done = len([t for t in training.ends if began < t < healed])
                training.rounds_until(time.monotonic() + self.after)
                second = time.monotonic()
                # The next job does not wait.
                other = Training(h, "sums", name="other")
                with other.job:
                    other.round()
                next_job = time.monotonic() - second
            log = h.sched.text()
            dead = [line for line in log.split("\n") if " GONE " in line]
            h.await_empty()
        want = expected(folder / "clean", self.kind, len(training.results))
        line = {"case": self.name, "kind": self.kind,
                "seconds": self.seconds, "rounds": len(training.results),
                "during": done, "first_s": round(first, 3),
                "next_job_s": round(next_job, 3), "dead": len(dead),
                "same_bits": training.results == want}
        line["ok"] = (line["same_bits"] and not dead and
                      first <= self.limit)
        if dead:
            line["first_dead"] = dead[0]
        return line


def cases(short):
    loss_s = 5 if short else 30
    flap_s = 10 if short else 60
    down_s = 5 if short else 20
    drop_s = 10 if short else 60
    for kind in ("sums", "adam"):
        for share in (0.1, 0.2, 0.3):
            yield Case(f"loss-{int(share * 100)}", kind,
                       lambda h, share=share: h.lose(h.all, share),
                       lambda h: h.lose(h.all, 0), loss_s)
        for name in ("ps0", "node0", "sched"):
            yield Case(f"flap-{name}", kind,
                       lambda h, name=name: h.link(name, False),
                       lambda h, name=name: h.link(name, True), flap_s,
                       flap=0.2)
        # A host that no other reaches for longer than dead_after is dead.
        patient = ["heartbeat.dead_after=60s"]
        for name in ("ps0", "node0"):
            yield Case(f"port-{name}", kind,
                       lambda h, name=name: h.port_of_switch(name, False),
                       lambda h, name=name: h.port_of_switch(name, True),
                       down_s, options=patient)
            yield Case(f"link-{name}", kind,
                       lambda h, name=name: h.link(name, False),
                       lambda h, name=name: h.link(name, True),
                       down_s, options=patient)
            yield Case(f"drop-{name}", kind,
                       lambda h, name=name: h.cut(name, True),
                       lambda h, name=name: h.cut(name, False),
                       down_s, options=patient)
        for seconds in (5,) if short else (5, 20, 60):
            yield Case(f"sched-cut-{seconds}", kind,
                       lambda h: h.cut("sched", True),
                       lambda h: h.cut("sched", False), seconds)
        # The scheduler does not hear one member, which others hear.
        for name in ("ps0", "node0"):
            yield Case(f"sched-drop-{name}", kind,
                       lambda h, name=name: part(h, name, "-A"),
                       lambda h, name=name: part(h, name, "-D"), down_s)
    # Between all agents and servers, while the scheduler hears all members.
    for kind in ("sums", "adam"):
        yield Case(f"data-down-{down_s}", kind, data_down, data_up, down_s)
        yield Case(f"data-drop-{drop_s}", kind, data_drop, data_whole, drop_s)


def part(h, name, word):
    from hosts import run
    for here, there in (("sched", name), (name, "sched")):
        run(h.inside(here) + ["iptables", word, "INPUT", "-s",
                              h.address(there), "-j", "DROP"])


def between(h, words):
    from hosts import run
    for server in h.server_names:
        for agent in h.agent_names:
            run(h.inside(server) + ["iptables", *words, "INPUT", "-s",
                                    h.address(agent), "-j", "DROP"])
            run(h.inside(agent) + ["iptables", *words, "INPUT", "-s",
                                   h.address(server), "-j", "DROP"])


def data_drop(h):
    between(h, ["-A"])


def data_whole(h):
    between(h, ["-D"])


def routes(h, words):
    from hosts import run
    for server in h.server_names:
        for agent in h.agent_names:
            run(["ip", "-n", h.top.name(h.number[server]), "route", *words,
                 "unreachable", h.address(agent)])
            run(["ip", "-n", h.top.name(h.number[agent]), "route", *words,
                 "unreachable", h.address(server)])


def data_down(h):
    routes(h, ["add"])


def data_up(h):
    routes(h, ["del"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=os.environ.get("PSKV_BUILD_DIR",
                                                          "build"))
    parser.add_argument("--only", default="")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    os.environ["PSKV_BUILD_DIR"] = str(Path(args.build).resolve())
    bad = 0
    for case in cases(args.short):
        label = f"{case.name}-{case.kind}"
        if args.only not in label:
            continue
        folder = Path(tempfile.mkdtemp(prefix="pskv-net-"))
        line = {"case": case.name, "kind": case.kind, "ok": False}
        try:
            line = case.run(folder)
        except (AssertionError, Exception) as e:  # noqa: B902
            line["error"] = f"{type(e).__name__}: {e}"[:2000]
        print(json.dumps(line), flush=True)
        bad += not line["ok"]
        if args.keep or not line["ok"]:
            print(f"logs are in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if bad else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
