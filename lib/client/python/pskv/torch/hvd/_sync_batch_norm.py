# SPDX-License-Identifier: Apache-2.0
"""Batch normalisation over the batches of all ranks."""
from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from ..._horovod.job import size
from ..._horovod.words import Sum
from ._reduce import allreduce


class SyncBatchNorm(_BatchNorm):  # type: ignore[misc]
    """torch.nn.BatchNorm of any number of dimensions with the mean and the
    variance of all ranks' batches."""

    def _check_input_dim(self, input: Tensor) -> None:
        # pylint: disable=redefined-builtin
        if input.dim() < 2:
            raise ValueError("expected at least 2D input (got %dD input)" %
                             input.dim())

    def forward(self, input: Tensor) -> Tensor:
        """The normalised batch."""
        # pylint: disable=redefined-builtin
        self._check_input_dim(input)
        alone = not self.training and self.track_running_stats
        if alone or size() == 1:
            out: Tensor = super().forward(input)
            return out
        return self._normalise(input)

    def _normalise(self, x: Tensor) -> Tensor:
        other = [d for d in range(x.dim()) if d != 1]
        shape = [1, -1] + [1] * (x.dim() - 2)
        count = torch.full((1,), x.numel() / x.shape[1], dtype=x.dtype)
        total = allreduce(torch.cat([x.sum(other), count]), op=Sum)
        n = total[-1].detach()
        mean = total[:-1] / n
        centred = x - mean.view(shape)
        var = allreduce(centred.pow(2).sum(other), op=Sum) / n
        if self.track_running_stats and self.training:
            self._track(mean.detach(), var.detach() * (n / (n - 1)))
        out = centred / torch.sqrt(var.view(shape) + self.eps)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out

    def _track(self, mean: Tensor, var: Tensor) -> None:
        """Moves the running values towards those of a batch."""
        self.num_batches_tracked += 1
        by = self.momentum if self.momentum is not None else \
            1 / float(self.num_batches_tracked)
        with torch.no_grad():
            self.running_mean.mul_(1 - by).add_(mean * by)
            self.running_var.mul_(1 - by).add_(var * by)
