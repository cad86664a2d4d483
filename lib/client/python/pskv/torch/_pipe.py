# SPDX-License-Identifier: Apache-2.0
"""send and recv: a pipe for each sender, receiver and tag, which is a group of
the two ranks. Tensors of a pipe arrive in order. Each is a broadcast from
the sender, so both ranks take part, and tensors of different size are an
error on both."""
from __future__ import annotations

import queue
import re
import threading
from typing import Any, Callable, List, Optional, Tuple

import torch
from torch import Tensor

from .._errors import MISMATCH, Error, error
from ._tensor import explain, new_future

_Move = Tuple[Tensor, Any, "torch.futures.Future[Any]"]


class Pipe:
    """A pipe, opened by its own thread: the other side may come much later,
    and both may send before they receive."""

    def __init__(self, open_engine: Callable[[], Any],
                 start: Callable[[Any, Tensor, Any], Any],
                 ranks: Tuple[int, int], tag: int, is_sender: bool) -> None:
        """`ranks`: sender and receiver, one of which is this one."""
        self._open = open_engine
        self._start = start
        self._ranks = ranks
        self._tag = tag
        self._is_sender = is_sender
        self._moves: "queue.SimpleQueue[Optional[_Move]]" = queue.SimpleQueue()
        self._engine: Any = None
        self._closed = False
        self._lock = threading.Lock()
        threading.Thread(target=self._run, daemon=True,
                         name="pskv pipe").start()

    def move(self, tensor: Tensor, value: List[Tensor]) \
            -> "torch.futures.Future[Any]":
        """Queues a transfer; the future is the tensor."""
        future = new_future(tensor)
        with self._lock:
            if self._closed:
                raise RuntimeError("the process group is closed")
            explain(future, self._why)
            self._moves.put((tensor, value, future))
        return future

    def _why(self) -> str:
        """Why a transfer is open."""
        if self._is_sender:
            return "send to rank %d with tag %d is open: rank %d has not " \
                "received it" % (self._ranks[1], self._tag, self._ranks[1])
        return "recv from rank %d with tag %d is open: rank %d has not sent " \
            "it" % (self._ranks[0], self._tag, self._ranks[0])

    def _begin(self) -> Optional[BaseException]:
        try:
            engine = self._open()
        except Exception as e:  # pylint: disable=broad-except
            return e
        with self._lock:
            self._engine = engine
            closed = self._closed
        if closed:
            engine.close()
        return None

    def _run(self) -> None:
        failure = self._begin()
        while True:
            item = self._moves.get()
            if item is None:
                return
            tensor, value, future = item
            if failure is None:
                try:
                    chain(self._start(self._engine, tensor, value), future,
                          self._reworded)
                except Exception as e:  # pylint: disable=broad-except
                    future.set_exception(e)
            else:
                future.set_exception(failure)
            del item, tensor, value, future

    def _reworded(self, failure: Exception) -> Exception:
        """A failure in the words of the program, which sends and receives."""
        if not isinstance(failure, Error) or failure.code != MISMATCH:
            return failure
        text = re.sub(r"broadcast ([^;]*) from rank 0( \([0-9a-f]{8}\))?",
                      r"\1", str(failure))
        for place, what in enumerate(("sends", "receives")):
            text = re.sub(r"\brank %d:" % place, "rank %d %s" % (
                self._ranks[place], what), text)
        return error(MISMATCH, text)

    def close(self) -> None:
        """Closes the pipe; open transfers fail."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            engine = self._engine
        self._moves.put(None)
        if engine is not None:
            engine.close()


def _same(failure: Exception) -> Exception:
    return failure


def chain(inner: Any, outer: Any,
          reworded: Callable[[Exception], Exception] = _same) -> None:
    """Completes the outer future as the inner one, with other words."""
    def ended(f: Any) -> None:
        try:
            outer.set_result(f.value())
        except Exception as e:  # pylint: disable=broad-except
            outer.set_exception(reworded(e))
    inner.add_done_callback(ended)
