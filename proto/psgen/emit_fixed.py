# SPDX-License-Identifier: Apache-2.0
"""ps_fixed.h and ps_fixed.c: records of fixed layout.

The struct of such a record is its bytes: little-endian, each field at its
offset, which static asserts hold. A record with atomic fields has a struct
only, because both sides access its fields one by one.
"""

from .emit_c import BANNER, C_TYPES, comment, static_assert
from .schema import INTEGERS

INTRO = (
    "Records of fixed layout: bytes that processes share in memory, and those "
    "that stand in front of frames and in payloads. A struct has the bytes of "
    "its record, so that both sides may use it in place; _LAYOUT is a hash of "
    "its fields, which builds compare. ps_fixed_put_ writes "
    "constants, and zeros in gaps; ps_fixed_get_ returns false for bytes that "
    "no put has written, and reads each byte once.")


def member(f):
    rows = comment(f.doc, 4)
    if f.type == "bytes":
        return [*rows, f"    uint8_t {f.name}[{f.size}];"]
    kind = "uint8_t" if f.type == "bool" else C_TYPES[f.type]
    word = "_Atomic " if f.atomic else ""
    return [*rows, f"    {word}{kind} {f.name};"]


def gap(row):
    return f"gap_{row[0]}"


def struct(r):
    name = f"struct ps_fixed_{r.name}"
    macro = f"PS_FIXED_{r.name.upper()}"
    out = [f"#define {macro}_BYTES {r.size}u",
           f"#define {macro}_LAYOUT {layout(r)}u"]
    for f in r.fields:
        if f.const is not None:
            out.append(f"#define {macro}_{f.name.upper()} "
                       f"{literal(f.type, f.const)}")
        if f.max is not None:
            out.append(f"#define {macro}_{f.name.upper()}_MAX "
                       f"{literal(f.type, f.max)}")
    out += [*comment(r.doc), f"{name} {{"]
    for row in r.rows():
        out += ([f"    uint8_t {gap(row)}[{row[1]}];"]
                if isinstance(row, tuple) else member(row))
    out += ["};"]
    out += static_assert(f"sizeof({name}) == {r.size}",
                         f"{r.name} has the bytes that the protocol states")
    for f in r.fields:
        out += ["_Static_assert(",
                f"    offsetof({name}, {f.name}) == {f.offset},",
                '    "lies where the protocol states");']
    if not r.atomic:
        out += [f"void ps_fixed_put_{r.name}(", f"    uint8_t *out, const {name} *v);",
                f"bool ps_fixed_get_{r.name}(",
                f"    const uint8_t *in, {name} *ret_v)",
                "    __attribute__((warn_unused_result));"]
    return [*out, ""]


def literal(kind, value):
    if value == INTEGERS["i64"][0]:
        return "INT64_MIN"
    if kind in ("u64", "i64"):
        return f"{'U' if kind[0] == 'u' else ''}INT64_C({value})"
    return f"{value}u" if kind[0] == "u" else str(value)


def layout(r):
    """A number that differs where the layout of a record does."""
    h = 2166136261
    text = f"{r.name},{r.size}" + "".join(
        f",{f.name},{f.type},{f.offset},{f.size},{f.const}" for f in r.fields)
    for byte in text.encode():
        h = (h ^ byte) * 16777619 % 2**32
    return h or 1


def header(schema):
    out = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        BANNER.format(path="messages.toml"), *comment(INTRO),
        "#pragma once", "",
        "#include <stdbool.h>", "#include <stddef.h>", "#include <stdint.h>",
        "", *static_assert("__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__",
                           "structs have the byte order of the protocol"),
        "",
    ]
    for r in schema.fixed:
        out += struct(r)
    return "\n".join(out).rstrip() + "\n"


def checks(f):
    """Conditions under which the value is refused."""
    at = f"v.{f.name}"
    if f.const is not None:
        return [f"{at} != {literal(f.type, f.const)}"]
    if f.type == "bool":
        return [f"{at} > 1"]
    out = []
    if f.min is not None and f.min != INTEGERS[f.type][0]:
        out.append(f"{at} < {literal(f.type, f.min)}")
    if f.max is not None and f.max != INTEGERS[f.type][1]:
        out.append(f"{at} > {literal(f.type, f.max)}")
    if f.enum:
        known = " && ".join(f"{at} != {v.value}" for v in f.enum.values)
        out.append(f"({known})")
    return out


def source(schema):
    out = ["/* SPDX-License-Identifier: Apache-2.0 */",
           BANNER.format(path="messages.toml"),
           '#include "proto/ps_fixed.h"', "", "#include <string.h>", ""]
    for r in schema.fixed:
        if r.atomic:
            continue
        name = f"struct ps_fixed_{r.name}"
        out += [f"void ps_fixed_put_{r.name}(",
                f"    uint8_t *out, const {name} *v)", "{",
                f"    {name} w = *v;", ""]
        for row in r.rows():
            if isinstance(row, tuple):
                out.append(f"    memset(w.{gap(row)}, 0, {row[1]});")
            elif row.const is not None:
                out.append(f"    w.{row.name} = "
                           f"{literal(row.type, row.const)};")
        out += ["    memcpy(out, &w, sizeof(w));", "}", ""]
        refused = [c for f in r.fields for c in checks(f)]
        out += [f"bool ps_fixed_get_{r.name}(",
                f"    const uint8_t *in, {name} *ret_v)", "{",
                f"    {name} v;", "", "    memcpy(&v, in, sizeof(v));"]
        if refused:
            out += ["    if (" + " ||\n        ".join(refused) + ") {",
                    "        return false;", "    }"]
        out += ["    *ret_v = v;", "    return true;", "}", ""]
    return "\n".join(out).rstrip() + "\n"
