# SPDX-License-Identifier: Apache-2.0
"""What torch 2 asks of a process group beside its collectives."""
# torch passes arguments by name, used or not.
# pylint: disable=unused-argument
from __future__ import annotations

from datetime import timedelta
from typing import Any, List, Optional, Sequence

import torch
import torch.distributed as dist


def seconds(timeout: Any) -> Optional[float]:
    """Seconds of a time limit of torch, which may be a number of them, or None
    for none."""
    if isinstance(timeout, (int, float)):
        return float(timeout) if timeout >= 0 else None
    if not isinstance(timeout, timedelta) or timeout < timedelta(0):
        return None
    return timeout.total_seconds()


def _kinds() -> List[str]:
    """Types of the devices whose tensors are taken."""
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def refuse(call: str, instead: str) -> Any:
    """A method of torch that pskv has not, which says so."""
    def refused(self: Any, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("%s() is not in the backend pskv: %s" %
                                  (call, instead))
    return refused


_NO_HOOKS = "it calls no hooks; a wrapper of the function that is called can"


class _Devices(List[torch.device]):
    """Devices of a group, and false: torch attaches its flight recorder to
    groups whose devices are true, and wants a backend in C++ of these."""

    def __bool__(self) -> bool:
        return False


class Interface(dist.ProcessGroup):  # type: ignore[misc]
    """What torch 2 asks of a process group and of its backend, which are one
    here. Tensors are in the memory of the host or of a CUDA device."""

    supports_coalescing = False
    supports_reconfigure = False
    supports_shrinking = False
    supports_splitting = True
    supports_window = False
    _supports_time_estimate = False

    def __init__(self, engine: Any) -> None:
        super().__init__(engine.rank, engine.size)
        self.engine = engine
        self._pskv_name = ""
        self._pskv_text = ""
        self._splits = 0

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        """Name of the backend."""
        return "pskv"

    _get_backend_name = getBackendName
    name = getBackendName

    def setGroupName(self, name: str) -> None:  # pylint: disable=invalid-name
        """Sets the name by which functional collectives find the group."""
        self._pskv_name = name

    def getGroupName(self) -> str:  # pylint: disable=invalid-name
        """The name of the group."""
        return self._pskv_name

    def setGroupDesc(self, text: str) -> None:  # pylint: disable=invalid-name
        """Sets what the group is for."""
        self._pskv_text = text

    def getGroupDesc(self) -> str:  # pylint: disable=invalid-name
        """What the group is for."""
        return self._pskv_text

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> List[torch.device]:
        # The first is that of objects.
        return _Devices([torch.device(kind) for kind in _kinds()])

    def _get_backend(self, device: Any) -> Any:
        if torch.device(device).type in _kinds():
            return self
        raise RuntimeError("No backend type associated with device type %s: "
                           "pskv takes tensors in the memory of the host, or "
                           "on a CUDA device that torch can use" %
                           torch.device(device).type)

    get_backend = _get_backend

    def get_group_store(self) -> Any:
        """The store through which the ranks of the group have met."""
        if self.engine.store is None:
            raise RuntimeError("the group has no store")
        return self.engine.store

    def supports_tensor_alloc(self, device: Any) -> bool:
        """False: tensors are made by torch."""
        return False

    def eager_connect_single_device(self, device: Any) -> None:
        """Does nothing: the group is connected."""

    def perform_nocolor_split(self, device: Any) -> None:
        """Does nothing: ranks outside a new group need not take part."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Sets the time limit of collectives."""
        self.engine.set_timeout(seconds(timeout))

    _set_default_timeout = set_timeout

    @property
    def options(self) -> Any:
        """Options of the backend, as torch's class."""
        timeout = self.engine.timeout
        kind = torch._C._distributed_c10d.Backend.Options
        return kind("pskv") if timeout is None else \
            kind("pskv", timedelta(seconds=timeout))

    def _split(self, ranks: Sequence[int], timeout: Any) -> Any:
        """A group of some ranks of this one, in the same job."""
        e = self.engine
        limit = seconds(timeout)
        name = "split-%d-%s" % (self._splits, "-".join(map(str, ranks)))
        store = None if e.store is None else dist.PrefixStore(name, e.store)
        part = type(e)(e.kv.group(list(ranks), name=name),
                       e.timeout if limit is None else limit, store)
        e.adopt(part)
        return type(self)(part)

    # The names are torch's.
    # pylint: disable=too-many-arguments,too-many-positional-arguments
    def split_group(self, new_ranks: Sequence[int], timeout: Any = None,
                    opts: Any = None, group_name: Optional[str] = None,
                    group_desc: Optional[str] = None,
                    device_types: Any = None) -> Any:
        """A group of some ranks of this one; None outside it."""
        self._splits += 1
        if self.engine.rank not in new_ranks:
            return None
        group = self._split(new_ranks, timeout)
        group.setGroupName(group_name or "%s:split:%d" % (
            self._pskv_name, self._splits))
        group.setGroupDesc(group_desc or "%s:split:%d" % (
            self._pskv_text, self._splits))
        return group

    register_pre_hook = refuse("ProcessGroup.register_pre_hook", _NO_HOOKS)
    unregister_pre_hook = refuse("ProcessGroup.unregister_pre_hook", _NO_HOOKS)
    register_post_hook = refuse(
        "ProcessGroup.register_post_hook",
        _NO_HOOKS + ", and work.get_future().then() at the end")
    unregister_post_hook = refuse("ProcessGroup.unregister_post_hook",
                                  _NO_HOOKS)
    register_abort_hook = refuse(
        "ProcessGroup.register_abort_hook",
        "operations fail with an error when a rank is lost")
    unregister_abort_hook = refuse("ProcessGroup.unregister_abort_hook",
                                   _NO_HOOKS)
    _register_on_completion_hook = refuse(
        "ProcessGroup._register_on_completion_hook",
        "work.get_future().then() runs at the end of an operation")
    new_window = refuse("ProcessGroup.new_window",
                        "it has no windows (supports_window is False)")
    get_reconfigure_handle = refuse(
        "ProcessGroup.get_reconfigure_handle", "the ranks of a job are fixed "
        "(supports_reconfigure is False)")
    reconfigure = refuse("ProcessGroup.reconfigure", "the ranks of a job are "
                         "fixed (supports_reconfigure is False)")
    merge_remote_group = refuse("ProcessGroup.merge_remote_group",
                                "new_group() makes groups of a job")
    supports_abort_hooks = False
    supports_completion_hooks = False

    def abort(self) -> None:
        """Leaves the job; open operations fail."""
        self.engine.close()

    def shutdown(self) -> None:
        """Leaves the job; open operations fail."""
        self.engine.close()
