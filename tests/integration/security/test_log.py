# SPDX-License-Identifier: Apache-2.0
"""Peers can neither fill a log nor write lines of their own into it."""
import re
import socket

import pytest
import wire
from trio import Job, limit, SLOW, wait_for
from wire import message

MIB = 1 << 20
OFFENCES = int(20000 / SLOW)
LINE = re.compile(r"^\d{4}-\d\d-\d\dT[0-9:.]+Z "
                  r"(error|warning|notice|info) [a-z-]+: .+$")


@pytest.mark.parametrize("who", ["psched", "agent"])
def test_offences_are_counted(trio, who):
    """Each connection says one thing that is forbidden."""
    t = trio(servers=1, agents=1)
    daemon = t.sched if who == "psched" else t.agents()[0]
    bad = b"PS" + bytes([1, 250]) + bytes(12)
    since = len(daemon.text())
    for _ in range(OFFENCES):
        sock = (wire.connect(t.port) if who == "psched"
                else wire.connect_unix(t.socket(0)))
        sock.sendall(bad)
        assert wire.is_cut(sock)
        sock.close()
    # Everything is either written or in a count.
    def is_counted():
        text = daemon.text()[since:]
        written = text.count("connection closed")
        more = sum(int(n) for n in
                   re.findall(r"\(and (\d+) more lines of this kind\)", text))
        return written + more == OFFENCES
    wait_for(is_counted, "the count of all lines", limit(20))
    assert len(daemon.text()) - since < MIB / 16


def connect_from(address, port):
    return socket.create_connection(("127.0.0.1", port), timeout=60,
                                    source_address=(address, 0))


def test_a_flood_does_not_hide_the_lines_of_another_host(trio):
    """The log limits the lines of each kind and peer."""
    t = trio(servers=1, agents=1)
    bad = b"PS" + bytes([1, 250]) + bytes(12)
    since = len(t.sched.text())
    for address in ["127.0.0.1"] * 300 + ["127.0.0.9"]:
        sock = connect_from(address, t.port)
        sock.sendall(bad)
        assert wire.is_cut(sock)
        sock.close()
    wait_for(lambda: " more lines of this kind)" in t.sched.text()[since:],
             "the count of lines of the flood")
    text = t.sched.text()[since:]
    assert "connection closed peer=127.0.0.9:" in text
    # It is the line itself, and not a last one in place of a count.
    line = next(part for part in text.splitlines() if "127.0.0.9:" in part)
    assert "more lines" not in line, line


def test_names_do_not_write_lines(trio):
    """A key whose name looks like the end of a line and another one."""
    t = trio(servers=1, agents=1, agent_options=["local.memory=16MiB"])
    forged = "x\n2026-01-01T00:00:00.000Z error psched: all is lost\x1b[2J"
    sock = wire.connect_unix(t.socket(0))
    sock.sendall(wire.l_hello(job="forger", num_servers=1))
    assert wire.read_frame(sock)[0] == wire.MESSAGES["l_welcome"]["code"]
    # Its results do not fit, which the log says with its name.
    sock.sendall(message("l_key", request=1, name=forged, dtype=0,
                         count=5_000_000, shape=[5_000_000]))
    info = wire.MESSAGES["l_key_info"]
    code, header, _ = wire.read_frame(sock)
    while code != info["code"]:
        code, header, _ = wire.read_frame(sock)
    ids = {f["id"]: f["name"] for f in info["fields"]}
    fields = {ids.get(i, i): v for i, v in wire.unpack(header)[0].items()}
    assert "all is lost" in fields["text"]
    t.agents()[0].await_log("all is lost")
    sock.close()
    with Job(t, 1, "after") as job:
        job.key("w", "float32", 10)
    for d in t.daemons.values():
        lines = d.text().split("\n")[:-1]
        assert all(LINE.match(line) and "2026-01-01" != line[:10]
                   for line in lines), lines
        assert "\x1b" not in d.text()
