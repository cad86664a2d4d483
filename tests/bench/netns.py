# SPDX-License-Identifier: Apache-2.0
"""Hosts for measurements: network namespaces on one bridge.

Each host has one interface that is shaped in both directions by a token
bucket, so links are full duplex as those of a switch are. The bridge lives in
a namespace of its own: nothing of the machine's network is touched. Loss is
random, of single packets that a host receives; with `packets` they are single
as well where none is lost.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Iterator, Optional

NET = "10.77.0"
# TCP payload as a share of the bytes that the shaper counts: 1448 bytes of
# payload in 1514 on the link.
PAYLOAD_SHARE = 1448 / 1514
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
CONGESTION_CONTROL = "cubic"
# Programs by the Debian package that has them (tests/support/packages.txt).
TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux"}
PACKET_TOOLS = {"iptables": "iptables", "ethtool": "ethtool"}


class Missing(Exception):
    """A program or permission that the measurement lacks on this machine."""


def command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"'{' '.join(words)}' failed: "
                      f"{(done.stderr or done.stdout).strip()}")


def check_tools(packets: bool) -> None:
    tools = TOOLS | PACKET_TOOLS if packets else TOOLS
    for tool, package in tools.items():
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is not installed (package {package})")
    if os.geteuid() != 0:
        raise Missing("network namespaces need root")


class Topology:
    """Hosts 1 .. `count`; host i has the address 10.77.0.i. Of `shaped` hosts
    the links have `rate_mbit`; those after them are as fast as the machine.
    """

    def __init__(self, count: int, shaped: int, rate_mbit: int,
                 loss: float = 0.0, packets: bool = False) -> None:
        self.count = count
        self.shaped = shaped
        self.rate_mbit = rate_mbit
        self.loss = loss
        self.packets = packets or loss > 0
        self.prefix = f"pskv{os.getpid()}h"
        self.allowed: Optional[str] = None
        self.congestion_control = ""

    def name(self, host: int) -> str:
        return f"{self.prefix}{host}"

    @staticmethod
    def address(host: int) -> str:
        return f"{NET}.{host}"

    def inside(self, host: int) -> list[str]:
        """Prefix of a command that runs it on a host."""
        return ["ip", "netns", "exec", self.name(host)]

    def __enter__(self) -> "Topology":
        check_tools(self.packets)
        try:
            self.build()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: Optional[type[BaseException]],
                 value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.remove()

    def build(self) -> None:
        switch = self.name(0)
        command("ip", "netns", "add", switch)
        command("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        command("ip", "-n", switch, "link", "set", "br0", "up")
        self.allow_congestion_control()
        for host in range(1, self.count + 1):
            self.add_host(host)

    def add_host(self, host: int) -> None:
        name, switch, port = self.name(host), self.name(0), f"p{host}"
        command("ip", "netns", "add", name)
        command("ip", "link", "add", "eth0", "netns", name, "type", "veth",
                "peer", "name", port, "netns", switch)
        command("ip", "-n", name, "link", "set", "lo", "up")
        command("ip", "-n", name, "addr", "add", f"{self.address(host)}/24",
                "dev", "eth0")
        command("ip", "-n", name, "link", "set", "eth0", "up")
        command("ip", "-n", switch, "link", "set", port, "master", "br0")
        command("ip", "-n", switch, "link", "set", port, "up")
        self.choose_congestion_control(host)
        if host > self.shaped:
            return
        for where, device in ((name, "eth0"), (switch, port)):
            if self.packets:
                # Without this, one loss takes a super-packet of 64 KiB.
                command("ip", "netns", "exec", where, "ethtool", "-K", device,
                        "tso", "off", "gso", "off", "gro", "off")
            fast = self.rate_mbit > 500
            command("tc", "-n", where, "qdisc", "add", "dev", device, "root",
                    "tbf", "rate", f"{self.rate_mbit}mbit",
                    "burst", "128kb" if fast else "64kb",
                    "limit", "1mb" if fast else "512kb")
        if self.loss > 0:
            command(*self.inside(host), "iptables", "-A", "INPUT", "!", "-i",
                    "lo", "-m", "statistic", "--mode", "random",
                    "--probability", str(self.loss), "-j", "DROP")

    def allow_congestion_control(self) -> None:
        if CONGESTION_CONTROL not in ALLOWED.read_text().split() and \
                CONGESTION_CONTROL in AVAILABLE.read_text().split():
            # Namespaces may choose only among these.
            self.allowed = ALLOWED.read_text()
            ALLOWED.write_text(f"{self.allowed.strip()} {CONGESTION_CONTROL}")

    def choose_congestion_control(self, host: int) -> None:
        name = "net.ipv4.tcp_congestion_control"
        subprocess.run([*self.inside(host), "sysctl", "-qw",
                        f"{name}={CONGESTION_CONTROL}"],
                       capture_output=True, check=False)
        self.congestion_control = subprocess.run(
            [*self.inside(host), "sysctl", "-n", name], capture_output=True,
            text=True, check=False).stdout.strip()

    def remove(self) -> None:
        """Removes the hosts that exist, and ends the processes there."""
        for host in range(self.count, -1, -1):
            pids = subprocess.run(
                ["ip", "netns", "pids", self.name(host)], text=True,
                capture_output=True, check=False).stdout.split()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", self.name(host)],
                           capture_output=True, check=False)
        if self.allowed is not None:
            ALLOWED.write_text(self.allowed)
            self.allowed = None

    def sent_bytes(self) -> int:
        """Bytes that the shaped hosts have sent since they were made."""
        return sum(int(subprocess.run(
            [*self.inside(host), "cat",
             "/sys/class/net/eth0/statistics/tx_bytes"], check=True,
            capture_output=True, text=True).stdout)
                   for host in range(1, self.shaped + 1))

    def goodput(self) -> float:
        """Bytes per second that TCP can carry in one direction."""
        return self.rate_mbit * 1e6 / 8 * PAYLOAD_SHARE


class LongLink(Topology):
    """Two hosts and a link between them: packets are under way for half of
    `round_trip_ms`, and some are lost. The program `wan` is the link, because
    not every kernel has netem."""

    def __init__(self, wan: Path, rate_mbit: int, round_trip_ms: float,
                 loss: float) -> None:
        super().__init__(2, 2, rate_mbit, loss)
        self.wan = wan
        self.round_trip_ms = round_trip_ms
        self.link: Optional["subprocess.Popen[str]"] = None

    def build(self) -> None:
        if not self.wan.exists():
            raise Missing("wan is not built")
        self.allow_congestion_control()
        for host in (1, 2):
            command("ip", "netns", "add", self.name(host))
            command("ip", "-n", self.name(host), "link", "set", "lo", "up")
            self.choose_congestion_control(host)
        self.link = subprocess.Popen(
            [self.wan, self.name(1), self.name(2),
             str(self.round_trip_ms / 2), str(self.rate_mbit),
             str(round(self.loss * 1000))],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        assert self.link.stdout is not None and self.link.stderr is not None
        if self.link.stdout.readline() != "up\n":
            raise Missing(self.link.stderr.read().strip())

    def remove(self) -> None:
        if self.link is not None:
            self.link.kill()
            self.link.communicate()
            self.link = None
        super().remove()


@contextlib.contextmanager
def ended(processes: list["subprocess.Popen[Any]"]) -> Iterator[None]:
    """Ends the processes at the end of the block, also after an error."""
    try:
        yield
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
