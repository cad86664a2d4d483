#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A cluster of a thousand nodes.

    scale.py [--agents N] [--times M] [--skip-sim]

First in virtual time (tests/sim/scale_main.c): all agents join one scheduler
and 32 servers, send heartbeats and run a round; limits: 10 s until all have
joined, 200 MB of memory of the scheduler. Then a real psched with two servers
and as many connected agents (tests/support/agents.py), which have a worker each
in one job: psctl answers each question within a second, M times (5); the
processor time and memory of psched are printed. 1 where a limit is missed."""
import argparse
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from trio import BUILD, CALM, SOURCE, Deadline, Trio, clean_env, die_with_parent  # noqa: E402

ANSWER_MAX = 1.0  # Seconds.
MEMORY_MAX = 200e6
JOB = "wide"
QUESTIONS = (("status",), ("nodes",), ("jobs",), ("keys",), ("stall",),
             ("events",), ("doctor",), ("-w", "json", "nodes"),
             ("top", "--batch", "-n", "1"))
IDLE = 10  # Seconds for which heartbeats alone are measured.


class Missed(Exception):
    pass


class Fleet:
    """The process with the agents."""

    def __init__(self, port, count, servers):
        self.process = subprocess.Popen(
            ["/usr/bin/python3", str(SOURCE / "tests/support/agents.py"),
             "--port", str(port), "--count", str(count), "--job", JOB,
             "--servers", str(servers)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean_env(),
            preexec_fn=die_with_parent)

    def await_word(self, word, seconds):
        """The seconds that it took by the clock of the agents."""
        out = self.process.stdout
        if not select.select([out], [], [], seconds)[0]:
            raise Missed(f"agents: not {word} in {seconds} s")
        line = out.readline().decode().split()
        if not line or line[0] != word:
            raise Missed(f"agents: '{' '.join(line)}' in place of '{word}'")
        return float(line[1])

    def end(self):
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def processor_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(t, words, times):
    """Seconds of each answer, processor seconds of psctl for one, and the last
    answer."""
    seconds = []
    before = sum(os.times()[2:4])
    for _ in range(times):
        begun = time.monotonic()
        code, out, err = t.psctl(*words)
        seconds.append(time.monotonic() - begun)
        # 3: something needs attention, as doctor may find.
        if code not in (0, 3) and words[-1] != "doctor":
            raise Missed(f"psctl {' '.join(words)}: {code} {err}")
    return seconds, (sum(os.times()[2:4]) - before) / times, out


def check_idle(t):
    """Heartbeats alone: share of a core, and nobody is given up."""
    before = processor_seconds(t.sched.pid)
    select.select([], [], [], IDLE)
    share = (processor_seconds(t.sched.pid) - before) / IDLE
    if " GONE " in t.sched.text():
        raise Missed("a member was given up:\n" + t.sched.text()[-2000:])
    return share


def real(folder, agents, times):
    missed = []
    t = Trio(folder, servers=2, agents=0)
    t.options = [o for o in t.options if o not in CALM]
    t.start()
    fleet = Fleet(t.port, agents, servers=2)
    try:
        joined = fleet.await_word("joined", 60)
        running = fleet.await_word("running", 60)
        print(f"{agents} agents at a real psched: joined after {joined:.2f} s, "
              f"their job ran after {running:.2f} s")
        for words in QUESTIONS:
            before = processor_seconds(t.sched.pid)
            seconds, own, out = ask(t, words, times)
            spent = (processor_seconds(t.sched.pid) - before) / times
            print(f"  psctl {' '.join(words):20} "
                  f"{statistics.median(seconds) * 1e3:6.0f} ms, "
                  f"{max(seconds) * 1e3:6.0f} at most; processor: psctl "
                  f"{own * 1e3:.0f} ms, psched {spent * 1e3:.0f}; "
                  f"{out.count(chr(10))} lines")
            if max(seconds) > ANSWER_MAX:
                missed.append(f"psctl {' '.join(words)}: {max(seconds):.2f} s")
        share = check_idle(t)
        rss = t.sched.rss()
        print(f"  psched: {share * 100:.1f} % of a core for heartbeats, "
              f"{rss / 1e6:.0f} MB resident")
        if rss > MEMORY_MAX:
            missed.append(f"psched takes {rss / 1e6:.0f} MB")
    finally:
        fleet.end()
        t.sched.stop(Deadline())
        for s in t.servers():
            s.stop(Deadline(), kill=True)
    return missed


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--agents", type=int, default=1000)
    p.add_argument("--times", type=int, default=5)
    p.add_argument("--skip-sim", action="store_true")
    options = p.parse_args()
    missed = []
    if not options.skip_sim:
        done = subprocess.run(
            [str(BUILD / "tests/sim/sim_scale"), "--agents",
             str(options.agents)], check=False)
        if done.returncode != 0:
            missed.append("the cluster in virtual time")
    folder = Path(tempfile.mkdtemp(prefix="pskv-scale-"))
    try:
        missed += real(folder / "trio", options.agents, options.times)
    except Missed as e:
        missed.append(str(e))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for text in missed:
        print("missed:", text)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
