#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what replicas: 2 costs a job with Adam: bytes and time of a round,
and memory of a server, with copies beside without, in turns.

    replicas.py BUILD_DIR [RATE_MBIT [BYTES [ITERATIONS [TURNS]]]]

Hosts are those of net.py: two servers, and 2, 4 and 8 workers, on hosts of
their own with links of RATE_MBIT. Bytes are those that all hosts send on their
links over the whole job, with its first value and the filling of backups.
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import net


class Copies(net.Pskv):
    """Counts the bytes on the links, too."""

    def peaks(self) -> dict[str, int]:
        sent = 0
        for daemon in self.daemons:  # Each has a host of its own.
            table = Path(f"/proc/{daemon.pid}/net/dev").read_text()
            sent += int(table.split("eth0:")[1].split()[8])
        return {**super().peaks(), "sent": sent}


def measure(case: net.Case, replicas: int, build: Path) -> dict[str, Any]:
    os.environ.update(PSKV_REPLICAS=str(replicas), BENCH_OPTIMIZER="adam")
    with case.topology(build) as top, \
            tempfile.TemporaryDirectory(prefix="pskv-copies-") as folder:
        line = Copies(case, top, build, Path(folder), []).run()
    return {"ms": line["median_ms"], "sent": line["peak_bytes"]["sent"],
            "memory": line["peak_bytes"]["psserver"], "cpu": line["cpu_s"]}


def report(title: str, found: dict[int, list[dict[str, Any]]]) -> None:
    print(title)
    for what, unit, by in (("ms", "ms a round", 1), ("sent", "MB sent", 1e6),
                           ("memory", "MB of a server", 1e6),
                           ("cpu", "s of processors", 1)):
        one, two = (statistics.median(line[what] for line in found[replicas])
                    for replicas in (1, 2))
        print(f"  {two / one:.3f}  {one / by:.1f} -> {two / by:.1f} {unit}")
    sys.stdout.flush()


def main() -> int:
    numbers = [int(word) for word in sys.argv[2:]]
    rate, size, iterations, turns = (numbers + [200, 8_000_000, 10, 3][
        len(numbers):])[:4]
    for workers in (2, 4, 8):
        case = net.Case(f"{workers}x2", workers, 2, rate, size,
                        iterations=iterations)
        found: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
        for _ in range(turns):
            for replicas, lines in found.items():
                lines.append(measure(case, replicas,
                                     Path(sys.argv[1]).resolve()))
        report(case.title(), found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
