#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a protocol that is hidden in another field, unless allow/wire.txt
has it, which is empty today and not there. What daemons and workers say to each
other is a field of a message in proto/messages.toml, with an id, a bound and a
golden file.

    wire.py ROOT           the check
    wire.py ROOT --list    what is found, as lines of the allow-list
    wire.py ROOT --shrink  the check, with a list rid of what nothing needs

Found are
- shifts and masks in statements on `payload_len`, outside of proto/frame.c;
- strings that begin with "c:", "s:" or "i:", the kind of a key in its name;
- comparisons of a letter of a name, for the same purpose;
- 1 << 63, a mark in a number that is for something else;
- values of a codec's random key (rng_key, salt) that mean something else."""
import re
import sys

import allow
from c_text import DIRECTIVE, bare, lines_of, uncommented

FOLDERS = ("lib", "proto", "daemons")
FRAMING = ("proto/frame.c", "proto/frame.h")
# Bits of numbers are what these are about.
NUMERIC = ("lib/base/", "lib/kernel/")

BITS = re.compile(r"<<|>>| & | \| |[&|]= ")
PREFIX = re.compile(r"([\"'])([csi]:(?:\\.|[^\"'\\\n])*)\1")
LETTER = re.compile(r"\b(\w*name\[\d\]|\*\w*name)\s*[=!]=\s*('[A-Za-z]')")
TOP_BIT = re.compile(r"(?:\b1[uUlL]*|\(1[uUlL]*\)|\(uint64_t\)\s*1)\s*<<\s*63\b"
                     r"|\b0x80{15}[uUlL]*\b", re.I)
MARK = re.compile(r"\b(salt|rng_key)\s*(?:[=!]=|=)(?!=)[^,;{}]*?"
                  r"(?<![\w.])([1-9]\d*[uU]?|[A-Z][A-Z0-9_]{2,})\b")


def statements(text):
    """(line, text) of each run between semicolons and braces."""
    line = 1
    for piece in re.split(r"([;{}])", text):
        lead = len(piece) - len(piece.lstrip())
        yield line + piece.count("\n", 0, lead), " ".join(piece.split())
        line += piece.count("\n")


def found_in(root):
    """Entry -> sentence."""
    found = {}

    def add(name, line, thing, advice):
        found.setdefault(f"{name}: {thing}", f"{name}:{line}: {thing}: {advice}")

    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".c", ".h", ".inc", ".py"):
                continue
            name = path.relative_to(root).as_posix()
            text = path.read_text()
            if path.suffix == ".py":
                text = re.sub(r"#[^\n]*", "", text)
                check_prefixes(name, text, add)
                continue
            text = uncommented(text)
            check_prefixes(name, text, add)
            for match in LETTER.finditer(text):
                add(name, line_at(text, match), f"{match.group(1)} "
                    f"{match.group(2)}", "give the key a kind")
            text = bare(text)
            if not name.startswith(NUMERIC):
                for match in TOP_BIT.finditer(text):
                    add(name, line_at(text, match), "1 << 63",
                        "use a field of its own")
            for match in MARK.finditer(text):
                add(name, line_at(text, match), f"{match.group(1)} "
                    f"{match.group(2)}", "use a field of its own")
            if name in FRAMING:
                continue
            text = DIRECTIVE.sub(lines_of, text)
            for line, statement in statements(text):
                if re.search(r"\bpayload_len\b", statement) \
                        and BITS.search(statement):
                    add(name, line, f"bits of payload_len in `{statement}`",
                        "use a field of the message")
    return found


def line_at(text, match):
    return text.count("\n", 0, match.start()) + 1


def check_prefixes(name, text, add):
    for match in PREFIX.finditer(text):
        add(name, line_at(text, match), f'"{match.group(2)}"',
            "give the key a kind")


if __name__ == "__main__":
    sys.exit(allow.main("wire", found_in,
                        "no new protocol outside of messages.toml"))
