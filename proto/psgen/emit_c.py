# SPDX-License-Identifier: Apache-2.0
"""ps_msg.h and ps_msg.c: structs and enums, and the tables of shape.h."""

import textwrap

from .schema import AUTHORITIES, INTEGERS, header_bound, node_bound

BANNER = "/* Made by psgen from {path}; edit that. */"
C_TYPES = {
    "bool": "bool", "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t",
    "u64": "uint64_t", "i32": "int32_t", "i64": "int64_t", "f64": "double",
    "str": "const char *", "bin": "struct ps_bytes ",
}

# Room for fields that newer peers add, in a header of a known message.
SPARE_BYTES = 4096
SPARE_NODES = 256


def comment(text, indent=0):
    """A block comment of sentences, or nothing."""
    if not text:
        return []
    pad = " " * indent
    rows = textwrap.wrap(text, 80 - indent - 6)
    if len(rows) == 1:
        return [f"{pad}/* {rows[0]} */"]
    return [f"{pad}/* {rows[0]}", *(f"{pad} * {row}" for row in rows[1:-1]),
            f"{pad} * {rows[-1]} */"]


def member(f):
    """The declarations of one field in a struct."""
    out = comment(f.doc, 4)
    if f.type == "list":
        base = (f"struct ps_rec_{f.record.name} " if f.record
                else C_TYPES[f.of] + " ")
        out += [f"    const {base}*{f.name};",
                f"    uint32_t {f.name}_count;"]
    else:
        kind = C_TYPES[f.type]
        glue = "" if kind.endswith(("*", " ")) else " "
        out.append(f"    {kind}{glue}{f.name};")
    if f.enum:
        out[-1] += f" /* enum ps_{f.enum.name} */"
    return out


# The others are, or hold, a pointer or eight bytes.
SMALL = {"bool": 1, "u8": 1, "u16": 2, "u32": 4, "i32": 4}


def struct(kind, name, fields, doc):
    # C has no empty structs: a message without fields has a code alone.
    if not fields:
        return [*comment(f"{name}: {doc}"), ""]
    if kind == "msg":  # Nothing lies empty between members.
        fields = sorted(fields, key=lambda f: -SMALL.get(f.type, 8))
    body = [row for f in fields for row in member(f)]
    return [*comment(doc), f"struct ps_{kind}_{name} {{", *body, "};", ""]


def enum_header(e):
    upper = e.name.upper()
    if e.home:
        return [*comment(e.doc),
                *(row for v in e.values for row in static_assert(
                    f"PS_{upper}_{v.name.upper()} == {v.value}",
                    f"{e.home} and the protocol agree")), ""]
    out = [*comment(e.doc), f"enum ps_{e.name} {{"]
    for v in e.values:
        out += comment(v.doc, 4)
        out.append(f"    PS_{upper}_{v.name.upper()} = {v.value},")
    return [*out, "};", f"const char *ps_{e.name}_name(unsigned v);", ""]


def static_assert(condition, text):
    return [f"_Static_assert({condition},", f'               "{text}");']


def header(schema):
    homes = sorted({e.home for e in schema.enums if e.home})
    out = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        BANNER.format(path="messages.toml"),
        *comment("The messages of pskv as structs: all that a machine sees of "
                 "the protocol. Strings end with NUL and are never NULL in a "
                 "decoded message; NULL counts as empty in one to be sent. "
                 "The maker of a message owns the memory behind its pointers."),
        "#pragma once", "",
        "#include <stdbool.h>", "#include <stddef.h>", "#include <stdint.h>",
        "", *(f'#include "{home}"' for home in homes),
        '#include "base/limits.h"', "",
        f"#define PS_PROTOCOL {schema.protocol}u",
        "/* The oldest version that this build speaks. */",
        "#define PS_PROTOCOL_LEAST 1u",
        f"#define PS_MSG_HEADER_MAX {schema.header_max}u",
        f"#define PS_MSG_DEPTH_MAX {schema.depth_max}u",
        "/* Most values in any header, later fields included. */",
        "#define PS_MSG_NODES_MAX "
        f"{max(nodes_max(schema, m) for m in schema.messages)}u",
        *static_assert("PS_MSG_HEADER_MAX <= PS_HEADER_MAX",
                       "base/limits.h allows the longest header"), "",
    ]
    for e in schema.enums:
        out += enum_header(e)
    out += ["/* Whose right a message needs. */", "enum ps_authority {"]
    for name, text in AUTHORITIES.items():
        out += comment(text, 4)
        out.append(f"    PS_AUTHORITY_{name.upper()},")
    out += ["};", ""]
    out += ["enum ps_payload_kind {", "    PS_PAYLOAD_NONE,",
            "    PS_PAYLOAD_TENSOR,", "    PS_PAYLOAD_PLACEMENT,", "};", "",
            "struct ps_bytes {", "    const uint8_t *data;",
            "    uint32_t len;", "};", ""]
    for r in schema.records:
        out += struct("rec", r.name, r.fields, r.doc)
    for m in schema.messages:
        way = f"{', '.join(m.senders)} to {', '.join(m.receivers)}."
        out += struct("msg", m.name, m.fields,
                      f"{way[0].upper()}{way[1:]} {m.doc}".strip())
    out += ["enum ps_msg_code {"]
    out += [f"    PS_MSG_{m.name.upper()} = {m.code}," for m in
            schema.messages]
    out += ["};", "", "struct ps_msg {", "    enum ps_msg_code code;"]
    out += [row for f in schema.envelope for row in member(f)]
    out += ["    union {"]
    out += [f"        struct ps_msg_{m.name} {m.name};" for m in
            schema.messages if m.fields]
    out += ["    };", "};", "", *API.strip("\n").split("\n")]
    return "\n".join(out) + "\n"


API = """
/* A deep copy in one allocation, and its end. */
struct ps_msg *ps_msg_dup(const struct ps_msg *msg)
    __attribute__((malloc, returns_nonnull));
/* As ps_msg_dup; says the bytes of the copy, the same for equal messages. */
struct ps_msg *ps_msg_dup_sized(const struct ps_msg *msg, size_t *ret_size)
    __attribute__((malloc, returns_nonnull));
void ps_msg_free(struct ps_msg *msg);

/* "push"; "?" for a code that no message has. */
const char *ps_msg_name(unsigned code);
/* What travels behind the header; PS_PAYLOAD_NONE for unknown codes. */
enum ps_payload_kind ps_msg_payload(unsigned code);
/* May `from` send this to `to`? No, for unknown codes. */
bool ps_msg_allowed(unsigned code, enum ps_role from, enum ps_role to);
/* Whose right the message needs when `from` sends it; PS_AUTHORITY_NONE for
 * unknown codes. */
enum ps_authority ps_msg_authority(unsigned code, enum ps_role from);

/* What a message names: a job, a slot in it, partitions. */
struct ps_msg_subject {
    uint64_t gen;
    uint32_t slot; /* UINT32_MAX: the message has no such field. */
    uint32_t part_count;
    const uint8_t *parts; /* The first of them. */
    size_t part_size;
    size_t key_at; /* Offsets of its fields. */
    size_t index_at;
};
/* False: the message names no job. */
bool ps_msg_subject(const struct ps_msg *msg, struct ps_msg_subject *ret);
static inline uint32_t ps_msg_subject_key(const struct ps_msg_subject *s,
                                          uint32_t i)
{
    return *(const uint32_t *)(const void *)(s->parts + i * s->part_size +
                                             s->key_at);
}
static inline uint32_t ps_msg_subject_index(const struct ps_msg_subject *s,
                                            uint32_t i)
{
    return *(const uint32_t *)(const void *)(s->parts + i * s->part_size +
                                             s->index_at);
}

/* Longest header of this message that is read; 0 for unknown codes. */
uint32_t ps_msg_header_max(unsigned code);

/* One line for logs, with strings escaped and cut and long lists cut; always
 * terminated when cap > 0. Returns its length. */
size_t ps_msg_print(const struct ps_msg *msg, char *out, size_t cap);
"""


# ------------------------------------------------------------------ tables


def quote(text):
    """A C string literal."""
    out = ""
    for byte in text.encode():
        if byte in b'"\\' or not 32 <= byte < 127:
            out += f"\\{byte:03o}"
        else:
            out += chr(byte)
    return f'"{out}"'


# Members that hold sentences, in which others' names may stand.
PROSE = ("text", "reason", "also", "what")


def default_initializer(f):
    if f.required or f.type in ("bin", "list"):
        return None
    if f.type == "str":
        return f".default_.s = {quote(f.default)}"
    if f.type == "f64":
        return f".default_.f = {float(f.default)!r}"
    if f.type in ("i32", "i64"):
        if f.default == INTEGERS["i64"][0]:
            return ".default_.i = INT64_MIN"
        return f".default_.i = INT64_C({f.default})"
    return f".default_.u = UINT64_C({int(f.default)})"


def field_row(f, where):
    """One row of a table; `where` makes an offset of a member's name."""
    parts = [f".name = {quote(f.name)}", f".type = PS_SHAPE_{f.type.upper()}"]
    if f.id:
        parts.append(f".id = {f.id}")
    if f.required:
        parts.append(".required = true")
    if f.type == "str" and f.name in PROSE:
        parts.append(".is_text = true")
    parts.append(f".since = {f.since}")
    if f.max:
        parts.append(f".max = {f.max}")
    parts.append(f".offset = {where(f.name)}")
    if f.type == "list":
        parts.append(f".offset_count = {where(f.name + '_count')}")
        parts.append(f".record = &record_{f.record.name}" if f.record
                     else f".of = PS_SHAPE_{f.of.upper()}")
    if f.enum:
        parts.append(f".values = &enum_{f.enum.name}")
    default = default_initializer(f)
    if default:
        parts.append(default)
    # A row breaks between its parts, not inside of one.
    text = ", ".join(part.replace(" ", "\x1f") for part in parts) + "},"
    rows = [row.replace("\x1f", " ") for row in textwrap.wrap(
        text, 74, break_long_words=False, break_on_hyphens=False)]
    return [f"    {{{rows[0]}", *(f"     {row}" for row in rows[1:])]


def header_max(schema, m):
    return min(schema.header_max, header_bound(schema, m) + SPARE_BYTES)


def nodes_max(schema, m):
    return node_bound(schema, m) + SPARE_NODES


def source(schema):
    out = [
        "/* SPDX-License-Identifier: Apache-2.0 */",
        BANNER.format(path="messages.toml"),
        '#include "proto/ps_msg.h"', "", '#include "proto/shape.h"', "",
    ]
    for e in schema.enums:
        out += [f"static const struct ps_shape_value values_{e.name}[] = {{",
                *(f"    {{{v.value}, {quote(v.name)}}}," for v in e.values),
                "};",
                f"static const struct ps_shape_enum enum_{e.name} = {{",
                f"    {quote(e.name)}, values_{e.name}, {len(e.values)}}};",
                ""]
        if not e.home:
            out += [f"const char *ps_{e.name}_name(unsigned v)", "{",
                    f"    return ps_shape_value_name(&enum_{e.name}, v);",
                    "}", ""]
    used = {f.record.name for m in schema.messages for f in m.fields
            if f.record}
    for r in schema.records:
        if r.name not in used:
            continue
        kind = f"struct ps_rec_{r.name}"
        out += [f"static const struct ps_shape_field fields_of_{r.name}[] "
                "= {"]
        for f in r.fields:
            out += field_row(f, lambda name: f"offsetof({kind}, {name})")
        out += ["};", f"static const struct ps_shape_record "
                f"record_{r.name} = {{",
                f"    {quote(r.name)}, fields_of_{r.name}, "
                f"{len(r.fields)},", f"    sizeof({kind})}};", ""]
    envelope = [row for f in schema.envelope for row in field_row(
        f, lambda name: f"offsetof(struct ps_msg, {name})")]
    if envelope:
        out += ["#define ENVELOPE \\",
                *(f"{row:<77} \\" for row in envelope[:-1]),
                envelope[-1], ""]
    for m in schema.messages:
        fields = schema.all_fields(m)
        if not fields:
            continue
        out += [f"static const struct ps_shape_field fields_{m.name}[] = {{"]
        out += ["    ENVELOPE"] if envelope else []
        for f in m.fields:
            out += field_row(
                f, lambda name: f"offsetof(struct ps_msg, {m.name}.{name})")
        out += ["};", ""]
    out += ["static const struct ps_shape_msg messages[] = {"]
    for m in schema.messages:
        fields = schema.all_fields(m)
        out += [
            f"    [PS_MSG_{m.name.upper()}] = {{",
            f"        .name = {quote(m.name)},",
            *([f"        .fields = fields_{m.name},"] if fields else []),
            f"        .field_count = {len(fields)},",
            *bits("from", m.senders), *bits("to", m.receivers),
            *(f"        .authority[PS_ROLE_{role.upper()}] = "
              f"PS_AUTHORITY_{name.upper()},"
              for role, name in m.authority.items()),
            *subject(m),
            f"        .payload = PS_PAYLOAD_{m.payload.upper()},",
            f"        .header_max = {header_max(schema, m)},",
            f"        .nodes_max = {nodes_max(schema, m)},",
            "    },"]
    out += ["};", "", *SOURCE_END.strip("\n").split("\n")]
    return "\n".join(out) + "\n"


def subject(m):
    """Where a message has its job, slot and partitions."""
    def at(name):
        return f"offsetof(struct ps_msg, {m.name}.{name})"

    rows = [f".{key} = {at(key)}," for key in ("gen", "slot") if m.field(key)]
    if m.parts:
        kind = f"struct ps_rec_{m.parts.record.name}"
        rows += [f".parts = {at('parts')},", f".count = {at('parts_count')},",
                 f".size = sizeof({kind}),",
                 f".key = offsetof({kind}, key),",
                 f".index = offsetof({kind}, index),"]
    elif m.field("key") and m.field("index"):
        rows += [f".key = {at('key')},", f".index = {at('index')},"]
    return [f"        .subject{row}" for row in rows]


def bits(key, roles):
    word = " | ".join(f"1u << PS_ROLE_{r.upper()}" for r in roles)
    rows = textwrap.wrap(f".{key} = {word},", 70)
    return [f"        {rows[0]}", *(f"            {row}" for row in rows[1:])]


SOURCE_END = """
const struct ps_shape_msg *ps_shape_of(unsigned code)
{
    if (code >= sizeof(messages) / sizeof(messages[0]) ||
        messages[code].name == NULL) {
        return NULL;
    }
    return &messages[code];
}
"""
