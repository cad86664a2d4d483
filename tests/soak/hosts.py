# SPDX-License-Identifier: Apache-2.0
"""A cluster on hosts of its own, which are network namespaces, joined by one
switch, and faults of networks. Each daemon has one, unless `hosts` numbers them. Needs root, ip, iptables and ethtool.

    with Hosts(folder, servers=2, agents=2) as h:
        h.lose(h.all, 0.3)       # of the packets that these hosts receive
        h.cut("sched", True)     # all packets are dropped without an error
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


def missing():
    """Reason why no hosts can be made here, or None."""
    try:
        with netns.Topology(1, 0, 0, packets=True) as top:
            for words in (["ethtool", "-K", "eth0", "tso", "off"],
                          ["iptables", "-A", "INPUT", "-m", "statistic",
                           "--mode", "random", "--probability", "0.5", "-j",
                           "DROP"]):
                run(top.inside(1) + words)
    except (netns.Missing, AssertionError) as e:
        return str(e)
    return None


class Hosts(support.Trio):
    """A trio whose daemons have one host each; workers run on the hosts of
    their agents where they need the network."""

    def __init__(self, folder, servers=2, agents=2, hosts=None, **options):
        # Default times: the test measures them.
        super().__init__(folder, servers=servers, agents=agents, **options)
        self.options = [o for o in self.options if o not in support.CALM]
        self.all = ["sched"] + self.server_names + self.agent_names
        self.number = hosts or {name: i + 1 for i, name in enumerate(self.all)}
        self.top = netns.Topology(max(self.number.values()), 0, 0,
                                  packets=True)
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
        self.daemons[name] = support.Daemon(name, argv, self.folder,
                                            store=self.store(name))
        return self.daemons[name]

    def psctl(self, *words, endpoint=None, timeout="20s"):
        done = subprocess.run(
            self.inside("sched") +
            [support.program("psctl"), "-e", endpoint or self.endpoint,
             "--timeout", timeout, *words],
            capture_output=True, text=True, timeout=support.PATIENCE + 20,
            env=support.clean_env(), check=False)
        return done.returncode, done.stdout, done.stderr

    # ----------------------------------------------------------------- faults

    def lose(self, names, share):
        """Drops a share of the incoming packets of hosts; 0: none."""
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
        """Drops all packets of a host silently."""
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
        """Sets the link of a host up or down at the switch."""
        run(["ip", "-n", self.top.name(0), "link", "set",
             f"p{self.number[name]}", "up" if up else "down"])

    def heal(self, name):
        with contextlib.suppress(AssertionError):
            for chain in ("INPUT", "OUTPUT"):
                run(self.inside(name) + ["iptables", "-F", chain])
            self.lossy.discard(name)
            self.port_of_switch(name, True)
            self.link(name, True)
