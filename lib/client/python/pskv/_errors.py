# SPDX-License-Identifier: Apache-2.0
"""Errors of the library as exceptions."""
from __future__ import annotations

import re
import sys
import warnings
from typing import List, Set

# Error codes of psclient.h.
INVAL = -1
NOMEM = -2
TIMEOUT = -6
CANCELED = -7
CLOSED = -8
REFUSED = -9
NOENT = -12
NOKEY = -14
MISMATCH = -15
PEERLOST = -18
JOBFAILED = -19
AGAIN = -20

_RANK = re.compile(r"\brank (\d+)(?: \(([^)]*)\))?")


class Error(RuntimeError):
    """A call failed: the text is the reason, `code` the PSC_E_* code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class PeerLost(Error):
    """A worker of the job died, and the job does not wait for it."""

    @property
    def ranks(self) -> List[int]:
        """Ranks named by the text."""
        return [int(m.group(1)) for m in _RANK.finditer(str(self))]

    @property
    def hosts(self) -> List[str]:
        """Hosts named by the text."""
        return [m.group(2) for m in _RANK.finditer(str(self))
                if m.group(2) is not None]


class Timeout(Error, TimeoutError):
    """The time limit was reached; the operation is still open."""

    @property
    def waiting_for(self) -> str:
        """A sentence that names the missing ranks."""
        return str(self)


class JobFailed(Error):
    """The job has ended."""


class Canceled(Error):
    """The operation was cancelled, by Handle.cancel()."""


def program_failed() -> bool:
    """True at the exit of a program that an exception ended. An interactive
    session has gone on behind it."""
    return getattr(sys, "last_type", None) is not None and \
        not hasattr(sys, "ps1") and not sys.flags.interactive


_exit: List[bool] = []


def begin_exit() -> None:
    """The exit of the program begins: its threads can open no more
    connections, because nothing would close them."""
    _exit.append(True)


def check_open_allowed() -> None:
    """Raises an error if the exit of the program has begun."""
    if _exit:
        raise error(CLOSED, "the program ends: open stores before its exit")


_warned: Set[str] = set()


def warn_once(text: str) -> None:
    """Warns of an argument that has no effect, once in a process, at the line
    of the program that gave it."""
    if text not in _warned:
        _warned.add(text)
        # This function, the one of ours with the argument, its caller.
        warnings.warn(text, stacklevel=3)


_CLASSES = {CANCELED: Canceled, TIMEOUT: Timeout, PEERLOST: PeerLost, JOBFAILED: JobFailed}


def error(code: int, text: str) -> Error:
    """The exception for a code."""
    return _CLASSES.get(code, Error)(code, text)
