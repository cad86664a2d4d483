# SPDX-License-Identifier: Apache-2.0
"""Starting of collectives. Names of open ones are unique, as in Horovod."""
from __future__ import annotations

import threading
from typing import Any, Callable, Optional, Set, Tuple

from .._engine import Engine
from .match import Request, start as start_request
from .timeline import timeline
from .words import DUPLICATE, HorovodInternalError

_open_names: Set[Tuple[int, str, str]] = set()
_names_lock = threading.Lock()


def run(e: Engine, kind: str, name: Optional[str],
        start: Callable[[Any], Tuple[int, int]], buffers: Any,
        finish: Callable[[Any, int], Any], future: Any) -> None:
    """Starts a collective, which keeps `buffers` alive. `finish` makes the
    value for `future` from the operation. `start` and `finish` get the engine,
    which is another one where the ranks start in different orders."""
    key = (id(e), kind, name or "")
    if name is not None:
        with _names_lock:
            if key in _open_names:
                raise ValueError(DUPLICATE)
            _open_names.add(key)
    span = timeline.begin(kind, name)

    def ended() -> None:
        with _names_lock:
            _open_names.discard(key)
        span.end()
    request = Request(kind, name, start, buffers, finish, future, ended)
    try:
        start_request(e, request)
        span.started()
    except BaseException as failure:
        ended()
        if isinstance(failure, RuntimeError):
            raise HorovodInternalError(failure) from failure
        raise
