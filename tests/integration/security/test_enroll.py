# SPDX-License-Identifier: Apache-2.0
"""A node exchanges a one-time code for a certificate: psctl pki code,
psctl pki serve and psctl enroll."""
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio as support
import wire
from test_pki import Authority, authority  # noqa: F401
from test_pki import mode, openssl, psctl

FILES = ["agent.crt", "agent.key", "ca.crt", "crl.pem"]
ENROL = wire.MESSAGES["enrol"]["code"]
ENROLLED = wire.MESSAGES["enrolled"]["code"]


class Service:
    """psctl pki serve, with what it prints."""

    def __init__(self, authority, *words):  # noqa: F811
        self.out = authority.path / "serve.out"
        self.err = authority.path / "serve.err"
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(
                [support.program("psctl"), "--dir", str(authority.dir),
                 "--listen", "127.0.0.1:0", *words, "pki", "serve"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                env=support.clean_env(),
                preexec_fn=support.die_with_parent)
        found = support.wait_for(
            lambda: re.search(r"^enrolment at (\S+):(\d+); Ctrl-C ends it$",
                              self.out.read_text(), re.M)
            or self.process.poll() is not None, "psctl pki serve listens")
        assert found is not True, self.err.read_text()
        self.port = int(found[2])

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def await_error(self, text):
        support.wait_for(lambda: text in self.err.read_text(),
                         f"'{text}' of psctl pki serve")

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port),
                                        support.PATIENCE)

    def connect_tls(self):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context.wrap_socket(self.connect())

    def end(self, number=signal.SIGINT):
        self.process.send_signal(number)
        return self.process.wait(support.PATIENCE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.fixture
def service(authority):  # noqa: F811
    with Service(authority) as s:
        yield s


def code_for(authority, role, name, *words):  # noqa: F811
    text = authority.good("code", role, name, *words)
    assert re.fullmatch(rf"{role}\.[0-9a-f]{{8}}\.[0-9a-f]{{32}}"
                        r"\.[0-9a-f]{64}\n", text), text
    return text.strip()


def enroll(address, code, node, *words, **options):
    return psctl("--server", address, "--code", code, "--directory", node,
                 *words, "enroll", **options)


def another(text, part):
    """The code with the last digit of one of its parts changed."""
    parts = text.split(".")
    last = parts[part][-1]
    parts[part] = parts[part][:-1] + ("0" if last != "0" else "1")
    return ".".join(parts)


def read_to_end(sock):
    """True if the other side has closed, with or without a reset."""
    sock.settimeout(support.PATIENCE)
    try:
        while sock.recv(65536):
            pass
    except OSError as e:
        return not isinstance(e, TimeoutError)
    return True


def test_a_node_enrols_with_a_code(authority, service):  # noqa: F811
    node = authority.path / "node"
    code = code_for(authority, "agent", "n1", "--host", "n1.lab", "--days",
                    "30")
    status, out, err = enroll(service.address, code, node)
    assert (status, err) == (0, "")
    assert re.fullmatch(rf"ps://lab/agent/n1: {node}/agent.crt, serial "
                        r"[0-9a-f]{32}, 30 days\n", out), out
    assert sorted(p.name for p in node.iterdir()) == FILES
    assert mode(node) == 0o700 and mode(node / "agent.key") == 0o600
    for name in ("agent.crt", "ca.crt", "crl.pem"):
        assert mode(node / name) == 0o644
    for name in ("ca.crt", "crl.pem"):
        assert (node / name).read_text() == (authority.dir / name).read_text()
    for purpose in ("sslserver", "sslclient"):
        good, text = authority.verify(node / "agent.crt", "-purpose", purpose)
        assert good, text
    _, text = openssl("x509", "-in", node / "agent.crt", "-noout", "-text")
    assert "URI:ps://lab/agent/n1, DNS:n1.lab" in text
    _, of_certificate = openssl("x509", "-in", node / "agent.crt", "-noout",
                                "-pubkey")
    _, of_key = openssl("pkey", "-in", node / "agent.key", "-pubout")
    assert of_certificate == of_key
    _, rows = authority.rows()
    assert [(r["name"], r["state"], r["hosts"]) for r in rows] == [
        ("n1", "valid", ["n1.lab"])]
    assert re.search(r"^agent n1 enrolled from 127\.0\.0\.1:\d+$",
                     service.out.read_text(), re.M)
    assert service.err.read_text() == ""
    assert service.end() == 0


@pytest.mark.parametrize("role", ["sched", "server", "ctl"])
def test_other_roles_enrol_too(authority, service, role):  # noqa: F811
    node = authority.path / "node"
    code = code_for(authority, role, "n1")
    assert psctl("--server", service.address, "--code", code, "--out", node,
                 "enroll")[0] == 0
    assert authority.verify(node / f"{role}.crt")[0]


def test_the_authority_keeps_no_secret_of_a_code(authority):  # noqa: F811
    code = code_for(authority, "agent", "n1")
    codes = authority.dir / "codes"
    assert mode(codes) == 0o600
    assert code.split(".")[1] in codes.read_text()
    for path in authority.dir.iterdir():
        assert code.split(".")[2] not in path.read_text(), path


def test_a_code_may_come_from_standard_input(authority,  # noqa: F811
                                             service):
    node = authority.path / "node"
    code = code_for(authority, "agent", "n1")
    assert enroll(service.address, "-", node, stdin=code + "\n")[0] == 0
    assert authority.verify(node / "agent.crt")[0]


def test_a_code_is_good_for_one_time(authority, service):  # noqa: F811
    code = code_for(authority, "agent", "n1")
    assert enroll(service.address, code, authority.path / "a")[0] == 0
    status, out, err = enroll(service.address, code, authority.path / "b")
    assert (status, out) == (77, "")
    assert "no such code: it was used, replaced or revoked" in err
    assert not (authority.path / "b").exists()
    assert len(authority.rows()[1]) == 1
    service.await_error("no such code")


def test_one_of_many_holders_of_a_code_enrols(authority,  # noqa: F811
                                              service):
    code = code_for(authority, "agent", "n1")
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda i: enroll(
            service.address, code, authority.path / str(i))[0], range(6)))
    assert sorted(done) == [0] + [77] * 5
    assert len(authority.rows()[1]) == 1


@pytest.mark.parametrize("part", [1, 2], ids=["id", "secret"])
def test_a_wrong_code_is_refused(authority, service, part):  # noqa: F811
    code = code_for(authority, "agent", "n1")
    node = authority.path / "node"
    status, out, err = enroll(service.address, another(code, part), node)
    assert (status, out) == (77, "") and "no such code" in err
    assert not node.exists() and authority.rows() == (0, [])
    assert enroll(service.address, code, node)[0] == 0


def test_a_code_is_void_after_five_wrong_secrets(authority,  # noqa: F811
                                                 service):
    code = code_for(authority, "agent", "n1")
    node = authority.path / "node"
    for _ in range(5):
        assert enroll(service.address, another(code, 2), node)[0] == 77
    service.await_error("the 5th: the code is void")
    status, _, err = enroll(service.address, code, node)
    assert status == 77 and "no such code" in err
    assert (authority.dir / "codes").read_text() == ""


def test_attempts_of_an_address_are_limited(authority, service):  # noqa: F811
    """While something there fails in a loop; then a code counts as before."""
    code = code_for(authority, "agent", "n1")
    node = authority.path / "node"
    over = threading.Event()

    def fail(address="127.0.0.1"):
        with socket.socket() as s:
            s.bind((address, 0))
            s.connect(("127.0.0.1", service.port))
            try:
                s.sendall(b"not TLS at all\n")
            except OSError:
                pass  # Closed already.
            assert read_to_end(s)

    def fail_in_a_loop():
        while not over.wait(0.001):
            fail()

    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(fail_in_a_loop)
        try:
            support.wait_for(
                lambda: enroll(service.address, another(code, 1), node)[0] == 75,
                "a refusal for too many attempts")
            fail("127.0.0.2")  # Another address of this host.
            service.await_error("refused 127.0.0.2:")
        finally:
            over.set()
        loop.result(support.PATIENCE)
    assert not node.exists()

    def is_enrolled():
        status, _, err = enroll(service.address, code, node)
        assert status == 0 or (status == 75 and "too many attempts" in err)
        return status == 0

    support.wait_for(is_enrolled, "the failures are forgotten")


def test_an_expired_code_is_refused(authority, service):  # noqa: F811
    code = code_for(authority, "agent", "n1", "--ttl", "1ms")
    node = authority.path / "node"
    status, out, err = enroll(service.address, code, node)
    assert (status, out) == (77, "")
    assert "the code has expired; psctl pki code makes another one" in err
    assert not node.exists()
    code = code_for(authority, "agent", "n1")
    assert enroll(service.address, code, node)[0] == 0


def test_an_authority_of_another_fingerprint_gets_nothing(  # noqa: F811
        authority, service):
    code = code_for(authority, "agent", "n1")
    other = Authority(authority.path / "other")
    other.path.mkdir()
    other.good("init", "--cluster", "lab")
    node = authority.path / "node"
    for wrong in (another(code, 3), code_for(other, "agent", "n1")):
        status, out, err = enroll(service.address, wrong, node)
        assert (status, out) == (77, "")
        assert "is not trusted: its authority is not the one that the code " \
            "names; nothing was sent to it" in err
        assert not node.exists()
    # The secret was not sent, so it does not count as a try.
    assert " 0 0 -\n" in (authority.dir / "codes").read_text()
    assert enroll(service.address, code, node)[0] == 0


def test_revoking_a_name_makes_its_code_void(authority,  # noqa: F811
                                             service):
    code = code_for(authority, "agent", "n1")
    assert "1 code void" in authority.good("revoke", "n1")
    status, _, err = enroll(service.address, code, authority.path / "node")
    assert status == 77 and "no such code" in err


def test_a_new_code_replaces_the_former(authority, service):  # noqa: F811
    first = code_for(authority, "agent", "n1")
    second = code_for(authority, "agent", "n1")
    node = authority.path / "node"
    assert enroll(service.address, first, node)[0] == 77
    assert enroll(service.address, second, node)[0] == 0
    status, _, err = authority.pki("code", "agent", "n1")
    assert status == 1 and "agent n1 has a certificate" in err
    code = code_for(authority, "agent", "n1", "--force")
    assert enroll(service.address, code, node, "--force")[0] == 0
    assert [r["state"] for r in authority.rows()[1]] == ["replaced", "valid"]


def test_files_that_exist_are_found_before_the_code_is_used(  # noqa: F811
        authority, service):
    code = code_for(authority, "agent", "n1")
    node = authority.path / "node"
    node.mkdir()
    (node / "agent.key").write_text("a key")
    status, _, err = enroll(service.address, code, node)
    assert status == 1 and "agent.key exists already" in err
    (node / "agent.key").unlink()
    (node / "ca.crt").write_text("an authority")
    status, _, err = enroll(service.address, code, node)
    assert status == 1 and "ca.crt is that of another authority" in err
    assert [p.name for p in node.iterdir()] == ["ca.crt"]
    assert enroll(service.address, code, node, "--force")[0] == 0


def send_request(service, code, request):
    """The fields of the answer to a request, by id."""
    _, number, secret, _ = code.split(".")
    ids = {f["name"]: f["id"] for f in wire.MESSAGES["enrol"]["fields"]}
    header = b"\x84" + b"".join([
        wire.pack(ids["protocol"]), wire.pack(1),
        wire.pack(ids["id"]), wire.pack(int(number, 16)),
        wire.pack(ids["secret"]), b"\xc4\x10", bytes.fromhex(secret),
        wire.pack(ids["request"]), wire.pack(request)])
    with service.connect_tls() as s:
        assert s.version() == "TLSv1.3"
        s.sendall(wire.frame(ENROL, header))
        received, header, _ = wire.read_frame(s)
        assert s.recv(1) == b""
    assert received == ENROLLED
    return wire.unpack(header)[0]


def test_names_of_the_request_do_not_count(authority, service):  # noqa: F811
    key, request = authority.path / "x.key", authority.path / "x.csr"
    code, out = openssl(
        "req", "-new", "-newkey", "ec", "-pkeyopt",
        "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", request,
        "-subj", "/CN=psched", "-addext",
        "subjectAltName=URI:ps://lab/sched/psched,DNS:evil", "-addext",
        "basicConstraints=critical,CA:TRUE")
    assert code == 0, out
    one_time = code_for(authority, "agent", "n1")
    answer = send_request(service, one_time, request.read_text())
    certificate = authority.path / "x.crt"
    certificate.write_text(answer[10])
    assert authority.verify(certificate)[0]
    _, text = openssl("x509", "-in", certificate, "-noout", "-text")
    assert "URI:ps://lab/agent/n1\n" in text
    assert "evil" not in text and "psched" not in text
    assert "CA:FALSE" in text and "CA:TRUE" not in text


def test_a_request_without_proof_of_its_key_leaves_the_code(  # noqa: F811
        authority, service):
    code = code_for(authority, "agent", "n1")
    answer = send_request(service, code, "no request")
    assert answer[8] < 0 and "certificate request" in answer[9]
    key = authority.path / "x.key"
    request = authority.path / "x.csr"
    assert openssl("req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout",
                   key, "-out", request, "-subj", "/CN=n1")[0] == 0
    answer = send_request(service, code, request.read_text())
    assert answer[8] < 0 and "not signed by a key on P-256" in answer[9]
    assert enroll(service.address, code, authority.path / "node")[0] == 0


@pytest.mark.parametrize("noise", [
    b"\x16\x03\x01\xff\xff" + b"\x01" * 70000,
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
    b"\x00" * 100, os.urandom(3000)],
    ids=["long-record", "http", "short-hello", "zeros", "random"])
def test_bytes_that_are_no_tls_end_their_connection(  # noqa: F811
        authority, service, noise):
    with service.connect() as s:
        try:
            s.sendall(noise)
        except OSError:
            pass
        assert read_to_end(s)
    service.await_error("the handshake failed")
    code = code_for(authority, "agent", "n1")
    assert enroll(service.address, code, authority.path / "node")[0] == 0


@pytest.mark.parametrize("noise", [
    b"x" * 16, os.urandom(5000),
    # The code of another message, and the lengths of a bomb.
    wire.message("ack"), wire.frame(ENROL, b"\x80", header_len=2**32 - 1),
    wire.frame(ENROL, b"\x80", payload_len=2**26),
    wire.frame(ENROL, b"\x8a\xff\xff\xff\xdf\xff\xff\xff\xff"),
    wire.frame(ENROL, b"\x80"), wire.frame(ENROLLED, b"\x80")],
    ids=["prefix", "random", "other", "header", "payload", "map", "empty",
         "answer"])
def test_bytes_behind_the_handshake_that_are_no_request(  # noqa: F811
        authority, service, noise):
    with service.connect_tls() as s:
        s.sendall(noise)
        assert read_to_end(s)
    service.await_error("its request is malformed")
    code = code_for(authority, "agent", "n1")
    assert enroll(service.address, code, authority.path / "node")[0] == 0


def test_half_open_connections_delay_no_node_and_are_cut(  # noqa: F811
        authority, service):
    code = code_for(authority, "agent", "n1")
    silent = [service.connect() for _ in range(3)]
    shaken = [service.connect_tls() for _ in range(3)]
    shaken[0].sendall(wire.frame(ENROL, b"\x80" * 100)[:50])
    assert enroll(service.address, code, authority.path / "node")[0] == 0
    for s in silent + shaken:
        assert read_to_end(s)
        s.close()
    service.await_error("it took more than 10 s")
    assert service.err.read_text().count("it took more than 10 s") == 6


def test_connections_of_an_address_are_limited(service):
    opened = [service.connect() for _ in range(8)]
    with service.connect() as s:
        assert read_to_end(s)
    for s in opened:
        s.close()


def test_a_service_that_is_killed_leaves_no_files_at_the_node(  # noqa: F811
        authority, service):
    code = code_for(authority, "agent", "n1")
    node = authority.path / "node"
    service.process.send_signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        # The system accepts the connection, and nothing answers.
        done = pool.submit(enroll, service.address, code, node, "--timeout",
                           "60s")
        support.wait_for(lambda: has_bytes(service.port),
                         "the node has sent its hello")
        service.end(signal.SIGKILL)
        status, out, err = done.result(support.PATIENCE)
    assert (status, out) == (75, "") and "has closed the connection" in err
    assert not node.exists()


def has_bytes(port):
    """True if this port has a connection, accepted or not, with bytes that
    nobody has read: the other side knows that it is connected."""
    for line in open("/proc/net/tcp", encoding="ascii"):
        fields = line.split()
        if fields[1].endswith(f":{port:04X}") and fields[3] == "01" and \
                not fields[4].endswith(":00000000"):
            return True
    return False


class Cutter:
    """Passes bytes to a port, and of its answer the first ones only."""

    def __init__(self, port, most):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.target = port
        self.most = most
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        node, _ = self.listener.accept()
        service = socket.create_connection(("127.0.0.1", self.target))
        back = threading.Thread(target=self.pass_answer,
                                args=(service, node), daemon=True)
        back.start()
        try:
            while data := node.recv(65536):
                service.sendall(data)
        except OSError:
            pass
        back.join()
        node.close()
        service.close()

    def pass_answer(self, service, node):
        left = self.most
        try:
            while left > 0 and (data := service.recv(left)):
                node.sendall(data)
                left -= len(data)
            # An end as of a host that is gone.
            node.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                            struct.pack("ii", 1, 0))
            node.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
        self.thread.join(support.PATIENCE)


def test_an_answer_that_is_cut_anywhere_leaves_no_files(  # noqa: F811
        authority):
    failed = 0
    for most in (0, 1, 100, 1000, 1500, 2000, 2500, 3000, 10**6):
        node = authority.path / f"node{most}"
        code = code_for(authority, "agent", "n1", "--force")
        with Service(authority) as service, \
                Cutter(service.port, most) as cutter:
            status, _, err = enroll(f"127.0.0.1:{cutter.port}", code, node)
        if status == 0:
            assert sorted(p.name for p in node.iterdir()) == FILES
        else:
            assert status in (69, 75) and err, err
            assert not node.exists()
            failed += 1
    assert status == 0 and failed >= 5


def test_wrong_words_of_enrolment_are_usage_errors(authority):  # noqa: F811
    node = authority.path / "node"
    good = "agent.00000000." + "0" * 32 + "." + "0" * 64
    for code, text in ((good[:-1], "this is no code"), ("", "this is no code"),
                       ("worker" + good[5:], "this is no code"),
                       (good.upper(), "this is no code")):
        status, _, err = enroll("127.0.0.1:1", code, node)
        assert status == 2 and text in err, code
    status, _, err = enroll("127.0.0.1:x", good, node)
    assert status == 2 and "write HOST or HOST:PORT" in err
    # Without a port it is that of psctl pki serve.
    status, _, err = enroll("127.0.0.1", good, node)
    assert status != 2 and "write HOST" not in err, err
    status, _, err = psctl("--code", good, "enroll")
    assert status == 2 and "give --server HOST:PORT and --code CODE" in err
    for words in (("code", "agent"), ("code", "worker", "n1"),
                  ("serve", "now")):
        assert authority.pki(*words)[0] == 2
    status, _, err = authority.pki("serve", "--listen", "nothing")
    assert status == 2 and "--listen 'nothing': write HOST:PORT" in err
    assert not node.exists()


def test_an_address_without_a_service_is_named(authority):  # noqa: F811
    code = code_for(authority, "agent", "n1")
    held = support.reserve_port()
    address = f"127.0.0.1:{held.getsockname()[1]}"
    status, _, err = enroll(address, code, authority.path / "node")
    assert status == 69
    assert f"cannot reach psctl pki serve at {address}: Connection refused" \
        in err
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        status, _, err = enroll(address, code, authority.path / "node",
                                "--timeout", "300ms")
    assert status == 69 and "did not answer within 0.3 s" in err


def test_damaged_codes_are_named(authority):  # noqa: F811
    code_for(authority, "agent", "n1")
    codes = authority.dir / "codes"
    codes.write_text(codes.read_text()[:-2])
    status, _, err = authority.pki("code", "agent", "n2")
    assert status == 1
    assert "codes, line 1 is damaged; remove the file, after which no code " \
        "is valid" in err
    codes.unlink()
    code_for(authority, "agent", "n2")
