#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what a training program has printed as a picture.

    pslaunch ... | curve.py TITLE X Y >picture.svg

Lines such as "step 100 loss 2.31" or "epoch 3 loss 0.4 accuracy 0.86" have
words with a number behind them; X and Y name two of these words."""
import re
import sys

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 360, 64, 48, 40, 20


def ticks(low, high, count=5):
    """Round numbers from `low` to `high`."""
    step = 10.0 ** len(str(int((high - low) / count))) / 10 \
        if high - low >= count else 0.001
    for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        if (high - low) / (step * factor) <= count + 1:
            step *= factor
            break
    first = int(low / step) + (low > int(low / step) * step)
    return [step * i for i in range(first, int(high / step) + 1)]


def main():
    title, x_name, y_name = sys.argv[1:]
    points = []
    for line in sys.stdin:
        found = dict(re.findall(r"([a-z]+) ([0-9.]+)", line))
        if x_name in found and y_name in found:
            points.append((float(found[x_name]), float(found[y_name])))
    if len(points) < 2:
        sys.exit("curve.py: no two lines with '%s' and '%s'" %
                 (x_name, y_name))
    xs, ys = zip(*points)
    low, high = min(ys), max(ys)
    low, high = low - (high - low) * .08, high + (high - low) * .08

    def px(x):
        return LEFT + (x - xs[0]) / (xs[-1] - xs[0]) * (WIDTH - LEFT - RIGHT)

    def py(y):
        return HEIGHT - BOTTOM - (y - low) / (high - low) * \
            (HEIGHT - BOTTOM - TOP)

    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" '
           'font-family="sans-serif" font-size="12">' % (WIDTH, HEIGHT),
           '<rect width="100%" height="100%" fill="white"/>',
           '<text x="%d" y="24" font-size="14">%s</text>' % (LEFT, title)]
    for y in ticks(low, high):
        out.append('<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>'
                   % (LEFT, WIDTH - RIGHT, py(y), py(y)))
        out.append('<text x="%d" y="%.1f" text-anchor="end">%g</text>' %
                   (LEFT - 8, py(y) + 4, round(y, 4)))
    for x in ticks(xs[0], xs[-1], min(8, len(points) - 1)):
        out.append('<text x="%.1f" y="%d" text-anchor="middle">%g</text>' %
                   (px(x), HEIGHT - BOTTOM + 18, x))
    out.append('<text x="%d" y="%d" text-anchor="middle">%s</text>' %
               ((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_name))
    out.append('<text x="16" y="%d" text-anchor="middle" transform="rotate('
               '-90 16 %d)">%s</text>' % (HEIGHT / 2, HEIGHT / 2, y_name))
    out.append('<polyline fill="none" stroke="#2060b0" stroke-width="2" '
               'points="%s"/>' % " ".join("%.1f,%.1f" % (px(x), py(y))
                                          for x, y in points))
    out.append("</svg>")
    print("\n".join(out))


if __name__ == "__main__":
    main()
