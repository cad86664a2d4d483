# SPDX-License-Identifier: Apache-2.0
"""Words of Horovod's interfaces: reductions, requests, errors."""
from __future__ import annotations

import enum
from typing import Any, List, Optional, Sequence

DUPLICATE = (
    "Requested to allreduce, allgather, or broadcast a tensor with the same "
    "name as another tensor that is currently being processed.  If you want "
    "to request another tensor, use a different tensor name.")


class ReduceOp(enum.IntEnum):
    """A reduction, with Horovod's number."""

    Average = 0
    Sum = 1
    Adasum = 2
    Min = 3
    Max = 4
    Product = 5

    @property
    def ours(self) -> str:
        """The library's name; empty without one."""
        return {"Average": "mean", "Adasum": ""}.get(self.name,
                                                     self.name.lower())

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


Average = ReduceOp.Average
Sum = ReduceOp.Sum
Adasum = ReduceOp.Adasum
Min = ReduceOp.Min
Max = ReduceOp.Max
Product = ReduceOp.Product


def chosen(op: Optional[int], average: Optional[bool]) -> ReduceOp:
    """The reduction of a call with both arguments."""
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average; please provide "
                         "only one of them.")
    if op is not None:
        return ReduceOp(op)
    return Sum if average is False else Average


class HorovodInternalError(RuntimeError):
    """A collective failed. `code` is the PSC_E_* code, 0 without one."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        cause = args[0] if args else None
        self.code = int(getattr(cause, "code", 0))


def words_of(kind: str, shape: Sequence[int], free_rows: bool = False) -> str:
    """Type and shape of an array, for comparison with other ranks."""
    dims = [str(d) for d in shape]
    if free_rows and dims:
        dims[0] = "*"
    return "%s [%s]" % (kind, ", ".join(dims))


def part_of(name: Optional[str], what: Any) -> Optional[str]:
    """Name of a part of a group."""
    return None if name is None else "%s.%s" % (name, what)


def splits_of(rows: int, splits: Optional[Any], size: int) -> List[int]:
    """Rows of an alltoall for each rank."""
    if splits is None:
        if rows % size != 0:
            raise ValueError("alltoall of %d rows among %d ranks needs splits"
                             % (rows, size))
        return [rows // size] * size
    sends = [int(s) for s in splits]
    if len(sends) != size or min(sends) < 0 or sum(sends) > rows:
        raise ValueError("alltoall of %d rows among %d ranks: the splits are "
                         "%s" % (rows, size, sends))
    return sends


def split_list(l: Sequence[Any], n: int) -> List[Sequence[Any]]:
    """`n` parts of a list `l`, in order; the first are one item longer if they
    do not divide evenly."""
    short, longer = divmod(len(l), n)
    ends = [short * i + min(i, longer) for i in range(n + 1)]
    return [l[a:b] for a, b in zip(ends, ends[1:])]
