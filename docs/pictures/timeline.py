#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/pictures/timeline.svg: three steps in the timeline that psctl
trace has written of a job on three agents, of which rank 2 was slowed on
purpose.

    timeline.py BUILD [FOLDER]      FOLDER: docs/pictures
    timeline.py --draw TRACE.json   any timeline of psctl trace, to standard output

The rows are those that Perfetto has for the file: a member, and below it its
threads."""
import html
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import cluster

WIDTH, LEFT, RIGHT, ROW, TOP = 1120, 178, 8, 13, 50
STEPS = 3
COLORS = {"span": "#8fbc8f", "op": "#6c8ebf", "send": "#b565a7",
          "value": "#b565a7", "push": "#d6a02c", "gather": "#e8c577",
          "merge": "#d9714a", "step": "#c0504d", "pull": "#c9b48a",
          "barrier": "#888888", "phase": "#aaaaaa"}
SPANS = {"step": "#d5e3d0", "input": "#e57373", "forward": "#7cb36a",
         "backward": "#4f8f5b", "sums": "#a9cfc4"}
LEGEND = (("span", "spans of the program"), ("op", "operations"),
          ("send", "sent, arrived"), ("push", "at the server"),
          ("gather", "rounds"), ("step", "sums and steps"))


class Timeline:
    def __init__(self, data):
        self.slices, self.flows = [], defaultdict(dict)
        self.processes, self.threads = {}, {}
        for e in data["traceEvents"]:
            if e["ph"] == "X":
                self.slices.append(e)
            elif e["ph"] in "stf":
                self.flows[e["id"]][e["ph"]] = e
            elif e["name"] == "process_name":
                self.processes[e["pid"]] = e["args"]["name"]
            elif e["name"] == "thread_name":
                self.threads[e["pid"], e["tid"]] = e["args"]["name"]

    def last_steps(self, count):
        """Begin and end of the last steps of rank 0 but one."""
        steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in self.slices
                       if e["cat"] == "span" and e["name"] == "step" and
                       e["args"]["rank"] == 0)
        if len(steps) < count + 2:
            sys.exit("timeline.py: the trace has too few steps")
        return steps[-count - 1][0], steps[-2][1]

    def between(self, begin, end):
        return [e for e in self.slices
                if e["ts"] < end and e["ts"] + e["dur"] > begin
                and e["cat"] not in ("barrier", "phase")]


def rows_of(t, slices):
    """Height and place of each row that has slices: (texts, rows, height)."""
    used = sorted({(e["pid"], e["tid"]) for e in slices})
    texts, rows, y, process = [], {}, TOP, None
    for pid, tid in used:
        if pid != process:
            y += 7 if process is not None else 0
            texts.append((4, y + 9, t.processes[pid], True))
            y += ROW
            process, thread = pid, None
        if t.threads[pid, tid] != thread:
            thread = t.threads[pid, tid]
            texts.append((14, y + 9.5, thread, False))
        rows[pid, tid] = y
        y += ROW
    return texts, rows, y + 34


def color(e):
    return SPANS.get(e["name"], COLORS["span"]) if e["cat"] == "span" \
        else COLORS[e["cat"]]


def draw(data, caption, steps=STEPS):
    t = Timeline(data)
    begin, end = t.last_steps(steps)
    slices = t.between(begin, end)
    texts, rows, height = rows_of(t, slices)

    def px(ts):
        return LEFT + (min(max(ts, begin), end) - begin) / (end - begin) * (
            WIDTH - LEFT - RIGHT)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" '
           f'height="{height:.0f}" viewBox="0 0 {WIDTH} {height:.0f}" '
           'font-family="\'DejaVu Sans\', Verdana, Arial, sans-serif" '
           'font-size="8.5">',
           '<defs><marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" '
           'markerWidth="5" markerHeight="5" orient="auto">'
           '<path d="M0 0L6 3L0 6z" fill="#444"/></marker></defs>',
           '<rect width="100%" height="100%" fill="white"/>']
    # Time, in milliseconds.
    length = (end - begin) / 1000
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100) if length / s <= 16)
    for i in range(int(length / step) + 1):
        x = px(begin + i * step * 1000)
        out.append(f'<path d="M{x:.1f} {TOP - 8}V{height - 30:.0f}" '
                   'stroke="#e3e3e3" stroke-width=".7"/>')
        out.append(f'<text x="{x:.1f}" y="{TOP - 11}" fill="#666" '
                   f'text-anchor="middle">{i * step} ms</text>')
    for x, y, text, is_head in texts:
        look = ' font-weight="bold" font-size="9.5"' if is_head else \
            ' fill="#333"'
        out.append(f'<text x="{x}" y="{y:.1f}"{look}>{html.escape(text)}'
                   '</text>')
    for e in sorted(slices, key=lambda e: e["ts"]):
        y = rows[e["pid"], e["tid"]]
        x = px(e["ts"])
        w = max(px(e["ts"] + e["dur"]) - x, 1.2)
        out.append(f'<rect x="{x:.1f}" y="{y + 1}" width="{w:.1f}" '
                   f'height="{ROW - 2}" fill="{color(e)}"/>')
        if len(e["name"]) * 5.1 + 4 < w:
            out.append(f'<text x="{x + 3:.1f}" y="{y + 9.5}">'
                       f'{html.escape(e["name"])}</text>')
    out += arrows(t, rows, px, begin, end)
    out += legend(caption, height)
    return "\n".join([*out, "</svg>"]) + "\n"


def arrows(t, rows, px, begin, end):
    out = ['<g fill="none" stroke="#444" stroke-width=".6" opacity=".55">']
    for flow in t.flows.values():
        ends = [flow[p] for p in "stf" if p in flow]
        if not all(begin <= e["ts"] <= end and (e["pid"], e["tid"]) in rows
                   for e in ends):
            continue
        places = [(px(e["ts"]), rows[e["pid"], e["tid"]] + ROW / 2)
                  for e in ends]
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
        for (ax, ay), (bx, by) in zip(places, places[1:]):
            path += (f"C{ax + 12:.1f} {ay:.1f} {bx - 12:.1f} {by:.1f} "
                     f"{bx:.1f} {by:.1f}")
        out.append(f'<path d="{path}" marker-end="url(#tip)"/>')
    return [*out, "</g>"]


def legend(caption, height):
    x, out = 4, []
    for kind, text in LEGEND:
        out.append(f'<rect x="{x}" y="8" width="10" height="10" '
                   f'fill="{COLORS[kind]}"/>')
        out.append(f'<text x="{x + 14}" y="16.5">{text}</text>')
        x += 30 + len(text) * 5
    out.append(f'<path d="M{x} 13H{x + 22}" stroke="#444" stroke-width=".8" '
               'marker-end="url(#tip)"/>')
    out.append(f'<text x="{x + 27}" y="16.5">a contribution, by way of its '
               'server, to the value of its round</text>')
    out.append(f'<text x="4" y="{height - 10:.0f}" font-size="9.5">'
               f'{html.escape(caption)}</text>')
    return out


def record(build):
    """The timeline of a job of three ranks, and the sentence of psctl trace on
    its slowest rank."""
    support = cluster.load_support(build)
    with tempfile.TemporaryDirectory() as folder, \
            cluster.cluster(support, servers=2, agents=3) as t, \
            cluster.job(support, t, "digits", 3, 60, 2, 20):
        path = Path(folder) / "trace.json"
        code, out, err = t.psctl("trace", "digits", "-o", str(path))
        if code != 0 or "is the slowest" not in out:
            sys.exit(f"timeline.py: {out}{err}")
        return json.loads(path.read_text()), out.splitlines()[-1]


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--draw":
        data = json.loads(Path(sys.argv[2]).read_text())
        sys.stdout.write(draw(data, ""))
        return
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = Path(sys.argv[2]) if len(sys.argv) == 3 else cluster.HERE
    (folder / "timeline.svg").write_text(draw(*record(sys.argv[1])))


if __name__ == "__main__":
    main()
