# SPDX-License-Identifier: Apache-2.0
"""Binary compatibility of the client library with programs built before."""

import ctypes
import os
import re
import shutil
import subprocess
import sys

import pytest

import trio as harness
from trio import LIBRARY, PACKAGE, SOURCE

HEADER = SOURCE / "lib" / "client" / "psclient.h"

sys.path.insert(0, str(PACKAGE))
os.environ.setdefault("PSKV_LIBRARY", str(LIBRARY.absolute()))

from pskv import _array, _errors, _lib  # noqa: E402


def dynamic(option):
    out = subprocess.run(["nm", "-D", option, str(LIBRARY)], check=True,
                         capture_output=True, text=True).stdout
    return [line.split()[-1] for line in out.splitlines()]


def header_functions():
    text = "".join(path.read_text() for path in
                   HEADER.parent.glob("psclient*.h"))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    return set(re.findall(r"\b(psc_\w+)\(", text))


def test_only_declared_functions_are_exported():
    exported = set(dynamic("--defined-only")) - {"PSC_0"}
    assert exported == {f"{name}@@PSC_0" for name in header_functions()}


def test_the_library_cannot_print_or_exit():
    """abort() serves failed assertions and allocations of daemons; the library
    never calls either on purpose (test_client_nomem)."""
    used = {name.split("@")[0] for name in dynamic("--undefined-only")}
    assert not used & {"exit", "_exit", "printf", "puts", "signal",
                       "sigaction", "pthread_create", "uv_run", "getpwuid"}


def test_library_has_its_soname():
    out = subprocess.run(["readelf", "-d", str(LIBRARY)], check=True,
                         capture_output=True, text=True).stdout
    assert re.search(r"SONAME.*\[libpsclient\.so\.0\]", out)


def constants():
    text = HEADER.read_text()
    return {name: int(value) for name, value in
            re.findall(r"\b(PSC_\w+)\s*=\s*(-?\d+)", text)}


def test_python_has_the_constants_of_the_header():
    c = constants()
    assert c["PSC_E_TIMEOUT"] == _errors.TIMEOUT
    assert c["PSC_E_PEERLOST"] == _errors.PEERLOST
    assert c["PSC_E_JOBFAILED"] == _errors.JOBFAILED
    assert c["PSC_E_AGAIN"] == _errors.AGAIN
    assert c["PSC_E_CLOSED"] == _errors.CLOSED
    assert c["PSC_E_INVAL"] == _errors.INVAL
    for name in _array._NAMES:
        assert c[f"PSC_{name.upper()}"] == _array.dtype_of(name)
    assert _lib.ON_LOSS == {"wait": c["PSC_ON_LOSS_WAIT"],
                            "fail": c["PSC_ON_LOSS_FAIL"]}
    assert _lib.PLACEMENTS == {"balanced": c["PSC_PLACEMENT_BALANCED"],
                               "mxnet": c["PSC_PLACEMENT_MXNET"]}
    assert _lib.REDUCE == {name: c["PSC_" + name.upper()] for name in
                           ("sum", "mean", "min", "max", "product")}


def test_python_calls_only_exported_functions():
    lib = _lib.load()
    assert set(_lib._FUNCTIONS) <= header_functions()
    room = ctypes.create_string_buffer(4096)
    options = ctypes.cast(room, ctypes.POINTER(_lib.Options))
    lib.psc_options_init(options, len(room))
    assert options.contents.size == ctypes.sizeof(_lib.Options)
    assert options.contents.big_array_bound == 1000000
    assert options.contents.close_timeout_ms == 10000


PROGRAM = """
#include <psclient.h>
int main(void)
{
    struct psc_options o;
    psc_options_init(&o, sizeof(o));
    return psc_version()[0] == '0' && o.size == sizeof(o) ? 0 : 1;
}
"""


@pytest.mark.parametrize("compiler,standard,suffix", [
    ("cc", "-std=c99", ".c"), ("cc", "-std=c11", ".c"),
    ("c++", "-std=c++11", ".cc"), ("c++", "-std=c++20", ".cc")])
def test_c_and_cpp_programs_compile(tmp_path, compiler, standard, suffix):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    source = tmp_path / f"program{suffix}"
    source.write_text(PROGRAM)
    where = str(LIBRARY.parent.absolute())
    subprocess.run([compiler, standard, "-Wall", "-Wextra", "-Werror",
                    "-pedantic", f"-I{HEADER.parent}", str(source), "-o",
                    str(tmp_path / "program"), f"-L{where}", "-lpsclient",
                    f"-Wl,-rpath,{where}"], check=True)
    subprocess.run([str(tmp_path / "program")], check=True)


def test_importing_has_no_side_effects():
    code = ("import sys, threading; before = threading.active_count(); "
            "import pskv, pskv._lib as l; "
            "assert l._loaded is None; "
            "assert threading.active_count() == before; "
            "assert 'numpy' not in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True,
                   env=harness.clean_env(PYTHONPATH=str(PACKAGE),
                                          PSKV_LIBRARY="/nowhere.so"))


def test_a_missing_library_is_named():
    done = subprocess.run([sys.executable, "-c", "import pskv; pskv.create()"],
                          capture_output=True, text=True, check=False,
                          env=harness.clean_env(PYTHONPATH=str(PACKAGE),
                                                 PSKV_LIBRARY="/nowhere.so"))
    assert done.returncode == 1
    assert "ImportError" in done.stderr and "/nowhere.so" in done.stderr


def test_error_without_an_agent_names_the_socket(tmp_path):
    path = tmp_path / "agent.sock"
    code = (f"import pskv\ntry:\n    pskv.create(socket={str(path)!r}, "
            "connect_timeout=0)\n"
            "except pskv.Error as e:\n    print(e.code, e)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True,
                          text=True, check=True,
                          env=harness.clean_env(
                              PYTHONPATH=str(PACKAGE),
                              PSKV_LIBRARY=str(LIBRARY.absolute())))
    assert str(path) in done.stdout and done.stdout.startswith("-23 ")
