# SPDX-License-Identifier: Apache-2.0
"""Peers that ask for too much: each takes one kind of thing in a loop, as often
as it may or is let, from the position of a worker, an agent, a server or a
tool. One that is cut comes again. Run as a program, it is one such peer:

    hostile.py KIND --socket S --sched PORT --server PORT --seconds N [--uid U]

It prints one line at its end: what it sent, and how often it was refused or its
connection closed. tests/integration/security/test_hostile_counts.py and
tests/soak/neighbours.py run it beside jobs that check their results."""
import argparse
import fcntl
import json
import os
import random
import select
import socket
import sys
import tempfile
import time

import wire
from dialers import Dialers
from wire import ENUMS, MESSAGES, frame, message

SEALS = 1 | 2 | 4  # seal, shrink, grow
U32 = (1 << 32) - 1
U64 = (1 << 64) - 1
# Where products and sums of 32 and 64 bits wrap, and what is just allowed.
COUNTS = [0, 1, 2, 9, 255, 256, 1 << 16, (1 << 16) + 1, 1 << 24, 1 << 28,
          1 << 30, (1 << 30) + 1, (1 << 31) - 1, 1 << 31, U32 - 1, U32]
LONG = COUNTS + [1 << 32, 1 << 40, 1 << 46, 1 << 61, 1 << 62, (1 << 63) - 1,
                 1 << 63, U64 - 1, U64]
OP = ENUMS["op"]


class Cut(Exception):
    """The daemon has hung up."""


class Peer:
    """A connection that is read as fast as it comes, unless it is mute."""

    def __init__(self, sock, mute=False):
        self.sock = sock
        self.mute = mute
        self.sent = 0
        self.heard = b""
        self.refused = 0
        sock.setblocking(False)

    def drain(self, seconds=0.0):
        while not self.mute:
            ready, _, _ = select.select([self.sock], [], [], seconds)
            if not ready:
                return
            try:
                data, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 8)
            except BlockingIOError:
                return
            except OSError as e:
                raise Cut from e
            for fd in fds:
                os.close(fd)
            if data == b"":
                raise Cut
            self.heard += data
            self.take()

    def take(self):
        while len(self.heard) >= 16:
            _, _, code, header, payload = wire.PREFIX.unpack(self.heard[:16])
            if len(self.heard) < 16 + header + payload:
                return
            if code in (MESSAGES["l_done"]["code"],
                        MESSAGES["l_key_info"]["code"]):
                fields, _ = wire.unpack(self.heard[16:16 + header])
                ids = {f["id"]: f["name"] for m in ("l_done", "l_key_info")
                       if MESSAGES[m]["code"] == code
                       for f in MESSAGES[m]["fields"]}
                named = {ids[k]: v for k, v in fields.items() if k in ids}
                self.refused += named.get("error", 0) != 0
            self.heard = self.heard[16 + header + payload:]

    def send(self, data, fds=(), patience=1.0):
        """False: the daemon does not read."""
        self.drain()
        end = time.monotonic() + patience
        fds = list(fds)
        while data:
            try:
                n = (socket.send_fds(self.sock, [data], fds) if fds
                     else self.sock.send(data))
                data, fds = data[n:], []
            except BlockingIOError:
                self.drain()
                if time.monotonic() > end:
                    return False
                select.select([], [self.sock], [], 0.05)
            except OSError as e:
                raise Cut from e
        self.sent += 1
        return True

    def close(self):
        self.sock.close()


def sealed(size):
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


class Attack:
    def __init__(self, where):
        self.where = where
        self.end = time.monotonic() + where.seconds
        self.random = random.Random(where.seed)
        self.peers = []
        self.jobs = 0
        self.sent = self.cuts = self.refused = 0
        self.notes = {}

    def over(self):
        return time.monotonic() >= self.end

    def worker(self, mute=False, send_hello=True, **hello):
        sock = wire.connect_unix(self.where.socket)
        peer = Peer(sock, mute)
        self.peers.append(peer)
        if send_hello:
            self.jobs += 1
            fields = dict(job=f"evil{os.getpid()}-{self.jobs}", num_servers=1)
            fields.update(hello)
            peer.send(wire.l_hello(**fields))
        return peer

    def tcp(self, port, mute=False):
        peer = Peer(wire.connect(port), mute)
        self.peers.append(peer)
        return peer

    def drop(self, peer):
        self.sent += peer.sent
        self.refused += peer.refused
        peer.close()
        if peer in self.peers:
            self.peers.remove(peer)

    def run(self, kind):
        """One life after the other until the time is up."""
        life = {**KINDS, **ALLOWED, **ENCRYPTED}[kind]
        while not self.over():
            try:
                life(self)
            except (Cut, OSError, EOFError):
                self.cuts += 1
                time.sleep(0.02)
            for peer in list(self.peers):
                self.drop(peer)
        print(json.dumps(dict(sent=self.sent, cuts=self.cuts,
                              refused=self.refused, **self.notes)),
              flush=True)


# -------------------------------------------------------------------- lives

def regions(a):
    w = a.worker()
    fd = sealed(4096)
    try:
        number = 0
        while not a.over():
            number += 1
            w.send(message("l_region", region=number, size=4096), [fd])
    finally:
        os.close(fd)


def space(a):
    w = a.worker()
    number = 0
    while not a.over():
        number += 1
        fd = sealed(1 << 44)
        try:
            w.send(message("l_region", region=number, size=1 << 44), [fd])
        finally:
            os.close(fd)


def queries(a):
    name = f"evil{os.getpid()}-{a.jobs}-why"
    ranks = [a.worker(job=name, num_workers=2, rank=r) for r in range(2)]
    ranks[0].drain(0.5)
    ranks[0].send(message("l_barrier", op_id=7, number=1))
    why = message("l_stall_query", op_id=7) * 200
    while not a.over():
        ranks[0].send(why)
        ranks[1].drain()


def declarations(a):
    w = a.worker(partition_bytes=4096)
    w.drain(0.5)
    number = 0
    while not a.over():
        number += 1
        w.send(message("l_key", request=number, name=f"{number}", dtype=0,
                       count=1024 * 65536, shape=[1024 * 65536], row_width=0))


def readers(a):
    """None of them reads an answer."""
    w = a.worker(mute=True)
    tools = [a.tcp(a.where.sched, mute=True) for _ in range(4)]
    for t in tools:
        t.send(wire.hello("ctl"))
    number = 0
    while not a.over():
        number += 1
        alive = w.send(message("l_key", request=number, name="", dtype=0,
                               count=0, shape=[]) * 100, patience=0.2)
        for t in tools:
            t.send(message("query", what=number % 4, job="") * 20,
                   patience=0.05)
        if not alive:
            time.sleep(0.1)


def sessions(a):
    held = []
    while not a.over():
        try:
            held.append(a.worker(num_workers=1000, start_timeout_ns=U64))
            held[-1].drain()
        except (Cut, OSError):
            a.cuts += 1
            time.sleep(0.05)
        alive = []
        for w in held:
            try:
                w.drain()
                alive.append(w)
            except Cut:
                a.cuts += 1
                a.drop(w)
        held = alive


def hellos(a):
    for node in range(1, 12):
        for incarnation in (1, 2, 1 << 32, U64):
            if a.over():
                return
            p = a.tcp(a.where.server)
            p.send(wire.hello("agent", name=f"node{node}", node=node,
                              incarnation=incarnation,
                              session=a.random.getrandbits(63)))
            p.send(message("ping", stamp=1, epoch=1, rounds=1, bytes_in=1,
                           bytes_out=1, stored_bytes=1, resent=1))
            try:
                p.drain(0.02)
            except Cut:
                a.cuts += 1
            a.drop(p)


def offences(a):
    while not a.over():
        for connect in (lambda: wire.connect(a.where.sched),
                        lambda: wire.connect(a.where.server),
                        lambda: wire.connect_unix(a.where.socket)):
            s = connect()
            try:
                s.sendall(frame(255, b"\x80"))
                a.sent += 1
            except OSError:
                a.cuts += 1
            s.close()


def memory(a):
    """Keys that do not fit in the server, one by one and many times, each with
    a first value that would. All are refused before anything is touched."""
    fits = 64 << 20
    size = 1 << 40
    w = a.worker()
    w.drain(0.5)
    fd = sealed(fits)
    w.send(message("l_region", region=1, size=fits), [fd])
    os.close(fd)
    number = 0
    while not a.over():
        number += 1
        size = max(size // 2, 4 * fits)
        w.send(message("l_key", request=number, name=f"{number}", dtype=0,
                       count=size // 4, shape=[size // 4]))
        w.drain(0.002)
        w.send(message("l_op", op_id=number, op=OP["init"], key=0, region=1))


def fills(a):
    """First values until the server has no room; then the job ends. What it
    has until then limits grant to it."""
    size = 64 << 20
    w = a.worker()
    w.drain(0.5)
    fd = sealed(size)
    w.send(message("l_region", region=1, size=size), [fd])
    os.close(fd)
    for number in range(64):
        if a.over():
            return
        w.send(message("l_key", request=number, name=f"{number}", dtype=0,
                       count=size // 4, shape=[size // 4]))
        w.drain(0.2)
        w.send(message("l_op", op_id=number, op=OP["init"], key=number,
                       region=1))
        w.drain(0.2)


def counts(a):
    """Numbers that wrap, or are just allowed, in each field that counts."""
    pick = a.random.choice
    name = f"evil{os.getpid()}-{a.jobs}-counts"
    ranks = [a.worker(job=name, num_workers=2, rank=r) for r in range(2)]
    fd = sealed(1 << 34)
    for w in ranks:
        w.drain(0.3)
        w.send(message("l_region", region=1, size=1 << 34), [fd])
        for number, (count, width) in enumerate(
                [(1 << 16, 0), (1 << 16, 1), (1 << 20, 64), (1 << 28, 1)]):
            w.send(message("l_key", request=number, name=f"k{number}",
                           dtype=0, count=count, shape=[count], row_width=width))
        w.drain(0.3)
    os.close(fd)
    rounds = 0
    while not a.over():
        rounds += 1
        w = pick(ranks)
        what = a.random.randrange(6)
        if what == 0:
            w.send(message("l_op", op_id=rounds,
                           op=pick([OP["push_rows"], OP["pull_rows"]]),
                           key=pick([1, 2, 3]), region=1,
                           offset=pick([0, 8, pick(LONG)]), row_count=pick(COUNTS),
                           round=pick([0, 1, pick(LONG)])))
        elif what == 1:
            count = pick(LONG)
            w.send(message("l_key", request=rounds, name=f"x{rounds}",
                           dtype=pick([0, 1, 3, 2]), count=count,
                           shape=[count], row_width=pick(COUNTS)))
        elif what == 2:
            w.send(message("l_op", op_id=rounds, op=pick(list(OP.values())),
                           key=pick(COUNTS[:4]), region=pick(COUNTS),
                           offset=pick(LONG), round=pick(LONG[:6]),
                           root=pick([0, 1, 65535]), row_count=pick(COUNTS),
                           samples=pick(COUNTS)))
        elif what == 3:
            w.send(message("l_optimizer_state", op_id=rounds, key=pick(COUNTS[:4]),
                           buffer_index=pick([0, 1, 255]), is_put=pick([True, False]),
                           steps=pick(LONG), region=1, offset=pick(LONG)))
        elif what == 4:
            w.send(message("l_barrier", op_id=rounds, number=pick(LONG)))
        else:  # A push to a key without init, then the init.
            for r in ranks:
                r.send(message("l_op", op_id=rounds, op=OP["push"], key=0,
                               region=1, round=1))
            for r in ranks:
                r.send(message("l_op", op_id=rounds + (1 << 40),
                               op=OP["init"], key=0, region=1))


def names(a):
    """As agents and servers that nobody knows, with numbers that wrap."""
    pick = a.random.choice
    role = pick(["agent", "server"])
    p = a.tcp(a.where.sched)
    p.send(wire.hello(role, name=f"evil{a.random.randrange(8)}",
                      instance=a.random.getrandbits(63) | 1,
                      session=a.random.getrandbits(63) | 1,
                      address="127.0.0.1:1" if role == "server" else ""))
    for number in range(1, 200):
        if a.over():
            return
        if role == "server":
            data = message("ping", seq=0, stamp=pick(LONG), epoch=pick(COUNTS),
                           rounds=pick(LONG), bytes_in=pick(LONG),
                           bytes_out=pick(LONG), stored_bytes=pick(LONG),
                           resent=pick(LONG))
        elif number % 2 == 0:
            data = message("job_open", seq=number, worker=pick(LONG),
                           name=f"evil{number}", uid=pick(COUNTS),
                           num_workers=pick(COUNTS), num_servers=pick(COUNTS),
                           rank=pick([-1, 0, 1, 4095]), mode=0, on_loss=0,
                           placement=0, big_array_bound=pick(LONG),
                           partition_bytes=pick(COUNTS),
                           start_timeout_ns=pick(LONG), host="evil")
        else:
            data = message("key_open", seq=number, gen=pick(LONG),
                           request=pick(LONG), name="w", dtype=0,
                           count=pick(LONG), shape=[pick(LONG)],
                           mxnet_key=-1, row_width=pick(COUNTS))
        p.send(data)
        p.drain(0.002)


def tools(a):
    pick = a.random.choice
    p = a.tcp(a.where.sched)
    p.send(wire.hello("ctl"))
    while not a.over():
        p.send(message("query", what=a.random.randrange(7),
                       job=pick(["", "x", "a/b", "e" * 255])))
        p.drain(0.002)


class Program:
    """A job of training processes that do what is allowed: two ranks of
    integration_worker."""

    def __init__(self, a, *lines):
        import trio  # Not everywhere where hostile peers run.
        self.a = a
        a.jobs += 1
        self.ranks = [trio.Worker(a.where.socket,
                                  f"evil{os.getpid()}-{a.jobs}", rank, 2,
                                  PSKV_NUM_SERVERS=1, PSKV_ON_LOSS="fail")
                      for rank in range(2)]
        for line in ("open", *lines):
            for w in self.ranks:
                w.say(line)
            for w in self.ranks:
                w.hear()
            a.sent += 2

    def say(self, line):
        for w in self.ranks:
            w.say(line)
        self.a.sent += 2

    def push_on(self, rounds, value, keys):
        """Pushes and pulls arrays of the value as fast as it goes, until the
        time is over; `sent` counts the rounds."""
        line = f"rounds ={value} {rounds} 0 0 " + " ".join(map(str, keys))
        try:
            while not self.a.over():
                for w in self.ranks:
                    w.say(line)
                for w in self.ranks:
                    w.hear()
                self.a.sent += rounds
        finally:
            self.kill()

    def kill(self):
        for w in self.ranks:
            w.kill()
            for pipe in (w.process.stdin, w.process.stdout):
                pipe.close()


ENDLESS = 1_000_000_000


def rates(a):
    """Large arrays, one round after the other, as fast as it goes."""
    p = Program(a, *(f"key w{i} float32 4000000" for i in range(4)))
    p.push_on(8, "1", range(4))


def pieces(a):
    """The same with many small keys."""
    p = Program(a, *(f"key w{i} float32 1000" for i in range(300)))
    p.push_on(100, "1", range(300))


def crashes(a):
    """Killed within a round, and started again."""
    while not a.over():
        p = Program(a, "key w float32 4000000")
        p.say(f"rounds =1 {ENDLESS} 0 0 0")
        time.sleep(a.random.uniform(0, 0.1))
        for w in p.ranks:  # An answer before the end is an error.
            if select.select([w.process.stdout], [], [], 0)[0]:
                w.hear()
        p.kill()
        a.cuts += 1


def nans(a):
    """Gradients that are not finite, at an optimizer that skips them."""
    with tempfile.TemporaryDirectory() as folder:
        zero = os.path.join(folder, "zero")
        with open(zero, "wb") as f:
            f.write(bytes(4_000_000))
        p = Program(a, "key w float32 1000000",
                    "sgd learning_rate=0.1 skip_nonfinite=1",
                    f"init 0 src={zero}")
    p.push_on(50, "nan", range(1))


def dialers(a):
    """10,000 connections of a caller without a certificate of the cluster."""
    d = Dialers([a.where.sched, a.where.server], a.where.tls,
                a.where.connections, a.where.seed)
    d.run(a.end - time.monotonic())
    a.sent += d.begun
    a.cuts += d.ended
    a.notes.update(most=d.most, **d.longest)


KINDS = {f.__name__: f for f in (
    regions, space, queries, declarations, readers, sessions, hellos,
    offences, memory, fills, counts, names, tools)}
# Jobs that do only what is allowed, for soaks.
ALLOWED = {f.__name__: f for f in (rates, pieces, crashes, nans)}
# At daemons that use TLS.
ENCRYPTED = {f.__name__: f for f in (dialers,)}
# Kinds that are several peers at the same time, with the user of each: three jobs
# of two users, beside the job of a third.
TOGETHER = {"users": (("rates", 0), ("crashes", 1), ("nans", 1))}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("kind", choices=sorted([*KINDS, *ALLOWED, *ENCRYPTED]))
    p.add_argument("--socket", required=True)
    p.add_argument("--sched", type=int, required=True)
    p.add_argument("--server", type=int, required=True)
    p.add_argument("--seconds", type=float, required=True)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--uid", type=int)
    p.add_argument("--tls", help="folder of a certificate of another cluster")
    p.add_argument("--connections", type=int, default=10_000)
    where = p.parse_args()
    os.nice(10)  # Only the work of the daemon is measured.
    if where.uid is not None:
        os.setgid(where.uid)
        os.setuid(where.uid)
    Attack(where).run(where.kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
