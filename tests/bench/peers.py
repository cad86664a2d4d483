# SPDX-License-Identifier: Apache-2.0
"""Launches of the measured systems, and their costs: time of a round, CPU
seconds and peak memory of the processes."""

import contextlib
import functools
import json
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Optional

HERE = Path(__file__).resolve().parent
LIMIT_S = 240  # Of one launch.
PYTHON = "/usr/bin/python3"  # Debian's, which has its PyTorch.
# Waiting ranks yield their core, because there may be fewer cores than ranks.
MPIRUN = ["mpirun", "--oversubscribe", "--allow-run-as-root", "--mca",
          "mpi_yield_when_idle", "1"]


class Failed(Exception):
    """A measurement that failed."""


class Skipped(Exception):
    """A measurement that this machine cannot make, with the reason."""


def processes_below(root: int) -> dict[int, str]:
    """Descendants of a process: number and name of each."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = Path(f"/proc/{entry}/stat").read_text()
        except OSError:
            continue
        names[int(entry)] = stat[stat.index("(") + 1:stat.rindex(")")]
        parents[int(entry)] = int(stat[stat.rindex(")") + 2:].split()[1])
    found = {}
    for pid in parents:
        at = pid
        while at in parents and at != root:
            at = parents[at]
        if at == root:
            found[pid] = names[pid]
    return found


def peak_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def cpu_seconds(pid: int) -> float:
    """CPU seconds of all threads of a process, from schedstat in nanoseconds:
    ticks would omit times below 10 ms."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # It has ended.
            spent += int(task.read_text().split()[0])
    return spent / 1e9


class Peaks(threading.Thread):
    """Samples the peak memory and the CPU time of the processes of a launch
    until stopped. Neither falls, so the last sample counts."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.most: dict[int, tuple[str, int]] = {}
        self.cpu: dict[int, float] = {}
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.25):
            for pid, name in processes_below(self.root).items():
                if name != "sh":
                    had = self.most.get(pid, (name, 0))[1]
                    self.most[pid] = (name, max(had, peak_bytes(pid)))
                    self.cpu[pid] = max(self.cpu.get(pid, 0.0),
                                        cpu_seconds(pid))

    def of(self, name: str) -> int:
        return max((peak for called, peak in self.most.values()
                    if called == name), default=0)

    def cpu_of(self, name: str) -> float:
        return sum(seconds for pid, seconds in self.cpu.items()
                   if self.most[pid][0] == name)

    def total(self) -> int:
        """Sum of all peaks; shared pages count in each process."""
        return sum(peak for _, peak in self.most.values())


def machine_seconds() -> tuple[float, float]:
    """Busy and total seconds of all processors since boot."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = [int(x) for x in fields]
    hz = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - ticks[3] - ticks[4]) / hz, sum(ticks) / hz


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def stop(process: "subprocess.Popen[str]") -> str:
    """Ends a launcher, which ends its processes."""
    process.send_signal(signal.SIGTERM)
    try:
        return process.communicate(timeout=20)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()[0]


def launch(command: list[str], env: Optional[dict[str, str]] = None,
           limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Runs a command and returns its lines of JSON and its costs."""
    before = children_seconds()
    busy, total = machine_seconds()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace",
        env={**os.environ, **(env or {})}, start_new_session=True)
    peaks = Peaks(process.pid)
    peaks.start()
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as late:
        stop(process)
        raise Failed(f"no end within {limit_s:.0f} s") from late
    finally:
        peaks.over.set()
        peaks.join()
    lines = [json.loads(line[line.index('{"what"'):])
             for line in output.splitlines() if '{"what"' in line]
    if process.returncode != 0 or not lines:
        raise Failed(f"exit code {process.returncode}: {output[-600:]}")
    if any(line.get("wrong") for line in lines):
        raise Failed("wrong sums")
    own = children_seconds() - before
    busy_end, total_end = machine_seconds()
    others = (busy_end - busy - own) / max(0.01, total_end - total)
    return {"lines": lines, "cpu_s": own, "peaks": peaks,
            "others": max(0.0, others)}


class Systems:
    def __init__(self, build: Path) -> None:
        self.build = build

    def tool(self, *parts: str) -> str:
        path = self.build.joinpath(*parts)
        if not os.access(path, os.X_OK):
            raise Skipped(f"{parts[-1]} is not built")
        return str(path)

    def kernel(self, program: str, *words: str) -> dict[str, Any]:
        """GB/s on one core, by operation."""
        found = launch([self.tool("tests", "bench", program), *words])
        return {line["what"]: line for line in found["lines"]}

    def module(self) -> str:
        path = self.build / "lib" / "kernel" / "cuda" / "libpskv-cuda.so"
        if not path.exists():
            raise Skipped("built without the module for GPUs")
        return str(path)

    def device(self, size: int, seconds: float) -> dict[str, Any]:
        """GB/s of the GPU's memory, link and kernels, by operation."""
        found = self.kernel("bench_device", str(size), str(seconds))
        if "no GPU" in found:
            raise Skipped(f"no GPU: {found['no GPU']['why']}")
        return found

    def device_pushpull(self, workers: int, servers: int, *words: str) -> dict[
            str, Any]:
        """psc_pushpull() of arrays in a GPU's memory."""
        return self.ours(workers, servers, "bench_device_pushpull", *words,
                         options=("compute.device=cuda",
                                  f"compute.gpu_module={self.module()}"))

    def device_allreduce(self, backend: str, workers: int,
                         *words: str) -> dict[str, Any]:
        """all_reduce of torch in the GPU's memory."""
        python = self.gpu_python()
        if backend == "nccl" and workers > self.gpus():
            raise Skipped("NCCL needs a GPU for each process")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        return launch(["sh", "-c", ranks_script(
            f"{python} {HERE}/device_allreduce.py {backend}", workers,
            f"tcp://127.0.0.1:{port} {' '.join(words)}")],
            {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"})

    def limits(self, size: int, sources: int, rounds: int) -> dict[str, Any]:
        found = launch([self.tool("tests", "bench", "bench_limits"), str(size),
                        str(sources), str(os.cpu_count() or 1), str(rounds)])
        return {line["what"]: line for line in found["lines"]}

    def ours(self, workers: int, servers: int, program: str, *words: str,
             env: Optional[dict[str, str]] = None,
             by_tcp: bool = False, options: tuple[str, ...] = ()) -> dict[
                 str, Any]:
        if by_tcp:
            options += ("network.same_host=off",)
        if options:
            with tempfile.TemporaryDirectory(prefix="pskv-bench-") as folder:
                return self.ours(
                    workers, servers, program, *words,
                    env={**(env or {}), **self.with_options(
                        Path(folder), *options)})
        return launch(
            [self.tool("daemons", "pslaunch", "pslaunch"), "--private", "-n",
             str(workers), "-s", str(servers), "--",
             self.tool("tests", "bench", program), *words], env)

    def apart(self, folder: Path) -> dict[str, str]:
        """Variables for daemons that send each partition in its own frame."""
        return self.with_options(folder, "network.travel_together=off")

    def with_options(self, folder: Path, *options: str) -> dict[str, str]:
        """Variables with which pslaunch starts servers and agents with
        options; one that begins with "psserver:" is for servers."""
        for name in ("psched", "psserver", "psworker-agent"):
            program = shlex.quote(self.tool("daemons", name, name))
            own = [o.removeprefix("psserver:") for o in options
                   if name == "psserver" or
                   name == "psworker-agent" and not o.startswith("psserver:")]
            more = "".join(f" -o {shlex.quote(option)}" for option in own)
            script = folder / name
            script.write_text(f'#!/bin/sh\nexec {program} "$@"{more}\n')
            script.chmod(0o755)
        return {"PSKV_BINDIR": str(folder)}

    def mpi(self, workers: int, *words: str) -> dict[str, Any]:
        if shutil.which("mpirun") is None:
            raise Skipped("Open MPI is not installed")
        return launch(MPIRUN + ["-n", str(workers), self.tool(
            "tests", "bench", "mpi_allreduce"), *words])

    def gloo(self, workers: int, *words: str) -> dict[str, Any]:
        check_torch()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        return launch(["sh", "-c", ranks_script(
            f"{PYTHON} {HERE}/gloo_allreduce.py", workers,
            f"tcp://127.0.0.1:{port} {' '.join(words)}")],
            {"GLOO_SOCKET_IFNAME": "lo"})

    def gpu_python(self) -> str:
        found = python_with_gpu(self.build)
        if found is None:
            raise Skipped("no torch that has a GPU")
        return found

    def gpus(self) -> int:
        """The number of GPUs that torch has."""
        if python_with_gpu(self.build) is None:
            return 0
        return int(subprocess.run(
            [self.gpu_python(), "-c",
             "import torch; print(torch.cuda.device_count())"],
            check=True, capture_output=True, text=True).stdout)

    def ddp(self, workers: int, servers: int, systems: str, folder: Path,
            device: str = "cpu") -> dict[str, Any]:
        if device == "cpu":
            check_torch()
        python = PYTHON if device == "cpu" else self.gpu_python()
        out = folder / "ddp.json"
        process = subprocess.Popen(
            [python, str(HERE / "ddp.py"), "--build", str(self.build),
             "--device", device,
             "--workers", str(workers), "--servers", str(servers), "--steps",
             "7", "--repeat", "1", "--systems", systems, "--json", str(out)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True)
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as late:
            # The launcher below it is in the same session.
            os.killpg(process.pid, signal.SIGTERM)
            process.communicate()
            raise Failed(f"no end within {LIMIT_S} s") from late
        if process.returncode != 0:
            raise Failed(output[-600:])
        found: dict[str, Any] = json.loads(out.read_text())["ddp"]
        return found

    def idle(self, workers: int, seconds: float) -> dict[str, float]:
        """CPU seconds of each kind of process of an idle job."""
        process = subprocess.Popen(
            [self.tool("daemons", "pslaunch", "pslaunch"), "--private", "-n",
             str(workers), "-s", "1", "--", self.tool(
                 "tests", "bench", "bench_idle")], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, text=True, start_new_session=True)
        try:
            assert process.stdout is not None
            if "idle" not in process.stdout.readline():
                raise Failed("the job did not start")
            time.sleep(1)
            names = processes_below(process.pid)
            before = {pid: cpu_seconds(pid) for pid in names}
            time.sleep(seconds)
            spent: dict[str, float] = {}
            for pid, name in names.items():
                spent[name] = spent.get(name, 0) + \
                    cpu_seconds(pid) - before[pid]
            return spent
        finally:
            stop(process)


def ranks_script(program: str, ranks: int, words: str) -> str:
    """A program as many times, with rank and number of ranks in front of its
    words: one shell as the parent, so that it is one launch as others are."""
    return "; ".join(
        [f"{program} {rank} {ranks} {words} & p{rank}=$!"
         for rank in range(ranks)] +
        [f"wait $p{rank} || exit" for rank in range(ranks)])


@functools.lru_cache(maxsize=None)
def python_with_gpu(build: Path) -> Optional[str]:
    """The first interpreter whose torch has a GPU."""
    for python in (str(build / "torch2/bin/python"), "python3", PYTHON):
        found = shutil.which(python)
        if found is not None and subprocess.run(
                [found, "-c", "import torch, sys; "
                 "sys.exit(not torch.cuda.is_available())"],
                check=False, capture_output=True).returncode == 0:
            return found
    return None


def check_torch() -> None:
    if subprocess.run([PYTHON, "-c", "import torch"], check=False,
                      capture_output=True).returncode != 0:
        raise Skipped("PyTorch (python3-torch) is not installed")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
