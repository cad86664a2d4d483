# SPDX-License-Identifier: Apache-2.0
"""Addresses where a daemon cannot listen: one line has problem, place and
remedy, and the exit code tells service managers whether a retry can help."""
import subprocess

import pytest
from trio import PATIENCE, clean_env, program, reserve_port

CONFIG, NOPERM, CANTCREAT, UNAVAILABLE = 78, 77, 73, 69


def run(name, *options):
    """(exit code, standard error)"""
    argv = [program(name), "-c", "/dev/null", "--log-format", "text"]
    for option in options:
        argv += ["-o", option]
    done = subprocess.run(argv, capture_output=True, text=True,
                          timeout=PATIENCE, env=clean_env(), check=False)
    return done.returncode, done.stdout + done.stderr


def test_port_in_use():
    with reserve_port() as s:
        s.listen(1)
        port = s.getsockname()[1]
        code, said = run("psched", f"listen.port={port}", "control.socket=")
    assert code == CANTCREAT
    assert f"cannot listen on 127.0.0.1:{port}: another process listens " \
        "there; stop it, or set another listen.port" in said


def test_address_of_another_host():
    code, said = run("psched", "listen.port=0", "listen.address=192.0.2.1",
                     "security.insecure=true", "control.socket=")
    assert code == CONFIG
    assert "cannot listen on 192.0.2.1:0: this host has no such address; set " \
        "listen.address" in said


@pytest.mark.parametrize("insecure", ["false", "true"])
def test_name_that_does_not_resolve(insecure):
    code, said = run("psched", "listen.port=0", "listen.address=none.invalid",
                     f"security.insecure={insecure}", "control.socket=")
    assert code == (CONFIG if insecure == "false" else UNAVAILABLE)
    assert "none.invalid" in said
    assert "the name cannot be resolved; correct listen.address" in said


def agent(path):
    return run("psworker-agent", f"client.socket={path}")


def test_socket_of_another_agent(trio):
    t = trio(servers=0, agents=1)
    path = t.socket(0)
    code, said = agent(path)
    assert code == CANTCREAT
    assert f"cannot listen on {path}: another process listens there" in said
    assert t.agents()[0].alive()


def test_folders_that_take_no_socket(tmp):
    for path, why in ((f"{tmp}/none/x.sock", "the folder does not exist"),
                      ("/dev/null/x.sock", "is not a folder"),
                      ("/proc/self/x.sock", "folder")):
        code, said = agent(path)
        assert code == (NOPERM if "this user" in said else CANTCREAT), said
        assert f"cannot listen on {path}: " in said
        assert why in said
