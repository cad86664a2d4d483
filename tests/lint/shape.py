#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on what is too large to be read at once, unless allow/shape.txt has it:
a header of more than 400 lines, an inner.h, which has the state of a machine, of
more than 1,000, a struct of more than 30 members or 3 booleans, a function of
more than 80 lines, 6 parameters or a cyclomatic complexity of 25.

    shape.py ROOT           the check
    shape.py ROOT --list    what is found, as lines of the allow-list
    shape.py ROOT --shrink  the check, with a list rid of what nothing needs

A member of a struct or union without a name counts as one of the struct around
it. Lines of a function are those from bracket to bracket. Its complexity is one,
plus one for each `if`, `for`, `while`, `case`, `&&`, `||` and `?`; a switch that
is a table, whose cases only return constants, counts as one."""
import re
import sys
from pathlib import Path

import allow
from c_text import closing, split, tokens

FOLDERS = ("lib", "proto", "daemons")
# What is measured -> (maximum, step of the allow-list, what to do).
RULES = {
    "lines": (400, 50, "divide the header by the modules that it declares"),
    "members": (30, 5, "put members that belong together into structs"),
    "booleans": (3, 1, "make one enum of states that exclude each other, or "
                       "kinds of what differs"),
    "length": (80, 10, "divide the function"),
    "parameters": (6, 1, "take a struct of options"),
    "complexity": (25, 5, "divide the function, or make a table of its cases"),
}
INNER_LINES_MAX = 1000  # Of an inner.h.


def declarators(run):
    """Number of names that a declaration without its braces declares."""
    return sum(1 for part in split(run, ",") if part)


def structs(some):
    """(name, line, members, booleans) of each struct and union that has a
    body."""
    found = []
    members_of(some, "", found)
    return found


def body_at(some, at):
    """Index of the brace of a struct or union that begins at `at`, or None."""
    if some[at][0] not in ("struct", "union"):
        return None
    for i in (at + 1, at + 2):
        if i < len(some) and some[i][0] == "{":
            return i
        if i < len(some) and not some[i][0][0].isalpha():
            return None
    return None


def members_of(some, prefix, found):
    """Adds the structs of `some` to `found`; outside of structs only."""
    i = 0
    while i < len(some):
        brace = body_at(some, i)
        if brace is None:
            i += 1
            continue
        end = closing(some, brace)
        name = some[i + 1][0] if brace == i + 2 else ""
        after = [t for t, _ in some[end + 1:end + 3]]
        if not name and after and after[0][0].isalpha():
            name = after[0]
        measure(some[brace + 1:end], prefix + (name or "-"), some[i][1], found)
        i = end + 1


def measure(body, name, line, found):
    """Members and booleans of a body; adds the struct, and those in it."""
    members = booleans = 0
    for run in split(body, ";"):
        if not run or run[0][0] == "_Static_assert":
            continue
        inner = next((i for i in range(len(run))
                      if body_at(run, i) is not None), None)
        if inner is not None:
            brace = body_at(run, inner)
            end = closing(run, brace)
            rest = run[end + 1:]
            own = [t for t, _ in rest if t[0].isalpha()]
            inside = measure(run[brace + 1:end],
                             f"{name}.{own[0] if own else '-'}",
                             run[inner][1], found if own else [])
            if own:
                members += declarators(rest)
            else:
                members += inside[0]
                booleans += inside[1]
            continue
        count = declarators(run)
        members += count
        words = {t for t, _ in run}
        if words & {"bool", "_Bool"} and not words & {"*", "("}:
            booleans += count
    found.append((name, line, members, booleans))
    return members, booleans


BRANCHES = {"if", "for", "while", "case", "?"}
# Tokens of a case that returns a constant.
CONSTANT = re.compile(r'[A-Za-z_]\w*|\d[\w.]*|""|\'\'|[-:;]')


def is_table(body):
    """True if a body of a switch is labels and returns of constants."""
    words = [t for t, _ in body]
    returns = [i for i, word in enumerate(words) if word == "return"]
    labels = sum(1 for word in words if word in ("case", "default"))
    others = {"if", "for", "while", "goto", "break", "switch", "do"}
    # A statement that is no return would add its semicolon.
    return (labels > 0 and len(returns) == words.count(";")
            and labels == words.count(":") and not others & set(words)
            and all(CONSTANT.fullmatch(word) for word in words))


def complexity(body):
    """Cyclomatic complexity of the tokens of a function's body."""
    count, i = 1, 0
    while i < len(body):
        token = body[i][0]
        if token == "switch":
            brace = closing(body, i + 1) + 1
            end = closing(body, brace)
            if is_table(body[brace + 1:end]):
                count += 1
                i = end
        elif token in BRANCHES:
            count += 1
        elif token in ("&", "|") and body[i - 1][0] == token:
            count += 1
        i += 1
    return count


def functions(some):
    """(name, line, lines or 0 of a prototype, parameters, complexity) of each
    function that is declared or defined."""
    i = start = 0
    while i < len(some):
        token = some[i][0]
        if token == "{":
            end = closing(some, i)
            if some[start][0] == "extern" and i == start + 2:
                start = i = i + 1  # extern "C".
                continue
            one = signature(some[start:i])
            if one is not None:
                yield (one[0], some[start][1],
                       some[min(end, len(some) - 1)][1] - some[i][1] + 1,
                       one[1], complexity(some[i + 1:end]))
                start = end + 1
            i = end + 1
            continue
        if token in (";", "}"):
            one = signature(some[start:i])
            if one is not None:
                yield one[0], some[start][1], 0, one[1], 0
            start = i + 1
        i += 1


def signature(run):
    """(name, number of parameters) if the tokens declare a function."""
    words = [t for t, _ in run]
    if not words or words[0] == "typedef" or "=" in words or "{" in words:
        return None
    for i, word in enumerate(words):
        if word != "(" or i < 2:
            continue
        name = words[i - 1]
        end = closing(run, i)
        rest = words[end + 1:end + 2]
        if not name[:1].isalpha() or name in ("__attribute__", "_Static_assert"):
            continue
        if rest and not (rest[0].isupper() or rest[0] == "__attribute__"):
            continue
        parts = [p for p in split(run[i + 1:end], ",") if p]
        parts = [p for p in parts if [t for t, _ in p][:1] not in
                 (["."], ["void"]) or len(p) > 1 and p[0][0] != "."]
        return name, len(parts)
    return None


def measured(root):
    """`file: thing what` -> (size, line) of all that has a rule."""
    found, defined, declared = {}, set(), {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".c", ".h", ".inc"):
                continue
            name = path.relative_to(root).as_posix()
            text = path.read_text()
            some = tokens(text)
            if path.suffix == ".h":
                found[f"{name}: lines"] = (text.count("\n"), 1)
            for thing, line, members, booleans in structs(some):
                found[f"{name}: struct {thing} members"] = (members, line)
                found[f"{name}: struct {thing} booleans"] = (booleans, line)
            for thing, line, lines, parameters, branches in functions(some):
                if lines == 0:
                    declared[thing] = (name, line, parameters)
                    continue
                defined.add(thing)
                found[f"{name}: {thing} length"] = (lines, line)
                found[f"{name}: {thing} parameters"] = (parameters, line)
                found[f"{name}: {thing} complexity"] = (branches, line)
    for thing, (name, line, parameters) in declared.items():
        if thing not in defined:
            found[f"{name}: {thing} parameters"] = (parameters, line)
    return found


def too_large(root):
    found = {}
    for entry, (size, line) in measured(root).items():
        file, _, thing = entry.partition(": ")
        what = thing.rpartition(" ")[2]
        most, step, advice = RULES[what]
        if what == "lines" and file.endswith("/inner.h"):
            most = INNER_LINES_MAX
        if size > most:
            found[entry] = (size, step, f"{file}:{line}: {thing} {size}, at "
                                        f"most {most}: {advice}")
    return found


def main():
    root = Path(sys.argv[1]).resolve()
    found = too_large(root)
    if "--list" in sys.argv:
        for entry in sorted(f"{entry} {allow.round_up(size, step)}"
                            for entry, (size, step, _) in found.items()):
            print(entry)
        return 0
    if "--shrink" in sys.argv:
        allow.shrink("shape", found)
    return allow.finish("shape", allow.check_sizes("shape", found),
                        "nothing is larger than before")


if __name__ == "__main__":
    sys.exit(main())
