# SPDX-License-Identifier: Apache-2.0
"""Frames for tests that speak to daemons themselves, well or badly. Names and
field ids come from proto/messages.toml; the bytes are packed by hand, so that
nothing that is wrong is put right."""
import socket
import struct
import tomllib
from pathlib import Path

from trio import PATIENCE, Deadline

TABLE = tomllib.loads((Path(__file__).resolve().parents[2] / "proto" /
                       "messages.toml").read_text())
MESSAGES = {m["name"]: m for m in TABLE["message"]}
ENUMS = {e["name"]: {v["name"]: v["value"] for v in e["values"]}
         for e in TABLE["enum"]}
# frame_prefix; the last number is its payload_len, and what stands above 32
# bits is its ref_count and what is reserved.
PREFIX = struct.Struct("<2sBBIQ")


class Binary(bytes):
    """Value of a field of type "bin"."""


def pack(value):
    """msgpack of the kinds that messages have."""
    if value is None:
        return b"\xc0"
    if value is True:
        return b"\xc3"
    if value is False:
        return b"\xc2"
    if isinstance(value, int):
        if 0 <= value < 128:
            return bytes([value])
        if value < 0:
            return b"\xd3" + struct.pack(">q", value)
        return b"\xcf" + struct.pack(">Q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        value = value.encode()
        return b"\xdb" + struct.pack(">I", len(value)) + value
    if isinstance(value, Binary):
        return b"\xc6" + struct.pack(">I", len(value)) + bytes(value)
    if isinstance(value, (bytes, bytearray)):  # Raw bytes as a string.
        return b"\xdb" + struct.pack(">I", len(value)) + bytes(value)
    if isinstance(value, (list, tuple)):
        return (b"\xdd" + struct.pack(">I", len(value)) +
                b"".join(pack(v) for v in value))
    if isinstance(value, dict):
        return (b"\xdf" + struct.pack(">I", len(value)) +
                b"".join(pack(k) + pack(v) for k, v in value.items()))
    raise TypeError(value)


def frame(code, header, payload=b"", version=1, header_len=None,
          payload_len=None):
    """Prefix, header, payload; lengths may lie."""
    return PREFIX.pack(b"PS", version, code,
                       len(header) if header_len is None else header_len,
                       len(payload) if payload_len is None else payload_len
                       ) + header + payload


def header(name, /, **fields):
    known = {f["name"]: f for f in MESSAGES[name]["fields"]}
    ids = {k: f["id"] for k, f in known.items()}
    ids.update(seq=1, ack=2)
    return pack({ids[k]: Binary(v) if isinstance(v, bytes) and
                 known.get(k, {}).get("type") == "bin" else v
                 for k, v in fields.items()})


def message(name, /, payload=b"", **fields):
    return frame(MESSAGES[name]["code"], header(name, **fields), payload)


def hello(role, name="tester", cluster="default", **more):
    fields = dict(protocol=1, protocol_least=1, role=ENUMS["role"][role],
                  name=name, cluster=cluster, instance=0x1234567)
    fields.update(more)
    return message("hello", **fields)


def l_hello(job="hostile", **more):
    fields = dict(protocol=1, job=job, num_workers=1, num_servers=0, rank=-1,
                  mode=0, on_loss=1, placement=0, big_array_bound=1000000,
                  partition_bytes=1048576, start_timeout_ns=10**10)
    fields.update(more)
    return message("l_hello", **fields)


def read_exactly(sock, n):
    data = b""
    while len(data) < n:
        more = sock.recv(n - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def read_frame(sock):
    """(code, header bytes, payload bytes)"""
    magic, _, code, header_len, payload_len = PREFIX.unpack(
        read_exactly(sock, PREFIX.size))
    assert magic == b"PS"
    return code, read_exactly(sock, header_len), read_exactly(sock,
                                                              payload_len)


def unpack(data, at=0):
    """(value, next offset) of one msgpack value."""
    b = data[at]
    if b < 0x80:
        return b, at + 1
    if b >= 0xe0:
        return b - 256, at + 1
    if b & 0xe0 == 0xa0:
        n = b & 31
        return data[at + 1:at + 1 + n].decode(), at + 1 + n
    if b & 0xf0 in (0x80, 0x90):
        return containers(data, at + 1, b & 15, b & 0xf0 == 0x80)
    simple = {0xc0: None, 0xc2: False, 0xc3: True}
    if b in simple:
        return simple[b], at + 1
    numbers = {0xca: ">f", 0xcb: ">d", 0xcc: ">B", 0xcd: ">H", 0xce: ">I",
               0xcf: ">Q", 0xd0: ">b", 0xd1: ">h", 0xd2: ">i", 0xd3: ">q"}
    if b in numbers:
        s = struct.Struct(numbers[b])
        return s.unpack_from(data, at + 1)[0], at + 1 + s.size
    lengths = {0xd9: ">B", 0xda: ">H", 0xdb: ">I", 0xc4: ">B", 0xc5: ">H",
               0xc6: ">I", 0xdc: ">H", 0xdd: ">I", 0xde: ">H", 0xdf: ">I"}
    s = struct.Struct(lengths[b])
    n = s.unpack_from(data, at + 1)[0]
    at += 1 + s.size
    if b in (0xdc, 0xdd, 0xde, 0xdf):
        return containers(data, at, n, b in (0xde, 0xdf))
    raw = data[at:at + n]
    return raw.decode() if b in (0xd9, 0xda, 0xdb) else raw, at + n


def containers(data, at, n, is_map):
    if is_map:
        out = {}
        for _ in range(n):
            key, at = unpack(data, at)
            out[key], at = unpack(data, at)
        return out, at
    out = []
    for _ in range(n):
        value, at = unpack(data, at)
        out.append(value)
    return out, at


def connect(port, address="127.0.0.1", seconds=PATIENCE):
    s = socket.create_connection((address, port), timeout=seconds)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def connect_unix(path, seconds=PATIENCE):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(seconds)
    s.connect(path)
    return s


def is_cut(sock, seconds=PATIENCE):
    """True if the peer closes within the time; its messages are read."""
    deadline = Deadline(seconds)
    while True:
        sock.settimeout(max(0.01, deadline.rest()))
        try:
            if sock.recv(65536) == b"":
                return True
        except (ConnectionError, BrokenPipeError):
            return True
        except TimeoutError:
            return False
