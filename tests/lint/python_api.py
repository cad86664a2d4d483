#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/python.md names every public function, method, property and class of
the package pskv, each with the signature that it has, and nothing else.

    python_api.py ROOT"""
import inspect
import re
import sys
from pathlib import Path

sys.dont_write_bytecode = True
root = Path(sys.argv[1])
sys.path.insert(0, str(root / "lib/client/python"))

import pskv  # noqa: E402


def signature(function):
    """As one writes it: without annotations and without self."""
    s = inspect.signature(function)
    return str(s.replace(
        parameters=[p.replace(annotation=p.empty)
                    for p in s.parameters.values() if p.name != "self"],
        return_annotation=s.empty))


def members(kind, prefix):
    """Public members that a class of ours defines."""
    for base in kind.__mro__:
        if not base.__module__.startswith("pskv"):
            continue
        for name, value in vars(base).items():
            if not name.startswith("_"):
                yield prefix + name + (
                    "" if isinstance(value, property) else signature(value))


def public():
    yield from members(pskv.KVStore, "")
    for name in pskv.__all__:
        value = getattr(pskv, name)
        if not inspect.isclass(value):
            yield name + signature(value)
        elif issubclass(value, Exception):
            yield name
        if value is not pskv.KVStore and inspect.isclass(value):
            yield from members(value, name + ".")


def main():
    there = set(public())
    named = re.findall(r"^\| `(.+?)` \|",
                       (root / "docs/python.md").read_text(), re.M)
    told = {n for n in named if not n.startswith("pskv.")}
    found = [f"docs/python.md lacks {n}" for n in sorted(there - told)]
    found += [f"pskv has no {n}" for n in sorted(told - there)]
    found += [f"docs/python.md names {n} twice" for n in sorted(told)
              if named.count(n) > 1]
    print("\n".join(found))
    print(f"{len(there)} names looked at, {len(found)} wrong")
    return 1 if found or len(there) < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
