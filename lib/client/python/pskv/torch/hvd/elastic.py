# SPDX-License-Identifier: Apache-2.0
"""Horovod's elastic training for torch: hvd.elastic."""
from __future__ import annotations

import copy
import random
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from ..._horovod.elastic import (HostsUpdatedInterrupt, ObjectState as
                                 _ObjectState, State, run_fn)
from ..._horovod.job import rank, shutdown, size
from ._start import init
from ._state import (allgather_object, broadcast_object,
                     broadcast_optimizer_state, broadcast_parameters)

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State",
           "TorchState", "run"]


class ElasticSampler(torch.utils.data.Sampler):  # type: ignore[type-arg]
    """Samples of a data set for this rank. With record_batch(), what all ranks
    have done of an epoch does not come again after a reset."""

    def __init__(self, dataset: Any, shuffle: bool = True,
                 seed: int = 0) -> None:
        # pylint: disable=super-init-not-called
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.remaining_indices: List[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch; to be called at the end of the one before."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that every rank is done with a batch."""
        del batch_idx
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> Dict[str, int]:
        """Epoch, and the samples done."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Dict[str, int]) -> None:
        """Continues there."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divides the samples that are left among the ranks."""
        self.num_replicas = size()
        self.rank = rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num:]
        self.num_samples = -(-len(self.remaining_indices) //
                             self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        indices = self.remaining_indices + \
            self.remaining_indices[:self.total_size -
                                   len(self.remaining_indices)]
        return iter(indices[self.rank::self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


class _Kept:
    """A model, optimizer or sampler with a copy of its state."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        """Copies the state."""
        self._copy = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Goes back to the copy."""
        if hasattr(self.value, "_pskv_restart"):
            self.value._pskv_restart()
        self.value.load_state_dict(copy.deepcopy(self._copy))

    def take_from(self, root: int) -> None:
        """Gives all ranks the state of a rank."""
        if isinstance(self.value, torch.nn.Module):
            broadcast_parameters(self.value.state_dict(), root)
        elif isinstance(self.value, torch.optim.Optimizer):
            broadcast_optimizer_state(self.value, root)
        else:
            self.value.load_state_dict(
                broadcast_object(self.value.state_dict(), root))
        self.save()


_KEPT = (torch.nn.Module, torch.optim.Optimizer, ElasticSampler)


class ObjectState(_ObjectState):
    """State of Python objects, which are attributes."""

    def __init__(self, **objects: Any) -> None:
        super().__init__(broadcast_object, allgather_object, **objects)


class TorchState(ObjectState):
    """State of models, optimizers, samplers and Python objects, which are
    attributes."""

    _kept: Dict[str, _Kept]

    def __init__(self, model: Optional[torch.nn.Module] = None,
                 optimizer: Optional[torch.optim.Optimizer] = None,
                 **objects: Any) -> None:
        objects.update(model=model, optimizer=optimizer)
        kept, others = _divided(objects)
        object.__setattr__(self, "_kept", kept)
        for name, part in kept.items():
            object.__setattr__(self, name, part.value)
        super().__init__(**others)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._kept:
            self._kept[name] = _Kept(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        """Copies the state."""
        for part in self._kept.values():
            part.save()
        super().save()

    def restore(self) -> None:
        """Goes back to the copy."""
        for part in self._kept.values():
            part.restore()
        super().restore()

    def reset(self) -> None:
        """Adapts optimizers and samplers to the ranks."""
        for part in self._kept.values():
            part.restore()

    def _take_from(self, root: int) -> None:
        for part in self._kept.values():
            part.take_from(root)
        super()._take_from(root)


def _divided(objects: Dict[str, Any]) -> Tuple[Dict[str, _Kept],
                                               Dict[str, Any]]:
    kept = {name: _Kept(value) for name, value in objects.items()
            if isinstance(value, _KEPT)}
    return kept, {name: value for name, value in objects.items()
                  if name not in kept}


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a training function whose first argument is a State: after
    the failure of another rank it waits until a process has taken that rank,
    and calls the function again with the state of the last commit."""
    return run_fn(func, init, shutdown)
