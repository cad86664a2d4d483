# SPDX-License-Identifier: Apache-2.0
"""Jobs of pslaunch whose connections are encrypted, by an authority that the
job has in memory: what strangers get, and that no key is left anywhere."""
import base64
import fcntl
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import time
import uuid
from pathlib import Path

import pytest
import trio as support
from launched import SHELL, Running, argv, launch, marked
from sshd import HOSTS, SSHD, Sshd
from trio import limit, SLOW, wait_for

WORKER = str(support.BUILD / "tests/integration/integration_worker")
DAEMONS = ("psched", "psserver", "psworker-agent")
# One of each daemon takes part in a round, and the job waits for the test.
TRAIN = (f"(printf 'open\\nkey w float32 1000\\nrounds count 3 1 0 0\\n'; "
         f"cat \"$PSKV_TEST_GO\"; echo close) | {WORKER}")
SEALS = (fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW |
         fcntl.F_SEAL_WRITE)
needs_sshd = pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None,
                                reason="there is no sshd")

# In place of a daemon's program: notes the descriptor's content, backwards, so
# that a search does not find the note, and becomes the daemon.
PEEK = """#!/usr/bin/python3 -S
import fcntl, os, sys
words = sys.argv[1:]
fds = [int(w.split("=")[1]) for w in words if w.startswith("security.tls.fd=")]
assert len(fds) == 1
text = os.pread(fds[0], 1 << 20, 0)
with open("{seen}/" + str(os.getpid()), "wb") as note:
    note.write(str(fcntl.fcntl(fds[0], fcntl.F_GET_SEALS)).encode() + b" " +
               text[::-1])
os.execv("{real}", ["{real}"] + words)
"""


class Member:
    """A daemon of a job, by what it was given."""

    def __init__(self, note):
        self.pid = int(note.name)
        seals, text = note.read_bytes().split(b" ", 1)
        self.seals = int(seals)
        blocks = re.findall(rb"-----BEGIN ([A-Z ]+)-----\n(.*?)-----END",
                            text[::-1], re.S)
        assert [kind for kind, _ in blocks] == \
            [b"PRIVATE KEY", b"CERTIFICATE", b"CERTIFICATE"]
        self.key_line = blocks[0][1].split(b"\n")[0]
        der = base64.b64decode(blocks[0][1])
        # SEC 1, section C.4: the secret number is an octet string of 32 bytes.
        at = der.index(b"\x02\x01\x01\x04\x20") + 5
        self.secret = der[at:at + 32]
        self.certificate, self.authority = blocks[1][1], blocks[2][1]

    def traces(self):
        """The key as text, and as a number in either order of bytes."""
        return self.key_line, self.secret, self.secret[::-1]


def peeking(tmp):
    """A folder for PSKV_BINDIR, and the members of the job that used it."""
    seen, programs = tmp / "seen", tmp / "programs"
    seen.mkdir()
    programs.mkdir()
    for name in DAEMONS:
        path = programs / name
        path.write_text(PEEK.format(seen=seen, real=support.program(name)))
        path.chmod(0o755)
    return programs, lambda: [Member(note) for note in seen.iterdir()]


@pytest.fixture
def go(tmp):
    """Ends the wait of workers that have trained."""
    path = tmp / "go"
    os.mkfifo(path)

    class Go:
        env = {"PSKV_TEST_GO": str(path)}

        def __init__(self):
            # Open for both: a worker's end of it does not come before.
            self.fd = os.open(path, os.O_RDWR)

        def __call__(self):
            path.unlink()
            os.close(self.fd)
    return Go()


def await_trained(run, workers):
    wait_for(lambda: len(re.findall(rb" ok [0-9a-f]{16}\n", run.text["out"]))
             == workers, "the rounds of all workers")


def files_since(begin, *folders):
    """Other tests make and remove files there meanwhile."""
    for folder in folders:
        for path in (Path(at) / name for at, _, names in os.walk(folder)
                     for name in names):
            try:
                s = path.lstat()
                if stat.S_ISREG(s.st_mode) and s.st_mtime >= begin - 1 and \
                        s.st_size < 1 << 24:
                    yield path, path.read_bytes()
            except OSError:
                continue


def memory_of(pid):
    """The bytes that a process can write."""
    found = []
    with open(f"/proc/{pid}/maps") as maps, \
            open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                begin, end = (int(n, 16) for n in span.split("-"))
                memory.seek(begin)
                found.append(memory.read(end - begin))
    return b"".join(found)


def files_of(pid):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:
            continue  # Closed meanwhile.


def assert_no_trace(members, mark, begin, folder):
    """Neither files, nor arguments, environments and open memory files of the
    job's processes have a key. The keeper of a server has the memory file, for
    the next process."""
    traces = [t for m in members for t in m.traces()]
    for path, text in files_since(begin, "/tmp", "/dev/shm", "/var/tmp",
                                  folder):
        assert not any(t in text for t in traces), path
    for pid, command in marked(mark):
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            opened = list(files_of(pid))
        except OSError:
            continue  # It has ended.
        assert b"-----BEGIN" not in environ + command
        assert not any(t in environ + command for t in traces)
        held = [path for path in opened if "pskv-certificate" in path]
        assert len(held) == (name == "psserver-keep"), (pid, name, command)


def assert_not_in_memory(members, mark, count):
    """Of the processes of pslaunch."""
    own = [pid for pid, command in marked(mark)
           if command.startswith(argv()[0].encode())]
    assert len(own) == count
    if SLOW > 1:
        return  # A sanitizer maps terabytes, and keeps what was freed.
    for pid in own:
        memory = memory_of(pid)
        assert not any(t in memory for m in members for t in m.traces()), pid


# ----------------------------------------------------------------- on one host

def test_no_key_is_left_anywhere(tmp, go):
    """Each daemon has a key of its own; after the start it is nowhere else, not
    even in the memory of pslaunch."""
    programs, members = peeking(tmp)
    name = f"job-{uuid.uuid4().hex[:12]}"
    folder = tmp / "temporary"
    folder.mkdir()
    begin = time.time()
    with Running("-n", "2", "-s", "2", "--nodes", "2", "--private", "--tls",
                 "on", "--name", name, "--log-level", "debug", "--output-dir",
                 str(tmp / "logs"), *SHELL, TRAIN,
                 env={**go.env, "TMPDIR": str(folder),
                      "PSKV_BINDIR": str(programs)}) as r:
        await_trained(r, 2)
        found = members()
        assert len(found) == 5
        assert all(m.seals & SEALS == SEALS for m in found)
        assert len({m.secret for m in found}) == 5
        assert len({m.certificate for m in found}) == 5
        assert len({m.authority for m in found}) == 1
        assert_no_trace(found, r.mark, begin, folder)
        assert_not_in_memory(found, r.mark, 3)
        # The search finds what is there: a daemon has its own key; the keeper
        # of a server has not.
        assert SLOW > 1 or any(t in memory_of(m.pid) for m in found
                               for t in m.traces())
        go()
        assert r.wait() == 0
        output = r.text["out"] + r.text["err"]
        assert not any(m.key_line in output for m in found)
        assert f"certificate loaded ps://{name}/sched/psched".encode() in output
        assert list(folder.iterdir()) == []
        assert_no_trace(found, r.mark, begin, folder)


def test_nodes_show_their_certificates_and_strangers_are_refused(tmp, go):
    """Peers without TLS, without a certificate, and with one of another
    authority that has the same names."""
    with Running("-n", "2", "-s", "1", "--private", "--tls", "on", "--name",
                 "lab", *SHELL, TRAIN, env=go.env) as r:
        await_trained(r, 2)
        at = re.search(rb"psched at (127\.0\.0\.1):(\d+)", r.text["err"])
        local = re.search(rb"psctl -e (unix:\S+/psched\.sock) reaches",
                          r.text["err"])
        nodes = psctl("-e", local[1].decode(), "nodes").stdout
        assert certified(nodes) == ["psched", "ps0", "node0"], nodes
        assert_refuses_strangers(tmp, "127.0.0.1", int(at[2]), r)
        server = re.search(r"server +ps0 +\S+ +127\.0\.0\.1:(\d+)", nodes)
        assert_refuses_strangers(tmp / "again", "127.0.0.1", int(server[1]), r)
        go()
        assert r.wait() == 0


def psctl(*words):
    return subprocess.run([support.program("psctl"), *map(str, words)],
                          capture_output=True, text=True, check=False,
                          timeout=support.PATIENCE, env=support.clean_env())


def certified(nodes):
    """Names of the members that have a certificate for a year, whose last day
    has begun or not."""
    return [line.split()[1] for line in nodes.split("\n")
            if line.split()[-2:-1] in (["365d"], ["364d"])]


def assert_refuses_strangers(folder, address, port, run):
    folder.mkdir(exist_ok=True)
    for words in (("pki", "init", "--cluster", "lab"),
                  ("pki", "issue", "ctl", "me", "--out", folder / "me"),
                  ("pki", "issue", "agent", "node0", "--out", folder / "me")):
        done = psctl("--dir", folder / "ca", *words)
        assert done.returncode == 0, done.stderr
    refused = run.text["err"].count(b"connection refused")
    done = psctl("-e", f"{address}:{port}", "nodes")
    assert done.returncode == 77 and "encrypted" in done.stderr, done.stderr
    done = psctl("-e", f"{address}:{port}", "--tls", folder / "me", "nodes")
    assert done.returncode == 69 and "certificate" in done.stderr, done.stderr
    for role in (None, "agent"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if role is not None:
            context.load_cert_chain(folder / "me" / f"{role}.crt",
                                    folder / "me" / f"{role}.key")
        with pytest.raises(OSError), \
                socket.create_connection((address, port)) as s:
            s.settimeout(support.PATIENCE)
            with context.wrap_socket(s) as t:
                # In TLS 1.3 the refusal comes after the client's last word.
                if t.recv(1) == b"":
                    raise OSError("closed")
    run.await_text(b"connection refused", refused + 4, name="err")
    assert b"it does not use TLS" in run.text["err"]


def test_one_host_is_plain_unless_told():
    """The default, the variable, the option above the variable."""
    shown = {}
    for name, words, env in (
            ("default", (), {}), ("variable", (), {"PSKV_LAUNCH_TLS": "on"}),
            ("option", ("--tls", "auto"), {"PSKV_LAUNCH_TLS": "on"}),
            ("hosts", ("--hosts", "a,b"), {}),
            ("lab", ("--hosts", "a,b", "--insecure-network"),
             {"PSKV_LAUNCH_TLS": "on"})):
        code, out, err = launch("-n", "2", "-s", "1", "--private", "--dry-run",
                                *words, "true", env=env)
        assert code == 0 and err == "", err
        shown[name] = "TLS 1.3" in out
        assert shown[name] == ("/server/ps0" in out)
        assert shown[name] != ("neither encrypted nor authenticated" in out)
        assert "-----BEGIN" not in out
    assert shown == {"default": False, "variable": True, "option": False,
                     "hosts": True, "lab": False}


def test_a_wrong_variable_is_named():
    code, _, err = launch("-n", "1", "--private", "true",
                          env={"PSKV_LAUNCH_TLS": "yes"})
    assert code == 2
    assert err == ("pslaunch: PSKV_LAUNCH_TLS 'yes': give auto, on or off\n")


def test_names_that_certificates_cannot_have():
    code, out, err = launch("-n", "1", "-s", "1", "--private", "--tls", "on",
                            "--name", "two words", "echo", "trained")
    assert code == 0 and "trained" in out, err


# ------------------------------------------------------------ on several hosts

def recording(tmp, command):
    """A command like ssh that copies both directions of its connection."""
    path = tmp / "recording"
    path.write_text(f"#!/bin/bash\ntee -a {tmp}/in | {command} \"$@\" | "
                    f"tee -a {tmp}/out\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def peeking_sshd(tmp):
    """With the members of a job that runs there."""
    programs, members = peeking(tmp)
    folder = tmp / "sshd"
    folder.mkdir()
    one = Sshd(folder, mark=f"mark-{uuid.uuid4().hex}", PSKV_BINDIR=programs)
    one.members = members
    yield one
    one.close()


@needs_sshd
def test_keys_stay_on_their_hosts(peeking_sshd, tmp, go):
    """Certificates go through the connection of ssh; keys do not, so it matters
    little how well mpirun or srun protect theirs."""
    sshd = peeking_sshd
    begin = time.time()
    with Running("-n", "2", "-s", "2", "--hosts", ",".join(HOSTS),
                 "--env", "PSKV_TEST_GO", *SHELL, TRAIN, mark=sshd.mark,
                 env={"PSKV_SSH": recording(tmp, sshd.command),
                      **go.env}) as r:
        await_trained(r, 2)
        found = sshd.members()
        assert len({m.secret for m in found}) == 5
        assert len({m.authority for m in found}) == 1
        assert_no_trace(found, sshd.mark, begin, sshd.home)
        # Three processes here, and three on each host.
        assert_not_in_memory(found, sshd.mark, 9)
        go()
        assert r.wait() == 0, r.text
    sent = (tmp / "in").read_bytes()
    received = (tmp / "out").read_bytes()
    # psched, two servers, two agents; with the authority's.
    assert sent.count(b"BEGIN CERTIFICATE-") == 2 * 5
    assert received.count(b"BEGIN CERTIFICATE REQUEST") == 5
    assert b"PRIVATE KEY" not in sent + received


@needs_sshd
def test_strangers_of_the_network_are_refused(sshd, tmp, go):
    """Members of the job are on two addresses, which psctl reaches."""
    with Running("-n", "2", "-s", "2", "--hosts", ",".join(HOSTS), "--name",
                 "lab", "--env", "PSKV_TEST_GO", *SHELL, TRAIN, mark=sshd.mark,
                 env={"PSKV_SSH": sshd.command, **go.env}) as r:
        await_trained(r, 2)
        at = re.search(rb"psched at (127\.0\.0\.2):(\d+)", r.text["err"])
        local = re.search(rb"on 127\.0\.0\.2, psctl -e (unix:\S+) reaches",
                          r.text["err"])
        nodes = psctl("-e", local[1].decode(), "nodes").stdout
        assert certified(nodes) == ["psched", "ps0", "ps1", "node0",
                                    "node1"], nodes
        assert_refuses_strangers(tmp, "127.0.0.2", int(at[2]), r)
        server = re.search(r"server +ps1 +\S+ +127\.0\.0\.3:(\d+)", nodes)
        assert_refuses_strangers(tmp / "again", "127.0.0.3", int(server[1]), r)
        go()
        assert r.wait() == 0


@needs_sshd
def test_a_trusted_network_may_be_plain(sshd):
    script = (f"printf 'open\\nkey w float32 1000\\nrounds count 3 1 0 0\\n"
              f"close\\n' | {WORKER}")
    done = subprocess.run(
        argv("-n", "2", "-s", "1", "--hosts", ",".join(HOSTS),
             "--insecure-network", *SHELL, script),
        capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        timeout=limit(60),
        env=support.clean_env(PSKV_SSH=sshd.command, PSKV_MARK=sshd.mark))
    assert done.returncode == 0, done.stderr
    assert "are not encrypted" in done.stderr
    assert "its connections are encrypted" not in done.stderr


@needs_sshd
@pytest.mark.parametrize("how", ["interrupt", "kill", "cut"])
def test_the_end_comes_while_a_certificate_is_awaited(sshd, tmp, how):
    """A daemon that waits for its certificate ends with the job."""
    # Passes everything but the request for the certificate.
    path = tmp / "stuck"
    path.write_text(f"""#!/usr/bin/python3
import os, select, subprocess, sys
p = subprocess.Popen({sshd.command.split()!r} + sys.argv[1:],
                     stdin=subprocess.PIPE, stdout=subprocess.PIPE)
while True:
    ready, _, _ = select.select([0, p.stdout], [], [])
    for f in ready:
        data = os.read(f if f == 0 else f.fileno(), 65536)
        if data == b"":
            p.kill()
            sys.exit(1)
        if f == 0:
            p.stdin.write(data)
            p.stdin.flush()
        elif b"CERTIFICATE REQUEST" in data:
            open("{tmp}/asked", "w").close()
        else:
            os.write(1, data)
""")
    path.chmod(0o755)
    with Running("-n", "1", "-s", "1", "--hosts", HOSTS[0], "--grace", "1s",
                 "true", mark=sshd.mark, env={"PSKV_SSH": str(path)}) as r:
        wait_for((tmp / "asked").exists, "a request for a certificate")
        if how == "interrupt":
            r.process.send_signal(signal.SIGINT)
            r.process.send_signal(signal.SIGINT)
        elif how == "kill":
            r.process.kill()
        else:
            for pid, command in marked(sshd.mark):
                if str(path).encode() in command:
                    os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        wait_for(lambda: not marked(sshd.mark), f"end of {marked(sshd.mark)}")
        assert time.monotonic() - begin < limit(5)
        assert r.wait() == {"interrupt": 130, "kill": -signal.SIGKILL,
                            "cut": 69}[how]
