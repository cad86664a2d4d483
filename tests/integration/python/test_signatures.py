# SPDX-License-Identifier: Apache-2.0
"""Every name and every parameter of the packages that pskv stands for acts, is
refused in words, warns once, or has a reason: a row in signatures/*.toml. The
names come from the packages themselves, where they are installed, and from the
source of Horovod (signatures/horovod-0.28.1.txt; PSKV_HOROVOD_SOURCE names the
folder of the source, to compare). A name or parameter without a row fails.

A table of `signatures`:

    title = "..."          of the package, for people
    python = "torch2"      a key of PYTHONS; "torch torch2": with each of them
    walk = ["torch.distributed.Work"]      what walk.py walks, or
    list = "horovod-0.28.1.txt"            the file with its names
    theirs = "horovod.torch"               and the part of it that rows omit
    ours = "pskv.torch"    where the same names are here; none: not compared
    names = false          ours has them under other names, which is no harm
    setup = '''...'''      statements before the tries of the rows

    [rows.allreduce]       or `rows.NAME = {...}`
    acts = "tensor name"   parameters that act; ours has them, in that order.
                           "*": the name and all of its parameters
    idle = {device = "why nothing has to be done"}
    refused.comm = ["words of the error", "hvd.init(comm=[1])", ...]
    warns.device = ["words of the warning", "hvd.join(device=1)", ...]
    outside = "why pskv does not stand for it"
    only = "torch2"        the calls are tried with this interpreter alone

Refusals and warnings are tried: the calls are made in a job of one rank, and
words are regular expressions. The parameter "*" is the name itself with all its
parameters. A parameter that acts may be refused with some values, too."""
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tomllib

import pytest

import trio as harness
from trio import PACKAGE

TABLES = pathlib.Path(__file__).with_name("signatures")
WALK = TABLES / "walk.py"
TRY = TABLES / "try.py"
PYTHONS = {
    "this": pathlib.Path(sys.executable),
    "torch": pathlib.Path(os.environ.get("PSKV_TORCH_PYTHON",
                                         "/usr/bin/python3")),
    "torch2": pathlib.Path(os.environ.get(
        "PSKV_TORCH2_PYTHON", harness.BUILD / "torch2/bin/python")),
    "mxnet": pathlib.Path(os.environ.get(
        "PSKV_MXNET_PYTHON", harness.BUILD / "mxnet/bin/python")),
}
# The module that an interpreter must have.
NEEDS = {"torch": "torch", "torch2": "torch", "mxnet": "mxnet",
         "this": "numpy"}
KINDS = ("acts", "idle", "refused", "warns", "outside")


@dataclasses.dataclass
class Table:
    """A file of `signatures`, with one interpreter."""

    name: str
    python: str
    head: dict
    rows: dict

    def run(self, program, *arguments, launcher=()):
        return subprocess.run(
            [str(c) for c in (*launcher, PYTHONS[self.python], "-W", "ignore",
                              program, *arguments)],
            text=True, check=False, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, timeout=6 * harness.PATIENCE,
            env=harness.clean_env(
                PYTHONPATH=PACKAGE,
                PYTHONDONTWRITEBYTECODE=1, PSKV_LIBRARY=harness.LIBRARY,
                OMP_NUM_THREADS=1))

    def names(self):
        """Parameters of each name of the package, as rows name it."""
        if "list" in self.head:
            text = (TABLES / self.head["list"]).read_text()
        else:
            done = self.run(WALK, "import", *self.head["walk"])
            assert done.returncode == 0, done.stderr
            text = done.stdout
        found = {}
        for line in text.splitlines():
            name, *parameters = line.split()
            for prefix in self.head["theirs"].split():
                if name.startswith(prefix + "."):
                    have = found.setdefault(name[len(prefix) + 1:], [])
                    have += [p for p in parameters if p not in have]
        return found

    def verdict(self, name, parameter):
        """The kind of a parameter's row, or None. A parameter "*" is the name
        itself."""
        row = self.rows.get(name)
        if row is None:
            return None
        for kind in KINDS:
            named = row.get(kind, ())
            if kind == "outside" and named:
                return kind
            if kind == "acts" and isinstance(named, str):
                named = named.split()
            if "*" in named or parameter in named:
                return kind
        return "acts" if parameter == "*" else None

    def tries(self, kind):
        """(name, parameter, words, call) of refusals or warnings."""
        for name, row in self.rows.items():
            if row.get("only", self.python) != self.python:
                continue
            for parameter, (words, *calls) in row.get(kind, {}).items():
                for call in calls:
                    yield name, parameter, words, call


def has(python):
    return PYTHONS[python].exists() and subprocess.run(
        [PYTHONS[python], "-c", "import sys, importlib.util as u; "
         f"sys.exit(u.find_spec('{NEEDS[python]}') is None)"],
        capture_output=True, check=False).returncode == 0


def tables():
    for path in sorted(TABLES.glob("*.toml")):
        head = tomllib.loads(path.read_text())
        rows = head.pop("rows")
        for python in head["python"].split():
            yield Table(path.stem, python, head, rows)


def each():
    here = {python: has(python) for python in PYTHONS}
    return [pytest.param(
        t, id=f"{t.name}-{t.python}",
        marks=[] if here[t.python] else pytest.mark.skip(
            f"{PYTHONS[t.python]} cannot import {NEEDS[t.python]}"))
        for t in tables()]


@pytest.fixture(params=each())
def table(request):
    return request.param


def test_every_name_and_parameter_has_a_row(table):
    names = table.names()
    assert names, "no name was found"
    counts = dict.fromkeys(KINDS, 0)
    missing = []
    for name, parameters in names.items():
        for parameter in ["*", *parameters]:
            kind = table.verdict(name, parameter)
            if kind is None:
                missing.append(f"{name} {parameter}")
            else:
                counts[kind] += 1
    total = sum(counts.values())
    print(f"{table.head['title']}, {table.python}: {len(names)} names, "
          f"{total - len(names)} parameters:",
          ", ".join(f"{n} {kind}" for kind, n in counts.items()))
    assert not missing, "no row in signatures/%s.toml:\n%s" % (
        table.name, "\n".join(missing))


def test_no_row_is_of_something_that_is_gone():
    """Where all interpreters of a table are here."""
    left = {}
    for t in tables():
        if not has(t.python):
            left[t.name] = None
        if left.setdefault(t.name, {}) is None:
            continue
        names = t.names()
        for name, row in t.rows.items():
            left[t.name].setdefault(name, set()).update(
                [*row.get("acts", "").split(), *row.get("idle", ())])
    for t in tables():
        if left.get(t.name) is None:
            continue
        for name, parameters in t.names().items():
            if name in left[t.name]:
                left[t.name][name] -= {*parameters, "*"}
                left[t.name][name].add(None)
    gone = [f"{table}: {name} {'' if None in rest else '(the name)'} "
            f"{sorted(r for r in rest if r)}"
            for table, names in left.items() if names
            for name, rest in names.items() if rest != {None}]
    assert not gone, "\n".join(gone)


def test_acting_parameters_are_here_in_the_same_order(table):
    """A method that acts is one of pskv's own, with the parameters that act in
    the order of the package."""
    if "ours" not in table.head:
        pytest.skip("nothing of the same name is here: the package calls pskv")
    wanted = {}
    for name, parameters in table.names().items():
        if table.verdict(name, "*") not in ("outside", None):
            wanted[name] = [
                (p, table.verdict(name, p) in ("acts", "refused", "warns"))
                for p in parameters]
    done = table.run(TRY, "compare", table.head["ours"], json.dumps(wanted),
                     json.dumps(table.head.get("names", True)))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", done.stdout


@pytest.mark.parametrize("kind", ["refused", "warns"])
def test_refusals_and_warnings_are_made(table, kind):
    tries = list(table.tries(kind))
    if not tries:
        pytest.skip("the table has none")
    done = table.run(TRY, kind, table.head["setup"], json.dumps(
        [[words, call] for _, _, words, call in tries]),
        launcher=(harness.program("pslaunch"), "-n", 1, "-s", 1, "--"))
    assert done.returncode == 0, done.stderr + done.stdout
    # Behind the number that pslaunch writes before each line.
    results = json.loads(done.stdout.splitlines()[-1].split(" ", 1)[1])
    failed = [f"{name} {parameter}: {call}\n    wanted: {words}\n"
              f"    got: {got}"
              for (name, parameter, words, call), got in zip(tries, results)
              if got is not None]
    assert len(results) == len(tries)
    assert not failed, "\n".join(failed)
    print(f"{table.head['title']}, {table.python}: {len(tries)} {kind}")


@pytest.mark.skipif("PSKV_HOROVOD_SOURCE" not in os.environ,
                    reason="PSKV_HOROVOD_SOURCE names no source of Horovod")
def test_the_list_of_horovods_names_is_that_of_its_source():
    done = subprocess.run(
        [sys.executable, WALK, "parse", os.environ["PSKV_HOROVOD_SOURCE"],
         "horovod.torch", "horovod.mxnet"], text=True, check=True,
        stdout=subprocess.PIPE)
    assert done.stdout == (TABLES / "horovod-0.28.1.txt").read_text()
