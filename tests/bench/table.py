# SPDX-License-Identifier: Apache-2.0
"""Results of a run, as text and as JSON."""

import json
import math
import os
import platform
import time
from pathlib import Path
from typing import Any, Optional


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


def number(value: Optional[float]) -> str:
    """A number with three significant digits, never as a power of ten."""
    if value is None:
        return "-"
    if value <= 0:
        return "0"
    return f"{value:.{max(0, 2 - math.floor(math.log10(value)))}f}"


class Book:
    """All figures of a run, by row."""

    def __init__(self) -> None:
        self.figures: list[dict[str, Any]] = []
        self.goals: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.points: list[dict[str, Any]] = []
        self.when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self.machine = machine()

    @classmethod
    def of(cls, measured: dict[str, Any]) -> "Book":
        """The book that write() has written."""
        book = cls()
        book.figures = measured["figures"]
        book.goals = measured["goals"]
        book.notes = measured["notes"]
        book.points = measured["growth"]
        book.when = measured["when"]
        book.machine = measured["machine"]
        return book

    def drawn(self, row: int) -> bool:
        """True if a row has figures for a picture."""
        return (any(f["row"] == row and f["value"] > 0 for f in self.figures)
                or (row == 15 and bool(self.points)))

    def figure(self, row: int, name: str, unit: str,
               at: Optional[dict[str, Any]], limit: Optional[float] = None,
               peak: Optional[int] = None) -> None:
        """Adds a figure. `at` has "value", and "least" and "most" of several;
        `limit` is the maximum of the machine, in the same unit."""
        if at is not None:
            self.figures.append({"row": row, "name": name, "unit": unit,
                                 **at, "limit": limit, "peak_bytes": peak})

    def ratio(self, row: int, name: str, ours: Optional[dict[str, Any]],
              peer: Optional[dict[str, Any]], goal: Optional[float]) -> None:
        if ours is not None and peer is not None:
            self.goal(row, name, ours["value"] / peer["value"], goal)

    def goal(self, row: int, name: str, value: float, goal: Optional[float],
             at_least: bool = False) -> None:
        if goal == 0:
            return
        reached = None
        if goal is not None:
            reached = value >= goal if at_least else value <= goal
        self.goals.append({"row": row, "name": name, "value": value,
                           "goal": goal, "at_least": at_least,
                           "reached": reached})

    def note(self, row: int, text: str, failed: bool = False) -> None:
        self.notes.append({"row": row, "text": text, "failed": failed})

    def growth(self, title: str, axis: str, at: int,
               found: Optional[dict[str, Any]], size: int) -> None:
        if found is not None:
            self.points.append({"title": title, "axis": axis, "at": at,
                                "bytes": size, "ms": found["value"],
                                "least": found["least"],
                                "most": found["most"]})

    def failed(self) -> bool:
        return any(note["failed"] for note in self.notes)

    def lines_of(self, row: int, goals: bool = True) -> list[str]:
        """The row as text; without `goals`, figures and ratios alone."""
        lines = []
        for f in self.figures:
            if f["row"] != row:
                continue
            line = f"  {f['name']:<54} {number(f['value']):>8} {f['unit']}"
            if "least" in f:
                line += f"  ({number(f['least'])} .. {number(f['most'])})"
            if f["limit"]:
                share = (f["value"] / f["limit"] if f["unit"] in ("MB", "GB/s")
                         else f["limit"] / f["value"])
                line += f"  {share:.2f} of {number(f['limit'])}"
            if f["peak_bytes"]:
                line += f"  {f['peak_bytes'] / 1e6:.0f} MB"
            lines.append(line)
        for g in self.goals:
            if g["row"] == row:
                word = ("" if g["goal"] is None or not goals else
                        f"  goal {'>=' if g['at_least'] else '<='} "
                        f"{g['goal']:g}: "
                        f"{'reached' if g['reached'] else 'NOT reached'}")
                lines.append(f"  {g['name']:<54} {number(g['value']):>8}"
                             f"{word}")
        lines += [f"  note: {n['text']}" for n in self.notes
                  if n["row"] == row]
        if row == 15:
            for p in self.points:
                lines.append(
                    f"  {p['title']}: {p['at']}".ljust(56) +
                    f" {number(p['ms']):>8} ms"
                    f"  {p['ms'] * 1e6 / p['bytes']:.3g} ns a byte" +
                    (f", {p['ms'] * 1e3 / p['at']:.3g} us a key"
                     if p["axis"] == "keys" else ""))
        return lines

    def text(self, titles: dict[int, str]) -> str:
        out = [self.machine, "Median (least .. most); share of the measured limit "
               "of memory or links; most memory of all processes."]
        for row, title in titles.items():
            lines = self.lines_of(row)
            if lines:
                out += ["", f"{row}. {title}", *lines]
        return "\n".join(out) + "\n"

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({
            "schema": 2, "when": self.when,
            "machine": self.machine, "figures": self.figures,
            "goals": self.goals, "growth": self.points, "notes": self.notes,
        }, indent=1) + "\n")
