# SPDX-License-Identifier: Apache-2.0
"""Horovod's DistributedOptimizer. Gradients lie in memory shared with the
agent: backward accumulates there, and sending them needs no copy."""
from __future__ import annotations

import warnings
import weakref
from typing import (Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple,
                    Union)

import torch
from torch import Tensor

from ..._errors import warn_once
from ..._horovod.job import ProcessSet, global_process_set
from ..._horovod.words import Adasum, Average, ReduceOp, Sum
from .. import _tensor
from .._tensor import acquire
from ._compression import Compression
from ._move import sparse_allreduce_async
from ._reduce import allreduce_async_
from ._start import start_sum

# Bytes of gradients sent together; small, so that complete ones leave early.
_BUCKET = 16 << 20


TOO_OFTEN = (
    "Gradients were computed more than backward_passes_per_step times before "
    "call to step(). Increase backward_passes_per_step to accumulate gradients "
    "locally.")


class _Rules:
    """How gradients are summed."""

    def __init__(self, op: ReduceOp, compression: Any, predivide: float,
                 process_set: ProcessSet) -> None:
        self.op = op
        self.compression = compression
        self.predivide = predivide
        self.process_set = process_set

    def difference(self, other: "_Rules") -> Optional[str]:
        """What differs, in words, or None."""
        for name, mine, its in (
                ("op", self.op, other.op),
                ("compression", self.compression, other.compression),
                ("gradient_predivide_factor", self.predivide, other.predivide),
                ("process_set", self.process_set, other.process_set)):
            if mine is not its and mine != its:
                return "%s=%s, and %s there" % (
                    name, getattr(mine, "__name__", mine),
                    getattr(its, "__name__", its))
        return None


class _Bucket:
    """Gradients of some parameters, contiguous, which are sent together. It is
    the one owner of each of them: optimizers that share a parameter share its
    bucket, and its sum counts for all of them."""

    def __init__(self, params: List[Tensor], rules: _Rules, repeats: int,
                 place: Tuple[int, int]) -> None:
        """`place`: number of an optimizer, and of the first parameter in it."""
        self.params = params
        self.rules = rules
        self.repeats = repeats
        self.number, self.first = place
        self.users: "weakref.WeakSet[_Distributed]" = weakref.WeakSet()
        # Users that have not used the sum yet that another one has waited for.
        self.owed: "weakref.WeakSet[_Distributed]" = weakref.WeakSet()
        self.handle: Any = None
        # The tensor sent, and the context to decompress it.
        self.sent: Any = None
        self.place()
        self._forget_passes()
        for p in params:
            if p.grad is not None:
                acquire([p.grad])
                self.views[p].copy_(p.grad)
            p.grad = self.views[p]
            _buckets[id(p)] = self
        self._hooks = [self._hook(p) for p in params]

    def place(self) -> None:
        """Gives the gradients memory that the agent reads."""
        self.engine = self.rules.process_set.engine()
        self.flat = _tensor.shared(self.engine.kv,
                                   sum(p.numel() for p in self.params),
                                   self.params[0].dtype)
        self.views: Dict[Tensor, Tensor] = {}
        at = 0
        for p in self.params:
            self.views[p] = self.flat[at:at + p.numel()].view(p.shape)
            at += p.numel()

    def _hook(self, p: Tensor) -> Any:
        """What keeps a function registered that runs behind each backward."""
        bucket = weakref.ref(self)

        def on_gradient(*_: Any) -> None:
            found = bucket()
            if found is not None and _buckets.get(id(p)) is found:
                found.on_gradient(p)
        accumulator = p.expand_as(p).grad_fn.next_functions[0][0]
        accumulator.register_hook(on_gradient)
        return accumulator

    def _forget_passes(self) -> None:
        self.passed = dict.fromkeys(self.params, 0)
        self.waits = set(self.params)  # Those with incomplete gradients.

    def on_gradient(self, p: Tensor) -> None:
        """Runs after backward has added to p.grad."""
        if self.handle is not None or self.passed[p] >= self.repeats:
            raise AssertionError(TOO_OFTEN)
        self.owed.clear()
        self.passed[p] += 1
        if self.passed[p] == self.repeats:
            self.waits.discard(p)
            for user in list(self.users):
                user._start_ready(False)

    def start(self) -> None:
        """Sends the gradients."""
        rules = self.rules
        with torch.no_grad():
            # Another operation may be writing to them.
            acquire([self.flat, *[p.grad for p in self.params]])
            for p, view in self.views.items():
                # The gradient was replaced by another tensor, or by None.
                if p.grad is None:
                    view.zero_()
                elif p.grad.data_ptr() != view.data_ptr():
                    view.copy_(p.grad)
                p.grad = view
            small, ctx = rules.compression.compress(self.flat)
        self.sent = (small, ctx)
        pre, post = 1.0, 1.0
        if rules.predivide != 1:
            pre, post = 1 / rules.predivide, rules.predivide
        self.handle = start_sum(
            rules.process_set, small, small,
            "gradients.%d.%d" % (self.number, self.first), rules.op, pre, post,
            None)

    def finish(self, user: Optional["_Distributed"]) -> None:
        """Waits for the sum, which all users get."""
        if self.handle is None:
            return
        self.handle.wait()
        small, ctx = self.sent
        if small is not self.flat:
            self.flat.copy_(self.rules.compression.decompress(small, ctx))
        self.sent = self.handle = None
        self._forget_passes()
        self.owed = weakref.WeakSet(self.users)
        self.owed.discard(user)  # type: ignore[arg-type]

    def zero(self) -> None:
        """Zeroes the gradients in place."""
        acquire([self.flat])
        self.flat.zero_()
        self.owed.clear()
        for p, view in self.views.items():
            p.grad = view

    def restart(self, number: int) -> None:
        """Forgets a sum that has failed. After a new init() gradients are in
        memory that the agent reads."""
        self.sent = self.handle = None
        self.owed.clear()
        self._forget_passes()
        if self.engine is not self.rules.process_set.engine():
            self.number = number
            self.place()

    def split(self, inside: Set[Tensor]) -> List["_Bucket"]:
        """Two buckets instead of this one, for its users: of the parameters
        that are `inside`, and of the others."""
        self.finish(None)
        parts = []
        for some in ([p for p in self.params if p in inside],
                     [p for p in self.params if p not in inside]):
            part = _Bucket(some, self.rules, self.repeats, (
                self.number, self.first + [p is some[0] for p in self.params].index(True)))
            part.users.update(self.users)
            part.passed = {p: self.passed[p] for p in some}
            part.waits &= self.waits
            parts.append(part)
        for user in self.users:
            at = user._pskv_buckets.index(self)
            user._pskv_buckets[at:at + 1] = parts
        return parts


# The bucket of each parameter, by id(): buckets keep their parameters.
_buckets: "weakref.WeakValueDictionary[int, _Bucket]" = \
    weakref.WeakValueDictionary()


Groups = Union[int, Sequence[Sequence[Tensor]]]


class _Distributed:
    """Methods that DistributedOptimizer() adds to an optimizer's class."""

    param_groups: List[Dict[str, Any]]

    def _begin(self, names: Dict[Tensor, str], passes: int, rules: _Rules,
               groups: Optional[Groups], sparse_as_dense: bool) -> None:
        self._pskv_rules = rules
        self._pskv_passes = passes
        self._pskv_dense = sparse_as_dense
        self._parameter_names = names
        self._pskv_buckets: List[_Bucket] = []
        self._pskv_sparse: Dict[Tensor, Any] = {}  # Waits for the result.
        self._pskv_passed: Dict[Tensor, int] = {}  # Of those.
        self._pskv_synchronized = False
        self._pskv_skip = False
        self._pskv_hooks: List[Any] = []
        self._pskv_known: Set[Tensor] = set()
        if not rules.process_set.included():
            return  # Steps alone.
        self._pskv_engine = rules.process_set.engine()
        self._pskv_number = _next_number(self._pskv_engine)
        self._adopt(groups)

    def _adopt(self, groups: Optional[Groups] = None) -> None:
        """Takes the parameters over that it has not yet: all of them at first,
        then those that add_param_group() or requires_grad has added."""
        params = [p for group in self.param_groups for p in group["params"]
                  if p.requires_grad and p not in self._pskv_known]
        if not params or not self._pskv_rules.process_set.included():
            return
        if isinstance(self, torch.optim.SparseAdam):
            for p in params:
                _tensor.check(p)
                self._pskv_known.add(p)
                self._pskv_sparse[p] = None
                self._pskv_passed[p] = 0
                self._add_sparse_hook(p)
            return
        new = set(params) - self._share(params)
        for some in _grouped([p for p in params if p in new], groups):
            self._make_buckets(some, groups is None)

    def _share(self, params: List[Tensor]) -> Set[Tensor]:
        """Uses the buckets of other optimizers for the parameters that they
        have. Returns these."""
        wanted = set(params)
        others = [(p, _buckets.get(id(p))) for p in params]
        found: Set[Tensor] = set()
        # In the order of the parameters, which is that of all ranks.
        for p, bucket in others:
            if bucket is None or not bucket.users or p in found:
                continue
            self._check_rules(bucket, p)
            shared = [q for q in bucket.params if q in wanted]
            if len(shared) < len(bucket.params):
                bucket = bucket.split(set(shared))[0]
            bucket.users.add(self)
            self._pskv_buckets.append(bucket)
            self._pskv_known.update(shared)
            found.update(shared)
        return found

    def _check_rules(self, bucket: _Bucket, p: Tensor) -> None:
        differs = self._pskv_rules.difference(bucket.rules)
        if differs is None and bucket.repeats != self._pskv_passes:
            differs = "backward_passes_per_step=%d, and %d there" % (
                self._pskv_passes, bucket.repeats)
        if differs is not None:
            raise ValueError(
                "parameter %r is in another DistributedOptimizer, too, which "
                "sums its gradient in another way: %s. A gradient has one sum: "
                "use the same arguments for both, or del the other optimizer"
                % (self._name_of(p), differs))

    def _name_of(self, p: Tensor) -> str:
        """Name of a parameter; of one that was added later, its place."""
        name = self._parameter_names.get(p)
        if name is None:
            name = self._parameter_names[p] = "allreduce.noname.%d.%d" % next(
                (i, j) for i, group in enumerate(self.param_groups)
                for j, q in enumerate(group["params"]) if q is p)
        return name

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """Adds parameters, whose gradients are sent like those of the
        others. All ranks add the same ones."""
        super().add_param_group(param_group)  # type: ignore[misc]
        self._adopt()

    def _pskv_restart(self) -> None:
        """Forgets collectives that have failed. After a new init() gradients
        are in memory that the agent reads."""
        if not self._pskv_rules.process_set.included():
            return
        engine = self._pskv_rules.process_set.engine()
        if engine is not self._pskv_engine:
            self._pskv_engine = engine
            self._pskv_number = _next_number(engine)
        for bucket in self._pskv_buckets:
            bucket.restart(self._pskv_number)
        self._pskv_sparse = dict.fromkeys(self._pskv_sparse)
        self._pskv_passed = dict.fromkeys(self._pskv_passed, 0)
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
        bucket = _Bucket(params, self._pskv_rules, self._pskv_passes, (
            self._pskv_number, len(self._pskv_known)))
        bucket.users.add(self)
        self._pskv_buckets.append(bucket)
        self._pskv_known.update(params)

    def _add_sparse_hook(self, p: Tensor) -> None:
        optimizer = weakref.ref(self)

        def on_gradient(*_: Any) -> None:
            found = optimizer()
            if found is not None:
                found._on_sparse(p)
        accumulator = p.expand_as(p).grad_fn.next_functions[0][0]
        self._pskv_hooks.append(accumulator)
        accumulator.register_hook(on_gradient)

    def _on_sparse(self, p: Tensor) -> None:
        """Runs after backward has added to a sparse p.grad."""
        if self._pskv_sparse[p] is not None or \
                self._pskv_passed[p] >= self._pskv_passes:
            raise AssertionError(TOO_OFTEN)
        self._pskv_passed[p] += 1
        if self._pskv_passed[p] == self._pskv_passes:
            self._start_sparse(p)

    def _start_sparse(self, p: Tensor) -> None:
        """Sends the gradient of a parameter whose optimizer takes sparse
        ones."""
        name = self._name_of(p)
        rules = self._pskv_rules
        with torch.no_grad():
            if p.grad is None:
                p.grad = torch.zeros_like(p).to_sparse()
            if not self._pskv_dense:
                self._pskv_sparse[p] = sparse_allreduce_async(
                    p.grad.coalesce(), name, rules.op, rules.process_set)
                return
            small, ctx = rules.compression.compress(p.grad.to_dense())
            handle = allreduce_async_(small, name=name, op=rules.op,
                                      process_set=rules.process_set)
            self._pskv_sparse[p] = lambda: rules.compression.decompress(
                handle.wait(), ctx).to_sparse()

    def _start_ready(self, all_of_them: bool) -> None:
        """Starts buckets, in the same order on all ranks."""
        for bucket in self._pskv_buckets:
            if bucket.handle is not None or self in bucket.owed:
                continue
            if bucket.waits and not all_of_them:
                return
            bucket.start()

    def synchronize(self) -> None:
        """Waits until all gradients are the mean (or sum) over all ranks."""
        self._adopt()
        self._start_ready(True)
        for p, wait in self._pskv_sparse.items():
            if wait is None:
                self._start_sparse(p)
        for p in self._pskv_sparse:
            p.grad = self._pskv_sparse[p]()
            self._pskv_sparse[p] = None
        for bucket in self._pskv_buckets:
            if self in bucket.owed:
                bucket.owed.discard(self)
            else:
                bucket.finish(self)
        self._pskv_passed = dict.fromkeys(self._pskv_passed, 0)
        self._pskv_synchronized = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Sets the number of backward passes summed before sending."""
        self._pskv_passes = passes
        for bucket in self._pskv_buckets:
            bucket.repeats = passes

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
        if any(b.handle for b in self._pskv_buckets) or \
                any(self._pskv_sparse.values()):
            raise AssertionError(
                "optimizer.zero_grad() was called after loss.backward() but "
                "before optimizer.step() or optimizer.synchronize(). This is "
                "prohibited as it can cause a race condition.")
        for bucket in self._pskv_buckets:
            bucket.zero()
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

    def _begin(self, names: Dict[Tensor, str], passes: int, rules: _Rules,
               *_: Any) -> None:
        self._parameter_names = names
        self._pskv_compression = rules.compression
        self.set_backward_passes_per_step(passes)

    _name_of = _Distributed._name_of

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
                    small, name=self._name_of(p), op=Adasum), ctx))
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
    if isinstance(optimizer, (_Distributed, _DistributedAdasum)):
        raise ValueError("the optimizer is a DistributedOptimizer already")
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
    new._begin(names, backward_passes_per_step, _Rules(
        op, compression, gradient_predivide_factor, process_set), groups,
        sparse_as_dense)
    assert isinstance(new, torch.optim.Optimizer)
    return new
