# SPDX-License-Identifier: Apache-2.0
"""More than a hundred broken configuration files: each is refused with file,
line, column and, for a name that was misspelled, the nearest one. The sample
files, from which they are made, pass."""
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio as support

DAEMONS = ("psched", "psserver", "psworker-agent")
CONFIG = 78
OPTION = re.compile(r"^( *)#([a-z_]+): (.*)$")
NUMBER = re.compile(r"^\d+(us|ms|s|m|h|d|B|KiB|MiB|GiB)?$")


def check(daemon, path):
    done = subprocess.run(
        [support.program(daemon), "-c", str(path), "--check-config"],
        capture_output=True, check=False, timeout=support.PATIENCE,
        env=support.clean_env())
    return done.returncode, (done.stdout + done.stderr).decode()


def sample(daemon):
    return (support.SOURCE / f"conf/{daemon}.yaml").read_text()


def options(text):
    """(number of the line, indentation, path, name, default) of each option of
    a sample file."""
    above = []
    for number, line in enumerate(text.split("\n"), 1):
        section = re.match(r"^( *)([a-z_]+):$", line)
        if section:
            above = above[:len(section[1]) // 2] + [section[2]]
        found = OPTION.match(line)
        if found:
            indent, name, value = found.groups()
            path = ".".join(above[:len(indent) // 2] + [name])
            yield number, len(indent), path, name, value


def misspelled(name):
    """Two letters in the middle change places; if they are the same, the last
    one is missing."""
    i = len(name) // 2
    changed = name[:i - 1] + name[i] + name[i - 1] + name[i + 1:]
    return changed if changed != name else name[:-1]


def broken_samples(daemon):
    """(text, line, column, words of the message): each option of the sample
    file in turn with another name, another kind of value, no number."""
    text = sample(daemon)
    lines = text.split("\n")
    for i, (number, indent, path, name, value) in enumerate(options(text)):
        behind = indent + len(name) + 3  # Column of the value.
        if i % 3 == 0:
            name = misspelled(name)
            column, words = indent + 1, f"did you mean {path}?"
        elif i % 3 == 1 or not NUMBER.match(value):
            value = "{}"
            column, words = behind, f"{path} is not a map"
        else:
            value = "12 parsecs"
            column, words = behind, f"{path}: '12 parsecs'"
        changed = lines[:]
        changed[number - 1] = f"{' ' * indent}{name}: {value}"
        yield "\n".join(changed).encode(), number, column, words


# (bytes, line, column, words of the message)
GARBAGE = [
    (b"\tlog: {}\n", 1, 1, "cannot start any token"),
    (b"log:\n\tlevel: info\n", 2, 1, "cannot start any token"),
    (b"log: {level: info\n", 2, 1, "did not find expected ',' or '}'"),
    (b"log: [\n", 2, 1, "flow"),
    (b"log:\n  level: 'info\n", 3, 1, "quoted scalar"),
    (b"log:\n  level: \"in\\qfo\"\n", 2, 13, "escape"),
    (b"log:\n  level: info\n level: info\n", 3, 2, "did not find expected key"),
    (b"log:\n  level: info\n  level: info\n", 3, 3, "log.level was given"),
    (b"log:\n  level: &x info\n", 2, 10, "anchors"),
    (b"log:\n  level: *x\n", 2, 10, "aliases"),
    (b"log:\n  level: !!str info\n", 2, 10, "tags"),
    (b"log: {level: info}\n---\nlog: {level: info}\n", 2, 1,
     "second document"),
    (b"- log\n", 1, 1, "the file is a list"),
    (b"log\n", 1, 1, "the file is a single value"),
    (b"log: info\n", 1, 6, "log is a section"),
    (b"log: [info]\n", 1, 7, "log is a section"),
    (b"log:\n  <<: {}\n", 2, 3, "cannot be a key"),
    (b"log:\n  ? [a]\n  : b\n", 2, 5, "a list cannot be a key"),
    (b"log:\n  level: \xff\xfe\n", 2, 10, "UTF-8"),
    (b"log:\n  level: \x00\n", 2, 10, "control characters"),
    (b"log:\n  level: \x1b[2J\n", 2, 10, "control characters"),
    (b"log:\n  level: \"a\\0\"\n", 2, 10, "zero byte"),
    (b"\x7fELF\x02\x01\x01" + bytes(64), 1, 1, "UTF-8"),
    (b"a: " + b"[" * 100000, 1, 19, "nested deeper than"),
    (b"%YAML 9.9\n---\nlog: {}\n", 1, 1, "YAML"),
    (b"log:\n  level: verbose\n", 2, 10, "log.level: 'verbose'"),
]


def refuse(daemon, folder, cases):
    def one(i, data, line, column, words):
        path = folder / f"{daemon}-{i}.yaml"
        path.write_bytes(data)
        code, said = check(daemon, path)
        wrong = (code != CONFIG or words not in said or
                 not said.startswith(f"{path}:{line}:{column}: ") or
                 "\x1b" in said)
        return (line, column, words, code, said) if wrong else None
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda i: one(i, *cases[i]), range(len(cases)))
        return [x for x in found if x is not None]


@pytest.mark.parametrize("daemon", DAEMONS)
def test_broken_sample_is_refused_with_place_and_name(tmp, daemon):
    cases = list(broken_samples(daemon))
    assert len(cases) > 30
    assert refuse(daemon, tmp, cases) == []


def test_files_that_are_no_configuration_are_refused_with_their_place(tmp):
    assert refuse("psserver", tmp, GARBAGE) == []


@pytest.mark.parametrize("daemon", DAEMONS)
def test_sample_passes_also_with_every_option_in_it(tmp, daemon):
    path = tmp / "x.yaml"
    for text in (sample(daemon),
                 re.sub(r"(?m)^( *)#([a-z_]+): ", r"\1\2: ", sample(daemon))):
        path.write_text(text)
        assert check(daemon, path) == (
            0, f"{daemon}: the configuration is valid: {path}\n")
