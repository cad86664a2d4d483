#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when `./dev test --all` does not install a program or module for which
a test is skipped, when `./dev test` installs a large package, and when the
packages have another version than meson.build."""
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
root = Path(sys.argv[1])
sys.path.insert(0, str(root / "tests" / "bench"))

import netns  # noqa: E402

# Packages that every Debian has.
ESSENTIAL = {"util-linux"}

LIST = "tests/support/packages.txt"
# Daemons, launchers, second compilers and frameworks, by how their packages begin.
LARGE = ("g++", "clang", "python3-torch", "openssh-server", "openmpi", "mpich",
         "slurm", "munge", "gridengine", "prometheus", "systemd")

lists, name = {}, ""
for line in (root / LIST).read_text().splitlines():
    if line and not line.startswith("#"):
        if ":" in line:
            name, line = line.split(":", 1)
        lists.setdefault(name, []).extend(line.split())


def packages(name):
    """Those of a list, and of the lists that it names."""
    return {p.split("/")[0] for word in lists[name] for p in (
        packages(word[1:]) if word[0] == "+" else [word])}


wanted = netns.TOOLS | netns.PACKET_TOOLS
for path in (root / "tests").rglob("*.py"):
    for program, package in re.findall(
            r'need_program\("([^"]+)"(?:, "([^"]+)")?\)', path.read_text()):
        wanted[program] = package or program
found = [f"{LIST}: all lacks {package}, which has {tool}"
         for tool, package in sorted(wanted.items())
         if package not in packages("all") | ESSENTIAL]
found += [f"{LIST}: test has {package}, which is for test --all"
          for package in sorted(packages("test"))
          if package.startswith(LARGE)]
for name in re.findall(r"\b(?:need|with_tests) ([a-z]+)$|with_venv ([a-z0-9-]+)",
                       (root / "dev").read_text(), re.M):
    if name[0] and name[0] not in lists or \
            name[1] and f"pip-{name[1]}" not in lists:
        found.append(f"{LIST}: no list '{''.join(name)}', which dev names")
version = re.search(r"^  version: '([^']+)'",
                    (root / "meson.build").read_text(), re.M).group(1)
for path, pattern in {
        "lib/client/psclient.h": r'^#define PSC_VERSION +"([^"]+)"',
        "lib/client/python/pskv/__init__.py": r'^__version__ = "([^"]+)"',
        "debian/changelog": r"\Apskv \(([^)]+)\)"}.items():
    stated = re.search(pattern, (root / path).read_text(), re.M)
    if stated is None or stated.group(1) != version:
        found.append(f"{path}: version is not {version}, that of meson.build")
print("\n".join(found))
sys.exit(1 if found else 0)
