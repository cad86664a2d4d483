#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails on a circle of more than three files within one component, unless
allow/circles.txt has it, and on a file that uses one above it where the head of
the folder's inner.h states layers.

    circles.py ROOT BUILD [NM]         the check
    circles.py ROOT BUILD --count      figures of each component
    circles.py ROOT BUILD --list       the circles, as lines of the allow-list
    circles.py ROOT BUILD --shrink     the check, with a list rid of what
                                       nothing needs

A component is a folder of the list below with all folders in it. There are two
graphs of C files. In the first, a file refers to another whose header it
includes, a header and its source file being one; a header with the name of its
folder, as job/job.h, is one of its own, because all files of the folder share
it. In the second, a file refers to another that defines a function or object
that it uses; the object files of the build tell that. The graph of Python files
has imports. Files of a circle are those from each of which one comes to each
other.

A header that inner.h includes is one of its own, too: all files of the folder
share its data, and the object files tell who uses its functions.

The allow-list has a line for each file, `FILE: KIND CIRCLE`. A circle may lose
files or fall apart; it may not gain a file, nor join another."""
import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import allow

COMPONENTS = ("lib/base", "lib/conf", "lib/core", "lib/crypto", "lib/kernel",
              "lib/net", "lib/driver", "lib/client", "daemons/common", "daemons/psctl",
              "daemons/pslaunch", "daemons/psched", "daemons/psserver",
              "daemons/psworker-agent", "proto", "lib/client/python")
LARGEST = 3
# The head of an inner.h, and a line of it.
LAYERS = re.compile(r"^ \* Layers, top to bottom.*?\*/", re.M | re.S)
LAYER = re.compile(r"^ \*     ([\w/]+\.c) ", re.M)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def component_of(path):
    """The longest component that holds the file."""
    return max((c for c in COMPONENTS if path.startswith(c + "/")),
               key=len, default=None)


def circles(graph):
    """Strongly connected sets of more than one file, largest first (Tarjan,
    without recursion)."""
    index, low, on_stack, stack, found = {}, {}, set(), [], []
    for root in sorted(graph):
        if root in index:
            continue
        work = [(root, iter(sorted(graph[root])))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(graph[target]))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    above = work[-1][0]
                    low[above] = min(low[above], low[node])
                if low[node] == index[node]:
                    one = set()
                    while node not in one:
                        one.add(stack[-1])
                        on_stack.discard(stack.pop())
                    if len(one) > 1:
                        found.append(sorted(one))
    return sorted(found, key=lambda one: (-len(one), one))


def includes(root):
    """File -> files whose header it includes; a header that has a source file
    stands for it, unless it is the header of its folder."""
    names = {p.relative_to(root).as_posix()
             for folder in ("lib", "proto", "daemons")
             for p in (root / folder).rglob("*") if p.suffix in (".c", ".h", ".inc")}

    # Headers with data that all files of a folder share.
    shared = {f"lib/{header}" for inner in (root / "lib").rglob("inner.h")
              for header in INCLUDE.findall(inner.read_text())
              if (root / "lib" / header).parent == inner.parent}

    def unit(name):
        of_folder = Path(name).stem == Path(name).parent.name
        source = name[:-2] + ".c" if name.endswith(".h") else name
        own = of_folder or name in shared
        return source if source in names and not own else name

    graph = {unit(n): set() for n in names}
    for name in names:
        text = (root / name).read_text()
        for header in INCLUDE.findall(text):
            for at in (f"{Path(name).parent.as_posix()}/{header}",
                       f"lib/{header}", header, f"daemons/{header}"):
                if at in names:
                    if unit(at) != unit(name):
                        graph[unit(name)].add(unit(at))
                    break
    return graph


def objects(root, build):
    """Source file -> its object file, as the build says; and the source files
    whose object file is not there."""
    found, missing = {}, set()
    for one in json.loads((build / "compile_commands.json").read_text()):
        source = Path(one["directory"], one["file"]).resolve()
        made = Path(one["directory"], one["output"])
        if not source.is_relative_to(root):
            continue
        name = source.relative_to(root).as_posix()
        if component_of(name) is not None and made.exists():
            found.setdefault(name, made)
        elif component_of(name) is not None:
            missing.add(name)
    return found, missing - set(found)


def calls(files, nm="nm"):
    """File -> files that define a symbol that it uses."""
    graph = {name: set() for name in files}
    owner, used = {}, {}
    by_object = {str(made): name for name, made in files.items()}
    if not files:
        return graph
    out = subprocess.run([nm, "-A", "-P", "-g", *by_object], check=True,
                         capture_output=True, text=True).stdout
    for line in out.splitlines():
        where, _, rest = line.partition(": ")
        symbol, kind = rest.split()[:2]
        name = by_object[where]
        if kind in "Uvw":
            used.setdefault(name, set()).add(symbol)
        else:
            # A name that two programs define is each component's own.
            owner[(component_of(name), symbol)] = name
    for name, symbols in used.items():
        for symbol in symbols:
            target = owner.get((component_of(name), symbol))
            if target is not None and target != name:
                graph[name].add(target)
    return graph


def inner_of(root, name):
    """The inner.h of the nearest folder that has one; None: none has."""
    for folder in (root / name).parents:
        if (folder / "inner.h").exists():
            return folder / "inner.h"
        if folder == root:
            return None


def out_of_layer(root, files, nm="nm"):
    """Files that use one above them, by a symbol or a header, or that the list
    of their folder lacks."""
    used, included, wrong = calls(files, nm), includes(root), []
    for header in sorted((root / "lib").rglob("inner.h")):
        text = LAYERS.search(header.read_text())
        if text is None:
            continue
        folder = header.parent.relative_to(root).as_posix()
        names = [f"{folder}/{name}" for name in LAYER.findall(text[0])]
        built = {name for name in files if inner_of(root, name) == header}
        wrong += [f"{folder}/inner.h: the layers have {name} wrong or not at all"
                  for name in sorted(built ^ set(names))]
        wrong += [f"{name}: uses {target}, which inner.h has above it"
                  for at, name in enumerate(names)
                  for target in sorted(used.get(name, set())
                                       | included.get(name, set()))
                  if target in names[:at]]
    return wrong


def imports(root):
    """Python file -> files of its package that it imports, at any place but
    under TYPE_CHECKING."""
    graph = {}
    for path in sorted((root / "lib").rglob("*.py")):
        name = path.relative_to(root).as_posix()
        graph[name] = set()
        tree = ast.parse(path.read_text())
        skipped = {id(inner) for node in ast.walk(tree)
                   if isinstance(node, ast.If)
                   and "TYPE_CHECKING" in ast.dump(node.test)
                   for part in node.body for inner in ast.walk(part)}
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            modules = []
            if isinstance(node, ast.ImportFrom) and node.level == 1:
                modules = [node.module or a.name for a in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules = [node.module]
                modules += [f"{node.module}.{a.name}" for a in node.names]
            elif isinstance(node, ast.Import):
                modules = [a.name for a in node.names]
            for module in modules:
                module = module.removeprefix(path.parent.name + ".")
                target = path.parent / (module.replace(".", "/") + ".py")
                if target.exists() and target != path:
                    graph[name].add(target.relative_to(root).as_posix())
    return graph


def within(graph, component):
    """The part of a graph that lies in one component."""
    return {n: {t for t in targets if component_of(t) == component}
            for n, targets in graph.items() if component_of(n) == component}


def found_in(root, build, nm="nm"):
    """(component, kind, circles, number of files) of each component and graph,
    and the source files that have no object file."""
    files, missing = objects(root, build)
    graphs = {"includes": includes(root), "calls": calls(files, nm),
              "imports": imports(root)}
    found = []
    for component in COMPONENTS:
        for kind, graph in graphs.items():
            part = within(graph, component)
            if part:
                found.append((component, kind, circles(part), len(part)))
    return found, missing


def as_entries(found):
    """Entry without its circle -> (circle, sentence)."""
    entries = {}
    for component, kind, some, _ in found:
        for one in some:
            if len(one) <= LARGEST:
                continue
            for name in one:
                entries[f"{name}: {kind}"] = (one, f"{name}: is in a circle of "
                                              f"{len(one)} files by {kind}: "
                                              + " ".join(one))
    return entries


def listed_names(folder):
    """Entry without its circle -> entry of the list."""
    return {entry.rpartition(" ")[0]: entry
            for entry in allow.read("circles", folder)[0]}


def check(found, folder=allow.FOLDER):
    """Complaints; a circle counts as known when all its files are listed under
    one name."""
    named = listed_names(folder)
    entries, wrong = {}, []
    for short, (one, sentence) in as_entries(found).items():
        kind = short.rpartition(" ")[2]
        names = {named.get(f"{n}: {kind}", " ?").rpartition(" ")[2]
                 for n in one} - {"?"}
        if len(names) > 1:
            wrong.append(f"circles {' and '.join(sorted(names))} have become "
                         f"one: {sentence}")
        entries[named.get(short, short)] = sentence
    return sorted(set(wrong)) + allow.check("circles", entries, folder)


def count(found):
    print(f"{'component':24} {'kind':9} {'files':>5} {'circles':>7} "
          f"{'over 3':>6} {'largest':>7} {'files in them':>13}")
    for component, kind, some, files in found:
        print(f"{component:24} {kind:9} {files:5} {len(some):7} "
              f"{sum(len(one) > LARGEST for one in some):6} "
              f"{max((len(one) for one in some), default=0):7} "
              f"{sum(len(one) for one in some):13}")


def main():
    root, build = (Path(a).resolve() for a in sys.argv[1:3])
    nm = [a for a in sys.argv[3:] if not a.startswith("--")]
    found, missing = found_in(root, build, *nm)
    if "--count" in sys.argv:
        count(found)
        return 0
    if "--list" in sys.argv:
        lines = []
        for _, kind, some, _ in found:
            for one in some:
                if len(one) > LARGEST:
                    name = Path(one[0]).with_suffix("").as_posix()
                    name = name.removeprefix("lib/").replace("/", "-")
                    lines += [f"{n}: {kind} {name}" for n in one]
        print("\n".join(sorted(lines)))
        return 0
    if "--shrink" in sys.argv:
        named = listed_names(allow.FOLDER)
        allow.shrink("circles", {named.get(s): "" for s in as_entries(found)})
    wrong = [f"{n}: no object file in the build" for n in sorted(missing)]
    wrong += check(found)
    wrong += out_of_layer(root, objects(root, build)[0], *nm)
    files = sum(count for _, kind, _, count in found if kind != "includes")
    return allow.finish("circles", wrong, f"{files} files, no new circle")


if __name__ == "__main__":
    sys.exit(main())
