#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a citation of a protocol rule that docs/protocol.md does not have,
and on rules there that are not numbered in order, from 1 in each section.

    rules.py ROOT

A rule is an item of a list that begins with its number in bold, `- **R7**`. A
citation is "rule R7", or "rules R7, R8 and R9", in a source or a document."""
import re
import sys
from pathlib import Path

PAGE = "docs/protocol.md"
FOLDERS = ("lib", "daemons", "proto", "docs")
SUFFIXES = (".c", ".h", ".cu", ".def", ".md", ".in", ".py", ".scd", ".toml",
            ".yaml")
RULE = re.compile(r"^- \*\*([A-Z])(\d+)\*\* ", re.M)
# A comment may break the line inside of a citation.
GAP = r"(?:\s|[*#])+"
CITED = re.compile(rf"\b[Rr]ules?{GAP}([A-Z]\d+(?:(?:,|{GAP}(?:and|or|to))+{GAP}"
                   r"[A-Z]\d+)*)\b")


def rules_of(text):
    """Rules of the page, and complaints about their numbers."""
    rules, wrong, last = set(), [], {}
    for match in RULE.finditer(text):
        letter, number = match[1], int(match[2])
        rule = f"{letter}{match[2]}"
        line = text.count("\n", 0, match.start()) + 1
        if rule in rules:
            wrong.append(f"{PAGE}:{line}: a second rule {rule}")
        elif number != last.get(letter, 0) + 1:
            wrong.append(f"{PAGE}:{line}: rule {rule} follows "
                         f"{letter}{last.get(letter, 0)}")
        elif letter in last and letter != list(last)[-1]:
            wrong.append(f"{PAGE}:{line}: rule {rule} is outside of its section")
        rules.add(rule)
        last[letter] = number
    return rules, wrong


def citations(root):
    """(file, line, rule) of each citation."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if not path.is_file() or path.suffix not in SUFFIXES:
                continue
            text = path.read_text(errors="replace")
            name = path.relative_to(root).as_posix()
            for match in CITED.finditer(text):
                line = text.count("\n", 0, match.start()) + 1
                for rule in re.findall(r"[A-Z]\d+", match[1]):
                    yield name, line, rule


def found_in(root):
    """Complaints, number of rules, number of citations."""
    rules, wrong = rules_of((root / PAGE).read_text())
    if not rules:
        wrong.append(f"{PAGE}: no rule read")
    count = 0
    for name, line, rule in citations(root):
        count += 1
        if rule not in rules:
            wrong.append(f"{name}:{line}: {PAGE} has no rule {rule}")
    return wrong, len(rules), count


def main():
    wrong, rules, cited = found_in(Path(sys.argv[1]).resolve())
    for line in wrong:
        print(line)
    print(f"{rules} rules, {cited} citations, {len(wrong)} wrong")
    return 1 if wrong or cited == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
