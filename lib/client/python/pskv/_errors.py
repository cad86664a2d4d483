# SPDX-License-Identifier: Apache-2.0
"""Errors of the library as exceptions."""
from __future__ import annotations

import re
from typing import List

# Codes of psclient.h.
INVAL = -1
NOMEM = -2
TIMEOUT = -6
CLOSED = -8
PEERLOST = -18
JOBFAILED = -19
AGAIN = -20

_RANK = re.compile(r"\brank (\d+)(?: \(([^)]*)\))?")


class Error(RuntimeError):
    """A call failed; the text says what and why, `code` is PSC_E_*."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class PeerLost(Error):
    """A worker of the job is gone, and the job does not wait for it."""

    @property
    def ranks(self) -> List[int]:
        """Ranks that the text names."""
        return [int(m.group(1)) for m in _RANK.finditer(str(self))]

    @property
    def hosts(self) -> List[str]:
        """Their hosts, as far as it names them."""
        return [m.group(2) for m in _RANK.finditer(str(self))
                if m.group(2) is not None]


class Timeout(Error, TimeoutError):
    """A time limit was reached; the operation is still open."""

    @property
    def waiting_for(self) -> str:
        """A sentence that names who is missing."""
        return str(self)


class JobFailed(Error):
    """The job is over."""


_CLASSES = {TIMEOUT: Timeout, PEERLOST: PeerLost, JOBFAILED: JobFailed}


def error(code: int, text: str) -> Error:
    """The exception for a code."""
    return _CLASSES.get(code, Error)(code, text)
