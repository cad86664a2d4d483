# SPDX-License-Identifier: Apache-2.0
"""A training process that sends its agent hand-made messages: those that no
library sends, any number, in the name of any user."""
import fcntl
import itertools
import os
import signal
import socket

import wire
from trio import PATIENCE, PRCTL, ready_now
from wire import MESSAGES, message

F_ADD_SEALS = 1033
SEALS = 7  # Against sealing, shrinking and growing.
NAMES = {m["code"]: name for name, m in MESSAGES.items()}
jobs = itertools.count(1)


def memfd(size):
    """Sealed, sparse."""
    fd = os.memfd_create("raw", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.fchmod(fd, 0o600)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, F_ADD_SEALS, SEALS)
    return fd


def connect_as(path, uid):
    """(socket, process): the kernel notes whose process connects, and the
    agent when that ends, so it lives until it is killed. Needs root."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            keep = theirs.fileno()  # No copy of others' connections.
            os.closerange(3, keep)
            os.closerange(keep + 1, 65536)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            PRCTL(1, signal.SIGKILL)  # With the test.
            s = wire.connect_unix(path)
            socket.send_fds(theirs, [b"x"], [s.fileno()])
            s.close()
            while True:
                signal.pause()
        finally:
            os._exit(1)
    theirs.close()
    with ours:
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    assert fds, f"user {uid} cannot connect to {path}"
    return socket.socket(fileno=fds[0]), child


class Raw:
    def __init__(self, path, uid=None, seconds=PATIENCE, **hello):
        """Says hello and nothing else; fields of l_hello by name."""
        if uid is None:
            self.sock, self.process = wire.connect_unix(path), None
        else:
            self.sock, self.process = connect_as(path, uid)
        self.sock.settimeout(seconds)
        self.data = b""
        self.last_words = None
        self.job = f"raw{next(jobs)}"
        hello.setdefault("job", self.job)
        self.sock.sendall(wire.l_hello(**hello))

    def send(self, data, fds=()):
        if fds:
            socket.send_fds(self.sock, [data], list(fds))
        else:
            self.sock.sendall(data)

    def say(self, name, /, **fields):
        self.send(message(name, **fields))

    def region(self, number, size, fd=None):
        own = memfd(size) if fd is None else fd
        self.send(message("l_region", region=number, size=size), [own])
        if fd is None:
            os.close(own)

    def hear(self):
        """(name, fields) of the next message; EOFError at the end."""
        while True:
            if len(self.data) >= 16:
                _, _, code, header, _ = wire.PREFIX.unpack(self.data[:16])
                if len(self.data) >= 16 + header:
                    fields, _ = wire.unpack(self.data[16:16 + header])
                    self.data = self.data[16 + header:]
                    name = NAMES[code]
                    ids = {f["id"]: f["name"]
                           for f in MESSAGES[name]["fields"]}
                    fields = {ids[k]: v for k, v in fields.items()
                              if k in ids}
                    if name in ("l_error", "reject"):
                        self.last_words = fields.get("text", "")
                    return name, fields
            try:
                more, fds, _, _ = socket.recv_fds(self.sock, 1 << 16, 32)
            except ConnectionError:
                raise EOFError from None
            for fd in fds:
                os.close(fd)
            if not more:
                raise EOFError("the agent hung up")
            self.data += more

    def await_(self, *names):
        """The next message with one of these names."""
        while True:
            name, fields = self.hear()
            if name in names:
                return fields

    def welcome(self):
        name, fields = self.hear()
        assert name == "l_welcome", (name, fields)
        return self

    def pending(self):
        """Is there something to read?"""
        return bool(self.data) or bool(ready_now([self.sock]))

    def key(self, number, count, dtype=0, **more):
        """Declares a key and returns the answer."""
        self.say("l_key", request=number, name=f"k{number}", dtype=dtype,
                 count=count, shape=[count], **more)
        return self.await_("l_key_info")

    def end(self):
        """The agent's last message before it closes; None: none."""
        try:
            while True:
                self.hear()
        except EOFError:
            return self.last_words

    def close(self):
        self.sock.close()
        if self.process is not None:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
            self.process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
