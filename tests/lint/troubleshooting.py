#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The texts of docs/troubleshooting.md are texts of the programs, and every
code, every limit that a refusal can name, every advice about listening, every
warning and error of a log, and every line that psctl status marks or psctl
doctor finds is there. So is every event of psctl events.

    troubleshooting.py ROOT

A text of the page stands in the first column of a table; "..." in it is what a
format fills in. Each code of docs/troubleshooting-codes.txt is of an entry; new
ones come from

    python3 docs/explain.py number docs/troubleshooting.md \\
        docs/troubleshooting-codes.txt"""
import re
import sys
import tomllib
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

import explain  # noqa: E402

LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# A conversion of printf, of Python's %, or a macro of inttypes.h between two
# parts of a literal.
FILLED = re.compile(r"%(?:-?[\d.*]*(?:hh|h|ll|l|z|j)?[diouxXeEfgGcsp])")
MACRO = re.compile(r'%?"\s*(?:PRI\w+|PS_\w+_FMT)\s*"')


def texts_of(source):
    """String literals of a file as the page would have them."""
    if source.suffix in (".c", ".h", ".def"):
        text = re.sub(r"/\*.*?\*/", "", source.read_text(), flags=re.S)
        text = MACRO.sub("...", text)
        text = re.sub(r'(?<!\\)"\s*"', "", text)
    else:
        text = re.sub(r'"\s*\n\s*"', "", source.read_text())
    for m in LITERAL.finditer(text):
        yield FILLED.sub("...", m[1]).replace('\\"', '"').replace("%%", "%")


def fragments(text):
    return [f for f in text.split("...") if f.strip(" ;:,.()'\"/")]


WARNING = re.compile(r'PS_LOG_(?:WARNING|ERROR),\s*"((?:[^"\\]|\\.)*)"')
# Letters of a text of its own; one with less is another text behind a name.
OWN_LEAST = 10


def without_comments(path):
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
    text = MACRO.sub("...", text)
    return re.sub(r'(?<!\\)"\s*"', "", text)


def filled(text):
    """As a program prints it."""
    return FILLED.sub("...", text).replace('\\"', '"').replace("%%", "%") \
        .replace("...", "x17")


def lines_of_logs(text):
    """Warnings and errors whose text stands in the call."""
    return [filled(m[1]) for m in WARNING.finditer(text)]


def lines_of_psctl(text):
    """Texts of health.c and doctor.c: what is added behind each begin_...()."""
    parts = re.split(r"= (?:begin_(?:problem|finding|node)\()", text)
    for part in parts[1:]:
        line = ""
        for m in re.finditer(
                r"(?:ps_str_add\w*|add_\w+|describe_\w+)"
                r'\(((?:[^;"]|"(?:[^"\\]|\\.)*")*?)\);',
                part.split("\n}\n")[0], re.S):
            literal = LITERAL.search(m[1])
            line += filled(literal[1]) if literal else "x17"
        yield line
    # The action of an add_finding(), and its text.
    for m in re.finditer(r"\badd_finding\(d, \w+,\s*" + LITERAL.pattern +
                         r",\s*" + LITERAL.pattern, text):
        yield filled(m[2])


def explains(entry, line):
    """True if `psctl explain` finds the entry by the line."""
    at = 0
    for part in entry.split("..."):
        found_at = line.find(part, at)
        if found_at < 0:
            return False
        at = found_at + len(part)
    return len(entry.replace("...", "")) >= OWN_LEAST


def unexplained(root, told):
    lines = [line for folder in ("lib", "daemons")
             for p in sorted((root / folder).rglob("*.c"))
             for line in lines_of_logs(without_comments(p))]
    for name in ("status", "doctor"):
        lines += lines_of_psctl(
            without_comments(root / f"daemons/psctl/{name}.c"))
    assert len(lines) > 90, "the calls have another form"
    for line in dict.fromkeys(lines):
        if len(re.sub(r"x17|\W", "", line)) >= OWN_LEAST and \
                not any(explains(t, line) for t in told):
            yield "docs/troubleshooting.md does not explain: " + \
                line.replace("x17", "...")


# Where the scheduler records an event; a subject, if the call does not name it.
EVENTS = ((r'ps_sched_event_own\([^";]*"([^"]+)"', ("sched",)),
          (r'ps_sched_event_member\([^";]*"([^"]+)"', ("server", "agent")),
          (r'each_job_event\([^";]*"([^"]+)"', ("job",)),
          (r'log_operator_action\([^";]*"([^"%]+)"', ("operator",)))
EVENT_OF = re.compile(r'ps_sched_event_job\(\s*st,\s*PS_EVENT_KIND_(\w+),'
                      r'[^";]*"([^"]+)"')
# The text of an event that is made before the call.
MADE = re.compile(r'ps_str_init\(&s, what,[^;]*;\s*ps_str_addf\(&s, "([^"%]+) %')


def events_of(root):
    """(subject, what) of all events."""
    found = set()
    for path in sorted((root / "lib/core/sched").rglob("*.c")):
        text = without_comments(path)
        for pattern, subjects in EVENTS:
            found |= {(of, what) for what in re.findall(pattern, text)
                      for of in subjects}
        found |= {(of.lower(), what) for of, what in EVENT_OF.findall(text)}
        if "ps_sched_event_own(st, what" in text:
            found |= {("sched", what) for what in MADE.findall(text)}
        if "log_operator_action(st, c, j, what" in text:
            found |= {("operator", what) for what in MADE.findall(text)}
    enums = {e["name"]: [v["name"] for v in e["values"]]
             for e in tomllib.loads((root / "proto/messages.toml").read_text())
             ["enum"]}
    found |= {("job", phase) for phase in enums["job_phase"]}
    found |= {(of, state) for state in enums["node_state"]
              for of in ("server", "agent")}
    assert {of for of, _ in found} == set(enums["event_kind"]), found
    return found


def events_told(page):
    section = page.split("## Events of psctl events", 1)[1].split("\n## ")[0]
    return {(of, what)
            for row in re.findall(r"^\| ([a-z, ]+) \| (\*.*?) \|", section, re.M)
            for of in row[0].split(", ")
            for what in re.findall(r"\*(.+?)\*", row[1])}


def main():
    root = Path(sys.argv[1])
    page = (root / "docs/troubleshooting.md").read_text()
    told = re.findall(r"^\| `(.+?)` \|", page, re.M)
    sources = [p for folder in ("lib", "daemons")
               for p in sorted((root / folder).rglob("*"))
               if p.suffix in (".c", ".h", ".def", ".py")]
    texts = [t for p in sources for t in texts_of(p)]
    found = []
    for text in told:
        parts = fragments(text)
        # All parts in one literal, in this order; a text that several
        # literals make is looked for part by part.
        pattern = re.compile(".*?".join(map(re.escape, parts)))
        if not any(pattern.search(t) for t in texts) and \
                not all(any(p in t for t in texts) for p in parts):
            found.append(f"no program says: {text}")
    wanted = re.findall(r'PS_ERR\(\w+, \d+, "(.*?)"\)',
                        (root / "lib/base/err.def").read_text())
    wanted += [t for t in texts_of(root / "daemons/common/system.c")
               if "; " in t]
    for daemon in ("psched", "psserver", "psworker-agent"):
        text = (root / f"conf/{daemon}.yaml").read_text()
        section = []
        for line in text.splitlines():
            m = re.match(r"( *)#?(\w+):", line)
            if m:
                section[len(m[1]) // 2:] = [m[2]]
                path = ".".join(section)
                if re.match(r"limits\.(session|job|user|daemon)\.\w+", path):
                    wanted.append(path)
    for text in dict.fromkeys(wanted):
        if text not in told:
            found.append(f"docs/troubleshooting.md lacks: {text}")
    found += unexplained(root, told)
    events = events_of(root)
    for of, what in sorted(events ^ events_told(page)):
        found.append(f"docs/troubleshooting.md has no row of the event {of} "
                     f"'{what}'" if (of, what) in events else
                     f"no event is {of} '{what}'")
    # An entry without a code is explained by its text only, until a code is
    # given; a code without its entry would explain nothing.
    texts_told = {t.strip() for t in told}
    for code, text in explain.read_codes(
            root / "docs/troubleshooting-codes.txt").items():
        if text is not None and text not in texts_told:
            found.append(f"{code} is of no entry: '{text}'; change the line of "
                         "docs/troubleshooting-codes.txt with the text, or "
                         "write 'gone' there")
    print("\n".join(found))
    print(f"{len(told)} texts looked at, {len(found)} wrong")
    return 1 if found or len(told) < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
