#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs fuzz targets, each from where its last run ended: inputs are kept in a
corpus outside the tree, executions are counted over all runs.

    fuzz.py FOLDER BUILD [--plain] [--goal N] [SECONDS [TARGET...]]
    fuzz.py FOLDER BUILD --merge [TARGET...]
    fuzz.py FOLDER --table

BUILD has sanitizers; with --plain it has none, and its runs count apart. --goal
ends a target at this number of executions, of all runs. --merge adds the fewest
inputs to the corpus of the tree that reach what the saved ones reach, and the
sums over all runs to tests/fuzz/sums.json, from which a new FOLDER goes on.
--table prints the sums, as docs/testing.md has them. Two runs may share FOLDER
if one is plain. The end code is 1 if a target found something; its input lies
in FOLDER."""
import argparse
import fcntl
import json
import math
import re
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2] / "tests/fuzz/corpus"
SUMS = TREE.parent / "sums.json"
FIGURES = {"executions": r"stat::number_of_executed_units:\s*(\d+)",
           "memory": r"stat::peak_rss_mb:\s*(\d+)"}
EDGES = re.compile(r"\bcov: (\d+)")
FOUND = re.compile(r"^(?:SUMMARY: .*|.*Assertion .* failed.*)$", re.M)
INTERRUPTED = 72  # The end code of libFuzzer after SIGINT.
# The sums of runs without sanitizers, in the state of a target.
PLAIN = "plain"
HEAD = """\
| target | executions with sanitizers | without | edges | peak memory | findings |
| --- | --- | --- | --- | --- | --- |"""


def read_figures(log):
    """Executions, peak memory in MiB and edges of one run."""
    figures = {}
    for name, pattern in FIGURES.items():
        match = re.search(pattern, log)
        figures[name] = int(match[1]) if match else 0
    figures["edges"] = max((int(n) for n in EDGES.findall(log)), default=0)
    return figures


def add_run(total, figures, findings, is_plain=False):
    """The sums over all runs of a target."""
    if is_plain:
        return {**total, PLAIN: add_run(total.get(PLAIN, {}), figures,
                                        findings)}
    return {**total,
            "runs": total.get("runs", 0) + 1,
            "executions": total.get("executions", 0) + figures["executions"],
            "edges": max(total.get("edges", 0), figures["edges"]),
            "memory": max(total.get("memory", 0), figures["memory"]),
            "findings": total.get("findings", 0) + findings}


def table(totals):
    """The sums as a table of Markdown. Compilers count edges in two ways: those
    of the build with sanitizers are given, if there are any."""
    lines = [HEAD]
    for name in sorted(totals):
        t = totals[name]
        plain = t.get(PLAIN, {})
        memory = f"{t.get('memory', 0)} MiB, {plain.get('memory', 0)} MiB"
        findings = t.get("findings", 0) + plain.get("findings", 0)
        lines.append(f"| `{name}` | {t.get('executions', 0):,} "
                     f"| {plain.get('executions', 0):,} "
                     f"| {t.get('edges', 0) or plain.get('edges', 0):,} "
                     f"| {memory} | {findings} |")
    return "\n".join(lines)


def read_totals(*paths):
    """The sums in the first of these files that exists."""
    for path in paths:
        if path.exists():
            return json.loads(path.read_text())
    return {}


def write_totals(path, totals):
    new = path.with_suffix(".new")
    new.write_text(json.dumps(totals, indent=1, sort_keys=True) + "\n")
    new.replace(path)


class Soak:
    def __init__(self, folder, build, is_plain, sums=SUMS):
        self.is_plain = is_plain
        self.programs = build and build / "tests/fuzz"
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = self.folder / "state.json"
        self.sums = sums
        words = build and build / "proto/messages.dict"
        self.words = [f"-dict={words}"] if words and words.exists() else []

    def corpus(self, name):
        path = self.folder / "corpus" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def totals(self):
        return read_totals(self.state, self.sums)

    def add(self, name, figures, findings):
        """Adds a run to the sums, which another run may change meanwhile."""
        with self.state.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            totals = self.totals()
            totals[name] = add_run(totals.get(name, {}), figures, findings,
                                   self.is_plain)
            write_totals(self.state, totals)

    def total(self, name):
        """Of runs of this build."""
        total = self.totals().get(name, {})
        return total.get(PLAIN, {}) if self.is_plain else total

    def left(self, name, goal):
        """Executions until the goal."""
        return max(goal - self.total(name).get("executions", 0), 0)

    def run(self, name, seconds, goal=math.inf):
        """True: nothing was found."""
        left = self.left(name, goal)
        limit = [f"-runs={left:.0f}"] if math.isfinite(left) else []
        done = subprocess.run(
            [self.programs / f"fuzz_{name}", f"-max_total_time={seconds}",
             *limit,
             "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1",
             f"-artifact_prefix={self.folder}/{name}-", *self.words,
             self.corpus(name), TREE / name],
            capture_output=True, text=True, errors="replace", check=False)
        log = f"{name}-plain.log" if self.is_plain else f"{name}.log"
        (self.folder / log).write_text(done.stderr)
        figures = read_figures(done.stderr)
        if done.returncode != 0 and figures["executions"] == 0 and \
                not FOUND.search(done.stderr):
            sys.exit(f"fuzz_{name} did not run:\n{done.stderr[-1000:]}")
        good = done.returncode in (0, INTERRUPTED)
        self.add(name, figures, int(not good))
        t = self.total(name)
        print(f"{name:16} {figures['executions']:>12} {t['executions']:>14} "
              f"{t['edges']:>7} {t['memory']:>6} MiB {t['findings']:>9}",
              flush=True)
        for line in FOUND.findall(done.stderr):
            print(f"  {line}")
        return good

    def merge(self, name):
        before = len(list((TREE / name).iterdir()))
        subprocess.run([self.programs / f"fuzz_{name}", "-merge=1",
                        TREE / name, self.corpus(name)],
                       capture_output=True, check=True)
        print(f"{name}: {before} inputs, now "
              f"{len(list((TREE / name).iterdir()))}")


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("build", type=Path, nargs="?")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--goal", type=float, default=math.inf)
    parser.add_argument("words", nargs="*")
    o = parser.parse_intermixed_args()
    soak = Soak(o.folder.resolve(), o.build and o.build.resolve(), o.plain)
    if o.table:
        print(table(soak.totals()))
        return
    words = o.words
    seconds = 60
    if words and not o.merge:
        seconds = int(words.pop(0))
    names = [w.removeprefix("fuzz_") for w in words] or \
        sorted(p.name for p in TREE.iterdir())
    if o.merge:
        for name in names:
            soak.merge(name)
        write_totals(SUMS, soak.totals())
        return
    print(f"{'target':16} {'executions':>12} {'of all runs':>14} "
          f"{'edges':>7} {'memory':>10} {'findings':>9}")
    good = [soak.run(name, seconds, o.goal) for name in names
            if soak.left(name, o.goal) > 0]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
