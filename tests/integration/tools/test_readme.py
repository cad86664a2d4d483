# SPDX-License-Identifier: Apache-2.0
"""The programs in README.md work as described."""
import os
import re
import shutil
import subprocess
import sys

import pytest
import trio as support

TEXT = (support.SOURCE / "README.md").read_text()


def block(language):
    found = re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)
    assert len(found) == 1
    return found[0]


def start(servers, *command, **env):
    return subprocess.run(
        [support.program("pslaunch"), "--private", "-n", "4", "-s", servers,
         *command], capture_output=True, text=True, timeout=support.limit(120),
        env=support.clean_env(**env), check=False)


def launch(*command, **env):
    done = start("2", *command, **env)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.strip().split("\n"))
    assert [re.fullmatch(r"\[(\d)\] rank (\d) of 4: .*", line).groups()
            for line in lines] == [(str(r), str(r)) for r in range(4)]
    values = {line.rsplit(" ", 1)[1] for line in lines}
    assert len(values) == 1
    return float(values.pop())


# Ten steps of w -= 0.1 * 4 * w.
WANT = pytest.approx(0.6 ** 10, abs=1e-5)


def build_c(tmp):
    source = tmp / "train.c"
    source.write_text(block("c"))
    library = support.BUILD / "lib/client"
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    subprocess.run(
        [*compiler.split(), "-Wall", "-Werror", "-o", str(tmp / "a.out"),
         str(source), f"-I{support.SOURCE}/lib/client", f"-L{library}",
         "-lpsclient", f"-Wl,-rpath,{library}"], check=True,
        timeout=support.limit(120))
    return str(tmp / "a.out")


def test_c(tmp):
    assert launch(build_c(tmp)) == WANT


def refused_without_servers(done):
    """An optimizer needs a server: the program says so and prints no value."""
    assert done.returncode == 1 and done.stdout == "", done
    assert "server" in done.stderr


def test_c_reports_errors(tmp):
    refused_without_servers(start("0", build_c(tmp)))


def test_python_reports_errors(tmp):
    refused_without_servers(start("0", *python(tmp), **PYTHON))


PYTHON = {"PYTHONPATH": support.SOURCE / "lib/client/python",
          "PSKV_LIBRARY": support.LIBRARY}


def python(tmp):
    source = tmp / "train.py"
    source.write_text(block("python"))
    return sys.executable, str(source)


def test_python(tmp):
    assert launch(*python(tmp), **PYTHON) == WANT


def test_commands_exist():
    """Every command in the text exists."""
    commands = subprocess.run([support.SOURCE / "dev", "help"], check=True,
                              capture_output=True, text=True).stdout
    for word in re.findall(r"^    \./dev (\w+)", TEXT, re.M):
        assert re.search(rf"^  {word}\b", commands, re.M), word
    for name in re.findall(r"`(docs/[\w./]+)`", TEXT):
        assert (support.SOURCE / name).exists(), name
