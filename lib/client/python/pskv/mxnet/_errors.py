# SPDX-License-Identifier: Apache-2.0
"""Errors of the stores as mx.MXNetError."""
from __future__ import annotations

import functools
from typing import Any, Callable, Dict

from mxnet.base import MXNetError

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
    return new.with_traceback(e.__traceback__)


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


def mxnet_errors(kind: Any) -> Any:
    """Class decorator: exceptions of the methods are both of their own class
    and MXNetError, as those of MXNet's own stores."""
    for name, member in list(vars(kind).items()):
        if isinstance(member, staticmethod):
            setattr(kind, name, staticmethod(translated(member.__func__)))
        elif isinstance(member, property):
            setattr(kind, name, property(translated(member.fget),
                                         doc=member.__doc__))
        elif callable(member) and name != "__del__":
            setattr(kind, name, translated(member))
    return kind

