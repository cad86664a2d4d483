# SPDX-License-Identifier: Apache-2.0
"""Small substitutes for modules that upstream tests import and that need not
be installed, with as much of each as those tests use."""
import contextlib
import functools
import importlib
import os
import pickle
import sys
import threading
import types
import unittest
import unittest.mock


def module(name, **members):
    """Puts a module into sys.modules, and into the module above it."""
    made = types.ModuleType(name)
    vars(made).update(members)
    made.__path__ = []
    add(name, made)
    return made


def add(name, made):
    sys.modules[name] = made
    above, _, last = name.rpartition(".")
    if above:
        setattr(sys.modules[above], last, made)


def nose():
    def make_decorator(of):
        return functools.wraps(of)

    def assert_raises(error, function, *args, **kwargs):
        unittest.TestCase().assertRaises(error, function, *args, **kwargs)

    def raises(*errors):
        def decorate(function):
            @functools.wraps(function)
            def wrapped(*args, **kwargs):
                with unittest.TestCase().assertRaises(errors):
                    function(*args, **kwargs)
            return wrapped
        return decorate

    module("nose")
    module("nose.tools", make_decorator=make_decorator, raises=raises,
           assert_raises=assert_raises)


def pytest():
    """Marks that skip become unittest's, for a runner without pytest."""
    def skipif(condition, reason=""):
        return unittest.skipIf(condition, reason)

    def skip(reason=""):
        return unittest.skip(reason)

    module("pytest", mark=types.SimpleNamespace(skip=skip, skipif=skipif))


def mock():
    add("mock", unittest.mock)


def cloudpickle():
    module("cloudpickle", dumps=pickle.dumps, loads=pickle.loads,
           dump=pickle.dump, load=pickle.load)


def expecttest():
    module("expecttest", TestCase=unittest.TestCase, ACCEPT=False)


def packaging():
    """pip has a copy."""
    try:
        importlib.import_module("packaging.version")
    except ImportError:
        add("packaging", importlib.import_module("pip._vendor.packaging"))
        add("packaging.version",
            importlib.import_module("pip._vendor.packaging.version"))


def horovod(front_end, ours):
    """horovod.<front_end> is the module `ours` of pskv."""
    def in_thread(target, args=(), name=None, daemon=True, silent=False):
        thread = threading.Thread(target=target, args=args, name=name,
                                  daemon=daemon)
        thread.start()
        return thread

    @contextlib.contextmanager
    def env(**values):
        with unittest.mock.patch.dict(os.environ, values):
            yield

    for name in ("horovod", "horovod.common", "horovod.runner",
                 "horovod.runner.util"):
        module(name)
    module("horovod.common.util", env=env)
    module("horovod.runner.util.threads", in_thread=in_thread)
    add(f"horovod.{front_end}", importlib.import_module(ours))
