#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""psched is killed and restarted with its file, and isolated, with training and
idle jobs and the default leases of daemons.

    psched_restart.py [COUNT] [--seed N] [--limit SECONDS] [--away SECONDS]
                      [--part PART]

kills: COUNT times (50) under training and as often idle, with members that
register in any order, alone and together with servers, which come back with their
memory, and agents. No rank is to notice, and the results of a job are those of one
without deaths. psctl is to answer and a new job to train at once.
away: psched is away for 60 s while a job with Adam trains: rounds for each second
beside those of as long before and after it, half of it each.
old: a copy of its file from before a change of backups is restored, and the owner of
a place is lost or not: psched says that the file is old, and a job goes on with its
bits or ends with the reason.
full: the disk of its file is full while it is killed, with a server: jobs go on, new
ones are refused, until there is room. Needs root.
cuts: psched is cut off for 5, 20 and 60 s, while a job trains with sums, with
Adam, and idle; training goes on, nobody is given up, and the next job starts at
once. Needs root.

Prints a line for each kill and cut, and the figures at the end; 1 where one is
missed."""
import argparse
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import server_deaths  # noqa: E402
import trio as harness  # noqa: E402
from network import Case, Training  # noqa: E402
from trio import Job, WorkerError  # noqa: E402

RANKS = 4
# Activities of ranks 1 to 3 at that time; rank 0 does its part later.
DOINGS = ("rounds", "barrier", "key", "nothing")
# Rounds for each second while psched is away, as a share of those while it is there.
RATE_MIN = 0.98


def pause(seconds):
    select.select([], [], [], seconds)


class Soak:
    def __init__(self, folder, chance, limit, state=None, **options):
        self.chance = chance
        self.limit = limit
        self.state = state or f"{folder}.state"
        self.trio = harness.Trio(folder, agents=2, **{"servers": 2, "keep": "store",
                                                      **options})
        self.trio.options = [o for o in self.trio.options
                             if o not in harness.CALM]
        self.trio.options.append(f"state.file={self.state}")
        self.trio.start()
        self.answers = []  # Seconds to the answer to psctl.
        self.starts = []   # To the first round of the next job.
        self.missed = []
        self.jobs = 0
        self.want = {}

    def daemon(self, name):
        return self.trio.daemons[name]

    def kill(self, name):
        self.daemon(name).stop(harness.Deadline(), kill=True)

    def start(self, name):
        self.trio.launch(name).await_ready(harness.Deadline())

    def job(self):
        """A job that has begun, and what its ranks do."""
        self.jobs += 1
        optimizer = self.chance.choice((None, "sgd", "adam"))
        job = server_deaths.Training(
            self.trio, optimizer, RANKS, f"soak{self.jobs}",
            kind="mixed" if optimizer else "count",
            PSKV_ON_LOSS="wait", PSKV_WEIGHT=self.chance.choice((100, 300)))
        job.optimizer = optimizer
        job.doing = self.chance.choice(DOINGS)
        job.rounds = 30 if job.doing == "rounds" else 1
        job.round()
        if job.doing != "nothing":
            for w in job.job.workers[1:]:
                w.say(self.line(job))
        return job

    @staticmethod
    def line(job):
        return {"rounds": f"rounds {job.kind} {job.rounds} 1 0 {job.names}",
                "barrier": "barrier", "key": "key fresh float32 1000"}[job.doing]

    def end_job(self, job):
        """Nobody has noticed: what was open ends well, and so does the rest."""
        try:
            if job.doing != "nothing":
                job.job[0].say(self.line(job))
                found = job.job.hear()
                if job.doing == "rounds":
                    job.results += [found]
            for _ in range(3):
                job.round()
            job.job.tell("barrier")
            found = (job.results, job.digest())
            job.job.close()
        except (WorkerError, AssertionError) as e:
            self.missed.append(f"{job.job.name} {job.optimizer} {job.doing}: {e}")
            for w in job.job:
                w.kill()
                w.end()
            return
        what = (job.optimizer, job.doing == "rounds")
        if self.want.setdefault(what, found) != found:
            self.missed.append(f"{job.job.name} {what}: other bits")

    def expect(self):
        """Results of jobs without deaths."""
        for optimizer in (None, "sgd", "adam"):
            for doing in ("rounds", "nothing"):
                job = self.job()
                while (job.optimizer, job.doing) != (optimizer, doing):
                    self.end_job(job)
                    job = self.job()
                self.end_job(job)

    def await_psched(self):
        """psctl and the next job, at once."""
        begun = time.monotonic()
        assert self.trio.ask("nodes")["nodes"]
        self.answers.append(time.monotonic() - begun)
        begun = time.monotonic()
        self.jobs += 1
        with Job(self.trio, RANKS, f"soak{self.jobs}",
                 PSKV_START_TIMEOUT="30s") as job:
            k = job.key("w", "float32", 50000)
            job.tell(f"rounds count 1 1 0 {k}")
            self.starts.append(time.monotonic() - begun)
            job.tell("barrier")
        for what, seconds in (("psctl", self.answers), ("next job", self.starts)):
            if seconds[-1] > self.limit:
                self.missed.append(f"{what}: {seconds[-1]:.1f} s")

    def turn(self, number, training):
        t = self.trio
        names = t.server_names + t.agent_names
        job = self.job() if training else None
        others = [n for n in names if self.chance.random() < 0.15]
        stopped = [n for n in names if n not in others]
        shuffled = self.chance.random() < 0.7
        if shuffled:
            for name in stopped:
                self.daemon(name).process.send_signal(signal.SIGSTOP)
        order = ["sched"] + others
        self.chance.shuffle(order)
        for name in order:
            self.kill(name)
            pause(self.chance.choice((0, 0.05)))
        pause(self.chance.choice((0, 0.2, 1.5)))
        self.start("sched")
        self.chance.shuffle(stopped)
        for name in stopped if shuffled else ():
            self.daemon(name).process.send_signal(signal.SIGCONT)
            pause(self.chance.choice((0, 0.05)))
        for name in others:
            self.start(name)
        self.await_psched()
        if job is not None:
            self.end_job(job)
        print(f"{number:3} {job.doing if job else 'idle':8} with "
              f"{','.join(others) or '-':14} psctl {self.answers[-1]:.2f} s, next job "
              f"{self.starts[-1]:.2f} s", flush=True)

    def end(self):
        for d in self.trio.daemons.values():
            if not d.alive():
                self.missed.append(f"{d.name} ended")
        # Nobody knows that the ranks of a job have left that psched and an agent
        # had not heard of before they died: it ends after a minute.
        harness.wait_for(lambda: not self.trio.open_jobs(), "the end of all jobs",
                         60 + harness.PATIENCE)
        self.trio.await_empty()
        self.trio.stop()


def spread(name, values):
    values = sorted(values) or [0]
    print(f"{name}: {len(values)} times, p50 "
          f"{values[len(values) // 2]:.2f} s, p99 "
          f"{values[int(len(values) * 0.99)]:.2f} s, max {values[-1]:.2f} s")


def kills(folder, args):
    soak = Soak(folder / "trio", random.Random(args.seed), args.limit)
    soak.expect()
    for number in range(1, 2 * args.count + 1):
        soak.turn(number, number <= args.count)
    soak.end()
    spread("answer of psctl", soak.answers)
    spread("first round of the next job", soak.starts)
    return soak.missed


def away(folder, args):
    soak = Soak(folder / "trio", random.Random(args.seed), args.limit)
    job = server_deaths.Training(soak.trio, "adam", RANKS, PSKV_ON_LOSS="wait")

    def rate(seconds):
        begun = time.monotonic()
        count = 0
        while time.monotonic() < begun + seconds:
            job.round()
            count += 1
        return count / (time.monotonic() - begun)

    with job.job:
        rate(args.away / 10)
        before = rate(args.away / 2)
        soak.kill("sched")
        during = rate(args.away)
        soak.start("sched")
        soak.await_psched()
        after = rate(args.away / 2)
    soak.end()
    share = 2 * during / (before + after)
    print(f"away for {args.away:.0f} s: {before:.1f}, {during:.1f} and {after:.1f} "
          f"rounds per second before, meanwhile and after it: {share:.3f}; then psctl "
          f"{soak.answers[-1]:.2f} s, next job {soak.starts[-1]:.2f} s", flush=True)
    return soak.missed + ([] if share >= RATE_MIN else [f"away: {share:.3f}"])


def old(folder, args):
    """An owner has another backup than in the copy of the file, or the same process
    again, which has missed versions meanwhile."""
    missed = []
    for number in range(args.old):
        soak = Soak(folder / f"trio{number}", random.Random(f"{args.seed} {number}"),
                    args.limit, servers=3, keep=None)
        missed += old_file(folder / f"copy{number}", soak,
                           number % 2 == 0, number % 4 < 2)
    return missed


def old_file(copy, soak, loses_owner, is_same_process):
    t = soak.trio

    def await_copies():
        harness.wait_for(lambda: t.ask("jobs")["jobs"][0]["copies"] == "two",
                         "whole copies of the job")

    def reasons_of_round():
        """Errors of the ranks, of which none has a value then."""
        found = []
        reasons = set()
        job.say()
        for w in job.job:
            try:
                found.append(w.hear())
            except WorkerError as e:
                reasons.add(str(e))
        if not reasons:
            job.results.append(found)
        return reasons

    job = server_deaths.Training(t, "adam", RANKS, PSKV_ON_LOSS="wait",
                                 PSKV_REPLICAS=2)
    await_copies()
    job.round()
    done = subprocess.run([harness.program("psched"), "--copy-state", soak.state,
                           copy], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lost = soak.chance.choice(t.server_names)
    if is_same_process:
        # It is taken for dead, and comes back as it was.
        soak.daemon(lost).process.send_signal(signal.SIGSTOP)
        t.await_node(lost, "state", "gone")
        job.round()
        soak.daemon(lost).process.send_signal(signal.SIGCONT)
        t.await_node(lost, "state", "active")
    else:
        soak.kill(lost)
        job.round()
        soak.start(lost)
    await_copies()
    for _ in range(3):
        job.round()
    owners = sorted({k["server"] for k in t.ask("keys")["keys"]})
    soak.kill("sched")
    for path in Path(soak.state).parent.glob(Path(soak.state).name + "*"):
        path.unlink()
    os.replace(copy, soak.state)
    soak.trio.launch("sched")
    victim = soak.chance.choice(owners)
    if loses_owner:
        soak.kill(victim)
    soak.daemon("sched").await_ready(harness.Deadline())
    said = soak.daemon("sched").await_log("state.file is older than the cluster (")
    reasons = set()
    for _ in range(5):
        reasons = reasons or reasons_of_round()
    if not reasons:
        end = "goes on"
        found = (job.results, job.digest())
        job.job.close()
    else:
        end = " | ".join(sorted(reasons))
        for w in job.job:
            w.kill()
            w.end()
    if loses_owner:
        soak.start(victim)
    soak.await_psched()
    if not reasons and found != server_deaths.undisturbed(
            t, "adam", len(job.results), workers=RANKS, name="clean"):
        soak.missed.append("other bits")
    if not all("was lost: " in reason or "state.file is older than job" in reason
               for reason in reasons):
        soak.missed.append(end)
    print(f"old file, {lost} {'stopped' if is_same_process else 'replaced'}, "
          f"{victim + ' lost' if loses_owner else 'no loss'}: {end}", flush=True)
    t.stop()
    return soak.missed + ([] if said else ["no word of the old file"])


def full(folder, args):
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", disk],
                   check=True)
    try:
        return full_disk(folder, disk, args)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def full_disk(folder, disk, args):
    soak = Soak(folder / "trio", random.Random(args.seed), args.limit,
                state=disk / "psched.state")
    soak.expect()
    for number in range(1, args.full + 1):
        job = soak.job()
        if job.doing == "key":  # psched has its row before the disk is full.
            harness.wait_for(lambda name=job.job.name: any(
                k["name"] == "fresh" for k in soak.trio.ask("keys", name)["keys"]),
                             "a key of some ranks")
        filler = disk / "filler"
        with open(filler, "wb", buffering=0) as out:
            try:
                while True:
                    out.write(bytes(4096))
            except OSError:
                pass
        others = soak.chance.choice(([], ["ps0"], ["ps1"], ["ps0", "ps1"]))
        for name in ["sched"] + others:
            soak.kill(name)
        for name in ["sched"] + others:
            soak.start(name)
        try:
            Job(soak.trio, 1, "late").close()
            soak.missed.append("a job begins on a full disk")
        except WorkerError as e:
            if "no room in state.file" not in str(e):
                soak.missed.append(f"full disk: {e}")
        soak.end_job(job)
        filler.unlink(missing_ok=True)
        soak.await_psched()
        print(f"{number:3} {job.doing:8} with {','.join(others) or '-':8} on a full "
              f"disk, next job {soak.starts[-1]:.2f} s", flush=True)
    soak.end()
    return soak.missed


def cut_idle(folder, seconds, limit):
    """Seconds to the end of the first round of the next job, and deaths."""
    from hosts import Hosts
    with Hosts(folder / "net", servers=2, agents=2) as h:
        h.cut("sched", True)
        pause(seconds)
        h.cut("sched", False)
        since = time.monotonic()
        job = Training(h, "sums", PSKV_START_TIMEOUT=f"{4 * limit}s")
        with job.job:
            job.round()
        first = time.monotonic() - since
        return first, h.sched.text().count(" GONE ")


def cuts(folder, args, kind):
    missed = []
    for seconds in (5, 20, 60):
        name = f"cut off for {seconds} s, {kind}"
        where = folder / f"{kind}{seconds}"
        where.mkdir()
        if kind == "idle":
            first, dead = cut_idle(where, seconds, args.limit)
            print(f"{name}: next job {first:.2f} s", flush=True)
            if first > 2 * args.limit or dead:
                missed.append(f"{name}: {first:.2f} s, {dead} deaths")
            continue
        line = Case("psched", kind, lambda h: h.cut("sched", True),
                    lambda h: h.cut("sched", False), seconds,
                    limit=args.limit).run(where)
        print(f"{name}: {line['during']} rounds meanwhile, next round "
              f"{line['first_s']:.2f} s, next job {line['next_job_s']:.2f} s, "
              f"{line['dead']} deaths, bits "
              f"{'equal' if line['same_bits'] else 'DIFFER'}", flush=True)
        if not line["ok"] or line["during"] == 0:
            missed.append(f"{name}: {line}")
    return missed


CUTS = {f"cuts-{kind}": lambda *a, kind=kind: cuts(*a, kind)
        for kind in ("sums", "adam", "idle")}
PARTS = {"kills": kills, "away": away, "old": old, "full": full, **CUTS}


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("count", type=int, nargs="?", default=50)
    parse.add_argument("--seed", type=int, default=int(time.time()))
    parse.add_argument("--limit", type=float, default=5 * harness.SLOW)
    parse.add_argument("--away", type=float, default=60)
    parse.add_argument("--old", type=int, default=12)
    parse.add_argument("--full", type=int, default=20)
    parse.add_argument("--part", choices=PARTS, action="append")
    args = parse.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pskv-soak-"))
    missed = []
    print(f"seed {args.seed}, logs in {folder}", flush=True)
    for part in args.part or PARTS:
        if part in ("full", *CUTS) and os.geteuid() != 0:
            print(f"{part}: left out, needs root")
            continue
        where = folder / part
        where.mkdir()
        missed += PARTS[part](where, args)
    for line in missed:
        print("missed:", line)
    if missed:
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PSKV_BUILD_DIR", "build")
    sys.exit(main())
