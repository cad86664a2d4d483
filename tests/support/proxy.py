# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that does harm: connections through it are cut after a random
number of bytes, in the middle of whatever they carry, or one bit of what they
carry is changed there.

    proxy = Proxy(("127.0.0.2", port), ("127.0.0.1", port), seed=1)
    proxy.cut_every(100_000, count=200)   # bytes in the mean, cuts in all
    proxy.change_every(100_000, count=200)   # the same for changed bits
    ...
    proxy.cuts, proxy.changes, proxy.close()

A server that is told to advertise 127.0.0.2 is reached through a proxy that
listens there on the server's own port."""
import random
import selectors
import socket
import struct
import threading

from trio import limit

CHUNK = 65536
# No bit of the handshake is changed: it has no checksum.
HANDSHAKE = 1024


class Side:
    """One socket of a pair."""

    def __init__(self, sock):
        self.sock = sock
        self.other = None
        self.pair = None
        self.out = bytearray()  # To be written here.
        self.ended = False      # This side has ended.
        self.seen = 0           # Bytes that it has sent.


class Pair:
    def __init__(self, left):
        self.sides = (left, None)
        self.budget = None  # Bytes until the cut.
        self.bytes = 0


class Proxy:
    def __init__(self, listen, target, seed=0):
        self.target = target
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.mean = None
        self.left = 0  # Cuts or changes still to be made.
        self.changing = False
        self.cuts = 0
        self.changes = 0
        self.connections = 0
        self.bytes = 0
        self.selector = selectors.DefaultSelector()
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind(listen)
        self.listener.listen(64)
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.wake_read, self.wake_write = socket.socketpair()
        self.selector.register(self.listener, selectors.EVENT_READ, None)
        self.selector.register(self.wake_read, selectors.EVENT_READ, "wake")
        self.closing = False
        self.pairs = set()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    # ------------------------------------------------------- for the test

    def cut_every(self, mean, count):
        """From now on, also for connections that are there."""
        with self.lock:
            self.mean = mean
            self.left = count
            self.changing = False
        self.wake()

    def change_every(self, mean, count):
        """The same with changed bits in place of cuts."""
        with self.lock:
            self.mean = mean
            self.left = count
            self.changing = True
        self.wake()

    def close(self):
        self.closing = True
        self.wake()
        self.thread.join(limit(30))
        self.selector.close()
        self.wake_read.close()
        self.wake_write.close()

    # ------------------------------------------------------- in the thread

    def wake(self):
        self.wake_write.send(b"x")

    def draw(self):
        with self.lock:
            if self.left == 0:
                return None
            return int(self.random.expovariate(1 / self.mean)) + 1

    def run(self):
        while not self.closing:
            for key, events in self.selector.select():
                if key.data is None:
                    self.accept()
                elif key.data == "wake":
                    self.wake_read.recv(64)
                    for pair in self.pairs:
                        if pair.budget is None:
                            pair.budget = self.draw()
                elif key.fd >= 0 and key.fileobj.fileno() >= 0:
                    if events & selectors.EVENT_WRITE:
                        self.write(key.data)
                    if events & selectors.EVENT_READ and \
                            key.fileobj.fileno() >= 0:
                        self.read(key.data)
        for pair in list(self.pairs):
            self.drop(pair, hard=True)
        self.listener.close()

    def accept(self):
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        try:
            far = socket.create_connection(self.target, timeout=limit(10))
        except OSError:
            sock.close()
            return
        self.connections += 1
        near, far = Side(sock), Side(far)
        pair = Pair(near)
        pair.sides = (near, far)
        pair.budget = self.draw()
        near.other, far.other = far, near
        for side in pair.sides:
            side.pair = pair
            side.sock.setblocking(False)
            side.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pairs.add(pair)
        self.watch(near)
        self.watch(far)

    def watch(self, side):
        if side.sock.fileno() < 0:
            return
        events = 0
        if not side.ended and len(side.other.out) < 4 * CHUNK:
            events |= selectors.EVENT_READ
        if side.out:
            events |= selectors.EVENT_WRITE
        known = side.sock in self.selector.get_map()
        if events == 0:
            if known:
                self.selector.unregister(side.sock)
        elif known:
            self.selector.modify(side.sock, events, side)
        else:
            self.selector.register(side.sock, events, side)

    def read(self, side):
        pair = side.pair
        try:
            data = side.sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self.drop(pair, hard=True)
            return
        if not data:
            side.ended = True
            if side.other.out:
                self.watch(side)  # Bytes under way leave first.
            else:
                self.drop(pair, hard=False)
            return
        side.seen += len(data)
        if pair.budget is not None:
            if len(data) >= pair.budget and self.changing:
                data = self.change(side, data)
            elif len(data) >= pair.budget:
                side.other.out += data[:pair.budget]
                self.cut(pair)
                return
            else:
                pair.budget -= len(data)
        self.bytes += len(data)
        pair.bytes += len(data)
        side.other.out += data
        self.write(side.other)
        self.watch(side)

    def write(self, side):
        try:
            while side.out:
                n = side.sock.send(side.out)
                del side.out[:n]
        except BlockingIOError:
            pass
        except OSError:
            self.drop(side.pair, hard=True)
            return
        if side.other.ended and not side.out:
            self.drop(side.pair, hard=False)
            return
        self.watch(side)
        self.watch(side.other)

    def change(self, side, data):
        """The data with another bit where the budget of the pair ends."""
        pair = side.pair
        at = pair.budget - 1
        if side.seen - len(data) + at < HANDSHAKE:
            return data
        with self.lock:
            if self.left == 0:
                pair.budget = None
                return data
            self.left -= 1
            self.changes += 1
        data = bytearray(data)
        data[at] ^= 1 << self.random.randrange(8)
        pair.budget = self.draw()
        return data

    def cut(self, pair):
        """With the bytes so far delivered, as far as they go at once."""
        with self.lock:
            if self.left == 0:
                pair.budget = None
            else:
                self.left -= 1
                self.cuts += 1
        for side in pair.sides:
            try:
                side.sock.send(side.out)
            except OSError:
                pass
        self.drop(pair, hard=self.random.random() < 0.5)

    def drop(self, pair, hard):
        for side in pair.sides:
            if side.sock.fileno() < 0:
                continue
            if side.sock in self.selector.get_map():
                self.selector.unregister(side.sock)
            if hard:  # A reset instead of an end.
                side.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER,
                                     struct.pack("ii", 1, 0))
            side.sock.close()
        self.pairs.discard(pair)
