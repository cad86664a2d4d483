# SPDX-License-Identifier: Apache-2.0
"""Horovod's DistributedOptimizer. Gradients lie in memory shared with the
agent: backward accumulates there, and sending them needs no copy."""
from __future__ import annotations

import warnings
import weakref
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ..._errors import warn_once
from ..._horovod.job import ProcessSet, global_process_set
from ..._horovod.words import Adasum, Average, ReduceOp, Sum
from .. import _tensor
from ._compression import Compression
from ._move import sparse_allreduce_async
from ._reduce import allreduce_async_
from ._start import start_sum

# Bytes of gradients sent together; small, so that complete ones leave early.
_BUCKET = 16 << 20


class _Bucket:
    """Gradients of some parameters, contiguous."""

    def __init__(self, params: List[Tensor], engine: Any) -> None:
        self.params = params
        self.place(engine)
        self.waits = set(params)  # Parameters whose gradients are incomplete.
        self.handle: Any = None
        # The tensor sent, and the context to decompress it.
        self.sent: Any = None

    def place(self, engine: Any) -> None:
        """Gives the gradients memory that the agent of an engine reads."""
        count = sum(p.numel() for p in self.params)
        dtype = self.params[0].dtype
        size = count * self.params[0].element_size()
        memory = engine.kv.empty((size + 7) // 8, "int64")
        self.flat = torch.from_numpy(memory).view(dtype)[:count]
        self.flat.zero_()
        self.views: Dict[Tensor, Tensor] = {}
        at = 0
        for p in self.params:
            self.views[p] = self.flat[at:at + p.numel()].view(p.shape)
            at += p.numel()


Groups = Union[int, Sequence[Sequence[Tensor]]]


class _Distributed:
    """Methods that DistributedOptimizer() adds to an optimizer's class."""

    param_groups: List[Dict[str, Any]]

    def _begin(self, names: Dict[Tensor, str], compression: Any, passes: int,
               op: ReduceOp, predivide: float, groups: Optional[Groups],
               sparse_as_dense: bool, process_set: ProcessSet) -> None:
        self._pskv_op = op
        self._pskv_compression = compression
        self._pskv_passes = passes
        self._pskv_predivide = predivide
        self._pskv_set = process_set
        self._pskv_dense = sparse_as_dense
        self._parameter_names = names
        self._pskv_buckets: List[_Bucket] = []
        self._pskv_bucket_of: Dict[Tensor, _Bucket] = {}
        self._pskv_sparse: Dict[Tensor, Any] = {}  # Waits for the result.
        self._pskv_passed: Dict[Tensor, int] = {}
        # Next bucket; buckets start in the same order on all ranks.
        self._pskv_next = 0
        self._pskv_synchronized = False
        self._pskv_skip = False
        self._pskv_hooks: List[Any] = []
        if not process_set.included():
            return  # Steps alone.
        self._pskv_engine = process_set.engine()
        self._pskv_number = _next_number(self._pskv_engine)
        params = [p for group in self.param_groups for p in group["params"]
                  if p.requires_grad]
        if isinstance(self, torch.optim.SparseAdam):
            for p in params:
                _tensor.check(p)
                self._pskv_sparse[p] = None
                self._pskv_passed[p] = 0
        else:
            for some in _grouped(params, groups):
                self._make_buckets(some, groups is None)
        for p in params:
            self._add_hook(p)

    def _pskv_restart(self) -> None:
        """Forgets collectives that have failed. After a new init() gradients
        are in memory that the agent reads."""
        if not self._pskv_set.included():
            return
        engine = self._pskv_set.engine()
        for bucket in self._pskv_buckets:
            bucket.sent = bucket.handle = None
            bucket.waits = set(bucket.params)
            if engine is not self._pskv_engine:
                bucket.place(engine)
        if engine is not self._pskv_engine:
            self._pskv_engine = engine
            self._pskv_number = _next_number(engine)
        self._pskv_sparse = dict.fromkeys(self._pskv_sparse)
        self._pskv_passed = dict.fromkeys(self._pskv_passed, 0)
        self._pskv_next = 0
        self._pskv_synchronized = False
        self.zero_grad()

    def _make_buckets(self, params: List[Tensor], limited: bool) -> None:
        """Fills buckets from the last parameter, whose gradient is first."""
        some: List[Tensor] = []
        size = 0
        for p in reversed(params):
            _tensor.check(p)
            bytes_of = p.numel() * p.element_size()
            if some and (some[0].dtype != p.dtype or
                         (limited and size + bytes_of > _BUCKET)):
                self._add_bucket(some)
                some, size = [], 0
            some.append(p)
            size += bytes_of
        if some:
            self._add_bucket(some)

    def _add_bucket(self, params: List[Tensor]) -> None:
        bucket = _Bucket(params, self._pskv_engine)
        self._pskv_buckets.append(bucket)
        for p in params:
            self._pskv_bucket_of[p] = bucket
            self._pskv_passed[p] = 0
            if p.grad is not None:
                bucket.views[p].copy_(p.grad)
            p.grad = bucket.views[p]

    def _add_hook(self, p: Tensor) -> None:
        accumulator = p.expand_as(p).grad_fn.next_functions[0][0]
        self._pskv_hooks.append(accumulator)
        accumulator.register_hook(lambda *_: self._on_gradient(p))

    def _on_gradient(self, p: Tensor) -> None:
        """Runs after backward has added to p.grad."""
        bucket = self._pskv_bucket_of.get(p)
        started = self._pskv_sparse[p] if bucket is None else bucket.handle
        if started is not None or \
                self._pskv_passed[p] >= self._pskv_passes:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step "
                "times before call to step(). Increase "
                "backward_passes_per_step to accumulate gradients locally.")
        self._pskv_passed[p] += 1
        if self._pskv_passed[p] == self._pskv_passes:
            if bucket is None:
                self._start_sparse(p)
                return
            bucket.waits.discard(p)
            self._start_ready(False)

    def _start_sparse(self, p: Tensor) -> None:
        """Sends the gradient of a parameter whose optimizer takes sparse
        ones."""
        name = self._parameter_names[p]
        with torch.no_grad():
            if p.grad is None:
                p.grad = torch.zeros_like(p).to_sparse()
            if not self._pskv_dense:
                self._pskv_sparse[p] = sparse_allreduce_async(
                    p.grad.coalesce(), name, self._pskv_op, self._pskv_set)
                return
            small, ctx = self._pskv_compression.compress(p.grad.to_dense())
            handle = allreduce_async_(small, name=name, op=self._pskv_op,
                                      process_set=self._pskv_set)
            self._pskv_sparse[p] = lambda: self._pskv_compression.decompress(
                handle.wait(), ctx).to_sparse()

    def _start_ready(self, all_of_them: bool) -> None:
        while self._pskv_next < len(self._pskv_buckets):
            bucket = self._pskv_buckets[self._pskv_next]
            if bucket.waits and not all_of_them:
                return
            self._pskv_next += 1
            self._start(bucket)

    def _start(self, bucket: _Bucket) -> None:
        with torch.no_grad():
            for p, view in bucket.views.items():
                # The gradient was replaced by another tensor, or by None.
                if p.grad is None:
                    view.zero_()
                elif p.grad.data_ptr() != view.data_ptr():
                    view.copy_(p.grad)
                p.grad = view
            small, ctx = self._pskv_compression.compress(bucket.flat)
        bucket.sent = (small, ctx)
        pre, post = 1.0, 1.0
        if self._pskv_predivide != 1:
            pre, post = 1 / self._pskv_predivide, self._pskv_predivide
        name = "gradients.%d.%d" % (self._pskv_number,
                                    self._pskv_buckets.index(bucket))
        bucket.handle = start_sum(self._pskv_set, small, small, name,
                                  self._pskv_op, pre, post, None)

    def synchronize(self) -> None:
        """Waits until all gradients are the mean (or sum) over all ranks."""
        self._start_ready(True)
        for p, wait in self._pskv_sparse.items():
            if wait is None:
                self._start_sparse(p)
        for p in self._pskv_sparse:
            p.grad = self._pskv_sparse[p]()
            self._pskv_sparse[p] = None
        for bucket in self._pskv_buckets:
            assert bucket.handle is not None
            bucket.handle.wait()
        for bucket in self._pskv_buckets:
            small, ctx = bucket.sent
            if small is not bucket.flat:
                bucket.flat.copy_(self._pskv_compression.decompress(small,
                                                                    ctx))
            bucket.sent = bucket.handle = None
            bucket.waits = set(bucket.params)
        self._pskv_passed = dict.fromkeys(self._pskv_passed, 0)
        self._pskv_next = 0
        self._pskv_synchronized = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes summed before sending."""
        self._pskv_passes = passes

    def skip_synchronize(self) -> "_Skip":
        """Context for optimizer.step() after an explicit synchronize()."""
        return _Skip(self)

    def step(self, closure: Any = None) -> Any:
        """Steps the optimizer with the gradients of all ranks."""
        if not self._pskv_skip:
            if self._pskv_synchronized:
                warnings.warn("optimizer.step() called without "
                              "optimizer.skip_synchronize() context after "
                              "optimizer.synchronize(). This can cause "
                              "training slowdown.")
            self.synchronize()
        self._pskv_synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zeroes the gradients in place."""
        if not self._pskv_buckets and not self._pskv_sparse:
            super().zero_grad(set_to_none)  # type: ignore[misc]
            return
        if self._pskv_next > 0 or any(self._pskv_sparse.values()):
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but "
                "before optimizer.step() or optimizer.synchronize(). This is "
                "prohibited as it can cause a race condition.")
        for bucket in self._pskv_buckets:
            bucket.flat.zero_()
            for p, view in bucket.views.items():
                p.grad = view
        for p in self._pskv_sparse:
            p.grad = None


_numbers: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


def _next_number(engine: Any) -> int:
    """Number of an optimizer among those of its ranks."""
    _numbers[engine] = _numbers.get(engine, 0) + 1
    return _numbers[engine]


def _grouped(params: List[Tensor],
             groups: Optional[Groups]) -> List[List[Tensor]]:
    """The parameters in the caller's groups, the last ones first."""
    if groups is None:
        return [params]
    if isinstance(groups, int):
        size = max(1, -(-len(params) // groups))
        parts = [params[i:i + size] for i in range(0, len(params), size)]
        return parts[::-1]
    known = set(params)
    parts = [[p for p in g if p in known] for g in groups]
    inside = {p for g in parts for p in g}
    parts += [[p] for p in params if p not in inside]
    return [p for p in parts if p][::-1]


def _check_groups(groups: Optional[Groups]) -> None:
    if groups is None:
        return
    if not isinstance(groups, (list, tuple)):
        if not isinstance(groups, int) or groups <= 0:
            raise ValueError("groups should be a non-negative integer or a "
                             "list of list of torch.Tensor.")
        return
    seen = set()
    for p in [p for g in groups for p in g]:
        if not isinstance(p, Tensor):
            raise ValueError("groups must consist of torch.Tensor.")
        if p in seen:
            raise ValueError("A parameter can only appear once in groups.")
        seen.add(p)


def _names(optimizer: torch.optim.Optimizer,
           named: Optional[Iterable[Tuple[str, Tensor]]]) -> Dict[Tensor, str]:
    """The name of each parameter, the same on all ranks."""
    if named is None:
        return {p: "allreduce.noname.%d.%d" % (i, j)
                for i, group in enumerate(optimizer.param_groups)
                for j, p in enumerate(group["params"])}
    items = list(named)
    if not all(isinstance(item, tuple) for item in items):
        raise ValueError("named_parameters should be a sequence of tuples "
                         "(name, parameter), usually produced by "
                         "model.named_parameters().")
    given = [name for name, _ in items]
    twice = sorted({n for n in given if given.count(n) > 1})
    if twice:
        raise ValueError("Parameter names in named_parameters must be unique. "
                         "Found duplicates: %s" % ", ".join(twice))
    names = {p: name for name, p in items}
    unnamed = sum(p not in names for group in optimizer.param_groups
                  for p in group["params"])
    if unnamed:
        raise ValueError("named_parameters was specified, but one or more "
                         "model parameters were not named: %d of them" %
                         unnamed)
    return names


class _Skip:
    """Context in which step() does not synchronize()."""

    def __init__(self, optimizer: _Distributed) -> None:
        self._optimizer = optimizer

    def __enter__(self) -> None:
        self._optimizer._pskv_skip = True

    def __exit__(self, *_: Any) -> None:
        self._optimizer._pskv_skip = False


class _DistributedAdasum:
    """As _Distributed, for Adasum: each rank steps alone, and all ranks move
    by the Adasum of their steps."""

    param_groups: List[Dict[str, Any]]

    def _begin(self, names: Dict[Tensor, str], compression: Any, passes: int,
               *_: Any) -> None:
        self._parameter_names = names
        self._pskv_compression = compression
        self.set_backward_passes_per_step(passes)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes summed before a step."""
        self._pskv_passes = passes

    def synchronize(self) -> None:
        """Does nothing: gradients stay those of the rank."""

    def skip_synchronize(self) -> None:
        """Not for Adasum."""
        raise AssertionError("Skipping synchronization is not supported when "
                             "using Adasum optimizer.")

    def step(self, closure: Any = None) -> Any:
        """Steps the optimizer with the rank's gradients, and moves by the
        Adasum of all steps."""
        params = [p for group in self.param_groups for p in group["params"]
                  if p.requires_grad]
        before = [p.detach().clone() for p in params]
        loss = super().step(closure)  # type: ignore[misc]
        with torch.no_grad():
            sent = []
            for p, old in zip(params, before):
                small, ctx = self._pskv_compression.compress(p - old)
                sent.append((allreduce_async_(
                    small, name=self._parameter_names[p], op=Adasum), ctx))
            for p, old, (handle, ctx) in zip(params, before, sent):
                p.copy_(old + self._pskv_compression.decompress(handle.wait(),
                                                                ctx))
        return loss


# pylint: disable-next=invalid-name
def DistributedOptimizer(
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Tuple[str, Tensor]]] = None,
        compression: Any = Compression.none,
        backward_passes_per_step: int = 1, op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0, num_groups: int = 0,
        groups: Optional[Groups] = None, sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set) -> torch.optim.Optimizer:
    """The optimizer with a step() that uses the mean of all ranks' gradients.

    Gradients are sums of `backward_passes_per_step` backward passes. They
    are sent while backward continues with other layers. `groups`: numbers of
    groups of gradients that are sent together, or the groups. A rank outside
    `process_set` steps alone."""
    if gradient_predivide_factor != 1 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != "
                         "Average")
    if num_groups != 0:
        warn_once("Parameter `num_groups` has been replaced by `groups` and "
                  "will be removed in v0.23.0.")
        groups = num_groups if groups is None else groups
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    if op not in (Average, Sum, Adasum):
        raise ValueError("DistributedOptimizer has Average, Sum and Adasum")
    _check_groups(groups)
    names = _names(optimizer, named_parameters)
    methods: Any = _Distributed
    if op is Adasum:
        methods = _DistributedAdasum
        for name, given in (("groups", groups is not None),
                            ("sparse_as_dense", sparse_as_dense)):
            if given:
                warn_once("DistributedOptimizer(op=Adasum): %s has no effect: "
                          "each step() sends the change of every parameter"
                          % name)
        if process_set is not global_process_set:
            raise NotImplementedError("Adasum does not support non-global "
                                      "process sets yet.")
    kind = optimizer.__class__
    both: Any = type(kind.__name__, (methods, kind), {})
    new = both.__new__(both)
    # Without the wrapper that schedulers have set on the old `step`.
    new.__dict__.update((k, v) for k, v in optimizer.__dict__.items()
                        if k != "step")
    new._begin(names, compression, backward_passes_per_step, op,
               gradient_predivide_factor, groups, sparse_as_dense,
               process_set)
    assert isinstance(new, torch.optim.Optimizer)
    return new
