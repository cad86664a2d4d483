#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Measure push and pull across hosts beside Open MPI and gloo.

Hosts are network namespaces with shaped links (netns.py), so one machine and
root are enough. Every worker is alone on its host, gives one float32 array and
gets the sum of all of them; the time of a round is that of its slowest worker,
and all systems of a case run on the same hosts one after the other.

The limit is what the links allow: bytes / bandwidth times workers / servers
(at least once) for servers on hosts of their own with push and pull at the
same time, and 2 (n-1)/n times bytes / bandwidth, as for a ring, where they
share the hosts of the workers.
"""

import argparse
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterable, Optional

import netns
import peers

HERE = Path(__file__).resolve().parent
LIMIT_S = 240  # Of one launch.
PATIENCE_S = 30  # Until a daemon serves.
PYTHON = "/usr/bin/python3"
SYSTEMS = ["pskv", "mpi", "mpi-ring", "gloo"]
OURS = ["pskv", "pskv-tls"]
MPI = ["--allow-run-as-root", "--mca", "plm_rsh_no_tree_spawn", "1",
       "--mca", "oob_tcp_if_include", f"{netns.NET}.0/24",
       "--mca", "btl_tcp_if_include", f"{netns.NET}.0/24",
       "--mca", "pml", "ob1", "--mca", "btl", "tcp,self",
       "--mca", "mpi_yield_when_idle", "1"]
MPI_RING = ["--mca", "coll_tuned_use_dynamic_rules", "1",
            "--mca", "coll_tuned_allreduce_algorithm", "4"]


@dataclass(frozen=True)
class Case:
    """Servers are on hosts of their own, unless they are `beside` workers."""

    name: str
    workers: int
    servers: int
    rate_mbit: int
    size: int
    beside: bool = False
    loss: float = 0.0
    packets: bool = False  # Sent one by one, as with loss.
    iterations: int = 7
    round_trip_ms: float = 0.0  # Of the link between two hosts.
    # Of our daemons, as run_case() takes them.
    options: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()  # Of our workers.

    def topology(self, build: Path) -> netns.Topology:
        if self.round_trip_ms > 0:
            return netns.LongLink(build / "tests" / "bench" / "wan",
                                  self.rate_mbit, self.round_trip_ms,
                                  self.loss)
        shaped = self.workers + (0 if self.beside else self.servers)
        return netns.Topology(shaped + 1, shaped, self.rate_mbit, self.loss,
                              self.packets)

    def limit_s(self) -> float:
        once = (self.round_trip_ms / 1e3 +
                self.size / netns.Topology(0, 0, self.rate_mbit).goodput())
        if self.beside:
            return 2 * (self.workers - 1) / self.workers * once
        return max(1.0, self.workers / self.servers) * once

    def title(self) -> str:
        where = "beside" if self.beside else str(self.servers)
        loss = f", {100 * self.loss:g}% lost" if self.loss > 0 else ""
        if self.packets:
            loss = ", packet by packet"
        trip = (f", {self.round_trip_ms:g} ms" if self.round_trip_ms > 0
                else "")
        how = ", cubic" if self.options else ""
        how += "".join(f", {k}={v}" for k, v in self.variables)
        return (f"{self.workers}+{where}, {self.rate_mbit} Mbit/s{trip}, "
                f"{self.size / 1e6:g} MB{loss}{how}")


def make_cases() -> dict[str, Case]:
    eight = [
        Case("8x8", 8, 8, 200, 20_000_000),
        Case("8x4", 8, 4, 200, 20_000_000),
        Case("8x2", 8, 2, 200, 10_000_000, iterations=5),
        Case("8x1", 8, 1, 200, 10_000_000, iterations=5),
        Case("8-beside", 8, 8, 200, 20_000_000, beside=True),
        Case("8x8-gigabit", 8, 8, 1000, 40_000_000),
        Case("8x8-packets", 8, 8, 200, 20_000_000, packets=True),
        Case("8x8-loss", 8, 8, 200, 20_000_000, loss=0.01),
    ]
    # At these rates the cores of a small machine can handle every packet.
    four = [
        Case("4x4-packets", 4, 4, 100, 10_000_000, packets=True),
        Case("4x4-loss", 4, 4, 100, 10_000_000, loss=0.01),
    ]
    two = [
        replace(case, name="2" + case.name[1:].replace("x8", "x2"), workers=2,
                servers=2)
        for case in eight if case.servers == case.workers
    ] + [Case("2x1", 2, 1, 200, 20_000_000)]
    far = [
        Case("far", 1, 1, 200, 40_000_000, round_trip_ms=100),
        Case("far-loss", 1, 1, 200, 40_000_000, loss=0.001,
             round_trip_ms=100),
        Case("far-small", 1, 1, 500, 4_000_000, loss=0.01, round_trip_ms=20,
             iterations=15),
    ]
    fast = [
        # A link that costs the cores of a small machine more than its rate.
        Case("1x1-fast", 1, 1, 5000, 400_000_000, iterations=5),
    ]
    # As on a system that does not allow bbr.
    far.append(replace(far[-1], name="far-small-cubic",
                       options=("all:network.congestion_control=system",)))
    return {case.name: case for case in eight + four + two + far + fast}


CASES = make_cases()


class Failed(Exception):
    """A launch of a system that failed or exceeded its time limit."""


def read_lines(output: str) -> list[dict[str, Any]]:
    lines = []
    for line in output.splitlines():
        brace = line.find('{"what"')
        if brace >= 0:
            lines.append(json.loads(line[brace:]))
    return lines


def run_all(commands: list[list[str]],
            envs: list[dict[str, str]]) -> dict[str, Any]:
    """Runs the processes of one job and returns the line that one prints."""
    processes = []
    with tempfile.TemporaryFile("w+") as out:
        for command, env in zip(commands, envs):
            processes.append(subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out,
                stderr=subprocess.STDOUT))
        with netns.ended(processes):
            end = time.monotonic() + LIMIT_S
            codes: list[Optional[int]] = []
            for process in processes:
                try:
                    codes.append(process.wait(max(
                        0.1, end - time.monotonic())))
                except subprocess.TimeoutExpired:
                    codes.append(None)
                    break
        out.seek(0)
        output = out.read()
    lines = read_lines(output)
    if any(code != 0 for code in codes) or not lines:
        raise Failed(f"exit codes {codes}: {output[-2000:]}")
    if lines[0]["wrong"]:
        raise Failed("wrong sums")
    return lines[0]


class Pskv:
    """Daemons on the hosts of a case: workers and agents on the first ones,
    then the servers, and the scheduler on one that is not shaped."""

    def __init__(self, case: Case, top: netns.Topology, build: Path,
                 folder: Path, options: list[str]) -> None:
        self.case = case
        self.top = top
        self.build = build
        self.folder = folder
        self.options = options
        self.ready: list[tuple[str, int]] = []
        self.daemons: list["subprocess.Popen[Any]"] = []

    def start(self, program: str, name: str, host: int,
              *options: str) -> None:
        ready, tell = os.pipe()
        command = self.top.inside(host) + [
            str(self.build / "daemons" / program / program), "-c",
            "/dev/null", "--ready-fd", str(tell), "--log-format", "text"]
        if program != "psched":
            command += ["--sched",
                        f"{self.top.address(self.top.count)}:9091"]
        mine = [o.split(":", 1)[1] for o in self.options
                if o.split(":", 1)[0] in (program, "all")]
        # Hosts are one machine here, which the daemons must not notice.
        far = [] if program == "psched" else ["network.same_host=off"]
        for option in [f"node.name={name}", *far, *options, *mine]:
            command += ["-o", option]
        with open(self.folder / f"{name}.log", "wb") as log:
            self.daemons.append(subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=[tell]))
        os.close(tell)
        self.ready.append((name, ready))

    def security(self, role: str, name: str) -> list[str]:
        """Options with which a daemon may listen on the network."""
        del name
        return [] if role == "agent" else ["security.insecure=true"]

    def start_all(self) -> None:
        case, top = self.case, self.top
        # Two cores run many daemons: no late member may be GONE.
        self.start("psched", "sched", top.count,
                   f"listen.address={top.address(top.count)}",
                   *self.security("sched", "sched"),
                   "heartbeat.suspect_after=20s", "heartbeat.dead_after=60s")
        self.await_ready()
        for i in range(case.servers):
            host = i + 1 if case.beside else case.workers + i + 1
            self.start("psserver", f"ps{i}", host,
                       f"listen.address={top.address(host)}",
                       *self.security("server", f"ps{i}"),
                       "listen.port=9092",
                       f"store.memory={max(1024, case.size >> 18)}MiB")
        for i in range(case.workers):
            self.start("psworker-agent", f"node{i}", i + 1,
                       f"client.socket={self.folder}/node{i}.sock",
                       *self.security("agent", f"node{i}"),
                       f"local.memory={max(1024, case.size >> 17)}MiB")
        self.await_ready()

    def await_ready(self) -> None:
        for name, ready in self.ready:
            ok = select.select([ready], [], [], PATIENCE_S)[0] and \
                os.read(ready, 1) == b"\n"
            os.close(ready)
            if not ok:
                log = (self.folder / f"{name}.log").read_text()
                raise Failed(f"{name} is not ready: {log[-2000:]}")
        self.ready = []

    def run(self) -> dict[str, Any]:
        case = self.case
        bench = str(self.build / "tests" / "bench" / "bench_pushpull")
        with netns.ended(self.daemons):
            self.start_all()
            envs = []
            for i in range(case.workers):
                envs.append({
                    "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
                    "PSKV_SOCKET": f"{self.folder}/node{i}.sock",
                    "PSKV_JOB": "bench", "PSKV_RANK": str(i),
                    "PSKV_NUM_WORKERS": str(case.workers),
                    "PSKV_NUM_SERVERS": str(case.servers),
                    "PSKV_OP_TIMEOUT": "120s",
                    **dict(case.variables),
                    # Variables of a worker, if the caller gives some.
                    **{k: v for k, v in os.environ.items()
                       if k == "PSKV_PARTITION_BYTES"}})
            line = run_all(
                [self.top.inside(i + 1) +
                 [bench, "array", f"{case.size}:{case.iterations}"]
                 for i in range(case.workers)], envs)
            line["peak_bytes"] = self.peaks()
            line["sent_bytes"] = self.top.sent_bytes()
            line["cpu_s"] = sum(peers.cpu_seconds(d.pid)
                                for d in self.daemons)
        return line

    def peaks(self) -> dict[str, int]:
        """Peak memory of the largest daemon of each kind."""
        most: dict[str, int] = {}
        for daemon in self.daemons:
            status = Path(f"/proc/{daemon.pid}/status").read_text()
            fields = dict(line.split(":", 1) for line in status.splitlines())
            name = fields["Name"].strip()
            most[name] = max(most.get(name, 0),
                             int(fields["VmHWM"].split()[0]) * 1024)
        return most


class PskvTls(Pskv):
    """The same with TLS between the hosts."""

    def psctl(self, *words: str) -> None:
        program = self.build / "daemons" / "psctl" / "psctl"
        done = subprocess.run([str(program), "pki", *words], check=False,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Failed(done.stderr)

    def security(self, role: str, name: str) -> list[str]:
        authority, files = self.folder / "pki", self.folder / f"{name}.tls"
        if not authority.exists():
            self.psctl("init", "--dir", str(authority), "--cluster", "bench")
        self.psctl("issue", "--dir", str(authority), role, name, "--out",
                   str(files))
        return [f"security.tls.directory={files}"]


def run_mpi(case: Case, top: netns.Topology, build: Path, folder: Path,
            more: list[str]) -> dict[str, Any]:
    # mpirun starts its daemons with "AGENT [OPTION...] HOST COMMAND...".
    agent = folder / "agent.sh"
    agent.write_text(
        "#!/bin/sh\n"
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        'h=$1; shift\n'
        f'exec ip netns exec "{top.prefix}${{h##*.}}" unshare --uts '
        'sh -c "hostname $h; $*"\n')
    agent.chmod(0o755)
    hosts = ",".join(f"{top.address(i + 1)}:1" for i in range(case.workers))
    command = top.inside(1) + [
        "unshare", "--uts", "sh", "-c",
        f'hostname {top.address(1)}; exec "$@"', "sh", "mpirun",
        "--mca", "plm_rsh_agent", str(agent), *MPI, *more, "-H", hosts,
        "-n", str(case.workers),
        str(build / "tests" / "bench" / "mpi_allreduce"),
        f"{case.size}:{case.iterations}"]
    return run_all([command], [dict(os.environ)])


def run_gloo(case: Case, top: netns.Topology) -> dict[str, Any]:
    port = random.randint(30000, 39999)
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "eth0"}
    return run_all(
        [top.inside(rank + 1) +
         [PYTHON, str(HERE / "gloo_allreduce.py"), str(rank),
          str(case.workers), f"tcp://{top.address(1)}:{port}",
          f"{case.size}:{case.iterations}"]
         for rank in range(case.workers)], [env] * case.workers)


def missing(system: str, build: Path) -> Optional[str]:
    """Reason for which a system cannot be measured on this machine."""
    if system == "gloo":
        # Debian's, whatever other Python comes first in PATH.
        if subprocess.run([PYTHON, "-c", "import torch"], check=False,
                          capture_output=True).returncode != 0:
            return "PyTorch (python3-torch) is not installed"
    elif system.startswith("mpi"):
        if shutil.which("mpirun") is None:
            return "Open MPI is not installed"
        if not (build / "tests" / "bench" / "mpi_allreduce").exists():
            return "mpi_allreduce is not built (package libopenmpi-dev)"
    elif not (build / "tests" / "bench" / "bench_pushpull").exists():
        return "bench_pushpull is not built"
    return None


def run_system(system: str, case: Case, top: netns.Topology, build: Path,
               folder: Path, options: list[str]) -> dict[str, Any]:
    if system == "pskv":
        return Pskv(case, top, build, folder, options).run()
    if system == "pskv-tls":
        return PskvTls(case, top, build, folder, options).run()
    if system == "gloo":
        return run_gloo(case, top)
    return run_mpi(case, top, build, folder,
                   MPI_RING if system == "mpi-ring" else [])


def run_case(case: Case, build: Path, systems: Iterable[str] = SYSTEMS,
             options: Iterable[str] = (), keep: Optional[Path] = None
             ) -> dict[str, Any]:
    """Measures one case. `options` are further options of daemons, as
    "PROGRAM:NAME=VALUE". "skipped" names the systems that cannot be measured
    on this machine, "failed" those that failed."""
    result: dict[str, Any] = {
        "case": case.name, "title": case.title(), "workers": case.workers,
        "servers": case.servers, "beside": case.beside,
        "rate_mbit": case.rate_mbit, "bytes": case.size, "loss": case.loss,
        "limit_ms": case.limit_s() * 1e3, "systems": {}, "skipped": {},
        "failed": {}}
    try:
        with case.topology(build) as top:
            result["congestion_control"] = top.congestion_control
            for system in systems:
                why = missing(system, build)
                if why is not None:
                    result["skipped"][system] = why
                    continue
                with tempfile.TemporaryDirectory(prefix="pskv-net-") as name:
                    try:
                        result["systems"][system] = run_system(
                            system, case, top, build, Path(name),
                            [*case.options, *options])
                    except Failed as e:
                        result["failed"][system] = str(e)
                    if keep is not None and system in OURS:
                        shutil.copytree(name, keep / case.name / system,
                                        dirs_exist_ok=True,
                                        ignore=shutil.ignore_patterns(
                                            "*.sock"))
    except netns.Missing as e:
        result["skipped"] = {system: str(e) for system in systems}
    add_ratios(result)
    return result


def add_ratios(result: dict[str, Any]) -> None:
    ours = result["systems"].get("pskv")
    for name, line in result["systems"].items():
        line["of_limit"] = result["limit_ms"] / line["median_ms"]
        if ours is not None and name not in OURS:
            line["ratio"] = ours["median_ms"] / line["median_ms"]


def print_result(result: dict[str, Any]) -> None:
    print(f"{result['case']}: {result['title']}; "
          f"limit {result['limit_ms']:.0f} ms")
    for name, line in result["systems"].items():
        ratio = f"  ours to it {line['ratio']:.2f}" if "ratio" in line else ""
        print(f"  {name:9s} {line['median_ms']:7.0f} ms "
              f"({line['min_ms']:.0f} .. {line['max_ms']:.0f})  "
              f"{line['of_limit']:.3f} of the limit{ratio}")
    for kind in ("skipped", "failed"):
        for name, why in result[kind].items():
            print(f"  {name:9s} {kind}: {why}")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path,
                        default=os.environ.get("PSKV_BUILD_DIR", "build"),
                        help="build directory (PSKV_BUILD_DIR, or build)")
    parser.add_argument("--case", action="append", choices=list(CASES),
                        help="may be given several times; default: all with "
                        "8 workers")
    parser.add_argument("--systems", nargs="+", choices=[*SYSTEMS, *OURS[1:]],
                        default=SYSTEMS)
    parser.add_argument("--iterations", type=int, metavar="N")
    parser.add_argument("-o", "--option", action="append", default=[],
                        metavar="PROGRAM:NAME=VALUE",
                        help="of our daemons; PROGRAM may be all")
    parser.add_argument("--keep", type=Path, metavar="FOLDER",
                        help="where to leave the logs of our daemons")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    names = options.case or [n for n in CASES if CASES[n].workers == 8]
    results = []
    for name in names:
        case = CASES[name]
        if options.iterations is not None:
            case = replace(case, iterations=options.iterations)
        result = run_case(case, options.build.resolve(), options.systems,
                          options.option, options.keep)
        print_result(result)
        results.append(result)
    if options.json is not None:
        options.json.write_text(json.dumps({"schema": 1, "cases": results},
                                           indent=1) + "\n")
    return 1 if any(result["failed"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
