# SPDX-License-Identifier: Apache-2.0
"""Jobs of a process that has several stores, each with keys and an optimizer
of its own. The first is in the job that the environment names, each further
one in a job with a number behind that name. Every worker makes its stores in
the same order."""
from __future__ import annotations

import os
import threading
from typing import Any, Dict

from . import _store

# Characters of a job's name.
_NAME_MAX = 64

_lock = threading.Lock()
_count = 0
_rank = -1


class Place:
    """A job for a store of this process."""

    def __init__(self) -> None:
        global _count  # pylint: disable=global-statement
        with _lock:
            _count += 1
            self.number = _count

    def join(self, name: str, **options: Any) -> _store.KVStore:
        """A store in this job; with the rank that the first one has."""
        global _rank  # pylint: disable=global-statement
        more: Dict[str, Any] = dict(options)
        if self.number > 1:
            end = "-%d" % self.number
            job = os.environ.get("PSKV_JOB") or "default"
            more["job"] = job[:_NAME_MAX - len(end)] + end
        if _rank >= 0:
            more["rank"] = _rank
        store = _store.create(name, **more)
        _rank = store.rank
        return store
