#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Write the results of bench.py into figures.md and its pictures:

    record.py [--add] JSON-FILE DOCS-FOLDER

With --add, the rows of the file replace those of the page, or come to them, and
all others stay."""

import argparse
import json
import re
import sys
from pathlib import Path

import plot
from cases import ROWS
from table import Book, number

PEERS = ("Open MPI", "mpi-ring", "gloo", "NCCL", "cuBLAS")
PICTURES = "pictures/bench"


def head(book: Book) -> str:
    """The page up to its first row."""
    out = ["<!-- SPDX-License-Identifier: Apache-2.0 -->", "# Figures", "",
           f"Measured in one run of `./dev bench` on {book.when[:10]}: "
           f"{book.machine}. Written by `tests/bench/record.py`; what each "
           "row is, how it is measured and what is to be reached stands in "
           "[performance.md](performance.md).", "",
           "## Beside its peers", "",
           "Time of pskv to that of the peer in the same run; below 1, pskv "
           "is faster.", "", "| row | measurement | ratio |",
           "| --- | --- | --- |"]
    out += [f"| {g['row']} | {g['name']} | {number(g['value'])} |"
            for g in book.goals
            if g["name"].rpartition(" to ")[2].startswith(PEERS)]
    out += ["", "The rows have the median (least .. most), the share of the "
            "measured limit of memory or links, and the most memory of all "
            "processes."]
    return "\n".join(out) + "\n"


def rows_of(book: Book, is_added: bool) -> dict[int, str]:
    """Markdown of each row that has figures."""
    found = {}
    for row, (_, title, _) in ROWS.items():
        lines = book.lines_of(row, goals=False)
        if not lines:
            continue
        out = [f"## {row}. {title}", ""]
        if is_added:
            out += [f"Measured on {book.when[:10]}: {book.machine}.", ""]
        out += ["```", *[line[2:].rstrip() for line in lines], "```"]
        if book.drawn(row):
            out += ["", f"![row {row}]({PICTURES}/row-{row:02}.svg)"]
        found[row] = "\n".join(out) + "\n"
    return found


def parts_of(text: str) -> tuple[str, dict[int, str]]:
    """Head and rows of a page."""
    first, *rest = re.split(r"^(?=## \d+\. )", text, flags=re.M)
    rows = {int(part[3:part.index(".")]): part.rstrip("\n") + "\n"
            for part in rest}
    return first.rstrip("\n") + "\n", rows


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--add", action="store_true")
    parser.add_argument("file", type=Path)
    parser.add_argument("docs", type=Path)
    options = parser.parse_args()
    measured = json.loads(options.file.read_text())
    book = Book.of(measured)
    page = options.docs / "figures.md"
    rows = rows_of(book, options.add)
    titles = {row: ROWS[row][1] for row in rows}
    if not plot.draw(measured, titles, options.docs / PICTURES):
        print("matplotlib (python3-matplotlib) is not installed",
              file=sys.stderr)
        return 1
    first = head(book)
    if options.add:
        first, old = parts_of(page.read_text())
        rows = {**old, **rows}
    page.write_text("\n".join([first, *(rows[row] for row in sorted(rows))]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
