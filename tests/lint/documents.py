#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What documents name is there: commands with their options, options of
daemons and their defaults, variables, functions of the library, files, packages;
pages and headings to which a link leads.

    documents.py ROOT PSCHED PSSERVER AGENT PSCTL PSLAUNCH [--self-test]

Reads README.md, CONTRIBUTING.md, docs/*.md and the manual pages, and asks the
programs. A name of a document is

- a word in backticks or, in manual pages, in emphasis,
- a line of an indented or fenced block that begins with one of our programs.
"""
import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

DAEMONS = ("psched", "psserver", "psworker-agent")
PROGRAMS = DAEMONS + ("psctl", "pslaunch")
# Of what is neither in lib/ nor in daemons/.
FOREIGN = {
    "PSKV_BUILD_DIR", "PSKV_TEST_SANDBOX", "PSKV_TEST_SLOW",
    "PSKV_TORCH_PYTHON",
    "PSKV_TORCH2_PYTHON",  # The tests'.
    "PSKV_EMU_DELAY_US", "PSKV_EMU_DEVICES", "PSKV_EMU_FAIL",
    "PSKV_EMU_MEMORY", "PSKV_EMU_REUSE", "PSKV_EMU_SEED",
    "PSKV_EMU_STATS",  # The emulated CUDA driver's.
}


# A link to a page or a heading of this tree; its text may begin a line before.
LINK = re.compile(r"\]\(((?!https?:|mailto:)[^()\s]+)\)")


def ask(*argv):
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(("PSD_", "PSKV_", "DMLC_", "PS_"))}
    done = subprocess.run(argv, capture_output=True, text=True, check=False,
                          timeout=60, env=env)
    return done.stdout + done.stderr


def flags_of(text):
    return set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*|-[a-zA-Z])(?![\w-])",
                          text))


@functools.cache
def anchors(path):
    """Headings of a page in the form that links have."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-")
            for heading in re.findall(r"^#+ (.*)", text, re.M)}


def option_paths(text):
    """Paths of a sample file, in which values are commented out."""
    paths = set()
    sections = []
    for line in text.splitlines():
        m = re.match(r"( *)(#?)([a-z_]+):(?: |$)", line)
        if m is None:
            continue
        depth = len(m[1]) // 2
        sections[depth:] = [m[3]]
        if m[2] or line.rstrip()[-1] != ":":
            paths.add(".".join(sections))
    return paths


# A default behind the name of an option: `metrics.interval` (15 s).
DEFAULT = re.compile(r"`([a-z_]+(?:\.[a-z_]+)+)`(?: of \w+)? "
                     r"\((?:default )?(\d+) ?([a-zA-Z]*|%)(?: of [\w ]+)?[,;)]")
# A package of ours, or one of Debian with the version of its interface.
PACKAGE = re.compile(r"`(pskv-[a-z]+|python3-pskv|libpsclient(?:-dev|\d+)|"
                     r"lib[a-z-]+[a-z]\d+)`")


def defaults_of(text):
    """Path -> value of a sample file."""
    values = {}
    sections = []
    for line in text.splitlines():
        m = re.match(r"( *)#?([a-z_]+):(?: \"?([^\"#]*)\"?)?$", line)
        if m is not None:
            sections[len(m[1]) // 2:] = [m[2]]
            if m[3]:
                values[".".join(sections)] = m[3].strip()
    return values


class Facts:
    """What the programs, the sources and the tree have."""

    def __init__(self, root, programs):
        self.root = root
        self.paths = {}
        self.flags = {}
        self.defaults = {}
        self.packages = (root / "debian/control").read_text()
        for name in DAEMONS:
            sample = ask(programs[name], "--print-config=defaults")
            self.paths[name] = option_paths(sample)
            self.defaults |= defaults_of(sample)
            self.flags[name] = flags_of(ask(programs[name], "--help"))
        self.flags["pslaunch"] = flags_of(ask(programs["pslaunch"], "--help"))
        usage = ask(programs["psctl"], "help", "all")
        self.flags["psctl"] = flags_of(usage)
        self.verbs = set(re.findall(r"^  ([a-z-]+) ", usage, re.M))
        self.all_paths = set().union(*self.paths.values())
        self.sections = {p.rsplit(".", n)[0] for p in self.all_paths
                         for n in range(1, p.count(".") + 1)}
        self.roots = {p.split(".")[0] for p in self.all_paths}
        source = "".join(
            path.read_text() for folder in ("lib", "daemons")
            for path in sorted((root / folder).rglob("*"))
            if path.suffix in (".c", ".py"))
        self.variables = set(re.findall(r"\"([A-Z][A-Z0-9_]+)[\"=]", source))
        self.variables |= {"PSD_" + p.upper().replace(".", "_")
                           for p in self.all_paths} | FOREIGN
        self.all_paths |= option_paths(
            ask(programs["pslaunch"], "--print-config=defaults"))
        self.identifiers = set(re.findall(
            r"\bPS_[A-Z0-9_]+", "".join(
                p.read_text() for folder in ("lib", "proto")
                for p in sorted((root / folder).rglob("*.[ch]")))))
        header = "".join(p.read_text() for p in sorted(
            (root / "lib/client").glob("psclient*.h")))
        self.functions = set(re.findall(r"\bpsc_\w+", header))
        self.constants = set(re.findall(r"\bPSC_\w+", header))


def unmark(text):
    """A line of scdoc as it is read."""
    text = re.sub(r"\\([_*\\`])", lambda m: {"_": "\0", "*": "\1"}.get(
        m[1], m[1]), text)
    return text


def words_of(line, manual):
    """Names that a line marks as such."""
    if manual:
        found = re.findall(r"(?<![\w\0])_([^_\s]+)_(?!\w)|\*([^*\s]+)\*",
                           unmark(line))
        return [(a or b).replace("\0", "_").replace("\1", "*")
                for a, b in found]
    return re.findall(r"`([^`]+)`", line)


class Lint:
    def __init__(self, facts):
        self.facts = facts
        self.found = []
        self.checked = 0

    def say(self, where, what):
        self.found.append(f"{where}: {what}")

    def check_option(self, where, daemon, text):
        self.checked += 1
        path = text.split("=", 1)[0]
        if path not in self.facts.paths[daemon]:
            self.say(where, f"{daemon} has no option {path}")

    def check_flag(self, where, program, word):
        self.checked += 1
        flag = word.split("=", 1)[0]
        if flag not in self.facts.flags[program]:
            self.say(where, f"{program} has no {flag}")

    def check_command(self, where, argv):
        """argv[0] is one of our programs."""
        program = argv[0]
        words = argv[1:]
        verb = None
        while words:
            word = words.pop(0)
            if word in ("--", "|", "&&", ">", "<", "||", ";", "&", "..."):
                break
            if word.startswith("-") and len(word) > 1:
                if re.fullmatch(r"-[a-zA-Z]+\d+", word):
                    word = word[:2]
                self.check_flag(where, program, word)
                takes = re.search(
                    rf"{re.escape(word)}(?:, --[a-z-]+)?[ =]\[?[A-Z]",
                    self.facts_help(program))
                if "=" not in word and takes and words:
                    value = words.pop(0)
                    if program in DAEMONS and word in ("-o", "--option"):
                        self.check_option(where, program, value)
            elif program == "pslaunch":
                break  # The command of the workers.
            elif program == "psctl" and verb is None:
                verb = word
                self.checked += 1
                if verb not in self.facts.verbs:
                    self.say(where, f"psctl has no verb {verb}")

    def facts_help(self, program):
        return self.facts.help[program]

    def check_word(self, where, word):
        facts = self.facts
        first = word.split()[0] if word.split() else ""
        if first in PROGRAMS and " " in word:
            try:
                self.check_command(where, shlex.split(word))
            except ValueError:
                pass  # Cut off.
        for path in re.findall(r"^([a-z_]+(?:\.[a-z_]+)+)(?:[:=].*)?$", word):
            if path.split(".")[0] in facts.roots and \
                    not path.endswith((".md", ".c", ".h", ".py", ".yaml",
                                       ".conf", ".service", ".sock", ".so")):
                self.checked += 1
                if path not in facts.all_paths | facts.sections:
                    self.say(where, f"no daemon has an option {path}")
        for name in re.findall(r"\b(?:PSD|PSKV|DMLC|PS)_[A-Z0-9_]*[A-Z0-9]\b",
                               word):
            self.checked += 1
            if name not in facts.variables | facts.identifiers:
                self.say(where, f"nothing reads a variable {name}")
        for name in re.findall(r"\bpsc_\w+", word):
            self.checked += 1
            if name not in facts.functions:
                self.say(where, f"psclient.h has no {name}")
        for name in re.findall(r"\bPSC_[A-Z0-9_]*[A-Z0-9]\b", word):
            self.checked += 1
            if name not in facts.constants:
                self.say(where, f"psclient.h has no {name}")
        m = re.fullmatch(r"((?:docs|lib|tests|daemons|proto|conf|systemd)/"
                         r"[\w./-]*\w)(?:::\w+)?", word)
        # The generator writes proto/ps_*.
        if m is not None and not m[1].startswith("proto/ps_"):
            self.checked += 1
            if not (facts.root / m[1]).exists() and \
                    not any((facts.root / m[1]).parent.glob(
                        Path(m[1]).name + ".*")):
                self.say(where, f"there is no file {m[1]}")

    def check_default(self, where, path, stated):
        """`auto` stands for a value that the page may explain."""
        value = self.facts.defaults.get(path)
        if value not in (None, "auto"):
            self.checked += 1
            if value.replace(" ", "") != stated:
                self.say(where, f"{path} is {value} by default, not {stated}")

    def check_package(self, where, name):
        self.checked += 1
        if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])",
                         self.facts.packages):
            self.say(where, f"debian/control has no package {name}")

    def check_link(self, where, page, link):
        """`page`: path of the document that has the link."""
        target, _, heading = link.partition("#")
        path = page.parent / target if target else page
        self.checked += 1
        if not path.exists():
            self.say(where, f"there is no page {target}")
        elif heading and heading not in anchors(path):
            self.say(where, f"{path.name} has no heading for #{heading}")

    def check_text(self, name, text, manual):
        fenced = False
        page = self.facts.root / name
        for number, line in enumerate(text.split("\n"), 1):
            where = f"{name}:{number}"
            if "not yet" in line:
                continue
            if line.startswith("```"):
                fenced = not fenced
                continue
            block = fenced or line.startswith(("    ", "\t"))
            for word in words_of(line, manual):
                self.check_word(where, word)
            for path, number, unit in DEFAULT.findall(line):
                self.check_default(where, path, number + unit)
            for package in PACKAGE.findall(line):
                self.check_package(where, package)
            for link in [] if block else LINK.findall(line):
                self.check_link(where, page, link)
            plain = line.strip().removeprefix("$ ")
            plain = re.sub(r"^(?:[A-Z_]+=\S* )+", "", plain)
            if block and plain.split(" ")[0] in PROGRAMS and \
                    "*" not in plain and "──" not in plain:
                try:
                    self.check_command(where, shlex.split(
                        plain, comments=True))
                except ValueError:
                    pass  # It goes on in the next line.


def documents(root):
    for path in [root / "README.md", root / "CONTRIBUTING.md",
                 *sorted((root / "docs").glob("*.md")),
                 *sorted((root / "docs/man").glob("*.scd*"))]:
        yield path, ".scd" in path.name


SAMPLES = [
    ("`limits.mem`", "no daemon has an option limits.mem"),
    ("`psctl stats`", "psctl has no verb stats"),
    ("`psctl --of rebalance x`", "psctl has no --of"),
    ("    psched -o listen.prot=1", "psched has no option listen.prot"),
    ("    psched -o store.memory=1GiB", "psched has no option store.memory"),
    ("`PSKV_NUM_WORKER`", "nothing reads a variable PSKV_NUM_WORKER"),
    ("`PSD_LISTEN_PROT`", "nothing reads a variable PSD_LISTEN_PROT"),
    ("`psc_opn()`", "psclient.h has no psc_opn"),
    ("`lib/nothing.c`", "there is no file lib/nothing.c"),
    ("    $ pslaunch --bogus 3 -- x", "pslaunch has no --bogus"),
    ("`shutdown.grace` (31 s)", "shutdown.grace is 30s by default, not 31s"),
    ("`pskv-daemon`", "debian/control has no package pskv-daemon"),
    ("`libmicrohttpd10`", "debian/control has no package libmicrohttpd10"),
    ("[a](docs/nothing.md)", "there is no page docs/nothing.md"),
    ("[a](docs/protocol.md#nothing)",
     "protocol.md has no heading for #nothing"),
]


def self_test(facts):
    """Each mistake is seen."""
    for text, want in SAMPLES:
        lint = Lint(facts)
        lint.check_text("x", text, False)
        assert [f"x:1: {want}"] == lint.found, (text, lint.found)
    lint = Lint(facts)
    lint.check_text("x", "_limits.mem_ and *PSKV\\_SCHD*", True)
    assert len(lint.found) == 2, lint.found
    lint = Lint(facts)
    lint.check_text("x", "`listen.port`, `psctl keys x`, `PSKV_SOCKET`, "
                    "`psctl -w json nodes`, [a](docs/protocol.md#frames)\n"
                    "    psched -o listen.port=0\n"
                    "    pslaunch -n 4 -- python3 --what", False)
    assert lint.found == [] and lint.checked >= 8, lint.found


def main():
    root = Path(sys.argv[1])
    programs = dict(zip(PROGRAMS, sys.argv[2:7]))
    facts = Facts(root, programs)
    facts.help = {name: ask(programs[name], "--help") for name in PROGRAMS}
    facts.help["psctl"] = ask(programs["psctl"], "help", "all")
    self_test(facts)
    lint = Lint(facts)
    for path, manual in documents(root):
        lint.check_text(str(path.relative_to(root)), path.read_text(), manual)
    print("\n".join(lint.found))
    print(f"{lint.checked} names looked at, {len(lint.found)} wrong")
    return 1 if lint.found or lint.checked < 200 else 0


if __name__ == "__main__":
    sys.exit(main())
