# SPDX-License-Identifier: Apache-2.0
"""Thousands of connections at a time to the TCP ports of daemons that use TLS,
from a caller that is no member of the cluster. Each connection does one thing
until the daemon closes it:

idle    nothing
half    half of a ClientHello
drip    one byte of a ClientHello each second
mute    a ClientHello, and reads no answer
bomb    records of the greatest length, frames without TLS, garbage
wrong   the whole handshake, with a certificate of another cluster

The caller counts connections and keeps the longest life of each kind."""
import errno
import os
import random
import selectors
import socket
import ssl
import struct
import time

from trio import PATIENCE

KINDS = ("idle", "half", "drip", "mute", "bomb", "wrong")
# States of a socket in TCP_INFO.
ESTABLISHED, SYN_SENT = 1, 2
# Connections that may be begun in one turn, so that others are served.
BEGIN = 64


def client_context(folder):
    """Credentials of an agent of another cluster, from psctl pki."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(f"{folder}/agent.crt", f"{folder}/agent.key")
    return context


class Handshake:
    """TLS without its socket."""

    def __init__(self, context):
        self.input, self.output = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.input, self.output)
        self.advance()

    def advance(self):
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass

    def answer(self, data):
        self.input.write(data)
        self.advance()
        return self.output.read()


class Connection:
    def __init__(self, port, kind, dialers):
        self.kind = kind
        self.begun = time.monotonic()
        self.drip_at = self.begun
        self.sock = socket.socket()
        self.sock.setblocking(False)
        code = self.sock.connect_ex(("127.0.0.1", port))
        if code not in (0, errno.EINPROGRESS):
            self.sock.close()
            raise OSError(code, os.strerror(code))
        self.handshake = None
        self.out = b""
        self.begin(dialers)

    def begin(self, dialers):
        if self.kind == "idle":
            return
        if self.kind == "bomb":
            self.out = dialers.random.choice(dialers.bombs)
            return
        self.handshake = Handshake(dialers.context)
        hello = self.handshake.output.read()
        self.out = hello[:len(hello) // 2] if self.kind == "half" else hello

    def write(self, now):
        """Sends what is due; raises OSError when the daemon has hung up."""
        data = self.out
        if self.kind == "drip":
            data = data[:1] if now >= self.drip_at else b""
        if data:
            try:
                n = self.sock.send(data)
            except (BlockingIOError, OSError) as e:
                if e.errno in (errno.EAGAIN, errno.ENOTCONN):
                    return
                raise
            self.out = self.out[n:]
            self.drip_at = now + 1

    def read(self):
        """False: the daemon has closed the connection."""
        if self.kind == "mute":
            # The end of the stream waits behind bytes that are not read.
            state = self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO,
                                         1)[0]
            return state in (ESTABLISHED, SYN_SENT)
        data = self.sock.recv(1 << 16)
        if data and self.handshake is not None and self.kind == "wrong":
            self.out += self.handshake.answer(data)
        return data != b""


class Dialers:
    def __init__(self, ports, folder, count, seed=1):
        self.ports = ports
        self.context = client_context(folder)
        self.count = count
        self.random = random.Random(seed)
        self.bombs = [
            b"\x17\x03\x03\xff\xff" + bytes(65535),
            b"\x16\x03\x03\x40\x00\x01\x00\xff\xff" + bytes(16380),
            struct.pack("<IIII", 0xffffffff, 1, 0xffffffff, 0xffffffff) * 4096,
            self.random.randbytes(1 << 16),
        ]
        self.selector = selectors.DefaultSelector()
        self.open = set()
        self.longest = dict.fromkeys(KINDS, 0.0)
        self.begun = self.ended = self.most = 0

    def end(self, c, now):
        self.longest[c.kind] = max(self.longest[c.kind], now - c.begun)
        if c.kind != "mute":
            self.selector.unregister(c.sock)
        c.sock.close()
        self.open.discard(c)
        self.ended += 1

    def dial(self):
        for _ in range(min(BEGIN, self.count - len(self.open))):
            try:
                c = Connection(self.random.choice(self.ports),
                               KINDS[self.begun % len(KINDS)], self)
            except OSError:
                return
            self.begun += 1
            if c.kind != "mute":
                self.selector.register(c.sock, selectors.EVENT_READ, c)
            self.open.add(c)
        self.most = max(self.most, len(self.open))

    def serve(self, c, now, is_readable):
        try:
            if is_readable and not c.read():
                self.end(c, now)
                return
            c.write(now)
        except BlockingIOError:
            pass
        except (OSError, ssl.SSLError):
            self.end(c, now)

    def is_incomplete(self):
        """Returns true until a connection of each kind has been cut."""
        return not all(self.longest.values())

    def run(self, seconds):
        """Takes up to PATIENCE more, on a slow machine, for each kind."""
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end or (
                self.is_incomplete() and now < end + PATIENCE):
            self.dial()
            readable = {key.data for key, _ in self.selector.select(0.05)}
            for c in list(self.open):
                self.serve(c, now, c in readable or c.kind == "mute")
        for c in self.open:
            c.sock.close()
        self.selector.close()
