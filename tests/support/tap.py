#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs files of pytest for Meson: one line of TAP for each test, with the reason
of each skip, on standard output; what pytest says, on standard error. Each test
has a time limit of its own, so that no file ends for the number of its tests."""
import faulthandler
import os
import signal
import sys

import pytest

import sandbox
from trio import Deadline, PATIENCE, limit

CASE_S = 300


class Tap:
    def __init__(self, out):
        self.out = out
        self.err = os.fdopen(os.dup(2), "w")  # pytest replaces that of sys.
        self.number = 0
        self.phases = []

    def say(self, line):
        print(line, file=self.out, flush=True)

    def pytest_collectreport(self, report):
        if report.skipped:
            self.say(f"1..0 # SKIP {reason(report)}")
        elif report.failed:
            self.say("Bail out! a file cannot be imported")

    def pytest_collection_finish(self, session):
        if session.items:
            self.say(f"1..{len(session.items)}")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        deadline = Deadline(limit(CASE_S))

        def end_test(*_):
            try:
                left = deadline.left(f"the end of {item.name}")
            except AssertionError as e:
                pytest.fail(str(e))  # No test catches this one.
            signal.setitimer(signal.ITIMER_REAL, left)

        signal.signal(signal.SIGALRM, end_test)
        signal.setitimer(signal.ITIMER_REAL, deadline.seconds)
        # For one that does not come back from a call of C.
        faulthandler.dump_traceback_later(
            4 * deadline.seconds + PATIENCE, exit=True, file=self.err)
        yield
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_runtest_logreport(self, report):
        self.phases.append(report)
        if report.when != "teardown":
            return
        self.number += 1
        failed = any(r.failed for r in self.phases)
        skips = [reason(r) for r in self.phases if r.skipped]
        name = report.nodeid.split("::", 1)[-1].replace("#", "_")
        self.say(f"{'not ok' if failed else 'ok'} {self.number} - {name}" +
                 (f" # SKIP {skips[0]}" if skips and not failed else ""))
        for r in self.phases:
            if r.failed:
                self.say(f"# {failure(r)}")
        self.phases = []


def failure(report):
    """What failed and where, in a line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else \
        f"{os.path.basename(crash.path)}:{crash.lineno}: {crash.message}"
    return " ".join(text.split())[:300]


def reason(report):
    text = report.longrepr
    text = text[2] if isinstance(text, tuple) else str(text)
    return " ".join(text.removeprefix("Skipped: ").split())


def main():
    if os.environ.get("PSKV_TEST_SANDBOX") and sandbox.MISSING is not None:
        print(f"1..0 # SKIP {sandbox.MISSING}")
        return
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # For pytest, and for what it starts.
    code = pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]],
                       plugins=[Tap(out)])
    # Meson knows what failed from the lines.
    sys.exit(0 if code in (pytest.ExitCode.NO_TESTS_COLLECTED,
                           pytest.ExitCode.TESTS_FAILED) else code)


if __name__ == "__main__":
    main()
