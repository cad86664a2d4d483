#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of what bench.py measured: plot.py JSON-FILE FOLDER"""

import json
import sys
from pathlib import Path
from typing import Any


def bars(plt: Any, figures: list[dict[str, Any]], title: str,
         path: Path) -> None:
    """One bar a figure, ours in another colour; a line at each limit."""
    shown = [f for f in figures if f["value"] > 0]
    if not shown:
        return
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.3 * len(shown)))
    for at, f in enumerate(shown):
        color = "tab:blue" if "pskv" in f["name"] else "tab:gray"
        axes.barh(at, f["value"], color=color)
        if "least" in f:
            axes.plot([f["least"], f["most"]], [at, at], color="black")
        if f["limit"]:
            axes.plot([f["limit"]] * 2, [at - 0.4, at + 0.4], color="red")
    axes.set_yticks(range(len(shown)), [f["name"] for f in shown], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(shown[0]["unit"])
    axes.set_title(title, fontsize=9)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def growth(plt: Any, points: list[dict[str, Any]], path: Path) -> None:
    titles = list(dict.fromkeys(p["title"] for p in points))
    if not titles:
        return
    from matplotlib.ticker import FuncFormatter, NullFormatter
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    figure, all_axes = plt.subplots(1, len(titles), squeeze=False,
                                    figsize=(4 * len(titles), 3))
    for axes, title in zip(all_axes[0], titles):
        mine = [p for p in points if p["title"] == title]
        by_key = mine[0]["axis"] == "keys"
        axes.plot([p["at"] for p in mine],
                  [p["ms"] * 1e3 / p["at"] if by_key
                   else p["ms"] * 1e6 / p["bytes"] for p in mine],
                  marker="o")
        axes.set_xscale("log", base=10 if by_key else 2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(plain)
        axes.yaxis.set_minor_formatter(
            NullFormatter() if by_key or mine[0]["axis"] == "bytes" else plain)
        if mine[0]["axis"] in ("workers", "servers"):
            axes.xaxis.set_major_formatter(plain)
        axes.set_xlabel(mine[0]["axis"])
        axes.set_ylabel("us a key" if by_key else "ns a byte")
        axes.set_title(title, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def draw(measured: dict[str, Any], titles: dict[int, str],
         folder: Path) -> bool:
    """False: matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "pskv"
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt
    folder.mkdir(parents=True, exist_ok=True)
    for row, title in titles.items():
        bars(plt, [f for f in measured["figures"] if f["row"] == row],
             f"{row}. {title}", folder / f"row-{row:02}.svg")
    growth(plt, measured["growth"], folder / "row-15.svg")
    return True


def main() -> int:
    from cases import ROWS
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    titles = {row: title for row, (_, title, _) in ROWS.items()}
    return 0 if draw(json.loads(Path(sys.argv[1]).read_text()), titles,
                     Path(sys.argv[2])) else 1


if __name__ == "__main__":
    sys.exit(main())
