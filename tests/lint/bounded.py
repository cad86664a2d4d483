#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a text in a fixed array that becomes a command, a path or the
contents of a file, and of which nobody asks whether it has been cut: a command
that lacks its end does something else.

    bounded.py ROOT

Within a function, such a text is made by snprintf() with a string in it, whose
result is not looked at, or by ps_str_init() or PS_STR_ROOM() without a look at
`truncated`. In pslaunch, whose texts are commands for other programs, each
ps_str counts but those for people, which have one of the names PEOPLE."""
import re
import sys
from pathlib import Path

from c_text import uncommented

FOLDERS = ("daemons", "lib/client")
# Functions that take a command, a path, or bytes of a file.
SINKS = ("open", "openat", "fopen", "freopen", "rename", "renameat", "unlink",
         "unlinkat", "mkdir", "rmdir", "symlink", "link", "chdir", "opendir",
         "execv", "execvp", "execve", "execl", "system", "popen", "setenv",
         "write", "fwrite", "command_add", "command_addf",
         "command_add_words", "words_add", "words_option", "definition_text")
PEOPLE = ("why", "error", "list", "where", "report", "entry")
FUNCTION = re.compile(r"^(\w[^\n;{}]*\([^;{}]*\))\n\{\n(.*?)^\}", re.M | re.S)
PRINTED = re.compile(r"(?:^|[;{}])\s*(?:\(void\)\s*)?v?snprintf\(\s*([^,]+?),"
                     r"[^;]*?(\"(?:\\.|[^\"\\])*\"[^;]*)\);", re.S)
BUILT = re.compile(r"ps_str_init\(\s*&?([\w.>\[\]-]+?),\s*([^,]+?),")
ROOM = re.compile(r"struct ps_str (\w+) = (PS_STR_ROOM)\(")
STRING = re.compile(r"%-?[\d.*]*s")


def is_used(body, text):
    """The sink that gets this text; None."""
    for sink in SINKS:
        for m in re.finditer(rf"(?<![\w>.]){sink}\(([^;]*)\)", body):
            if re.search(rf"(?<![\w>.&]){re.escape(text)}(?![\w\[(.]|->)",
                         m.group(1)):
                return sink
    return None


def found_in_function(body, in_pslaunch):
    """(offset, sentence) of each violation."""
    for m in PRINTED.finditer(body):
        text = " ".join(m.group(1).split())
        sink = is_used(body[m.end():], text)
        bound = re.search(r"%-?\d*\.\d+s", m.group(2))
        if STRING.search(m.group(2)) and not bound and sink:
            yield m.start(1), (f"{text} of snprintf() goes to {sink}(): look "
                               "whether it has been cut, or use asprintf()")
    for m in (*BUILT.finditer(body), *ROOM.finditer(body)):
        name, text = m.group(1), " ".join(m.group(2).split())
        if name in PEOPLE or \
                re.search(rf"\b{re.escape(name)}(\.|->)truncated", body):
            continue
        sink = is_used(body[m.end():], text) or \
            is_used(body[m.end():], f"{name}.data")
        if sink or in_pslaunch:
            yield m.start(1), (f"{name} goes to {sink or 'a command'}"
                               f"{'()' if sink else ''}: look at {name}."
                               "truncated")


def found_in(root):
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.c")):
            name = path.relative_to(root).as_posix()
            text = uncommented(path.read_text())
            for m in FUNCTION.finditer(text):
                for at, what in found_in_function(
                        m.group(2), name.startswith("daemons/pslaunch/")):
                    line = text.count("\n", 0, m.start(2) + at) + 1
                    found.append(f"{name}:{line}: {what}")
    return found


def main():
    found = found_in(Path(sys.argv[1]).resolve())
    for line in found:
        print(line)
    print(f"{len(found)} texts that may have been cut")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
