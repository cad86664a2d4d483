# SPDX-License-Identifier: Apache-2.0
"""Visits every state of a model, breadth first.

A model has an initial state, the successors of each state, what is wrong with
a state, and the states in which all is done. Each interleaving is a path: a
successor is the result of one rule, at one process. States are tuples, so that
equal states are one.

The network is the set of all messages that were ever sent. Each may arrive
late, out of order and repeatedly, and one that is not taken is lost."""

from collections import deque
from typing import Any, Iterable, NamedTuple, Protocol

LIMIT = 800_000


class Model(Protocol):
    initial: Any

    def successors(self, state: Any) -> Iterable[Any]:
        """States after one step; some may be equal."""

    def violation(self, state: Any) -> str:
        """What is wrong with the state, or nothing."""

    def is_end(self, state: Any) -> bool:
        """Whether all is done that the model's run is for."""


class Outcome(NamedTuple):
    states: int
    depth: int  # Steps to the state that was found last.
    violation: str
    is_complete: bool  # All states were visited.


def put(values: tuple, index: int, value: Any) -> tuple:
    """The tuple with another value at that index."""
    return values[:index] + (value,) + values[index + 1:]


def in_order(messages: Iterable[Any]) -> list:
    """Messages in an order that no hash decides, so that each run visits the
    same states before it ends."""
    return sorted(messages, key=lambda m: (m.kind, m))


def explore(model: Model, limit: int = LIMIT) -> Outcome:
    """Looks for a state that is wrong, or from which no path leads to the
    end. It stops at the first one that is wrong."""
    states = [model.initial]
    numbers = {model.initial: 0}
    depths = [0]
    predecessors: list[list[int]] = [[]]
    number = 0
    while number < len(states):
        for successor in model.successors(states[number]):
            found = numbers.get(successor)
            if found is not None:
                predecessors[found].append(number)
                continue
            numbers[successor] = len(states)
            states.append(successor)
            depths.append(depths[number] + 1)
            predecessors.append([number])
            violation = model.violation(successor)
            if violation or len(states) > limit:
                return Outcome(len(states), depths[-1], violation, False)
        number += 1
    stuck = count_stuck([model.is_end(s) for s in states], predecessors)
    violation = f"from {stuck} states no way to the end" if stuck else ""
    return Outcome(len(states), depths[-1], violation, True)


def count_stuck(is_good: list[bool], predecessors: list[list[int]]) -> int:
    """Number of states from which no path leads to a good one."""
    queue = deque(n for n, good in enumerate(is_good) if good)
    while queue:
        for before in predecessors[queue.popleft()]:
            if not is_good[before]:
                is_good[before] = True
                queue.append(before)
    return is_good.count(False)
