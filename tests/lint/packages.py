#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when `./dev test --all` does not install a program or module for which
a test is skipped, when `./dev test` installs a large package, when debian/control
needs a package that `./dev package` does not install, and when the packages have
another version than meson.build."""
import re
import subprocess
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


def ask_reader(command):
    """What the reader of the table answers, as a set of words."""
    done = subprocess.run(
        ["bash", "-euc", f". tests/support/packages.sh; {command}"], cwd=root,
        capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def packages(name):
    return ask_reader(f"packages_of {name}")


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
lists = ask_reader('echo "${!LISTS[@]}"')
for path in [root / "dev", *root.glob("tests/*/run.sh"),
             *root.glob("docs/**/*.sh"), root / "debian/package.sh"]:
    for name in re.findall(
            r"\b(?:need|with_tests) ([a-z]+)$|with_venv ([a-z0-9-]+)",
            path.read_text(), re.M):
        if name[0] and name[0] not in lists or \
                name[1] and f"pip-{name[1]}" not in lists:
            found.append(f"{path.relative_to(root)}: no list "
                         f"'{''.join(name)}' in {LIST}")
control = (root / "debian/control").read_text()
needs = re.search(r"^Build-Depends:(.*?)^\S", control, re.M | re.S)[1]
found += [f"{LIST}: deb lacks {package}, which debian/control needs"
          for package in re.findall(r"([a-z0-9][a-z0-9+.-]*)(?: \([^)]*\))?,",
                                    needs)
          if not package.startswith(("debhelper-compat", "dh-sequence-"))
          and package not in packages("deb")]
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
