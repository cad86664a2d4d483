# SPDX-License-Identifier: Apache-2.0
"""Addresses where a daemon cannot listen: one line has problem, place and
remedy, and the exit code tells service managers whether a retry can help."""
import pathlib
import shutil
import socket
import subprocess

import pytest
from trio import PATIENCE, clean_env, program, reserve_port, wait_for

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


# ------------------------------------- sockets of a service manager


@pytest.fixture
def activated(tmp_path):
    """Starts psched as systemd does at the first connection to a socket."""
    processes = []

    def start(*addresses, options=()):
        argv = ["systemd-socket-activate"]
        for address in addresses:
            argv += ["-l", address]
        argv += [program("psched"), "-c", "/dev/null", "--log-format", "text"]
        for option in options:
            argv += ["-o", option]
        with open(tmp_path / "log", "wb") as log:
            processes.append(subprocess.Popen(argv, env=clean_env(),
                                              stdout=log, stderr=log))
        return processes[-1]
    yield start
    for process in processes:
        process.kill()
        process.wait(PATIENCE)


def connect(address):
    """Connects once, as soon as the tool listens, and closes."""
    def attempt():
        with socket.socket(socket.AF_UNIX if isinstance(address, str)
                           else socket.AF_INET) as s:
            return s.connect_ex(address) == 0
    wait_for(attempt, f"a socket at {address}")


needs_tool = pytest.mark.skipif(
    shutil.which("systemd-socket-activate") is None,
    reason="needs systemd-socket-activate")


@needs_tool
def test_first_connection_starts_psched(activated, tmp_path):
    path = f"{tmp_path}/psched.sock"
    with reserve_port() as reserved:
        port = reserved.getsockname()[1]
        process = activated(
            f"127.0.0.1:{port}", path,
            options=[f"listen.port={port}", f"control.socket={path}"])
        connect(path)
        for endpoint in (f"unix:{path}", f"127.0.0.1:{port}"):
            done = subprocess.run(
                [program("psctl"), "-e", endpoint, "nodes"],
                capture_output=True, text=True, timeout=PATIENCE,
                env=clean_env(), check=False)
            assert done.returncode == 0, done.stderr
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert pathlib.Path(path).is_socket(), "it is the service manager's"


@needs_tool
@pytest.mark.parametrize("listens, options, said", [
    (["127.0.0.2:{port}"], ["listen.port={port}"],
     "is not at listen.address 127.0.0.1 and listen.port"),
    (["127.0.0.1:{port}"], ["listen.port=1"],
     "is not at listen.address 127.0.0.1 and listen.port"),
    (["{folder}/a.sock"], ["listen.port=0",
                           "control.socket={folder}/b.sock"],
     "is not at control.socket"),
    (["{folder}/a.sock", "{folder}/b.sock"], ["listen.port=0"],
     "more than one Unix socket"),
])
def test_other_sockets_than_those_of_the_options(
        activated, tmp_path, listens, options, said):
    host = listens[0].partition(":")[0]
    with reserve_port(host if host[0] != "{" else "127.0.0.1") as reserved:
        port = reserved.getsockname()[1]
        words = {"port": port, "folder": tmp_path}
        listens = [text.format(**words) for text in listens]
        process = activated(*listens, options=[
            "control.socket=", *(o.format(**words) for o in options)])
        connect(listens[0] if host[0] == "{" else (host, port))
        assert process.wait(PATIENCE) == CONFIG
    log = (tmp_path / "log").read_text()
    assert said in log and "ListenStream=" in log
