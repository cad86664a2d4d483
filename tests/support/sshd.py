# SPDX-License-Identifier: Apache-2.0
"""Real sshd on loopback addresses, as if each were a host: keys, configuration
and port of the test alone, and the user's own uid."""
import os
import pathlib
import shutil
import socket
import subprocess

from trio import clean_env, die_with_parent, reserve_port, wait_for

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
HOSTS = ("127.0.0.2", "127.0.0.3")


class Sshd:
    """One sshd that listens on the addresses, and the variable PSKV_SSH for a
    client that reaches it. `tmp`: folder for keys. Processes of its sessions
    have `mark` in their environment, as PSKV_MARK, and further variables.
    `enter`: words in front of the command of each session."""

    def __init__(self, tmp, mark, hosts=HOSTS, enter=(), **variables):
        self.enter = " ".join(enter)
        self.variables = "".join(f" {k}={v}" for k, v in variables.items())
        self.mark = mark
        # Sessions run no start-up files of the user, and their temporary files
        # can be counted.
        self.home = pathlib.Path(tmp) / "home"
        self.home.mkdir()
        self.tmp = pathlib.Path(tmp)
        self.hosts = hosts
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "",
                            "-f", self.tmp / name], check=True)
        shutil.copy(self.tmp / "user.pub", self.tmp / "authorized")
        with reserve_port("127.0.0.2") as reserved:
            self.port = reserved.getsockname()[1]
            self.write_files()
            if os.getuid() == 0:
                # Debian's sshd runs its unprivileged part there.
                os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
            self.process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", self.tmp / "sshd_config"],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=open(self.tmp / "sshd.log", "wb"), env=clean_env(),
                preexec_fn=die_with_parent)
            for host in hosts:
                wait_for(lambda host=host: self.listens(host), "sshd")

    def write_files(self):
        listen = "".join(f"ListenAddress {h}\n" for h in self.hosts)
        (self.tmp / "sshd_config").write_text(
            f"Port {self.port}\n{listen}HostKey {self.tmp}/host\n"
            f"AuthorizedKeysFile {self.tmp}/authorized\n"
            f"PidFile {self.tmp}/sshd.pid\nUsePAM no\nStrictModes no\n"
            "PasswordAuthentication no\nPermitRootLogin yes\n"
            f"MaxStartups 100\nSetEnv PSKV_MARK={self.mark} HOME={self.home} "
            f"TMPDIR={self.home} PATH={os.environ['PATH']}"
            f"{self.variables}\n" + (
                f"ForceCommand exec {self.enter} sh -c "
                "\"$SSH_ORIGINAL_COMMAND\"\n" if self.enter else ""))
        key = (self.tmp / "host.pub").read_text()
        (self.tmp / "known_hosts").write_text("".join(
            f"[{h}]:{self.port} {key}" for h in self.hosts))
        (self.tmp / "ssh_config").write_text(
            f"IdentityFile {self.tmp}/user\nIdentitiesOnly yes\n"
            f"UserKnownHostsFile {self.tmp}/known_hosts\n"
            f"StrictHostKeyChecking yes\nPort {self.port}\n")

    def listens(self, host):
        assert self.process.poll() is None, \
            (self.tmp / "sshd.log").read_text()
        with socket.socket() as s:
            return s.connect_ex((host, self.port)) == 0

    @property
    def command(self):
        return f"ssh -F {self.tmp}/ssh_config"

    def close(self):
        self.process.terminate()
        self.process.wait()
