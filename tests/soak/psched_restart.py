#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""psched is killed and restarted, and isolated, with training and idle jobs and
the default leases of daemons.

    psched_restart.py [COUNT] [--seed N] [--limit SECONDS] [--part PART]

kills: COUNT times (50) under training and as often idle, with members that
register in any order, alone and together with servers and agents. Each time
every rank is to hear within a limit why its job is over, in the call that waits
or in the next one, and a new job is to train on the members that are there.
cuts: psched is cut off for 5, 20 and 60 s, while a job trains with sums, with
Adam, and idle; training goes on, nobody is given up, and the next job starts at
once. Needs root.

Prints a line for each kill and cut, and the figures at the end; 1 where one is
missed."""
import argparse
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import trio as harness  # noqa: E402
from network import Case, Training  # noqa: E402
from trio import Job, WorkerError  # noqa: E402

RANKS = 4
SAYS = re.compile(r"the scheduler was restarted and does not know job '(.+)' ")
# Error of a rank whose agent is killed as well, in a job that cannot continue
# with another agent.
ALONE = "the agent closed the connection"
# Activities of the ranks at that time. Each ends with an error text.
DOINGS = ("rounds", "barrier", "key", "nothing")


def pause(seconds):
    select.select([], [], [], seconds)


class Soak:
    def __init__(self, folder, chance, limit):
        self.chance = chance
        self.limit = limit
        self.trio = harness.Trio(folder, servers=2, agents=2)
        self.trio.options = [o for o in self.trio.options
                             if o not in harness.CALM]
        self.trio.start()
        self.words = []   # Seconds to the error text, of each rank.
        self.starts = []  # To the first round of the next job.
        self.missed = []
        self.jobs = 0

    def daemon(self, name):
        return self.trio.daemons[name]

    def kill(self, name):
        self.daemon(name).stop(harness.Deadline(), kill=True)

    def start(self, name):
        self.trio.launch(name).await_ready(harness.Deadline())

    def job(self):
        self.jobs += 1
        name = f"soak{self.jobs}"
        mode = self.chance.choice(("sync", "sync", "async"))
        env = {"PSKV_ON_LOSS": self.chance.choice(("wait", "fail"))}
        if mode == "async":
            env.update(PSKV_MODE=mode, PSKV_RULE="assign")
        job = Job(self.trio, RANKS, name, **env)
        count = self.chance.choice((100, 300000))
        k = job.key("w", "float32", count)
        kind = "count"
        if mode == "sync" and self.chance.random() < 0.5:
            kind = "mixed"
            zeros = self.trio.folder / "zeros"
            zeros.write_bytes(bytes(4 * count))
            job.tell(f"init {k} src={zeros}")
            job.tell("optimizer adam learning_rate=0.001")
        job.busy = []
        job.goes_on = mode == "sync" and env["PSKV_ON_LOSS"] == "wait"
        job.alone = set()  # Ranks whose agent dies, too.
        if mode == "sync":
            job.tell(f"rounds {kind} 3 1 0 {k}")
        for w in job:
            doing = self.chance.choice(DOINGS)
            if mode != "sync" and doing == "rounds":
                doing = "barrier"
            if doing != "nothing" and w.rank > 0:  # Rank 0 is late.
                w.say({"rounds": f"rounds {kind} 1000000 1 0 {k}",
                       "barrier": "barrier",
                       "key": f"key k{w.rank} float32 1000"}[doing])
                job.busy.append(w.rank)
        return job

    def await_words(self, job, since):
        """Error texts of all ranks at once, then those of later calls."""
        waiting = {}
        for w in job:
            if w.rank not in job.busy:
                w.say("barrier")
            waiting[w.process.stdout.fileno()] = w
        while waiting:
            left = since + 4 * self.limit - time.monotonic()
            ready, _, _ = select.select(list(waiting), [], [], max(0, left))
            if not ready:
                ranks = sorted(w.rank for w in waiting.values())
                self.missed.append(f"{job.name}: no word at ranks {ranks}")
                return
            for fd in ready:
                w = waiting[fd]
                try:
                    w.hear(1)
                    w.say("barrier")  # Its operation had ended; now it waits.
                except WorkerError as e:
                    del waiting[fd]
                    self.take_word(job, w, str(e), time.monotonic() - since)

    def take_word(self, job, w, text, seconds):
        self.words.append(seconds)
        found = SAYS.search(text)
        if found is None and w.rank in job.alone and ALONE in text:
            pass
        elif found is None or found.group(1) != job.name:
            self.missed.append(f"{job.name} rank {w.rank}: {text}")
        elif seconds > self.limit:
            self.missed.append(f"{job.name} rank {w.rank}: {seconds:.1f} s")
        w.say("barrier")
        try:
            w.hear(self.limit)
            self.missed.append(f"{job.name} rank {w.rank}: a call succeeds")
        except WorkerError as e:
            if str(e) != text and ALONE not in text and SAYS.search(str(e)) is None:
                self.missed.append(f"{job.name} rank {w.rank} later: {e}")

    def next_job(self):
        begun = time.monotonic()
        self.jobs += 1
        with Job(self.trio, RANKS, f"soak{self.jobs}",
                 PSKV_START_TIMEOUT="30s") as job:
            k = job.key("w", "float32", 50000)
            job.tell(f"rounds count 1 1 0 {k}")
            self.starts.append(time.monotonic() - begun)
            job.tell("barrier")

    def turn(self, number, training):
        t = self.trio
        names = t.server_names + t.agent_names
        job = self.job() if training else None
        others = [n for n in names if self.chance.random() < 0.1]
        stopped = [n for n in names if n not in others]
        shuffled = self.chance.random() < 0.7
        if shuffled:
            for name in stopped:
                self.daemon(name).process.send_signal(signal.SIGSTOP)
        for name in ["sched"] + others:
            self.kill(name)
        pause(self.chance.choice((0, 0.2, 1.5)))
        if job is not None and not job.goes_on:
            job.alone = {r for r in range(RANKS)
                         if f"node{r * 2 // RANKS}" in others}
        self.start("sched")
        back = time.monotonic()
        self.chance.shuffle(stopped)
        for name in stopped if shuffled else ():
            self.daemon(name).process.send_signal(signal.SIGCONT)
            pause(self.chance.choice((0, 0.05)))
        for name in others:
            self.start(name)
        count = len(self.words)
        if job is not None:
            self.await_words(job, back)
            for w in job:
                w.kill()
                w.end()
        self.next_job()
        print(f"{number:3} {'training' if job else 'idle':8} with "
              f"{','.join(others) or '-':10} words "
              f"{max(self.words[count:], default=0):.2f} s, next job "
              f"{self.starts[-1]:.2f} s", flush=True)

    def end(self):
        for d in self.trio.daemons.values():
            if not d.alive():
                self.missed.append(f"{d.name} ended")
        self.trio.await_empty()
        self.trio.stop()


def spread(name, values):
    values = sorted(values) or [0]
    print(f"{name}: {len(values)} times, p50 "
          f"{values[len(values) // 2]:.2f} s, p99 "
          f"{values[int(len(values) * 0.99)]:.2f} s, max {values[-1]:.2f} s")


def kills(folder, args):
    soak = Soak(folder / "trio", random.Random(args.seed), args.limit)
    for number in range(1, 2 * args.count + 1):
        soak.turn(number, number <= args.count)
    soak.end()
    spread("words at a rank", soak.words)
    spread("first round of the next job", soak.starts)
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


PARTS = {"kills": kills,
         "cuts-sums": lambda *a: cuts(*a, "sums"),
         "cuts-adam": lambda *a: cuts(*a, "adam"),
         "cuts-idle": lambda *a: cuts(*a, "idle")}


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("count", type=int, nargs="?", default=50)
    parse.add_argument("--seed", type=int, default=int(time.time()))
    parse.add_argument("--limit", type=float, default=5 * harness.SLOW)
    parse.add_argument("--part", choices=PARTS, action="append")
    args = parse.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pskv-soak-"))
    missed = []
    print(f"seed {args.seed}, logs in {folder}", flush=True)
    for part in args.part or PARTS:
        if part.startswith("cuts") and os.geteuid() != 0:
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
