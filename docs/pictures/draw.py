#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/pictures/top.svg and accuracy.svg from real runs of the programs in
a build directory: jobs of 4 workers, 2 agents and 2 servers.

    draw.py BUILD [FOLDER]          FOLDER: docs/pictures

The picture of `psctl top` is what it writes to a terminal of its own; that of
the accuracy is the output of the demo, beside the same training in one process
without pskv."""
import fcntl
import html
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS, LINES = 112, 14
CLEAR = "\x1b[H\x1b[J"
CONTROL = re.compile(r"\x1b\[[?0-9;]*[a-zA-Z]")
LIMIT_S = 900


class Programs:
    def __init__(self, build):
        self.build = Path(build).resolve()
        self.pslaunch = self.build / "daemons/pslaunch/pslaunch"
        self.psctl = self.build / "daemons/psctl/psctl"
        self.demo = self.build / "docs/examples/fashion_mnist"
        for path in (self.pslaunch, self.psctl, self.demo):
            if not path.exists():
                sys.exit(f"draw.py: {path} is not built")

    def job(self, *command):
        return [str(word) for word in (
            self.pslaunch, "--private", "-n", 4, "-s", 2, "--nodes", 2,
            "--name", "fashion-mnist", "--", *command)]


# ------------------------------------------------------------------- terminal

def read_frames(master, process, seconds):
    """Frames that a program has drawn on its terminal until the time is up."""
    end = time.monotonic() + seconds
    seen = b""
    while time.monotonic() < end and process.poll() is None:
        ready, _, _ = select.select([master], [], [], 0.1)
        try:
            seen += os.read(master, 65536) if ready else b""
        except OSError:
            break
    frames = seen.decode(errors="replace").split(CLEAR)[1:-1]
    return [CONTROL.sub("", f).replace("\r", "").rstrip("\n").split("\n")
            for f in frames]


def capture_top(programs, endpoint, seconds):
    """The last whole frame of psctl top."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ,
                struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [str(programs.psctl), "-e", endpoint, "--watch=1s", "top"], stdin=slave,
        stdout=slave, stderr=slave, start_new_session=True,
        env={**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"})
    os.close(slave)
    frames = read_frames(master, process, seconds)
    os.write(master, b"q")
    process.wait(10)
    os.close(master)
    if not frames:
        sys.exit("draw.py: psctl top has shown nothing")
    return frames[-1]


def capture(programs, seconds=8):
    """psctl top while the demo trains."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "endpoint"
        job = subprocess.Popen(programs.job(
            "sh", "-c", f'[ "$RANK" != 0 ] || echo "$DMLC_PS_ROOT_URI:'
            f'$DMLC_PS_ROOT_PORT" >{place}; exec "$0" --epochs 10000',
            programs.demo), stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        try:
            end = time.monotonic() + LIMIT_S
            while not (place.exists() and place.read_text().strip()):
                if time.monotonic() > end or job.poll() is not None:
                    sys.exit("draw.py: the job does not start")
                time.sleep(0.1)
            return capture_top(programs, place.read_text().strip(), seconds)
        finally:
            job.terminate()
            job.wait(30)


def draw_terminal(lines, command):
    """Lines of a terminal as a picture, the command in front."""
    size, width, line = 12, 7.23, 16
    lines = [f"$ {command}", *lines]
    columns = max(map(len, lines))
    w, h = columns * width + 24, len(lines) * line + 24
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{w:.0f}" '
           f'height="{h:.0f}" viewBox="0 0 {w:.0f} {h:.0f}">',
           '<rect width="100%" height="100%" rx="6" fill="#1e2430"/>',
           f'<g font-family="\'DejaVu Sans Mono\', Menlo, Consolas, monospace" '
           f'font-size="{size}" fill="#d8dee9">']
    for i, text in enumerate(lines):
        look = ' fill="#88c0d0"' if i == 0 else ""
        if text.startswith("NAME "):
            look = ' font-weight="bold"'
        if text.startswith("  !"):
            look = ' fill="#ebcb8b"'
        # Each word has its column, whatever the font's width.
        for word in re.finditer(r"\S+(?: \S+)*", text):
            out.append(
                f'<text x="{12 + word.start() * width:.1f}" '
                f'y="{24 + i * line}" textLength="'
                f'{len(word[0]) * width:.1f}"{look}>{html.escape(word[0])}'
                '</text>')
    return "\n".join([*out, "</g>", "</svg>"]) + "\n"


# -------------------------------------------------------------------- accuracy

def run_to(file, command):
    with open(file, "w", encoding="utf-8") as out:
        subprocess.run([str(c) for c in command], stdout=out, check=True,
                       timeout=LIMIT_S)


def draw_accuracy(programs, epochs=10):
    with tempfile.TemporaryDirectory() as folder:
        job, alone = f"{folder}/job", f"{folder}/alone"
        run_to(job, programs.job(programs.demo, "--epochs", epochs))
        run_to(alone, [programs.demo, "--alone", "--workers", 4, "--epochs",
                       epochs])
        return subprocess.run(
            [sys.executable, str(HERE.parent / "examples/curve.py"),
             "Fashion-MNIST, accuracy of the test pictures", "epoch",
             "accuracy:0.8", f"one process, without pskv={alone}",
             f"4 workers, 2 agents, 2 servers={job}"],
            check=True, capture_output=True, text=True).stdout


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    programs = Programs(sys.argv[1])
    folder = Path(sys.argv[2]) if len(sys.argv) == 3 else HERE
    (folder / "accuracy.svg").write_text(draw_accuracy(programs))
    (folder / "top.svg").write_text(
        draw_terminal(capture(programs), "psctl top"))


if __name__ == "__main__":
    main()
