#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a wait of a test that is not in wait_for() of tests/support/trio.py:
pauses, polls and deadlines made by hand. Whoever reads of a test that failed or
hung then sees what it waited for.

    waits.py ROOT

Left out are the programs that tests start, which wait as a program does (they
have a `__main__`), texts of scripts, and the peers of PEERS."""
import ast
import sys

sys.dont_write_bytecode = True

import allow  # noqa: E402

# What is no wait for a result: turns of a peer that runs beside the test.
PEERS = {"tests/support/dialers.py", "tests/support/named.py",
         "tests/support/trio.py"}
WORDS = {
    "time.sleep": "a pause",
    "select.select": "a poll",
    "select.poll": "a poll",
}


def is_call(node, name):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name


def find_waits(tree):
    """(line, what) of each."""
    for node in ast.walk(tree):
        for name, what in WORDS.items():
            if is_call(node, name):
                yield node.lineno, f"{what} by hand, {name}()"
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and any(
                is_call(side, "time.monotonic")
                for side in (node.left, node.right)):
            yield node.lineno, "a deadline by hand"


def find(root):
    found = {}
    for folder in ("tests/integration", "tests/support"):
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            text = path.read_text()
            if name in PEERS or "\nif __name__ == " in text:
                continue
            for line, what in find_waits(ast.parse(text)):
                found[f"{name}: {what} {line}"] = (
                    f"{name}:{line}: {what}: use wait_for(), wait_ready() or "
                    "read_until() of tests/support/trio.py")
    return found


if __name__ == "__main__":
    sys.exit(allow.main("waits", find,
                        "every wait of a test says what it waits for"))
