# SPDX-License-Identifier: Apache-2.0
"""Lists of tests that are expected to fail.

A line of expected/SUITE.txt is a pattern (that of a shell), optionally with
@WORLD behind it, another pattern, and the reason. Lines with # are comments. The first line
that fits a test counts."""
import fnmatch
from dataclasses import dataclass


@dataclass
class Entry:
    pattern: str
    world: str
    reason: str
    line: int

    def fits(self, test, world):
        return self.is_of(world) and fnmatch.fnmatchcase(test, self.pattern)

    def is_of(self, world):
        return not self.world or fnmatch.fnmatchcase(world, self.world)


class Expected:
    """The list of a suite."""

    def __init__(self, path):
        self.path = path
        self.entries = []
        if not path.exists():
            return
        for number, text in enumerate(path.read_text().split("\n"), 1):
            text = text.strip()
            if not text or text.startswith("#"):
                continue
            words = text.split(None, 1)
            if len(words) != 2:
                raise ValueError(f"{path}:{number}: no reason")
            pattern, _, world = words[0].partition("@")
            self.entries.append(Entry(pattern, world, words[1], number))

    def find(self, test, world):
        for entry in self.entries:
            if entry.fits(test, world):
                return entry
        return None

    def unused(self, tests):
        """Lines that fit none of these (test, world)."""
        worlds = {world for _, world in tests}
        return [e for e in self.entries
                if any(map(e.is_of, worlds)) and
                not any(e.fits(*t) for t in tests)]


def verdict(outcome, entry):
    """What an outcome means beside an entry of the list, or None."""
    if outcome == "skip":
        return "skip"
    if outcome == "pass":
        return "unexpected pass" if entry else "pass"
    return "expected failure" if entry else "failure"
