# SPDX-License-Identifier: Apache-2.0
"""Members of a cluster that tests play. A minimal agent: the scheduler knows it,
it has the only worker of a job, and it sends messages of tests to servers of
that job. A minimal server: jobs get it, agents link with it, and it answers
nothing but sends them messages of tests."""
import queue
import select
import socket
import ssl
import struct
import threading

import wire
from wire import MESSAGES, message

RUNNING = wire.ENUMS["job_phase"]["running"]


def fields_of(name, data):
    names = {f["id"]: f["name"] for f in MESSAGES[name]["fields"]}
    names.update({1: "seq", 2: "ack"})
    return {names[k]: v for k, v in wire.unpack(data)[0].items()
            if k in names}


class NamedAgent:
    """Beats from a thread of its own until it is closed."""

    INSTANCE = 0x1234567

    def __init__(self, port, name="tester", job="named", servers=1,
                 cluster="default", context=None):
        """`context`: of TLS, with the certificate of that name."""
        self.name, self.cluster, self.context = name, cluster, context
        self.sock = self.connect(port)
        self.received = 0
        self.ended = threading.Event()
        self.sock.sendall(wire.hello("agent", name=name, session=7,
                                     cluster=cluster, instance=self.INSTANCE))
        welcome = self.await_message("welcome")
        self.node = welcome["node"]
        self.incarnation = welcome["incarnation"]
        self.sock.sendall(message(
            "job_open", seq=1, worker=1, name=job, uid=0, num_workers=1,
            num_servers=servers, rank=-1, mode=0, on_loss=0, placement=0,
            big_array_bound=10**6, partition_bytes=0, start_timeout_ns=0))
        while self.await_message("job_state")["phase"] != RUNNING:
            pass
        self.thread = threading.Thread(target=self.beat, daemon=True)
        self.thread.start()

    def connect(self, port):
        sock = wire.connect(port)
        return sock if self.context is None else self.context.wrap_socket(sock)

    def await_message(self, name):
        while True:
            code, data, _ = wire.read_frame(self.sock)
            for m in MESSAGES.values():
                if m["code"] == code:
                    fields = fields_of(m["name"], data)
                    self.received = max(self.received, fields.get("seq", 0))
                    if m["name"] == name:
                        return fields

    def beat(self):
        while not self.ended.is_set():
            try:
                self.sock.sendall(message("ping", ack=self.received,
                                          stamp=1))
                if select.select([self.sock], [], [], 0.2)[0]:
                    self.await_message("pong")
            except (OSError, EOFError):
                return
            self.ended.wait(0.1)

    def hello(self, **more):
        """Makes a server welcome it."""
        fields = dict(name=self.name, cluster=self.cluster, node=self.node,
                      incarnation=self.incarnation, instance=self.INSTANCE,
                      session=99)
        fields.update(more)
        return wire.hello("agent", **fields)

    def close(self):
        self.ended.set()
        self.thread.join()
        self.sock.sendall(message("worker_gone", seq=2, gen=0, worker=1,
                                  clean=True))
        self.sock.close()


class AgentLink:
    """A connection on which an agent has dialled a NamedServer. Its frames are
    read and acknowledged, and otherwise ignored."""

    def __init__(self, sock):
        self.sock = sock
        self.received = self.seq = 0
        self.pongs = queue.Queue()
        self.closed = threading.Event()
        self.lock = threading.Lock()

    def read(self):
        names = {m["code"]: n for n, m in MESSAGES.items()}
        try:
            while True:
                code, data, _ = self.read_frame()
                fields = fields_of(names[code], data)
                self.received = max(self.received, fields.get("seq", 0))
                if names[code] == "pong":
                    self.pongs.put(fields)
                elif fields.get("seq", 0) > 0:
                    self.send(message("ack", ack=self.received))
        except (OSError, EOFError, ValueError, struct.error):
            self.closed.set()

    def read_frame(self):
        """One thread at a time uses a socket of TLS."""
        pending = getattr(self.sock, "pending", int)
        while not pending() and not select.select([self.sock], [], [], 60)[0]:
            pass
        with self.lock:
            return wire.read_frame(self.sock)

    def send(self, data):
        with self.lock:
            self.sock.sendall(data)

    def say(self, name, /, payload=b"", **fields):
        """False: the agent has closed the connection."""
        self.seq += 1
        try:
            self.send(message(name, payload, seq=self.seq, ack=self.received,
                              **fields))
        except OSError:
            self.closed.set()
        return not self.closed.is_set()

    def answers(self, seconds=30):
        """True if the agent has read everything and keeps the connection."""
        try:
            self.send(message("ping", ack=self.received, stamp=1))
        except OSError:
            return False
        while not self.closed.is_set():
            try:
                self.pongs.get(timeout=0.05)
                return True
            except queue.Empty:
                seconds -= 0.05
                assert seconds > 0, "the agent neither answers nor closes"
        return False


class NamedServer:
    """`own`: TLS context with which it dials the scheduler, `accepts`: with
    which it accepts agents; both have its certificate. None: no TLS."""

    def __init__(self, port, name, cluster="default", own=None, accepts=None):
        self.links = queue.Queue()  # AgentLink, the newest last.
        self.gens = queue.Queue()   # Of jobs that have this server.
        self.accepts = accepts
        self.ended = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        sock = wire.connect(port)
        self.sock = sock if own is None else own.wrap_socket(sock)
        self.received = self.seq = 0
        self.sock.sendall(wire.hello("server", name=name, session=7,
                                     cluster=cluster, address=self.address))
        code, data, _ = wire.read_frame(self.sock)
        assert code == MESSAGES["welcome"]["code"], code
        self.node = fields_of("welcome", data)["node"]
        for work in (self.beat, self.accept):
            threading.Thread(target=work, daemon=True).start()

    def beat(self):
        """Pings, and takes every job."""
        names = {m["code"]: n for n, m in MESSAGES.items()}
        known = set()
        while not self.ended.is_set():
            try:
                self.sock.sendall(message("ping", ack=self.received, stamp=1))
                while select.select([self.sock], [], [], 0.1)[0] or (
                        hasattr(self.sock, "pending") and self.sock.pending()):
                    code, data, _ = wire.read_frame(self.sock)
                    fields = fields_of(names[code], data)
                    self.received = max(self.received, fields.get("seq", 0))
                    if names[code] == "job_state" and fields["phase"] < 3:
                        self.seq += 1
                        self.sock.sendall(message(
                            "job_ready", seq=self.seq, ack=self.received,
                            gen=fields["gen"], version=fields["version"],
                            round=0))
                        if fields["gen"] not in known:
                            known.add(fields["gen"])
                            self.gens.put(fields["gen"])
            except (OSError, EOFError, ssl.SSLError):
                return

    def accept(self):
        while not self.ended.is_set():
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            try:
                sock.settimeout(30)
                if self.accepts is not None:
                    sock = self.accepts.wrap_socket(sock, server_side=True)
                code, data, _ = wire.read_frame(sock)
                if code != MESSAGES["hello"]["code"]:
                    sock.close()
                    continue
                sock.sendall(message("welcome", protocol=1, name="liar",
                                     instance=1, node=1, incarnation=1,
                                     resumed=False))
                sock.settimeout(None)
            except (OSError, EOFError, ssl.SSLError):
                sock.close()
                continue
            link = AgentLink(sock)
            threading.Thread(target=link.read, daemon=True).start()
            self.links.put(link)

    def link(self, seconds=60):
        """The next connection of an agent."""
        try:
            return self.links.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError("no agent dials this server") from None

    def close(self):
        self.ended.set()
        self.listener.close()
        self.sock.close()
