# SPDX-License-Identifier: Apache-2.0
"""The programs as their operator meets them: options, exit codes, signals."""

import json
import os
import re
import signal
import socket
import stat
import subprocess

import pytest

import programs
import trio as support
from trio import SOURCE

ALL = ["psched", "psserver", "psworker-agent"]


@pytest.fixture
def daemons(tmp_path):
    d = programs.Daemons(tmp_path)
    yield d
    d.close()


# ------------------------------------------------------------- command line


@pytest.mark.parametrize("name", ALL)
def test_help_and_version(name):
    code, out, err = programs.run(name, "--help")
    assert code == 0 and err == ""
    assert out.startswith(f"usage: {name} ")
    assert "--check-config" in out
    code, out, err = programs.run(name, "-V")
    assert code == 0 and err == ""
    lines = out.splitlines()
    assert lines[0].split()[0] == name
    assert [line.split()[0] for line in lines[1:]] == [
        "protocol", "libuv", "msgpack", "kernel", "tls"]


@pytest.mark.parametrize("args", [
    ["--nonsense"], ["-x"], ["surplus"], ["-o"], ["-o", "log.level"],
    ["--print-config=everything"], ["--ready-fd=99"], ["--ready-fd=x"],
    ["-c"], ["--sched", "no-port"],
])
def test_wrong_usage_has_exit_code_2(args):
    code, out, err = programs.run("psserver", *args)
    assert code == 2 and out == ""
    assert err.startswith("psserver: ")
    assert len(err.splitlines()) == 1
    assert "--help" in err


def test_options_of_others_are_wrong_usage(tmp_path):
    assert programs.run("psched", "--sched=a:1")[0] == 2
    assert programs.run("psworker-agent",
                        f"--port-file={tmp_path}/port")[0] == 2


@pytest.mark.parametrize("name", ALL)
def test_samples_are_current(name):
    code, out, _ = programs.run(name, "--print-config=defaults")
    assert code == 0
    assert out == (SOURCE / "conf" / f"{name}.yaml").read_text(), \
        f"write it again: {name} --print-config=defaults >conf/{name}.yaml"


@pytest.mark.parametrize("name", ALL)
def test_samples_can_be_used(name):
    code, out, err = programs.run(name, "-c", str(SOURCE / f"conf/{name}.yaml"),
                                  "--check-config")
    assert (code, out, err) == (
        0, f"{name}: the configuration is valid: {SOURCE}/conf/{name}.yaml\n",
        "")


@pytest.mark.parametrize("name", ALL)
def test_schema_is_json(name):
    code, out, _ = programs.run(name, "--print-config=schema")
    assert code == 0
    schema = json.loads(out)
    assert schema["properties"]["log"]["properties"]["level"]["enum"][0] \
        == "error"


def test_effective_config_names_origins(tmp_path):
    conf = tmp_path / "s.yaml"
    conf.write_text("compute:\n  threads: 3\nlog:\n  level: debug\n")
    env = support.clean_env(DMLC_PS_ROOT_URI="sched.example",
                             DMLC_PS_ROOT_PORT="9000", PORT="7777",
                             PS_VERBOSE="2", PSD_FLOW_WINDOW="64MiB",
                             PS_RESEND_TIMEOUT="250",
                             DMLC_NODE_HOST="n7.example")
    code, out, err = programs.run("psserver", "-c", str(conf),
                                  "-o", "listen.port=8888",
                                  "--print-config", env=env)
    assert code == 0 and err == ""
    for word in ["threads: 3", "level: trace", "address: sched.example",
                 "port: 9000", "port: 8888", "window: 64MiB",
                 "resend_timeout: 250ms", "address: n7.example",
                 "PS_VERBOSE", "DMLC_PS_ROOT_URI", "PSD_FLOW_WINDOW",
                 "command line", "s.yaml:2"]:
        assert word in out, word
    # The output is read back.
    conf.write_text(out)
    assert programs.run("psserver", "-c", str(conf), "--check-config")[0] == 0


@pytest.mark.parametrize("text, words", [
    ("scheduler: {prot: 1}\n", ["1:13", "prot", "port"]),
    ("log:\n  level: loud\n", ["2:10", "loud", "error, warning"]),
    ("shutdown: {grace: 30}\n", ["1:19", "unit"]),
    ("flow: {window: 1KiB}\n", ["1:16", "4MiB"]),
    ("node: {name: a/b}\n", ["1:14", "letters"]),
    ("a: &x [*x]\n", ["1:4"]),
    ("listen: [\n", ["2:1"]),
])
def test_errors_have_their_line_and_column(tmp_path, text, words):
    conf = tmp_path / "bad.yaml"
    conf.write_text(text)
    for args in [["--check-config"], []]:
        code, out, err = programs.run("psserver", "-c", str(conf), *args)
        assert code == 78 and out == ""
        for word in words:
            assert word in err, (word, err)


def test_missing_file_is_an_error(tmp_path):
    code, _, err = programs.run("psched", "-c", str(tmp_path / "none.yaml"),
                                "--check-config")
    assert code == 78
    assert "none.yaml" in err


def test_file_that_other_users_may_write_is_refused(tmp_path):
    conf = tmp_path / "open.yaml"
    conf.write_text("log: {level: debug}\n")
    conf.chmod(0o666)
    code, _, err = programs.run("psched", "-c", str(conf), "--check-config")
    assert code == 78
    assert "open.yaml" in err


@pytest.mark.parametrize("name", ["psched", "psserver"])
@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.1.2.3"])
def test_address_off_loopback_needs_insecure(name, address):
    code, _, err = programs.run(name, "-o", f"listen.address={address}",
                                "--check-config")
    assert code == 78
    assert "security.insecure" in err and address in err
    assert programs.run(name, "-o", f"listen.address={address}",
                        "-o", "security.insecure=true",
                        "--check-config")[::2] == (0, "")


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1",
                                     "localhost"])
def test_loopback_address_needs_no_option(address):
    assert programs.run("psched", "-o", f"listen.address={address}",
                        "--check-config")[::2] == (0, "")


@pytest.mark.parametrize("given, host", [
    ("10.1.2.3:9091", "10.1.2.3"), ("localhost:9091", "localhost"),
    ("[::1]:9091", "::1")])
@pytest.mark.parametrize("insecure", ["false", "true"])
def test_address_with_a_port_is_refused(given, host, insecure):
    code, _, err = programs.run("psserver", "-o", f"listen.address={given}",
                                "-o", f"security.insecure={insecure}",
                                "--check-config")
    assert code == 78
    assert f"set listen.address to {host}, and listen.port to 9091" in err


def test_heartbeat_times_must_follow_each_other():
    code, _, err = programs.run("psched", "-o", "heartbeat.dead_after=300ms",
                                "-o", "heartbeat.suspect_after=300ms",
                                "--check-config")
    assert code == 78
    assert "suspect_after" in err


@pytest.mark.parametrize("given", [
    ["interval=100ms"], ["interval=10s"], ["suspect_after=200ms"],
    ["dead_after=300ms"], ["interval=10ms", "dead_after=50ms"],
    ["suspect_after=500ms", "dead_after=600ms"]])
def test_defaults_of_heartbeat_times_follow_those_given(given):
    options = [word for o in given for word in ("-o", f"heartbeat.{o}")]
    assert programs.run("psched", *options, "--check-config")[::2] == (0, "")


# ------------------------------------------------------------------ sockets


def test_port_in_use_is_an_error(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, err = programs.run("psched", "-o", f"listen.port={port}")
    assert code == 73
    assert f"127.0.0.1:{port}" in err


def test_address_of_another_host_is_an_error():
    code, _, err = programs.run("psched", "-o", "listen.address=192.0.2.1",
                                "-o", "security.insecure=true")
    assert code == 78
    assert "192.0.2.1" in err


def test_missing_socket_folder_is_an_error(tmp_path):
    code, _, err = programs.run(
        "psworker-agent", "-o", f"client.socket={tmp_path}/no/agent.sock")
    assert code == 73
    assert "no/agent.sock" in err


def test_port_file_without_a_folder_is_an_error(tmp_path):
    code, _, err = programs.run("psched", "-o", "listen.port=0",
                                f"--port-file={tmp_path}/no/port")
    assert code == 73
    assert "no/port" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be nobody")
def test_socket_folder_without_permission_is_an_error(tmp_path):
    tmp_path.chmod(0o755)
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
         support.program("psworker-agent"),
         "-o", f"client.socket={folder}/agent.sock"],
        env=support.clean_env(), capture_output=True, text=True,
        timeout=support.PATIENCE, check=False)
    assert done.returncode == 77, done.stderr


# ------------------------------------------------------------------ running


def test_psched_serves_and_ends(daemons):
    sched = daemons.psched()
    assert sched.port > 0
    with socket.create_connection(("127.0.0.1", sched.port)):
        pass
    assert sched.stop() == 0
    assert "stopped" in sched.text()


def test_daemons_start_in_any_order(daemons, tmp_path):
    """Server and agent wait for a scheduler that comes last."""
    reserved = support.reserve_port()
    port = reserved.getsockname()[1]
    retry = ["-o", "scheduler.retry.max=300ms"]
    server = daemons.psserver(port, *retry, ready=False)
    agent = daemons.agent(port, *retry, ready=False)
    server.wait_log("started")
    agent.wait_log("started")
    sched = daemons.start("psched", "-o", f"listen.port={port}")
    server.wait_ready()
    agent.wait_ready()
    mode = agent.socket.stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o660
    for daemon in (agent, server, sched):
        assert daemon.stop() == 0, daemon.text()
    assert not agent.socket.exists()
    reserved.close()


def test_second_agent_on_one_socket_is_refused(daemons, tmp_path):
    sched = daemons.psched()
    first = daemons.agent(sched.port)
    code, _, err = programs.run(
        "psworker-agent", "-o", f"client.socket={first.socket}",
        f"--sched=127.0.0.1:{sched.port}")
    assert code == 73
    assert str(first.socket) in err
    assert first.socket.exists()


def test_socket_of_a_killed_agent_is_replaced(daemons):
    sched = daemons.psched()
    first = daemons.agent(sched.port)
    first.process.kill()
    first.wait()
    assert first.socket.exists()
    second = daemons.start("psworker-agent",
                           f"--sched=127.0.0.1:{sched.port}",
                           "-o", f"client.socket={first.socket}")
    assert second.stop() == 0


def test_member_of_another_cluster_is_rejected(daemons):
    sched = daemons.psched("-o", "cluster.name=one")
    server = daemons.psserver(sched.port, "-o", "cluster.name=two",
                              ready=False)
    server.wait_log("one")
    assert server.stop() == 0


@pytest.mark.parametrize("name", ALL)
def test_reload_changes_only_the_log_level(daemons, tmp_path, name):
    conf = tmp_path / "d.yaml"
    conf.write_text("node: {name: first}\n")
    sched = daemons.psched() if name != "psched" else None
    args = ["-c", str(conf)]
    if name == "psched":
        daemon = daemons.psched(*args)
    elif name == "psserver":
        daemon = daemons.psserver(sched.port, *args)
    else:
        daemon = daemons.agent(sched.port, *args)
    conf.write_text("node: {name: second}\nlog: {level: debug}\n")
    daemon.signal(signal.SIGHUP)
    daemon.wait_log("options reloaded")
    log = daemon.text()
    assert "option changed log.level=debug" in log
    assert "node.name" in log  # The option that needs a restart.
    conf.write_text("log: {level: lout}\n")
    daemon.signal(signal.SIGHUP)
    daemon.wait_log("options not reloaded")
    assert "d.yaml:1:14" in daemon.text()
    assert daemon.stop() == 0


@pytest.mark.parametrize("name", ALL)
def test_state_dump(daemons, name):
    sched = daemons.psched()
    if name == "psched":
        daemon = sched
    elif name == "psserver":
        daemon = daemons.psserver(sched.port)
    else:
        daemon = daemons.agent(sched.port)
    daemon.signal(signal.SIGUSR1)
    daemon.wait_log(f"state {name} name ")
    assert daemon.stop() == 0
    assert "residue" in daemon.text()


def test_broken_pipe_does_not_end_a_daemon(daemons):
    sched = daemons.psched()
    sched.signal(signal.SIGPIPE)
    sched.signal(signal.SIGUSR1)
    sched.wait_log("state psched")
    assert sched.stop() == 0


def test_interrupt_ends_a_daemon(daemons):
    sched = daemons.psched()
    sched.signal(signal.SIGINT)
    assert sched.wait() == 0


def test_the_crash_of_a_daemon_fails_the_test(tmp):
    """Though the test itself has seen nothing of it. A sanitizer makes a report
    and an exit code of the signal."""
    t = support.Trio(tmp / "trio", servers=0, agents=0)
    t.start()
    t.sched.process.send_signal(signal.SIGSEGV)
    t.sched.process.wait(support.PATIENCE)
    with pytest.raises(AssertionError, match="sched ended with (signal|code) "):
        t.stop()


def test_signals_during_the_end_do_not_change_the_exit_code(daemons):
    """The signals continue until the process is gone, its last steps included."""
    for _ in range(5):
        sched = daemons.psched()
        while sched.process.poll() is None:
            sched.signal(signal.SIGTERM)
        assert sched.wait() == 0


def test_servers_keep_their_names(daemons):
    """With nothing set but where psched is, and an address of this test's own:
    ports and names stay over a restart."""
    sched = daemons.psched()
    pid = os.getpid()
    address = f"127.77.{pid // 250 % 250}.{pid % 250 + 1}"

    def start():
        return daemons.start("psserver", f"--sched=127.0.0.1:{sched.port}",
                             "-o", f"listen.address={address}")

    def name(server):
        found = re.search(r"serving name (\S+) address ([\d.]+):(\d+)",
                          server.text())
        assert found[1] == f"{os.uname().nodename[:50]}-{found[3]}"
        assert found[2] == address
        assert 9092 <= int(found[3]) < 9092 + 64
        return found[1]

    servers = [start(), start()]
    names = [name(s) for s in servers]
    assert len(set(names)) == 2
    for server in servers:
        assert server.stop() == 0
    assert [name(start()), name(start())] == names


# --------------------------------------------------------------------- logs


def test_json_lines(daemons):
    sched = daemons.psched("--log-format=json", "-o", "node.name=n7")
    assert sched.stop() == 0
    lines = [json.loads(line) for line in sched.text().splitlines()]
    assert {line["program"] for line in lines} == {"psched"}
    assert lines[-1]["node"] == "n7"
    assert lines[-1]["msg"] == "stopped"
    assert lines[-1]["level"] == "notice"


def test_journal_prefix(daemons, tmp_path):
    """Only if standard error is the stream that JOURNAL_STREAM names."""
    log = tmp_path / "j.log"
    log.touch()
    st = log.stat()
    for stream, journal in [(f"{st.st_dev}:{st.st_ino}", True),
                            ("1:1", False)]:
        ready, write = os.pipe()
        with open(log, "wb") as out, subprocess.Popen(
                [support.program("psched"), "-o", "listen.port=0",
                 f"--ready-fd={write}"],
                env=support.clean_env(JOURNAL_STREAM=stream), stderr=out,
                pass_fds=[write]) as p:
            os.close(write)
            assert os.read(ready, 1) == b"\n"
            os.close(ready)
            p.terminate()
            assert p.wait(support.PATIENCE) == 0
        assert all(line.startswith("<5>") == journal
                   for line in log.read_text().splitlines())


# ------------------------------------------------------------------ systemd


def test_service_manager_is_notified(daemons, tmp_path):
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(str(path))
        s.settimeout(support.PATIENCE)
        # A socket holds 11 datagrams, and more are dropped: this test may be
        # that many signs of life late.
        env = support.clean_env(NOTIFY_SOCKET=str(path),
                                 WATCHDOG_USEC="400000")
        sched = daemons.psched(env=env)

        def until(word):
            seen = []
            while not any(word in text for text in seen):
                seen.append(s.recv(4096).decode())
            return seen

        until("READY=1")
        until("WATCHDOG=1")
        until("WATCHDOG=1")
        sched.signal(signal.SIGHUP)
        assert "MONOTONIC_USEC=" in until("RELOADING=1")[-1]
        until("READY=1")
        sched.signal(signal.SIGTERM)
        until("STOPPING=1")
        assert sched.wait() == 0


# ------------------------------------------------- unknown peers


def send_and_wait(port, data):
    """Sends and reads to the end; returns what came."""
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.settimeout(support.PATIENCE)
        got = b""
        try:
            s.sendall(data)
            while True:
                more = s.recv(65536)
                if more == b"":
                    return got
                got += more
        except ConnectionResetError:
            return got


def test_malformed_bytes_close_the_connection_with_one_line(daemons):
    sched = daemons.psched()
    send_and_wait(sched.port, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    sched.wait_log("connection closed")
    send_and_wait(sched.port, b"PS\x01\x01" + b"\xff" * 12)
    send_and_wait(sched.port, b"PS\x01\x01\x00\x00\x00\x05" + b"\x00" * 8 +
                  b"\xdd\x10\x00\x00\x00")
    assert sched.stop() == 0
    lines = [line for line in sched.text().splitlines()
             if "connection closed" in line]
    assert len(lines) == 3
    assert all("warning" in line and "reason=" in line for line in lines)


def test_silent_connection_is_closed(daemons):
    sched = daemons.psched("-o", "limits.handshake=50ms")
    assert send_and_wait(sched.port, b"PS") == b""
    sched.wait_log("no handshake in time")
    assert sched.stop() == 0


def test_connections_beyond_the_limit_are_rejected(daemons):
    sched = daemons.psched("-o", "limits.connections=2")
    with socket.create_connection(("127.0.0.1", sched.port)), \
            socket.create_connection(("127.0.0.1", sched.port)):
        # The rejected member gets the reason.
        assert b"too many connections" in send_and_wait(sched.port, b"")
        sched.wait_log("too many connections")
    assert sched.stop() == 0
