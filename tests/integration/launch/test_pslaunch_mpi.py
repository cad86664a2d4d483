# SPDX-License-Identifier: Apache-2.0
"""The mpirun that pslaunch uses. Runs are in test_pslaunch_hosts.py."""
import os

import pytest
from launched import launch
from places import write_program

OPEN_MPI = "echo 'mpirun (Open MPI) 4.1.4'"
MPICH = "echo 'HYDRA build details:'"
OTHER = "echo something else"


@pytest.mark.parametrize("programs, given, want", [
    ({"mpirun": OPEN_MPI, "mpirun.mpich": MPICH}, "",
     "mpirun -n 1 --bind-to none --host h1"),
    ({"mpirun": MPICH}, "", "mpirun -n 1 -genvnone -hosts h1"),
    ({"mpirun": OTHER, "mpiexec.hydra": MPICH}, "",
     "mpiexec.hydra -n 1 -genvnone -hosts h1"),
    ({"mpirun": OTHER, "mpiexec.hydra": OTHER, "mpirun.mpich": OTHER,
      "mpirun.openmpi": OPEN_MPI}, "",
     "mpirun.openmpi -n 1 --bind-to none --host h1"),
    ({"mpirun": OPEN_MPI, "mpirun.mpich": MPICH}, "mpirun.mpich -iface eth1",
     "mpirun.mpich -iface eth1 -n 1 -genvnone -hosts h1")])
def test_the_command_is_that_of_the_kind_of_mpi(tmp, programs, given, want):
    """The first that is understood, or the user's choice."""
    for name, script in programs.items():
        write_program(tmp / name, script)
    code, out, err = launch(
        "-n", "1", "--launcher", "mpi", "--hosts", "h1", "--dry-run", "true",
        env={"PATH": f"{tmp}:{os.environ['PATH']}", "PSKV_MPIRUN": given})
    assert code == 0, err
    assert f"\n  {want} /bin/sh -c " in out


def test_without_mpi_the_reason_is_named(tmp):
    for name in ("mpirun", "mpiexec.hydra", "mpirun.mpich", "mpirun.openmpi"):
        write_program(tmp / name, OTHER)
    code, _, err = launch("-n", "1", "--launcher", "mpi", "--hosts", "h1",
                          "true",
                          env={"PATH": f"{tmp}:{os.environ['PATH']}"})
    assert code == 69
    assert "there is no mpirun of Open MPI or MPICH in PATH" in err
