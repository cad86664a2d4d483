# SPDX-License-Identifier: Apache-2.0
"""Training with gradients that are summed over all ranks. As in a Horovod
without GPUs, they are divided by the number of ranks in the optimizer's
scale."""
from __future__ import annotations

import warnings
from typing import Any, Dict, List, Optional, Sequence, Tuple

import mxnet as mx
import numpy as np

from ..._horovod.job import ProcessSet, global_process_set
from ..._horovod.words import Sum, split_list
from ._move import allreduce_, grouped_allreduce_


class _None:
    """No compression."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """The array, and the context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array."""
        del ctx
        return tensor


class _Fp16:
    """Arrays of real numbers in 16 bits."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """The array, and the context for decompress()."""
        if np.dtype(tensor.dtype).kind == "f":
            return tensor.astype("float16", copy=False), tensor.dtype
        return tensor, tensor.dtype

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """The array in its original type."""
        return tensor.astype(ctx, copy=False)


class Compression:
    """Types in which gradients are sent."""

    none = _None
    fp16 = _Fp16


class _Gradients:
    """The sum of gradients over the ranks of a set, whose names are numbers
    with a prefix."""

    def __init__(self, predivide: float, groups: int,
                 process_set: ProcessSet) -> None:
        self._predivide = predivide
        self._groups = groups
        self._process_set = process_set

    def scale(self) -> float:
        """Factor of the optimizer that makes means of the sums."""
        return self._predivide / self._process_set.size()

    def alone(self) -> bool:
        """True if this rank sums with no other one."""
        return self._process_set.size() == 1 or \
            not self._process_set.included()

    def add(self, names: Sequence[str], grads: Sequence[Any]) -> None:
        """Sums in place. The last gradients, which backward computes first,
        start first; the first ones have the highest priority."""
        more = {"op": Sum, "prescale_factor": 1.0 / self._predivide,
                "process_set": self._process_set}
        if self._groups == 0:
            for i in reversed(range(len(grads))):
                allreduce_(grads[i], name=names[i], priority=-i, **more)
            return
        for i in reversed(range(self._groups)):
            of_type: Dict[Any, List[Tuple[str, Any]]] = {}
            for name, grad in zip(split_list(names, self._groups)[i],
                                  split_list(grads, self._groups)[i]):
                of_type.setdefault(grad.dtype, []).append((name, grad))
            for pairs in of_type.values():
                grouped_allreduce_([grad for _, grad in pairs], priority=-i,
                                   name="%s:%s" % (pairs[0][0], pairs[-1][0]),
                                   **more)


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """An optimizer whose update() sums the gradients over all ranks before,
    for mx.mod.Module without a store. Its rescale_grad is divided by the
    number of ranks."""

    def __init__(self, optimizer: Any, gradient_predivide_factor: float = 1.0,
                 num_groups: int = 0,
                 process_set: ProcessSet = global_process_set) -> None:
        # pylint: disable=super-init-not-called
        self._optimizer = optimizer
        self._gradients = _Gradients(gradient_predivide_factor, num_groups,
                                     process_set)
        self._optimizer.rescale_grad *= self._gradients.scale()

    def __getattr__(self, item: str) -> Any:
        if item == "_optimizer":  # Not there before __init__().
            raise AttributeError(item)
        return getattr(self._optimizer, item)

    def create_state(self, index: Any, weight: Any) -> Any:
        """State of the optimizer."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """State of the optimizer, with weights in single precision."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def _sum(self, index: Any, grad: Any) -> None:
        if self._gradients.alone():
            return
        if isinstance(index, (tuple, list)):
            self._gradients.add([str(i) for i in index], grad)
        else:
            self._gradients.add([str(index)], [grad])

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Sums the gradients and updates the weights."""
        self._sum(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any,
                               state: Any) -> None:
        """update() with weights in single precision."""
        self._sum(index, grad)
        self._optimizer.update_multi_precision(index, weight, grad, state)

    def set_learning_rate(self, lr: float) -> None:
        """Sets the learning rate."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: Any) -> None:
        """Sets factors of the learning rate."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: Any) -> None:
        """Sets factors of the weight decay."""
        self._optimizer.set_wd_mult(args_wd_mult)


class DistributedTrainer(mx.gluon.Trainer):  # type: ignore[misc]
    """A gluon.Trainer whose step() takes the means of the gradients of all
    ranks. Trainers of one program have different prefixes."""

    def __init__(self, params: Any, optimizer: Any,
                 optimizer_params: Optional[Dict[str, Any]] = None,
                 compression: Any = Compression.none,
                 gradient_predivide_factor: float = 1.0,
                 prefix: Optional[str] = None, num_groups: int = 0,
                 process_set: ProcessSet = global_process_set) -> None:
        # pylint: disable=too-many-arguments
        assert prefix is None or isinstance(prefix, str)
        if isinstance(optimizer, DistributedOptimizer):
            optimizer = optimizer._optimizer
            warnings.warn("DistributedTrainer does not take "
                          "DistributedOptimizer as its optimizer. We have "
                          "unwrapped it for you.")
        # All ranks number the parameters in the same order.
        if isinstance(params, (list, tuple)):
            params = sorted(params, key=lambda p: p.name)
        super().__init__(params, optimizer, optimizer_params=optimizer_params,
                         kvstore=None)
        self._compression = compression
        self._prefix = prefix or ""
        self._gradients = _Gradients(gradient_predivide_factor, num_groups,
                                     process_set)
        self._scale *= self._gradients.scale()

    def _allreduce_grads(self) -> None:
        """Sums the gradients over all ranks; called by step() and
        allreduce_grads()."""
        if self._gradients.alone():
            return
        numbers = [i for i, p in enumerate(self._params)
                   if p.grad_req != "null"]
        grads = [self._params[i].list_grad()[0] for i in numbers]
        pairs = [self._compression.compress(g) for g in grads]
        self._gradients.add([self._prefix + str(i) for i in numbers],
                            [small for small, _ in pairs])
        if self._compression is not Compression.none:
            for grad, (small, ctx) in zip(grads, pairs):
                grad[:] = self._compression.decompress(small, ctx)
