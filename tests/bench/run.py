#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measure psc_pushpull beside Open MPI's Allreduce on this machine.

Every worker gives one float32 array and gets the sum of all of them. Prints
one table and writes all measurements, with least and most, to a JSON file.
Systems that are not built or installed are named and left out.

  agent    --servers 0: the node's agent answers by itself
  server   --servers 1: the sum goes on to a server and comes back
  array    the result lies in an array of the worker, as with an allreduce
  view     the result is read where the agent put it
"""

import argparse
import json
import math
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterable, Optional

SIZES = [4, 64 * 1024, 4 * 1024 * 1024, 400_000_000]
WORKERS = [1, 2, 4, 8]
LIMIT_S = 300  # Of one launch.

MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root",
          "--mca", "mpi_yield_when_idle", "1"]

# Columns of the table in order: title, key of the system, field of its line.
COLUMNS = [
    ("agent array", "agent", "array"),
    ("agent view", "agent", "view"),
    ("server array", "server", "array"),
    ("server view", "server", "view"),
]


def iterations(size: int) -> int:
    return max(7, min(500, 200_000_000 // size))


def size_name(size: int) -> str:
    for unit, scale in (("MB", 10**6), ("MiB", 2**20), ("KiB", 2**10)):
        if size % scale == 0:
            return f"{size // scale} {unit}"
    return f"{size} B"


def machine() -> str:
    """One line about the machine."""
    cpu = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    release = platform.freedesktop_os_release().get("PRETTY_NAME", "Linux")
    return (f"{cpu}, {os.cpu_count()} cores, {memory / 2**30:.0f} GiB, "
            f"Linux {platform.release()}, {release}")


def busy_seconds() -> tuple[float, float]:
    """Busy and total seconds of all processors since boot."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = [int(x) for x in fields]
    hz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / hz, sum(ticks) / hz


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


@dataclass
class Launch:
    """One start of one system: a line for each size, or the reason for none."""

    system: str
    workers: int
    command: list[str]
    lines: list[dict[str, Any]] = field(default_factory=list)
    failure: Optional[str] = None
    others: float = 0.0  # Share of the machine that other processes used.

    def run(self) -> None:
        busy, total = busy_seconds()
        own = children_seconds()
        process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace",
            start_new_session=True)
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
            if process.returncode != 0:
                self.failure = f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            self.failure = f"no end within {LIMIT_S} s"
            output = self.stop(process)
        busy_end, total_end = busy_seconds()
        spent = busy_end - busy - (children_seconds() - own)
        self.others = max(0.0, spent / max(0.01, total_end - total))
        self.read(output)

    @staticmethod
    def stop(process: "subprocess.Popen[str]") -> str:
        """Ends a launcher, which ends its processes."""
        process.send_signal(signal.SIGTERM)
        try:
            return process.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.communicate()[0]

    def read(self, output: str) -> None:
        rest = []
        for line in output.splitlines():
            brace = line.find('{"what"')
            if brace >= 0:
                self.lines.append(json.loads(line[brace:]))
            elif line.strip():
                rest.append(line)
        if any(line["wrong"] for line in self.lines):
            self.failure = "wrong sums"
        if self.failure is not None:
            print(f"run.py: {self.system}, {self.workers} workers: "
                  f"{self.failure}", *rest[-15:], sep="\n  ",
                  file=sys.stderr)


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.build = Path(options.build).resolve()
        self.launches: list[Launch] = []
        self.notes: list[str] = []
        self.mpi_version = ""
        self.systems = self.find_systems()

    def tool(self, *parts: str) -> Optional[str]:
        path = self.build.joinpath(*parts)
        return str(path) if os.access(path, os.X_OK) else None

    def find_systems(self) -> dict[str, list[str]]:
        """Command of each system; {n} stands for the number of workers."""
        found: dict[str, list[str]] = {}
        allreduce = self.tool("tests", "bench", "mpi_allreduce")
        pushpull = self.tool("tests", "bench", "bench_pushpull")
        launcher = self.tool("daemons", "pslaunch", "pslaunch")
        if shutil.which("mpirun") is None or allreduce is None:
            self.notes.append("Open MPI is not installed: no peer to compare")
        else:
            found["mpi"] = MPIRUN + ["-n", "{n}", allreduce]
            self.mpi_version = subprocess.run(
                ["mpirun", "--version"], capture_output=True, text=True,
                check=True).stdout.splitlines()[0]
        if pushpull is None or launcher is None:
            self.notes.append("bench_pushpull or pslaunch is not built: "
                              "no figures of ours")
        else:
            for system, servers in (("agent", "0"), ("server", "1")):
                found[system] = [launcher, "-n", "{n}", "-s", servers, "--",
                                 pushpull]
        return {name: command for name, command in found.items()
                if name in self.options.systems}

    def run(self) -> None:
        sizes = [f"{s}:{iterations(s)}" for s in self.options.sizes]
        for workers in self.options.workers:
            for system, command in self.systems.items():
                launch = Launch(
                    system, workers,
                    [part.replace("{n}", str(workers)) for part in command] +
                    sizes)
                print(f"{system}, {workers} workers ...", file=sys.stderr)
                launch.run()
                self.launches.append(launch)

    def median(self, system: str, what: str, size: int,
               workers: int) -> Optional[float]:
        for launch in self.launches:
            if launch.system != system or launch.workers != workers:
                continue
            for line in launch.lines:
                if line["what"] == what and line["bytes"] == size:
                    # A wrong sum has no speed.
                    return None if line["wrong"] else line["median_ms"]
        return None

    def rows(self) -> Iterable[list[str]]:
        yield (["size", "workers", "Open MPI"] +
               [cell for title, _, _ in COLUMNS for cell in (title, "ratio")])
        for size in self.options.sizes:
            for workers in self.options.workers:
                peer = self.median("mpi", "mpi_allreduce", size, workers)
                row = [size_name(size), str(workers), number(peer)]
                for _, system, what in COLUMNS:
                    ours = self.median(system, what, size, workers)
                    row.append(number(ours))
                    row.append("-" if ours is None or not peer
                               else number(ours / peer))
                yield row

    def print_table(self) -> None:
        print("Sum of one float32 array per worker: median ms of the slowest "
              "worker;\nratio: ours to Open MPI's Allreduce in shared memory, "
              "below 1 is faster.\n")
        rows = list(self.rows())
        widths = [max(len(row[i]) for row in rows)
                  for i in range(len(rows[0]))]
        for row in rows:
            print("  ".join(cell.rjust(width)
                            for cell, width in zip(row, widths)))
        print(f"\n{machine()}")
        if self.mpi_version:
            print(f"{self.mpi_version}: {' '.join(MPIRUN)}")
        others = max((x.others for x in self.launches), default=0.0)
        print(f"Other processes took at most {others:.0%} of the machine "
              "during a measurement.")
        for note in self.notes:
            print(note)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({
            "schema": 1,
            "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "machine": machine(),
            "mpi": self.mpi_version,
            "notes": self.notes,
            "launches": [vars(launch) for launch in self.launches],
        }, indent=1) + "\n")
        print(f"All figures: {path}")


def number(value: Optional[float]) -> str:
    """A number with three significant digits, never as a power of ten."""
    if value is None:
        return "-"
    if value <= 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build",
                        default=os.environ.get("PSKV_BUILD_DIR", "build"),
                        help="build directory (PSKV_BUILD_DIR, or build)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES,
                        metavar="BYTES")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS,
                        metavar="N")
    parser.add_argument("--systems", nargs="+",
                        choices=["mpi", "agent", "server"],
                        default=["mpi", "agent", "server"])
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help="default: bench.json in the build directory")
    options = parser.parse_args()
    bench = Bench(options)
    bench.run()
    bench.print_table()
    bench.write(options.json or bench.build / "bench.json")
    return 1 if any(launch.failure for launch in bench.launches) else 0


if __name__ == "__main__":
    sys.exit(main())
