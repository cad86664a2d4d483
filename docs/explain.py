#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The entries of docs/troubleshooting.md, with their stable codes from
docs/troubleshooting-codes.txt, for psctl explain and for pskv-errors(7).

    explain.py c PAGE CODES ERR.DEF OUTPUT     a table in C
    explain.py man PAGE CODES ERR.DEF OUTPUT   a manual page for scdoc
    explain.py number PAGE CODES               gives each new entry a code

A code belongs to an entry for ever: where its text changes, the line of the
list changes with it; a code whose entry is gone stays, with the word "gone".
Errors have the names of psclient.h in place of a code."""
import re
import sys
from pathlib import Path

GONE = "gone"
HEADING = re.compile(r"^## (.*)$")
ROW = re.compile(r"^\| `(.+?)` \| (.*) \|$")


class Entry:
    def __init__(self, section, text, cells):
        self.section = section
        self.text = text
        self.number = None
        self.cause, self.remedy = cells
        if re.fullmatch(r"-\d+", self.cause):
            self.number = int(self.cause)
            self.cause, self.remedy = self.remedy, ""
        self.code = ""


def plain(text):
    """Without the marks of Markdown."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[`*]", "", text).strip()


def read_page(path):
    section = ""
    entries = []
    for line in path.read_text().split("\n"):
        if m := HEADING.match(line):
            section = m[1]
        elif m := ROW.match(line):
            cells = [plain(c) for c in m[2].split(" | ")]
            if len(cells) == 1:
                cells.append("")
            entries.append(Entry(section, m[1].strip(), [c.strip("| ")
                                                 for c in cells]))
    return entries


def read_codes(path):
    """Code -> text, None for those that are gone."""
    codes = {}
    for line in path.read_text().split("\n"):
        if not line or line.startswith("#"):
            continue
        code, _, text = line.partition(" ")
        if not re.fullmatch(r"PSKV-\d{4}", code) or code in codes or not text:
            sys.exit(f"{path}: cannot read '{line}'")
        codes[code] = None if text == GONE else text
    return codes


def read_all(page, codes, errors):
    entries = read_page(page)
    code_of = {text: code for code, text in read_codes(codes).items()}
    name_of = {-int(number): name for name, number in
               re.findall(r"^PS_ERR\((\w+), (\d+),", errors.read_text(), re.M)}
    for e in entries:
        e.code = (f"PSC_E_{name_of[e.number]}" if e.number is not None
                  else code_of.get(e.text, ""))
    return entries


def write_c(entries, output):
    def literal(text):
        return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'

    rows = "".join(
        "    {" + ",\n     ".join(map(literal, (
            e.code, e.text, e.section, e.cause, e.remedy))) + "},\n"
        for e in entries)
    output.write_text(
        "/* Written by docs/explain.py. */\n#include \"common/explain.h\"\n\n"
        "const struct ps_explanation ps_explanations[] = {\n" + rows + "};\n"
        f"const size_t ps_explanation_count = {len(entries)};\n")


def write_man(entries, output):
    def escape(text):
        return re.sub(r"([^A-Za-z0-9\s,;:()])", r"\\\1", text)

    parts = ["pskv-errors(7)\n\n# NAME\n\npskv-errors - errors and lines of "
             "logs of pskv, with cause and remedy\n\n# DESCRIPTION\n\nThree "
             "dots stand for a name or a number. *psctl explain* _CODE_, or "
             "with a\nmessage in place of the code, prints one entry.\n"]
    section = None
    for e in entries:
        if e.section != section:
            section = e.section
            parts.append(f"# {section.upper()}\n")
        head = f"*{escape(e.code)}* " if e.code else ""
        cause = e.cause
        if cause and e.remedy and not cause.endswith((".", "?")):
            cause += "."
        about = " ".join(filter(None, [cause, e.remedy]))
        parts.append(f"{head}\"{escape(e.text)}\"\n\t{escape(about)}\n")
    parts.append("# SEE ALSO\n\n*psctl*(1), *psched*(8), *psclient*(3)\n")
    output.write_text("\n".join(parts))


def number(page, codes):
    known = read_codes(codes)
    texts = {e.text for e in read_page(page) if e.number is None}
    last = max((int(c[5:]) for c in known), default=0)
    lines = codes.read_text()
    for e in read_page(page):
        if e.number is None and e.text not in known.values():
            last += 1
            lines += f"PSKV-{last:04} {e.text}\n"
    for code, text in known.items():
        if text is not None and text not in texts:
            lines = lines.replace(f"{code} {text}\n", f"{code} {GONE}\n")
            print(f"{code} has no entry any more: {text}")
    codes.write_text(lines)


def main():
    verb, *paths = sys.argv[1:]
    paths = list(map(Path, paths))
    if verb == "number":
        number(*paths)
        return
    entries = read_all(*paths[:3])
    {"c": write_c, "man": write_man}[verb](entries, paths[3])


if __name__ == "__main__":
    main()
