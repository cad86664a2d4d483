# SPDX-License-Identifier: Apache-2.0
"""Horovod's DistributedOptimizer. Gradients lie in memory shared with the
agent: backward accumulates there, and sending them needs no copy."""
from __future__ import annotations

from typing import Any, Dict, Iterable, List, Optional, Tuple

import torch
from torch import Tensor

from . import _tensor
from ._hvd import (Average, Compression, Handle, ProcessSet, ReduceOp, Sum,
                   _start_sum, global_process_set)

# Bytes of gradients sent together; small, so that complete ones leave early.
_BUCKET = 16 << 20


class _Bucket:
    """Gradients of some parameters, contiguous."""

    def __init__(self, params: List[Tensor], flat: Tensor) -> None:
        self.params = params
        self.flat = flat
        self.views: Dict[Tensor, Tensor] = {}
        at = 0
        for p in params:
            self.views[p] = flat[at:at + p.numel()].view(p.shape)
            at += p.numel()
        self.waits = set(params)  # Parameters whose gradients are incomplete.
        self.handle: Optional[Handle] = None
        # The tensor sent, and the context to decompress it.
        self.sent: Any = None


class _Distributed:
    """Methods that DistributedOptimizer() adds to an optimizer's class."""

    param_groups: List[Dict[str, Any]]

    def _begin(self, named: Iterable[Tuple[str, Tensor]], compression: Any,
               passes: int, op: ReduceOp, predivide: float,
               process_set: ProcessSet) -> None:
        self._pskv_op = op
        self._pskv_compression = compression
        self._pskv_passes = passes
        self._pskv_predivide = predivide
        self._pskv_engine = process_set._get()
        names = {p: name for name, p in named}
        if len(names) != len(set(names.values())):
            raise ValueError("parameter names in named_parameters must be "
                             "unique")
        params = [p for group in self.param_groups for p in group["params"]
                  if p.requires_grad]
        unnamed = [p for p in params if names and p not in names]
        if unnamed:
            raise ValueError("named_parameters was specified, but one or more "
                             "model parameters were not named: %d of them" %
                             len(unnamed))
        self._pskv_buckets: List[_Bucket] = []
        self._pskv_bucket_of: Dict[Tensor, _Bucket] = {}
        self._pskv_passed: Dict[Tensor, int] = {}
        # Next bucket; buckets start in the same order on all ranks.
        self._pskv_next = 0
        self._pskv_synchronized = False
        self._pskv_skip = False
        self._pskv_hooks: List[Any] = []
        self._make_buckets(params)
        for p in params:
            self._add_hook(p)

    def _make_buckets(self, params: List[Tensor]) -> None:
        """Fills buckets from the last parameter, whose gradient is first."""
        some: List[Tensor] = []
        size = 0
        for p in reversed(params):
            _tensor.check(p)
            bytes_of = p.numel() * p.element_size()
            if some and (some[0].dtype != p.dtype or
                         size + bytes_of > _BUCKET):
                self._add_bucket(some)
                some, size = [], 0
            some.append(p)
            size += bytes_of
        if some:
            self._add_bucket(some)

    def _add_bucket(self, params: List[Tensor]) -> None:
        count = sum(p.numel() for p in params)
        dtype = params[0].dtype
        size = count * params[0].element_size()
        memory = self._pskv_engine.kv.empty((size + 7) // 8, "int64")
        flat = torch.from_numpy(memory).view(dtype)[:count]
        flat.zero_()
        bucket = _Bucket(params, flat)
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
        bucket = self._pskv_bucket_of[p]
        if bucket.handle is not None or \
                self._pskv_passed[p] >= self._pskv_passes:
            raise AssertionError(
                "Gradients were computed more than backward_passes_per_step "
                "times before call to step(). Increase "
                "backward_passes_per_step to accumulate gradients locally.")
        self._pskv_passed[p] += 1
        if self._pskv_passed[p] == self._pskv_passes:
            bucket.waits.discard(p)
            self._start_ready(False)

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
        bucket.handle = Handle(_start_sum(
            self._pskv_engine, small, small, "gradients", self._pskv_op, pre,
            post, None))

    def synchronize(self) -> None:
        """Waits until all gradients are the mean (or sum) over all ranks."""
        self._start_ready(True)
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
                import warnings  # pylint: disable=import-outside-toplevel
                warnings.warn("optimizer.step() called without "
                              "optimizer.skip_synchronize() context after "
                              "optimizer.synchronize(). This can cause "
                              "training slowdown.")
            self.synchronize()
        self._pskv_synchronized = False
        return super().step(closure)  # type: ignore[misc]

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zeroes the gradients in place."""
        if self._pskv_next > 0:
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but "
                "before optimizer.step() or optimizer.synchronize(). This is "
                "prohibited as it can cause a race condition.")
        for bucket in self._pskv_buckets:
            bucket.flat.zero_()
            for p, view in bucket.views.items():
                p.grad = view


class _Skip:
    """Context in which step() does not synchronize()."""

    def __init__(self, optimizer: _Distributed) -> None:
        self._optimizer = optimizer

    def __enter__(self) -> None:
        self._optimizer._pskv_skip = True

    def __exit__(self, *_: Any) -> None:
        self._optimizer._pskv_skip = False


# pylint: disable-next=invalid-name
def DistributedOptimizer(
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Tuple[str, Tensor]]] = None,
        compression: Any = Compression.none,
        backward_passes_per_step: int = 1, op: ReduceOp = Average,
        gradient_predivide_factor: float = 1.0,
        process_set: ProcessSet = global_process_set) -> torch.optim.Optimizer:
    """The optimizer with a step() that uses the mean of all ranks' gradients.

    Gradients are sums of `backward_passes_per_step` backward passes. They
    are sent while backward continues with other layers."""
    if gradient_predivide_factor != 1 and op is not Average:
        raise ValueError("gradient_predivide_factor not supported with op != "
                         "Average")
    if op not in (Average, Sum):
        raise ValueError("DistributedOptimizer has Average and Sum")
    kind = optimizer.__class__
    both: Any = type(kind.__name__, (_Distributed, kind), {})
    new = both.__new__(both)
    # Without the wrapper that schedulers have set on the old `step`.
    new.__dict__.update((k, v) for k, v in optimizer.__dict__.items()
                        if k != "step")
    new._begin(list(named_parameters or ()), compression,
               backward_passes_per_step, op, gradient_predivide_factor,
               process_set)
    assert isinstance(new, torch.optim.Optimizer)
    return new
