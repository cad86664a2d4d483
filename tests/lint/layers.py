#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who may include what: reads the table of docs/architecture.md and every
#include, and names each line that breaks a rule.

    layers.py ROOT

It also plants a forbidden include of each kind and fails when it does not
find one.
"""
import re
import sys
from pathlib import Path

# Header folders that count as ours; everything else is a library or libc.
OURS = ("base", "proto", "kernel", "crypto", "core", "conf", "net", "driver",
        "client", "common")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')
ROW = re.compile(r"^\|\s*`([^`]+)`\s*\|([^|]*)\|([^|]*)\|")


def read_table(text):
    """Rows of the layer table: folder -> (allowed prefixes, forbidden)."""
    rules = {}
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("| folder ") and "may include" in line:
            break
    for line in lines:
        row = ROW.match(line)
        if not row:
            if line.startswith("|"):
                continue
            break
        words = [re.findall(r"`([^`]+)`", cell) for cell in row.groups()[1:]]
        rules[row.group(1)] = (words[0], words[1])
    return rules


def layer_of(path, rules):
    """The longest folder of the table that holds the file."""
    best = None
    for folder in rules:
        if path.startswith(folder + "/"):
            if best is None or len(folder) > len(best):
                best = folder
    return best


def check_file(path, text, rules):
    layer = layer_of(path, rules)
    if layer is None:
        return []
    allowed, forbidden = rules[layer]
    own = layer.split("/")[-1]
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        header = match.group(2)
        folder = header.split("/")[0]
        ours = match.group(1) == '"' and folder in OURS and "/" in header
        if ours:
            good = folder == own or any(
                header == word or header.startswith(word.rstrip("/") + "/")
                for word in allowed)
        else:
            good = not any(header == word or header.startswith(word)
                           for word in forbidden)
        if not good:
            found.append(f"{path}:{number}: {layer} must not include {header}")
        if ours and layer == "lib/core" and folder == "core":
            found += check_machine(path, number, header)
    return found


def check_machine(path, number, header):
    """Machines meet in messages only; parts never include machines."""
    machines = ("sched", "server", "agent")
    target = Path(header).parts[1]
    if target in machines and Path(path).parts[2] != target:
        return [f"{path}:{number}: must not include the machine {header}"]
    return []


def check_tree(root, rules):
    found = []
    for folder in ("lib", "proto", "daemons", "tests"):
        for path in sorted((root / folder).rglob("*.[ch]")):
            name = path.relative_to(root).as_posix()
            found += check_file(name, path.read_text(), rules)
    return found


def self_test(rules):
    planted = {
        "lib/core/planted.c": ["#include <uv.h>", '#include "net/conn.h"',
                               "#include <sys/socket.h>", "#include <time.h>",
                               '#include "core/agent/agent.h"'],
        "lib/base/planted.c": ['#include "core/base/machine.h"'],
        "lib/kernel/planted.c": ['#include "core/base/machine.h"'],
        "lib/client/planted.c": ["#include <uv.h>", '#include "base/alloc.h"'],
        "lib/net/planted.c": ['#include "core/base/machine.h"'],
        "proto/planted.c": ['#include "net/conn.h"'],
    }
    missed = []
    for path, lines in planted.items():
        for line in lines:
            if not check_file(path, line + "\n", rules):
                missed.append(f"not found: {line} in {path}")
    return missed


def main():
    root = Path(sys.argv[1])
    rules = read_table((root / "docs/architecture.md").read_text())
    if len(rules) < 8:
        print("docs/architecture.md: the layer table is missing or short")
        return 1
    found = check_tree(root, rules) + self_test(rules)
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
