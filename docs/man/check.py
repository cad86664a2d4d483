#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every option that the help names is in the man page, and the other way round; so
is every form of a verb of psctl in the synopsis.

    check.py PAGE.scd PROGRAM
"""
import re
import subprocess
import sys
from pathlib import Path

page = Path(sys.argv[1]).read_text()
words = ["help", "all"] if Path(sys.argv[2]).name == "psctl" else ["--help"]
text = subprocess.run([sys.argv[2], *words], check=True, timeout=60,
                      capture_output=True, text=True).stdout
LONG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
section = page.split("# OPTIONS", 1)[1].split("\n# ", 1)[0]
helped = set(LONG.findall(text))
told = set(LONG.findall(page))
heads = set(LONG.findall("\n".join(
    line for line in section.split("\n") if line.startswith("*-"))))
found = [f"{o}: not in {sys.argv[1]}" for o in sorted(helped - told)]
found += [f"{o}: not in the help" for o in sorted(heads - helped)]


def verb_forms():
    """"jobs cancel NAME" of each line of usage of each verb."""
    for verb in sorted(set(re.findall(r"^  ([a-z-]+) ", text, re.M))):
        usage = subprocess.run([sys.argv[2], "help", verb], check=True,
                               timeout=60, capture_output=True,
                               text=True).stdout.split("\n\n", 1)[0]
        yield from re.findall(r"psctl \[OPTION\]\.\.\. (.*)", usage)


if words[0] == "help":
    synopsis = page.split("# SYNOPSIS", 1)[1].split("\n# ", 1)[0]
    lines = [re.sub(r"[*_\\]|\+\+$", "", line).strip()
             for line in synopsis.strip().split("\n")]
    forms = list(verb_forms())
    found += [f"psctl {f}: not in the synopsis of {sys.argv[1]}" for f in forms
              if not any(line.endswith(" " + f) for line in lines)]
    found += [f"{line}: not in the help" for line in lines
              if not any(line.endswith(" " + f) for f in forms)]
if not helped or not heads:
    found.append("nothing to compare")
print("\n".join(found))
sys.exit(1 if found else 0)
