#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every option that the help names is in the man page, and the other way round.

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
if not helped or not heads:
    found.append("nothing to compare")
print("\n".join(found))
sys.exit(1 if found else 0)
