# SPDX-License-Identifier: Apache-2.0
"""Many agents in one process, as far as a scheduler sees them: each has a
connection of its own, sends heartbeats, may have a worker of one job, and
answers stall queries. They sum nothing.

    agents.py --port PORT --count N [--job NAME --servers M]

Prints "joined SECONDS" when all are welcome, and "running SECONDS" when all know
that the job runs. Ends with its standard input."""
import argparse
import os
import random
import resource
import selectors
import sys
import time

import wire
from wire import ENUMS, MESSAGES, PREFIX, message

CODES = {name: m["code"] for name, m in MESSAGES.items()}
IDS = {name: {f["name"]: f["id"] for f in m["fields"]}
       for name, m in MESSAGES.items()}
SEQ = 1  # Field of the header of every message.


def first_fields(header, last):
    """Fields of a message up to the id `last`: they come in ascending order, and
    those of large lists are not read."""
    kind = header[0]
    if kind & 0xf0 == 0x80:
        count, at = kind & 15, 1
    else:
        count, at = int.from_bytes(header[1:3 if kind == 0xde else 5], "big"), (
            3 if kind == 0xde else 5)
    fields = {}
    for _ in range(count):
        key, at = wire.unpack(header, at)
        if key > last:
            break
        fields[key], at = wire.unpack(header, at)
    return fields


class Agent:
    def __init__(self, fleet, number):
        self.fleet = fleet
        self.number = number
        self.sock = wire.connect(fleet.port)
        self.data = b""
        self.sent = self.received = 0
        self.due = None  # Time of the next heartbeat.
        self.sock.sendall(wire.hello(
            "agent", name=f"node{number}", version="0",
            instance=random.getrandbits(63) | 1,
            session=random.getrandbits(63) | 1))
        self.sock.setblocking(False)

    def say(self, name, /, **fields):
        """Frames are few and small, so the system takes them whole."""
        self.sent += 1
        self.sock.send(message(name, seq=self.sent, ack=self.received,
                               **fields))

    def beat(self):
        self.sock.send(message("ping", seq=0, ack=self.received, stamp=1))

    def read(self):
        data = self.sock.recv(1 << 20)
        if not data:
            raise EOFError(f"agent {self.number} is cut off")
        self.data += data
        while len(self.data) >= PREFIX.size:
            _, _, code, header, payload = PREFIX.unpack_from(self.data)
            end = PREFIX.size + header + payload
            if len(self.data) < end:
                return
            head = self.data[PREFIX.size:PREFIX.size + header]
            self.data = self.data[end:]
            self.handle(code, head)

    def handle(self, code, head):
        seq = first_fields(head, SEQ).get(SEQ, 0)
        if seq > self.received:
            self.received = seq
        if code == CODES["welcome"]:
            fields = wire.unpack(head)[0]
            self.fleet.on_welcome(
                self, fields[IDS["welcome"]["heartbeat_ns"]] / 1e9)
        elif code == CODES["reject"]:
            raise EOFError(wire.unpack(head)[0])
        elif code == CODES["job_state"]:
            ids = IDS["job_state"]
            fields = first_fields(head, ids["phase"])
            self.fleet.on_phase(self, fields[ids["phase"]])
        elif code == CODES["stall_collect"]:
            ids = IDS["stall_collect"]
            fields = first_fields(head, ids["request"])
            self.say("stall_report", gen=fields[ids["gen"]],
                     request=fields[ids["request"]], ranks=[])


class Fleet:
    def __init__(self, options):
        self.port = options.port
        self.options = options
        self.begun = time.monotonic()
        self.joined = 0
        self.running = set()
        self.selector = selectors.DefaultSelector()
        self.agents = []
        for number in range(options.count):
            agent = Agent(self, number)
            self.agents.append(agent)
            self.selector.register(agent.sock, selectors.EVENT_READ, agent)

    def report(self, text):
        print(text, f"{time.monotonic() - self.begun:.3f}", flush=True)

    def on_welcome(self, agent, interval):
        self.interval = interval
        # Spread over the interval, as those of processes are.
        agent.due = time.monotonic() + random.uniform(0, interval)
        self.joined += 1
        if self.joined < len(self.agents) or self.joined < self.options.count:
            return
        self.report("joined")
        if self.options.job:
            for a in self.agents:
                a.say("job_open", worker=1, name=self.options.job,
                      uid=os.getuid(), num_workers=self.options.count,
                      num_servers=self.options.servers, rank=a.number, mode=0,
                      on_loss=0, placement=0, big_array_bound=1000000,
                      partition_bytes=0, start_timeout_ns=0,
                      host=f"host{a.number}")

    def on_phase(self, agent, phase):
        if phase == ENUMS["job_phase"]["running"] and agent not in self.running:
            self.running.add(agent)
            if len(self.running) == self.options.count:
                self.report("running")

    def run(self):
        self.selector.register(sys.stdin, selectors.EVENT_READ, None)
        while True:
            for key, _ in self.selector.select(0.01):
                if key.data is None:
                    return
                key.data.read()
            now = time.monotonic()
            for a in self.agents:
                if a.due is not None and a.due <= now:
                    a.beat()
                    a.due += self.interval


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--count", type=int, required=True)
    p.add_argument("--job")
    p.add_argument("--servers", type=int, default=1)
    options = p.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        Fleet(options).run()
    except EOFError as e:
        print("cut:", e, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
