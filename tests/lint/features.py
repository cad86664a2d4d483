#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when docs/features.md names a test, or a suite of tests of another
project, that does not exist, or has a row with neither a test nor the words
"not yet", or with both; and when README.md calls something "not yet" of which no
row says so."""
import re
import sys
from pathlib import Path

root = Path(sys.argv[1])
text = (root / "docs/features.md").read_text()
found = []
rows = 0
missing = []  # What rows say is not there yet.


def exists(file, name):
    path = root / "tests" / file
    if not path.is_file():
        return False
    source = path.read_text()
    if path.suffix == ".py":
        return re.search(rf"^def {name}\(", source, re.M) is not None
    return re.search(rf"\b{name}\(", source) is not None


for number, line in enumerate(text.split("\n"), 1):
    cells = [c.strip() for c in line.strip().strip("|").split("|")]
    if not line.startswith("|") or cells[0] == "what" or \
            set(cells[0]) == {"-"}:
        continue
    rows += 1
    where = f"docs/features.md:{number}"
    if len(cells) != 2:
        found.append(f"{where}: not two cells")
        continue
    tests = re.findall(r"`([\w/]+\.\w+)::(\w+)`", cells[1])
    if not tests and "not yet" not in cells[1] and "no test" not in cells[1]:
        found.append(f"{where}: no test and no \"not yet\"")
    if re.search(r"\bnot yet\b", cells[1]):
        missing.append(cells[0])
        if tests:
            found.append(f"{where}: \"not yet\", and a test")
    for file, name in tests:
        if not exists(file, name):
            found.append(f"{where}: no test {name} in tests/{file}")
    for suites in re.findall(r"`upstream/upstream\.py`(?: \(([^)]*)\))?",
                             cells[1]):
        for name in re.findall(r"`(\w+)`", suites) or ["?"]:
            if not (root / f"tests/upstream/suite_{name}.py").is_file():
                found.append(f"{where}: no suite {name} in tests/upstream")
    rest = re.sub(r"`[\w/]+\.\w+::\w+`", "", cells[1])
    if "::" in rest:
        found.append(f"{where}: cannot read '{rest}'")

claim = re.search(r"^Not yet: ([^.]*)\.", (root / "README.md").read_text(), re.M)
claims = re.split(r",\s+|\s+and\s+", claim[1]) if claim else []
for what in (" ".join(c.split()) for c in claims):
    if not any(what in row for row in missing):
        found.append(f"README.md: \"Not yet: {what}\", and no row of "
                     "docs/features.md says so")

if rows < 50:
    found.append(f"only {rows} rows read")
print("\n".join(found) or f"{rows} rows")
sys.exit(1 if found else 0)
