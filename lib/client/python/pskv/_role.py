# SPDX-License-Identifier: Apache-2.0
"""DMLC_ROLE: a program that is started as scheduler or server becomes one."""
import os

_PROGRAMS = {"scheduler": "psched", "server": "psserver"}


def take_role() -> None:
    """MXNet's programs are started by the same command in all roles, and
    importing the library makes a scheduler or server of the process. Here
    these are programs of their own, which read the same variables: this
    process becomes one and does not return."""
    role = os.environ.get("DMLC_ROLE", "worker")
    if role not in _PROGRAMS:
        return
    program = _PROGRAMS[role]
    try:
        os.execvp(program, [program])
    except OSError as e:
        raise RuntimeError("DMLC_ROLE is %s, but %s cannot be started: %s" %
                           (role, program, e.strerror)) from e
