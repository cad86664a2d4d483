#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies and system calls of a round, counted by strace.

    copies.py BUILD_DIR [BYTES [WORKERS [SERVERS [ROUNDS]]]]

Runs a job with one key, traces the agent and one worker over ROUNDS rounds
and prints, for each process: system calls by name, bytes that went through
them, both per MiB of the key, and what the library says it copied itself.
Bytes through system calls are the copies between a process and the kernel;
with shared memory on the way in and out they are words of the protocol and,
for the agent, the one crossing of the socket to a server and the one back.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

DATA_CALLS = {"read", "write", "readv", "writev", "sendmsg", "recvmsg",
              "sendto", "recvfrom", "pread64", "pwrite64", "sendmmsg"}


def find(name, below):
    """Processes called `name` that descend from process `below`."""
    parents, names = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            names[int(entry)] = stat[stat.index("(") + 1:stat.rindex(")")]
            parents[int(entry)] = int(stat[stat.rindex(")") + 2:].split()[1])
    found = []
    for pid in parents:
        at = pid
        while at in parents and at != below:
            at = parents[at]
        if at == below and names[pid] == name[:15]:
            found.append(pid)
    return sorted(found)


def summary(path):
    calls, moved = Counter(), Counter()
    for line in Path(path).read_text(errors="replace").splitlines():
        match = re.match(r"(?:\[pid +\d+\] |\d+ +)?(?:<\.\.\. )?(\w+)", line)
        result = re.search(r"= (-?\d+)", line.rsplit(")", 1)[-1])
        if not match or "unfinished" in line or not result:
            continue
        calls[match.group(1)] += 1
        if match.group(1) in DATA_CALLS and int(result.group(1)) > 0:
            moved[match.group(1)] += int(result.group(1))
    return calls, moved


def measure(build, how, size, workers, servers, rounds):
    with tempfile.TemporaryDirectory() as folder:
        for point in ("begin", "end"):
            for rank in range(workers):
                os.mkfifo(f"{folder}/{point}-{rank}")
        job = subprocess.Popen(
            [f"{build}/daemons/pslaunch/pslaunch", "-n", str(workers), "-s",
             str(servers), "--private", "--",
             f"{build}/tests/bench/copies_worker", str(size), str(rounds),
             how], env=dict(os.environ, COPIES_DIR=folder),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        # A pipe opens when its worker opens it: all workers have begun.
        first = open(f"{folder}/begin-0", "w", encoding="ascii")
        pids = {"agent": find("psworker-agent", job.pid)[0],
                "worker": find("copies_worker", job.pid)[0]}
        tracers = {}
        for who, pid in pids.items():
            tracers[who] = subprocess.Popen(
                ["strace", "-f", "-q", "-s", "0", "-o", f"{folder}/{who}",
                 "-p", str(pid)], stderr=subprocess.PIPE)
            while f"\nTracerPid:\t{tracers[who].pid}\n" not in Path(
                    f"/proc/{pid}/status").read_text():
                if tracers[who].poll() is not None:
                    sys.exit(tracers[who].stderr.read().decode())
        first.write("x")
        first.close()
        for rank in range(1, workers):
            with open(f"{folder}/begin-{rank}", "w", encoding="ascii") as pipe:
                pipe.write("x")
        end = open(f"{folder}/end-0", "w", encoding="ascii")
        for tracer in tracers.values():
            tracer.send_signal(signal.SIGINT)
            tracer.wait()
        traced = {who: summary(f"{folder}/{who}") for who in pids}
        end.write("x")
        end.close()
        for rank in range(1, workers):
            with open(f"{folder}/end-{rank}", "w", encoding="ascii") as pipe:
                pipe.write("x")
        said = job.communicate()[0]
    print(f"\n{how}: {workers} workers, {servers} servers, "
          f"{size / 2**20:g} MiB, {rounds} rounds")
    for line in said.splitlines():
        if line.startswith("[0]"):
            print("  " + line)
    mib = size / 2**20 * rounds
    for who, (calls, moved) in traced.items():
        total = sum(moved.values())
        print(f"  {who}: {sum(calls.values()) / mib:.2f} system calls and "
              f"{total / mib:.0f} bytes through them per MiB "
              f"({total / (size * rounds):.4f} of the key's bytes a round)")
        print("    " + ", ".join(
            f"{name} {number / rounds:g}"
            + (f" ({moved[name] / rounds / 1024:.1f} KiB)"
               if moved[name] else "")
            for name, number in calls.most_common(8)) + " a round")


def main():
    build = sys.argv[1]
    numbers = [int(word) for word in sys.argv[2:]]
    size, workers, servers, rounds = (numbers + [64 << 20, 4, 1, 10][
        len(numbers):])[:4]
    for how in ("view", "array", "private"):
        measure(build, how, size, workers, servers, rounds)
    measure(build, "view", size, 1, servers, rounds)
    measure(build, "view", size, workers, 0, rounds)


if __name__ == "__main__":
    main()
