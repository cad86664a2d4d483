#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the output of training programs as one picture, a curve for each run.

    curve.py TITLE X Y LABEL=FILE ... >picture.svg

Lines such as "step 100 loss 2.31" or "epoch 3 loss 0.4 accuracy 0.86" have
words with a number behind them; X and Y name two of these words. Both axes
begin at zero, or with "accuracy:0.8" that of Y at 0.8. The first run is the baseline: a wide line below the others, so
that curves that lie on it stay visible. FILE may be - for standard input."""
import html
import math
import re
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 576, 300, 48, 64, 30, 16
# The baseline, then the runs beside it; colours of docs/pictures/bench.
STYLES = (("#7f7f7f", 6, ""), ("#1f77b4", 1.5, ""),
          ("#ff7f0e", 1.5, ' stroke-dasharray="5 3"'),
          ("#2ca02c", 1.5, ' stroke-dasharray="1.5 2.5"'))


def ticks(high, low=0, count=8):
    """Round numbers from `low` to `high`, at most `count` and one."""
    step = next(step for power in range(-9, 12) for digit in (1, 2, 5)
                if (high - low) / (step := digit * 10.0 ** power) <= count)
    return [step * i for i in range(math.ceil(low / step - 1e-9),
                                    int(high / step + 1e-9) + 1)]


def read(name, x_name, y_name):
    """Points (x, y) of one run."""
    points = []
    with open(0 if name == "-" else name, encoding="utf-8") as lines:
        for line in lines:
            found = dict(re.findall(r"([a-z]+) ([0-9.]+)", line))
            if x_name in found and y_name in found:
                points.append((float(found[x_name]), float(found[y_name])))
    if len(points) < 2:
        sys.exit("curve.py: %s has no two lines with '%s' and '%s'" %
                 (name, x_name, y_name))
    return points


def main():
    if not 5 <= len(sys.argv) <= 4 + len(STYLES):
        sys.exit(__doc__)
    title, x_name, y_name = sys.argv[1:4]
    y_name, _, low = y_name.partition(":")
    y_low = float(low or 0)
    runs = []
    for word in sys.argv[4:]:
        label, _, name = word.rpartition("=")
        runs.append((label, read(name, x_name, y_name)))
    x_high = max(x for _, points in runs for x, _ in points)
    y_high = max(y for _, points in runs for _, y in points)
    y_high += (y_high - y_low) * 0.08

    def px(x):
        return LEFT + x / x_high * (WIDTH - LEFT - RIGHT)

    def py(y):
        return HEIGHT - BOTTOM - max(y - y_low, 0) / (y_high - y_low) * (
            HEIGHT - BOTTOM - TOP)

    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%dpt" '
           'height="%dpt" viewBox="0 0 %d %d" font-size="8" '
           'font-family="\'DejaVu Sans\', Verdana, Arial, sans-serif">' %
           (WIDTH, HEIGHT, WIDTH, HEIGHT),
           '<rect width="100%" height="100%" fill="white"/>',
           '<text x="%d" y="18" font-size="9">%s</text>' %
           (LEFT, html.escape(title))]
    grid = '<line x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f" stroke="#e6e6e6" ' \
           'stroke-width="0.8"/>'
    for y in ticks(y_high, y_low):
        out.append(grid % (LEFT, WIDTH - RIGHT, py(y), py(y)))
        out.append('<text x="%d" y="%.1f" text-anchor="end">%g</text>' %
                   (LEFT - 6, py(y) + 3, round(y, 6)))
    for x in ticks(x_high):
        out.append(grid % (px(x), px(x), TOP, HEIGHT - BOTTOM))
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%g</text>' %
                   (px(x), HEIGHT - BOTTOM + 12, round(x, 6)))
    out.append('<path fill="none" stroke="black" stroke-width="0.8" '
               'd="M %d %d V %d H %d"/>' % (LEFT, TOP, HEIGHT - BOTTOM,
                                            WIDTH - RIGHT))
    out.append('<text x="%d" y="%d" text-anchor="middle">%s</text>' %
               ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 26, x_name))
    out.append('<text x="14" y="%d" text-anchor="middle" transform="rotate('
               '-90 14 %d)">%s</text>' % ((TOP + HEIGHT - BOTTOM) / 2,
                                          (TOP + HEIGHT - BOTTOM) / 2,
                                          y_name))
    # One column of the legend for each run.
    column = (WIDTH - LEFT - RIGHT) / len(runs)
    for i, ((label, points), (color, width, dash)) in enumerate(
            zip(runs, STYLES)):
        look = 'fill="none" stroke="%s" stroke-width="%g"%s' % (color, width,
                                                                dash)
        at, low = LEFT + i * column, HEIGHT - 14
        out.append('<path %s d="M %.1f %d H %.1f"/>' % (look, at, low - 3,
                                                       at + 22))
        out.append('<text x="%.1f" y="%d">%s</text>' %
                   (at + 27, low, html.escape(label)))
        out.append('<polyline %s points="%s"/>' % (
            look, " ".join("%.1f,%.1f" % (px(x), py(y)) for x, y in points)))
    out.append("</svg>")
    print("\n".join(out))


if __name__ == "__main__":
    main()
