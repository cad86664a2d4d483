# SPDX-License-Identifier: Apache-2.0
"""pskv for PyTorch. Importing makes torch.distributed know the backend
'pskv'; nothing is connected before a group is made."""
from ._backend import ProcessGroup, register

register()

__all__ = ["ProcessGroup"]
