# SPDX-License-Identifier: Apache-2.0
"""Entry points of a wheel. A command replaces the interpreter with the program
of its name, which the wheel has in the folder bin of the package."""
import os
import sys
from typing import Any, NoReturn


def _run(name: str) -> NoReturn:
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin",
                        name)
    try:
        os.execv(path, [name] + sys.argv[1:])
    except OSError as e:
        sys.exit("%s: cannot run %s: %s; install the wheel of pskv again" %
                 (name, path, e.strerror))


def psched() -> NoReturn:
    """psched(8)"""
    _run("psched")


def psserver() -> NoReturn:
    """psserver(8)"""
    _run("psserver")


def psworker_agent() -> NoReturn:
    """psworker-agent(8)"""
    _run("psworker-agent")


def psctl() -> NoReturn:
    """psctl(1)"""
    _run("psctl")


def pslaunch() -> NoReturn:
    """pslaunch(1)"""
    _run("pslaunch")


def torch_backend() -> None:
    """Called at the end of `import torch` (2.5 and later): scripts can make
    groups of the backend 'pskv' that do not import pskv.torch. That is imported
    with the first group."""
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    if not dist.is_available() or hasattr(dist.Backend, "PSKV"):
        return

    def create_group(opts: Any, pg_options: Any) -> Any:
        # pylint: disable-next=import-outside-toplevel
        from .torch._backend import create_group_of_options
        return create_group_of_options(opts, pg_options)
    dist.Backend.register_backend("pskv", create_group, True, ["cpu", "cuda"])
