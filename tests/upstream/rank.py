#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Started by upstream.py in the interpreter of a suite.

    rank.py MODULE find OUTPUT WORKERSxSERVERSxNODES...   the lists of tests
    rank.py MODULE serve SOCKET                           tests, on one rank

A rank connects to the socket and reads orders from it, lines of JSON: to run a
test in a process of its own, or null, to end that process or, without one,
itself. It answers with the process's exit status. The process writes
rank-N.json into the folder that the order names: the outcome, its reason, the
time; its output is in rank-N.out there."""
import atexit
import dataclasses
import faulthandler
import gc
import importlib.util
import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
import traceback
import unittest
from pathlib import Path

# A part of the limit after which the ranks print their stacks.
STACKS_AT = 0.9
# For a test's process after TERM, in seconds.
PATIENCE = 2
# The line of a trace that has the error.
ERROR = re.compile(r"[\w.]*(Error|Exception|Warning)\b")


def suite_of(path, folder):
    """The suite that a module defines, for the folder of its checkout."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SUITE(folder)


def find(suite, output, *worlds):
    from suite import World
    tests = [suite.find(World(*map(int, world.split("x"))))
             for world in worlds]
    Path(output).write_text(json.dumps(
        [[dataclasses.asdict(t) for t in found] for found in tests]))


def last_line(text):
    """The error of a trace that Python printed."""
    lines = text.strip().split("\n")
    for number in range(len(lines) - 1, -1, -1):
        if ERROR.match(lines[number]):
            return " ".join(lines[number:])
    return lines[-1]


def run(suite, name, scratch, seconds):
    faulthandler.dump_traceback_later(float(seconds) * STACKS_AT)
    outcome, reason, status = "pass", "", 0
    try:
        suite.run(name, scratch)
    except unittest.SkipTest as e:
        outcome, reason = "skip", str(e)
    except SystemExit as e:
        if e.code not in (0, None):
            outcome, reason, status = "fail", f"exit code {e.code}", 1
    except BaseException as e:  # pylint: disable=broad-except
        traceback.print_exc()
        reason = str(e)
        if isinstance(e, AssertionError) and "Traceback" in reason:
            reason = last_line(reason)
        else:
            reason = f"{type(e).__name__}: {reason}"
        outcome, status = "fail", 1
    text = json.dumps({"outcome": outcome, "reason": reason[:2000],
                       "time": time.time()})
    rank = os.environ["RANK"]
    part = Path(scratch) / f"rank-{rank}.part"
    part.write_text(text)
    part.rename(Path(scratch) / f"rank-{rank}.json")
    faulthandler.cancel_dump_traceback_later()
    sys.stdout.flush()
    return status


def become_worker(order):
    """A forked process turns to the test of an order: output, folder, job."""
    os.setpgid(0, 0)
    rank, scratch = os.environ["RANK"], Path(order["scratch"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    output = os.open(scratch / f"rank-{rank}.out", flags, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(scratch / "cwd")
    os.environ["PSKV_JOB"] += f"-{order['number']}"


def leave(status):
    """Ends the process of a test as Python does, but for the deletion of all
    modules, which takes longer than most tests."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def end(pid, handle):
    """Ends a process and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            pass
        if select.select([handle], [], [], PATIENCE)[0]:
            break
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def serve(suite, path):
    """Runs tests until the runner has no more."""
    suite.prepare()
    gc.freeze()  # The processes of tests share what is there.
    link = socket.socket(socket.AF_UNIX)
    link.connect(path)
    orders = link.makefile("rw")
    while True:
        order = json.loads(orders.readline() or "null")
        if order is None:
            return 0
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            os.close(link.detach())
            become_worker(order)
            leave(run(suite, order["test"], order["scratch"],
                      order["seconds"]))
        handle = os.pidfd_open(pid)
        if link in select.select([handle, link], [], [])[0]:
            end(pid, handle)
        os.close(handle)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            orders.write(f"{status}\n")
            orders.flush()
        except OSError:
            return 0


def main():
    path, action, *words = sys.argv[1:]
    # Some of what is imported reads the command line.
    del sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    suite = suite_of(path, os.environ.get("UPSTREAM_FOLDER", ""))
    return find(suite, *words) if action == "find" else serve(suite, *words)


if __name__ == "__main__":
    sys.exit(main())
