#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants a violation of each rule in a small tree and fails when the lint does
not find it, or finds what is none.

    test_lints.py CC"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import allow
import bounded
import circles
import rules
import shape
import states
import waits
import wire
import words

sys.path.insert(0, str(Path(__file__).parents[1] / "sim"))
import plant  # noqa: E402

CC = sys.argv[1] if len(sys.argv) > 1 else "cc"


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def lists(root, name, *entries):
    """A folder with one allow-list."""
    tree(root, {f"allow/{name}.txt": "".join(e + "\n" for e in entries)})
    return root / "allow"


def an_allow_list_may_only_shrink(root):
    folder = lists(root, "x", "a.c: one", "b.c: two")
    both = {"a.c: one": "one is wrong", "b.c: two": "two is wrong"}
    assert allow.check("x", both, folder) == []
    assert allow.check("x", {**both, "c.c: 3": "new"}, folder) == ["new"]
    del both["b.c: two"]
    assert "remove it: b.c: two" in allow.check("x", both, folder)[0]
    folder = lists(root, "x", "b.c: two", "a.c: one", "free text")
    assert len(allow.read("x", folder)[1]) == 2


def an_allowed_size_may_only_shrink(root):
    folder = lists(root, "x", "a.h: lines 450")
    for size, wrong in ((450, 0), (401, 0), (451, 1), (400, 1)):
        found = {"a.h: lines": (size, 50, "too long")}
        assert len(allow.check_sizes("x", found, folder)) == wrong, size
    assert "remove" in allow.check_sizes("x", {}, folder)[0]


def a_list_shrinks_by_itself(root):
    folder = lists(root, "x", "# Head.", "a.c: one", "b.c: long 450",
                   "c.c: long 100", "d.c: long 90")
    allow.shrink("x", {"a.c: one": "", "e.c: new": "",
                       "b.c: long": (401, 50, ""), "c.c: long": (51, 10, ""),
                       "f.c: long": (9, 1, "")}, folder)
    assert (folder / "x.txt").read_text().splitlines() == [
        "# Head.", "a.c: one", "b.c: long 450", "c.c: long 60"]


def ring(root, names, folder="lib/core"):
    """Files of which each calls the next, and the last the first; as objects
    of a build."""
    build = root / "build"
    build.mkdir(exist_ok=True)
    commands = []
    for name, target in zip(names, names[1:] + names[:1]):
        tree(root, {f"{folder}/{name}.c":
                    f"void ps_{Path(target).stem}(void);\n"
                    f"void ps_{Path(name).stem}(void);\n"
                    f"void ps_{Path(name).stem}(void)\n{{\n"
                    f"    ps_{Path(target).stem}();\n}}\n"})
        made = f"{Path(name).stem}.o"
        subprocess.run([CC, "-c", root / f"{folder}/{name}.c", "-o",
                        build / made], check=True)
        commands.append({"directory": str(build), "output": made,
                         "file": str(root / f"{folder}/{name}.c")})
    (build / "compile_commands.json").write_text(json.dumps(commands))
    return build


def circles_of_calls_are_found(root):
    build = ring(root, ["a", "b", "c"])
    found, missing = circles.found_in(root, build)
    assert not missing and circles.check(found, lists(root, "circles")) == []
    build = ring(root, ["a", "b", "c", "d"])
    found, _ = circles.found_in(root, build)
    assert len(circles.check(found, lists(root, "circles"))) == 4
    lines = [f"lib/core/{n}.c: calls one" for n in "abcd"]
    assert circles.check(found, lists(root, "circles", *lines)) == []
    # One file more; one that has left; two circles that were apart.
    assert len(circles.check(found, lists(root, "circles", *lines[1:]))) == 1
    more = lists(root, "circles", *lines, "lib/core/e.c: calls one")
    assert len(circles.check(found, more)) == 1
    apart = lines[:2] + [line.replace("one", "two") for line in lines[2:]]
    assert "have become one" in circles.check(
        found, lists(root, "circles", *apart))[0]
    (build / "d.o").unlink()
    assert circles.found_in(root, build)[1] == {"lib/core/d.c"}


def uses_of_a_higher_layer_are_found(root):
    build = ring(root, ["a", "b", "c"])
    head = "/* Inside.\n *\n * Layers, top to bottom:\n *\n%s */\n"

    def found(names):
        lines = "".join(f" *     {name}.c x\n" for name in names)
        tree(root, {"lib/core/inner.h": head % lines})
        return circles.out_of_layer(root, circles.objects(root, build)[0])

    calls = ["lib/core/c.c: uses lib/core/a.c, which inner.h has above it"]
    assert found("abc") == calls
    assert len(found("bcd")) == 2  # One file lacks, one is not there.
    tree(root, {"lib/core/a.h": "", "lib/core/b.c": '#include "core/a.h"\n'})
    assert found("abc") == [
        "lib/core/b.c: uses lib/core/a.c, which inner.h has above it"] + calls


def folders_below_an_inner_header_are_in_its_layers(root):
    build = ring(root, ["a/a", "a/b", "c"])
    head = "/* Inside.\n *\n * Layers, top to bottom:\n *\n%s */\n"
    lines = "".join(f" *     {name}.c x\n" for name in ("a/a", "a/b", "c"))
    # The header of folder a is of both of its files.
    tree(root, {"lib/core/inner.h": head % lines, "lib/core/a/a.h": "",
                "lib/core/a/b.c": '#include "core/a/a.h"\n'})
    assert circles.out_of_layer(root, circles.objects(root, build)[0]) == [
        "lib/core/c.c: uses lib/core/a/a.c, which inner.h has above it"]


def circles_of_includes_and_imports_are_found(root):
    (root / "build").mkdir()
    (root / "build/compile_commands.json").write_text("[]")
    names = "abcd"
    for name, target in zip(names, names[1:] + names[:1]):
        tree(root, {f"lib/net/{name}.h": "",
                    f"lib/net/{name}.c": f'#include "net/{target}.h"\n',
                    f"lib/client/python/pskv/_{name}.py":
                        f"def f():\n    from . import _{target}\n"})
    found, _ = circles.found_in(root, root / "build")
    entries = circles.as_entries(found)
    assert sorted(entries) == (
        [f"lib/client/python/pskv/_{n}.py: imports" for n in names]
        + [f"lib/net/{n}.c: includes" for n in names]), sorted(entries)
    # All files of a folder share what its inner.h includes.
    tree(root, {"lib/net/inner.h": '#include "net/b.h"\n'})
    found, _ = circles.found_in(root, root / "build")
    assert not [one for one in circles.as_entries(found) if "lib/net" in one]


LARGE = """
/* struct comment { bool a, b, c, d; }; */
#define NOT_A_STRUCT struct macro { bool a, b, c, d; }
struct wide {
%s
    bool (*call)(bool, bool), *pointer;
    union {
        bool one;
        struct {
            bool two, three : 1;
        };
    };
    enum { A, B } kind;
    struct {
        bool four, five, six, seven;
    } apart;
};
struct narrow {
    bool a, b, c;
};

extern int ps_six(int a, int b, int c, int d, int e, int f);
extern int ps_seven(int a, int b, int c, int d, int e, int (*f)(int, int),
                    int g) __attribute__((pure));

static const struct narrow *short_one(const struct narrow *n)
{
%s
    return (struct narrow){true, false, true}.a ? n : NULL;
}

PS_MUST_USE static int long_one(int a, int b, int c, int d, int e, int f,
                                struct wide *g)
{
%s
    return "}"[0] + '}';
}
"""


def large_shapes_are_found(root):
    # 28 of one each, 2 pointers, 3 of the union, 2 with names: 35.
    text = LARGE % ("    int m[2];\n" * 28, "    a();\n" * 76,
                    "    a(); /* } */\n" * 77)
    tree(root, {"lib/net/a.c": text, "lib/net/a.h": "\n" * 400,
                "lib/net/b.h": "\n" * 401, "lib/net/inner.h": "\n" * 1001,
                "lib/core/inner.h": "\n" * 1000})
    found = {entry: size for entry, (size, _, _) in
             shape.too_large(root).items()}
    assert found == {
        "lib/net/a.c: struct wide members": 35,
        "lib/net/a.c: struct wide.apart booleans": 4,
        "lib/net/a.c: ps_seven parameters": 7,
        "lib/net/a.c: long_one parameters": 7,
        "lib/net/a.c: long_one length": 81,
        "lib/net/b.h: lines": 401, "lib/net/inner.h: lines": 1001}, found
    assert shape.measured(root)["lib/net/a.c: short_one length"][0] == 80
    assert shape.measured(root)["lib/net/a.c: struct wide booleans"][0] == 3


BRANCHING = """
int table(int x)
{
    switch (x) {
%s
    default:
        return -1;
    }
}

int decision(int x)
{
    switch (x) {
%s
    default:
        return x > 0 ? x : -x; /* if (x) */
    }
}

int condition(int x)
{
    for (int i = 0; i < x && (x & 1) != 0; i++) {
        if (x == 0%s) {
            return "if"[0];
        }
    }
    return table(x) || *&x;
}
"""


def complex_functions_are_found(root):
    cases = "\n".join(f"    case {n}: return A_{n};" for n in range(40))
    tree(root, {"lib/net/a.c": BRANCHING % (cases, cases, " || x" * 21)})
    found = {entry: size for entry, (size, _, _) in
             shape.too_large(root).items() if entry.endswith("complexity")}
    assert found == {"lib/net/a.c: decision complexity": 42,
                     "lib/net/a.c: condition complexity": 26}, found
    assert shape.measured(root)["lib/net/a.c: table complexity"][0] == 2
    tree(root, {"lib/net/a.c": BRANCHING % (cases, cases, " || x" * 20)})
    assert list(shape.too_large(root)) == [
        "lib/net/a.c: decision complexity"], shape.too_large(root)


HIDDEN = """
#define LEN_MASK 0xffu /* "c:comment" */
static int read(struct frame *f, const struct rec *r, const char *key_name)
{
    f->payload_len &= LEN_MASK;
    f->count = f->payload_len
               >> 56u;
    if (f->request & UINT64_C(1) << 62 || f->request == 1ull << 63) {
        return PS_E_MISMATCH;
    }
    if (r->rng_key != f->rng_key) {
        return PS_E_MISMATCH;
    }
    if (r->rng_key == PS_SKIPPED || key_name[0] == 's') {
        return strncmp(key_name, "i:", 2);
    }
    return key_name[0] == '\\0' || r->rng_key == f->rng_key || r->rng_key == 0;
}

static int write(struct frame *f, uint64_t *payload_len)
{
    *payload_len = f->len > 0 ? f->len : 4096;
    return send(f, &f->payload_len, (struct part){.rng_key = f->skipped ? 1 : 0},
                "ac: no prefix");
}
"""


def hidden_protocols_are_found(root):
    tree(root, {"lib/net/a.c": HIDDEN, "proto/frame.c":
                "void f(void)\n{\n    x = payload_len >> 1;\n}\n",
                "lib/kernel/a.c": "static uint64_t top = UINT64_C(1) << 63;\n",
                "lib/client/python/a.py": "NAME = 's:x'  # 'c:y'\n"})
    found = sorted(wire.found_in(root))
    assert found == [
        'lib/client/python/a.py: "s:x"',
        'lib/net/a.c: "i:"',
        "lib/net/a.c: 1 << 63",
        "lib/net/a.c: bits of payload_len in `f->count = f->payload_len >> "
        "56u`",
        "lib/net/a.c: bits of payload_len in `f->payload_len &= LEN_MASK`",
        "lib/net/a.c: key_name[0] 's'",
        "lib/net/a.c: rng_key 1",
        "lib/net/a.c: rng_key PS_SKIPPED"], found


TABLE = """
static const uint32_t transitions[] = {
    [DOOR_OPEN] = PS_STATE_BIT(DOOR_SHUT),
    [DOOR_SHUT] = 0,
};
static const uint32_t primes[] = {
    [LAMP_ON] = 2,
};
"""
CHANGES = """
void f(struct door *d, struct lamp *l, struct row *p, enum door_state to)
{
    d->state = DOOR_OPEN; /* d->state = COMMENT_STATE; */
    l->state = LAMP_ON;
    p->row.state = DOOR_SHUT;
    d->state = l->bright ? DOOR_SHUT : DOOR_OPEN;
    d->state = (uint8_t)to;
    l->state = l->buffers[0];
    assert(d->state == DOOR_SHUT);
    send(&(struct msg){.state = LAMP_OFF});
}
"""


def states_change_at_their_table(root):
    tree(root, {"lib/core/door.c": TABLE + CHANGES, "lib/core/other.c": CHANGES})
    found = sorted(states.found_in(root))
    assert found == ["lib/core/door.c: state LAMP_ON",
                     "lib/core/other.c: state (uint8_t)to",
                     "lib/core/other.c: state DOOR_OPEN",
                     "lib/core/other.c: state DOOR_SHUT",
                     "lib/core/other.c: state LAMP_ON"], found


PRIVATE = """
/* Whoever is late makes no sense. What it says is
 * thrown away; what remains is thrown_away(). */
static int take(int quarrel)
{
    /* Told apart, it is told to end, told of it and greeted. Does it fit? */
    int told = take_all(PS_SHARD_MAX, "so many words", "anew");

    int made = told + list->there; /* Move the near turn, for nobody. */

    return made + held(made);
}

static int take_all(const struct list *begin, int growing_up)
{
    return quarrelsome(begin); /* The bundled "amidst": Is it? No. */
}
"""
PLAIN = """# Comment of
# somebody. Who has it
NAMES = ("a thrown stone", "bereft")  # Whether?
def test_a_quarrel_ends_with_a_grave(wish):
    pass
def test_nobody_asks_for_who_is_gone(what):
    pass
def who_has():
    pass
"""
MEMBERS = """class Memory:
    offered = 1
    def __init__(self, past: int) -> None:
        asked = past
        self._held = asked
    def room(self) -> int:
        return self.mine.count(there=self.gather())
"""


def texts_that_may_be_cut_are_found(root):
    tree(root, {
        "daemons/x/a.c": """
static int bad_path(const char *folder)
{
    char path[100];

    snprintf(path, sizeof(path), "%s/x", folder);
    return open(path, 0);
}

static int good_path(const char *folder)
{
    char path[100];
    char number[16];

    if (snprintf(path, sizeof(path), "%s/x", folder) >= 100) {
        return -1;
    }
    snprintf(number, sizeof(number), "/proc/%d", 7);
    return open(path, open(number, 0));
}

static void bad_text(const char *folder)
{
    char text[100];
    struct ps_str s;

    ps_str_init(&s, text, sizeof(text));
    ps_str_add(&s, folder);
    system(s.data);
}

static void good_text(const char *folder)
{
    char text[100];
    struct ps_str s;
    struct ps_str shown;

    ps_str_init(&s, text, sizeof(text));
    ps_str_init(&shown, other, sizeof(other));
    ps_str_add(&s, folder);
    if (!s.truncated) {
        system(text);
    }
}
""",
        "daemons/pslaunch/b.c": """
static void bad_command(struct ps_str *out)
{
    struct ps_str s;
    struct ps_str why;

    ps_str_init(&s, out, 100);
    ps_str_init(&why, out, 100);
}
"""})
    found = [line.split(": ")[0] for line in bounded.found_in(root)]
    assert found == ["daemons/pslaunch/b.c:7", "daemons/x/a.c:6",
                     "daemons/x/a.c:27"], bounded.found_in(root)


def private_words_are_found(root):
    tree(root, {"lib/core/a.c": PRIVATE, "tests/a.py": PLAIN,
                "lib/client/a.py": MEMBERS, "tests/b.py": MEMBERS,
                "lib/core/a.h": "struct a {\n    struct b *mine;\n    int heard[2];\n"
                "};\nint f(int room);\n",
                "conf/a.yaml": "a: 1 # So\n# much for that.\n",
                "docs/a.md": "# What it is\n\nWhat to do? It is\namid.\n"})
    found = sorted(words.found_in(root))
    assert found == [
        "conf/a.yaml: word so much",
        "docs/a.md: subject What",
        "docs/a.md: word amid",
        "lib/client/a.py: name held",
        "lib/client/a.py: name mine",
        "lib/client/a.py: name offered",
        "lib/client/a.py: name room",
        "lib/core/a.c: name PS_SHARD_MAX",
        "lib/core/a.c: name held",
        "lib/core/a.c: name quarrel",
        "lib/core/a.c: name there",
        "lib/core/a.c: name told",
        "lib/core/a.c: question",
        "lib/core/a.c: static take()",
        "lib/core/a.c: subject Whoever",
        "lib/core/a.c: word greeted",
        "lib/core/a.c: word makes no sense",
        "lib/core/a.c: word so many",
        "lib/core/a.c: word thrown",
        "lib/core/a.c: word told",
        "lib/core/a.c: word whoever",
        "lib/core/a.h: name heard",
        "lib/core/a.h: name mine",
        "tests/a.py: name test_nobody_asks_for_who_is_gone",
        "tests/a.py: name who_has",
        "tests/a.py: question",
        "tests/a.py: subject Who",
        "tests/a.py: word thrown"], found


def long_lines_are_found(root):
    long = "word " * 21 + "\n"
    tree(root, {"docs/a.md": long + "| " + long + "    " + long + "```\n" + long
                + "```\n" + long, "docs/b.md": "\u25b6" * 100 + "\n",
                "docs/c.md": "<!-- generated -->\n" + long})
    assert {e: n for e, (n, _, _) in words.long_lines(root).items()} == {
        "docs/a.md: long lines": 2}


RULES = """# Protocol

- **A1** One is cited as "rule A1".
- **A2** The next; rules A1, A2 and B1 hold.

## Section

- **B1** Another.
"""
CITING = """
/* Rule A1: kept. Kept, too (rules A1 and
 * B2). The rule
 * C1 of no section, and a ruler A9. */
"""


def wrong_citations_of_rules_are_found(root):
    tree(root, {"docs/protocol.md": RULES, "lib/net/a.c": "/* Rule A2. */\n"})
    assert rules.found_in(root) == ([], 3, 5), rules.found_in(root)
    tree(root, {"lib/core/b.c": CITING, "daemons/c.c": "/* Rules A1 to A3. */\n",
                "docs/d.md": "As rule\nB3 says.\n"})
    assert rules.found_in(root)[0] == [
        "lib/core/b.c:2: docs/protocol.md has no rule B2",
        "lib/core/b.c:3: docs/protocol.md has no rule C1",
        "daemons/c.c:1: docs/protocol.md has no rule A3",
        "docs/d.md:1: docs/protocol.md has no rule B3"], rules.found_in(root)


def wrong_numbers_of_rules_are_found(root):
    page = "".join(f"- **{r}** Text.\n" for r in
                   ("A1", "A2", "A2", "B2", "B3", "A3", "B4", "B6"))
    tree(root, {"docs/protocol.md": page})
    assert rules.found_in(root)[0] == [
        "docs/protocol.md:3: a second rule A2",
        "docs/protocol.md:4: rule B2 follows B0",
        "docs/protocol.md:6: rule A3 is outside of its section",
        "docs/protocol.md:8: rule B6 follows B4"], rules.found_in(root)
    tree(root, {"docs/protocol.md": "No rule.\n"})
    assert rules.found_in(root)[0] == ["docs/protocol.md: no rule read"]


def planted_bugs_without_a_place_are_found(root):
    plant.check_plants(tree(root, {"a.c": "f( x );\ng();\n"}),
                       {"one": [("a.c", "f(x);", "")]})
    for text in ("", "f(x); f(x);"):
        try:
            plant.check_plants(tree(root, {"a.c": text}),
                               {"one": [("a.c", "f(x);", "")]})
        except SystemExit as e:
            assert "a.c no longer holds" in str(e)
        else:
            assert False, text


def unused_terms_are_found(root):
    tree(root, {"docs/glossary.md": "- **liveness probe**: a.\n"
                "- **ssp (stale)**: b.\n- **ghost**: c.\n- **I/O thread**: d.\n",
                "lib/core/a.c": "int ps_liveness_probe; /* The I/O\n * thread. */"
                " enum { PS_SSP };\n"})
    assert words.unused_terms(root) == [
        "docs/glossary.md: nothing uses the term ghost"]


def waits_by_hand_are_found(root):
    program = "import time\ntime.sleep(1)\nif __name__ == '__main__':\n    x()\n"
    tree(root, {
        "tests/integration/data/test_a.py":
            "import select, time\nTEXT = 'time.sleep(1)'\n"
            "end = time.monotonic() + 5\nwhile time.monotonic() < end:\n"
            "    time.sleep(1)\n    select.select([], [], [], 1)\n"
            "took = time.monotonic() - end\n",
        "tests/support/trio.py": "import time\ntime.sleep(1)\n",
        "tests/support/kubectl.py": program.replace("'", '"')})
    assert sorted(waits.find(root)) == [
        "tests/integration/data/test_a.py: a deadline by hand 3",
        "tests/integration/data/test_a.py: a pause by hand, time.sleep() 5",
        "tests/integration/data/test_a.py: a poll by hand, select.select() 6"]


def subjects_that_are_no_imperative_are_found(root):
    assert words.subject_of(root) == ""
    for good in ("core/link: keep the deadline on a stale ack",
                 "lib, proto, daemons, tests: rename identifiers",
                 "CHANGES: group entries", "tests/lint: need a reason",
                 "core/*, lib/net: pass on what is given"):
        assert words.wrong_subject(good) == [], good
    for bad in ("keep the deadline", "core: added a test", "core: fixes a hang",
                "core: the deadline is kept", "core: Keep it", "core:keep it",
                "core: who waits is told", "core: adding a test", "core: ",
                "Merge branch x: keep",
                "core: end the quarrel"):
        assert len(words.wrong_subject(bad)) == 1, bad


def main():
    tests = [f for name, f in sorted(globals().items())
             if callable(f) and getattr(f, "__module__", "") == __name__
             and f.__code__.co_varnames[:1] == ("root",)
             and f.__code__.co_argcount == 1]
    for test in tests:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder).resolve())
    print(f"{len(tests)} tests")
    return 0 if tests else 1


if __name__ == "__main__":
    sys.exit(main())
