# SPDX-License-Identifier: Apache-2.0
"""Daemons that encrypt and authenticate their TCP connections, with
certificates of psctl pki."""
import datetime
import errno
import json
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time

import dialers
import pytest
import trio as support
import wire
from hostile import __file__ as hostile_program
from named import NamedAgent, fields_of
from neighbour import die_with_parent
from trio import Job, WorkerError, wait_for

KEYS = (("weight", "float32", 200_000), ("bias", "float32", 128),
        ("double", "float64", 1280), ("count", "int64", 70_000))
# All payloads go over TCP.
APART = ["network.same_host=off"]


def run(*words, stdin=None):
    done = subprocess.run([str(w) for w in words], capture_output=True,
                          text=True, check=False, input=stdin,
                          timeout=support.PATIENCE, env=support.clean_env())
    assert done.returncode == 0, done.stderr
    return done.stdout


class Authority:
    """An authority, and the folders of its nodes beside it."""

    def __init__(self, path, cluster="lab"):
        self.path = path
        path.mkdir()
        self.pki("init", "--cluster", cluster)

    def pki(self, *words):
        return run(support.program("psctl"), "--dir", self.path / "ca", "pki",
                   *words)

    def folder(self, name):
        return self.path / name

    def issue(self, role, name, folder=None):
        self.pki("issue", role, name, "--out", self.folder(folder or name))
        return self.folder(folder or name)

    def renew(self, role, name):
        self.pki("renew", role, name, "--out", self.folder(name))

    def revoke(self, name, folders):
        """Revokes `name`, and copies the list to the folders."""
        self.pki("revoke", name)
        for folder in folders:
            shutil.copy(self.path / "ca" / "crl.pem", self.folder(folder))

    def sign(self, uri, name, begins=-10, ends=10):
        """A certificate with any URI and validity, in days from now, made by
        the command openssl."""
        folder = self.folder(name)
        folder.mkdir()
        request(folder, uri)
        (folder / "index").touch()
        (folder / "ca").write_text(
            f"[ca]\ndefault_ca = x\n[x]\ndatabase = {folder}/index\n"
            f"new_certs_dir = {folder}\nrand_serial = yes\n"
            "default_md = sha256\npolicy = p\n[p]\ncommonName = optional\n")
        now = datetime.datetime.now(datetime.timezone.utc)
        begin, end = ((now + datetime.timedelta(days=days)).strftime(
            "%Y%m%d%H%M%SZ") for days in (begins, ends))
        run("openssl", "ca", "-batch", "-notext", "-config", folder / "ca",
            "-cert", self.path / "ca" / "ca.crt", "-keyfile",
            self.path / "ca" / "ca.key", "-startdate", begin, "-enddate", end,
            "-extfile", folder / "ext", "-in", folder / "agent.csr", "-out",
            folder / "agent.crt")
        return folder


def request(folder, uri):
    (folder / "ext").write_text(f"subjectAltName=URI:{uri}\n")
    run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt",
        "ec_paramgen_curve:P-256", "-nodes", "-keyout", folder / "agent.key",
        "-subj", "/CN=x", "-out", folder / "agent.csr")


def self_signed(folder, uri):
    folder.mkdir()
    request(folder, uri)
    run("openssl", "x509", "-req", "-in", folder / "agent.csr", "-signkey",
        folder / "agent.key", "-days", "10", "-extfile", folder / "ext",
        "-out", folder / "agent.crt")
    return folder


@pytest.fixture
def authority(tmp):
    return Authority(tmp / "pki")


def tls_options(authority, name, ktls="auto"):
    return [f"security.tls.ktls={ktls}",
            f"security.tls.directory={authority.folder(name)}"]


def encrypted(trio, authority, agents=2, servers=2, ktls="auto", **options):
    """A trio with certificates."""
    authority.issue("sched", "sched")
    for i in range(servers):
        authority.issue("server", f"ps{i}")
    for i in range(agents):
        authority.issue("agent", f"node{i}")
    options.setdefault("server_options", APART)
    options.setdefault("agent_options", APART)
    options.setdefault("daemon_options",
                       lambda name: tls_options(authority, name, ktls))
    t = trio(servers=servers, agents=agents, **options)
    t.tools = f"unix:{t.control}"
    return t


def train(t, pieces=3, between=None):
    """Results of every piece of a job, on every worker."""
    with Job(t, 4, PSKV_PARTITION_BYTES=65536) as job:
        keys = " ".join(str(job.key(*k)) for k in KEYS)
        results = []
        for piece in range(pieces):
            results.append(job.tell(
                lambda rank: f"rounds mixed 5 {piece * 100 + rank} 0 {keys}"))
            if between is not None:
                between(piece)
    assert all(len({tuple(r) for r in piece}) == 1 for piece in results)
    return [piece[0] for piece in results]


def test_a_backup_takes_over(trio, authority):
    """Servers know each other by their certificates, as agents know servers."""
    t = encrypted(trio, authority)
    with Job(t, 4, PSKV_PARTITION_BYTES=65536, PSKV_REPLICAS=2) as job:
        keys = " ".join(str(job.key(*k)) for k in KEYS)
        wait_for(lambda: t.sched.text().count("backup filled: server") == 2,
                 "two backups in the log of psched")
        job.tell(f"rounds mixed 5 1 0 {keys}")
        t.kill("ps1")
        results = job.tell(f"rounds mixed 5 2 0 {keys}")
    assert len({tuple(r) for r in results}) == 1
    t.daemons["ps0"].await_log("took over")


def client_context(folder=None, role="agent"):
    """With the certificate of a folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if folder is not None:
        context.load_cert_chain(folder / f"{role}.crt", folder / f"{role}.key")
    return context


def hello(port, folder=None, role="agent"):
    """Connects as a client with the certificate of a folder, and returns when
    the daemon has closed the connection."""
    context = client_context(folder, role)
    with socket.create_connection(("127.0.0.1", port), support.PATIENCE) as s:
        s.settimeout(support.PATIENCE)
        address = "%s:%d" % s.getsockname()
        try:
            with context.wrap_socket(s) as encrypted_socket:
                while encrypted_socket.recv(4096):
                    pass
        except (ssl.SSLError, ConnectionError):
            pass
    return address


def refused_line(daemon, peer):
    """The one line about the refused connection of this peer."""
    daemon.await_log(f"refused peer={peer} ")
    lines = [line for line in daemon.text().split("\n") if peer in line]
    assert len(lines) == 1, lines
    return lines[0]


# ------------------------------------------------------------------- training

@pytest.mark.parametrize("loops", [1, 2])
def test_a_job_over_tls_has_the_bits_of_one_without(trio, authority, loops):
    threads = APART + [f"network.loops={loops}"]
    plain = trio(servers=2, agents=2, server_options=threads,
                 agent_options=threads)
    expected = train(plain)
    t = encrypted(trio, authority, server_options=threads,
                  agent_options=threads)
    assert train(t) == expected
    for daemon in t.servers():
        since = len(daemon.text())
        daemon.state()
        text = daemon.await_log("state connection", since=since) and \
            daemon.text()[since:]
        assert "cipher=TLS_AES_" in text and "cipher=none" not in text, text
    t.await_empty()


def kernel_has_tls():
    tcp_ulp = 31
    with socket.socket() as s:
        try:
            s.setsockopt(socket.IPPROTO_TCP, tcp_ulp, b"tls")
        except OSError as e:
            return e.errno != errno.ENOENT  # It wants a connection.
    return True


@pytest.mark.parametrize("mode", ["auto", "on", "off"])
def test_the_kernel_protects_records_where_it_can(trio, authority, mode):
    t = encrypted(trio, authority, servers=1, agents=1, ktls=mode)
    train(t, pieces=1)
    for daemon in t.daemons.values():
        by = re.search("records of TLS are protected by (.*)", daemon.text())[1]
        assert by == "the kernel" or by.startswith("OpenSSL")
        node = next(n for n in t.ask("nodes")["nodes"]
                    if n["name"] == daemon.name)
        assert node["ktls"] == (by == "the kernel")
        assert node["ktls"] == (mode != "off" and kernel_has_tls())
        warned = "security.tls.ktls is on" in daemon.text()
        assert warned == (mode == "on" and not kernel_has_tls())


def test_names_and_cluster_are_those_of_the_certificate(trio, authority):
    t = encrypted(trio, authority, servers=1, agents=1)
    assert "started name sched cluster lab" in t.sched.text()
    assert {n["name"] for n in t.ask("nodes")["nodes"]} == \
        {"sched", "ps0", "node0"}
    for daemon in t.daemons.values():
        assert "certificate loaded ps://lab/" in daemon.text()


# ------------------------------------------------------------------- refusals

def test_other_peers_are_refused_with_peer_and_reason(trio, authority, tmp):
    t = encrypted(trio, authority, servers=1, agents=1)
    other = Authority(tmp / "others")
    revoked = authority.issue("agent", "revoked")
    authority.revoke("revoked", ["sched", "ps0", "node0"])
    t.sched.process.send_signal(signal.SIGHUP)
    t.sched.await_log("certificate reloaded")
    cases = [
        (t.sched, None, "agent", "it has no certificate"),
        (t.sched, self_signed(tmp / "self", "ps://lab/agent/node0"), "agent",
         "its certificate is self-signed (ps://lab/agent/node0)"),
        (t.sched, other.issue("agent", "node0"), "agent",
         "its certificate is of another authority (ps://lab/agent/node0)"),
        (t.sched, authority.sign("ps://lab/agent/node0", "old", ends=-1),
         "agent", "its certificate has expired: it ended 20.*Z, and this host's "
         "clock has 20.*Z; is the clock right? (ps://lab/agent/node0)"),
        (t.sched, revoked, "agent",
         "its certificate is revoked (ps://lab/agent/revoked)"),
        (t.sched, authority.sign("ps://other/agent/node0", "other"), "agent",
         "its certificate is of cluster 'other', not 'lab' "
         "(ps://other/agent/node0)"),
        (t.sched, authority.sign("https://lab.example/node0", "nameless"),
         "agent", "its certificate has not exactly one name of the form "
         "URI:ps://CLUSTER/ROLE/NAME"),
        (t.servers()[0], authority.issue("ctl", "alice"), "ctl",
         "its certificate is of role ctl, not server or agent (ps://lab/ctl/alice)"),
        (t.servers()[0], authority.folder("sched"), "sched",
         "its certificate is of role sched, not server or agent (ps://lab/sched/sched)"),
    ]
    for daemon, folder, role, reason in cases:
        peer = hello(daemon.port, folder, role)
        form = re.escape(f'reason="{reason}"').replace(r"\.\*", ".*")
        assert re.search(form, refused_line(daemon, peer))
    with socket.create_connection(("127.0.0.1", t.port)) as s:
        peer = "%s:%d" % s.getsockname()
        s.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert "does not use TLS" in refused_line(t.sched, peer)
    assert train(t, pieces=1)


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_a_client_of_a_tunnel_to_loopback_is_no_member(trio, authority,
                                                         address):
    """A tunnel or proxy on a daemon's host connects from loopback for each of
    its clients."""
    t = encrypted(trio, authority, servers=1, agents=1,
                  daemon_options=lambda name: tls_options(authority, name) + (
                      [] if name.startswith("node")
                      else [f"listen.address={address}"]))
    hellos = [(t.sched, wire.hello(role, name="stranger", cluster="lab"))
              for role in ("server", "agent", "ctl")]
    hellos.append((t.servers()[0],
                   wire.hello("agent", name="node0", cluster="lab")))
    for daemon, hello_frame in hellos:
        with wire.connect(daemon.port) as s:
            peer = "%s:%d" % s.getsockname()
            s.sendall(hello_frame)
            code, data, _ = wire.read_frame(s)
            assert code == wire.MESSAGES["reject"]["code"]
            assert "connections here are encrypted" in \
                fields_of("reject", data)["text"]
            assert "does not use TLS" in refused_line(daemon, peer)
    assert {n["name"] for n in t.ask("nodes")["nodes"]} == \
        {"sched", "ps0", "node0"}


def test_a_daemon_without_a_certificate_is_told_so(trio, authority, tmp):
    t = encrypted(trio, authority, servers=1, agents=1)
    agent = support.Daemon("plain", [
        support.program("psworker-agent"), "-c", "/dev/null", "--log-format",
        "text", "--sched", t.endpoint, "-o", "cluster.name=lab", "-o",
        f"client.socket={tmp}/plain.sock"], tmp)
    try:
        agent.await_log("the scheduler rejected this daemon: connections here "
                        "are encrypted: ")
        assert "security.tls.directory" in agent.text()
    finally:
        agent.stop(support.Deadline())


@pytest.mark.parametrize("role, reason", [
    ("agent", "its certificate is of role agent, not sched"),
    ("self", "its certificate is self-signed"),
    (None, "it closed the connection during the handshake of TLS")])
def test_an_agent_refuses_a_scheduler_that_is_none(authority, tmp, role,
                                                   reason):
    folder = authority.issue("agent", "node0")
    presented = folder if role == "agent" else self_signed(
        tmp / "self", "ps://lab/sched/sched")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(presented / "agent.crt", presented / "agent.key")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(support.PATIENCE)
        agent = support.Daemon("node0", [
            support.program("psworker-agent"), "-c", "/dev/null",
            "--log-format", "text", "--sched",
            "127.0.0.1:%d" % server.getsockname()[1], "-o",
            f"client.socket={tmp}/agent.sock",
            *[w for o in tls_options(authority, "node0") for w in ("-o", o)]],
            tmp)
        try:
            connection, _ = server.accept()
            connection.settimeout(support.PATIENCE)
            with connection:
                if role is not None:
                    try:
                        context.wrap_socket(connection, server_side=True)
                    except (ssl.SSLError, ConnectionError):
                        pass
            agent.await_log(reason)
            assert "scheduler at 127.0.0.1:" in agent.text()
        finally:
            agent.stop(support.Deadline())


def test_a_member_cannot_take_the_name_of_another(trio, authority):
    """An agent says the name of its own certificate, whatever its options
    say."""
    authority.issue("agent", "node1")
    t = encrypted(trio, authority, servers=1, agents=1)
    done = subprocess.run(
        [support.program("psworker-agent"), "-c", "/dev/null", "--sched",
         t.endpoint, "-o", f"client.socket={t.folder}/x.sock", "-o",
         "node.name=node0", *[w for o in tls_options(authority, "node1")
                              for w in ("-o", o)]],
        capture_output=True, text=True, check=False,
        timeout=support.PATIENCE, env=support.clean_env())
    assert done.returncode == 78
    assert "node.name: node0, and the certificate is of 'node1'" in done.stderr


def test_an_agent_cannot_act_for_another_node(trio, authority):
    """The scheduler states the name of a node's agent. With all numbers of that
    agent, another one has neither a session of its own nor its session."""
    t = encrypted(trio, authority, servers=1, agents=0)
    server = t.servers()[0]
    victim, liar = (
        client_context(authority.issue("agent", name))
        for name in ("victim", "liar"))
    agent = NamedAgent(t.port, "victim", cluster="lab", context=victim)

    def answer(context, name):
        with context.wrap_socket(wire.connect(server.port)) as s:
            peer = "%s:%d" % s.getsockname()
            s.sendall(agent.hello(name=name))
            code, data, _ = wire.read_frame(s)
            [kind] = [n for n, m in wire.MESSAGES.items() if m["code"] == code]
            return peer, kind, fields_of(kind, data)

    # Without a session of the node, and with one.
    for as_itself in (
            f"node {agent.node} is 'victim', not 'liar'",
            f"its certificate is of 'liar', and node {agent.node} is "
            "'victim'"):
        for name, reason in (
                ("liar", as_itself),
                ("victim", "its certificate is of 'liar', not 'victim'")):
            peer, kind, fields = answer(liar, name)
            assert kind == "reject" and fields["text"] == reason, fields
            server.await_log(f"connection of {peer} closed before its "
                             f"handshake: {reason}")
        assert answer(victim, "victim")[1] == "welcome"
    agent.close()
    t.await_empty()


# ---------------------------------------------------------------------- psctl

def psctl(*words, **env):
    """(exit code, standard output, standard error)"""
    done = subprocess.run([support.program("psctl"), *map(str, words)],
                          capture_output=True, text=True, check=False,
                          timeout=support.PATIENCE,
                          env=support.clean_env(**env))
    return done.returncode, done.stdout, done.stderr


def test_psctl_needs_a_certificate_over_tcp(trio, authority, tmp):
    t = encrypted(trio, authority, servers=1, agents=1)
    operator = authority.issue("ctl", "alice")
    tcp = ("-e", t.endpoint)
    code, out, err = psctl("--tls", operator, *tcp, "nodes")
    assert code == 0 and "node0" in out, err
    code, out, err = psctl(*tcp, "nodes", PSKV_TLS=operator)
    assert code == 0 and "node0" in out, err
    # Changes go over the Unix socket of psched, which knows the user.
    code, _, err = psctl("--tls", operator, *tcp, "jobs", "cancel", "none")
    assert code == 4, err
    code, _, err = psctl(*tcp, "nodes")
    assert code == 77 and "connections here are encrypted: psctl needs " \
        "--tls FOLDER" in err
    foreign = Authority(tmp / "others").issue("ctl", "alice")
    code, _, err = psctl("--tls", foreign, *tcp, "nodes")
    assert code == 69 and "its certificate is of another authority" in err
    authority.revoke("alice", ["sched"])
    reload(t.sched)
    code, _, err = psctl("--tls", operator, *tcp, "nodes")
    assert code == 69 and "it refuses this side: certificate revoked" in err
    code, _, err = psctl("--tls", tmp / "none", *tcp, "nodes")
    assert code == 69 and "psctl pki issue ctl NAME" in err


# --------------------------------------------------------------------- reload

def reload(daemon, word="certificate reloaded"):
    since = len(daemon.text())
    daemon.process.send_signal(signal.SIGHUP)
    daemon.await_log(word, since=since)


def test_certificates_are_exchanged_during_a_job(trio, authority):
    expected = train(trio(servers=2, agents=2, server_options=APART,
                          agent_options=APART))
    t = encrypted(trio, authority)
    roles = {"sched": "sched", "ps0": "server", "ps1": "server",
             "node0": "agent", "node1": "agent"}

    def exchange(piece):
        if piece == 0:
            for name, role in roles.items():
                authority.renew(role, name)
                reload(t.daemons[name])

    assert train(t, between=exchange) == expected
    for daemon in t.daemons.values():
        assert "connection closed peer=" not in daemon.text()


def test_the_authority_is_exchanged_during_a_job(trio, authority, tmp):
    """By the steps of docs/pki.md: the last one cuts connections with
    certificates of the former authority, and their links resume."""
    expected = train(trio(servers=2, agents=2, server_options=APART,
                          agent_options=APART), pieces=4)
    t = encrypted(trio, authority)
    other = Authority(tmp / "other")
    roles = {"sched": "sched", "ps0": "server", "ps1": "server",
             "node0": "agent", "node1": "agent"}
    issued = {name: other.issue(role, name) for name, role in roles.items()}

    def exchange(piece):
        for name, role in roles.items():
            folder = authority.folder(name)
            if piece == 0:
                for file in ("ca.crt", "crl.pem"):
                    with open(folder / file, "ab") as out:
                        out.write((issued[name] / file).read_bytes())
            elif piece == 1:
                for file in (f"{role}.crt", f"{role}.key"):
                    shutil.copy(issued[name] / file, folder)
            elif piece == 2:
                for file in ("ca.crt", "crl.pem"):
                    shutil.copy(issued[name] / file, folder)
            if piece < 3:
                reload(t.daemons[name])

    assert train(t, pieces=4, between=exchange) == expected
    former = authority.issue("agent", "former")
    refused_line(t.servers()[0], hello(t.servers()[0].port, former))
    t.await_empty()


def test_a_revoked_agent_is_cut_and_the_others_go_on(trio, authority):
    t = encrypted(trio, authority, servers=1, agents=2,
                  options=[
                      f"heartbeat.suspect_after={support.limit(500):.0f}ms",
                      f"heartbeat.dead_after={support.limit(2):.0f}s"])
    with Job(t, 1, "stays", servers=1) as job:
        key = job.key("k", "float32", 1000)
        assert job.tell(f"rounds count 2 1 0 {key}")
        authority.revoke("node1", ["sched", "ps0", "node0"])
        t.sched.process.send_signal(signal.SIGHUP)
        wait_for(lambda: 'reason="its certificate is revoked '
                 '(ps://lab/agent/node1)"' in t.sched.text(),
                 "the cut of the revoked agent", seconds=support.limit(5))
        # Its new connections are refused.
        t.sched.await_log("connection refused peer=127.0.0.1:")
        assert job.tell(f"rounds count 2 2 0 {key}")
    reload(t.servers()[0])
    wait_for(lambda: [n["state"] for n in t.ask("nodes")["nodes"]
                      if n["name"] == "node1"] == ["gone"],
             "the end of the revoked agent", seconds=support.limit(60))
    assert re.search("GONE role agent name node1 .*: not heard for .*; its "
                     "certificate is revoked$", t.sched.text(), re.M)


def test_a_reload_with_bad_files_changes_nothing(trio, authority):
    t = encrypted(trio, authority, servers=1, agents=1)
    folder = authority.folder("ps0")
    server = t.servers()[0]
    (folder / "server.key").rename(folder / "kept")
    reload(server, "certificates not reloaded, the old ones stay")
    assert "server.key: cannot be read" in server.text()
    (folder / "kept").rename(folder / "server.key")
    (folder / "crl.pem").rename(folder / "kept")
    reload(server, "certificates not reloaded, the old ones stay")
    assert "there is no list of revoked certificates any more" in server.text()
    (folder / "kept").rename(folder / "crl.pem")
    reload(server)
    assert train(t, pieces=1)


def test_an_older_list_of_revoked_certificates_is_not_taken(trio, authority):
    """Nor what else is new in the folder, until the newest list is there."""
    t = encrypted(trio, authority, servers=1, agents=1)
    folder = authority.folder("ps0")
    server = t.servers()[0]
    shutil.copy(folder / "crl.pem", folder / "older")
    visitor = authority.issue("agent", "visitor")
    authority.revoke("visitor", ["ps0"])
    reload(server)
    (folder / "older").replace(folder / "crl.pem")
    reload(server, "certificates not reloaded, the old ones stay")
    assert re.search("authority 'lab' is older than that in use: number [0-9]+ "
                     "of .*, in use number [0-9]+ of .*; copy the authority's "
                     "crl.pem again", server.text())
    # The newer one is in use still.
    peer = hello(server.port, visitor)
    assert 'reason="its certificate is revoked' in refused_line(server, peer)
    shutil.copy(authority.path / "ca" / "crl.pem", folder)
    reload(server)


def test_a_certificate_that_ends_soon_is_reported(trio, authority):
    t = encrypted(trio, authority, servers=1, agents=1)
    for node in t.ask("nodes")["nodes"]:
        wait_for(lambda name=node["name"]: [
            n for n in t.ask("nodes")["nodes"] if n["name"] == name and
            n["certificate_ends"] > 0 and not n["certificate_is_expiring"]],
                 f"the certificate of {node['name']}")
    assert t.psctl("status")[0] == 0
    folder = authority.folder("node0")
    shutil.copytree(folder, authority.folder("former"))
    late = authority.sign("ps://lab/agent/node0", "late", -345, 20.5)
    for file in ("agent.crt", "agent.key"):
        shutil.copy(late / file, folder / file)
    agent = t.agents()[0]
    reload(agent)
    agent.await_log("certificate ends in 20 days, at ")
    assert "'psctl pki renew agent node0'" in agent.text()
    wait_for(lambda: t.psctl("status")[0] == 3, "the warning of psctl status")
    assert "certificate of agent node0 ends soon" in t.psctl("status")[1]
    assert " 20d" in t.psctl("nodes")[1]
    for file in ("agent.crt", "agent.key"):
        shutil.copy(authority.folder("former") / file, folder / file)
    reload(agent)
    wait_for(lambda: t.psctl("status")[0] == 0, "the end of the warning")


# ------------------------------------------------------------------------- end

# Factor of lives that a test waits for: daemons and jobs with sanitizers take
# twice as long to start, not five times.
BRIEF = min(support.SLOW, 2)


def brief_trio(trio, authority, seconds, agents):
    """A trio whose last agent has a certificate of some seconds; and its
    end, as time.time()."""
    for role, name in (("sched", "sched"), ("server", "ps0"),
                       *(("agent", f"node{i}") for i in range(agents - 1))):
        authority.issue(role, name)
    end = time.time() + seconds
    name = f"node{agents - 1}"
    folder = authority.sign(f"ps://lab/agent/{name}", name,
                            ends=seconds / 86400)
    for file in ("ca.crt", "crl.pem"):
        shutil.copy(authority.folder("sched") / file, folder / file)
    t = trio(servers=1, agents=agents, server_options=APART,
             agent_options=APART,
             options=[f"heartbeat.suspect_after={support.limit(500):.0f}ms",
                      f"heartbeat.dead_after={support.limit(2):.0f}s"],
             daemon_options=lambda n: tls_options(authority, n))
    t.tools = f"unix:{t.control}"
    return t, end


def await_cut(daemon, name, end):
    """The cut at the end of the certificate, and not before."""
    daemon.await_log('reason="its certificate has expired '
                     f'(ps://lab/agent/{name})"',
                     seconds=max(0, end - time.time()) + support.PATIENCE)
    assert time.time() >= end - 1


ROUNDS = "rounds mixed 5 {} 0 {}"


def stay(t, between=lambda: None):
    """Results of a job on the first agent, with something in its middle."""
    with Job(t, 1, "stays", servers=1) as job:
        keys = " ".join(str(job.key(*k)) for k in KEYS)
        first = job.tell(ROUNDS.format(1, keys))
        between()
        return first, job.tell(ROUNDS.format(2, keys))


def test_a_certificate_ends_in_the_middle_of_a_job(trio, authority):
    """The jobs of its node end with this reason; the others have the bits that
    they have without."""
    expected = stay(trio(servers=1, agents=1, server_options=APART,
                         agent_options=APART))
    t, end = brief_trio(trio, authority, 10 * BRIEF, agents=2)
    job = Job(t, 2, "ends", servers=1, PSKV_ON_LOSS="fail",
              PSKV_OP_TIMEOUT=f"{support.limit(2) + 10 * BRIEF:.0f}s")
    key = job.key("k", "float32", 1000)
    assert job.tell(f"rounds count 2 1 0 {key}")
    assert time.time() < end, "this machine is too slow for this test"

    def await_end():
        for daemon in (t.sched, t.servers()[0]):
            await_cut(daemon, "node1", end)
        with pytest.raises(WorkerError) as failed:
            job[0].ask(f"rounds count 2 1 0 {key}")
        assert "agent node1 is gone: not heard for " in str(failed.value)
        assert "its certificate has expired" in str(failed.value)
        # The node itself has the reason of its peers only.
        with pytest.raises(WorkerError) as waited:
            job[1].ask(f"rounds count 2 1 0 {key}")
        assert "certificate expired" in str(waited.value)

    assert stay(t, await_end) == expected
    for worker in job:
        worker.kill()
        worker.end()


def test_a_job_goes_on_with_a_successor_of_its_certificate(trio, authority):
    """The connection of the former one ends; that of its successor resumes."""
    expected = stay(trio(servers=1, agents=1, server_options=APART,
                         agent_options=APART))
    t, end = brief_trio(trio, authority, 8 * BRIEF, agents=1)

    def renew():
        folder = authority.folder("node0")
        late = authority.sign("ps://lab/agent/node0", "late")
        for file in ("agent.crt", "agent.key"):
            shutil.copy(late / file, folder / file)
        reload(t.agents()[0])
        for daemon in (t.sched, t.servers()[0]):
            await_cut(daemon, "node0", end)

    assert stay(t, renew) == expected
    assert "refused" not in t.sched.text()
    t.await_empty()


# -------------------------------------------------------------------- options

def check(program, *options, pass_fds=()):
    """(exit code, standard error) of --check-config."""
    argv = [support.program(program), "-c", "/dev/null", "--check-config"]
    done = subprocess.run(argv + [w for o in options for w in ("-o", o)],
                          capture_output=True, text=True, check=False,
                          timeout=support.PATIENCE, pass_fds=pass_fds,
                          env=support.clean_env())
    return done.returncode, done.stderr


def test_an_address_of_the_network_needs_only_a_certificate(authority):
    folder = authority.issue("server", "ps0")
    for options in ((f"security.tls.directory={folder}",),
                    (f"security.tls.ca={folder}/ca.crt",
                     f"security.tls.cert={folder}/server.crt",
                     f"security.tls.key={folder}/server.key",
                     f"security.tls.crl={folder}/crl.pem")):
        assert check("psserver", "listen.address=10.1.2.3", *options) == (0,
                                                                          "")
        code, err = check("psserver", "listen.address=10.1.2.3",
                          "security.tls.enabled=off", *options)
        assert code == 78 and "connections are not encrypted" in err


@pytest.mark.parametrize("spoil, options, text", [
    (None, ("security.tls.enabled=on",), "there is no certificate"),
    (lambda f: (f / "server.crt").unlink(), ("security.tls.directory={}",),
     "psctl pki issue server NAME"),
    (lambda f: (f / "server.key").chmod(0o644), ("security.tls.directory={}",),
     "chmod 600"),
    (lambda f: (f / "ca.crt").chmod(0o666), ("security.tls.directory={}",),
     "chmod go-w"),
    (lambda f: (f / "ca.crt").write_text("?"), ("security.tls.directory={}",),
     "no PEM text"),
    (None, ("security.tls.ca={}/ca.crt",), "are needed together"),
    (None, ("security.tls.directory={}", "security.tls.fd=3"),
     "set one or the others"),
    (None, ("security.tls.fd=999",), "descriptor 999 cannot be read"),
    (None, ("security.tls.directory={}", "cluster.name=other"),
     "the certificate is of cluster 'lab'"),
    (None, ("security.tls.directory={}", "node.name=ps1"),
     "the certificate is of 'ps0'"),
    (None, ("security.tls.cert={}/server.crt", "security.tls.directory={}",
            "security.tls.crl={}/none.pem"), "none.pem: cannot be read")])
def test_certificates_that_cannot_be_used_are_named(authority, spoil, options,
                                                    text):
    folder = authority.issue("server", "ps0")
    if spoil is not None:
        spoil(folder)
    code, err = check("psserver", *[o.format(folder) for o in options])
    assert code == 78
    assert text in err and err.count("\n") == 1, err
    assert err.startswith("command line: security.tls") or \
        err.startswith("command line: cluster.name") or \
        err.startswith("command line: node.name"), err


def test_a_certificate_of_another_role_is_refused(authority):
    folder = authority.issue("agent", "node0")
    code, err = check("psserver", f"security.tls.ca={folder}/ca.crt",
                      f"security.tls.cert={folder}/agent.crt",
                      f"security.tls.key={folder}/agent.key")
    assert code == 78
    assert "of role agent, and psserver needs one of role server" in err


def test_a_certificate_comes_through_a_descriptor(authority, tmp):
    folder = authority.issue("server", "ps0")
    text = "".join((folder / name).read_text()
                   for name in ("server.key", "server.crt", "ca.crt"))
    for content, expected in ((text, 0), ("?", 78), ("", 78)):
        path = tmp / "text"
        path.write_text(content)
        with open(path, "rb") as file:
            code, err = check("psserver", "listen.address=10.1.2.3",
                              f"security.tls.fd={file.fileno()}",
                              pass_fds=[file.fileno()])
        assert code == expected, err
        assert (err == "") == (expected == 0)


def test_callers_that_are_no_members_are_cut(trio, authority, tmp):
    """Each within its limit, while a job goes on with the same bits."""
    folder = Authority(tmp / "others").issue("agent", "node0")
    t = encrypted(trio, authority, servers=1, agents=1,
                  options=["limits.handshake=1s"],
                  server_options=APART + ["limits.handshake=1s"])
    expected = train(t)
    log = {d.name: d.log.stat().st_size for d in t.daemons.values()}
    with subprocess.Popen(
            [sys.executable, hostile_program, "dialers", "--socket",
             t.socket(0), "--sched", str(t.port), "--server",
             str(t.servers()[0].port), "--seconds", str(4 * support.SLOW),
             "--tls", str(folder), "--connections", "300"],
            stdout=subprocess.PIPE, text=True,
            preexec_fn=die_with_parent) as peer:
        assert train(t) == expected
        said = json.loads(peer.communicate(timeout=support.PATIENCE)[0])
    assert peer.returncode == 0, said
    for kind in dialers.KINDS:
        assert 0 < said[kind] < support.limit(3), said
    for d in t.daemons.values():
        assert d.alive(), d.text()[-4000:]
        assert d.log.stat().st_size - log[d.name] < 64 << 10, d.name
