#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program under the sandbox of its systemd unit, without systemd: its
system calls are filtered as SystemCallFilter= and the switches of the unit say,
it has no capabilities and cannot get new ones.

    sandbox.py UNIT PROGRAM [ARGUMENT...]

What needs name spaces of mounts (ProtectSystem=, PrivateTmp=, ...) is left out:
the tests see the host's files."""
import ctypes
import errno
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

MISSING = None
try:
    import seccomp
    from seccomp import EQ, MASKED_EQ, NE, Arg
except ImportError as e:
    MISSING = f"{e} (package python3-seccomp; ./dev packages --all)"
if shutil.which("systemd-analyze") is None:
    MISSING = ("systemd-analyze is not installed (package systemd; "
               "./dev packages --all)")

# Actions of filters, of <linux/seccomp.h>, as systemd reports them.
NAMESPACES = {"CLONE_NEWNS": 0x00020000, "CLONE_NEWCGROUP": 0x02000000,
              "CLONE_NEWUTS": 0x04000000, "CLONE_NEWIPC": 0x08000000,
              "CLONE_NEWUSER": 0x10000000, "CLONE_NEWPID": 0x20000000,
              "CLONE_NEWNET": 0x40000000}
PROT_WRITE, PROT_EXEC = 2, 4
SHM_EXEC = 0o100000
PR_CAPBSET_DROP = 24


def read_unit(path):
    """Values of [Service] by directive, in order; an empty one resets."""
    values = {}
    for line in Path(path).read_text(encoding="utf-8").split("\n"):
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith("#"):
            continue
        if value:
            values.setdefault(name, []).append(value)
        else:
            values[name] = [""]
    return values


def call_groups():
    """System calls and groups in each group, as systemd defines them."""
    said = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager"],
                          capture_output=True, text=True, check=True).stdout
    groups, now = {}, None
    for line in said.split("\n"):
        word = line.strip()
        if line.startswith("@"):
            now = groups.setdefault(word, [])
        elif now is not None and line.startswith(" ") and \
                not word.startswith("#"):
            now.append(word)
    return groups


def resolve(words, groups):
    calls = set()
    for word in words:
        calls |= resolve(groups[word], groups) if word.startswith("@") \
            else {word}
    return calls


def allowed_calls(lines, groups):
    """The allow-list of SystemCallFilter= lines that begins with one."""
    allowed = None
    for line in lines:
        calls = resolve(line.lstrip("~").split(), groups)
        if line.startswith("~"):
            assert allowed is not None, "a deny-list alone"
            allowed -= calls
        else:
            # systemd always allows these.
            allowed = (allowed or resolve(["@default"], groups)) | calls
    return allowed


def is_on(unit, name):
    return unit.get(name, ["no"])[-1] in ("yes", "true", "1", "on")


class Filter:
    def __init__(self, unit):
        self.unit = unit
        number = unit.get("SystemCallErrorNumber", ["EPERM"])[-1]
        self.refuse = seccomp.ERRNO(getattr(errno, number))
        self.filters = []

    def deny(self, call, *args, error=errno.EPERM):
        f = seccomp.SyscallFilter(seccomp.ALLOW)
        f.add_rule(seccomp.ERRNO(error), call, *args)
        self.filters.append(f)

    def deny_each(self, rules, error=errno.EPERM):
        """One filter of (call, arguments) rules, for speed."""
        f = seccomp.SyscallFilter(seccomp.ALLOW)
        for call, *args in rules:
            f.add_rule(seccomp.ERRNO(error), call, *args)
        self.filters.append(f)

    def add_calls(self):
        lines = self.unit.get("SystemCallFilter")
        if lines is None:
            return
        f = seccomp.SyscallFilter(self.refuse)
        for call in sorted(allowed_calls(lines, call_groups())):
            try:
                f.add_rule(seccomp.ALLOW, call)
            except (OSError, RuntimeError, ValueError):
                pass  # Of another architecture.
        self.filters.append(f)

    def add_address_families(self):
        for line in self.unit.get("RestrictAddressFamilies", []):
            families = sorted(int(getattr(socket, n)) for n in line.split())
            rules = []
            # Between the allowed ones, each gap, as libseccomp has no sets.
            for n in range(families[-1] + 1):
                if n not in families:
                    rules.append(("socket", Arg(0, EQ, n)))
            rules.append(("socket", Arg(0, seccomp.GT, families[-1])))
            self.deny_each(rules, errno.EAFNOSUPPORT)

    def add_switches(self):
        if is_on(self.unit, "RestrictNamespaces"):
            rules = [(call, Arg(0, MASKED_EQ, bit, bit))
                     for call in ("clone", "unshare")
                     for bit in NAMESPACES.values()]
            self.deny_each(rules + [("setns",)])
            self.deny("clone3", error=errno.ENOSYS)
        if is_on(self.unit, "MemoryDenyWriteExecute"):
            both = PROT_WRITE | PROT_EXEC
            self.deny_each([
                ("mmap", Arg(2, MASKED_EQ, both, both)),
                ("mprotect", Arg(2, MASKED_EQ, PROT_EXEC, PROT_EXEC)),
                ("pkey_mprotect", Arg(2, MASKED_EQ, PROT_EXEC, PROT_EXEC)),
                ("shmat", Arg(2, MASKED_EQ, SHM_EXEC, SHM_EXEC))])
        if is_on(self.unit, "LockPersonality"):
            self.deny_each([("personality", Arg(0, NE, 0))])
        if is_on(self.unit, "RestrictRealtime"):
            self.deny_each([("sched_setscheduler", Arg(1, EQ, policy))
                            for policy in (1, 2, 6)])
        if is_on(self.unit, "RestrictSUIDSGID"):
            self.deny_each([(call, Arg(at, MASKED_EQ, bit, bit))
                            for call, at in (("chmod", 1), ("fchmod", 1),
                                             ("fchmodat", 2), ("mkdir", 1),
                                             ("mkdirat", 2))
                            for bit in (0o4000, 0o2000)])

    def load(self):
        self.add_calls()
        self.add_address_families()
        self.add_switches()
        # The last one is the list of system calls: it may forbid seccomp().
        for f in self.filters[1:] + self.filters[:1]:
            f.load()


def drop_capabilities(libc):
    """Of this process after execve(); of root too."""
    for number in range(64):
        libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)


def main():
    if MISSING is not None:
        sys.exit(f"sandbox.py: {MISSING}")
    unit = read_unit(sys.argv[1])
    libc = ctypes.CDLL(None, use_errno=True)
    if unit.get("CapabilityBoundingSet", ["all"])[-1] == "":
        drop_capabilities(libc)
    if "UMask" in unit:
        os.umask(int(unit["UMask"][-1], 8))
    if unit.get("LimitCORE", [""])[-1] == "0":
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Filter(unit).load()
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
