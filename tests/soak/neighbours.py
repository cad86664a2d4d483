#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An honest job beside peers that ask for too much. Each kind of hostile peer
works on a cluster of its own, beside a job that checks every sum and takes the
time of every round.

    neighbours.py [SECONDS] [KIND ...]

Quiet and hostile phases alternate, SECONDS of hostile ones in all, each quiet
phase with as many rounds as the hostile one behind it. So what else happens on
the machine falls on both, and the column "foreign" says how much of all
processors was taken by processes that are not of this run: a phase in which
that is much says little.

What is measured is what daemons do to an honest job, not how processes share
two processors. So the job pauses before each round, as one that computes does,
and the peers have processors to work with; and where it may, the soak lets the
job's processes run before the agent and the server, these before the scheduler,
and all of them before everybody else, the peers among them (SCHED_RR). Without
that right the peers have the least priority, and "foreign" matters more.

What limits grant to any job (tables of partitions; the memory of kind "fills")
a peer may have beside the 64 MiB. Kinds "fills" and "counts" also do honest
work, many MiB of it at a time; that it is shared fairly is not a goal here, so
their ratio is shown and is no miss.

Prints a table: of each kind and daemon resident memory as the honest job alone
needs it, at its most beside the peers, and 10 s after their end, and bytes of
log; of the job the 99th percentile of a round alone and beside the peers. Ends
with 1 when a sum was wrong, a round hung or a daemon died, and names the goals
that were missed: 64 MiB, a ratio of 1.25, 1 MiB of log, memory back within 10 s
(to 16 MiB)."""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import hostile  # noqa: E402
import trio as support  # noqa: E402
from neighbour import Neighbour, die_with_parent, percentile  # noqa: E402

MIB = 1 << 20
RSS_GOAL, RATIO_GOAL, LOG_GOAL, BACK_WITHIN = 64 * MIB, 1.25, MIB, 10
PAUSE = 0.004  # Before each round.
PHASES_MAX = 10
# Options of the servers for a kind; the others are as delivered.
SERVER_OPTIONS = {"memory": ["store.memory=256MiB"],
                  "fills": ["store.memory=256MiB"]}
# Of the 262,144 partitions that limits.job.partitions grants to any job.
TABLES = {"node0": 262_144 * 208}
# Memory that the limits grant to the peer. "fills": two keys of 64 MiB with
# room for a round, and on their node two results each, and the region that
# they come from.
GRANTED = {"fills": {"ps0": 128 * MIB, "node0": (2 * 2 + 1) * 64 * MIB},
           "counts": TABLES, "declarations": TABLES}
# Kinds that do work for which limits leave room, and share what there is.
SHARING = ("fills", "counts")
NOBODY = 65534
TICK = os.sysconf("SC_CLK_TCK")


def prefer(pid, priority):
    """All threads of a process; False: we may not."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(task), os.SCHED_RR,
                                  os.sched_param(priority))
    except PermissionError:
        return False
    return True


class Cpu:
    """Seconds that processors were busy, and those of some processes."""

    def __init__(self, pids):
        self.pids = pids
        self.begun = time.monotonic()
        self.busy = self.all_busy()
        self.own = {pid: self.of(pid) for pid in pids}

    @staticmethod
    def all_busy():
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        user, nice, system, _, _, irq, softirq, steal = map(int, words)
        return (user + nice + system + irq + softirq + steal) / TICK

    @staticmethod
    def of(pid):
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return 0
        return sum(map(int, text.rpartition(")")[2].split()[11:13])) / TICK

    def look(self):
        """Before a process ends: what it has taken."""
        for pid in self.pids:
            self.own[pid] = max(self.own[pid], self.of(pid))

    def foreign(self, others=0.0):
        """Share of all processors since the beginning."""
        took = sum(self.of(pid) - own for pid, own in self.own.items())
        wall = (time.monotonic() - self.begun) * os.cpu_count()
        return max(0.0, self.all_busy() - self.busy - took - others) / wall


class Watch(threading.Thread):
    """The most resident memory of each daemon in each kind of phase."""

    def __init__(self, daemons):
        super().__init__(daemon=True)
        self.daemons = daemons
        self.most = {d.name: 0 for d in daemons}
        self.over = threading.Event()

    def look(self):
        for d in self.daemons:
            if d.alive():
                self.most[d.name] = max(self.most[d.name], d.rss())

    def run(self):
        self.look()
        while not self.over.wait(0.1):
            self.look()

    def stop(self):
        self.over.set()
        self.join()
        return self.most


def attack(t, kind, seconds, seed):
    argv = [sys.executable, hostile.__file__, kind, "--socket", t.socket(0),
            "--sched", str(t.port), "--server", str(t.servers()[0].port),
            "--seconds", str(seconds), "--seed", str(seed)]
    if os.geteuid() == 0:
        argv += ["--uid", str(NOBODY)]  # Another user than the honest one.
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True,
                            preexec_fn=die_with_parent)


class Phases:
    """Pairs of a quiet and a hostile phase."""

    def __init__(self, t, job, kind):
        self.t, self.job, self.kind = t, job, kind
        self.alone, self.beside, self.foreign = [], [], ([], [])
        self.said = {}
        self.most = {}
        self.ended = 0.0

    def measure(self, times, peer, *args):
        daemons = list(self.t.daemons.values())
        cpu = Cpu([os.getpid(), *self.job.pids(), *(d.pid for d in daemons)])
        before = os.times()
        watch = Watch(daemons)
        watch.start()
        times += self.job.rounds(*args, pause=PAUSE)
        if peer is not None:
            said = peer.communicate(timeout=60 + args[0])[0]
            assert peer.returncode == 0, f"{self.kind}: the peer failed"
            self.ended = time.monotonic()
            for name, n in json.loads(said).items():
                self.said[name] = self.said.get(name, 0) + n
        after = os.times()
        self.foreign[peer is not None].append(cpu.foreign(
            after.children_user + after.children_system -
            before.children_user - before.children_system))
        most = watch.stop()
        if peer is not None:
            self.most = {n: max(m, self.most.get(n, 0))
                         for n, m in most.items()}

    def pair(self, seconds, seed):
        had = len(self.beside)
        self.measure(self.beside, attack(self.t, self.kind, seconds, seed),
                     seconds)
        self.measure(self.alone, None, 10 * seconds, len(self.beside) - had)


def measure(kind, seconds, folder):
    """Figures of one kind; the daemons and the job must live."""
    t = support.Trio(folder / kind, servers=1, agents=1,
                     server_options=SERVER_OPTIONS.get(kind, ()),
                     agent_options=["client.mode=0666"])
    pairs = max(1, min(PHASES_MAX, int(seconds // 5)))
    job = None
    try:
        folder.chmod(0o755)
        t.start()
        (folder / kind).chmod(0o755)
        job = Neighbour(t.socket(0))
        job.rounds(2, pause=PAUSE)
        daemons = list(t.daemons.values())
        for d in daemons:
            prefer(d.pid, 1 if d is t.sched else 2)
        for pid in job.pids():
            prefer(pid, 3)
        base = {d.name: d.rss() for d in daemons}
        log = {d.name: d.log.stat().st_size for d in daemons}
        phases = Phases(t, job, kind)
        for i in range(pairs):
            phases.pair(seconds / pairs, i + 1)
        back = phases.ended + BACK_WITHIN - time.monotonic()
        if back > 0:
            job.rounds(back, pause=PAUSE)
        left = {d.name: d.rss() for d in daemons}
        for d in daemons:
            assert d.alive(), f"{d.name} has ended:\n{d.text()[-2000:]}"
        job.end()
        job = None
        alone, beside = (percentile(times, 0.99)
                         for times in (phases.alone, phases.beside))
        return dict(
            kind=kind, peer=phases.said, beside=beside, alone=alone,
            ratio=beside / alone, rounds=len(phases.beside),
            foreign=[sum(f) / len(f) for f in phases.foreign],
            daemons={d.name: dict(
                base=base[d.name], most=phases.most[d.name],
                left=left[d.name],
                log=d.log.stat().st_size - log[d.name]) for d in daemons})
    finally:
        if job is not None:
            job.kill()
        keep = os.environ.get("PSKV_SOAK_LOGS")
        t.stop()
        if keep:
            shutil.copytree(folder / kind, Path(keep) / kind,
                            ignore=shutil.ignore_patterns("*.sock"),
                            dirs_exist_ok=True)


def missed(row):
    for name, d in row["daemons"].items():
        granted = GRANTED.get(row["kind"], {}).get(name, 0)
        if d["most"] - d["base"] > RSS_GOAL + granted:
            yield f"{name} +{(d['most'] - d['base']) / MIB:.0f} MiB"
        if d["left"] - d["base"] > RSS_GOAL / 4:
            yield f"{name} keeps {(d['left'] - d['base']) / MIB:.0f} MiB"
        if d["log"] > LOG_GOAL:
            yield f"{name} logs {d['log'] / MIB:.1f} MiB"
    if row["ratio"] > RATIO_GOAL and row["kind"] not in SHARING:
        yield f"p99 x {row['ratio']:.2f}"


def show(row):
    for name, d in row["daemons"].items():
        print(f"{row['kind']:<13}{name:<7}" +
              "".join(f"{d[k] / MIB:>8.1f}" for k in ("base", "most", "left"))
              + f"{d['log'] / 1024:>8.0f}", end="")
        if name == "sched":
            quiet, hostile_ = row["foreign"]
            print(f"{row['rounds']:>8}{row['alone']:>8.2f}"
                  f"{row['beside']:>8.2f}{row['ratio']:>7.2f}"
                  f"{quiet:>7.0%}{hostile_:>6.0%}"
                  f"{row['peer']['sent']:>10}{row['peer']['cuts']:>7}"
                  f"{row['peer']['refused']:>9}", end="")
        print()
    print(f"{row['kind']:<13}missed: {', '.join(missed(row)) or 'nothing'}",
          flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("seconds", nargs="?", type=float, default=600)
    p.add_argument("kinds", nargs="*", metavar="KIND",
                   help="of " + ", ".join(hostile.KINDS))
    args = p.parse_args()
    kinds = args.kinds or list(hostile.KINDS)
    failed = 0
    print(f"{'':<13}{'':<7}{'resident MiB':>24}{'log':>8}{'':>8}"
          f"{'p99 of a round, ms':>23}{'foreign CPU':>13}{'peer':>10}\n"
          f"{'kind':<13}{'daemon':<7}{'base':>8}{'most':>8}{'left':>8}"
          f"{'KiB':>8}{'rounds':>8}{'alone':>8}{'beside':>8}{'ratio':>7}"
          f"{'alone':>7}{'bes.':>6}{'sent':>10}{'cuts':>7}{'refused':>9}",
          flush=True)
    for kind in kinds:
        if kind not in hostile.KINDS:
            p.error(f"no kind {kind}")
        folder = Path(tempfile.mkdtemp(prefix="pskv-soak-"))
        try:
            show(measure(kind, args.seconds, folder))
        except (AssertionError, subprocess.TimeoutExpired) as e:
            failed += 1
            print(f"{kind:<13}FAILED: {e}", flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
