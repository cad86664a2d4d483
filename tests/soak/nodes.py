#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Two nodes with an init system of their own, booted by systemd-nspawn from a
Debian tree, and the Debian packages on them.

    nodes.py [--packages FOLDER] [--tree FOLDER] [--only upgrade] [--keep]

Installs the packages of the release before with apt on both, makes certificates,
enables the units, trains across both nodes over TLS, and upgrades to the packages
of FOLDER (build-package/deb): by apt under a job with Adam, then the daemons that
go on, in their order, with jobs in every mixture. Then it reloads each daemon,
stops it until its watchdog has it restarted, upgrades the packages to a higher
version and installs them again under a job with Adam, and purges them. The bits
of each job are those of one that nothing happened to. Where the history of this
tree lacks the release before, it begins with the packages of FOLDER.

Needs root, mmdebstrap and systemd-container; the tree (build/nodes) is made once.
Prints a line for each step; 1 where one fails."""
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

import older  # noqa: E402
from trio import SOURCE, die_with_parent, wait_for  # noqa: E402

SUITE = "bookworm"
# Dependencies of the packages are in the tree, so that nodes need no network
# but their own.
INCLUDED = ("systemd", "systemd-sysv", "dbus", "apt", "procps", "iproute2",
            "python3", "python3-numpy", "libuv1", "libmsgpackc2",
            "libyaml-0-2", "libjansson4", "libssl3", "libmicrohttpd12",
            "libxxhash0",
            "libsqlite3-0", "zlib1g")
PACKAGES = ("pskv-daemons", "pskv-tools", "python3-pskv", "libpsclient0")
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

MARK = 50  # Rounds between two digests of all weights.
WORKER = """
import hashlib, json, os, sys, time
from pathlib import Path
import numpy as np
import pskv

folder = Path("/root/pskv-test")
count, mark = 100000, %d
last = int(os.environ["PSKV_TEST_ROUNDS"])
digests = []
with pskv.create("dist_sync") as kv:
    kv.set_optimizer("adam", learning_rate=0.01)
    for name, size in (("w", count), ("end", 1)):
        kv.init(name, np.zeros(size, dtype=np.float32))
    base = np.random.default_rng(kv.rank).standard_normal(count, np.float32)
    weights, end = np.empty(count, np.float32), np.empty(1, np.float32)
    rounds = 0
    while True:
        kv.pushpull("w", base * np.float32(1 + rounds %% 7), out=weights)
        rounds += 1
        over = (folder / "end").exists() if last == 0 else rounds >= last
        # Without a gradient Adam leaves a zero as it is.
        kv.pushpull("end", np.full(1, over, dtype=np.float32), out=end)
        if rounds %% mark == 0:
            digests.append(hashlib.sha256(weights.tobytes()).hexdigest()[:16])
            kv.barrier()
        (folder / "rounds.new").write_text(str(rounds))
        (folder / "rounds.new").rename(folder / "rounds")
        if end[0] != 0:
            break
        if last == 0:
            time.sleep(0.02)
    print("done", json.dumps({"rounds": rounds, "digests": digests}))
""" % MARK


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


def make_repository(folder, packages, before):
    """The packages, the same ones under a higher version, and those of the
    release before, in the folder `before`, if it is not None."""
    folder.mkdir()
    made = sorted(packages.glob("*.deb"))
    if not made:
        raise Failed(f"no package in {packages}: ./dev package deb")
    for deb in before.glob("*.deb") if before is not None else ():
        shutil.copy(deb, folder)
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
    def __init__(self, nodes, version, first):
        self.nodes = nodes
        self.version = version
        self.first = first  # The version that is installed to begin with.
        self.before = {}
        self.bits = []  # Digests of the longest job that nothing happened to.
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
            self.apt(n, self.first)
            for unit in UNITS["a"]:
                state = n.do(["systemctl", "is-enabled", unit],
                             check=False).stdout.strip()
                assert state == "disabled", (unit, state)
        return f"{', '.join(PACKAGES)} of version {self.first}"

    def apt(self, n, version, *options):
        return n.do(["apt-get", "install", "-q", "-y", *options,
                     "-o", "Dpkg::Options::=--force-confold",
                     "--no-install-recommends",
                     *(f"{p}={version}" for p in PACKAGES)])

    def pids(self):
        return {(n.name, u): n.pid(u) for n in self for u in UNITS[n.name]}

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

    def members(self, what="state"):
        """Names and states as psched has them."""
        rows = json.loads(self.nodes["a"].do(
            ["psctl", "-w", "json", "nodes"]).stdout)["nodes"]
        return {(r["role"], r["name"]): r[what] for r in rows
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

    def begin_job(self, rounds=0):
        """A job of that number of rounds; 0: until end_job()."""
        jobs = []
        for rank, n in enumerate(self):
            n.put("/root/pskv-test/worker.py", WORKER)
            for name in ("end", "rounds"):
                n.file(f"/root/pskv-test/{name}").unlink(missing_ok=True)
            jobs.append(n.start(
                ["env", "PSKV_JOB=adam", f"PSKV_RANK={rank}",
                 "PSKV_NUM_WORKERS=2", "PSKV_NUM_SERVERS=2",
                 "PSKV_ON_LOSS=wait", "PSKV_START_TIMEOUT=60s",
                 f"PSKV_TEST_ROUNDS={rounds}",
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

    def results(self, jobs, seconds):
        """Digests of a job that ends by itself, on all ranks alike."""
        seen = []
        for job in jobs:
            text, _ = job.communicate(timeout=seconds)
            if job.returncode != 0:
                raise Failed(f"a worker ended with {job.returncode}: {text}")
            seen.append(json.loads(text.split("done ", 1)[1]))
        assert seen[0] == seen[1], seen
        assert seen[0]["digests"], seen
        return seen[0]["digests"]

    def end_job(self, jobs):
        for n in self:
            n.put("/root/pskv-test/end", "")
        return self.results(jobs, 60)

    def train(self, rounds):
        jobs = self.begin_job(rounds)
        try:
            return self.results(jobs, 600)
        finally:
            for job in jobs:
                job.kill()

    def compare(self, digests):
        """The bits are those of a job that nothing happened to."""
        if len(self.bits) < len(digests):
            self.bits = self.train(len(digests) * MARK)
        assert digests == self.bits[:len(digests)], \
            (digests, self.bits[:len(digests)])
        return f"{len(digests) * MARK} rounds with equal bits"

    def job(self):
        self.bits = self.train(4 * MARK)
        return f"{4 * MARK} rounds"

    def under_job(self, act):
        """Calls `act`, with a function that awaits more rounds, under a job, no
        call of which fails; compares its bits."""
        jobs = self.begin_job()
        try:
            self.await_rounds(jobs, 20)
            act(lambda: self.await_rounds(jobs, 20))
            digests = self.end_job(jobs)
        finally:
            for job in jobs:
                job.kill()
        return self.compare(digests)

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

    def newer_packages(self):
        """Nothing of the release before is restarted under a job, but agents by
        an operator."""
        pids = self.pids()

        def act(more):
            for n in reversed(list(self)):
                self.apt(n, self.version)
                more()
            assert self.pids() == pids
            for n in self:
                n.systemctl("restart", "psworker-agent")
                more()
        note = self.under_job(act)
        assert self.versions() == {self.version}
        seen = self.members("version")
        assert {v for (role, _), v in seen.items() if role == "agent"} == \
            {self.version}, seen
        assert {v for (role, _), v in seen.items() if role == "server"} == \
            {self.first}, seen
        return f"{note}, and then agents of {self.version} in it"

    def newer_psched(self):
        self.nodes["a"].systemctl("restart", "psched")
        self.await_members()
        return self.compare(self.train(4 * MARK))

    def older_server(self):
        """A server of the release before has no memory that outlives it."""
        jobs = self.begin_job()
        try:
            self.await_rounds(jobs, 20)
            self.nodes["b"].systemctl("restart", "psserver")
            for job in jobs:
                wait_for(lambda job=job: job.poll() is not None,
                         "the end of a job whose server kept nothing", 60)
                text, _ = job.communicate()
                assert job.returncode == 1, text
                said = re.search(r"server b .*", text)
                assert said, text
        finally:
            for job in jobs:
                job.kill()
        return said.group()

    def newer_servers(self):
        self.await_members()
        notes = [self.compare(self.train(4 * MARK))]
        self.nodes["a"].systemctl("restart", "psserver")
        self.await_members()
        notes.append(self.compare(self.train(4 * MARK)))
        assert set(self.members("version").values()) == {self.version}
        return ", then ".join(notes)

    def store(self):
        b = self.nodes["b"]
        kept = []
        for verb in ("restart", "stop", "start"):
            b.systemctl(verb, "psserver")
            kept.append(b.show("psserver", "NFileDescriptorStore"))
        assert kept == ["1", "0", "1"], kept
        self.await_members()
        return "kept over a restart, dropped at a stop"

    def upgrade(self):
        pids = self.pids()
        next_ = self.version + RISE

        def act(more):
            for n in reversed(list(self)):
                self.apt(n, next_)
                more()
                for unit in UNITS[n.name]:
                    same = n.pid(unit) == pids[n.name, unit]
                    assert same == (unit == "psworker-agent"), (n.name, unit)
                n.systemctl("restart", "psworker-agent")
                more()
            for n in self:  # In the other order.
                self.apt(n, next_, "--reinstall")
                more()
        begun = self.returns()
        note = self.under_job(act)
        assert self.versions() == {next_}
        assert self.returns() - begun == 4
        return note

    def returns(self):
        return self.nodes["a"].journal("psched").count(
            "is back with its memory")

    def purge(self):
        left = {}
        for n in self:
            n.do(["apt-get", "purge", "-q", "-y", *PACKAGES])
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

    def run(self, only):
        good = self.step("packages installed with apt", self.install)
        good = good and self.step("certificates and files", self.configure)
        good = good and self.step("systemctl enable --now", self.enable)
        if good:
            self.step("encryption between the nodes", self.encrypted)
            self.step("job with Adam across both nodes", self.job)
        if good and self.first != self.version:
            self.step(f"upgrade from {self.first} under a job, then restarts "
                      "of the agents", self.newer_packages)
            self.step("next psched beside older servers", self.newer_psched)
            self.step("what a job says when an older server restarts",
                      self.older_server)
            self.step("next servers, one after the other", self.newer_servers)
        if good and only != "upgrade":
            self.step("systemctl reload", self.reload)
            self.step("hung daemons", self.hang)
        if good:
            self.step("memory of a server at its manager", self.store)
            self.step("upgrade, and the packages again, under a job",
                      self.upgrade)
        self.step("purge", self.purge)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--packages", type=Path,
                   default=SOURCE / "build-package/deb")
    p.add_argument("--tree", type=Path, default=SOURCE / "build/nodes")
    p.add_argument("--only", choices=["upgrade"])
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
        before = None if older.missing() else older.packages()
        version = make_repository(folder / "packages", options.packages,
                                  before)
        with Network() as network:
            try:
                for name in ADDRESSES:
                    nodes[name] = Node(name, folder, base, folder / "packages",
                                       network.spaces[name])
                for n in nodes.values():
                    print(f"node {n.name} is {n.await_boot()}", flush=True)
                show = Show(nodes, version,
                            version if before is None else older.VERSION)
                show.run(options.only)
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
