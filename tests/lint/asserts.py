#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on an assert or abort of a daemon whose condition depends on what comes
from outside, unless asserts.txt has it with a reason.

From outside are, within the function that has the assert: fields of messages,
records, events and options; payloads; integers that a caller passes; results of
calls; locals that are computed from any of these; and states that the order of
a user's calls decides (state, phase, active, complete, ...). An abort is always
listed. What remains, such as links of lists and counts of references, is the
code's own.

One line of asserts.txt for each:

    path | condition | reason

The reason is a sentence. One that begins with `checked by NAME` names the
function that compares the value before; it must exist. An entry without its
assert fails, too, so the list stays as short as the code.

    asserts.py ROOT              the check
    asserts.py ROOT --list       what is found, as lines of asserts.txt
    asserts.py ROOT --self-test  planted violations are found"""
import re
import sys
import tempfile
from pathlib import Path

FOLDERS = ("lib/core", "lib/crypto", "lib/net", "lib/driver", "daemons/common",
           "daemons/psched", "daemons/psserver", "daemons/psworker-agent")
OUTSIDE_TYPES = re.compile(
    r"struct (ps_msg\w*|ps_rec_\w+|ps_event|ps_fx|ps_place_request|\w*options)"
    r"\b|ps_slice \*payload")
INTEGER = re.compile(r"\b(u?int(8|16|32|64)_t|unsigned|int|size_t|ssize_t"
                     r"|ps_time|ps_conn_id)$")
STATES = re.compile(r"(->|\.)(state|phase|round_open|round_complete|is_encoding"
                    r"|is_handshake_done|open|open_round|merge|rebalance|optimizer"
                    r"|compression)\b")
CALL_RESULT = re.compile(r"\b(\w+) = (?!sizeof)(\(\w+\))?\w+\(")
WORD = re.compile(r"[A-Za-z_]\w*")


def functions(text):
    """(header, body) of each function: bodies are braces in column 0."""
    for m in re.finditer(r"^\{\n(.*?)^\}", text, re.M | re.S):
        head = text[:m.start()].rstrip().rsplit("\n\n", 1)[-1]
        head = re.sub(r"/\*.*?\*/", "", head, flags=re.S)
        yield head, m.group(1)


def parameters(head):
    inside = head[head.find("(") + 1:head.rfind(")")]
    for one in inside.split(","):
        words = WORD.findall(one)
        if words:
            yield words[-1], one.strip()


def conditions(body):
    """(condition, where) of each assert and abort."""
    for m in re.finditer(r"\bassert\(", body):
        depth, at = 1, m.end()
        while depth > 0:
            depth += {"(": 1, ")": -1}.get(body[at], 0)
            at += 1
        yield " ".join(body[m.end():at - 1].split()), m.start()
    for m in re.finditer(r"\babort\(\)", body):
        yield "abort()", m.start()


def tainted(head, body):
    names = set()
    for name, text in parameters(head):
        kind = re.sub(r"\bconst\b|\b" + name + r"$", "", text).strip()
        if OUTSIDE_TYPES.search(text) or INTEGER.search(kind):
            names.add(name)
    names |= {m.group(1) for m in CALL_RESULT.finditer(body)}
    names |= {m.group(1) for m in re.finditer(
        r"(?:%s) \*?(\w+)\b" % OUTSIDE_TYPES.pattern.split("|ps_slice")[0],
        body)} - {""}
    for _ in range(3):  # A local from a local from a parameter.
        for m in re.finditer(r"\b(\w+) [-+|&*/]?= ([^;]*);", body):
            if names & set(WORD.findall(m.group(2))):
                names.add(m.group(1))
    return names


def found_in(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.[ch]")):
            text = path.read_text()
            for head, body in functions(text):
                names = tainted(head, body)
                for what, _ in conditions(body):
                    bare = re.sub(r"(->|\.)\w+", "", what)
                    if (what == "abort()" or STATES.search(what)
                            or names & set(WORD.findall(bare))):
                        yield path.relative_to(root).as_posix(), what


def defined(root):
    names = set()
    for folder in FOLDERS + ("lib/base", "proto", "lib/conf", "lib/kernel"):
        for path in (root / folder).rglob("*.[ch]"):
            names |= set(re.findall(r"\b(\w+)\(", path.read_text()))
    return names


def check(root, listed):
    """Complaints, one a line."""
    wrong = []
    entries = {}
    for number, line in enumerate(listed.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [p.strip() for p in line.split(" | ")]
        if len(parts) != 3 or len(parts[2].split()) < 3:
            wrong.append(f"asserts.txt:{number}: not 'path | condition | "
                         "reason'")
            continue
        entries[tuple(parts[:2])] = (number, parts[2])
    names = defined(root)
    seen = set(found_in(root))
    for path, what in sorted(seen):
        if (path, what) not in entries:
            wrong.append(
                f"{path}: assert({what}) depends on what comes from outside: "
                "make it an error of the operation, session or connection, or "
                "say in tests/lint/asserts.txt why nothing reaches it")
    for (path, what), (number, reason) in entries.items():
        if (path, what) not in seen:
            wrong.append(f"asserts.txt:{number}: {path} has no such assert: "
                         f"{what}")
        m = re.match(r"checked by (\w+)", reason)
        if m and m.group(1) not in names:
            wrong.append(f"asserts.txt:{number}: no function {m.group(1)}")
    return wrong


PLANTED = """
static void message(struct ps_thing *t, const struct ps_msg_push *m)
{
    uint32_t count = m->parts_count;

    assert(count < t->max);
    assert(t->refs > 0);
}

static void order(struct ps_part *p)
{
    assert(p->state != QUEUED);
}

static void resource(struct ps_thing *t)
{
    int rc = uv_listen(t->handle);

    assert(rc == 0);
}

void ps_thing_at(struct ps_thing *t, uint32_t rank)
{
    assert(rank < t->count);
}
"""


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "lib/core").mkdir(parents=True)
        (root / "lib/core/thing.c").write_text(PLANTED)
        wanted = {"count < t->max", "p->state != QUEUED", "rc == 0",
                  "rank < t->count"}
        assert {w for _, w in found_in(root)} == wanted, list(found_in(root))
        assert len(check(root, "")) == 4
        lines = "\n".join(f"lib/core/thing.c | {w} | checked by message before"
                          for w in sorted(wanted))
        assert check(root, lines) == [], check(root, lines)
        assert len(check(root, lines + "\nlib/core/thing.c | x | no such one"
                         )) == 1
        assert len(check(root, lines.replace("by message", "by nobody"))) == 4
        assert len(check(root, lines.replace("checked by message before", "ok")
                         )) == 8


def main():
    root = Path(sys.argv[1])
    if "--self-test" in sys.argv:
        self_test()
        return 0
    if "--list" in sys.argv:
        for path, what in sorted(set(found_in(root))):
            print(f"{path} | {what} | ")
        return 0
    wrong = check(root, (Path(__file__).parent / "asserts.txt").read_text())
    print("\n".join(wrong) or "asserts: each on data from outside has a reason")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
