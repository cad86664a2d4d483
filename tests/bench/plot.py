#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Pictures of the results of bench.py: plot.py JSON-FILE FOLDER"""

import json
import sys
from pathlib import Path
from typing import Any

# One colour for each system, in all pictures. A figure belongs to the first
# system whose word its name contains, else to pskv.
SYSTEMS = {
    "Open MPI": (("Open MPI", "mpi"), "tab:orange"),
    "gloo": (("gloo",), "tab:green"),
    "NVIDIA's": (("NCCL", "cuBLAS", "copy on"), "tab:olive"),
    "memcpy": (("memcpy",), "tab:gray"),
    "pskv": (("",), "tab:blue"),
}
STYLE = {
    "svg.hashsalt": "pskv", "svg.fonttype": "none", "font.size": 8,
    "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "0.9",
    "legend.frameon": False,
}
# Bars that differ by more than this factor are drawn on a log axis.
LOG_FROM = 30


def system(name: str) -> str:
    """System of a figure, from the part of its name after the workload."""
    own = name.rsplit(": ", 1)[-1]
    # A ratio or a hook of ours names the peer that it runs beside.
    if own.startswith("pskv"):
        return "pskv"
    return next(s for s, (words, _) in SYSTEMS.items()
                if any(word in own for word in words))


def grouped(figures: list[dict[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Figures of one workload together: (workload, [(label, figure)])."""
    groups: dict[str, list[Any]] = {}
    for f in figures:
        workload, _, label = f["name"].rpartition(": ")
        groups.setdefault(workload, []).append((label, f))
    return list(groups.items())


def legend(plt: Any, axes: Any, figures: list[dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    used = {system(f["name"]) for f in figures}
    marks: list[Any] = [Patch(color=color, label=name)
                        for name, (_, color) in SYSTEMS.items()
                        if name in used]
    if any("least" in f for f in figures):
        marks.append(Line2D([], [], color="black", linewidth=1,
                            label="least to most of all rounds"))
    if any(f["limit"] for f in figures):
        marks.append(Line2D([], [], color="tab:red", linewidth=2,
                            label="measured limit of memory or links"))
    axes.legend(handles=marks, loc="upper center", ncol=len(marks),
                bbox_to_anchor=(0.4, -40 / axes.bbox.height))


def bars(plt: Any, figures: list[dict[str, Any]], title: str,
         path: Path) -> None:
    """One bar a figure, in its system's colour, under its workload."""
    shown = [f for f in figures if f["value"] > 0]
    if not shown:
        return
    groups = grouped(shown)
    named = any(workload for workload, _ in groups)
    rows = len(shown) + (len(groups) if named else 0)
    figure, axes = plt.subplots(figsize=(8, 1 + 0.22 * rows))
    ticks, at = [], 0
    for workload, members in groups:
        if named:
            ticks.append((at, workload))
            at += 1
        for label, f in members:
            axes.barh(at, f["value"], height=0.75,
                      color=SYSTEMS[system(f["name"])][1])
            if "least" in f:
                axes.plot([f["least"], f["most"]], [at, at], color="black",
                          linewidth=1)
            if f["limit"]:
                axes.plot([f["limit"]] * 2, [at - 0.45, at + 0.45],
                          color="tab:red", linewidth=2)
            ticks.append((at, label))
            at += 1
    axes.set_yticks([t for t, _ in ticks], [text for _, text in ticks])
    for tick, (_, text) in zip(axes.get_yticklabels(), ticks):
        if named and any(text == workload for workload, _ in groups):
            tick.set_fontweight("bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.set_ylim(rows - 0.4, -0.6)
    values = [f["value"] for f in shown]
    if max(values) > LOG_FROM * min(values):
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.set_xlabel(shown[0]["unit"])
    axes.set_title(title, loc="left")
    legend(plt, axes, shown)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def growth(plt: Any, points: list[dict[str, Any]], title: str,
           path: Path) -> None:
    """Cost of one byte or key against their number, one panel for each."""
    titles = list(dict.fromkeys(p["title"] for p in points))
    if not titles:
        return
    from matplotlib.ticker import FuncFormatter, NullFormatter
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    figure, panels = plt.subplots((len(titles) + 1) // 2, 2, squeeze=False,
                                  figsize=(8, 2.8 * ((len(titles) + 1) // 2)))
    for axes in panels.flat[len(titles):]:
        axes.set_visible(False)
    for axes, name in zip(panels.flat, titles):
        mine = [p for p in points if p["title"] == name]
        by_key = mine[0]["axis"] == "keys"
        cost = [p["ms"] * 1e3 / p["at"] if by_key
                else p["ms"] * 1e6 / p["bytes"] for p in mine]
        axes.plot([p["at"] for p in mine], cost, marker="o",
                  color=SYSTEMS["pskv"][1])
        axes.set_xscale("log", base=10 if by_key else 2)
        if max(cost) > LOG_FROM / 3 * min(cost):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(plain)
            axes.yaxis.set_minor_formatter(NullFormatter())
        else:
            axes.set_ylim(0, 1.1 * max(cost))
        if mine[0]["axis"] in ("workers", "servers"):
            axes.xaxis.set_major_formatter(plain)
        axes.set_xlabel(mine[0]["axis"])
        axes.set_ylabel("us a key" if by_key else "ns a byte")
        axes.set_title(name, loc="left")
    figure.suptitle(title, x=0.02, ha="left", fontsize=9)
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
    matplotlib.rcParams.update(STYLE)
    from matplotlib import pyplot as plt
    folder.mkdir(parents=True, exist_ok=True)
    for row, title in titles.items():
        bars(plt, [f for f in measured["figures"] if f["row"] == row],
             f"{row}. {title}", folder / f"row-{row:02}.svg")
    growth(plt, measured["growth"], f"15. {titles.get(15, 'growth')}",
           folder / "row-15.svg")
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
