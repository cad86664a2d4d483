# SPDX-License-Identifier: Apache-2.0
"""Commands of a wheel: each replaces the interpreter with the program of its
name, which the wheel has in the folder bin of the package."""
import os
import sys
from typing import NoReturn


def _run(name: str) -> NoReturn:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin",
                        name)
    try:
        os.execv(path, [name] + sys.argv[1:])
    except OSError as e:
        sys.exit("%s: cannot run %s: %s; install the wheel of pskv again" %
                 (name, path, e.strerror))


def psched() -> NoReturn:
    """psched(8)"""
    _run("psched")


def psserver() -> NoReturn:
    """psserver(8)"""
    _run("psserver")


def psworker_agent() -> NoReturn:
    """psworker-agent(8)"""
    _run("psworker-agent")


def psctl() -> NoReturn:
    """psctl(1)"""
    _run("psctl")


def pslaunch() -> NoReturn:
    """pslaunch(1)"""
    _run("pslaunch")
