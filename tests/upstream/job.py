# SPDX-License-Identifier: Apache-2.0
"""Tests of a suite, each in a job of its own that ends at a limit.

A lane is a set of ranks that pslaunch has started with daemons of their own.
Each rank imports what the tests need, once, and forks a process for each test,
as a worker of a job with another name. After a failure the next test gets a new
lane."""
import json
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from suite import REPOSITORY, Test

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

import trio as support  # noqa: E402

PACKAGE = REPOSITORY / "lib" / "client" / "python"
# For pslaunch to end the ranks after TERM, and for the other ranks of a test
# after the failure of one.
GRACE = 3
# For ranks to start, to import and to end.
PATIENCE = 300


@dataclass
class Outcome:
    outcome: str
    reason: str
    seconds: float


def environment(suite, world):
    env = support.clean_env(
        PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE=1, OMP_NUM_THREADS=1,
        OPENBLAS_NUM_THREADS=1, PSKV_LIBRARY=support.LIBRARY,
        UPSTREAM_FOLDER=suite.folder.resolve() if suite.folder else "")
    env.update({k: str(v) for k, v in suite.environment(world).items()})
    return env


def find(suite, module, worlds):
    """The tests of a suite, a list for each world."""
    with tempfile.TemporaryDirectory(prefix="upstream-") as folder:
        output = Path(folder) / "tests.json"
        shapes = [f"{w.workers}x{w.servers}x{w.nodes}" for w in worlds]
        done = subprocess.run(
            [str(suite.python()), str(HERE / "rank.py"), str(module), "find",
             str(output), *shapes], cwd=folder,
            env=environment(suite, worlds[0]), capture_output=True, text=True, check=False, timeout=PATIENCE)
        if done.returncode != 0 or not output.exists():
            raise RuntimeError(done.stderr.strip().split("\n")[-1])
        return [[Test(**t) for t in tests]
                for tests in json.loads(output.read_text())]


def results(scratch, world):
    found = {}
    for rank in range(world.workers):
        path = scratch / f"rank-{rank}.json"
        if path.exists():
            found[rank] = json.loads(path.read_text())
    return found


def last_words(log):
    lines = [line for line in
             log.read_text(errors="replace").strip().split("\n") if line]
    return lines[-1][:300] if lines else "no output"


def judge(ranks, world, code, limit, log):
    """The outcome of a test from those of its ranks; `code` is that of
    pslaunch, None at the limit. The first rank that failed has the reason."""
    failed = sorted((r["time"], rank, r["reason"])
                    for rank, r in ranks.items() if r["outcome"] == "fail")
    if failed:
        _, rank, reason = failed[0]
        return "fail", f"rank {rank}: {reason}"
    missing = [r for r in range(world.workers) if r not in ranks]
    if code is None:
        where = f"ranks {missing}" if missing else "at the end"
        return "fail", f"hangs: no end within {limit:.0f} s, {where}"
    if missing or code != 0:
        return "fail", f"ends with code {code}: {last_words(log)}"
    if all(r["outcome"] == "skip" for r in ranks.values()):
        return "skip", ranks[0]["reason"]
    return "pass", ""


class Lane:
    """Ranks that run one test after another, as long as all goes well."""

    def __init__(self, suite, module, world, log, slow=1.0):
        self.suite = suite
        self.world = world
        self.slow = slow
        self.log = log
        self.count = 0
        self.folder = Path(tempfile.mkdtemp(prefix="upstream-"))
        self.command = [
            support.program("pslaunch"), "-n", world.workers, "-s",
            world.servers, "--nodes", world.nodes, "--private", "--grace",
            f"{GRACE}s", "--", suite.python(), HERE / "rank.py", module,
            "serve", self.folder / "runner"]
        self.listener = None
        self.process = None
        self.ranks = []

    def start(self):
        """Whether all ranks are ready, which they say by connecting."""
        if self.process:
            return True
        self.listener = socket.socket(socket.AF_UNIX)
        (self.folder / "runner").unlink(missing_ok=True)
        self.listener.bind(str(self.folder / "runner"))
        self.listener.listen(self.world.workers)
        with open(self.log, "a", encoding="utf-8") as output:
            self.process = subprocess.Popen(
                [str(c) for c in self.command], cwd=self.folder,
                stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                env=environment(self.suite, self.world),
                preexec_fn=support.die_with_parent)
        deadline = time.monotonic() + PATIENCE * self.slow
        self.listener.settimeout(1)
        while len(self.ranks) < self.world.workers:
            try:
                self.ranks.append(self.listener.accept()[0])
                self.ranks[-1].setblocking(True)
            except socket.timeout:
                if self.process.poll() is not None or \
                        time.monotonic() > deadline:
                    return False
        return True

    def tell(self, order):
        for rank in self.ranks:
            try:
                rank.sendall(json.dumps(order).encode() + b"\n")
            except OSError:
                pass  # wait() sees it.

    def wait(self, limit):
        """Waits for the ranks' processes: the first exit code that is not 0;
        None at the limit."""
        code, waiting = 0, set(self.ranks)
        deadline = time.monotonic() + limit
        while waiting:
            left = deadline - time.monotonic()
            ready = select.select(list(waiting), [], [], max(left, 0))[0]
            if not ready and left <= 0:
                return None if code == 0 else code
            for rank in ready:
                waiting.remove(rank)
                # A short line, which arrives as one.
                status = int(rank.recv(100) or 1)
                if status != 0 and code == 0:
                    code = status
                    deadline = min(deadline, time.monotonic() + GRACE)
        return code

    def run(self, test, log):
        """Runs a test; its output goes to the file `log`."""
        began = time.monotonic()
        if not self.start():
            self.close(keep=True)
            return Outcome("fail", "no ranks: " + last_words(self.log),
                           time.monotonic() - began)
        limit = (test.limit or self.suite.limit) * self.slow
        self.count += 1
        scratch = self.folder / str(self.count)
        (scratch / "cwd").mkdir(parents=True)
        self.tell({"test": test.name, "scratch": str(scratch),
                   "seconds": limit, "number": self.count})
        code = self.wait(limit)
        if code != 0:
            self.close(keep=True)
        with open(log, "wb") as output:
            for rank in range(self.world.workers):
                path = scratch / f"rank-{rank}.out"
                output.write(b"---- rank %d\n" % rank)
                output.write(path.read_bytes() if path.exists() else b"")
        outcome, reason = judge(results(scratch, self.world), self.world,
                                code, limit, log)
        if outcome == "fail":
            self.close(keep=True)
        shutil.rmtree(scratch, ignore_errors=True)
        return Outcome(outcome, reason, time.monotonic() - began)

    def close(self, keep=False):
        """Ends the ranks; `keep` leaves the folder for another start."""
        self.tell(None)
        for rank in self.ranks:
            rank.close()
        self.ranks = []
        if self.listener:
            self.listener.close()
        if self.process:
            try:
                self.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                end(self.process)
        self.listener = self.process = None
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def end(process):
    """Ends pslaunch, which ends its job."""
    for patience in (GRACE + 10, 10):
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.wait()
