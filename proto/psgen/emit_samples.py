# SPDX-License-Identifier: Apache-2.0
"""ps_samples.c: least, typical and greatest value of each message and record.

The least is what a sender can leave out; the greatest fills every string and
list to its max. Typical values differ from field to field, so that a codec
that confuses two fields is found out.
"""

from zlib import crc32

from .emit_c import BANNER, quote
from .emit_fixed import literal
from .schema import INTEGERS

KINDS = ["least", "typical", "greatest"]
TYPICAL_ELEMENTS = 2


def integer(kind, value):
    if value == INTEGERS["i64"][0]:
        return "INT64_MIN"
    if kind in ("u32", "u64"):
        return f"UINT64_C({value})" if kind == "u64" else f"{value}u"
    return f"INT64_C({value})" if kind == "i64" else str(value)


def typical(seed, kind):
    """A number that depends on the name and fits the type."""
    most = {"u8": 200, "u16": 60000, "u32": 3 * 10**9, "u64": 10**12,
            "i32": 2 * 10**9, "i64": 10**12}[kind]
    value = crc32(seed.encode()) * 977 % most
    return value if kind[0] == "u" or value % 2 == 0 else -value


def scalar(kind, f, which, seed):
    """A C initializer for one value of a field, or element of a list."""
    values = [v.value for v in f.enum.values] if f.enum else None
    if which == "least":
        if kind in INTEGERS:
            start = f.default if f.type == kind and not f.required else \
                values[0] if values else 0
            return integer(kind, start)
        if kind == "bool":
            return "true" if f.default else "false"
        if kind == "f64":
            return repr(float(f.default or 0))
        return quote(f.default or "") if kind == "str" else "{NULL, 0}"
    if kind in INTEGERS:
        if values:
            return integer(kind, values[-1])
        least, greatest = INTEGERS[kind]
        if which == "typical":
            return integer(kind, typical(seed, kind))
        return integer(kind, least if least < 0 else greatest)
    if kind == "bool":
        return "false" if f.default else "true"
    if kind == "f64":
        return "-1.7976931348623157e308" if which == "greatest" else \
            repr(1 + typical(seed, "u16") / 65536)
    if kind == "str":
        return quote("x" * f.max if which == "greatest"
                     else f"{f.name}-{typical(seed, 'u8')}"[:f.max])
    assert kind == "bin"
    size = f.max if which == "greatest" else min(3, f.max)
    return f"{{(const uint8_t *){quote('z' * size)}, {size}}}"


def record(r, which, seed):
    parts = [f".{f.name} = {scalar(f.type, f, which, f'{seed}.{f.name}')}"
             for f in r.fields]
    return "{" + ", ".join(parts) + "}"


class Writer:
    def __init__(self, schema):
        self.schema = schema
        self.arrays = []

    def elements(self, m, f, which):
        """The name of an array with the elements of a list, and its size."""
        if which == "least":
            return "NULL", 0
        size = f.max if which == "greatest" else min(TYPICAL_ELEMENTS, f.max)
        name = f"{m.name}_{f.name}_{which}"
        kind = f"struct ps_rec_{f.record.name}" if f.record else \
            {"u": "uint", "i": "int"}[f.of[0]] + f.of[1:] + "_t"
        # All elements of a greatest list are the same.
        range_ = "" if which == "typical" else f"[0 ... {size - 1}] = "
        rows = []
        for i in range(size if which == "typical" else 1):
            seed = f"{m.name}.{f.name}.{i}"
            rows.append("    " + range_ + (
                record(f.record, which, seed) if f.record
                else scalar(f.of, f, which, seed)) + ",")
        self.arrays += [f"static const {kind} {name}[{size}] = {{", *rows,
                        "};", ""]
        return name, size

    def sample(self, m, which):
        rows = [f"        .code = PS_MSG_{m.name.upper()},"]
        for f in self.schema.all_fields(m):
            owner = "" if f in self.schema.envelope else f"{m.name}."
            if f.type == "list":
                name, size = self.elements(m, f, which)
                rows.append(f"        .{owner}{f.name} = {name},")
                rows.append(f"        .{owner}{f.name}_count = {size},")
            else:
                value = scalar(f.type, f, which, f"{m.name}.{f.name}")
                rows.append(f"        .{owner}{f.name} = {value},")
        return ["    {", *rows, "    },"]


def fixed_value(f, which, seed):
    """A C initializer for a field of a fixed record."""
    if f.type == "bytes":
        text = {"least": b"", "typical": f"{f.name}-{typical(seed, 'u8')}",
                "greatest": "z" * f.size}[which]
        return "{" + (", ".join(f"'{c}'" for c in text[:f.size]) or "0") + "}"
    if f.const is not None:
        return literal(f.type, f.const)
    if f.type == "bool":
        return "0" if which == "least" else "1"
    if f.type == "f64":
        return repr({"least": 0.0, "typical": 1 + typical(seed, "u16") / 65536,
                     "greatest": -1.7976931348623157e308}[which])
    if f.enum:
        return str(f.enum.values[0 if which == "least" else -1].value)
    least, greatest = INTEGERS[f.type]
    low = f.min if f.min is not None else max(least, 0)
    high = f.max if f.max is not None else greatest
    if which == "typical":
        value = min(max(typical(seed, f.type), low), high)
        if f.min is not None or f.max is not None:
            value = low + crc32(seed.encode()) % (high - low + 1)
        return literal(f.type, value)
    return literal(f.type, low if which == "least" else high)


def fixed(schema):
    """Typed samples of fixed records, and their put and get."""
    out, rows = [], []
    for r in schema.fixed:
        if r.atomic:
            continue
        kind = f"struct ps_fixed_{r.name}"
        out += [f"static const {kind} fixed_{r.name}[] = {{"]
        for which in KINDS:
            out.append("    {")
            out += [f"        .{f.name} = "
                    f"{fixed_value(f, which, f'{r.name}.{f.name}')},"
                    for f in r.fields]
            out.append("    },")
        out += ["};", "", f"static void put_{r.name}(uint8_t *out, "
                "const void *v)", "{", f"    ps_fixed_put_{r.name}(out, v);",
                "}", "", f"static bool get_{r.name}(const uint8_t *in, "
                "void *ret_v)", "{",
                f"    return ps_fixed_get_{r.name}(in, ret_v);", "}", ""]
        rows += [f"    {{{quote(r.name)}, {r.size}, &fixed_{r.name}[{i}], "
                 f"put_{r.name}, get_{r.name}}}," for i in range(len(KINDS))]
    return [*out, "static const struct ps_fixed_sample fixed_samples[] = {",
            *(rows or ["    {0},"]), "};", "",
            "static const size_t fixed_count = "
            f"{len(rows)};", ""]


def source(schema):
    writer = Writer(schema)
    samples = [row for m in schema.messages for which in KINDS
               for row in writer.sample(m, which)]
    return "\n".join([
        "/* SPDX-License-Identifier: Apache-2.0 */",
        BANNER.format(path="messages.toml"),
        '#include "proto/ps_samples.h"', "", "#include <assert.h>", "",
        "/* [0 ... n] is GNU C; it spares thousands of equal rows. */",
        '#pragma GCC diagnostic ignored "-Wpedantic"',
        "/* The greatest strings of messages are longer than C99 demands. */",
        '#pragma GCC diagnostic ignored "-Woverlength-strings"', "",
        *writer.arrays,
        "static const struct ps_msg samples[] = {", *samples, "};", "",
        *fixed(schema),
        *SOURCE_END.strip("\n").split("\n")]) + "\n"


SOURCE_END = """
size_t ps_samples_count(void)
{
    return sizeof(samples) / sizeof(samples[0]);
}

const struct ps_msg *ps_sample(size_t i)
{
    assert(i < ps_samples_count());
    return &samples[i];
}

size_t ps_fixed_samples_count(void)
{
    return fixed_count;
}

const struct ps_fixed_sample *ps_fixed_sample(size_t i)
{
    assert(i < fixed_count);
    return &fixed_samples[i];
}
"""
