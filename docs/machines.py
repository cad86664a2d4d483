#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs/machines.md: states of everything that has states, and what may follow
each, from the tables in the sources (lib/base/state_table.h).

    machines.py ROOT [--check]

With --check nothing is written, and the page must be current."""
import re
import sys
from os.path import commonprefix
from pathlib import Path

HEAD = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by docs/machines.py from the tables of states in the sources; the test
     `machines` fails when it is not current. -->
# States

Each kind of object that has states has one table of them in the file that owns
it, and one function that changes them. A change that is not in the table fails
an assertion in the daemons, and the connection to the agent in the client. The
test `states` finds assignments that go around the table.
"""
TABLE = re.compile(
    r"/\* (?P<text>[^*]*(?:\*(?!/)[^*]*)*) \*/\n"
    r"static const struct ps_state_table (?P<var>\w+) = \{(?P<body>.*?)\n\};",
    re.S)
MEMBER = re.compile(r"\.(\w+) = \"?(\w[\w ]*)\"?")
ROW = re.compile(r"(?:/\* (?P<text>[^*]*(?:\*(?!/)[^*]*)*) \*/\s*)?"
                 r"\[(?P<state>\w+)\]\s*=(?P<set>[^\[/]*)")
BIT = re.compile(r"BIT\((\w+)\)")


def prose(comment):
    """A comment without its stars."""
    return " ".join(re.sub(r"\n\s*\*", " ", comment or "").split())


def array(text, name):
    match = re.search(r"\b%s\[\w*\] = \{(.*?)\n\};" % name, text, re.S)
    if match is None:
        raise ValueError(f"no array {name}")
    return match.group(1)


def tables(root):
    """(name, file, text, rows) of each table; rows: (state, successors, text)."""
    for path in sorted((root / "lib").rglob("*.c")):
        text = path.read_text()
        count = len(re.findall(r"^static const struct ps_state_table", text, re.M))
        found = list(TABLE.finditer(text))
        if len(found) != count:
            raise ValueError(f"{path}: a table of states without a comment that "
                             "says whose states they are")
        for match in found:
            members = dict(MEMBER.findall(match["body"]))
            rows = [(row["state"], BIT.findall(row["set"]), prose(row["text"]))
                    for row in ROW.finditer(array(text, members["allowed"]))]
            missing = ({s for _, after, _ in rows for s in after} -
                       {state for state, _, _ in rows})
            if missing:
                raise ValueError(f"{path}: no successors of {sorted(missing)}")
            # The words behind the prefix that all constants share.
            cut = commonprefix([state for state, _, _ in rows]).rfind("_") + 1
            rows = [(state[cut:], [s[cut:] for s in after], note)
                    for state, after, note in rows]
            yield (members["name"], path.relative_to(root).as_posix(),
                   prose(match["text"]), rows)


def page(root):
    out = [HEAD]
    for name, path, text, rows in sorted(tables(root)):
        out.append(f"## {name[:1].upper()}{name[1:]}\n\n{text} (`{path}`)\n\n"
                   "| state | may become | |\n| --- | --- | --- |")
        out += [f"| {state} | {', '.join(after) or '–'} | {note} |"
                for state, after, note in rows]
        out.append("")
    return "\n".join(out)


def main():
    root = Path(sys.argv[1])
    made = root / "docs/machines.md"
    try:
        text = page(root)
    except ValueError as e:
        print(e)
        return 1
    if sys.argv[2:] != ["--check"]:
        made.write_text(text)
        return 0
    if not made.exists() or made.read_text() != text:
        print(f"{made} is not current: run python3 docs/machines.py .")
        return 1
    print(f"{text.count(chr(10) + '## ')} tables of states, all in the page")
    return 0


if __name__ == "__main__":
    sys.exit(main())
