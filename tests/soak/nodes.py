#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Two nodes with an init system of their own, booted by systemd-nspawn from a
Debian tree, and the Debian packages on them.

    nodes.py [--packages FOLDER] [--tree FOLDER] [--keep]

Installs the packages of FOLDER (build-package/deb) with apt on both, makes
certificates, enables the units, trains across both nodes over TLS, reloads a
daemon, stops each daemon until its watchdog has it restarted, upgrades the
packages under a job of sums, and purges them. Needs root, mmdebstrap and
systemd-container; the tree (build/nodes) is made once. Prints a line for each
step; 1 where one fails."""
import argparse
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from trio import SOURCE, die_with_parent, wait_for  # noqa: E402

SUITE = "bookworm"
# Dependencies of the packages are in the tree, so that nodes need no network
# but their own.
INCLUDED = ("systemd", "systemd-sysv", "dbus", "apt", "procps", "iproute2",
            "python3", "python3-numpy", "libuv1", "libmsgpackc2",
            "libyaml-0-2", "libjansson4", "libssl3", "libmicrohttpd12",
            "zlib1g")
PACKAGES = ("pskv-daemons", "pskv-tools", "python3-pskv")
ADDRESSES = {"a": "10.213.7.1", "b": "10.213.7.2"}
UNITS = {"a": ("psched", "psserver", "psworker-agent"),
         "b": ("psserver", "psworker-agent")}
REPOSITORY = "/srv/packages"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
RISE = "+next"  # Of the version of the packages that upgrade.
# Where files of installed packages may appear.
WATCHED = ("/etc", "/usr", "/lib", "/var/lib", "/run", "/srv", "/opt", "/home",
           "/root")
# Records of apt, dpkg and systemd about any package, and what the test puts there.
IGNORED = re.compile(
    r"/var/lib/(apt|dpkg|systemd)/|/run/(systemd|udev|log|dbus|initctl|user|lock)"
    r"|/etc/(passwd|group|shadow|gshadow)-?$|/etc/ld.so.cache"
    r"|/srv/packages|/root/pskv-test|__pycache__|/usr/share/info/dir")

WORKER = """
import sys
from pathlib import Path
import numpy as np
import pskv

folder = Path("/root/pskv-test")
count = 200000
with pskv.create("dist_sync") as kv:
    for name, size in (("w", count), ("end", 1)):
        kv.init(name, np.zeros(size, dtype=np.float32))
    rounds = 0
    while True:
        value = np.full(count, kv.rank + 1 + rounds % 7, dtype=np.float32)
        kv.pushpull("w", value)
        want = 3 + 2 * (rounds % 7)
        assert (value == want).all(), (rounds, value[:3], want)
        end = np.full(1, (folder / "end").exists(), dtype=np.float32)
        kv.pushpull("end", end)
        rounds += 1
        (folder / "rounds.new").write_text(str(rounds))
        (folder / "rounds.new").rename(folder / "rounds")
        if end[0] > 0:
            break
    print("rounds", rounds, "stats", kv.stats())
"""


class Failed(Exception):
    pass


def run(words, check=True, **options):
    done = subprocess.run([str(w) for w in words], capture_output=True,
                          text=True, check=False, **options)
    if check and done.returncode != 0:
        raise Failed(f"{' '.join(map(str, words))}: {done.returncode}\n"
                     f"{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done


def make_tree(tree):
    """A Debian tree as one file; made once."""
    base = tree / "base.tar"
    if base.exists():
        return base
    tree.mkdir(parents=True, exist_ok=True)
    part = tree / "base.part.tar"
    run(["mmdebstrap", "--variant=minbase", "--quiet",
         "--include=" + ",".join(INCLUDED), SUITE, part])
    part.rename(base)
    return base


def make_repository(folder, packages):
    """The packages, and the same ones under a higher version."""
    folder.mkdir()
    made = sorted(packages.glob("*.deb"))
    if not made:
        raise Failed(f"no package in {packages}: ./dev package deb")
    for deb in made:
        shutil.copy(deb, folder)
        unpacked = folder / "unpacked"
        run(["dpkg-deb", "-R", deb, unpacked])
        control = unpacked / "DEBIAN" / "control"
        text = control.read_text()
        version = re.search(r"^Version: (\S+)$", text, re.M).group(1)
        text = text.replace(f"(= {version})", f"(= {version}{RISE})")
        control.write_text(text.replace(f"\nVersion: {version}\n",
                                        f"\nVersion: {version}{RISE}\n"))
        run(["dpkg-deb", "--root-owner-group", "-b", unpacked, folder])
        shutil.rmtree(unpacked)
    with open(folder / "Packages", "w", encoding="utf-8") as out:
        subprocess.run(["dpkg-scanpackages", "-m", "."], cwd=folder,
                       stdout=out, stderr=subprocess.DEVNULL, check=True)
    return version


class Network:
    """A link between two network namespaces, one for each node."""

    def __enter__(self):
        self.spaces = {n: f"pskv-{os.getpid()}-{n}" for n in ADDRESSES}
        a, b = self.spaces.values()
        for space in self.spaces.values():
            run(["ip", "netns", "add", space])
            run(["ip", "-n", space, "link", "set", "lo", "up"])
        run(["ip", "-n", a, "link", "add", "host0", "type", "veth", "peer",
             "name", "host0", "netns", b])
        for n, space in self.spaces.items():
            run(["ip", "-n", space, "address", "add", f"{ADDRESSES[n]}/24",
                 "dev", "host0"])
            run(["ip", "-n", space, "link", "set", "host0", "up"])
        return self

    def __exit__(self, *_):
        for space in self.spaces.values():
            run(["ip", "netns", "delete", space], check=False)


class Node:
    def __init__(self, name, folder, base, repository, space):
        self.name = name
        self.root = folder / name
        self.root.mkdir()
        run(["tar", "--numeric-owner", "--xattrs", "-xf", base, "-C",
             self.root])
        self.put("/etc/hostname", f"node-{name}\n")
        self.put("/etc/hosts", "127.0.0.1 localhost\n" + "".join(
            f"{at} node-{n}\n" for n, at in ADDRESSES.items()))
        self.put("/etc/machine-id", "")
        for old in (self.root / "etc/apt/sources.list.d").glob("*"):
            old.unlink()
        self.put("/etc/apt/sources.list",
                 f"deb [trusted=yes] file:{REPOSITORY} ./\n")
        (self.root / REPOSITORY.lstrip("/")).mkdir(parents=True)
        (self.root / "root/pskv-test").mkdir()
        # Without a terminal nobody reads the console; the journal is kept.
        self.put("/etc/systemd/journald.conf.d/keep.conf",
                 "[Journal]\nStorage=persistent\nRateLimitBurst=0\n")
        self.log = folder / f"{name}.console"
        env = dict(os.environ, SYSTEMD_NSPAWN_UNIFIED_HIERARCHY="1",
                   SYSTEMD_LOG_LEVEL="info")
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                ["systemd-nspawn", "--quiet", "--boot", "--directory",
                 self.root, "--machine", f"pskv-{os.getpid()}-{name}",
                 "--register=no", "--keep-unit", "--console=pipe",
                 "--hostname", f"node-{name}", "--link-journal=no",
                 f"--network-namespace-path=/run/netns/{space}",
                 f"--bind-ro={repository}:{REPOSITORY}"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env,
                preexec_fn=die_with_parent)
        self.leader = None

    def put(self, path, text):
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def file(self, path):
        return self.root / path.lstrip("/")

    def find_leader(self):
        if self.process.poll() is not None:
            raise Failed(f"node {self.name} has ended:\n" +
                         self.log.read_text(errors="replace")[-3000:])
        tasks = Path(f"/proc/{self.process.pid}/task/{self.process.pid}")
        for pid in (tasks / "children").read_text().split():
            if Path(f"/proc/{pid}/comm").read_text().strip() == "systemd":
                return int(pid)
        return None

    def await_boot(self):
        self.leader = wait_for(self.find_leader,
                               f"the init system of node {self.name}", 60)
        wait_for(lambda: self.do(["test", "-S", "/run/systemd/private"],
                                 check=False).returncode == 0,
                 f"systemd of node {self.name}", 60)
        state = self.do(["systemctl", "is-system-running", "--wait"],
                        check=False).stdout.strip()
        if state not in ("running", "degraded"):
            raise Failed(f"node {self.name} is {state}")
        return state

    def words(self, words):
        return ["nsenter", "-t", str(self.leader), "--mount", "--uts", "--ipc",
                "--net", "--pid", "--cgroup", "--root", "--wd=/", "env", "-i",
                f"PATH={PATH}", "HOME=/root", "LC_ALL=C.UTF-8",
                "DEBIAN_FRONTEND=noninteractive", *words]

    def do(self, words, check=True, **options):
        return run(self.words(words), check=check, **options)

    def start(self, words):
        return subprocess.Popen(self.words(words), stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True,
                                preexec_fn=die_with_parent)

    def show(self, unit, name):
        return self.do(["systemctl", "show", "-p", name, "--value",
                        unit]).stdout.strip()

    def pid(self, unit):
        return int(self.show(unit, "MainPID"))

    def systemctl(self, *words):
        try:
            self.do(["systemctl", *words], timeout=120)
        except Failed as e:
            unit = words[-1]
            raise Failed(f"{e}\n" + self.do(
                ["journalctl", "-o", "cat", "-n", "30", "-u", unit],
                check=False).stdout) from None

    def journal(self, unit):
        return self.do(["journalctl", "-o", "cat", "-u", unit]).stdout

    def files(self):
        found = self.do(["find", *WATCHED, "-xdev", "-mindepth", "1"],
                        check=False).stdout.split("\n")
        return {f for f in found if f and not IGNORED.search(f)}

    def stop(self):
        if self.leader is not None and self.process.poll() is None:
            os.kill(self.leader, signal.SIGRTMIN + 4)  # systemd powers off.
        try:
            self.process.wait(60 if self.leader is not None else 1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Show:
    def __init__(self, nodes, version):
        self.nodes = nodes
        self.version = version
        self.before = {}
        self.failed = []

    def __iter__(self):
        return iter(self.nodes.values())

    def step(self, text, act):
        begun = time.monotonic()
        try:
            note = act()
        except (Failed, AssertionError, subprocess.TimeoutExpired) as e:
            self.failed.append(text)
            print(f"{text}: FAILED: {e}", flush=True)
            return False
        print(f"{text}: {note or 'well'} "
              f"({time.monotonic() - begun:.1f} s)", flush=True)
        return True

    # ------------------------------------------------------------- packages

    def install(self):
        for n in self:
            self.before[n.name] = n.files()
            n.do(["apt-get", "update", "-q"])
            n.do(["apt-get", "install", "-q", "-y", "--no-install-recommends",
                  *(f"{p}={self.version}" for p in PACKAGES)])
            for unit in UNITS["a"]:
                state = n.do(["systemctl", "is-enabled", unit],
                             check=False).stdout.strip()
                assert state == "disabled", (unit, state)
        return ", ".join(PACKAGES)

    def versions(self):
        """Versions of the installed packages, on all nodes."""
        return {n.do(["dpkg-query", "-W", "-f", "${Version}", p]).stdout
                for n in self for p in PACKAGES}

    def configure(self):
        a = self.nodes["a"]
        a.do(["psctl", "pki", "init", "--cluster", "lab"])
        roles = [("sched", "psched", "a")] + [
            (role, n, n) for n in self.nodes for role in ("server", "agent")]
        for role, name, node in roles + [("ctl", "operator", "b")]:
            folder = f"/root/pskv-test/{role if role == 'ctl' else node}"
            a.do(["psctl", "pki", "issue", role, name, "--out", folder,
                  *([] if role == "ctl" else ["--owner", "pskv"])])
        for n in self:
            kept = a.file(f"/root/pskv-test/{n.name}")
            shutil.copytree(kept, n.file("/etc/pskv/tls"))
            if n is not a:
                shutil.copytree(a.file("/root/pskv-test/ctl"),
                                n.file("/root/pskv-test/ctl"))
            n.do(["chown", "-R", "pskv:", "/etc/pskv/tls"])
            for unit in UNITS[n.name]:
                text = "security:\n  tls:\n    directory: /etc/pskv/tls\n"
                if unit != "psworker-agent":
                    text += f"listen:\n  address: {ADDRESSES[n.name]}\n"
                if unit != "psched":
                    text += f"scheduler:\n  address: {ADDRESSES['a']}\n"
                n.put(f"/etc/pskv/{unit}.yaml", text)
                n.do(["runuser", "-u", "pskv", "--", unit, "--check-config"])

    def enable(self):
        for n in self:
            for unit in UNITS[n.name]:
                n.systemctl("enable", "--now", "--quiet", unit)
                assert n.show(unit, "ActiveState") == "active"
        return "each is active and ready"

    def members(self):
        """Names and states as psched has them."""
        rows = json.loads(self.nodes["a"].do(
            ["psctl", "-w", "json", "nodes"]).stdout)["nodes"]
        return {(r["role"], r["name"]): r["state"] for r in rows
                if r["role"] in ("server", "agent")}

    def await_members(self):
        want = {(role, n) for n in self.nodes for role in ("server", "agent")}

        def all_are_active():
            have = self.members()
            return set(have) == want and set(have.values()) == {"active"}
        wait_for(all_are_active, "all members", 30)

    def encrypted(self):
        """From the other node psctl is refused without a certificate."""
        self.await_members()
        b = self.nodes["b"]
        to = f"{ADDRESSES['a']}:9091"
        bare = b.do(["psctl", "-e", to, "--timeout", "5s", "nodes"],
                    check=False)
        assert bare.returncode not in (0, 3), bare.stdout
        b.do(["psctl", "-e", to, "--tls", "/root/pskv-test/ctl", "nodes"])
        return "psctl over the network needs a certificate"

    # ----------------------------------------------------------------- jobs

    def begin_job(self):
        jobs = []
        for rank, n in enumerate(self):
            n.put("/root/pskv-test/worker.py", WORKER)
            for name in ("end", "rounds"):
                n.file(f"/root/pskv-test/{name}").unlink(missing_ok=True)
            jobs.append(n.start(
                ["env", "PSKV_JOB=sums", f"PSKV_RANK={rank}",
                 "PSKV_NUM_WORKERS=2", "PSKV_NUM_SERVERS=2",
                 "PSKV_ON_LOSS=wait", "PSKV_START_TIMEOUT=60s",
                 "python3", "/root/pskv-test/worker.py"]))
        return jobs

    def rounds(self):
        done = []
        for n in self:
            file = n.file("/root/pskv-test/rounds")
            done.append(int(file.read_text()) if file.exists() else 0)
        return min(done)

    def await_rounds(self, jobs, more):
        least = self.rounds() + more

        def passed():
            for job in jobs:
                if job.poll() is not None:
                    raise Failed(f"a worker ended: {job.stdout.read()}")
            return self.rounds() >= least
        wait_for(passed, f"{more} more rounds", 90)

    def end_job(self, jobs):
        for n in self:
            n.put("/root/pskv-test/end", "")
        texts = []
        for job in jobs:
            text, _ = job.communicate(timeout=60)
            if job.returncode != 0:
                raise Failed(f"a worker ended with {job.returncode}: {text}")
            texts.append(text)
        return int(texts[0].split()[1])

    def train(self):
        jobs = self.begin_job()
        try:
            self.await_rounds(jobs, 50)
            return f"{self.end_job(jobs)} rounds, each sum exact"
        finally:
            for job in jobs:
                job.kill()

    # -------------------------------------------------------------- daemons

    def reload(self):
        for n in self:
            for unit in UNITS[n.name]:
                pid = n.pid(unit)
                file = n.file(f"/etc/pskv/{unit}.yaml")
                file.write_text(file.read_text() + "log:\n  level: debug\n")
                since = len(n.journal(unit))
                n.systemctl("reload", unit)
                wait_for(lambda n=n, unit=unit, since=since:
                         "log.level" in n.journal(unit)[since:],
                         f"{unit} of node {n.name} to read its file", 10)
                assert n.pid(unit) == pid
        return "same processes, a new log.level"

    def hang(self):
        took = []
        for n in self:
            for unit in UNITS[n.name]:
                n.do(["mkdir", "-p", f"/run/systemd/system/{unit}.service.d"])
                n.do(["sh", "-c", "printf '[Service]\\nWatchdogSec=3s\\n' > "
                      f"/run/systemd/system/{unit}.service.d/short.conf"])
                n.systemctl("daemon-reload")
                n.systemctl("restart", unit)
                pid = n.pid(unit)
                begun = time.monotonic()
                n.do(["kill", "-STOP", str(pid)])
                wait_for(lambda n=n, unit=unit, pid=pid:
                         n.pid(unit) not in (0, pid) and
                         n.show(unit, "ActiveState") == "active",
                         f"another process of {unit} on node {n.name}", 60)
                took.append(time.monotonic() - begun)
                n.do(["rm", "-r", f"/run/systemd/system/{unit}.service.d"])
                n.systemctl("daemon-reload")
                n.systemctl("restart", unit)
        self.await_members()
        return (f"{len(took)} daemons, each was restarted within "
                f"{max(took):.1f} s of a watchdog of 3 s")

    def upgrade(self):
        pids = {(n.name, u): n.pid(u) for n in self for u in UNITS[n.name]}
        jobs = self.begin_job()
        try:
            self.await_rounds(jobs, 20)
            for n in reversed(list(self)):
                n.do(["apt-get", "install", "-q", "-y",
                      "--no-install-recommends",
                      *(f"{p}={self.version}{RISE}" for p in PACKAGES)])
                self.await_rounds(jobs, 20)
            rounds = self.end_job(jobs)
        finally:
            for job in jobs:
                job.kill()
        assert self.versions() == {self.version + RISE}
        for (name, unit), pid in pids.items():
            same = self.nodes[name].pid(unit) == pid
            assert same == (unit == "psched"), (name, unit, same)
        return (f"the job had {rounds} rounds, each sum exact; psched goes on "
                "as it was, the others were restarted")

    def purge(self):
        left = {}
        for n in self:
            n.do(["apt-get", "purge", "-q", "-y", *PACKAGES, "libpsclient0"])
            left[n.name] = sorted(n.files() - self.before[n.name])
            units = n.do(["systemctl", "list-units", "--all", "--plain",
                          "--no-legend", "ps*"]).stdout
            # systemd may know the name of a unit that is gone.
            assert all("not-found inactive" in " ".join(line.split())
                       for line in units.splitlines()), units
            processes = n.do(["ps", "-u", "pskv"], check=False)
            assert processes.returncode == 1, processes.stdout
        authority = {"/etc/pskv", "/etc/pskv/pki"}
        for name, files in left.items():
            more = [f for f in files
                    if name != "a" or not (f in authority or
                                           f.startswith("/etc/pskv/pki/"))]
            assert not more, (name, more)
        return "only the authority is left, on its node"

    def run(self):
        good = self.step("packages installed with apt", self.install)
        good = good and self.step("certificates and files", self.configure)
        good = good and self.step("systemctl enable --now", self.enable)
        if good:
            self.step("encryption between the nodes", self.encrypted)
            self.step("job across both nodes", self.train)
            self.step("systemctl reload", self.reload)
            self.step("hung daemons", self.hang)
            self.step("upgrade under a job of sums", self.upgrade)
        self.step("purge", self.purge)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--packages", type=Path,
                   default=SOURCE / "build-package/deb")
    p.add_argument("--tree", type=Path, default=SOURCE / "build/nodes")
    p.add_argument("--keep", action="store_true")
    options = p.parse_args()
    if os.geteuid() != 0:
        print("nodes.py needs root", file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="pskv-nodes-"))
    folder.chmod(0o755)
    nodes = {}
    try:
        base = make_tree(options.tree)
        version = make_repository(folder / "packages", options.packages)
        with Network() as network:
            try:
                for name in ADDRESSES:
                    nodes[name] = Node(name, folder, base, folder / "packages",
                                       network.spaces[name])
                for n in nodes.values():
                    print(f"node {n.name} is {n.await_boot()}", flush=True)
                show = Show(nodes, version)
                show.run()
                if options.keep:
                    print(f"nodes stay until the end of input: {folder}",
                          [n.leader for n in nodes.values()], flush=True)
                    select.select([sys.stdin], [], [])
            finally:
                for n in nodes.values():
                    n.stop()
    except Failed as e:
        print(e)
        return 1
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if show.failed else 0


if __name__ == "__main__":
    sys.exit(main())
