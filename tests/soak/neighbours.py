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
work, many MiB of it at a time, and kinds "rates", "pieces", "crashes", "nans"
and "users" nothing else: memory of their arrays and, but for "users", their
ratio are shown and are no miss.

"users" are three peers of two users at the same time, "rates", "crashes" and
"nans", beside a job of a third user that trains, with steps on the server, from
the same start in each phase: after as many rounds alone, the values of all of
them must have the same bits. Payloads travel by TCP with TLS.

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

import dialers  # noqa: E402
import hostile  # noqa: E402
import trio as support  # noqa: E402
from neighbour import (Neighbour, Trainer, die_with_parent,  # noqa: E402
                       percentile)

MIB = 1 << 20
RSS_GOAL, RATIO_GOAL, LOG_GOAL, BACK_WITHIN = 64 * MIB, 1.25, MIB, 10
PAUSE = 0.004  # Before each round.
PHASES_MAX = 10
# Of kinds at daemons that use TLS.
TLS_RSS_GOAL, TLS_RATIO_GOAL = 40 * MIB, 1.1
LIFE_GOAL = 7.0  # limits.handshake, and what a loaded machine adds.
# Figures of a peer that are no counts: connections at a time, and seconds until
# one of each kind was cut.
MAXIMA = ("most", *dialers.KINDS)
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
# Kinds whose work the limits allow, and which share the machine.
SHARING = ("fills", "counts", *hostile.ALLOWED)
# Kinds at daemons that use TLS.
ENCRYPTED = (*hostile.ENCRYPTED, "users")
NOBODY = 65534
TICK = os.sysconf("SC_CLK_TCK")


def prefer(pid, priority):
    """Sets the policy of all threads of a process; False: not permitted."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setscheduler(int(task), os.SCHED_RR,
                                  os.sched_param(priority))
    except PermissionError:
        return False
    return True


class Cpu:
    """Busy seconds of all processors, and of some processes."""

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
        """Records the CPU time of processes before they end."""
        for pid in self.pids:
            self.own[pid] = max(self.own[pid], self.of(pid))

    def foreign(self, others=0.0):
        """Share of all processors that other processes have used."""
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


def issue(folder, cluster, role, name):
    """Folder of a certificate of a cluster, whose authority is made first."""
    ca = folder / f"{cluster}-ca"
    out = folder / f"{cluster}-{name}"
    commands = [["issue", role, name, "--out", str(out)]]
    if not ca.exists():
        commands.insert(0, ["init", "--cluster", cluster])
    for words in commands:
        subprocess.run([str(support.program("psctl")), "--dir", str(ca), "pki",
                        *words], check=True, capture_output=True)
    return out


def encrypted(folder):
    """Options of a daemon by its name: all its connections of TCP use TLS, and
    payloads travel over them."""
    roles = {"sched": "sched", "ps0": "server", "node0": "agent"}
    folder.mkdir(mode=0o755)

    def options(name):
        files = issue(folder, "lab", roles[name], name)
        same_host = [] if name == "sched" else ["network.same_host=off"]
        return ["security.tls.enabled=on", f"security.tls.directory={files}",
                *same_host]
    return options


def foreign_certificate(t, uid):
    """One of another cluster, which a user may read."""
    folder = t.folder.parent / f"{t.folder.name}-tls"
    name = f"user{uid}"
    out = folder / f"other-{name}"
    if not out.exists():
        issue(folder, "other", "agent", name)
        if os.geteuid() == 0:
            for path in [out, *out.iterdir()]:
                os.chown(path, uid, uid)
    return out


def attack(t, kind, seconds, seed):
    """The peers of the kind, most often one."""
    peers = []
    for one, number in hostile.TOGETHER.get(kind, ((kind, 0),)):
        argv = [sys.executable, hostile.__file__, one, "--socket",
                t.socket(0), "--sched", str(t.port), "--server",
                str(t.servers()[0].port), "--seconds", str(seconds),
                "--seed", str(seed)]
        if kind in hostile.ENCRYPTED:
            argv += ["--tls", str(foreign_certificate(t, NOBODY - number))]
        if os.geteuid() == 0:  # Other users than the honest one.
            argv += ["--uid", str(NOBODY - number)]
        peers.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True,
                                      preexec_fn=die_with_parent))
    return peers


class Phases:
    """Pairs of a quiet and a hostile phase."""

    def __init__(self, t, job, kind):
        self.t, self.job, self.kind = t, job, kind
        self.alone, self.beside, self.foreign = [], [], ([], [])
        self.said = {}
        self.most = {}
        self.same_bits = 0  # Hostile phases whose bits were those alone.
        self.ended = 0.0

    def measure(self, times, peers, *args):
        daemons = list(self.t.daemons.values())
        cpu = Cpu([os.getpid(), *self.job.pids(), *(d.pid for d in daemons)])
        before = os.times()
        watch = Watch(daemons)
        watch.start()
        times += self.job.rounds(*args, pause=PAUSE)
        for peer in peers:
            said = peer.communicate(timeout=60 + args[0])[0]
            assert peer.returncode == 0, f"{self.kind}: the peer failed"
            self.ended = time.monotonic()
            for name, n in json.loads(said).items():
                join = max if name in MAXIMA else sum
                self.said[name] = join((self.said.get(name, 0), n))
        after = os.times()
        self.foreign[bool(peers)].append(cpu.foreign(
            after.children_user + after.children_system -
            before.children_user - before.children_system))
        most = watch.stop()
        if peers:
            self.most = {n: max(m, self.most.get(n, 0))
                         for n, m in most.items()}

    def pair(self, seconds, seed):
        had, had_alone = len(self.beside), len(self.alone)
        self.measure(self.beside, attack(self.t, self.kind, seconds, seed),
                     seconds)
        rounds, bits = len(self.beside) - had, self.job.bits()
        self.measure(self.alone, [], 10 * seconds, rounds)
        alone = len(self.alone) - had_alone, self.job.bits()
        if bits is not None:
            assert alone == (rounds, bits), (
                f"rounds and bits alone {alone}, beside {(rounds, bits)}")
            self.same_bits += 1


def measure(kind, seconds, folder):
    """Figures of one kind; the daemons and the job must live."""
    t = support.Trio(folder / kind, servers=1, agents=1,
                     server_options=SERVER_OPTIONS.get(kind, ()),
                     agent_options=["client.mode=0666"],
                     daemon_options=encrypted(folder / f"{kind}-tls")
                     if kind in ENCRYPTED else None)
    pairs = max(1, min(PHASES_MAX, int(seconds // 5)))
    job = None
    try:
        folder.chmod(0o755)
        t.start()
        (folder / kind).chmod(0o755)
        job = (Trainer if kind == "users" else Neighbour)(t.socket(0))
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
            same_bits=phases.same_bits,
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
    is_encrypted = row["kind"] in hostile.ENCRYPTED
    rss_goal = TLS_RSS_GOAL if is_encrypted else RSS_GOAL
    ratio_goal = TLS_RATIO_GOAL if is_encrypted else RATIO_GOAL
    for name, d in row["daemons"].items():
        granted = GRANTED.get(row["kind"], {}).get(name, 0)
        if row["kind"] not in (*hostile.KINDS, *hostile.ENCRYPTED):
            granted = 512 * MIB  # Their arrays and results.
        if d["most"] - d["base"] > rss_goal + granted:
            yield f"{name} +{(d['most'] - d['base']) / MIB:.0f} MiB"
        if d["left"] - d["base"] > RSS_GOAL / 4:
            yield f"{name} keeps {(d['left'] - d['base']) / MIB:.0f} MiB"
        if d["log"] > LOG_GOAL:
            yield f"{name} logs {d['log'] / MIB:.1f} MiB"
    if row["ratio"] > ratio_goal and row["kind"] not in SHARING:
        yield f"p99 x {row['ratio']:.2f}"
    for kind in dialers.KINDS:
        if row["peer"].get(kind, 0) > LIFE_GOAL:
            yield f"{kind} lives {row['peer'][kind]:.1f} s"


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
                  f"{row['peer']['sent']:>11}{row['peer']['cuts']:>9}"
                  f"{row['peer']['refused']:>9}", end="")
        print()
    for name in MAXIMA:
        if name in row["peer"]:
            print(f"{row['kind']:<13}{name:<7}{row['peer'][name]:>8.1f}")
    if row["same_bits"] > 0:
        print(f"{row['kind']:<13}bits as alone in all {row['same_bits']} phases")
    print(f"{row['kind']:<13}missed: {', '.join(missed(row)) or 'nothing'}",
          flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("seconds", nargs="?", type=float, default=600)
    all_kinds = [*hostile.KINDS, *hostile.ALLOWED, *hostile.TOGETHER,
                 *hostile.ENCRYPTED]
    p.add_argument("kinds", nargs="*", metavar="KIND",
                   help="of " + ", ".join(all_kinds))
    args = p.parse_args()
    kinds = args.kinds or all_kinds
    failed = 0
    print(f"{'':<13}{'':<7}{'resident MiB':>24}{'log':>8}{'':>8}"
          f"{'p99 of a round, ms':>23}{'foreign CPU':>13}{'peer':>10}\n"
          f"{'kind':<13}{'daemon':<7}{'base':>8}{'most':>8}{'left':>8}"
          f"{'KiB':>8}{'rounds':>8}{'alone':>8}{'beside':>8}{'ratio':>7}"
          f"{'alone':>7}{'bes.':>6}{'sent':>11}{'cuts':>9}{'refused':>9}",
          flush=True)
    for kind in kinds:
        if kind not in all_kinds:
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
