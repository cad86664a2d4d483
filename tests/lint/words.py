#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on private words where the field has a term, unless allow/words.txt has
them, and on lines of documents that are too long, unless allow/columns.txt has
their number.

    words.py ROOT            the check
    words.py ROOT --list     what is found, as lines of allow/words.txt
    words.py ROOT --columns  the same of allow/columns.txt
    words.py ROOT --shrink   the check, with lists rid of what nothing needs

Read are identifiers and names of files; comments, strings with spaces, and
documents, which all count as prose; the terms of docs/glossary.md, which have
to be in use; and the subject of the newest commit."""
import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import allow
from c_text import PIECE, bare, comments

FOLDERS = ("lib", "proto", "daemons", "conf", "docs", "systemd", "tests")
C = (".c", ".h", ".inc")
HASHED = (".toml", ".yaml", ".sh", ".build", ".service", ".socket")
DOCUMENTS = (".md", ".scd", ".in")
# These have the words that they forbid, or the bytes of others.
SKIPPED = re.compile(r"tests/(lint|fuzz/corpus|golden)/|docs/pictures/"
                     r"|docs/figures\.md|docs/measurements")
# Tests have sentences for names, in ordinary English.
SENTENCE = 5
# Words that stand for a noun of the glossary in such a sentence.
PRONOUNS = {"anew", "anybody", "anyone", "everybody", "everyone", "nobody",
            "somebody", "someone", "what", "whatever", "who", "whoever", "whom",
            "whose"}
COLUMNS = 100
COLUMNS_STEP = 5

# Word -> term, in prose and as a part of identifiers.
PRIVATE = {
    "bereft": "residuals_lost", "bundle": "multipath", "bury": "deferred free",
    "coded": "encoded", "grave": "deferred free", "graves": "deferred free",
    "greet": "hello", "greeted": "after its hello", "greeting": "hello",
    "greets": "sends its hello",
    "hurry": "kick", "inflow": "rcvbuf_tuner", "mover": "io_pool",
    "outflow": "send_scheduler", "overtaken": "ended_early",
    "parcel": "packet", "quarrel": "conflict", "rootless": "conflict",
    "shard": "server", "strand": "subflow", "stranger": "pre_handshake",
    "thrown": "discarded",
}
# Names of torch, which tests import.
OF_TORCH = {"Shard", "fully_shard"}
# Word -> term, as a part of identifiers of programs only: prose and tests may
# need the word.
PARTS = {
    "aside": "receive_only", "attend": "broadcast_send_only",
    "dying": "draining", "nobody": "all_joined", "press": "codec",
    "restate": "must_resend_state", "ringed": "ring_conns", "said": "notified",
    "salt": "rng_key", "seat": "rank", "soon": "prefetch", "told": "notified",
    "untold": "not notified", "wild": "nonfinite_count", "wish": "request",
}
# Word -> term, as the whole name of a member or function only, where the term
# belongs: longer names can be clear, and the few lines around a local variable
# say what it is.
WHOLE_IN = ("lib/core/", "lib/net/", "lib/driver/", "lib/client/",
            "daemons/common/")
WHOLE = {
    "asked": "requested_version", "away": "unbound", "bye": "send_bye",
    "carried": "unacked", "dirty": "to_flush", "gather": "batch",
    "gathered": "accumulated", "gives": "contributes", "growing": "streaming",
    "heard": "last_heard_at", "held": "local_version", "joins": "is_subflow",
    "label": "name_hash", "made": "published", "mine": "is_own",
    "offer": "contribute", "offered": "contributed", "pace": "pacing",
    "passes": "skips", "past": "prior_state", "points": "by_reference",
    "reached": "completed_round", "room": "batch_arena",
    "served": "served_ticket", "settle": "adopt", "sleeps": "is_waiting",
    "spins": "busy_poll", "taken": "released", "tell": "notify",
    "there": "bytes_ready", "turn": "send_slot",
}
# Names of collectives, which interfaces for Python have to have.
OF_INTERFACES = {"gather"}
PHRASES = {
    "amid": "during", "anew": "again", "gives nobody up": "the exact rule",
    "gave nobody up": "the exact rule", "good-bye": "bye message",
    "hang up on": "reject or close", "hangs up on": "reject or close",
    "hung up on": "rejected or closed", "makes no sense": "is malformed",
    "make no sense": "are malformed", "so many": "the number",
    "so much": "the amount", "whoever": "the noun",
}
# Except in idioms: tell apart, tell one from another, tell to do.
TOLD = re.compile(r"\btold\b(?! (?:apart|from|to)\b)")
# Names of static functions without an object.
STATICS = ("ask", "begin", "find", "finish", "made", "put", "settle", "step",
           "take", "tell")
STATIC = re.compile(r"^static\b[^;{=()]*?\b(%s)\(" % "|".join(STATICS), re.M)
SUBJECT = re.compile(r"(?:^|(?<=[.:;!] ))(Who|What|Whoever) (?!to )\w")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")

# Words of commit subjects that end like a past tense or third person.
ROOTS = {"access", "address", "bias", "bind", "bring", "bypass", "compress",
         "cross", "discuss", "dismiss", "embed", "exceed", "express", "feed",
         "focus", "guess", "miss", "need", "pass", "ping", "press", "process",
         "proceed", "progress", "ring", "seed", "shed", "spread", "speed",
         "stress", "string", "succeed", "suppress"}
NO_VERBS = {"a", "all", "an", "and", "both", "each", "every", "how", "it",
            "its", "more", "most", "new", "no", "nobody", "not", "one", "some",
            "that", "the", "there", "they", "this", "what", "when", "where",
            "who", "whoever", "why"}


def sources(root):
    """(name, path) of each file that is read."""
    paths = [p for p in sorted(root.glob("*")) if p.suffix == ".md"
             or p.name in ("dev", "meson.build", "meson_options.txt")]
    for folder in FOLDERS:
        paths += sorted((root / folder).rglob("*"))
    for path in paths:
        name = path.relative_to(root).as_posix()
        if path.is_file() and not SKIPPED.match(name) and (
                path.suffix in C + HASHED + DOCUMENTS + (".py", ".def")
                or path.name == "dev"):
            yield name, path


def read_c(text):
    """Prose, with line and kind, and identifiers of a C source."""
    prose = [(line, "comment", c) for line, c in comments(text)]
    for match in PIECE.finditer(text):
        if match.group()[0] == '"' and " " in match.group():
            prose.append((text.count("\n", 0, match.start()) + 1, "string",
                          match.group()[1:-1]))
    return prose, set(IDENTIFIER.findall(bare(text)))


def read_python(text):
    prose, names, block = [], set(), []
    for one in tokenize.generate_tokens(io.StringIO(text).readline):
        if one.type == tokenize.COMMENT:
            body = one.string.lstrip("# ")
            if block and block[-1][0] == one.start[0] - 1 \
                    and one.line.lstrip().startswith("#"):
                block[-1] = (one.start[0], "comment", block[-1][2] + " " + body)
            else:
                block.append((one.start[0], "comment", body))
        elif one.type == tokenize.STRING and " " in one.string:
            prose.append((one.start[0], "string", one.string.strip("rbfu\"'")))
        elif one.type == tokenize.NAME:
            names.add(one.string)
    return prose + block, names


def read_hashed(text):
    """Comments behind "#", and strings."""
    prose, last = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        comment = re.search(r"(?:^|\s)#+ (.*)", line)
        if comment and last == number - 1 and prose:
            prose[-1] = (number, "comment", prose[-1][2] + " "
                         + comment.group(1))
        elif comment:
            prose.append((number, "comment", comment.group(1)))
        if comment:
            last = number
        prose += [(number, "string", s) for s in
                  re.findall(r'"([^"]* [^"]*)"', line)]
    return prose, set()


def read_document(text):
    """Paragraphs, cells and headings."""
    prose, start = [], 1
    for block in re.split(r"\n[ \t]*\n|\n(?=[|#*-])", text):
        prose.append((start, "text", block))
        start = text.count("\n", 0, text.find(block)) + 1
    return [(n, k, c.lstrip("|#*- ")) for n, k, c in prose], set()


def read(path):
    text = path.read_text(errors="replace")
    if path.suffix in C + (".def",):
        return read_c(text)
    if path.suffix == ".py":
        return read_python(text)
    if path.suffix in DOCUMENTS:
        return read_document(text)
    return read_hashed(text)


def python_names(text):
    """Names of functions and members of a Python source, without leading
    underscores."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names.add(node.name)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            names |= {n.id for one in node.body for n in ast.walk(one)
                      if isinstance(one, (ast.Assign, ast.AnnAssign))
                      and isinstance(n, ast.Name)
                      and isinstance(n.ctx, ast.Store)}
    return {n.lstrip("_") for n in names} - OF_INTERFACES


def word_pattern(words):
    return re.compile(r"\b(%s)\b" % "|".join(sorted(words)))


PROSE_WORDS = word_pattern(list(PRIVATE) + list(PHRASES))


def found_in(root):
    """Entry -> sentence."""
    found = {}

    def add(name, line, thing, advice):
        found.setdefault(f"{name}: {thing}", f"{name}:{line}: {thing}: {advice}")

    for name, path in sources(root):
        prose, names = read(path)
        for line, kind, text in prose:
            text = " ".join(text.split())
            for word in PROSE_WORDS.findall(text.lower()):
                add(name, line, f"word {word}",
                    f"say {PRIVATE.get(word) or PHRASES[word]}")
            if TOLD.search(text.lower()) and (kind != "string"
                                              or path.suffix in C):
                add(name, line, "word told", "say notified, or what is sent")
            subject = SUBJECT.search(text) if kind != "string" else None
            if subject:
                add(name, line, f"subject {subject.group(1)}",
                    f"begin with a noun: {text[subject.start():][:60]}")
            if kind == "comment" and text.endswith("?"):
                add(name, line, "question", f"state the answer: {text[-60:]}")
        names |= {Path(name).stem} if path.suffix in C + (".py",) else set()
        text = bare(path.read_text()) if path.suffix in C else ""
        for identifier in sorted(names):
            check_identifier(name, identifier, text, add)
        if path.suffix in C:
            for match in STATIC.finditer(text):
                add(name, text.count("\n", 0, match.start()) + 1,
                    f"static {match.group(1)}()",
                    "add its object to the name")
        if path.suffix == ".py" and name.startswith(WHOLE_IN):
            for identifier in sorted(WHOLE.keys()
                                     & python_names(path.read_text())):
                add(name, 1, f"name {identifier}", f"say {WHOLE[identifier]}")
    return found


def is_shared(text, identifier, header):
    """True if a function or a member has that name."""
    member = r"(?:->|\.)%s\b|\b%s\("
    if header:
        member += r"|^ +(?:\w+[ *]+)+%s(?:\[[^]]*\])?(?: : \d+)?;"
    return re.search(member.replace("%s", identifier), text, re.M) is not None


def check_identifier(name, identifier, text, add):
    parts = [p.lower() for p in
             re.findall(r"[A-Z]?[a-z]+|[A-Z]+", identifier)]
    of_tests = name.startswith(("tests/", "docs/"))
    pronouns = PRONOUNS.intersection(parts)
    if of_tests and len(parts) > 1 and pronouns:
        add(name, 1, f"name {identifier}",
            f"say the noun, not {min(pronouns)}")
    if of_tests and len(parts) >= SENTENCE:
        return
    for part in parts if identifier not in OF_TORCH else ():
        term = PRIVATE.get(part) or (None if of_tests else PARTS.get(part))
        if term:
            add(name, 1, f"name {identifier}", f"say {term}")
    if identifier in WHOLE and name.startswith(WHOLE_IN) \
            and is_shared(text, identifier, name.endswith(".h")):
        add(name, 1, f"name {identifier}", f"say {WHOLE[identifier]}")


def long_lines(root):
    """`file: long lines` -> (number, step, sentence): documents only, without
    tables, blocks of code and what is generated."""
    found = {}
    for name, path in sources(root):
        if path.suffix not in DOCUMENTS:
            continue
        lines, fenced, generated = [], False, False
        for number, line in enumerate(path.read_text().split("\n"), 1):
            if line.startswith("```"):
                fenced = not fenced
            if "<!-- generated -->" in line or "<!-- /generated -->" in line:
                generated = not generated
            if len(line) > COLUMNS and not fenced and not generated \
                    and not line.startswith(("|", "    ")):
                lines.append(number)
        if lines:
            found[f"{name}: long lines"] = (
                len(lines), COLUMNS_STEP, f"{name}: {len(lines)} lines of more "
                f"than {COLUMNS} columns: {' '.join(map(str, lines[:9]))}")
    return found


def unused_terms(root):
    """Terms of the glossary that neither the sources nor another document
    has."""
    glossary = root / "docs/glossary.md"
    if not glossary.exists():
        return []
    everything = []
    for name, path in sources(root):
        if path != glossary and not name.startswith("tests/"):
            everything.append(path.read_text(errors="replace"))
    text = re.sub(r"[\s_*#/-]+", " ", "\n".join(everything).lower())
    wrong = []
    terms = re.findall(r"^- \*\*(.*?)\*\*:", glossary.read_text(), re.M)
    for term in terms:
        wanted = re.sub(r"[\s_*#/-]+", " ",
                        re.sub(r" \(.*\)", "", term).lower())
        if not re.search(r"\b" + re.escape(wanted), text):
            wrong.append(f"docs/glossary.md: nothing uses the term {term}")
    if not terms:
        wrong.append("docs/glossary.md: no term read")
    return wrong


def subject_of(root):
    """Subject of the newest commit; empty where there is no history."""
    if not (root / ".git").exists():
        return ""
    try:
        return subprocess.run(
            ["git", "-C", root, "log", "-1", "--no-merges", "--format=%s"],
            check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def wrong_subject(subject):
    """Complaints about a subject of a commit: `area: verb ...`."""
    area, mark, rest = subject.partition(": ")
    if not mark or not re.fullmatch(r"[\w./*-]+(, [\w./*-]+)*", area):
        return [f"commit: no `area: verb ...`: {subject}"]
    verb = (rest.split() or [""])[0]
    bad = (not re.fullmatch(r"[a-z-]+", verb) or verb in NO_VERBS
           or verb not in ROOTS and re.search(r"(ed|s|ing)$", verb))
    if bad:
        return [f"commit: `{verb}` is no imperative: {subject}"]
    return [f"commit: say {PRIVATE.get(w) or PHRASES[w]}, not {w}: {subject}"
            for w in PROSE_WORDS.findall(rest.lower())]


def main():
    root = Path(sys.argv[1]).resolve()
    if "--columns" in sys.argv:
        for entry, (count, step, _) in sorted(long_lines(root).items()):
            print(f"{entry} {allow.round_up(count, step)}")
        return 0
    found = found_in(root)
    if "--list" in sys.argv:
        print("\n".join(sorted(found)))
        return 0
    long = long_lines(root)
    if "--shrink" in sys.argv:
        allow.shrink("words", found)
        allow.shrink("columns", long)
    wrong = allow.check("words", found)
    wrong += allow.check_sizes("columns", long)
    wrong += unused_terms(root)
    subject = subject_of(root)
    wrong += wrong_subject(subject) if subject else []
    return allow.finish("words", wrong, "no new private word")


if __name__ == "__main__":
    sys.exit(main())
