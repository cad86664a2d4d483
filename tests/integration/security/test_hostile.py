# SPDX-License-Identifier: Apache-2.0
"""Peers that send invalid bytes: each is disconnected, with one line in the
log; the daemon's memory stays the same, and a running job does not notice. On
psched's and psserver's TCP ports and on the agent's Unix socket."""
import fcntl
import mmap
import os
import random
import re
import socket
import struct
from pathlib import Path

import pytest
import trio as support
import wire
from named import NamedAgent
from trio import Job, limit, PATIENCE, SLOW, wait_for
from wire import MESSAGES, frame, header, message

MIB = 1 << 20
# Memory that all hostile peers together may leave in a daemon.
RSS_GROWTH = 24 * MIB
SANITIZED = SLOW > 1  # Address sanitizer keeps what was freed.

TELLS_ITS_MIND = re.compile(r"^\S+ (warning|error) ", re.M)
# Messages of psched about the loss of one of our workers, which an agent may
# report at any later time, and about a busy machine.
OF_OTHERS = re.compile(r" job hostile|this process was late")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One trio for all of the file, with a job that never stops."""
    import shutil
    import tempfile
    folder = Path(tempfile.mkdtemp(prefix="pskv-test-"))
    t = support.Trio(folder / "trio", servers=1, agents=1,
                     options=["limits.handshake=2s", "limits.header=2s",
                              "limits.output=1MiB"],
                     server_options=["limits.handshake=2s", "limits.header=2s",
                                     "network.loops=3"],
                     agent_options=["limits.handshake=2s", "limits.header=2s"])
    try:
        yield from bystander(t)
    finally:
        t.stop()
        shutil.rmtree(folder, ignore_errors=True)


def bystander(t):
    t.start()
    job = Job(t, 2, "bystander", PSKV_OP_TIMEOUT="120s")
    keys = [job.key("w", "float32", 50_000), job.key("n", "int64", 10)]
    p = Place(t, job, keys)
    p.work()
    yield p
    p.rest()
    p.named.close()
    job.tell("close")
    for w in job:
        assert w.end() == 0
    t.await_empty()


class Place:
    def __init__(self, t, job, keys):
        self.trio = t
        self.job = job
        self.keys = " ".join(str(k) for k in keys)
        # Servers welcome agents of jobs alone.
        self.named = NamedAgent(t.port)
        self.before = {d.name: d.rss() for d in t.daemons.values()}

    def work(self):
        """The job checks every sum."""
        self.job.say(lambda rank: f"rounds count 20 {rank} 1000 {self.keys}")

    def rest(self):
        results = self.job.hear()
        assert len({tuple(r) for r in results}) == 1

    def check(self):
        """All daemons live, the job has made rounds, memory is flat."""
        self.rest()
        self.work()
        for d in self.trio.daemons.values():
            assert d.alive(), d.text()
            assert SANITIZED or d.rss() < self.before[d.name] + RSS_GROWTH, d.name


class Watch:
    """The daemon's log from now on."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.since = len(daemon.text())
        self.hwm = self.peak()

    def peak(self):
        text = Path(f"/proc/{self.daemon.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in text.split("\n") if line)
        return (int(fields["VmPeak"].split()[0]) * 1024,
                int(fields["VmHWM"].split()[0]) * 1024)

    def lines(self):
        return [line for line in  # The last one may be half a line.
                self.daemon.text()[self.since:].split("\n")[:-1]
                if TELLS_ITS_MIND.match(line) and not OF_OTHERS.search(line)]

    def expect_lines(self, most):
        """At least one, each of them short."""
        wait_for(self.lines, "a line in the log", PATIENCE)
        lines = self.lines()
        assert len(lines) <= most, lines
        assert all(len(line) < 600 and line.isprintable() for line in lines)
        peak, hwm = self.peak()
        if not SANITIZED:
            assert hwm - self.hwm[1] < 12 * MIB, "resident memory jumped"
            assert peak - self.hwm[0] < 64 * MIB, "memory was reserved"
        return lines

    def expect_one_line(self):
        return self.expect_lines(1)[0]


def await_handshakes(daemon, connect, hello):
    """Waits until connections without a hello are closed and logged. They are
    accepted one after the other: when the last one has its answer, the daemon
    has seen all of them."""
    with connect() as last:
        last.sendall(hello)
        wire.read_frame(last)
    wait_for(lambda: daemon.state()["pre_handshake"] == 0,
             "no connection before its handshake")


# ---------------------------------------------------------------- the bombs

HEADERS = {
    "array32 of 4 G": b"\xdd\xff\xff\xff\xff",
    "array32 of 256 M": b"\xdd\x10\x00\x00\x00",
    "map32 of 4 G": b"\xdf\xff\xff\xff\xff",
    "str32 of 4 G": b"\xdb\xff\xff\xff\xff",
    "bin32 of 4 G": b"\xc6\xff\xff\xff\xff",
    "ext32 of 4 G": b"\xc9\xff\xff\xff\xff\x01",
    "ext of 1": b"\xd4\x01\x00",
    "nine bytes": b"\x8a\xff\xff\xff\xdf\xff\xff\xff\xff",
    "map with a bomb in it": b"\x81\x08\xdd\xff\xff\xff\xff",
    "map with a bomb as key": b"\x81\xdd\x10\x00\x00\x00\x01",
    "many bombs": b"\x9f" + b"\xdd\xff\xff\xff\xff" * 15,
    "deep": b"\x91" * 300 + b"\xc0",
    "deep maps": b"\x81\x01" * 150 + b"\xc0",
    "no map": b"\x93\x01\x02\x03",
    "empty map": b"\x80",
    "cut short": b"\x82\x08\x01",
    "more behind": b"\x80\x80",
    "never used byte": b"\xc1",
    "key twice": b"\x82\x08\x01\x08\x01",
    "key is a string": b"\x81\xa1\x38\x01",
    "all wrong types": b"\x8a" + b"".join(
        bytes([i]) + b"\x92\xc0\xc3" for i in range(8, 18)),
    "huge numbers": b"\x8c" + b"".join(
        bytes([i]) + b"\xcf" + b"\xff" * 8 for i in range(8, 20)),
    "floats": b"\x84" + b"".join(
        bytes([i]) + b"\xcb\x7f\xf8" + bytes(6) for i in range(8, 12)),
    "bad UTF-8 and controls": b"\x82\x0b\xa4\xff\xfe\x1b\x00\x0c\xa1\x0a",
}


def prefix_bombs(code):
    """Frames that are wrong before their header is looked at."""
    return {
        "wrong magic": b"XX" + frame(code, b"\x80")[2:],
        "version 0": frame(code, b"\x80", version=0),
        "version 255": frame(code, b"\x80", version=255),
        "no such code": frame(255, b"\x80"),
        "code 0": frame(0, b"\x80"),
        "no header": frame(code, b""),
        "header of 4 GiB": frame(code, b"\x80", header_len=0xffffffff),
        "header of 1 MiB": frame(code, b"\x80" * MIB),
        "payload where none belongs": frame(code, b"\x80", payload_len=64),
        "payload of 2^31": frame(code, b"\x80", payload_len=1 << 31),
        "payload of 2^32 - 1": frame(code, b"\x80",
                                     payload_len=(1 << 32) - 1),
        "references to nothing": frame(code, b"\x80", payload_len=1 << 32),
        "references to a payload": frame(code, b"\x80" + bytes(16),
                                         header_len=1,
                                         payload_len=1 << 32 | 64),
        "reserved bytes": frame(code, b"\x80", payload_len=1 << 63),
    }


UNAUTHENTICATED = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "SSH": b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    "zeros": bytes(64),
    "ones": b"\xff" * 64,
    "random": bytes((i * 197 + 91) & 255 for i in range(4096)),
}


def endpoint(place, name):
    """(daemon, connect, valid hello, a message that is allowed next)"""
    t = place.trio
    if name == "psched":
        return (t.sched, lambda: wire.connect(t.port), wire.hello("ctl"),
                "query")
    if name == "psserver":
        server = t.servers()[0]
        return (server, lambda: wire.connect(server.port),
                place.named.hello(), "pull")
    return (t.agents()[0], lambda: wire.connect_unix(t.socket(0)),
            wire.l_hello(), "l_key")


ENDPOINTS = ("psched", "psserver", "agent")
FIRST = {"psched": "hello", "psserver": "hello", "agent": "l_hello"}


def throw(place, name, bomb, ready=False):
    daemon, connect, hello, _ = endpoint(place, name)
    sock = connect()
    try:
        if ready:
            sock.sendall(hello)
            code, _, _ = wire.read_frame(sock)
            assert code in (MESSAGES["welcome"]["code"],
                            MESSAGES["l_welcome"]["code"]), code
        watch = Watch(daemon)
        try:
            sock.sendall(bomb)
        except OSError:
            pass  # It hung up in the middle: even better.
        assert wire.is_cut(sock, PATIENCE), "the peer is still connected"
        line = watch.expect_one_line()
    finally:
        sock.close()
    place.check()
    return line


@pytest.mark.parametrize("bomb", UNAUTHENTICATED)
@pytest.mark.parametrize("name", ENDPOINTS)
def test_messages_before_the_handshake_close_the_connection(place, name, bomb):
    throw(place, name, UNAUTHENTICATED[bomb])


@pytest.mark.parametrize("ready", [False, True], ids=["first", "ready"])
@pytest.mark.parametrize("bomb", sorted(prefix_bombs(1)))
@pytest.mark.parametrize("name", ENDPOINTS)
def test_malformed_prefixes_close_the_connection(place, name, bomb, ready):
    verb = endpoint(place, name)[3] if ready else FIRST[name]
    throw(place, name, prefix_bombs(MESSAGES[verb]["code"])[bomb], ready)


@pytest.mark.parametrize("ready", [False, True], ids=["first", "ready"])
@pytest.mark.parametrize("bomb", HEADERS)
@pytest.mark.parametrize("name", ENDPOINTS)
def test_malformed_headers_close_the_connection(place, name, bomb, ready):
    verb = endpoint(place, name)[3] if ready else FIRST[name]
    throw(place, name, frame(MESSAGES[verb]["code"], HEADERS[bomb]), ready)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_messages_in_the_wrong_direction_close_the_connection(place, name):
    """Each message that this daemon does not take, from this kind of peer. The
    log names some of them: its rate is limited."""
    role = {"psched": "ctl", "psserver": "agent", "agent": "worker"}[name]
    to = {"psched": "sched", "psserver": "server", "agent": "agent"}[name]
    daemon, connect, hello, _ = endpoint(place, name)
    wrong = [m for m in MESSAGES.values()
             if role not in m["from"] or to not in m["to"]]
    assert len(wrong) > 20
    watch = Watch(daemon)
    for m in wrong:
        with connect() as sock:
            sock.sendall(hello)
            wire.read_frame(sock)
            sock.sendall(frame(m["code"], b"\x80"))
            assert wire.is_cut(sock, PATIENCE), m["name"]
    watch.expect_lines(len(wrong))
    place.check()


@pytest.mark.parametrize("name", ENDPOINTS)
def test_messages_before_hello_close_the_connection(place, name):
    daemon, connect, _, verb = endpoint(place, name)
    fields = {"query": dict(what=1),
              "pull": dict(gen=1, epoch=1, slot=0, parts=[]),
              "l_key": dict(request=1, name="x", dtype=0, count=1,
                            shape=[1])}[verb]
    throw(place, name, message(verb, **fields))


@pytest.mark.parametrize("name", ENDPOINTS)
def test_second_hello_closes_the_connection(place, name):
    hello = endpoint(place, name)[2]
    throw(place, name, hello, ready=True)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_close_within_a_frame_is_reported(place, name):
    """Ends or resets the connection at every byte of a hello: one line in the
    log at most, and no state remains."""
    daemon, connect, hello, _ = endpoint(place, name)
    for i in range(0, len(hello), 3):
        sock = connect()
        sock.sendall(hello[:i])
        if i % 2 and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                            struct.pack("ii", 1, 0))
        sock.close()
    await_handshakes(daemon, connect, hello)
    place.check()


@pytest.mark.parametrize("name", ENDPOINTS)
def test_silent_connection_is_closed(place, name):
    """A connection that sends nothing, or stops in the middle, is closed,
    too."""
    daemon, connect, hello, _ = endpoint(place, name)
    for start in (b"", hello[:1], hello[:20]):
        watch = Watch(daemon)
        sock = connect()
        sock.sendall(start)
        assert wire.is_cut(sock, PATIENCE)
        watch.expect_one_line()
        sock.close()
    place.check()


@pytest.mark.parametrize("name", ("psched", "psserver"))
def test_many_connections_before_their_handshake(place, name):
    """They cannot keep others out."""
    daemon, connect, hello, _ = endpoint(place, name)
    crowd = [connect() for _ in range(300)]
    sock = connect()
    sock.sendall(hello)
    code, _, _ = wire.read_frame(sock)
    assert code == MESSAGES["welcome"]["code"]
    sock.close()
    place.check()
    for s in crowd:
        s.close()
    await_handshakes(daemon, connect, hello)


def test_a_peer_that_never_reads_is_cut(place):
    """Answers for a peer that takes none do not pile up."""
    t = place.trio
    sock = wire.connect(t.port)
    sock.sendall(wire.hello("ctl"))
    wire.read_frame(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    watch = Watch(t.sched)
    ask = message("query", what=0) * 200
    deadline = support.Deadline(limit(60))
    try:
        while True:
            support.wait_ready("the cut", write=[sock], seconds=deadline)
            sock.sendall(ask)
    except ConnectionError:
        pass
    assert "does not read" in watch.expect_one_line()
    sock.close()
    place.check()


# ------------------------------------------------------------ local socket

F_ADD_SEALS = 1033
SEAL, SHRINK, GROW = 1, 2, 4
SIZE = 1 << 20


def memfd(size=SIZE, seals=SEAL | SHRINK | GROW):
    fd = os.memfd_create("hostile", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(fd, 0o600)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def closing(*fds):
    for fd in fds:
        os.close(fd)


class Local:
    """A worker of its own job, after the handshake."""

    count = 0

    def __init__(self, place):
        Local.count += 1
        self.daemon = place.trio.agents()[0]
        self.sock = wire.connect_unix(place.trio.socket(0))
        self.sock.sendall(wire.l_hello(job=f"hostile{Local.count}"))
        code, _, _ = wire.read_frame(self.sock)
        assert code == MESSAGES["l_welcome"]["code"]

    def send(self, data, fds=()):
        if fds:
            socket.send_fds(self.sock, [data], list(fds))
        else:
            self.sock.sendall(data)

    def read(self, name):
        """Fields of the next message of this name, and descriptors."""
        want = MESSAGES[name]
        data = b""
        fds = []
        while True:
            while len(data) >= 16:
                _, _, code, header_len, _ = wire.PREFIX.unpack(data[:16])
                if len(data) < 16 + header_len:
                    break
                fields, _ = wire.unpack(data[16:16 + header_len])
                data = data[16 + header_len:]
                if code == want["code"]:
                    names = {f["id"]: f["name"] for f in want["fields"]}
                    return {names[k]: v for k, v in fields.items()
                            if k in names}, fds
            more, got, _, _ = socket.recv_fds(self.sock, 65536, 8)
            assert more, "the agent hung up"
            data += more
            fds += got

    def close(self):
        self.sock.close()


def offer(place, make, announced=SIZE, text=None):
    """A region that must not be taken."""
    local = Local(place)
    fds = make()
    fds = fds if isinstance(fds, (list, tuple)) else [fds]
    watch = Watch(local.daemon)
    before = len(os.listdir(f"/proc/{local.daemon.pid}/fd"))
    local.send(message("l_region", region=1, size=announced), fds)
    assert wire.is_cut(local.sock, PATIENCE)
    line = watch.expect_one_line()
    closing(*fds)
    local.close()
    wait_for(lambda: len(os.listdir(f"/proc/{local.daemon.pid}/fd")) < before,
             "its descriptors to be closed")
    place.check()
    return line


def pipe():
    r, w = os.pipe()
    os.close(w)
    return r


def socket_fd():
    a, b = socket.socketpair()
    b.close()
    return a.detach()


def regular(tmp):
    fd = os.open(tmp / "regular", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, SIZE)
    return fd


DESCRIPTORS = {
    "unsealed": lambda: memfd(seals=0),
    "only against shrinking": lambda: memfd(seals=SHRINK),
    "may shrink": lambda: memfd(seals=GROW | SEAL),
    "seals may be added": lambda: memfd(seals=SHRINK | GROW),
    "sealing not allowed": lambda: os.memfd_create("hostile"),
    "smaller than announced": lambda: memfd(size=SIZE // 2),
    "larger than announced": lambda: memfd(size=SIZE * 2),
    "empty": lambda: memfd(size=0),
    "a pipe": pipe,
    "a socket": socket_fd,
    "a folder": lambda: os.open("/", os.O_RDONLY | os.O_DIRECTORY),
    "/dev/zero": lambda: os.open("/dev/zero", os.O_RDWR),
    "an eventfd": lambda: os.eventfd(0),
    "two at once": lambda: [memfd(), memfd()],
    "many at once": lambda: [memfd(size=4096) for _ in range(30)],
}


@pytest.mark.parametrize("what", DESCRIPTORS)
def test_invalid_descriptors_close_the_connection(place, what):
    offer(place, DESCRIPTORS[what])


def test_region_of_a_regular_file_is_refused(place, tmp):
    offer(place, lambda: regular(tmp))


def test_region_truncated_on_its_way_is_refused(place):
    """Truncated when it is on its way: it was never sealed."""
    def make():
        fd = memfd(seals=GROW)
        os.ftruncate(fd, 0)
        return fd
    offer(place, make)


@pytest.mark.parametrize("size", [0, 1 << 62, (1 << 64) - 1])
def test_region_of_another_size_is_refused(place, size):
    offer(place, memfd, announced=size)


def test_region_without_a_descriptor(place):
    local = Local(place)
    watch = Watch(local.daemon)
    local.send(message("l_region", region=1, size=SIZE))
    assert wire.is_cut(local.sock, PATIENCE)
    watch.expect_one_line()
    place.check()


def test_descriptor_of_another_message_is_refused(place):
    for name, fields in (("l_key", dict(request=1, name="x", dtype=0,
                                        count=4, shape=[4])),
                         ("l_barrier", dict(op_id=1, number=1))):
        local = Local(place)
        watch = Watch(local.daemon)
        fd = memfd()
        local.send(message(name, **fields), [fd])
        assert wire.is_cut(local.sock, PATIENCE)
        watch.expect_one_line()
        os.close(fd)
    place.check()


def open_files(daemon):
    """What its descriptors are; some may be closed meanwhile."""
    folder = Path(f"/proc/{daemon.pid}/fd")
    for fd in os.listdir(folder):
        try:
            yield os.readlink(folder / fd)
        except FileNotFoundError:
            pass


def test_descriptor_of_an_incomplete_message_is_closed(place):
    """It comes with the first bytes, and then the peer is gone."""
    for _ in range(20):
        local = Local(place)
        fd = memfd()
        local.send(message("l_region", region=1, size=SIZE)[:9], [fd])
        local.close()
        os.close(fd)
    daemon = place.trio.agents()[0]
    wait_for(lambda: "memfd:hostile" not in " ".join(open_files(daemon)),
             "the descriptors to be closed")
    place.check()


def ready_to_push(place, count=1024):
    """A worker with a key and a good region. (local, key number)"""
    local = Local(place)
    fd = memfd()
    local.send(message("l_region", region=1, size=SIZE), [fd])
    os.close(fd)
    local.send(message("l_key", request=1, name="x", dtype=0, count=count,
                       shape=[count]))
    info, fds = local.read("l_key_info")
    assert info.get("error", 0) == 0, info
    closing(*fds)
    return local, info.get("key", 0)


def test_well_behaved_worker_is_served(place):
    """The next tests fail for the right reason."""
    local, key = ready_to_push(place)
    local.send(message("l_op", op_id=1, op=3, key=key, region=1, offset=64,
                       round=1))
    done, _ = local.read("l_done")
    assert done.get("error", 0) == 0 and done["version"] == 1
    local.send(message("l_detach"))
    local.close()
    place.check()


OPS = {
    "region not known": dict(region=7, offset=0),
    "offset behind the end": dict(region=1, offset=SIZE),
    "array past the end": dict(region=1, offset=SIZE - 4095),
    "offset that overflows": dict(region=1, offset=(1 << 64) - 64),
    "key not known": dict(key=4242, region=1, offset=0),
    "round far ahead": dict(region=1, offset=0, round=1 << 60),
    "root not in the job": dict(op=4, region=1, offset=0, root=4095),
}


@pytest.mark.parametrize("what", OPS)
def test_malformed_operations_are_refused(place, what):
    """The worker is disconnected, or its operation fails; no other operation
    fails."""
    local, key = ready_to_push(place)
    fields = dict(op_id=1, op=3, key=key, round=1)
    fields.update(OPS[what])
    local.send(message("l_op", **fields))
    local.sock.settimeout(PATIENCE)
    try:
        done, _ = local.read("l_done")
        assert done.get("error", 0) < 0, done
    except (AssertionError, ConnectionError) as e:
        assert "hung up" in str(e) or isinstance(e, ConnectionError), e
    local.close()
    place.check()


def ring_bytes(place):
    """Of the memory that the bystander's workers share with their agent: no
    arena is as small."""
    maps = Path(f"/proc/{place.job[0].pid}/maps").read_text()
    spans = re.findall(r"^(\w+)-(\w+) rw-s .*/memfd:pskv", maps, re.M)
    return min(int(end, 16) - int(begin, 16) for begin, end in spans)


def with_ring(place):
    """A worker of its own with its ring."""
    local = Local(place)
    size = ring_bytes(place)
    fd = memfd(size)
    local.send(message("l_ring", size=size), [fd])
    return local, fd, mmap.mmap(fd, size)


@pytest.mark.parametrize("what", ["wrong size", "unsealed", "no descriptor",
                                  "a second one"])
def test_malformed_rings_are_refused(place, what):
    size = ring_bytes(place)
    if what == "a second one":
        local, fd, ring = with_ring(place)
        ring.close()
    else:
        local = Local(place)
        fd = memfd(size * 2 if what == "wrong size" else size,
                   0 if what == "unsealed" else SEAL | SHRINK | GROW)
    watch = Watch(local.daemon)
    local.send(message("l_ring",
                       size=size * 2 if what == "wrong size" else size),
               [] if what == "no descriptor" else [fd])
    assert wire.is_cut(local.sock, PATIENCE)
    watch.expect_one_line()
    os.close(fd)
    local.close()
    place.check()


@pytest.mark.parametrize("byte", [0x7f, 0xff, 0x80])
def test_ring_counters_out_of_range_end_the_session(place, byte):
    local, fd, ring = with_ring(place)
    watch = Watch(local.daemon)
    ring[:192] = bytes([byte]) * 192
    try:
        local.send(message("l_wake"))
    except ConnectionError:
        pass  # It was looking, and has cut already.
    assert wire.is_cut(local.sock, PATIENCE)
    watch.expect_one_line()
    ring.close()
    os.close(fd)
    local.close()
    place.check()


def test_operations_of_zeros_fail_alone(place):
    local, fd, ring = with_ring(place)
    local.sock.settimeout(PATIENCE)
    for n in range(1, 4):
        ring[:4] = n.to_bytes(4, "little")
        local.send(message("l_wake"))
        done, _ = local.read("l_done")
        assert done.get("error", 0) < 0, done
    ring.close()
    os.close(fd)
    local.close()
    place.check()


def test_fields_of_a_changing_ring_are_read_once(place):
    """A field that is read twice could differ: each is read once."""
    local, fd, ring = with_ring(place)
    noise = random.Random(1)
    try:
        for turn in range(2000):
            for _ in range(20):
                at = noise.randrange(0, 2048)
                ring[at] = noise.randrange(0, 256)
            ring[:4] = noise.randrange(0, 2048).to_bytes(4, "little")
            if turn % 10 == 0:
                local.send(message("l_wake"))
    except OSError:
        pass  # The connection may be closed at any time.
    ring.close()
    os.close(fd)
    local.close()
    place.check()


def test_results_cannot_be_written(place):
    """Arenas are shared with all workers of the job."""
    local = Local(place)
    local.send(message("l_key", request=1, name="x", dtype=0, count=1024,
                       shape=[1024]))
    _, fds = local.read("l_key_info")
    assert len(fds) == 1
    size = os.fstat(fds[0]).st_size
    with pytest.raises(PermissionError):
        mmap.mmap(fds[0], size, mmap.MAP_SHARED,
                  mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(OSError):
        os.ftruncate(fds[0], 0)
    with pytest.raises(OSError):
        os.write(fds[0], b"x")
    mmap.mmap(fds[0], size, mmap.MAP_SHARED, mmap.PROT_READ).close()
    closing(*fds)
    local.close()
    place.check()


def test_header_is_known_to_the_table():
    """Field names of this file are those of the protocol."""
    assert header("l_op", op_id=1, op=3, key=0) == wire.pack(
        {8: 1, 9: 3, 10: 0})
