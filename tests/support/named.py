# SPDX-License-Identifier: Apache-2.0
"""A minimal agent: the scheduler knows it, it has the only worker of a job,
and it sends messages of tests to servers of that job."""
import select
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
