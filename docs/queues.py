#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/pictures/queues.svg: the queues between a worker's array and the memory
of a server, each with its limits, from the table of docs/flow-control.md.

    queues.py ROOT [--check]

With --check nothing is written, and the picture must be current. Every row of
the table has to have a place in the picture."""
import html
import re
import sys
from pathlib import Path

ROW = re.compile(r"^\| (\d+) \| ([^|]+) \|(?:[^|]+\|){4} ([^|]+) \|$", re.M)
# Colour of a limit by the effect when it is reached.
EFFECTS = (("ends", "#d62728"), ("drops", "#d62728"), ("retries", "#ff7f0e"),
           ("refuses", "#ff7f0e"), ("pauses", "#1f77b4"),
           ("window closes", "#1f77b4"), ("", "#7f7f7f"))
LEGEND = (("ends the session or connection, or drops", "#d62728"),
          ("refuses; the sender tries again", "#ff7f0e"),
          ("pauses the reader", "#1f77b4"), ("waits", "#7f7f7f"))
LINE, TITLE, PAD, GAP = 15, 20, 8, 26
LANES = {"worker": (12, 232), "agent": (292, 348), "server": (700, 352)}
WIDTH = 1064


class Box:
    """A queue: its lane, title and limits; the box above or beside it."""

    def __init__(self, lane, title, limits, y):
        self.x, self.width = LANES[lane]
        self.title, self.limits, self.y = title, limits, y
        self.height = TITLE + PAD // 2 + LINE * len(limits)

    def below(self, gap=GAP):
        return self.y + self.height + gap

    def middle(self):
        return self.y + self.height / 2


def text(x, y, words, more=""):
    return f'<text x="{x}" y="{y:.0f}"{more}>{html.escape(words)}</text>'


def draw_box(box, rows):
    out = [f'<rect x="{box.x}" y="{box.y}" width="{box.width}" '
           f'height="{box.height}" rx="4" fill="#f7f7f7" stroke="#999999"/>',
           text(box.x + PAD, box.y + 14, box.title, ' font-weight="bold"')]
    y = box.y + TITLE
    for number in box.limits:
        what, colour = rows[number]
        out.append(f'<circle cx="{box.x + PAD + 4}" cy="{y + 6}" r="3.5" '
                   f'fill="{colour}"/>')
        out.append(text(box.x + PAD + 28, y + 10, str(number),
                        ' text-anchor="end"'))
        out.append(text(box.x + PAD + 33, y + 10, what))
        y += LINE
    return out


def arrow(points, label="", at=(0, 0), anchor="start", dashed=False):
    path = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
    out = [f'<polyline points="{path}" fill="none" stroke="#333333" '
           f'marker-end="url(#head)"'
           f'{" stroke-dasharray=" + chr(34) + "4 3" + chr(34) if dashed else ""}'
           "/>"]
    if label:
        out.append(text(*at, label, f' fill="#333333" text-anchor="{anchor}"'))
    return out


def down(one, two, label=""):
    x = one.x + 24
    return arrow([(x, one.y + one.height), (x, two.y)], label,
                 (x + 8, one.y + one.height + 17))


def across(one, two, label, y):
    """A horizontal arrow with its label above it."""
    left = one.x < two.x
    ends = (one.x + one.width, two.x) if left else (one.x, two.x + two.width)
    return arrow([(ends[0], y), (ends[1], y)], label,
                 (min(ends) + 6, y - 5))


def read_rows(root):
    """Number -> (what is limited, colour)."""
    rows = {}
    for number, what, effect in ROW.findall(
            (root / "docs/flow-control.md").read_text()):
        colour = next(c for word, c in EFFECTS if word in effect.lower())
        rows[int(number)] = (what, colour)
    return rows


def draw(root):
    rows = read_rows(root)
    top = 40
    operations = Box("worker", "operations", (1,), top)
    ring = Box("agent", "ring in shared memory", (2,), top)
    send = Box("agent", "send queue of each server", (3, 4, 5, 6, 7),
               ring.below())
    link = Box("agent", "link", (8,), send.below())
    output = Box("agent", "connection, sender", (9, 10, 11, 12), link.below())
    reader = Box("server", "connection, receiver", (13, 14), output.y)
    memory = Box("server", "memory of payloads", (15, 16, 17), reader.below())
    rounds = Box("server", "open rounds, a slot for each agent", (18,),
                 memory.below())
    values = Box("server", "values", (19, 29, 31), rounds.below())
    replies = Box("server", "replies on link and connection", (20, 21, 22, 30),
                  values.below())
    results = Box("agent", "results in an arena", (), replies.y + 18)
    progress = Box("worker", "ring of ends and reports", (23,), results.y - 8)
    others = Box("worker", "beside this path", (24, 25, 26, 27, 28), 0)
    others.width = LANES["agent"][0] + LANES["agent"][1] - others.x
    others.y = replies.below()
    boxes = (operations, ring, send, link, output, reader, memory, rounds,
             values, replies, results, progress, others)
    missing = set(rows) ^ {n for box in boxes for n in box.limits}
    if missing:
        sys.exit(f"queues.py: limits {sorted(missing)} are in the table or in "
                 "the picture only")
    height = others.below(12)
    out = ['<svg xmlns="http://www.w3.org/2000/svg" '
           f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
           'font-size="10" '
           "font-family=\"'DejaVu Sans', Verdana, Arial, sans-serif\">",
           '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" '
           'markerWidth="8" markerHeight="8" orient="auto">'
           '<path d="M0,0 L8,4 L0,8 z" fill="#333333"/></marker></defs>',
           '<rect width="100%" height="100%" fill="white"/>']
    for lane, (x, width) in LANES.items():
        out.append(text(x + width / 2, 24, lane,
                        ' font-size="14" text-anchor="middle"'))
    for box in boxes:
        out += draw_box(box, rows)
    out += across(operations, ring, "push", ring.middle())
    out += down(ring, send, "partitions, when all local ranks have contributed")
    out += down(send, link, "frames")
    out += down(link, output)
    out += across(output, reader, "TCP", reader.middle())
    out += down(reader, memory)
    out += down(memory, rounds)
    out += down(rounds, values, "merge, when all slots have contributed")
    out += down(values, replies, "to every agent")
    out += across(replies, results, "TCP", results.middle())
    out += across(results, progress, "", results.middle())
    # Credit returns beside the lanes of agent and server.
    x = (send.x + send.width + memory.x) / 2
    out += arrow([(memory.x, memory.middle()), (x, memory.middle()),
                  (x, send.middle()), (send.x + send.width, send.middle())],
                 "credit", (x + 5, send.middle() + 4), dashed=True)
    x, y = LANES["server"][0], top + 10
    out.append(text(x, y, "effect of a limit that is reached",
                    ' font-weight="bold"'))
    for words, colour in LEGEND:
        y += LINE
        out.append(f'<circle cx="{x + 4}" cy="{y - 4}" r="3.5" '
                   f'fill="{colour}"/>')
        out.append(text(x + 14, y, words))
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    root = Path(sys.argv[1])
    path = root / "docs/pictures/queues.svg"
    made = draw(root)
    if "--check" not in sys.argv:
        path.write_text(made)
    elif not path.exists() or path.read_text() != made:
        sys.exit("docs/pictures/queues.svg is not current: "
                 "run docs/queues.py .")
    return 0


if __name__ == "__main__":
    sys.exit(main())
