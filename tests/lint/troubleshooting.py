#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The texts of docs/troubleshooting.md are texts of the programs, and every
code, every limit that a refusal can name, and every advice about listening is
there.

    troubleshooting.py ROOT

A text of the page stands in the first column of a table; "..." in it is what a
format fills in. Each code of docs/troubleshooting-codes.txt is of an entry; new
ones come from

    python3 docs/explain.py number docs/troubleshooting.md \\
        docs/troubleshooting-codes.txt"""
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

import explain  # noqa: E402

LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# A conversion of printf, of Python's %, or a macro of inttypes.h between two
# parts of a literal.
FILLED = re.compile(r"%(?:-?[\d.*]*(?:hh|h|ll|l|z|j)?[diouxXeEfgGcsp])")
MACRO = re.compile(r'%?"\s*(?:PRI\w+|PS_\w+_FMT)\s*"')


def texts_of(source):
    """String literals of a file as the page would have them."""
    if source.suffix in (".c", ".h", ".def"):
        text = re.sub(r"/\*.*?\*/", "", source.read_text(), flags=re.S)
        text = MACRO.sub("...", text)
        text = re.sub(r'(?<!\\)"\s*"', "", text)
    else:
        text = re.sub(r'"\s*\n\s*"', "", source.read_text())
    for m in LITERAL.finditer(text):
        yield FILLED.sub("...", m[1]).replace('\\"', '"').replace("%%", "%")


def fragments(text):
    return [f for f in text.split("...") if f.strip(" ;:,.()'\"/")]


def main():
    root = Path(sys.argv[1])
    page = (root / "docs/troubleshooting.md").read_text()
    told = re.findall(r"^\| `(.+?)` \|", page, re.M)
    sources = [p for folder in ("lib", "daemons")
               for p in sorted((root / folder).rglob("*"))
               if p.suffix in (".c", ".h", ".def", ".py")]
    texts = [t for p in sources for t in texts_of(p)]
    found = []
    for text in told:
        parts = fragments(text)
        # All parts in one literal, in this order; a text that several
        # literals make is looked for part by part.
        pattern = re.compile(".*?".join(map(re.escape, parts)))
        if not any(pattern.search(t) for t in texts) and \
                not all(any(p in t for t in texts) for p in parts):
            found.append(f"no program says: {text}")
    wanted = re.findall(r'PS_ERR\(\w+, \d+, "(.*?)"\)',
                        (root / "lib/base/err.def").read_text())
    wanted += [t for t in texts_of(root / "daemons/common/advice.c")
               if "; " in t]
    for daemon in ("psched", "psserver", "psworker-agent"):
        text = (root / f"conf/{daemon}.yaml").read_text()
        section = []
        for line in text.splitlines():
            m = re.match(r"( *)#?(\w+):", line)
            if m:
                section[len(m[1]) // 2:] = [m[2]]
                path = ".".join(section)
                if re.match(r"limits\.(session|job|user|daemon)\.\w+", path):
                    wanted.append(path)
    for text in dict.fromkeys(wanted):
        if text not in told:
            found.append(f"docs/troubleshooting.md lacks: {text}")
    # An entry without a code is explained by its text only, until a code is
    # given; a code without its entry would explain nothing.
    texts_told = {t.strip() for t in told}
    for code, text in explain.read_codes(
            root / "docs/troubleshooting-codes.txt").items():
        if text is not None and text not in texts_told:
            found.append(f"{code} is of no entry: '{text}'; change the line of "
                         "docs/troubleshooting-codes.txt with the text, or "
                         "write 'gone' there")
    print("\n".join(found))
    print(f"{len(told)} texts looked at, {len(found)} wrong")
    return 1 if found or len(told) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
