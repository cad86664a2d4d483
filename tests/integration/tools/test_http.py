# SPDX-License-Identifier: Apache-2.0
"""metrics.listen of the daemons: HTTP for monitoring systems, and for those who
would do harm through it."""
import ctypes
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
import trio as support
from trio import PATIENCE, Deadline, Job, wait_for

parser = pytest.importorskip("prometheus_client.parser")

ANY = "metrics.listen=127.0.0.1:0"
NAMES = {"sched": "psched_", "ps0": "psserver_", "node0": "psagent_"}
# Of each connection (CONNECTION_TIME of http.c), and some more.
LONGEST = 10 + PATIENCE


def check(*options, program="psserver", **env):
    done = subprocess.run(
        [support.program(program), "-c", "/dev/null", "--check-config"] +
        [word for o in options for word in ("-o", o)], capture_output=True,
        text=True, check=False, timeout=PATIENCE,
        env=support.clean_env(**env))
    return done.returncode, done.stderr


@pytest.fixture(scope="module", autouse=True)
def has_http():
    code, said = check(ANY)
    if code != 0 and "libmicrohttpd" in said:
        pytest.skip(said.strip())


def start(trio, **options):
    return trio(servers=1, agents=1, options=[ANY], server_options=[ANY],
                agent_options=[ANY], **options)


def connect(daemon):
    where = re.search(r"metrics by HTTP address (\S+):(\d+)", daemon.text())
    return socket.create_connection((where[1], int(where[2])),
                                    timeout=LONGEST)


def read_all(s):
    """Bytes until the end of the connection."""
    data = b""
    try:
        while more := s.recv(65536):
            data += more
    except ConnectionResetError:
        pass
    return data


def parse(data):
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in lines[1:])
    return int(lines[0].split()[1]), fields, body.decode()


def ask(daemon, request):
    """(status, header fields, body) of the answer, after which the daemon ends
    the connection."""
    with connect(daemon) as s:
        s.sendall(request)
        return parse(read_all(s))


def get(daemon, path):
    return ask(daemon, f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())


def samples(text):
    return {(s.name, s.labels.get("state")): s.value
            for f in parser.text_string_to_metric_families(text)
            for s in f.samples}


def test_metrics_are_those_of_the_file(trio, tmp):
    path = tmp / "ps.prom"
    t = trio(servers=1, agents=1, options=[ANY], agent_options=[ANY],
             server_options=[ANY, f"metrics.file={path}",
                             "metrics.interval=100ms"])
    with Job(t, 2) as job:
        key = job.key("w", "float32", 1000)
        job.tell(f"rounds count 7 1 0 {key}")
        for name, prefix in NAMES.items():
            daemon = t.daemons[name]
            status, fields, text = get(daemon, "/metrics")
            assert status == 200
            assert fields["content-type"].startswith(
                "text/plain; version=0.0.4")
            found = samples(text)
            assert all(n.startswith(prefix) for n, _ in found)
            assert (prefix + "process_open_fds", None) in found
        server = t.daemons["ps0"]
        wait_for(lambda: samples(get(server, "/metrics")[2])[
            ("psserver_rounds_total", None)] == 7, "7 rounds")
        assert set(samples(get(server, "/metrics")[2])) == \
            set(samples(path.read_text()))


def test_promtool_accepts_the_page(trio):
    promtool = support.need_program("promtool", "prometheus")
    t = start(trio)
    with Job(t, 2) as job:
        key = job.key("w", "float32", 1000)
        job.tell(f"rounds count 7 1 0 {key}")
        for daemon in t.daemons.values():
            subprocess.run([promtool, "check", "metrics"], check=True,
                           input=get(daemon, "/metrics")[2], text=True,
                           timeout=PATIENCE)


def test_ready_follows_the_registration(trio):
    t = start(trio)
    for daemon in t.daemons.values():
        wait_for(lambda d=daemon: get(d, "/readyz")[0] == 200, "readiness")
        assert get(daemon, "/healthz")[::2] == (200, "ok\n")
    t.sched.stop(Deadline(), kill=True)
    for daemon in (t.daemons["ps0"], t.daemons["node0"]):
        status, _, text = wait_for(
            lambda d=daemon: (a := get(d, "/readyz"))[0] == 503 and a,
            "no readiness")
        assert text == "not registered with the scheduler\n"
        assert get(daemon, "/healthz")[0] == 200
    t.launch("sched").await_ready(Deadline())
    for daemon in (t.daemons["ps0"], t.daemons["node0"]):
        wait_for(lambda d=daemon: get(d, "/readyz")[0] == 200, "readiness")


def trace(request, tid):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long] * 4
    if libc.ptrace(request, tid, 0, 0) != 0:
        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")


def test_health_is_that_of_the_main_loop(trio):
    """The loop thread is stopped, and that of HTTP goes on."""
    t = start(trio)
    server = t.daemons["ps0"]
    assert get(server, "/healthz")[0] == 200
    seize, interrupt, detach = 0x4206, 0x4207, 17
    trace(seize, server.pid)
    trace(interrupt, server.pid)
    os.waitpid(server.pid, 0x40000000)
    try:
        for path in ("/healthz", "/readyz"):
            status, _, text = wait_for(
                lambda p=path: (a := get(server, p))[0] == 503 and a,
                "a bad state of health", 5 + PATIENCE)
            assert re.fullmatch(r"the main loop has not run for \d+ s\n", text)
        # The last figures are still there.
        assert get(server, "/metrics")[0] == 200
    finally:
        trace(detach, server.pid)
    wait_for(lambda: get(server, "/healthz")[0] == 200, "health")


def test_stopping_daemon_is_not_ready(trio):
    t = start(trio)
    with Job(t, 1) as job:
        key = job.key("w", "float32", 10)
        job.tell(f"rounds count 1 1 0 {key}")
        t.daemons["ps0"].process.send_signal(signal.SIGTERM)
        wait_for(lambda: get(t.daemons["ps0"], "/readyz")[::2] ==
                 (503, "the daemon ends\n"), "the end in /readyz")


@pytest.mark.parametrize("request_text, status", [
    ("POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc", 405),
    ("HEAD /metrics HTTP/1.1\r\nHost: h\r\n\r\n", 405),
    ("DELETE /metrics HTTP/1.1\r\nHost: h\r\n\r\n", 405),
    ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", 404),
    ("GET /../../../../etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n", 404),
    ("GET /metrics/../../etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n", 404),
    ("GET /%2e%2e/etc/passwd HTTP/1.1\r\nHost: h\r\n\r\n", 404),
    ("GET /metrics%00/etc HTTP/1.1\r\nHost: h\r\n\r\n", 404),
    ("GET /metricss HTTP/1.1\r\nHost: h\r\n\r\n", 404),
    # The answer does not wait for a body, and the connection ends with it.
    ("GET /healthz HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999\r\n\r\n",
     200),
    ("GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
     "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n", 200),
], ids=lambda v: str(v)[:30].split("\r")[0])
def test_requests_that_get_one_answer(server, request_text, status):
    got, fields, body = ask(server, request_text.encode())
    assert got == status
    assert fields["connection"] == "close"
    assert "root:" not in body and "HTTP/1.1" not in body
    if status == 405:
        assert fields["allow"] == "get"
    assert get(server, "/healthz")[0] == 200


@pytest.mark.parametrize("data", [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n",
    b"GET /metrics HTTP/1.1\r\nX: " + b"y" * 200000,
    b"\r\n" * 50000,
    b"\0" * 50000,
    b"PS\x01\x01" + bytes(12),
], ids=["tls", "long-path", "many-fields", "long-field", "newlines", "zeros",
        "frame"])
def test_garbage_ends_its_connection_only(server, data):
    before = server.rss()
    with connect(server) as s:
        try:
            s.sendall(data)
            s.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # Ended before all was sent.
        answer = read_all(s)
    assert not answer.startswith(b"HTTP/1.1 2")
    assert get(server, "/healthz")[0] == 200
    assert server.rss() < before + 8 * 2**20


@pytest.fixture
def server(trio):
    return start(trio).daemons["ps0"]


def test_slow_peers_give_way_to_scrapes_and_hold_up_no_job(trio):
    """Four times as many connections as are served at a time, which send a byte
    now and then, or nothing: those that are ended come again."""
    t = start(trio)
    server = t.daemons["ps0"]
    slow = []
    took = []

    def fill():
        while len(slow) < 64:
            s = connect(server)
            s.sendall(b"GET /metrics HTTP/1.1\r\nX: ")
            slow.append(s)

    def drip():
        for s in list(slow):
            try:
                s.sendall(b"y")
            except OSError:
                s.close()
                slow.remove(s)

    with Job(t, 2) as job:
        key = job.key("w", "float32", 100000)
        job.tell(f"rounds count 20 1 0 {key}")
        for _ in range(5):
            fill()
            begun = time.monotonic()
            with connect(server) as s:
                s.settimeout(LONGEST)
                s.sendall(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n")
                assert parse(read_all(s))[0] == 200
            took.append(time.monotonic() - begun)
            drip()
    for s in slow:
        s.close()
    # Where those before it have their ten seconds, each takes 40 s.
    assert max(took) < 10, took


def test_a_header_has_two_seconds(server):
    """Well before the end of a connection, which has ten."""
    with connect(server) as s:
        begun = time.monotonic()
        s.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert read_all(s) == b""
        took = time.monotonic() - begun
    assert 1 < took < 9, took


def test_off_is_the_default_and_loads_nothing(trio):
    t = trio(servers=1, agents=1, options=[ANY])
    for name in ("ps0", "node0"):
        daemon = t.daemons[name]
        maps = Path(f"/proc/{daemon.pid}/maps").read_text()
        assert "microhttpd" not in maps
        assert "HTTP" not in daemon.text()
    assert "microhttpd" in Path(f"/proc/{t.sched.pid}/maps").read_text()


def test_addresses_that_cannot_be_used_are_named(trio, tmp):
    code, said = check("metrics.listen=9191")
    assert code == 78
    assert "metrics.listen: 9191: write ADDRESS:PORT, as in " in said
    # A library that cannot be loaded.
    (tmp / "libmicrohttpd.so.12").write_bytes(b"")
    code, said = check(ANY, LD_LIBRARY_PATH=tmp)
    assert code == 78
    assert "metrics.listen: 127.0.0.1:0: cannot load libmicrohttpd (" in said
    assert "install the package libmicrohttpd12, or use metrics.file" in said
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run(
            [support.program("psched"), "-c", "/dev/null", "-o",
             "listen.port=0", "-o", f"control.socket={tmp}/s", "-o",
             f"metrics.listen={where}"], capture_output=True, text=True,
            check=False, timeout=PATIENCE, env=support.clean_env())
    assert done.returncode != 0
    assert f"metrics.listen: cannot listen on {where}: another process" in \
        done.stderr


def test_an_open_address_is_a_warning(trio):
    t = trio(servers=0, agents=0, options=["metrics.listen=0.0.0.0:0"])
    t.sched.await_log("metrics.listen: every host that reaches 0.0.0.0:")
