#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an assignment to a state outside of the file that has the table of
its transitions, unless allow/states.txt has it.

    states.py ROOT           the check
    states.py ROOT --list    what is found, as lines of the allow-list
    states.py ROOT --shrink  the check, with a list rid of what nothing needs

A table is an array of sets of PS_STATE_BIT (base/state_table.h). States are the
fields below, but for rows of replies. An assignment is fine in the file whose table has the value that
is assigned: there it sets the first state, and ps_state_change() does the
rest. A value that is no constant is fine in a file that has any table."""
import re
import sys

import allow
from c_text import bare

FOLDERS = ("lib", "proto", "daemons")
FIELDS = "state|phase|stage"
TABLE = re.compile(r"\bconst uint32_t \w+\[\w*\] = \{(.*?)\n\};", re.S)
ASSIGNMENT = re.compile(r"(?:\w|\])(?<!\brow)(?:->|\.)(%s)\s*=(?!=)([^;]*);" % FIELDS)
CONSTANT = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
# A state that another variable has.
COPY = re.compile(r"^(\(\w+\))?(\w+(->|\.))*(%s|to)$" % FIELDS)


def table_states(text):
    """States of the tables of a file."""
    found = set()
    for body in TABLE.findall(text):
        if "BIT(" in body:
            found |= set(re.findall(r"\[(\w+)\] =", body))
    return found


def found_in(root):
    """Entry -> sentence."""
    found = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".c", ".h"):
                continue
            name = path.relative_to(root).as_posix()
            text = bare(path.read_text())
            owned = table_states(text)
            for match in ASSIGNMENT.finditer(text):
                field, value = match.group(1), " ".join(match.group(2).split())
                constants = set(CONSTANT.findall(value))
                if not constants and not (COPY.match(value) and not owned):
                    continue
                line = text.count("\n", 0, match.start()) + 1
                for what in sorted(constants - owned or
                                   ({value} if not constants else ())):
                    entry = f"{name}: {field} {what}"
                    found.setdefault(entry, f"{name}:{line}: {field} {what}: "
                                     "change it through the function of the "
                                     "file that has the table of transitions")
    return found


if __name__ == "__main__":
    sys.exit(allow.main("states", found_in, "no new assignment to a state"))
