# SPDX-License-Identifier: Apache-2.0
"""Agents and servers of one host meet on a Unix socket and copy payloads from
memory to memory: the results are those of TCP, bit for bit, also when these
connections are cut all the time and when an agent is killed; and where they
do not meet, they go by TCP."""
import ctypes
import os
import socket
import struct
import subprocess

import pytest
import trio as support
import wire
from named import NamedAgent
from trio import Job, wait_for

CUTS = 40
KEYS = (("fc1.weight", "float32", 400_000), ("fc1.bias", "float32", 128),
        ("fc2.weight", "float64", 70_000), ("count", "int64", 70_000))
HERE = " server reached on this host address "
BY_TCP = " server reached by TCP address "
USER = 54321  # No account has this number.
LIBC = ctypes.CDLL(None, use_errno=True)
PIDFD_GETFD = 438  # The same on every architecture.


def open_job(t, name="default"):
    job = Job(t, 4, name, PSKV_PARTITION_BYTES=262144, PSKV_OP_TIMEOUT="120s")
    return job, [job.key(*k) for k in KEYS]


def work(job, keys, piece):
    names = " ".join(str(k) for k in keys)
    return job.tell(lambda rank: f"rounds mixed 5 {piece * 100 + rank} 20000 "
                                 f"{names}")


def results(t, pieces=3):
    job, keys = open_job(t)
    with job:
        return [work(job, keys, i) for i in range(pieces)]


def sockets_to_servers(pid):
    """Copies of an agent's sockets whose peer is a server of this host."""
    pidfd = os.pidfd_open(pid)
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        fd = LIBC.syscall(PIDFD_GETFD, pidfd, int(number), 0)
        if fd < 0:
            if ctypes.get_errno() in (1, 38):
                pytest.skip("no right to take another process's sockets")
            continue
        try:
            s = socket.socket(fileno=fd)
        except OSError:
            os.close(fd)
            continue
        try:
            peer = s.getpeername()
        except OSError:
            peer = b""
        if isinstance(peer, bytes) and peer.startswith(b"\0pskv-server/"):
            found.append(s)
        else:
            s.close()
    os.close(pidfd)
    return found


def cut(agent):
    count = 0
    for s in sockets_to_servers(agent.process.pid):
        try:
            s.shutdown(socket.SHUT_RDWR)
            count += 1
        except OSError:
            pass  # It was closed just now.
        s.close()
    return count


def test_large_keys_both_ways(trio):
    """Gradients and weights pass each other, each more than a connection has
    unreleased (rule S7a); without a pause, which would be 60 s."""
    count = 4 * 1024 * 1024
    t = trio(servers=1, agents=1)
    zero = t.folder / "zero"
    zero.write_bytes(bytes(4 * count))
    job = Job(t, 2, PSKV_OP_TIMEOUT=f"{support.limit(30):.0f}s")
    with job:
        job[0].ask("optimizer adam learning_rate=0.001")
        keys = [job.key(f"w{i}", "float32", count) for i in range(3)]
        for k in keys:
            job.tell(f"init {k} src={zero}")
        seen = [work(job, keys, i) for i in range(4)]
    assert all(a == b for a, b in seen), seen


@pytest.mark.parametrize("off", ["agents", "servers"])
def test_same_bits_as_tcp(trio, off):
    t = trio(servers=2, agents=2)
    near = results(t)
    for a in t.agents():
        assert a.text().count(HERE) == 2, a.text()
        assert BY_TCP not in a.text()
    t = trio(servers=2, agents=2, **{
        f"{off[:-1]}_options": ["network.same_host=off"]})
    assert results(t) == near
    for a in t.agents():
        assert HERE not in a.text()
        assert (BY_TCP in a.text()) == (off == "servers")


def run_as(user):
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


# The same as PrivateUsers= in psserver.service: no other user has a name
# there.
OWN_USERS = ["unshare", "--map-current-user"]


def needs(*commands):
    if os.geteuid() != 0:
        pytest.skip("only root can run as others")
    for command in commands:
        done = subprocess.run([*command, support.program("psserver"),
                               "--version"], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"{command[0]} cannot start daemons: {done.stderr!r}")


def test_server_with_users_of_its_own(trio):
    """Neither may read the other's memory by address; they map arenas."""
    agent = run_as(USER)
    server = [*agent, *OWN_USERS]
    needs(agent, server)
    t = trio(servers=2, agents=2, owner=USER, agent_command=agent,
             server_command=server)
    near = results(t)
    for a in t.agents():
        assert a.text().count(HERE) == 2, a.text()
        assert BY_TCP not in a.text()
    assert results(trio(servers=2, agents=2)) == near


def test_server_of_another_user(trio):
    """It might be anybody: TCP, and one line that says why."""
    agent = run_as(USER)
    server = run_as(USER + 1)
    needs(agent, server)
    t = trio(servers=1, agents=1, owner=USER, agent_command=agent,
             server_command=server)
    assert len(results(t, 1)) == 1
    text = t.agents()[0].text()
    assert text.count("it runs as another user") == 1, text
    assert text.count(BY_TCP) == 1 and HERE not in text


def test_cut_connections_change_no_bit(trio):
    t = trio(servers=2, agents=2,
             agent_options=["scheduler.retry.first=10ms",
                            "scheduler.retry.max=100ms"])
    job, keys = open_job(t)
    cuts = 0
    seen = []
    with job:
        deadline = support.Deadline(support.limit(120))
        while cuts < CUTS:
            deadline.left(f"{CUTS} cuts")
            names = " ".join(str(k) for k in keys)
            job.say(lambda rank: f"rounds mixed 5 {len(seen) * 100 + rank} "
                                 f"20000 {names}")
            for a in t.agents():
                cuts += cut(a)
            seen.append(job.hear())
        for d in t.daemons.values():
            assert d.alive(), d.text()
    t.await_empty()
    clean = trio(servers=2, agents=2)
    job, keys = open_job(clean)
    with job:
        assert seen == [work(job, keys, i) for i in range(len(seen))]


def test_killed_agent_comes_back(trio):
    t = trio(servers=2, agents=1)
    before = results(t)
    t.await_empty()  # Departures of workers must not be lost with the agent.
    t.agents()[0].stop(support.Deadline(), kill=True)
    t.launch("node0").await_ready(support.Deadline())
    assert results(t) == before
    assert t.agents()[0].text().count(HERE) >= 2


def raw_client(server):
    s = socket.socket(socket.AF_UNIX)
    s.connect(f"\0pskv-server/127.0.0.1:{server.port}")
    s.settimeout(support.limit(20))
    return s


def push_at(address, piece, length, arena=0):
    """A push that points at its payload."""
    code = wire.MESSAGES["push"]["code"]
    header = wire.header("push", seq=1, gen=1)
    return (wire.frame(code, header, payload_len=1 << 32 | length) +
            struct.pack("<QII", address, piece, arena))


BOMBS = {
    "no memory": push_at(0, 65536, 65536),
    "the kernel's": push_at(1 << 63, 65536, 65536),
    "the last": push_at((1 << 64) - 4096, 65536, 65536),
    "longer": push_at(0, 65540, 65536),
    "without an end": push_at(0, (1 << 32) - 1, 65536),
    "no arena": push_at(0, 65536, 65536, arena=1),
    "nothing": push_at(0, 0, 0),
    "many pieces": wire.frame(wire.MESSAGES["push"]["code"], b"\x80",
                              payload_len=200 << 32 | 64),
    "receipt for nothing": wire.message("shm_caps") + wire.message(
        "shm_release", payloads=0),
    "receipt without a header": wire.frame(
        wire.MESSAGES["shm_release"]["code"], b""),
    "receipt for everything": wire.message("shm_caps") + wire.message(
        "shm_release", payloads=(1 << 32) - 1),
    "arena without a descriptor": wire.message("shm_map", arena=1),
    "end of no arena": wire.message("shm_unmap", arena=1),
}


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    t = support.Trio(tmp_path_factory.mktemp("victim") / "trio", servers=1,
                     agents=1)
    t.start()
    named = NamedAgent(t.port)  # Servers welcome agents of jobs only.
    yield t, named
    named.close()
    t.stop()


@pytest.mark.parametrize("ready", [False, True], ids=["first", "ready"])
@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_malformed_references_close_the_connection(victim, bomb, ready):
    """Each is cut with one line, and others do not notice."""
    t, named = victim
    server = t.servers()[0]
    since = len(server.text())
    s = raw_client(server)
    if ready:
        s.sendall(named.hello())
        code, _, _ = wire.read_frame(s)
        assert code == wire.MESSAGES["welcome"]["code"]
    s.sendall(BOMBS[bomb])
    assert wire.is_cut(s, support.PATIENCE)
    s.close()
    wait_for(lambda: "\n" in server.text()[since:].partition(" warning ")[2],
             "a line in the log")
    lines = [x for x in server.text()[since:].split("\n")[:-1]
             if " warning " in x]
    assert len(lines) == 1 and "connection closed" in lines[0], lines
    assert server.alive()


def test_server_serves_after_hostile_peers(victim):
    assert len(results(victim[0], 1)) == 1
