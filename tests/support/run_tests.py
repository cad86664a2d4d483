#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs tests of a build folder with Meson: one line of progress, the log of each
that fails, at the end the reasons of skips and the counts. A test that prints
TAP, as those of cmocka and pytest do, counts as what it has inside.

    run_tests.py BUILD [--jobs N] [--all | --rest] [names, options of meson test]
    run_tests.py --count LOG...

Without names or options, tests of the suites `foreign` and `long` are left out.
--rest runs those, and what the last run has skipped."""
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.dont_write_bytecode = True

from trio import measure_load  # noqa: E402

APART = ("foreign", "long")
LINE = re.compile(r"\s*(\d+)/(\d+) (?:.* / )?(.*?) +(OK|FAIL|SKIP|TIMEOUT|ERROR|"
                  r"INTERRUPT|EXPECTEDFAIL|UNEXPECTEDPASS) +([\d.]+)s")
CASE = re.compile(r"(not ok|ok)\b(?: *\d+)?(?: *-)? *([^#]*)(?:# *(.*))?$")
PLAN = re.compile(r"1\.\.0 # *SKIP *(.*)")
# Meson's end, which that of this program replaces.
SUMMARY = re.compile(r"Summary of Failures|Ok: ")
# Seconds between lines of progress where standard output is no terminal.
PAUSE_S = 15


def name_of(run):
    return run["name"].split(" / ")[-1]


def cases(run):
    """(what, name, reason) of all that a line of Meson's log has inside."""
    found = []
    name = name_of(run)
    for line in (run.get("stdout") or "").splitlines():
        if plan := PLAN.match(line):
            found.append(("skipped", name, plan[1]))
        elif case := CASE.match(line):
            reason = case[3] or ""
            what = ("failed" if case[1] == "not ok" else "skipped"
                    if reason.upper().startswith("SKIP") else "passed")
            found.append((what, f"{name}: {case[2].strip()}",
                          reason[4:].strip()))
        elif line.startswith("# ") and found and found[-1][0] == "failed":
            # cmocka's message and place follow the line.
            what, case, said = found[-1]
            found[-1] = what, case, f"{said} {line[2:]}".strip()[:300]
    if not found and run["result"] == "SKIP":
        reason = (run.get("stdout") or "").strip() or (
            run.get("stderr") or "").strip() or "no reason"
        found.append(("skipped", name, reason.splitlines()[-1]))
    elif not found and run["result"] == "OK":
        found.append(("passed", name, ""))
    if run["result"] not in ("OK", "SKIP", "EXPECTEDFAIL") and not any(
            what == "failed" for what, _, _ in found):
        found.append(("failed", name, run["result"].lower()))
    return found


def runs(log):
    try:
        return [json.loads(line) for line in Path(log).open()]
    except OSError:
        return []


def count(logs):
    """Prints what failed and what was skipped; returns passed, failed, skipped. A
    test of a later log replaces that of an earlier one of the same folder."""
    last = {}
    for log in logs:
        for run in runs(log):
            last[Path(log).resolve().parents[1].name, run["name"],
                 tuple(run["command"])] = run
    counts = Counter()
    skips = {}
    for (folder, _, _), run in last.items():
        for what, name, reason in cases(run):
            counts[what] += 1
            if what == "failed":
                print(f"failed: {folder}: {name}: {reason}".rstrip(": "))
            elif what == "skipped":
                skips.setdefault(reason or "no reason", []).append(
                    f"{folder}: {name}")
    for reason, names in sorted(skips.items()):
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(f"skipped: {names[0]}{more}: {reason}")
    return counts["passed"], counts["failed"], counts["skipped"]


class Progress:
    """The last line of a terminal; elsewhere a line now and then."""

    def __init__(self):
        self.in_place = sys.stdout.isatty()
        self.next = time.monotonic() + PAUSE_S
        self.begun = time.monotonic()

    def show(self, text):
        now = time.monotonic()
        if self.in_place:
            print(f"\r\033[K{text[:79]}", end="", flush=True)
        elif now >= self.next:
            self.next = now + PAUSE_S
            print(f"{text}, after {now - self.begun:.0f} s", flush=True)

    def print(self, text):
        if self.in_place:
            print("\r\033[K", end="")
        print(text, flush=True)


def lines_of(pipe):
    """Lines, and None after each second without one."""
    lines = queue.Queue()

    def read():
        for line in pipe:
            lines.put(line.rstrip("\n"))
        lines.put(EOFError)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=1)
        except queue.Empty:
            yield None
            continue
        if line is EOFError:
            return
        yield line


def run(build, jobs, log, words):
    command = ["meson", "test", "-C", str(build), "--no-rebuild",
               "--print-errorlogs", "--num-processes", str(jobs),
               "--logbase", log, "--timeout-multiplier",
               f"{2 * measure_load():.1f}", *words]
    progress = Progress()
    meson = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True,
                             stdout=subprocess.PIPE, errors="replace",
                             stderr=subprocess.STDOUT)
    text = "[0] the first tests run"
    bad = over = False
    for line in lines_of(meson.stdout):
        over = over or bool(line and SUMMARY.match(line))
        if over:
            continue
        ended = LINE.match(line or "")
        if ended:
            done, total, name, result, seconds = ended.groups()
            text = (f"[{done}/{total}] {name}  {result.lower()} "
                    f"{float(seconds):.1f} s")
            bad = result not in ("OK", "SKIP", "EXPECTEDFAIL")
            if bad:
                progress.print(text)
        elif line and (bad or line.startswith(("ERROR", "WARNING"))):
            progress.print(line)  # Of the log of the test that failed.
        progress.show(text)
    progress.print("")
    return meson.wait(), time.monotonic() - progress.begun


def listed(build):
    return json.loads(subprocess.run(
        ["meson", "introspect", "--tests", str(build)], check=True,
        capture_output=True, text=True).stdout)


def rest(build):
    """Names of tests that the last run has left out, or skipped in part."""
    whole = {name_of(run) for run in runs(build / "meson-logs/testlog.json")
             if all(what != "skipped" for what, _, _ in cases(run))}
    return [t["name"] for t in listed(build) if t["name"] not in whole]


def is_apart(test):
    return any(s.split(":")[-1] in APART for s in test["suite"])


def main(words):
    if words[:1] == ["--count"]:
        print(*count(words[1:]))
        return 0
    build = Path(words.pop(0))
    jobs = os.cpu_count()
    if words[:1] == ["--jobs"]:
        jobs = int(words[1])
        words = words[2:]
    log, before = "testlog", []
    mode = words[0] if words[:1] in (["--all"], ["--rest"]) else ""
    if mode:
        words = words[1:]
    if any(w in ("--list", "--gdb", "-h", "--help", "-v", "--verbose",
                 "--benchmark") for w in words):
        os.execvp("meson", ["meson", "test", "-C", str(build), *words])
    left_out = 0
    if mode == "--rest":
        before = [build / "meson-logs" / "testlog.json"]
        words = rest(build)
        log = "testlog-rest"
    elif not mode and not words:
        left_out = sum(map(is_apart, listed(build)))
        words = [w for suite in APART for w in ("--no-suite", suite)]
    # Tests wait for timers of daemons half of their time and more.
    code, seconds = run(build, 2 * jobs + 1, log, words)
    passed, failed, skipped = count(
        before + [build / "meson-logs" / f"{log}.json"])
    if left_out:
        print(f"not run: {left_out} programs of tests that need others than "
              "./dev test installs, or long: ./dev test --all")
    print(f"log: {build}/meson-logs/{log}.txt")
    print(f"tests: {passed} passed, {failed} failed, {skipped} skipped, in "
          f"{seconds:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
