# SPDX-License-Identifier: Apache-2.0
"""The rows of the table: the measurements of each, and its goals."""

import os
import statistics
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterable, Optional

import net
import peers
import traced
from peers import Failed, Skipped, Systems
from table import Book

BIG = 400_000_000
WARM_UP = 3  # Rounds of bench_pushpull before those measured.
DISTURBED = 0.05  # Share of other processes that spoils a figure.


@dataclass
class Size:
    """Sizes and numbers of rounds of a run; a short run has smaller ones."""

    big: int = BIG
    rounds: int = 5
    many: int = 50
    growth: bool = True
    idle_s: float = 10.0
    device: int = 256 << 20  # Of each array in a GPU's memory.
    device_peers: bool = True
    device_workers: tuple[int, ...] = (1, 2, 4, 8)


QUICK = Size(big=40_000_000, rounds=3, many=10, growth=False, idle_s=3.0,
             device=64 << 20)


@dataclass
class Bench:
    systems: Systems
    size: Size
    book: Book
    done: dict[str, Any]  # Launches that several rows use.

    def attempt(self, row: int, name: str,
                work: Callable[[], dict[str, Any]]) -> Optional[
                    dict[str, Any]]:
        """Result of a launch, once for all rows; the table names a launch that
        failed or was skipped, and the result is None."""
        if name in self.done:
            kept: Optional[dict[str, Any]] = self.done[name]
            return kept
        peers.say(f"row {row}: {name}")
        found = None
        try:
            found = work()
        except Skipped as e:
            self.book.note(row, f"{name}: skipped: {e}")
        except Failed as e:
            self.book.note(row, f"{name}: failed: {e}", failed=True)
        if found is not None and found.get("others", 0) > DISTURBED:
            self.book.note(row, f"{name}: other processes took "
                           f"{found['others']:.0%} of the machine")
        self.done[name] = found
        return found

    # Launches of one large array each.

    def local(self, row: int, workers: int, servers: int, how: str,
              rounds: int = 0, by_tcp: bool = False) -> Optional[
                  dict[str, Any]]:
        rounds = rounds or self.size.rounds
        name = f"pskv {how}, {workers}+{servers}, {rounds} rounds"
        return self.attempt(
            row, name + ", TCP" if by_tcp else name,
            lambda: self.systems.ours(workers, servers, "bench_keys", how,
                                      f"1x{self.size.big}:{rounds}",
                                      by_tcp=by_tcp))

    def mpi(self, row: int, workers: int, rounds: int = 0) -> Optional[
            dict[str, Any]]:
        rounds = rounds or self.size.rounds
        return self.attempt(
            row, f"Open MPI, {workers}, {rounds} rounds",
            lambda: self.systems.mpi(workers, f"{self.size.big}:{rounds}"))

    def limits(self, row: int, workers: int) -> Optional[dict[str, Any]]:
        return self.attempt(
            row, f"limits of {workers} arrays",
            lambda: self.systems.limits(self.size.big, workers, 5))


def median(found: Optional[dict[str, Any]], what: str = "") -> Optional[
        dict[str, Any]]:
    if found is None:
        return None
    for line in found["lines"]:
        if "median_ms" in line and what in ("", line["what"]):
            return {"value": line["median_ms"], "least": line["min_ms"],
                    "most": line["max_ms"]}
    return None


def large_local(b: Bench, row: int, servers: int, hows: list[str],
                goal: float, tcp_goal: float = 0) -> None:
    for workers in (2, 8):
        name = f"{workers} x {b.size.big / 1e6:g} MB"
        limits = b.limits(row, workers)
        peer = b.mpi(row, workers)
        b.book.figure(row, f"{name}: Open MPI", "ms", median(peer))
        if row == 1:
            b.book.figure(row, f"{name}: gloo", "ms", median(b.attempt(
                row, f"gloo, {workers}", lambda n=workers: b.systems.gloo(
                    n, f"{b.size.big}:{b.size.rounds}"))))
        floor = loopback = None
        if limits is not None:
            floor = limits["sum"]["median_ms"]
            if servers > 0:
                # Into the server's memory and out again.
                floor += 2 * limits["memcpy"]["median_ms"]
                loopback = max(limits["sum"]["median_ms"],
                               limits["loopback"]["median_ms"])
            if "private" in hows:
                # Each worker's copy of the result.
                floor += workers * limits["memcpy"]["median_ms"]
        for how in hows:
            ours = b.local(row, workers, servers, how)
            b.book.figure(row, f"{name}: pskv, {how}", "ms", median(ours),
                          limit=floor, peak=None if ours is None else
                          ours["peaks"].total())
            b.book.ratio(row, f"{name}: {how} to Open MPI", median(ours),
                         median(peer), goal)
            if tcp_goal == 0:
                continue
            ours = b.local(row, workers, servers, how, by_tcp=True)
            b.book.figure(row, f"{name}: pskv by TCP, {how}", "ms",
                          median(ours), limit=loopback)
            b.book.ratio(row, f"{name}: {how} by TCP to Open MPI",
                         median(ours), median(peer), tcp_goal)


def row_1(b: Bench) -> None:
    large_local(b, 1, 0, ["view", "array"], 0.22)


def row_2(b: Bench) -> None:
    large_local(b, 2, 0, ["private"], 0.45)


def row_3(b: Bench) -> None:
    large_local(b, 3, 1, ["view", "array"], 0.35, tcp_goal=0.40)


def hosts(b: Bench, row: int, names: list[str], of_limit: float,
          goals: dict[str, float],
          systems: Iterable[str] = net.SYSTEMS) -> None:
    """Figures of the cases of net.py, which runs them across hosts."""
    for name in names:
        case = net.CASES[name]
        if not b.size.growth:
            case = replace(case, iterations=3, size=case.size // 4)
        peers.say(f"row {row}: hosts {name}")
        result = b.done.get("hosts " + name)
        if result is None:
            result = net.run_case(case, b.systems.build, systems)
            b.done["hosts " + name] = result
        for system, line in result["systems"].items():
            b.book.figure(
                row, f"{result['title']}: {system}", "ms",
                {"value": line["median_ms"], "least": line["min_ms"],
                 "most": line["max_ms"]}, limit=result["limit_ms"])
            if system == "pskv":
                b.book.goal(row, f"{result['title']}: of the limit",
                            line["of_limit"], of_limit, at_least=True)
            elif system in goals and "ratio" in line:
                b.book.goal(row, f"{result['title']}: to {system}",
                            line["ratio"], goals[system])
        for kind in ("skipped", "failed"):
            for system, why in result[kind].items():
                b.book.note(row, f"{name}, {system}: {kind}: {why}",
                            failed=kind == "failed")


def row_4(b: Bench) -> None:
    hosts(b, 4, ["8x8", "2x2"], 0.95, {"gloo": 0.55, "mpi-ring": 0.50})


def row_5(b: Bench) -> None:
    hosts(b, 5, ["8x4"], 0.93, {"mpi-ring": 1.0})
    hosts(b, 5, ["8x2", "8x1", "2x1"], 0.93, {})


def row_6(b: Bench) -> None:
    hosts(b, 6, ["8-beside", "2-beside"], 0.95, {"mpi-ring": 0.90})


def row_7(b: Bench) -> None:
    hosts(b, 7, ["8x8-gigabit", "2x2-gigabit"], 0.80, {})


def row_8(b: Bench) -> None:
    for size in ("8x8", "4x4"):
        # Packets are sent one by one in both runs, so that the cores have the
        # same work with and without loss.
        hosts(b, 8, [f"{size}-packets"], 0.0, {})
        hosts(b, 8, [f"{size}-loss"], 0.0, {"gloo": 0.60})
        with_loss = b.done[f"hosts {size}-loss"]["systems"].get("pskv")
        without = b.done[f"hosts {size}-packets"]["systems"].get("pskv")
        if with_loss and without:
            b.book.goal(8, f"pskv {size}: 1 % loss to no loss",
                        with_loss["median_ms"] / without["median_ms"], 1.3)


def many_keys(b: Bench, row: int, text: str, goal: float) -> None:
    for workers in (2, 8):
        name = f"{workers} x {text}"
        spec = f"{text}:{b.size.many}"
        ours = b.attempt(row, f"pskv, {name}", lambda n=workers, s=spec:
                         b.systems.ours(n, 1, "bench_keys", "view", "array",
                                        s))
        mpi = b.attempt(row, f"Open MPI, {name}",
                        lambda n=workers, s=spec: b.systems.mpi(n, s))
        for how in ("by array", "fused"):
            b.book.figure(row, f"{name}: Open MPI {how}", "ms",
                          median(mpi, how))
        for how in ("view", "array"):
            b.book.figure(row, f"{name}: pskv, {how}", "ms", median(ours, how))
            b.book.ratio(row, f"{name}: {how} to Open MPI by array",
                         median(ours, how), median(mpi, "by array"), goal)


def row_9(b: Bench) -> None:
    many_keys(b, 9, "resnet50", 0.5)
    found = ddp(b, 9, 8)
    ours = b.done.get("pskv, 8 x resnet50")
    if found is not None:
        gloo = spread(found["gloo"])
        b.book.figure(9, "8 x resnet50: gloo under DDP", "ms", gloo)
        b.book.ratio(9, "8 x resnet50: view to gloo under DDP",
                     median(ours, "view"), gloo, 0.15)


def row_10(b: Bench) -> None:
    many_keys(b, 10, "1000x1024", 0.2)


def row_11(b: Bench) -> None:
    for name, spin, goal in (("sleeping", "0", 150.0),
                             ("spinning", "500", 40.0)):
        found = b.attempt(11, f"pskv, one key of 4 KiB, {name}",
                          lambda s=spin: b.systems.ours(
                              1, 1, "bench_keys", "view", "1x4096:2000",
                              env={"PSKV_SPIN": s}))
        at = median(found)
        if at is not None:
            at = {key: ms * 1e3 for key, ms in at.items()}
            b.book.figure(11, f"4 KiB, one worker, one server, {name}", "us",
                          at)
            b.book.goal(11, f"{name}: us", at["value"], goal)


def row_12(b: Bench) -> None:
    found = b.local(12, 8, 1, "view")
    if found is not None:
        peak = found["peaks"].of("psserver")
        b.book.figure(12, "psserver, most memory it had", "MB",
                      {"value": peak / 1e6}, limit=b.size.big / 1e6)
        b.book.goal(12, "to the bytes stored", peak / b.size.big, 1.25)


def row_13(b: Bench) -> None:
    """CPU time of a round: the difference of two runs with different numbers of
    rounds, without start and end."""
    few, more = b.size.rounds, 3 * b.size.rounds
    per_round = {}
    for system, run in (
            ("pskv", lambda n: b.local(13, 8, 1, "view", n)),
            ("Open MPI", lambda n: b.mpi(13, 8, n))):
        short, long = run(few), run(more)
        if short is None or long is None:
            return
        per_round[system] = (long["cpu_s"] - short["cpu_s"]) / (more - few)
        b.book.figure(13, f"{system}, CPU seconds a round", "s",
                      {"value": per_round[system]})
    if per_round["Open MPI"] > 0:
        b.book.goal(13, "to Open MPI",
                    per_round["pskv"] / per_round["Open MPI"], 0.35)


def row_14(b: Bench) -> None:
    seconds = b.size.idle_s
    found = b.attempt(14, "idle job",
                      lambda: b.systems.idle(4, seconds))
    if found is not None:
        for name, spent in sorted(found.items()):
            b.book.figure(14, f"{name}, of one core", "%",
                          {"value": 100 * spent / seconds})
        b.book.goal(14, "all processes, % of one core",
                    100 * sum(found.values()) / seconds, 0.1)


GROWTH = {
    "workers, 64 MiB, 1 server": (
        "workers", [(n, n, 1, "1x67108864:5") for n in (1, 2, 4, 8)]),
    "servers, 4 workers, 64 MiB": (
        "servers", [(n, 4, n, "1x67108864:5") for n in (1, 2, 4, 8)]),
    "keys of 1 KiB, 2 workers, 1 server": (
        "keys", [(n, 2, 1, f"{n}x1024:5")
                 for n in (10, 100, 1000, 10000, 100000)]),
    "bytes of a key, 1 worker, agent alone": (
        "bytes", [(n, 1, 0, f"1x{n}:{5 if n < 2**30 else 3}")
                  for n in (2**10, 2**14, 2**18, 2**22, 2**26, 2**30,
                            2**32)]),
}


def row_15(b: Bench) -> None:
    if not b.size.growth:
        b.book.note(15, "growth: left out of a quick run")
        return
    for title, (axis, points) in GROWTH.items():
        for at, workers, servers, spec in points:
            # A worker's array, the result, and the server's copy.
            size = spec_bytes(spec)
            if 3 * size * max(1, workers) > memory_bytes():
                b.book.note(15, f"{title}: {at}: skipped: not enough memory")
                continue
            found = b.attempt(
                15, f"growth in {title}: {at}",
                lambda w=workers, s=servers, t=spec: b.systems.ours(
                    w, s, "bench_keys", "view", t))
            b.book.growth(title, axis, at, median(found, "view"), size)


def spec_bytes(spec: str) -> int:
    keys, size = spec.split(":")[0].split("x")
    return int(keys) * int(size)


def memory_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def spread(line: dict[str, Any]) -> dict[str, Any]:
    return {"value": line["median_ms"], "least": line["min_ms"],
            "most": line["max_ms"]}


def ddp(b: Bench, row: int, workers: int) -> Optional[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="pskv-bench-") as folder:
        return b.attempt(
            row, f"DDP, {workers} processes", lambda: b.systems.ddp(
                workers, 0, "gloo,pskv,pskv+hook", Path(folder)))


def row_16(b: Bench) -> None:
    for workers in (2, 8):
        found = ddp(b, 16, workers)
        if found is None:
            continue
        for system, line in found.items():
            name = f"{workers} processes: {system}"
            b.book.figure(16, name, "ms", spread(line))
            if system != "gloo":
                b.book.ratio(16, f"{name} to gloo", spread(line),
                             spread(found["gloo"]), 0.5)


def speed(line: dict[str, Any]) -> dict[str, Any]:
    return {**{k: line[k] for k in ("least", "most") if k in line},
            "value": line["median"]}


def kernel(b: Bench, row: int, program: str, *words: str) -> None:
    """GB/s of one core, and the cost of a byte relative to a copied one."""
    found = b.attempt(row, program,
                      lambda: b.systems.kernel(program, *words))
    if found is None:
        return
    copy = found.pop("memcpy")
    b.book.figure(row, "memcpy", "GB/s", speed(copy))
    for what, line in found.items():
        b.book.figure(row, what, "GB/s", speed(line), copy["median"])


def row_17(b: Bench) -> None:
    kernel(b, 17, "bench_optimizers", str(0.02 * b.size.rounds))


def row_18(b: Bench) -> None:
    kernel(b, 18, "bench_grad_codec", "--json", str(0.02 * b.size.rounds))


def row_19(b: Bench) -> None:
    keys = 10_000 if b.size.growth else 1_000
    for workers in (2, 8):
        name = f"{workers} x {keys}x1024"
        rates = {}
        for how in ("together", "apart"):
            with tempfile.TemporaryDirectory(prefix="pskv-bench-") as folder:
                env = (b.systems.apart(Path(folder)) if how == "apart"
                       else None)
                found = median(b.attempt(
                    19, f"pskv, {name}, {how}",
                    lambda n=workers, e=env: b.systems.ours(
                        n, 1, "bench_keys", "view",
                        f"{keys}x1024:{b.size.many}", env=e)), "view")
            if found is not None:
                rates[how] = {"value": 1e3 / found["value"],
                              "least": 1e3 / found["most"],
                              "most": 1e3 / found["least"]}
                b.book.figure(19, f"{name}: {how}", "rounds/s", rates[how])
        if len(rates) == 2:
            b.book.ratio(19, f"{name}: together to apart", rates["together"],
                         rates["apart"], None)


def row_20(b: Bench) -> None:
    hosts(b, 20, ["far"], 0.90, {}, ["pskv"])
    hosts(b, 20, ["far-loss"], 0.80, {}, ["pskv"])
    hosts(b, 20, ["far-small", "far-small-cubic"], 0.0, {}, ["pskv"])


def tls_hosts(b: Bench, name: str, goal: float) -> None:
    """Throughput across hosts with TLS, relative to the same without."""
    case = net.CASES[name]
    if not b.size.growth:
        case = replace(case, iterations=3, size=case.size // 4)
    peers.say(f"row 21: hosts {name}")
    result = net.run_case(case, b.systems.build, net.OURS)
    found = result["systems"]
    gb = 2 * case.size * case.workers * (case.iterations + WARM_UP) / 1e9
    for system, line in found.items():
        b.book.figure(21, f"{result['title']}: {system}", "ms", spread(line),
                      limit=result["limit_ms"])
        b.book.figure(21, f"{result['title']}: {system}, CPU of the daemons "
                      "for a GB", "s", {"value": line["cpu_s"] / gb})
    if len(found) == 2:
        b.book.goal(21, f"{result['title']}: throughput with TLS to that "
                    "without", found["pskv"]["median_ms"] /
                    found["pskv-tls"]["median_ms"], goal, at_least=True)
    for kind in ("skipped", "failed"):
        for system, why in result[kind].items():
            b.book.note(21, f"{name}, {system}: {kind}: {why}",
                        failed=kind == "failed")


def row_21(b: Bench) -> None:
    found = b.attempt(21, "bench_tls", lambda: b.systems.kernel(
        "bench_tls", str(b.size.big), str(b.size.rounds)))
    for way, line in (found or {}).items():
        b.book.figure(21, f"one connection on the loopback, {way}", "GB/s",
                      {"value": line["gb_s"]})
        b.book.figure(21, f"one connection, {way}: CPU for a GB", "s",
                      {"value": line["cpu_s_gb"], "least": line["cpu_least"],
                       "most": line["cpu_most"]})
    ours = {}
    for how, env in (("plain", {}), ("TLS", {"PSKV_LAUNCH_TLS": "on"})):
        line = b.attempt(
            21, f"pskv view, 8+1, TCP, {how}",
            lambda e=env: b.systems.ours(
                8, 1, "bench_keys", "view",
                f"1x{b.size.big}:{b.size.rounds}", env=e, by_tcp=True))
        if line is not None:
            ours[how] = median(line)
            b.book.figure(21, f"8 x {b.size.big / 1e6:g} MB by TCP on the "
                          f"loopback, {how}", "ms", ours[how])
    if len(ours) == 2:
        b.book.goal(21, "loopback: throughput with TLS to that without",
                    ours["plain"]["value"] / ours["TLS"]["value"], 0.80,
                    at_least=True)
    tls_hosts(b, "8x8", 0.99)
    tls_hosts(b, "1x1-fast", 0.95)


# Kernels of the module, and what their share of the memory's bandwidth has to
# be; names of two that do the same.
DEVICE_GOALS = {f"sum of {n} float32": 0.85 for n in (2, 4, 8)}
DEVICE_PAIRS = ("two in place", "scaling")


def device_parts(b: Bench, found: dict[str, Any]) -> None:
    """Memory, link, kernels and jobs of one GPU."""
    specified = found.pop("memory, as specified")["median"]
    copy = found.pop("copy on the device")
    memory = specified or copy["median"]
    b.book.figure(22, "memory: copy on the device", "GB/s", speed(copy),
                  memory)
    for what in ("to the device", "to the host"):
        b.book.figure(22, f"link: {what}", "GB/s", speed(found.pop(what)))
    both = found.pop("both ways at once")
    pieces = found.pop("both ways, in pieces")
    b.book.figure(22, "link: both ways at once", "GB/s", speed(both))
    b.book.figure(22, "link: both ways, in pieces of 8 MiB", "GB/s",
                  speed(pieces), both["median"])
    b.book.goal(22, "pieces: share of the link", pieces["median"] /
                both["median"], 0.90, at_least=True)
    for what, line in found.items():
        if what.startswith("job, "):
            b.book.figure(22, what, "GB/s", speed(line))
            continue
        b.book.figure(22, f"in the GPU's memory: {what}", "GB/s", speed(line),
                      memory)
        if what in DEVICE_GOALS:
            b.book.goal(22, f"{what}: share of the memory's bandwidth",
                        line["median"] / memory, DEVICE_GOALS[what],
                        at_least=True)
    for what in DEVICE_PAIRS:
        own, blas = (found.get(f"{what}, {how}")
                     for how in ("own kernel", "cuBLAS"))
        if own is not None and blas is not None:
            b.book.ratio(22, f"{what}: own kernel to cuBLAS",
                         {"value": own["median"]}, {"value": blas["median"]},
                         None)


def device_ours(b: Bench) -> None:
    """psc_pushpull() of arrays in a GPU's memory: of psc_alloc_device(), which
    the agent reads there, and of others."""
    words = f"{b.size.big}:{b.size.rounds or 1}"
    for workers in b.size.device_workers:
        for servers in (0, 1):
            where = "agent alone" if servers == 0 else "one server"
            for kind in ("shared", "private"):
                line = b.attempt(
                    22, f"pskv, {kind}, {workers}+{servers}",
                    lambda k=kind, n=workers, s=servers:
                    b.systems.device_pushpull(n, s, k, words))
                b.book.figure(22, f"{workers} x {b.size.big / 1e6:g} MB: "
                              f"pskv, {where}, {kind} memory", "ms",
                              median(line))


def device_peers(b: Bench) -> None:
    """Sums over processes, in the GPU's memory, of other systems. NCCL refuses
    several processes on one GPU."""
    words = f"{b.size.big}:{b.size.rounds}"
    for backend, name in (("nccl", "NCCL"), ("gloo", "torch and gloo")):
        for workers in b.size.device_workers:
            line = b.attempt(
                22, f"{name}, {workers} processes", lambda s=backend, n=workers:
                b.systems.device_allreduce(s, n, words))
            b.book.figure(22, f"{workers} x {b.size.big / 1e6:g} MB: {name}",
                          "ms", median(line))


def device_ddp(b: Bench, workers: int) -> None:
    """A step of DDP on parameters in a GPU's memory."""
    systems = ["gloo", "pskv", "pskv+hook"]
    if workers <= b.systems.gpus():
        systems.insert(0, "nccl")
    with tempfile.TemporaryDirectory(prefix="pskv-bench-") as folder:
        found = b.attempt(
            22, f"DDP on a GPU, {workers} processes", lambda: b.systems.ddp(
                workers, 0, ",".join(systems), Path(folder), "cuda"))
    for system, line in (found or {}).items():
        name = f"DDP, {workers} processes: {system}"
        b.book.figure(22, name, "ms", spread(line))
        for peer, goal in (("nccl", 1.05), ("gloo", 0.6)):
            if system.startswith("pskv") and peer in found:
                b.book.ratio(22, f"{name} to {peer}", spread(line),
                             spread(found[peer]), goal)


def row_22(b: Bench) -> None:
    found = b.attempt(22, "bench_device", lambda: b.systems.device(
        b.size.device, 0.04 * b.size.rounds))
    if found is not None:
        name = found.pop("device")["name"]
        b.book.note(22, f"the GPU: {name}")
        device_parts(b, found)
        device_ours(b)
        if b.size.device_peers:
            device_peers(b)
            device_ddp(b, 1)
            device_ddp(b, 2)


def row_23(b: Bench) -> None:
    """Not a speed: how long the way of a push is in the sources. The numbers of
    several jobs differ by what a thread found to do at once."""
    folder = traced.build(b.systems.build)
    for case in traced.CASES:
        peers.say(f"row 23: {case}")
        found = [traced.record(b.systems.build, folder, case)
                 for _ in range(b.size.rounds)]
        for what in ("functions", "files", "changes of file", "calls"):
            seen = sorted(getattr(f, what.split()[0]) for f in found)
            b.book.figure(23, f"{case}: {what}", "",
                          {"value": seen[len(seen) // 2], "least": seen[0],
                           "most": seen[-1]})


ADAM = {"BENCH_OPTIMIZER": "adam"}
TURNS = 5


def beside(b: Bench, name: str, unit: str, without: list[float],
           with_it: list[float], goal: float) -> None:
    """Two ways that were measured in turns, and the median of their ratios."""
    if min(without) <= 0:
        b.book.note(24, f"{name}: the run was too short")
        return
    for how, values in (("without", without), ("with", with_it)):
        b.book.figure(24, f"{name}: {how}", unit, {
            "value": statistics.median(values), "least": min(values),
            "most": max(values)})
    b.book.goal(24, f"{name}: with to without", statistics.median(
        y / x for x, y in zip(without, with_it)), goal)


def state_memory(b: Bench, name: str, spec: str, by_tcp: bool) -> None:
    """Kept state memory beside memory that ends with the server."""
    found: dict[str, list[dict[str, Any]]] = {"off": [], "auto": []}
    for turn in range(TURNS):
        for keep, lines in found.items():
            line = b.attempt(
                24, f"{name}, store.keep={keep}, {turn}",
                lambda k=keep: b.systems.ours(
                    2, 1, "bench_keys", "view", spec, env=ADAM, by_tcp=by_tcp,
                    options=(f"psserver:store.keep={k}",)))
            if line is None:
                return
            lines.append(line)
    off, auto = found["off"], found["auto"]
    beside(b, f"{name}, state memory", "ms", *(
        [median(line)["value"] for line in lines] for lines in (off, auto)),
        goal=1.05)
    beside(b, f"{name}, state memory, CPU of the server", "s", *(
        [line["peaks"].cpu_of("psserver") for line in lines]
        for lines in (off, auto)), goal=1.10)
    beside(b, f"{name}, state memory, server's memory", "MB", *(
        [line["peaks"].of("psserver") / 1e6 for line in lines]
        for lines in (off, auto)), goal=0)


def replicas(b: Bench, name: str) -> None:
    """Each server with a backup on another host, beside none."""
    found: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for turn in range(TURNS):
        for number, lines in found.items():
            case = replace(net.CASES[name], variables=(
                *ADAM.items(), ("PSKV_REPLICAS", str(number))))
            if not b.size.growth:
                case = replace(case, iterations=3, size=case.size // 4)
            peers.say(f"row 24: hosts {name}, replicas {number}, {turn}")
            result = net.run_case(case, b.systems.build, ["pskv"])
            for kind in ("skipped", "failed"):
                for why in result[kind].values():
                    b.book.note(24, f"{name}: {kind}: {why}",
                                failed=kind == "failed")
                    return
            lines.append(result["systems"]["pskv"])
    title = net.CASES[name].title() + ", replicas"
    for what, unit, scale, goal in (
            ("median_ms", "ms", 1, 1.08), ("sent_bytes", "MB", 1e6, 1.15),
            ("cpu_s", "s", 1, 0)):
        beside(b, f"{title}, {what.split('_')[0]}", unit, *(
            [line[what] / scale for line in found[n]] for n in (1, 2)), goal)


def row_24(b: Bench) -> None:
    big = f"1x{b.size.big // 6}:{4 * b.size.rounds}"
    state_memory(b, "2 workers, 1 server", big, False)
    state_memory(b, "2 workers, 1 server by TCP", big, True)
    state_memory(b, "2 x resnet50", f"resnet50:{b.size.many // 2}", False)
    replicas(b, "8-beside")
    replicas(b, "8x8")
    line = b.attempt(24, "filling", lambda: peers.launch(
        [peers.PYTHON, str(peers.HERE / "filling.py"), str(b.size.big * 5 // 2)],
        {"PSKV_BUILD_DIR": str(b.systems.build)}))
    if line is not None:
        at = line["lines"][0]
        for how in ("alone", "filling", "two"):
            b.book.figure(24, f"16 MiB with Adam, {how}", "ms",
                          spread(at[how]))
        b.book.figure(24, f"filling of {at['bytes'] / 1e6:g} MB", "s",
                      {"value": at["seconds"]})
        b.book.ratio(24, "a round during the filling to one after it",
                     spread(at["filling"]), spread(at["two"]), 1.10)


ROWS: dict[int, tuple[str, str, Callable[[Bench], None]]] = {
    1: ("agent", "agent alone, shared arrays", row_1),
    2: ("private", "agent alone, private memory", row_2),
    3: ("server", "agent and one server, push and pull", row_3),
    4: ("hosts", "8 + 8 hosts, 200 Mbit/s", row_4),
    5: ("fewer-servers", "8 + 4, 8 + 2, 8 + 1 hosts", row_5),
    6: ("beside", "servers beside the agents", row_6),
    7: ("gigabit", "8 + 8 hosts at 1 Gbit/s", row_7),
    8: ("loss", "1 % of packets lost", row_8),
    9: ("resnet50", "shapes of ResNet-50", row_9),
    10: ("small", "1,000 keys of 1 KiB", row_10),
    11: ("latency", "one key of 4 KiB", row_11),
    12: ("memory", "memory of a server", row_12),
    13: ("cpu", "CPU seconds a round", row_13),
    14: ("idle", "idle cluster with a job", row_14),
    15: ("growth", "growth", row_15),
    16: ("ddp", "DDP on shapes of ResNet-50", row_16),
    17: ("optimizers", "steps of optimizers on one core", row_17),
    18: ("codecs", "codecs on one core", row_18),
    19: ("together", "10,000 keys of 1 KiB, together and apart", row_19),
    20: ("far", "one host far from its server", row_20),
    21: ("tls", "with TLS and without", row_21),
    22: ("device", "on a GPU", row_22),
    23: ("trace", "functions and files on the way of a push", row_23),
    24: ("survival", "state memory and backups", row_24),
}
