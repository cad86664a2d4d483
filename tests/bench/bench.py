#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measure all rows of docs/figures.md, pskv beside other systems, in one run on
one machine."""

import argparse
import json
import os
import sys
from pathlib import Path

import net
import peers
import plot
from cases import QUICK, ROWS, Bench, Size
from table import Book


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev bench", description=__doc__,
        epilog="Rows: " + ", ".join(f"{row} {name}" for row, (name, _, _)
                                    in ROWS.items()))
    parser.add_argument("--build", type=Path,
                        default=os.environ.get("PSKV_BUILD_DIR", "build"),
                        help="build directory (PSKV_BUILD_DIR, or build)")
    parser.add_argument("--quick", action="store_true",
                        help="a tenth of the bytes, and no growth: a look, "
                        "not a figure to quote")
    parser.add_argument("--row", type=int, action="append",
                        choices=list(ROWS), help="may be repeated")
    parser.add_argument("--only", action="append", metavar="NAME",
                        choices=[name for name, _, _ in ROWS.values()],
                        help="a row by its name; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE",
                        help="default: bench.json in the build directory")
    parser.add_argument("--plots", type=Path, metavar="FOLDER",
                        help="default: bench in the build directory")
    options = parser.parse_args()
    build = Path(options.build).resolve()
    wanted = set(options.row or []) | {
        row for row, (name, _, _) in ROWS.items()
        if name in (options.only or [])} or set(ROWS)
    for peer, why in (("gloo", net.missing("gloo", build)),
                      ("Open MPI", net.missing("mpi", build))):
        if why is not None:
            print(f"{peer} is not measured: {why}", flush=True)
    book = Book()
    bench = Bench(peers.Systems(build), QUICK if options.quick else Size(),
                  book, {})
    titles = {row: title for row, (_, title, _) in ROWS.items()
              if row in wanted}
    path = options.json or build / "bench.json"
    for row in titles:
        try:
            ROWS[row][2](bench)
        except peers.Skipped as e:
            book.note(row, f"skipped: {e}")
        except (OSError, peers.Failed) as e:
            book.note(row, f"failed: {e}", failed=True)
        book.write(path)  # Complete rows stay if a later one is stopped.
    print(book.text(titles), end="")
    folder = options.plots or build / "bench"
    if not plot.draw(json.loads(path.read_text()), titles, folder):
        print("No pictures: matplotlib (python3-matplotlib) is not installed")
    print(f"All figures: {path}; pictures: {folder}")
    return 1 if book.failed() else 0


if __name__ == "__main__":
    sys.exit(main())
