# SPDX-License-Identifier: Apache-2.0
"""What psctl prints of given rows is answers.txt, byte by byte, and the fields of
its objects in JSON are those of docs/json.md.

    answers.py PROGRAM JSON.md [--update]
"""
import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

GOLDEN = Path(__file__).parent / "answers.txt"


def output(*words):
    return subprocess.run([sys.argv[1], *words], check=True,
                          capture_output=True, timeout=60,
                          env={"PATH": os.environ["PATH"]}).stdout


def fields_of_page():
    """Lines as the program prints them, of all objects of the page."""
    page = Path(sys.argv[2]).read_text().split("## Objects", 1)[1]
    for section in re.split(r"^### ", page, flags=re.M)[1:]:
        name = re.match(r"`(\w+)`\n", section).group(1)
        for field, kind, meaning in re.findall(
                r"^\| `(\w+)` \| ([^|]+?) \| ([^|\n]*)\|$", section, re.M):
            optional = " optional" if meaning.startswith("optional") else ""
            yield f"{name} {field} {kind.replace('`', '')}{optional}"


def report(number, what, differences):
    print("not ok" if differences else "ok", number, "-", what)
    for line in differences:
        print("#", line)


def main():
    shown = output()
    if "--update" in sys.argv:
        GOLDEN.write_bytes(shown)
        return
    print("1..2")
    report(1, "the answers are those of answers.txt", list(difflib.unified_diff(
        GOLDEN.read_text(errors="replace").split("\n"),
        shown.decode(errors="replace").split("\n"), "answers.txt", "now",
        lineterm="")))
    fields = set(output("--fields").decode().split("\n")) - {""}
    objects = {line.split()[0] for line in fields}
    page = {line for line in fields_of_page() if line.split()[0] in objects}
    report(2, "docs/json.md has the fields of each object",
           [f"not in docs/json.md: {f}" for f in sorted(fields - page)] +
           [f"only in docs/json.md: {f}" for f in sorted(page - fields)])


main()
