# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster of two virtual nodes on this host, with files, ports and a
munged of the test alone. It needs root."""
import os
import pathlib
import shutil
import socket
import subprocess

from trio import clean_env, die_with_parent, reserve_port, wait_for

SBIN = os.environ.get("PATH", "") + ":/usr/sbin"
PROGRAMS = {name: shutil.which(name, path=SBIN) for name in
            ("munged", "slurmctld", "slurmd", "salloc", "srun", "sinfo")}
MISSING = os.getuid() != 0 or None in PROGRAMS.values()


class Slurm:
    """Nodes n1 and n2; env has the variables of the clients."""

    def __init__(self, tmp):
        self.tmp = pathlib.Path(tmp)
        self.processes = []
        self.env = clean_env(SLURM_CONF=self.tmp / "slurm.conf")
        reserved = [reserve_port("0.0.0.0") for _ in range(3)]
        self.ports = [s.getsockname()[1] for s in reserved]
        (self.tmp / "key").write_bytes(os.urandom(128))
        (self.tmp / "key").chmod(0o600)
        (self.tmp / "state").mkdir()
        self.write_files()
        self.start("munged", "--foreground", "--force",
                   f"--key-file={self.tmp}/key",
                   f"--socket={self.tmp}/munge.sock",
                   f"--pid-file={self.tmp}/munged.pid",
                   f"--seed-file={self.tmp}/munged.seed",
                   f"--log-file={self.tmp}/munged.log")
        wait_for((self.tmp / "munge.sock").exists, "munged")
        self.start("slurmctld", "-D", "-f", self.tmp / "slurm.conf")
        for node in ("n1", "n2"):
            self.start("slurmd", "-D", "-N", node, "-f",
                       self.tmp / "slurm.conf")
        wait_for(self.is_idle, "two nodes that are idle", step=0.2)
        for s in reserved:
            s.close()

    def write_files(self):
        name = socket.gethostname()
        (self.tmp / "slurm.conf").write_text(f"""
ClusterName=test
SlurmctldHost={name}(127.0.0.1)
SlurmctldPort={self.ports[0]}
AuthType=auth/munge
AuthInfo=socket={self.tmp}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={self.tmp}/state
SlurmdSpoolDir={self.tmp}/spool-%n
SlurmctldPidFile={self.tmp}/slurmctld.pid
SlurmdPidFile={self.tmp}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=n1 NodeHostname={name} NodeAddr=127.0.0.1 Port={self.ports[1]} CPUs=4
NodeName=n2 NodeHostname={name} NodeAddr=127.0.0.1 Port={self.ports[2]} CPUs=4
PartitionName=main Nodes=n1,n2 Default=YES State=UP
""")

    def start(self, name, *words):
        log = open(self.tmp / f"{name}-{len(self.processes)}.log", "wb")
        self.processes.append(subprocess.Popen(
            [PROGRAMS[name], *words], stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, env=self.env, preexec_fn=die_with_parent))

    def is_idle(self):
        for process in self.processes:
            assert process.poll() is None, f"{process.args} has ended"
        done = subprocess.run(
            [PROGRAMS["sinfo"], "-h", "-o", "%T %D"], capture_output=True,
            text=True, env=self.env, check=False)
        return done.stdout.strip() == "idle 2"

    def close(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait()
