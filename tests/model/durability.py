#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks rules for jobs that outlive the death of a server, and whose ranks
come and go, by visiting every state of two models.

    durability.py [--bounded | --all] [NAME...]

copies.py is the model of a partition with a backup, members.py that of ranks;
each says what it models and what it does not. A run lets some faults happen, a
number of times each, at any moment. In no state may an answered round be lost,
have two results, or be in one partition alone, and from every state a path has
to lead to the end of the job. Runs with a planted bug leave one rule out, and
have to fail.

Each run has to have the number of states of the table below, so that a change
of a rule is noticed. --bounded, the default, leaves out the runs that take
long, --all does not; with NAMEs run those that have one in their name.
Output is TAP, with the processor time of each run."""

import argparse
import sys
import time
from typing import Any, Callable, NamedTuple

sys.dont_write_bytecode = True

from copies import Copies  # noqa: E402
from explore import LIMIT, Model, Outcome, explore  # noqa: E402
from members import Members  # noqa: E402


class Run(NamedTuple):
    name: str
    model: Callable[..., Model]
    options: dict[str, Any]
    states: int
    depth: int
    is_long: bool = False  # More than about 2 s.

    def is_planted(self) -> bool:
        return "bug" in self.options


def plant(model: Callable[..., Model], bug: str, text: str, states: int,
          depth: int, is_long: bool = False, **options: Any) -> Run:
    name = f"{model.__name__.lower()}, bug {bug}: {text}"
    return Run(name, model, {**options, "bug": bug}, states, depth, is_long)


RUNS = (
    Run("copies: no fault", Copies, {}, 19, 12),
    Run("copies: a process dies", Copies, {"processes": 1}, 2159, 19),
    Run("copies: a host is lost", Copies, {"hosts": 1}, 1683, 19),
    Run("copies: no backup, 2 processes die", Copies,
        {"has_backup": False, "processes": 2, "fills": 0}, 672, 16),
    Run("copies: no backup, one is filled, a host is lost", Copies,
        {"has_backup": False, "hosts": 1}, 1623, 22),
    Run("copies: both processes die", Copies,
        {"processes": 2, "fills": 0}, 4057, 21),
    Run("copies: a process dies, a host is lost", Copies,
        {"processes": 1, "hosts": 1}, 22585, 25, is_long=True),
    Run("copies: a host is lost, a backup is filled, a host is lost", Copies,
        {"hosts": 2}, 4335, 25),
    Run("copies: a host is lost, false suspicion", Copies,
        {"hosts": 1, "suspicions": 1}, 11545, 23),
    Run("copies: a process dies, false suspicion", Copies,
        {"processes": 1, "suspicions": 1}, 22680, 23, is_long=True),
    Run("copies: an agent dies, a host is lost", Copies,
        {"agents": 1, "hosts": 1}, 3710, 20),
    Run("copies: a slot is lost, a host is lost", Copies,
        {"slots": 1, "hosts": 1}, 52925, 23, is_long=True),
    Run("copies: a slot is lost, a process dies", Copies,
        {"slots": 1, "processes": 1}, 64829, 23, is_long=True),
    Run("copies: 1 round, a slot and a host are lost, false suspicion", Copies,
        {"rounds": 1, "slots": 1, "hosts": 1, "suspicions": 1},
        119004, 21, is_long=True),
    Run("copies: 1 round, 2 processes die, a host is lost", Copies,
        {"rounds": 1, "processes": 2, "hosts": 1}, 36232, 22, is_long=True),
    Run("members: 2 ranks, 2 steps", Members, {}, 38, 18),
    Run("members: 2 ranks, 1 joins", Members, {"joiners": 1}, 2034, 39),
    Run("members: 2 ranks, 1 joins, 1 leaves", Members,
        {"joiners": 1, "leaves": 1}, 11712, 53),
    Run("members: 2 ranks, 1 joins, 1 is lost", Members,
        {"joiners": 1, "losses": 1}, 104184, 41, is_long=True),
    Run("members: 2 ranks, 1 joins, psched dies", Members,
        {"joiners": 1, "sched_deaths": 1}, 25729, 48, is_long=True),
    Run("members: 2 ranks, 1 step, 1 joins, 1 is lost, psched dies", Members,
        {"steps": 1, "joiners": 1, "losses": 1, "sched_deaths": 1},
        329201, 36, is_long=True),
    Run("members: 2 ranks, 3 steps, a snapshot, 1 is lost", Members,
        {"steps": 3, "snapshots": 1, "losses": 1}, 130539, 45, is_long=True),
    Run("members: 2 ranks, 1 step, a snapshot, 1 joins, psched dies", Members,
        {"steps": 1, "joiners": 1, "snapshots": 1, "sched_deaths": 1},
        19937, 46),
    Run("members: 3 ranks, 2 are lost", Members,
        {"ranks": 3, "losses": 2}, 37021, 33, is_long=True),
    Run("members: 2 ranks, a worker is replaced, 1 joins", Members,
        {"joiners": 1, "replacements": 1}, 5120, 41),
    plant(Copies, "early", "answers a round before the backup has it",
          6, 2, hosts=1),
    plant(Copies, "timer", "goes on without the backup after some time",
          18, 3, suspicions=1),
    plant(Copies, "evicted", "promotes a backup that was dismissed",
          508, 6, suspicions=1, hosts=1),
    plant(Copies, "filling", "promotes a backup that is being filled",
          201, 7, rounds=1, has_backup=False, suspicions=1),
    plant(Copies, "eager", "reports filled before the backup has all",
          265, 8, has_backup=False, hosts=1),
    plant(Copies, "nowait", "does not wait for a backup that counts",
          185, 8, has_backup=False, hosts=1),
    plant(Copies, "hole", "confirms versions before the backup is filled",
          307, 9, has_backup=False, hosts=1),
    plant(Copies, "stale", "accepts versions of an earlier epoch",
          29496, 16, is_long=True, rounds=1, processes=1, slots=1),
    plant(Copies, "keep", "lets a new backup keep what it had",
          168274, 13, is_long=True,
          rounds=1, processes=1, suspicions=1, slots=1),
    plant(Copies, "resume", "lets a new process go on in its former role",
          108, 5, processes=1),
    plant(Copies, "name", "gives a new process the role of its predecessor",
          510, 14, rounds=1, hosts=1),
    plant(Copies, "late", "answers a round before the kept memory has it",
          22, 3, has_backup=False, processes=1, fills=0),
    plant(Copies, "count", "counts contributions without regard to slots",
          16, 4, agents=1),
    plant(Copies, "unstored", "sends a new epoch before it is stored",
          161, 4, suspicions=1, hosts=1),
    plant(Members, "unaligned", "lets a joiner begin with the open rounds",
          31, 4, joiners=1),
    plant(Members, "nopromise", "lets a rank go on after its step was sent",
          14867, 56, joiners=1, steps=3),
    plant(Members, "least", "takes the least step of all",
          3893, 54, joiners=1, steps=3),
    plant(Members, "hasty", "changes members before all are held",
          286, 8, joiners=1),
    plant(Members, "early", "lets ranks run before the servers are ready",
          2542, 23, joiners=1),
    plant(Members, "release", "lets ranks run when psched is lost",
          21821, 21, is_long=True, joiners=1, sched_deaths=1, steps=3),
    plant(Members, "late", "counts a joiner when it has heard of the end",
          10522, 52, joiners=1, leaves=1),
    plant(Members, "unstored", "sends a change before it is stored",
          52929, 50, is_long=True, joiners=1, sched_deaths=1),
    plant(Members, "skewed", "lets a new worker begin with the next round",
          130, 20, replacements=1),
)


def complaint(run: Run, outcome: Outcome) -> str:
    """Why the run failed, or nothing."""
    if not outcome.violation and not outcome.is_complete:
        return f"there are more than {LIMIT} states"
    if run.is_planted() and not outcome.violation:
        return "the planted bug was not found"
    if outcome.violation and not run.is_planted():
        return "a rule is violated"
    if (outcome.states, outcome.depth) != (run.states, run.depth):
        return (f"a rule has changed: expected were {run.states} states, "
                f"depth {run.depth}")
    return ""


def verdict(outcome: Outcome) -> str:
    return outcome.violation or (
        "holds" if outcome.is_complete else "not all seen")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--bounded", action="store_true")
    which.add_argument("--all", action="store_true")
    parser.add_argument("names", nargs="*", metavar="NAME")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    runs = [run for run in RUNS if (options.all or not run.is_long)
            and (not options.names
                 or any(name in run.name for name in options.names))]
    if not runs:
        sys.exit("no run has that name")
    print(f"1..{len(runs)}", flush=True)
    bad = 0
    for number, run in enumerate(runs, 1):
        begin = time.process_time()
        outcome = explore(run.model(**run.options))
        seconds = time.process_time() - begin
        wrong = complaint(run, outcome)
        bad += wrong != ""
        print(f"{'not ok' if wrong else 'ok'} {number} - {run.name}: "
              f"{outcome.states} states, depth {outcome.depth}, "
              f"{verdict(outcome)} ({seconds:.1f} s)", flush=True)
        if wrong:
            print(f"# {wrong}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
