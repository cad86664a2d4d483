# SPDX-License-Identifier: Apache-2.0
"""A cluster on hosts of its own: each daemon in a network namespace, joined by
one switch, and what breaks networks. Needs root, ip, iptables and ethtool.

    with Hosts(folder, servers=2, agents=2) as h:
        h.lose(h.all, 0.3)       # of the packets that these hosts receive
        h.cut("sched", True)     # nothing comes or goes, and nobody is told
        h.link("ps0", False)     # the cable is out
"""
import contextlib
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
sys.path.insert(0, str(HERE.parent / "bench"))

import netns  # noqa: E402
import trio as support  # noqa: E402


def run(words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (words, done.stderr)


class Hosts(support.Trio):
    """A trio whose daemons are on hosts of their own; workers are on those of
    their agents, as far as they need to be."""

    def __init__(self, folder, servers=2, agents=2, **options):
        # The real times: this is what is looked at.
        super().__init__(folder, servers=servers, agents=agents, **options)
        self.options = [o for o in self.options if o not in support.CALM]
        self.all = ["sched"] + self.server_names + self.agent_names
        self.number = {name: i + 1 for i, name in enumerate(self.all)}
        self.top = netns.Topology(len(self.all), 0, 0, packets=True)
        self.port = 9091
        self.lossy = set()

    @property
    def endpoint(self):
        return f"{self.address('sched')}:{self.port}"

    def address(self, name):
        return self.top.address(self.number[name])

    def inside(self, name):
        return self.top.inside(self.number[name])

    def __enter__(self):
        self.top.__enter__()
        try:
            for name in self.all:
                run(self.inside(name) +
                    ["ethtool", "-K", "eth0", "tso", "off", "gso", "off",
                     "gro", "off"])
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, kind, value, trace):
        for name in self.all:
            self.heal(name)
        try:
            if kind is None:
                self.stop()
        finally:
            self.end()

    def end(self):
        for d in self.daemons.values():
            if d.alive():
                d.process.kill()
                d.process.wait()
        self.top.remove()

    def launch(self, name):
        where = self.inside(name)
        argv = where + [None, "-c", "/dev/null", "--log-level", self.level,
                        "--log-format", "text", "-o", f"node.name={name}"]
        insecure = [f"listen.address={self.address(name)}",
                    "security.insecure=true"]
        if name == "sched":
            program = "psched"
            options = [f"listen.port={self.port}"] + insecure + self.options
        elif name in self.server_names:
            program = "psserver"
            options = (["listen.port=9092", "network.same_host=off"] +
                       insecure + self.server_options)
        else:
            program = "psworker-agent"
            options = ([f"client.socket={self.folder}/{name}.sock",
                        "network.same_host=off"] + self.agent_options)
        argv[len(where)] = support.program(program)
        if name != "sched":
            argv += ["--sched", self.endpoint]
        if name not in self.agent_names:
            argv += ["--port-file", str(self.folder / f"{name}.port")]
        for option in options:
            argv += ["-o", option]
        self.daemons[name] = support.Daemon(name, argv, self.folder)
        return self.daemons[name]

    def psctl(self, *words, endpoint=None, timeout="20s"):
        done = subprocess.run(
            self.inside("sched") +
            [support.program("psctl"), "-e", endpoint or self.endpoint,
             "--timeout", timeout, *words],
            capture_output=True, text=True, timeout=support.PATIENCE + 20,
            env=support.clean_env(), check=False)
        return done.returncode, done.stdout, done.stderr

    # ------------------------------------------------------------ what breaks

    def lose(self, names, share):
        """That share of the packets that come in; 0: none."""
        for name in names:
            if name in self.lossy:
                run(self.inside(name) + ["iptables", "-F", "INPUT"])
                self.lossy.discard(name)
            if share > 0:
                run(self.inside(name) +
                    ["iptables", "-A", "INPUT", "!", "-i", "lo", "-m",
                     "statistic", "--mode", "random", "--probability",
                     str(share), "-j", "DROP"])
                self.lossy.add(name)

    def cut(self, name, off):
        """Everything that comes or goes is dropped silently."""
        for chain in ("INPUT", "OUTPUT"):
            if off:
                run(self.inside(name) + ["iptables", "-I", chain, "-j",
                                         "DROP"])
            else:
                run(self.inside(name) + ["iptables", "-F", chain])

    def link(self, name, up):
        run(["ip", "-n", self.top.name(self.number[name]), "link", "set",
             "eth0", "up" if up else "down"])

    def port_of_switch(self, name, up):
        """The cable at its other end: the host sees that its link is gone."""
        run(["ip", "-n", self.top.name(0), "link", "set",
             f"p{self.number[name]}", "up" if up else "down"])

    def heal(self, name):
        with contextlib.suppress(AssertionError):
            for chain in ("INPUT", "OUTPUT"):
                run(self.inside(name) + ["iptables", "-F", chain])
            self.lossy.discard(name)
            self.port_of_switch(name, True)
            self.link(name, True)
