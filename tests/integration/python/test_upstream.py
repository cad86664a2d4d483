# SPDX-License-Identifier: Apache-2.0
"""tests/upstream: its runner, with a suite made up for this test."""
import json
import subprocess
import sys
import textwrap

import pytest

import trio as harness

RUNNER = harness.SOURCE / "tests" / "upstream" / "upstream.py"

SUITE = """
    # SPDX-License-Identifier: Apache-2.0
    import os, sys, threading, unittest
    from pathlib import Path
    from suite import Suite, Test, World

    RUNS = Path(__file__).parent / "runs"

    class MadeUp(Suite):
        name = "made_up"
        worlds = (World(2), World(3, 1))
        limit = 20.0

        def python(self):
            return sys.executable

        def find(self, world):
            if os.environ["PATH"].startswith("/no-list"):
                raise ImportError("no module of that name")
            if RUNS.exists():
                return [Test("races")]
            return [Test("passes"), Test("fails"), Test("fails_as_expected"),
                    Test("skipped_on_the_ranks"),
                    Test("skipped_at_once", "no GPU"),
                    Test("passes_unexpectedly"), Test("hangs", limit=2.0),
                    Test("ends_early")]

        def run(self, name, scratch):
            if name.startswith("fails") and os.environ["RANK"] == "1":
                raise ValueError("rank 1 does not like it")
            if name.startswith("fails"):
                threading.Event().wait()  # It never ends.
            if name.startswith("skipped"):
                raise unittest.SkipTest("no GPU")
            if name == "hangs":
                threading.Event().wait()  # It never ends.
            if name == "ends_early":
                os._exit(0)
            if name == "races" and os.environ["RANK"] == "0":
                RUNS.write_text(RUNS.read_text() + "x")
                assert len(RUNS.read_text()) == 3, "too soon"

    SUITE = MadeUp
"""
EXPECTED = """\
# Failures of the suite.
fails_*            the reason
passes_unexp*@2x*  another reason
skipped*           as if it could fail
"""


def run(tmp, *options, expected=EXPECTED, **env):
    """The runner's exit code and output, and verdicts by world and test."""
    module = tmp / "suite_made_up.py"
    module.write_text(textwrap.dedent(SUITE))
    (tmp / "expected").mkdir(exist_ok=True)
    (tmp / "expected" / "made_up.txt").write_text(expected)
    done = subprocess.run(
        [sys.executable, RUNNER, "--suite", module, "--keep", tmp / "kept",
         "--slow", str(harness.SLOW), *options],
        capture_output=True, text=True, timeout=10 * harness.PATIENCE,
        check=False, env=dict(harness.clean_env(),
                              PSKV_BUILD_DIR=str(harness.BUILD), **env))
    path = tmp / "kept" / "result.json"
    assert path.exists(), done.stderr
    result = json.loads(path.read_text())
    verdicts = {(t["world"], t["test"]): t for t in result["tests"]}
    return done, result, verdicts


def test_runner_compares_outcomes_with_the_list(tmp):
    done, result, tests = run(tmp, "--world", "2x0", "--jobs", "2")
    assert done.returncode == 1 and not result["ok"], done.stdout
    assert {name: t["verdict"] for (_, name), t in tests.items()} == {
        "passes": "pass", "fails": "failure",
        "fails_as_expected": "expected failure",
        "skipped_on_the_ranks": "skip", "skipped_at_once": "skip",
        "passes_unexpectedly": "unexpected pass", "hangs": "failure",
        "ends_early": "failure"}
    assert "ValueError: rank 1 does not like it" in \
        tests["2x0", "fails"]["reason"]
    assert "hangs: no end within" in tests["2x0", "hangs"]["reason"]
    assert "ends with code 0" in tests["2x0", "ends_early"]["reason"]
    row = next(line.split() for line in done.stdout.split("\n")
               if line.startswith("made_up"))
    # Run, pass, expected failure, skip, failure, unexpected pass.
    assert row == ["made_up", "2x0", "6", "1", "1", "2", "3", "1"]


def test_runner_succeeds_in_each_world_if_all_is_as_listed(tmp):
    done, result, tests = run(tmp, "--only", "passes*",
                              expected="fails* reason\n")
    assert done.returncode == 0 and result["ok"], done.stdout
    assert {key: t["verdict"] for key, t in tests.items()} == {
        (world, name): "pass" for world in ("2x0", "3x1")
        for name in ("passes", "passes_unexpectedly")}


def test_runner_fails_if_a_suite_cannot_list_its_tests(tmp):
    done, _, tests = run(tmp, "--world", "2x0", expected="",
                         PATH="/no-list:/usr/bin:/bin")
    assert done.returncode == 1
    assert "ImportError: no module of that name" in \
        tests["2x0", "(the list)"]["reason"]


@pytest.mark.parametrize("races", ["", "races reason\n"])
def test_runner_repeats_tests_with_a_race_of_their_own(tmp, races):
    (tmp / "runs").write_text("")
    (tmp / "expected").mkdir()
    (tmp / "expected" / "made_up-races.txt").write_text(races)
    done, result, tests = run(tmp, "--world", "2x0", expected="")
    assert result["ok"] == bool(races), done.stdout
    assert tests["2x0", "races"]["runs"] == (3 if races else 1)


@pytest.mark.parametrize("line", ["of_no_test reason", "of_no_test@2* reason",
                                  "fails@3x1 reason", "fails@3* reason"])
def test_runner_refuses_lines_of_the_list_that_fit_no_test(tmp, line):
    """Of the worlds that run: others may be left out."""
    done, result, _ = run(tmp, "--only", "passes", "--world", "2x0",
                          expected=line + "\n")
    assert result["ok"] == (line.startswith("fails"))
    assert done.returncode == (0 if result["ok"] else 1)
