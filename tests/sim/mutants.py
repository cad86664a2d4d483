#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Changes one condition or statement of lib/core at a time and asks the unit
tests of that file, the simulator's stories and its seeds whether they see it,
and the unit tests and stories once more under sanitizers.

    mutants.py CC SOURCE_ROOT BUILD_ROOT [--seconds N] [--seed N] [--seeds N]
               [--files PREFIX]

What a mutant was is written to BUILD_ROOT/mutants.jsonl, one line each; a run
goes on where the last one with the same seed ended. Files take turns, so that
each has its share however short the run is. A mutant that nothing sees
survives, and is printed with its place: a test is missing there, the line is
not needed, or the two are the same program. Those that were looked at and are
the same program are listed, with the reason, in mutants_equal.txt beside this
file, and are not tried again.
"""
import argparse
import itertools
import json
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SWAPS = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">",
         "&&": "||", "||": "&&"}
OPERATORS = re.compile(r"(?<= )(==|!=|<=|>=|<|>|&&|\|\|)(?= |$)", re.M)
BRANCH = re.compile(r"\b(if|while) \(")
FLAG = re.compile(r"^ +[\w.>\[\]-]+ = (true|false);$", re.M)
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
VOID = re.compile(r"^(?:static )?void \w+\([^;{]*\)\n\{\n", re.M)


def blank(text):
    """The text with comments, strings and what is not code as spaces."""
    def spaces(match):
        return re.sub(r"[^\n]", " ", match.group())

    text = re.sub(r"/\*.*?\*/|//[^\n]*", spaces, text, flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', spaces, text)
    text = re.sub(r"^#[^\n]*(?:\\\n[^\n]*)*", spaces, text, flags=re.M)
    return re.sub(r"\b(?:_Static_)?assert\((?:[^()]|\([^()]*\))*\)", spaces, text)


def closing(code, at):
    """Behind the parenthesis that closes the one before `at`."""
    depth = 1
    while depth > 0:
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        at += 1
    return at


def mutations(text):
    """(offset, length, new text, what it is)"""
    code = blank(text)
    for m in OPERATORS.finditer(code):
        yield m.start(), len(m[1]), SWAPS[m[1]], f"{m[1]} -> {SWAPS[m[1]]}"
    for m in BRANCH.finditer(code):
        end = closing(code, m.end()) - 1
        what = text[m.end():end]
        if m[1] == "if":
            yield m.end(), end - m.end(), f"!({what})", "negated"
    for m in FLAG.finditer(code):
        line = m.group().lstrip()
        yield m.end() - len(line), len(line), ";", f"without {line}"
    for m in VOID.finditer(code):
        yield m.end(), 0, "    return;\n", "returns at once"


def equal_programs():
    """(file, line of code, what it is) of those that were looked at."""
    rows = Path(__file__).with_name("mutants_equal.txt").read_text().splitlines()
    return {tuple(part.strip() for part in row.split(" | ")[:3])
            for row in rows if row and not row.startswith("#")}


def all_mutants(source, prefix, seed):
    """Those of a file in random order, and files in turns."""
    equal = equal_programs()
    found = []
    core = source / "lib/core"
    for path in sorted(core.rglob("*.c")):
        name = path.relative_to(core).as_posix()
        if not name.startswith(prefix):
            continue
        text = path.read_text()
        of_file = []
        for offset, length, new, what in mutations(text):
            line = text.count("\n", 0, offset) + 1
            column = offset - text.rfind("\n", 0, offset)
            code = text.splitlines()[line - 1].strip()
            if (name, code, what) not in equal:
                of_file.append({
                    "id": f"lib/core/{name}:{line}:{column}: {what}",
                    "file": path, "offset": offset, "length": length,
                    "new": new})
        random.Random(f"{seed} {name}").shuffle(of_file)
        found.append(of_file)
    turns = itertools.zip_longest(*found)
    return [m for turn in turns for m in turn if m is not None]


def area(build, path):
    """The unit tests of the file and of its machine, best ones first."""
    room = path.as_posix().rpartition("/lib/core/")[2].split("/")[0]
    tests = []
    for name in (f"{room}_{path.stem}*", path.stem, f"{room}*"):
        tests += [test for test in
                  sorted((build / "tests/unit").glob(f"test_{name}.p"))
                  if test not in tests]
    return tests


class Workshop:
    def __init__(self, cc, source, build, seeds, folder):
        self.cc, self.build, self.seeds = cc, build, seeds
        self.folder = folder
        self.flags = ["-std=gnu11", "-D_GNU_SOURCE", "-O1", "-w",
                      f"-I{source / 'lib'}", f"-I{source}",
                      f"-I{source / 'tests'}", f"-I{build}",
                      f"-I{build / 'proto'}"]
        self.archives = [build / name for name in (
            "tests/support/libworld.a", "lib/core/libcore.a",
            "proto/libproto.a", "proto/libps_msg.a", "lib/base/libbase.a")]
        self.archives += sorted((build / "lib/kernel").glob("lib*.a"))

    def run(self, objects, mutant, args=(), cpu_seconds=20, link_flags=()):
        """How it ended, or None where it is well. The limit is one of CPU time,
        because an idle priority may get none for long."""
        program = self.folder / "program"
        link = subprocess.run(
            [self.cc, *link_flags, *objects, mutant, "-Wl,--start-group",
             *self.archives, "-Wl,--end-group", "-lmsgpackc", "-lcmocka",
             "-lm", "-o", program], capture_output=True, check=False)
        if link.returncode != 0:
            return None  # Not a program of this kind: it says nothing.
        limits = (cpu_seconds, cpu_seconds + 1)
        try:
            end = subprocess.run(
                [program, *args], capture_output=True, check=False,
                timeout=60 * cpu_seconds, preexec_fn=lambda:
                resource.setrlimit(resource.RLIMIT_CPU, limits))
        except subprocess.TimeoutExpired:
            return "time"
        if end.returncode == -signal.SIGXCPU:
            return "time"
        return None if end.returncode == 0 else f"code {end.returncode}"

    def tests(self, m, flags=()):
        """Which unit test or story sees the mutant; None: none does."""
        mutant = self.folder / "mutant.o"
        if subprocess.run([self.cc, *self.flags, *flags, "-c",
                           self.folder / m["file"].name, "-o", mutant],
                          capture_output=True, check=False).returncode != 0:
            return "does not compile"
        for test in area(self.build, m["file"]):
            end = self.run(sorted(test.glob("*.o")), mutant, link_flags=flags)
            if end is not None:
                return f"{test.stem}: {end}"
        end = self.run(
            sorted((self.build / "tests/sim/test_stories.p").glob("*.o")),
            mutant, link_flags=flags)
        return f"stories: {end}" if end is not None else None

    def judge(self, m):
        text = m["file"].read_text()
        changed = self.folder / m["file"].name
        changed.write_text(text[:m["offset"]] + m["new"] +
                           text[m["offset"] + m["length"]:])
        end = self.tests(m)
        if end is not None:
            return end
        end = self.run(
            sorted((self.build / "tests/sim/sim_random.p").glob("*.o")),
            self.folder / "mutant.o",
            ["--count", str(self.seeds), "--jobs", "2", "--stop"], 60)
        if end is not None:
            return f"seeds: {end}"
        end = self.tests(m, SANITIZERS)
        return f"sanitized {end}" if end is not None else "survives"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cc")
    parser.add_argument("source", type=Path)
    parser.add_argument("build", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--files", default="")
    o = parser.parse_args()
    mutants = all_mutants(o.source, o.files, o.seed)
    log = o.build / "mutants.jsonl"
    known = {}
    if log.exists():
        for line in log.read_text().splitlines():
            row = json.loads(line)
            known[row["id"]] = row["end"]
    until = time.monotonic() + o.seconds
    with tempfile.TemporaryDirectory() as folder, log.open("a") as out:
        shop = Workshop(o.cc, o.source, o.build, o.seeds, Path(folder))
        for m in mutants:
            if time.monotonic() > until:
                break
            if m["id"] in known:
                continue
            known[m["id"]] = shop.judge(m)
            out.write(json.dumps({"id": m["id"], "end": known[m["id"]]}) + "\n")
            out.flush()
            if known[m["id"]] == "survives":
                print(m["id"], flush=True)
    ends = [known[m["id"]] for m in mutants if m["id"] in known]
    print(f"{len(mutants)} mutants, {len(ends)} tried, "
          f"{ends.count('survives')} survive, "
          f"{ends.count('does not compile')} do not compile")
    return 0


if __name__ == "__main__":
    sys.exit(main())
