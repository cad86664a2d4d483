#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The options of a daemon for its man page: reads the sample configuration,
which the daemon itself writes, and puts it where the page says @OPTIONS@.

    options.py PAGE.scd.in CONFIGURATION OUTPUT
"""
import re
import sys
from pathlib import Path


def escape(text):
    return re.sub(r"([\\*_#])", r"\\\1", text)


def rows(text):
    """(path, default, sentences) of each option."""
    path = []
    words = []
    for line in text.split("\n"):
        indent = (len(line) - len(line.lstrip())) // 2
        line = line.strip()
        option = re.match(r"#([a-z0-9_]+): (.*)$", line)
        group = re.match(r"([a-z0-9_]+):$", line)
        if option:
            yield (".".join(path[:indent] + [option.group(1)]),
                   option.group(2), " ".join(words))
            words = []
        elif group:
            path = path[:indent] + [group.group(1)]
            words = []
        elif line.startswith("# "):
            words.append(line[2:])


def main():
    page, configuration, output = map(Path, sys.argv[1:])
    found = list(rows(configuration.read_text()))
    if len(found) < 10:
        sys.exit(f"{configuration}: cannot be read")
    listed = "\n\n".join(
        f"*{escape(name)}* (default _{escape(default)}_)\n"
        f"\t{escape(words)}" for name, default, words in found)
    output.write_text(page.read_text().replace("@OPTIONS@", listed))


if __name__ == "__main__":
    main()
