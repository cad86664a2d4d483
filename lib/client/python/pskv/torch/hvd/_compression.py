# SPDX-License-Identifier: Apache-2.0
"""Types in which Horovod's interface sends gradients."""
from __future__ import annotations

from typing import Any, Tuple

from torch import Tensor


class _None:
    """No compression."""

    @staticmethod
    def compress(tensor: Tensor) -> Tuple[Tensor, Any]:
        """The tensor, and the context for decompress()."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, _ctx: Any) -> Tensor:
        """The tensor."""
        return tensor


class _Fp16:
    """Floating-point tensors in 16 bits."""

    @staticmethod
    def compress(tensor: Tensor) -> Tuple[Tensor, Any]:
        """The tensor, and the context for decompress()."""
        if tensor.dtype.is_floating_point:
            return tensor.half(), tensor.dtype
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: Any) -> Tensor:
        """The tensor in its original type."""
        return tensor if ctx is None else tensor.to(ctx)


class Compression:
    """Types in which gradients are sent."""

    none = _None
    fp16 = _Fp16
