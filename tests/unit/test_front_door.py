#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What ./dev test counts, how it limits time, and whom it asks before it installs."""
import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

sys.dont_write_bytecode = True
ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests/support"
sys.path.insert(0, str(SUPPORT))

import run_tests  # noqa: E402
from trio import limit  # noqa: E402

FILE = """
import threading, pytest
def test_passes(): pass
def test_is_skipped(): pytest.skip("zsh is not installed")
def test_never_ends(): threading.Event().wait()
def test_comes_after_it(): assert 1 == 2
"""
# Debian has no package of this name.
NAME = "pskv-no-such-package"


class Counts(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def log(self, build, name, *runs):
        path = Path(self.folder.name) / build / "meson-logs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(
            {"name": f"pskv:unit / {test}", "result": result, "stdout": out,
             "command": [test]}) + "\n" for test, result, out in runs))
        return path

    def count(self, *logs):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            counts = run_tests.count(logs)
        return counts, said.getvalue()

    def test_tests_inside_a_program_count(self):
        counts, said = self.count(self.log("build", "testlog.json", (
            "heap", "ERROR", "1..3\nok 1 - a\nnot ok 2 - b\n# 1 != 2\n"
            "ok 3 - c # SKIP no GPU\n"), ("layers", "OK", "fine\n")))
        self.assertEqual(counts, (2, 1, 1))
        self.assertIn("failed: build: heap: b: 1 != 2\n", said)
        self.assertIn("skipped: build: heap: c: no GPU\n", said)

    def test_a_program_that_ended_at_its_limit_has_failed(self):
        counts, said = self.count(self.log("build", "testlog.json", (
            "heap", "TIMEOUT", "1..2\nok 1 - a\n"), ("wire", "TIMEOUT", "")))
        self.assertEqual(counts, (1, 2, 0))
        self.assertIn("failed: build: wire: timeout\n", said)

    def test_a_later_run_replaces_an_earlier_one_of_the_same_folder(self):
        first = self.log("build", "testlog.json", (
            "shells", "OK", "1..2\nok 1 - bash\nok 2 - zsh # SKIP no zsh\n"))
        rest = self.log("build", "testlog-rest.json", (
            "shells", "OK", "1..2\nok 1 - bash\nok 2 - zsh\n"))
        other = self.log("build-asan", "testlog.json", (
            "shells", "OK", "1..1\nok 1 - bash\n"))
        self.assertEqual(self.count(first, rest, other)[0], (3, 0, 0))

    def test_a_file_that_is_skipped_as_a_whole_has_its_reason(self):
        counts, said = self.count(self.log("build", "testlog.json", (
            "torch", "SKIP", "1..0 # SKIP no torch\n")))
        self.assertEqual(counts, (0, 0, 1))
        self.assertIn("torch: no torch\n", said)


    def test_tests_left_out_or_skipped_are_the_rest(self):
        self.log("build", "testlog.json", ("heap", "ERROR", "not ok 1 - a\n"),
                 ("shells", "OK", "ok 1 - zsh # SKIP no zsh\n"),
                 ("layers", "OK", ""))
        names = ("heap", "shells", "layers", "torch")
        with unittest.mock.patch.object(
                run_tests, "listed", lambda _: [{"name": n} for n in names]):
            self.assertEqual(run_tests.rest(Path(self.folder.name) / "build"),
                             ["shells", "torch"])


class Limits(unittest.TestCase):
    def test_a_limit_ends_one_test_of_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "test_made_up.py"
            path.write_text(FILE)
            done = subprocess.run(
                [sys.executable, "-c", "import sys, tap; tap.CASE_S = 0.1; "
                 f"sys.argv[1:] = [{str(path)!r}]; tap.main()"], cwd=SUPPORT,
                capture_output=True, text=True, timeout=limit(60), check=False)
        said = re.sub(r"tap.py:\d+", "tap.py:N", done.stdout)
        self.assertEqual(said.splitlines(), [
            "1..4", "ok 1 - test_passes",
            "ok 2 - test_is_skipped # SKIP zsh is not installed",
            "not ok 3 - test_never_ends",
            "# tap.py:N: Failed: too late, after 0 s: the end of test_never_ends",
            "not ok 4 - test_comes_after_it",
            "# test_made_up.py:6: assert 1 == 2"])
        self.assertIn("the end of test_never_ends", done.stderr)


class Commands(unittest.TestCase):
    def run_dev(self, *words):
        return subprocess.run([ROOT / "dev", *words], capture_output=True,
                              text=True, timeout=limit(60), check=False)

    def test_each_command_of_the_help_is_there(self):
        commands = re.findall(r"^  ([a-z]+) ", self.run_dev("help").stdout, re.M)
        self.assertIn("soak", commands)
        text = "".join(p.read_text() for p in [
            ROOT / "dev", SUPPORT / "packages.sh", ROOT / "debian/package.sh",
            *ROOT.glob("docs/**/*.sh"), *ROOT.glob("tests/*/run.sh")])
        self.assertEqual({c for c in commands if f"\ncmd_{c}() {{" not in text},
                         set())

    def test_an_unknown_command_is_named(self):
        done = self.run_dev("tests")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no command 'tests'", done.stderr)
        done = self.run_dev("fuzz", "ten")
        self.assertEqual(done.returncode, 2)
        self.assertIn("not a number of seconds: ten", done.stderr)


class Packages(unittest.TestCase):
    """Of a user who is not root, where sudo would say that it was called."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        Path(self.folder.name).chmod(0o755)
        sudo = Path(self.folder.name) / "sudo"
        sudo.write_text("#!/bin/sh\necho sudo was called\nexit 9\n")
        sudo.chmod(0o755)

    def need(self, answer):
        script = (f'set -euo pipefail; BUILD=none; . {SUPPORT}/packages.sh; '
                  f'LISTS[fake]={NAME}; need fake')
        user = {"user": 65534, "group": 65534, "extra_groups": []} \
            if os.getuid() == 0 else {}
        master, terminal = pty.openpty() if answer else (None, None)
        process = subprocess.Popen(
            ["bash", "-c", script], cwd=ROOT, text=True,
            stdin=terminal or subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=terminal or subprocess.PIPE, **user,
            env={"PATH": f"{self.folder.name}:{os.environ['PATH']}"})
        said = ""
        if answer:
            os.close(terminal)
            os.write(master, answer.encode())
            with contextlib.suppress(OSError):  # The end of a terminal.
                while data := os.read(master, 65536):
                    said += data.decode()
            os.close(master)
        out, err = process.communicate(timeout=limit(60))
        return process.returncode, out + (err or "") + said

    def test_without_a_terminal_nothing_is_installed(self):
        code, said = self.need(None)
        self.assertEqual(code, 1, said)
        self.assertIn(f"as root: apt-get install --no-install-recommends {NAME}",
                      said)
        self.assertNotIn("sudo was called", said)

    def test_the_answer_no_installs_nothing(self):
        code, said = self.need("n\n")
        self.assertEqual(code, 1, said)
        self.assertTrue(re.search(r"Install them with sudo\? \[Y/n\]", said), said)
        self.assertNotIn("sudo was called", said)

    def test_the_answer_yes_installs(self):
        code, said = self.need("y\n")
        self.assertNotEqual(code, 0, said)
        self.assertIn("sudo was called", said)


if __name__ == "__main__":
    unittest.main()
