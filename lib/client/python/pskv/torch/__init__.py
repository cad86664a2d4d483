# SPDX-License-Identifier: Apache-2.0
"""pskv for PyTorch. Importing registers the backend 'pskv' with
torch.distributed; no connection is made before a group is created, or
before init().

    import pskv.torch as hvd     # Horovod's interface"""
from . import hvd
from ._backend import ProcessGroup, Work, register
from ._ddp import HookState, comm_hook
from .hvd import *  # pylint: disable=wildcard-import

register()

__all__ = ["HookState", "ProcessGroup", "comm_hook", *hvd.__all__]
