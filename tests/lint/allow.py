# SPDX-License-Identifier: Apache-2.0
"""Allow-lists of the lints: what a rule finds in the tree today, one line for
each, `file: thing`, sorted, in `allow/LINT.txt`. A list may only shrink:
anything found that it does not have is a complaint, and so is an entry that
nothing needs any more.

Sizes have the entry `file: thing NUMBER`, where the number is what is found,
rounded up to a step. More than that is a complaint, and so is a whole step
less, so that the number follows what shrinks."""
import sys
from pathlib import Path

sys.dont_write_bytecode = True
FOLDER = Path(__file__).resolve().parent / "allow"


def read(name, folder=FOLDER):
    """Entries of a list, each with its line number, and what is wrong with the
    form of the list."""
    path = folder / f"{name}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    entries = {}
    wrong = []
    last = ""
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        where = f"tests/lint/allow/{path.name}:{number}"
        if ": " not in line or line != line.strip():
            wrong.append(f"{where}: not `file: thing`")
        if line <= last:
            wrong.append(f"{where}: not in order, or there twice: {line}")
        last = line
        entries[line] = number
    return entries, wrong


def check(name, found, folder=FOLDER):
    """Complaints about `found`, which maps entries to sentences on what is
    wrong, against the list."""
    entries, wrong = read(name, folder)
    for entry in sorted(found):
        if entry not in entries:
            wrong.append(found[entry])
    for entry, number in entries.items():
        if entry not in found:
            wrong.append(f"tests/lint/allow/{name}.txt:{number}: nothing needs "
                         f"this entry any more, remove it: {entry}")
    return wrong


def round_up(size, step):
    return (size + step - 1) // step * step


def check_sizes(name, found, folder=FOLDER):
    """The same for sizes: `found` maps `file: thing` to (size, step of the
    list, sentence)."""
    entries, wrong = read(name, folder)
    listed = {}
    for entry, number in entries.items():
        thing, _, size = entry.rpartition(" ")
        listed[thing] = (int(size) if size.isdigit() else 0, number)
    for thing in sorted(found):
        size, step, sentence = found[thing]
        if thing not in listed or size > listed[thing][0]:
            wrong.append(sentence)
    for thing, (size, number) in listed.items():
        where = f"tests/lint/allow/{name}.txt:{number}"
        if thing not in found:
            wrong.append(f"{where}: nothing needs this entry any more, remove "
                         f"it: {thing}")
        elif round_up(found[thing][0], found[thing][1]) < size:
            wrong.append(f"{where}: {thing} has {found[thing][0]}, write "
                         f"{round_up(found[thing][0], found[thing][1])}")
    return wrong


def shrink(name, found, folder=FOLDER):
    """Takes out of a list what nothing needs any more, and sizes down to what
    is found; adds nothing. `found` is that of check() or check_sizes()."""
    path = folder / f"{name}.txt"
    if not path.exists():
        return
    lines = []
    for line in path.read_text().splitlines():
        thing, _, size = line.rpartition(" ")
        if line.startswith("#") or line in found:
            lines.append(line)
        elif size.isdigit() and isinstance(found.get(thing), tuple):
            most = round_up(*found[thing][:2])
            lines.append(f"{thing} {min(int(size), most)}")
    path.write_text("\n".join(lines) + "\n")


def main(name, found_in, good):
    """The program of a lint without sizes: `found_in` maps the root of the
    tree to what check() takes. The exit status."""
    found = found_in(Path(sys.argv[1]).resolve())
    if "--list" in sys.argv:
        print("\n".join(sorted(found)))
        return 0
    if "--shrink" in sys.argv:
        shrink(name, found)
    return finish(name, check(name, found), good)


def finish(name, wrong, good):
    """Prints the complaints, or the sentence `good`; the exit status."""
    print("\n".join(wrong) or good)
    if wrong:
        print(f"{name}: {len(wrong)} complaints; CONTRIBUTING.md says what the "
              "rules are")
    return 1 if wrong else 0
