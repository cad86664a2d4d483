#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a file of the tree is not built, run or licensed: a test that no
meson.build names, a C file that none lists, an example that no test runs, a
file without an SPDX line."""
import re
import subprocess
import sys
from pathlib import Path

root = Path(sys.argv[1])
try:
    names = subprocess.run(["git", "-C", root, "ls-files"], check=True,
                           capture_output=True, text=True).stdout.split("\n")
    names = [n for n in names if n and (root / n).is_file()]
except (OSError, subprocess.CalledProcessError):
    names = [p.relative_to(root).as_posix() for p in root.rglob("*")
             if p.is_file() and not p.parts[len(root.parts)].startswith(
                 (".git", "build"))]
builds = {n: (root / n).read_text() for n in names
          if n.endswith("meson.build")}
everything = "\n".join(builds.values())
tests = "\n".join((root / n).read_text() for n in names
                  if re.match(r"tests/integration/.*\.py$", n))
found = []

for name in names:
    path = Path(name)
    if name.endswith((".c", ".inc")) or re.match(r"test_.*\.py$", path.name):
        stem = path.stem.removeprefix("test_").removeprefix("fuzz_")
        # Tests are listed by the word behind test_, fuzzers behind fuzz_.
        if path.suffix == ".inc":
            text = "\n".join((root / n).read_text() for n in names
                             if n.endswith((".c", ".inc")))
            if path.name not in text and path.name not in everything:
                found.append(f"{name}: no C file includes it")
        elif (path.name not in everything
              and not re.search(rf"'{re.escape(stem)}'", everything)):
            found.append(f"{name}: no meson.build lists it")
    if name.startswith("docs/examples/") and path.suffix in (".c", ".py") \
            and not re.search(rf"\b{path.stem}\b", tests):
        found.append(f"{name}: no integration test runs it")
    if path.suffix in (".c", ".h", ".inc", ".py", ".sh", ".toml", ".def",
                       ".build", ".map", ".yaml", ".service", ".socket") \
            or name in ("dev", ".ci/run"):
        head = (root / name).read_text(errors="replace")[:400]
        if "SPDX-License-Identifier: Apache-2.0" not in head:
            found.append(f"{name}: no SPDX line at the top")

print("\n".join(found))
sys.exit(1 if found else 0)
