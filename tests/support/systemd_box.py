# SPDX-License-Identifier: Apache-2.0
"""A systemd booted from the files of this host, under a layer that takes all
changes, with the network of this host. It needs root and systemd-nspawn."""
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

import trio as support
from launched import children_of
from trio import die_with_parent, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]
INIT = "/usr/lib/systemd/systemd"


def missing():
    if os.getuid() != 0:
        return "a systemd is booted by root"
    if shutil.which("systemd-nspawn") is None or not os.path.exists(INIT):
        return "there is no systemd-nspawn"
    return None


class Box:
    """`command` and what follows it run in the box, which sees `shared`."""

    def __init__(self, shared):
        # Not in the shared folder, which would then contain itself.
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="pskv-box-"))
        self.tree = self.tmp / "tree"
        self.process = None
        # Two boxes at a time would have the same control groups.
        self.lock = open("/run/lock/pskv-box", "wb")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            self.mount()
            self.boot(shared)
        except BaseException:
            self.close()
            raise

    def mount(self):
        self.tree.mkdir()
        layer = self.tmp / "layer"
        layer.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", layer], check=True)
        for name in ("upper", "work"):
            (layer / name).mkdir()
        subprocess.run(["mount", "-t", "overlay", "none", "-o",
                        f"lowerdir=/,upperdir={layer}/upper,"
                        f"workdir={layer}/work", self.tree], check=True)
        (self.tree / "etc/fstab").write_text("")

    def boot(self, shared):
        binds = [f"--bind={path}" for path in
                 {str(support.BUILD), str(ROOT), str(shared)}]
        log = open(self.tmp / "nspawn.log", "wb")
        self.process = subprocess.Popen(
            ["systemd-nspawn", "--quiet", f"--directory={self.tree}",
             "--register=no", "--keep-unit", "--link-journal=no",
             "--console=pipe", *binds, "--boot", "systemd.unit=basic.target"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=die_with_parent)
        wait_for(self.is_up, f"systemd, see {self.tmp}/nspawn.log", step=0.2)

    def init(self):
        """The first process of the namespace; None: not yet."""
        for pid in children_of(self.process.pid):
            try:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
            except OSError:  # It has ended: the one that starts the first.
                continue
            if status.split("NSpid:")[1].split("\n")[0].split()[-1:] == ["1"]:
                return pid
        return None

    @property
    def command(self):
        pid = self.init()
        return None if pid is None else \
            ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-p", "-C"]

    def run(self, *words):
        done = subprocess.run([*self.command, *words], capture_output=True,
                              text=True, check=False)
        return done.returncode, done.stdout

    def is_up(self):
        assert self.process.poll() is None, \
            (self.tmp / "nspawn.log").read_text(errors="replace")
        return self.command is not None and \
            self.run("systemctl", "is-active", "basic.target")[0] == 0

    def close(self):
        if self.process is not None:
            # Its end is that of all processes of the box; without it they
            # outlive systemd-nspawn.
            pid = self.init()
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
            else:
                self.process.kill()
            self.process.wait(support.PATIENCE)
        for name in ("tree", "layer"):
            subprocess.run(["umount", "-l", self.tmp / name], check=False,
                           stderr=subprocess.DEVNULL)
        shutil.rmtree(self.tmp, ignore_errors=True)
        self.lock.close()
