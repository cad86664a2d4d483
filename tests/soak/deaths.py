#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Servers die by SIGKILL at random moments of a job, and come back with their
state memory.

    deaths.py [COUNT] [--hosts] [--seed N] [--servers N...] [--only OPTIMIZER]
              [--elements N]

COUNT deaths for SGD with momentum, Adam and LAMB, with one server and with three.
All results, and the SHA-256 of the last weights, are those of a run in which
nothing dies. One line of JSON for each: from the death to the next value, of a
round that begins after it, median and 99th percentile; the next process starts
0.1 s after the death, as by the unit. Some servers die again at once.

The last line is of a server with 1 GiB of values and states (--elements of
float32 with Adam; 0: none): from the start of its next process until the job goes
on, as its log has it.

--hosts: instead of that, COUNT losses of hosts with a server for each optimizer, in
jobs with replicas: 2: three servers on a host each, psched and two agents on a
fourth, as network namespaces. The host is cut off, and the process and its memory
are gone. Lost are the owner of a place or its backup, alone or with psched or an
agent, the one or the other first, and the backup that is being filled. The host
comes back empty, and the next one is lost when all copies are whole again. One line
for each loss. Needs root, ip, iptables and ethtool."""
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
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "support"))

# As RestartSec= of psserver.service.
RESTART_S = 0.1
# Deaths whose server dies again while it comes back.
TWICE = 0.1
# heartbeat.dead_after, and the time that members of psched's file have to be heard.
LEASE_S = 2.0
GRACE_S = 10.0
FAILOVER_S = 0.5
# Of a place in a job with copies, in the order of the losses: the host of its owner,
# of its backup, of the third server, psched, an agent; "filling": the host of the
# backup that has come back and is being filled, where one server has all places.
ORDERS = (("owner",), ("backup",), ("owner", "sched"), ("owner",),
          ("sched", "owner"), ("owner", "agent"), ("other", "backup", "filling"),
          ("sched", "backup"), ("agent", "owner"), ("owner",),
          ("backup", "sched"), ("backup", "agent"))


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
                self.turn()
        except (AssertionError, OSError) as e:
            self.error = e
        self.finished.set()
        # Servers die with the thread that has started them.
        self.end.wait()

    def turn(self):
        import trio as support
        name = self.draw.choice(self.trio.server_names)
        begun = time.monotonic()
        self.trio.daemons[name].stop(support.Deadline(), kill=True)
        self.await_value(begun)
        time.sleep(RESTART_S)
        self.trio.launch(name)
        self.died += 1
        if self.draw.random() >= TWICE:
            self.recovered.wait()

    def await_value(self, begun):
        """Of two deaths the second one counts."""
        with self.lock:
            self.recovered.clear()
            self.open = [begun]

    def round_ended(self, begun):
        with self.lock:
            now = time.monotonic()
            done = [at for at in self.open if at < begun]
            self.seconds += [now - at for at in done]
            self.open = [at for at in self.open if at >= begun]
            if done:
                self.recovered.set()


class HostLosses(Deaths):
    """Loses hosts, each when the copies are whole again."""

    def __init__(self, hosts, count, draw):
        super().__init__(hosts, count, draw)
        self.losses = []

    def turn(self):
        self.await_copies()
        owner, backup = re.findall(r"backup filled: server (\S+), (\S+)",
                                   self.trio.sched.text())[-1]
        other, = set(self.trio.server_names) - {owner, backup}
        names = {"owner": owner, "backup": backup, "other": other,
                 "sched": "sched",
                 "agent": self.draw.choice(self.trio.agent_names)}
        order = ORDERS[self.died % len(ORDERS)]
        if "filling" in order and self.owners() != {owner}:
            order = ("owner",)
        for who in order:
            if who == "filling":
                self.recovered.wait()
                self.come_back(backup, ready=False)
                self.trio.sched.await_log(f"named: server {owner}, {backup}\n",
                                          since=since)
            since = len(self.trio.sched.text())
            begun = time.monotonic()
            self.lose(names.get(who, backup))
            self.await_value(begun)
            if order[-1] != who and "other" not in order:
                time.sleep(self.draw.choice((0, self.draw.uniform(0, 2))))
        self.recovered.wait()
        self.died += 1
        self.losses.append((order, self.seconds[-1]))
        print(json.dumps({"loss": self.died, "of": " ".join(order),
                          "places": [names[p] for p in ("owner", "backup", "other")],
                          "next_value_s": round(self.seconds[-1], 3)}),
              flush=True)
        for name in self.trio.server_names:
            if not self.trio.daemons[name].alive():
                self.come_back(name)

    def owners(self):
        return {k["server"] for k in self.trio.ask("keys")["keys"]}

    def lose(self, name):
        """A server with its host; of others the process, and the next one begins
        with the file or the workers that there are."""
        import trio as support
        if name in self.trio.server_names:
            self.trio.cut(name, True)
        self.trio.daemons[name].stop(support.Deadline(), kill=True)
        if name not in self.trio.server_names:
            time.sleep(RESTART_S)
            self.trio.launch(name)

    def come_back(self, name, ready=True):
        import trio as support
        self.trio.cut(name, False)
        daemon = self.trio.launch(name)
        if ready:
            daemon.await_ready(support.Deadline())

    def await_copies(self):
        import trio as support
        support.wait_for(
            lambda: [j["copies"] for j in self.trio.ask("jobs")["jobs"]] == ["two"],
            "whole copies of the job", step=0.2)

    def figures(self):
        """Times to the next value, and whether they are within the bound: of psched's
        lease, and of the time that a restarted psched gives its members."""
        line = {"in_time": True}
        for what, away, bound in (("psched_stays", False, LEASE_S),
                                  ("psched_lost", True, GRACE_S)):
            of = [s for order, s in self.losses if ("sched" in order) == away]
            if of:
                line[what] = {"count": len(of), **spread(of)}
                line["in_time"] &= percentile(of, 0.99) <= bound + FAILOVER_S
        return line


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def spread(seconds):
    return {"p50_s": round(percentile(seconds, 0.5), 3),
            "p99_s": round(percentile(seconds, 0.99), 3),
            "longest_s": round(max(seconds), 3)}


def default_times(trio):
    """Of leases."""
    import trio as support
    trio.options = [o for o in trio.options if o not in support.CALM]
    return trio


def one(folder, optimizer, servers, count, seed):
    import trio as support
    t = default_times(support.Trio(folder / "deaths", servers=servers, agents=2,
                                   keep="store"))
    t.start()
    deaths = Deaths(t, count, random.Random(f"{seed} {optimizer} {servers}"))
    results = disturb(t, deaths, optimizer)
    return compare(folder, optimizer, servers, results,
                   {"servers": servers, "deaths": count, "seed": seed,
                    **spread(deaths.seconds)})


def hosts(folder, optimizer, count, seed):
    from hosts import Hosts
    number = {"ps0": 1, "ps1": 2, "ps2": 3, "sched": 4, "node0": 4, "node1": 4}
    with Hosts(folder / "hosts", servers=3, agents=2, hosts=number,
               options=[f"state.file={folder}/psched.state"]) as h:
        losses = HostLosses(h, count, random.Random(f"{seed} {optimizer}"))
        results = disturb(h, losses, optimizer, PSKV_REPLICAS=2)
    return compare(folder, optimizer, 3, results,
                   {"losses": count, "seed": seed, **losses.figures()})


def disturb(t, deaths, optimizer, **env):
    """Results of each round under deaths, and the digest of the last weights."""
    import server_deaths
    try:
        training = server_deaths.Training(t, optimizer, **env)
        with training.job:
            training.round()
            deaths.start()
            while not deaths.finished.is_set() or deaths.open:
                begun = time.monotonic()
                training.round()
                deaths.round_ended(begun)
                assert deaths.error is None, deaths.error
            training.round()
            return training.results, training.digest()
    except BaseException:
        deaths.count = 0
        deaths.recovered.set()
        raise
    finally:
        t.stop()
        deaths.end.set()


def compare(folder, optimizer, servers, found, line):
    """Prints the line, with the bits beside those of an undisturbed run."""
    import server_deaths
    import trio as support
    results, digest = found
    clean = support.Trio(folder / "clean", servers=servers, agents=2)
    clean.start()
    try:
        want = server_deaths.undisturbed(clean, optimizer, len(results))
    finally:
        clean.stop()
    line = {"optimizer": optimizer, **line, "rounds": len(results),
            "sha256": digest, "same_bits": found == want}
    line["ok"] = line["same_bits"] and line.get("in_time", True)
    if not line["same_bits"]:
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
    parser.add_argument("--hosts", action="store_true")
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
    chosen = [o for o in server_deaths.OPTIMIZERS if args.only in o]
    if args.hosts:
        for optimizer in chosen:
            ok &= attempt(hosts, optimizer, args.count, args.seed)
        return 0 if ok else 1
    for servers in args.servers:
        for optimizer in chosen:
            ok &= attempt(one, optimizer, servers, args.count, args.seed)
    if args.elements > 0:
        ok &= attempt(large, args.elements)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
