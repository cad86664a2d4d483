# SPDX-License-Identifier: Apache-2.0
"""C sources as the lints read them: comments, strings and tokens, without a
compiler."""
import re

PIECE = re.compile(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\""
                   r"|'(?:\\.|[^'\\\n])*'", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
TOKEN = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\"\"|''|->|\S")
CLOSING = {"(": ")", "[": "]", "{": "}"}


def lines_of(match):
    return "\n" * match.group().count("\n")


def uncommented(text):
    """The same lines without comments."""
    return PIECE.sub(lambda m: m.group() if m.group()[0] in "\"'"
                     else lines_of(m) or " ", text)


def bare(text):
    """The same lines without comments, and with nothing in strings."""
    return PIECE.sub(lambda m: m.group()[0] * 2 if m.group()[0] in "\"'"
                     else lines_of(m) or " ", text)


def comments(text):
    """(line, text) of each comment, without the stars of its lines."""
    for match in PIECE.finditer(text):
        piece = match.group()
        line = text.count("\n", 0, match.start()) + 1
        if piece.startswith("/*"):
            yield line, re.sub(r"\n[ \t]*\*(?!/)", "\n", piece[2:-2]).strip()
        elif piece.startswith("//"):
            yield line, piece[2:].strip()


def tokens(text):
    """(token, line) of each token outside of comments, strings and
    directives."""
    found = []
    text = DIRECTIVE.sub(lines_of, bare(text))
    for number, line in enumerate(text.split("\n"), 1):
        found += [(m.group(), number) for m in TOKEN.finditer(line)]
    return found


def closing(some, at):
    """Index of the bracket that closes the one at `at`; the number of tokens
    if none does."""
    wanted = []
    for i in range(at, len(some)):
        token = some[i][0]
        if token in CLOSING:
            wanted.append(CLOSING[token])
        elif wanted and token == wanted[-1]:
            wanted.pop()
            if not wanted:
                return i
    return len(some)


def split(some, mark):
    """Runs of tokens between marks that are outside of brackets."""
    runs, depth = [[]], 0
    for one in some:
        if one[0] in CLOSING:
            depth += 1
        elif one[0] in CLOSING.values():
            depth -= 1
        if one[0] == mark and depth == 0:
            runs.append([])
        else:
            runs[-1].append(one)
    return runs
