# SPDX-License-Identifier: Apache-2.0
"""The programs that README.md shows do what it says."""
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


def launch(*command, **env):
    done = subprocess.run(
        [support.program("pslaunch"), "--private", "-n", "4", "-s", "2",
         *command], capture_output=True, text=True, timeout=120 * support.SLOW,
        env=support.clean_env(**env), check=False)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.strip().split("\n"))
    assert [re.fullmatch(r"\[(\d)\] rank (\d) of 4: .*", line).groups()
            for line in lines] == [(str(r), str(r)) for r in range(4)]
    values = {line.rsplit(" ", 1)[1] for line in lines}
    assert len(values) == 1
    return float(values.pop())


# Ten steps of w -= 0.1 * 4 * w.
WANT = pytest.approx(0.6 ** 10, abs=1e-5)


def test_c(tmp):
    source = tmp / "train.c"
    source.write_text(block("c"))
    library = support.BUILD / "lib/client"
    compiler = os.environ.get("CC") or shutil.which("cc") or "gcc"
    subprocess.run(
        [*compiler.split(), "-Wall", "-Werror", "-o", str(tmp / "a.out"),
         str(source), f"-I{support.SOURCE}/lib/client", f"-L{library}",
         "-lpsclient", f"-Wl,-rpath,{library}"], check=True, timeout=120)
    assert launch(str(tmp / "a.out")) == WANT


def test_python(tmp):
    source = tmp / "train.py"
    source.write_text(block("python"))
    value = launch(
        sys.executable, str(source),
        PYTHONPATH=support.SOURCE / "lib/client/python",
        PSKV_LIBRARY=support.LIBRARY)
    assert value == WANT


def test_commands_exist():
    """What the text says to type is there."""
    for word in re.findall(r"^    \./dev (\w+)", TEXT, re.M):
        assert f"cmd_{word}()" in (support.SOURCE / "dev").read_text()
    for name in re.findall(r"`(docs/[\w./]+)`", TEXT):
        assert (support.SOURCE / name).exists(), name
