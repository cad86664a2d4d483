# SPDX-License-Identifier: Apache-2.0
"""messages.dict: words of the protocol for libFuzzer."""


def word(data):
    return '"' + "".join(f"\\x{byte:02x}" for byte in data) + '"'


def dictionary(schema):
    out = ["# SPDX-License-Identifier: Apache-2.0",
           "# Made by psgen from messages.toml; edit that.", "",
           "# Beginnings of frames."]
    for m in schema.messages:
        prefix = b"PS" + bytes([schema.protocol, m.code])
        out.append(f"{m.name}={word(prefix)}")
    out += ["", "# Field ids as they stand in a map."]
    numbers = {f.id for m in schema.messages for f in schema.all_fields(m)}
    out += [f"id_{n}={word(bytes([n]))}" for n in sorted(numbers)]
    constants = [(f"{r.name}_{f.name}", f) for r in schema.fixed
                 for f in r.fields if f.const is not None]
    if constants:
        out += ["", "# Constants of fixed records."]
    out += [f"{name}={word(f.const.to_bytes(f.size, 'little'))}"
            for name, f in constants]
    out += ["", "# Markers of msgpack, with lengths that bite."]
    markers = {
        "nil": "c0", "false": "c2", "true": "c3", "bin8": "c4ff",
        "bin16": "c5ffff", "bin32": "c6ffffffff", "ext8": "c70101",
        "float32": "ca", "float64": "cb7ff8000000000000",
        "uint8": "ccff", "uint16": "cdffff", "uint32": "ceffffffff",
        "uint64": "cfffffffffffffffff", "int8": "d080", "int16": "d18000",
        "int32": "d280000000", "int64": "d38000000000000000",
        "fixext1": "d4", "str8": "d9ff", "str16": "daffff",
        "str32": "dbffffffff", "array16": "dcffff",
        "array32": "dd10000000", "map16": "deffff", "map32": "dfffffffff",
    }
    out += [f"{name}={word(bytes.fromhex(text))}"
            for name, text in markers.items()]
    return "\n".join(out) + "\n"
