#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/pictures/dashboard.svg: the main panels of
conf/grafana-dashboard.json with the figures of a real job. A Prometheus of its
own reads the metrics of all daemons by HTTP, once a second, and evaluates the
expressions of the dashboard.

    dashboard.py BUILD [FOLDER]     FOLDER: docs/pictures

The job has 4 workers, 2 agents and 2 servers. In the steps of its middle third,
rank 3 is slowed."""
import contextlib
import html
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

import cluster

PANELS = ("Training scalars", "Training steps", "Rounds",
          "Tensor bytes of servers", "Waiting", "Network of nodes",
          "Memory of servers", "CPU")
STEPS, SLOW_RANK, SLOW_MS = 1800, 3, 40
INTERVAL_S = 5  # Of rates; Grafana takes four times that of the scrapes.
BOX_W, BOX_H, LEFT, BOTTOM, TOP, RIGHT = 560, 206, 58, 52, 30, 12
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#d62728", "#17becf",
          "#8c564b", "#e377c2")
PATIENCE_S = 30


# ------------------------------------------------------------------ prometheus

def free_port():
    import socket  # pylint: disable=import-outside-toplevel
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(address, path, **words):
    url = f"http://{address}{path}?{urllib.parse.urlencode(words)}"
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        return answer.read()


@contextlib.contextmanager
def prometheus(targets, folder):
    """Address of a Prometheus that reads the targets."""
    program = shutil.which("prometheus")
    if program is None:
        sys.exit("dashboard.py: there is no prometheus")
    config = Path(folder) / "prometheus.yml"
    config.write_text(json.dumps({
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "pskv", "static_configs": [
            {"targets": targets}]}]}))
    address = f"127.0.0.1:{free_port()}"
    log = Path(folder) / "prometheus.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [program, f"--config.file={config}",
             f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={address}"], stdout=out, stderr=out)
    try:
        end = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError):
                get(address, "/-/ready")
                break
            if time.monotonic() > end or process.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def ask(address, expression, begin, end):
    """Series of an expression of the dashboard: (labels, points)."""
    text = expression.replace("$cluster", "default").replace(
        "$__rate_interval", f"{INTERVAL_S}s")
    answer = json.loads(get(address, "/api/v1/query_range", query=text,
                            start=begin, end=end, step=1))
    return sorted(((series["metric"], [(float(t) - begin, float(v))
                                       for t, v in series["values"]])
                   for series in answer["data"]["result"]),
                  key=lambda s: sorted(s[0].items()))


# ------------------------------------------------------------------------ draw

UNITS = {"bytes": ("B", 1024), "Bps": ("B/s", 1024), "ops": ("/s", 1000),
         "short": ("", 1000), "percentunit": ("", 1000), "s": ("s", 1000)}


def number(value, unit):
    text, base = UNITS.get(unit, ("", 1000))
    for prefix in ("", "k", "M", "G"):
        if abs(value) < base or prefix == "G":
            break
        value /= base
    mark = prefix + ("i" if prefix and base == 1024 else "")
    return f"{value:.4g} {mark.replace('k', 'K') if base == 1024 else mark}" \
        f"{text}".rstrip()


def ticks(low, high, base, count=5):
    """Round numbers from `low` to `high`."""
    steps = [d * 10.0 ** p for p in range(-6, 14) for d in (1, 2, 5)]
    if base == 1024:
        steps = [d * 1024.0 ** p for p in range(5)
                 for d in (1, 2, 5, 10, 20, 50, 100, 200, 500)]
    step = next(s for s in steps if (high - low) / s <= count)
    return [step * i for i in range(math.ceil(low / step - 1e-9),
                                    int(high / step + 1e-9) + 1)]


def name_of(text, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda m: labels.get(m[1], ""), text)


def draw_panel(panel, series, seconds, at):
    """One panel, its left upper corner at `at`."""
    defaults = panel["fieldConfig"]["defaults"]
    values = [v for _, points in series for _, v in points if math.isfinite(v)]
    low = min([0.0, *values] if defaults.get("min") == 0 else values)
    high = max([*values, low + 1e-6])
    high += (high - low) * .06
    right, bottom = BOX_W - RIGHT, BOX_H - BOTTOM

    def px(t):
        return LEFT + t / seconds * (right - LEFT)

    def py(v):
        return bottom - (v - low) / (high - low) * (bottom - TOP)

    out = [f'<g transform="translate({at[0]} {at[1]})">',
           f'<rect x="3" y="3" width="{BOX_W - 6}" height="{BOX_H - 6}" '
           'rx="3" fill="white" stroke="#d8d9da"/>',
           f'<text x="14" y="20" font-size="10.5" font-weight="bold">'
           f'{html.escape(panel["title"])}</text>']
    for v in ticks(low, high, UNITS.get(defaults["unit"], ("", 1000))[1]):
        out.append(f'<path d="M{LEFT} {py(v):.1f}H{right}" stroke="#e9e9e9"/>')
        out.append(f'<text x="{LEFT - 5}" y="{py(v) + 3:.1f}" '
                   f'text-anchor="end">{number(v, defaults["unit"])}</text>')
    for t in ticks(0, seconds, 1000, 6):
        out.append(f'<path d="M{px(t):.1f} {TOP}V{bottom}" '
                   'stroke="#e9e9e9"/>')
        out.append(f'<text x="{px(t):.1f}" y="{bottom + 12}" '
                   f'text-anchor="middle">{t:.0f} s</text>')
    x, y = LEFT, BOX_H - 24
    for i, (name, points) in enumerate(series):
        look = COLORS[i % len(COLORS)]
        line = " ".join(f"{px(t):.1f},{py(v):.1f}" for t, v in points
                        if math.isfinite(v))
        out.append(f'<polyline fill="none" stroke="{look}" '
                   f'stroke-width="1.3" points="{line}"/>')
        width = 24 + len(name) * 5.2
        if x + width > right:
            x, y = LEFT, y + 11
        out.append(f'<path d="M{x:.0f} {y - 3}h12" stroke="{look}" '
                   'stroke-width="2"/>')
        out.append(f'<text x="{x + 16:.0f}" y="{y}">{html.escape(name)}'
                   '</text>')
        x += width
    return [*out, "</g>"]


def draw(panels, seconds):
    rows = math.ceil(len(panels) / 2)
    w, h = 2 * BOX_W, rows * BOX_H
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" '
           f'height="{h}" viewBox="0 0 {w} {h}" font-size="8.5" '
           'font-family="\'DejaVu Sans\', Verdana, Arial, sans-serif" '
           'fill="#333">', '<rect width="100%" height="100%" fill="#f4f5f5"/>']
    for i, (panel, series) in enumerate(panels):
        out += draw_panel(panel, series, seconds,
                          (i % 2 * BOX_W, i // 2 * BOX_H))
    return "\n".join([*out, "</svg>"]) + "\n"


# ------------------------------------------------------------------------- run

def read_panels(address, board, begin, end):
    by_title = {p["title"]: p for p in board["panels"]}
    for title in PANELS:
        panel, series = by_title[title], []
        for target in panel["targets"]:
            for labels, points in ask(address, target["expr"], begin, end):
                series.append((name_of(target["legendFormat"], labels),
                               points))
        if not series:
            sys.exit(f"dashboard.py: {title} has no figures")
        yield panel, series


def record(build):
    board = json.loads((cluster.ROOT / "conf/grafana-dashboard.json")
                       .read_text())
    support = cluster.load_support(build)
    with tempfile.TemporaryDirectory() as folder, \
            cluster.cluster(support, servers=2, agents=2,
                            options=["metrics.listen=127.0.0.1:0"]) as t:
        pattern = r"metrics by HTTP address (\S+)"
        for daemon in t.daemons.values():
            daemon.await_log("metrics by HTTP address ")
        targets = [re.search(pattern, d.text()).group(1)
                   for d in t.daemons.values()]
        with prometheus(targets, folder) as address:
            begin = time.time()
            with cluster.job(support, t, "digits", 4, STEPS, SLOW_RANK,
                             SLOW_MS, STEPS // 3, 2 * STEPS // 3):
                end = time.time()
                return list(read_panels(address, board, begin, end)), \
                    end - begin


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder = Path(sys.argv[2]) if len(sys.argv) == 3 else cluster.HERE
    (folder / "dashboard.svg").write_text(draw(*record(sys.argv[1])))


if __name__ == "__main__":
    main()
