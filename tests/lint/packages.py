#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when `./dev test` does not install a program without which
tests/integration/test_network.py is skipped, and when the packages have
another version than meson.build."""
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
root = Path(sys.argv[1])
sys.path.insert(0, str(root / "tests" / "bench"))

import netns  # noqa: E402

# Packages that every Debian has.
ESSENTIAL = {"util-linux"}

listed = re.search(r"^PACKAGES_TEST=\(([^)]*)\)", (root / "dev").read_text(),
                   re.M)
installed = set(listed.group(1).split()) | ESSENTIAL
found = [f"dev: PACKAGES_TEST lacks {package}, which has {tool}"
         for tool, package in (netns.TOOLS | netns.PACKET_TOOLS).items()
         if package not in installed]
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
