#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs fuzz targets, each from where its last run ended: inputs are kept in a
corpus outside the tree, executions are counted over all runs.

    fuzz.py BUILD [SECONDS [TARGET...]]
    fuzz.py BUILD --merge [TARGET...]

--merge adds the fewest inputs to the corpus of the tree that reach what the
saved ones reach. The end code is 1 if a target found something; its input lies in BUILD/fuzz."""
import json
import re
import subprocess
import sys
from pathlib import Path

TREE = Path(__file__).resolve().parents[2] / "tests/fuzz/corpus"
FIGURES = {"executions": r"stat::number_of_executed_units:\s*(\d+)",
           "memory": r"stat::peak_rss_mb:\s*(\d+)"}
EDGES = re.compile(r"\bcov: (\d+)")
FOUND = re.compile(r"^(?:SUMMARY: .*|.*Assertion .* failed.*)$", re.M)


def read_figures(log):
    """Executions, peak memory in MiB and edges of one run."""
    figures = {}
    for name, pattern in FIGURES.items():
        match = re.search(pattern, log)
        figures[name] = int(match[1]) if match else 0
    figures["edges"] = max((int(n) for n in EDGES.findall(log)), default=0)
    return figures


def add_run(total, figures, findings):
    """The sums over all runs of a target."""
    return {"runs": total.get("runs", 0) + 1,
            "executions": total.get("executions", 0) + figures["executions"],
            "edges": max(total.get("edges", 0), figures["edges"]),
            "memory": max(total.get("memory", 0), figures["memory"]),
            "findings": total.get("findings", 0) + findings}


class Soak:
    def __init__(self, build):
        self.programs = build / "tests/fuzz"
        self.folder = build / "fuzz"
        self.folder.mkdir(exist_ok=True)
        self.state = self.folder / "state.json"
        self.totals = json.loads(self.state.read_text()) \
            if self.state.exists() else {}
        words = build / "proto/messages.dict"
        self.words = [f"-dict={words}"] if words.exists() else []

    def corpus(self, name):
        path = self.folder / "corpus" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def save(self):
        new = self.state.with_suffix(".new")
        new.write_text(json.dumps(self.totals, indent=1, sort_keys=True))
        new.replace(self.state)

    def run(self, name, seconds):
        """True: nothing was found."""
        done = subprocess.run(
            [self.programs / f"fuzz_{name}", f"-max_total_time={seconds}",
             "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1",
             f"-artifact_prefix={self.folder}/{name}-", *self.words,
             self.corpus(name), TREE / name],
            capture_output=True, text=True, errors="replace", check=False)
        (self.folder / f"{name}.log").write_text(done.stderr)
        figures = read_figures(done.stderr)
        if done.returncode != 0 and figures["executions"] == 0 and \
                not FOUND.search(done.stderr):
            sys.exit(f"fuzz_{name} did not run:\n{done.stderr[-1000:]}")
        self.totals[name] = add_run(self.totals.get(name, {}), figures,
                                    int(done.returncode != 0))
        self.save()
        t = self.totals[name]
        print(f"{name:12} {figures['executions']:>12} {t['executions']:>14} "
              f"{t['edges']:>7} {t['memory']:>6} MiB {t['findings']:>9}",
              flush=True)
        for line in FOUND.findall(done.stderr):
            print(f"  {line}")
        return done.returncode == 0

    def merge(self, name):
        before = len(list((TREE / name).iterdir()))
        subprocess.run([self.programs / f"fuzz_{name}", "-merge=1",
                        TREE / name, self.corpus(name)],
                       capture_output=True, check=True)
        print(f"{name}: {before} inputs, now "
              f"{len(list((TREE / name).iterdir()))}")


def main():
    soak = Soak(Path(sys.argv[1]).resolve())
    words = sys.argv[2:]
    merge = words[:1] == ["--merge"]
    seconds = 60
    if merge:
        words = words[1:]
    elif words:
        seconds = int(words.pop(0))
    names = [w.removeprefix("fuzz_") for w in words] or \
        sorted(p.name for p in TREE.iterdir())
    if merge:
        for name in names:
            soak.merge(name)
        return
    print(f"{'target':12} {'executions':>12} {'of all runs':>14} "
          f"{'edges':>7} {'memory':>10} {'findings':>9}")
    good = [soak.run(name, seconds) for name in names]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
