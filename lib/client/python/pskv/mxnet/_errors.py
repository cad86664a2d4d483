# SPDX-License-Identifier: Apache-2.0
"""Errors of the stores as mx.MXNetError."""
from __future__ import annotations

import functools
import os
import sys
import traceback
from typing import Any, Callable, Dict

import mxnet
from mxnet.base import MXNetError

# Folders of this package and of MXNet.
_INNER = tuple(os.path.dirname(os.path.abspath(f)) + os.sep for f in
               (os.path.dirname(__file__), mxnet.__file__))

# Class of MXNet for each class of an exception.
_classes: Dict[type, type] = {}


def _as_mxnet(e: Exception) -> Exception:
    """The exception as one that is also MXNet's, of the same name."""
    kind = type(e)
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (kind, MXNetError),
                              {"__module__": kind.__module__})
    new: Exception = _classes[kind].__new__(_classes[kind], *e.args)
    new.args = e.args
    new.__dict__.update(e.__dict__)
    # Of an error that is raised on purpose the call in the script matters, and
    # not the way through this package; of a mistake of the package it does.
    frames = traceback.extract_tb(e.__traceback__)
    on_purpose = frames and (frames[-1].line or "").startswith("raise ")
    return new if on_purpose else new.with_traceback(e.__traceback__)


def script_level() -> int:
    """The `stacklevel` of a warning of the calling function that names the line
    of the script."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_INNER):
        level, frame = level + 1, frame.f_back
    return level


def translated(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with such exceptions."""
    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> Any:
        try:
            return function(*args, **more)
        except MXNetError:
            raise
        except Exception as e:  # pylint: disable=broad-except
            new = _as_mxnet(e)
        raise new from None

    return call


# Methods that scripts call, beside those without underscores.
_CALLED = {"__init__", "__reduce__", "_barrier", "_send_command_to_servers",
           "_set_updater"}


def mxnet_errors(kind: Any) -> Any:
    """Class decorator: exceptions of the methods are both of their own class
    and MXNetError, as those of MXNet's own stores."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_") and name not in _CALLED:
            continue
        if isinstance(member, staticmethod):
            setattr(kind, name, staticmethod(translated(member.__func__)))
        elif isinstance(member, property):
            setattr(kind, name, property(translated(member.fget),
                                         doc=member.__doc__))
        elif callable(member):
            setattr(kind, name, translated(member))
    return kind

