# SPDX-License-Identifier: Apache-2.0
"""Key-value store for distributed training.

    import pskv

    kv = pskv.create('dist_sync')
    kv.init('fc1', weights)
    kv.set_optimizer('sgd', learning_rate=0.1, momentum=0.9,
                     rescale_grad=1 / (batch * kv.num_workers))
    for batch in my_batches(kv.rank, kv.num_workers):
        kv.pushpull('fc1', gradient(batch), out=weights)
    kv.close()

Importing has no side effects: nothing is loaded or connected before create().
"""
from ._client import Handle
from ._errors import Canceled, Error, JobFailed, PeerLost, Timeout
from ._memory import Registration
from ._store import KVStore, create

__version__ = "0.2.0"
__all__ = ["Canceled", "Error", "Handle", "JobFailed", "KVStore", "PeerLost",
           "Registration", "Timeout", "create"]
