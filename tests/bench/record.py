#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Write the results of bench.py into figures.md and its pictures:
record.py JSON-FILE DOCS-FOLDER"""

import json
import sys
from pathlib import Path

import plot
from cases import ROWS
from table import Book, number

PEERS = ("Open MPI", "mpi-ring", "gloo", "NCCL", "cuBLAS")


def page(book: Book, titles: dict[int, str], pictures: str) -> str:
    """Markdown of all rows that have figures."""
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
    for row, title in titles.items():
        lines = book.lines_of(row, goals=False)
        if not lines:
            continue
        out += ["", f"## {row}. {title}", "", "```",
                *[line[2:] for line in lines], "```"]
        if book.drawn(row):
            out += ["", f"![row {row}]({pictures}/row-{row:02}.svg)"]
    return "\n".join(out) + "\n"


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    source, docs = Path(sys.argv[1]), Path(sys.argv[2])
    measured = json.loads(source.read_text())
    book = Book.of(measured)
    titles = {row: title for row, (_, title, _) in ROWS.items()}
    if not plot.draw(measured, titles, docs / "pictures" / "bench"):
        print("matplotlib (python3-matplotlib) is not installed",
              file=sys.stderr)
        return 1
    (docs / "figures.md").write_text(page(book, titles, "pictures/bench"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
