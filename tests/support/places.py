# SPDX-License-Identifier: Apache-2.0
"""Places where pslaunch starts supervisors on two hosts, by programs other than
plain ssh: what all of them must do is in test_pslaunch_hosts.py."""
import os
import pathlib
import shutil
import sys
import uuid

import gridengine
import kubectl
import systemd_box
from sshd import HOSTS, SSHD, Sshd


def write_program(path, script):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


class Place:
    """`words` are the options that name launcher and hosts, `names` the hosts in
    tags of output, `env` the variables of pslaunch, beside PSKV_MARK=`mark`,
    which all processes of the place have."""

    names = HOSTS
    # A program for each host, a child process of pslaunch, is connected to it.
    has_programs = True

    def __init__(self, tmp):
        self.tmp = tmp
        self.mark = f"mark-{uuid.uuid4().hex}"
        self.env = {}

    @staticmethod
    def missing():
        """Reason why the place cannot be; None: it can."""

    def close(self):
        pass


class Mpi(Place):
    """An mpirun, the only one in PATH, that reaches two addresses by a real
    sshd."""

    words = ("--launcher", "mpi", "--hosts", ",".join(HOSTS))
    program = ""

    @classmethod
    def missing(cls):
        if SSHD is None:
            return "there is no sshd"
        if shutil.which(cls.program) is None:
            return f"there is no {cls.program}"
        return None

    def __init__(self, tmp):
        super().__init__(tmp)
        folder = tmp / "sshd"
        folder.mkdir()
        self.sshd = Sshd(folder, mark=self.mark)
        only = write_program(tmp / "only" / "mpirun",
                             f'exec {shutil.which(self.program)} "$@"')
        self.env["PATH"] = f"{only.parent}:{os.environ['PATH']}"

    def close(self):
        self.sshd.close()


class OpenMpi(Mpi):
    program = "mpirun.openmpi"

    def __init__(self, tmp):
        super().__init__(tmp)
        # Open MPI refuses root otherwise.
        self.env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1",
                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                     "OMPI_MCA_plm_rsh_agent": self.sshd.command,
                     # Else one run removes a folder that the next has found.
                     "OMPI_MCA_orte_tmpdir_base": str(self.sshd.home)}


class Mpich(Mpi):
    program = "mpirun.mpich"

    def __init__(self, tmp):
        super().__init__(tmp)
        # Hydra takes no options with the program.
        client = write_program(tmp / "only" / "client",
                               f'exec {self.sshd.command} "$@"')
        self.env |= {"HYDRA_LAUNCHER": "ssh",
                     "HYDRA_LAUNCHER_EXEC": str(client),
                     # The name of this host need not resolve.
                     "HYDRA_IFACE": "lo"}


class Systemd(Place):
    """Services of a systemd that was booted for the test, which a real sshd
    reaches."""

    words = ("--launcher", "systemd", "--hosts", ",".join(HOSTS))

    @staticmethod
    def missing():
        return "there is no sshd" if SSHD is None else systemd_box.missing()

    def __init__(self, tmp):
        super().__init__(tmp)
        folder = tmp / "sshd"
        folder.mkdir()
        self.box = systemd_box.Box(tmp)
        self.sshd = Sshd(folder, mark=self.mark, enter=self.box.command,
                         TWO='"-Etwo=2  x"')
        self.env["PSKV_SSH"] = self.sshd.command

    def close(self):
        self.sshd.close()
        self.box.close()


class Pods(Place):
    """Pods of tests/support/kubectl.py, which are processes of this host."""

    words = ("--launcher", "k8s", "--nodes", "2", "--name", "job", "--image",
             "none")
    names = ("job-0", "job-1")

    def __init__(self, tmp):
        super().__init__(tmp)
        (tmp / "pods").mkdir()
        self.kubelet = kubectl.Kubelet(tmp / "pods", self.mark)
        program = pathlib.Path(__file__).with_name("kubectl.py")
        write_program(tmp / "only" / "kubectl",
                      f'exec {sys.executable} {program} {tmp}/pods '
                      f'{self.mark} "$@"')
        self.env["PATH"] = f"{tmp}/only:{os.environ['PATH']}"

    def close(self):
        self.kubelet.close()


class Sge(Place):
    """An array job of a Grid Engine of one host."""

    names = ("task1", "task2")
    has_programs = False
    words = ("--launcher", "sge", "--nodes", "2")

    @staticmethod
    def missing():
        return gridengine.missing()

    def __init__(self, tmp, inside=()):
        super().__init__(tmp)
        (tmp / "sge").mkdir()
        self.engine = gridengine.GridEngine(tmp / "sge", self.mark, inside)
        self.env = {name: str(value) for name, value in self.engine.env.items()
                    if name.startswith("SGE_") or name == "PATH"}

    def close(self):
        self.engine.close()


PLACES = {"openmpi": OpenMpi, "mpich": Mpich, "systemd": Systemd, "pods": Pods, "sge": Sge}
