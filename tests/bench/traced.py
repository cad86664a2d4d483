#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Count what one push runs: functions, the files that they are in, and how often
a call goes to another file, in the workers, the agent and the server.

    traced.py BUILD [--of psserver|psworker-agent|trace_push]

BUILD/trace is the tree built with -finstrument-functions and without
optimization; BUILD has the recorder and the worker. The file of a function is
that of its definition, also if that is a header. Only files of COUNTED count.
With --of, also each function of that process, with its calls."""

import argparse
import bisect
import os
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, NamedTuple

import peers

SOURCE = Path(__file__).resolve().parents[2]
COUNTED = ("lib/core/", "lib/net/", "lib/driver/", "lib/client/", "daemons/")
PROCESSES = ("psserver", "psworker-agent", "trace_push")
OPTIONS = ("-Dtests=false", "-Dexamples=false", "-Ddocs=disabled",
           "-Dcuda=disabled", "-Dsystemd=disabled", "-Doptimization=0",
           "-Ddebug=true",
           # addr2line of binutils 2.40 names the wrong file for functions of a
           # header in DWARF 5.
           "-Dc_args=['-finstrument-functions','-gdwarf-4']")
RECORD = struct.Struct("<QQII")  # struct record of trace_record.c.

# Name: keys, bytes of each, optimizer, whether by TCP.
CASES = {
    "1 key of 1 MiB, same host": (1, 1 << 20, None, False),
    "8 keys of 128 KiB, TCP, Adam": (8, 128 << 10, "adam", True),
}


class Call(NamedTuple):
    time: int
    name: str
    file: str


@dataclass
class Count:
    functions: int
    files: int
    changes: int
    calls: int
    each: Counter[tuple[str, str]]  # (file, function) of one process


def build(folder: Path) -> Path:
    """The instrumented build below a build folder."""
    traced = folder / "trace"
    if not (traced / "build.ninja").exists():
        run(["meson", "setup", str(traced), str(SOURCE), *OPTIONS])
    run(["ninja", "-C", str(traced)])
    return traced


def run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise peers.Failed(f"{' '.join(command)}: {done.stdout[-600:]}"
                           f"{done.stderr[-600:]}")


class Mappings:
    """Addresses of a process: the program or library of each, and its names."""

    def __init__(self, path: Path) -> None:
        self.ranges: list[tuple[int, int, str]] = []
        self.bases: dict[str, int] = {}
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) >= 6 and words[5].startswith("/"):
                begin, end = (int(x, 16) for x in words[0].split("-"))
                self.ranges.append((begin, end, words[5]))
                if int(words[2], 16) == 0:
                    self.bases.setdefault(words[5], begin)
        self.ranges.sort()
        self.begins = [begin for begin, _, _ in self.ranges]

    def names(self, addresses: set[int]) -> dict[int, tuple[str, str]]:
        """Name and file of each function."""
        of: dict[str, list[int]] = defaultdict(list)
        for address in sorted(addresses):
            at = bisect.bisect_right(self.begins, address) - 1
            if at >= 0 and address < self.ranges[at][1]:
                of[self.ranges[at][2]].append(address)
        found = {}
        for binary, those in of.items():
            lines = subprocess.run(
                ["addr2line", "-f", "-e", binary,
                 *(hex(a - self.bases[binary]) for a in those)], check=True,
                capture_output=True, text=True).stdout.splitlines()
            for i, address in enumerate(those):
                path = os.path.normpath(lines[2 * i + 1].rpartition(":")[0])
                inside = re.search(r"\b(?:lib|daemons|proto)/.*", path)
                found[address] = lines[2 * i], inside[0] if inside else ""
        return found


def calls_of(path: Path) -> Iterator[list[Call]]:
    """Those of each thread of a recording, in their order."""
    records = []
    for record in RECORD.iter_unpack(path.read_bytes()):
        if record[0] == 0:
            break
        records.append(record)
    names = Mappings(Path(f"{path}.maps")).names({r[0] for r in records})
    threads: dict[int, list[Call]] = defaultdict(list)
    for function, time, thread, _ in records:
        threads[thread].append(Call(time, *names.get(function, ("", ""))))
    yield from threads.values()


def count(flag: Path, process: str = "") -> Count:
    """What ran from the call of the last rank on."""
    threads = []  # (process, calls)
    begin = 0
    for path in sorted(flag.parent.glob(f"{flag.name}.*.*")):
        name = path.name.split(".")[1]
        if path.suffix == ".maps" or name not in PROCESSES:
            continue
        pushes = []
        for calls in calls_of(path):
            threads.append((name, calls))
            if name == "trace_push":
                pushes += [c.time for c in calls
                           if c.name.startswith("psc_pushpull")]
        if pushes:
            begin = max(begin, min(pushes))
    if begin == 0:
        raise peers.Failed("no push was recorded")
    found = Count(0, 0, 0, 0, Counter())
    functions = set()
    for name, calls in threads:
        ours = [(c.file, c.name) for c in calls
                if c.time >= begin and c.file.startswith(COUNTED)]
        functions |= set(ours)
        found.calls += len(ours)
        found.changes += sum(a[0] != b[0] for a, b in zip(ours, ours[1:]))
        if name == process:
            found.each.update(ours)
    found.functions = len(functions)
    found.files = len({file for file, _ in functions})
    return found


def record(folder: Path, traced: Path, case: str, process: str = "") -> Count:
    """One job with the recorder."""
    keys, size, optimizer, by_tcp = CASES[case]
    tools = peers.Systems(folder)
    systems = peers.Systems(traced)
    with tempfile.TemporaryDirectory(prefix="pskv-trace-") as name:
        flag = Path(name) / "flag"
        flag.write_bytes(bytes(4096))
        env = systems.with_options(
            Path(name), *(["network.same_host=off"] if by_tcp else []))
        peers.launch(
            [systems.tool("daemons", "pslaunch", "pslaunch"), "--private",
             "-n", "2", "-s", "1", "--",
             tools.tool("tests", "bench", "trace_push"), str(keys), str(size),
             *([optimizer] if optimizer else [])],
            {**env, "PSKV_TRACE_FLAG": str(flag),
             "LD_PRELOAD": tools.tool("tests", "bench", "trace_record.so"),
             "LD_LIBRARY_PATH": str(traced / "lib" / "client")})
        return count(flag, process)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--of", default="", choices=PROCESSES)
    options = parser.parse_args()
    folder = options.build.resolve()
    traced = build(folder)
    for case in CASES:
        found = record(folder, traced, case, options.of)
        for (file, name), calls in sorted(found.each.items()):
            print(f"{calls:5d} {file} {name}")
        print(f"{case}: functions {found.functions}, files {found.files}, "
              f"changes of file {found.changes}, calls {found.calls}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
