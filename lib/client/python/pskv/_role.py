# SPDX-License-Identifier: Apache-2.0
"""DMLC_ROLE: a process started as scheduler or server becomes that daemon."""
import os

_PROGRAMS = {"scheduler": "psched", "server": "psserver"}


def take_role() -> None:
    """Replaces the process by psched or psserver where DMLC_ROLE says so.
    MXNet's programs are started by the same command in all roles, and
    importing MXNet makes a scheduler or server of the process. Here these
    are separate programs, which read the same variables."""
    role = os.environ.get("DMLC_ROLE", "worker")
    if role not in _PROGRAMS:
        return
    program = _PROGRAMS[role]
    try:
        os.execvp(program, [program])
    except OSError as e:
        raise RuntimeError("DMLC_ROLE is %s, but %s cannot be started: %s" %
                           (role, program, e.strerror)) from e
