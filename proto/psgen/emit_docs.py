# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/protocol-messages.md."""

import sys

from .schema import AUTHORITIES

BEGIN = "<!-- generated -->"
END = "<!-- /generated -->"


def kind(f):
    """The type of a field in words."""
    if f.type == "list":
        of = f"[{f.of}](#record-{f.of})" if f.record else f.of
        return f"list of {of}, at most {f.max}"
    if f.type in ("str", "bin"):
        return f"{f.type}, at most {f.max}"
    if f.enum:
        return f"u8, [{f.enum.name}](#enum-{f.enum.name})"
    return f.type


def default(f):
    if f.required:
        return "required"
    if f.type in ("str", "bin"):
        return f'`"{f.default}"`'
    if f.type == "bool":
        return f"`{str(f.default).lower()}`"
    return f"`{f.default}`"


def cell(text):
    return text.replace("|", "\\|")


def field_rows(fields, with_id):
    head = ["field", "type", "without it", "meaning"]
    if with_id:
        head.insert(0, "id")
    later = any(f.since > 1 for f in fields)
    if later:
        head.insert(-1, "since")
    out = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    for f in fields:
        row = [f"`{f.name}`", kind(f), default(f), cell(f.doc)]
        if with_id:
            row.insert(0, str(f.id))
        if later:
            row.insert(-1, str(f.since))
        out.append(("| " + " | ".join(row)).rstrip() + " |")
    return [*out, ""]


def authority(m):
    """One word, or one for each sender."""
    if len(set(m.authority.values())) == 1:
        return next(iter(m.authority.values()))
    return ", ".join(f"{role}: {name}" for role, name in m.authority.items())


def fixed_values(f):
    """Which values of a fixed field are accepted."""
    if f.const is not None:
        return f"`{f.const:#x}`"
    if f.enum:
        return f"[{f.enum.name}](#enum-{f.enum.name})"
    if f.min is not None and f.max is not None:
        return f"{f.min} to {f.max}"
    if f.min is not None:
        return f"at least {f.min}"
    return f"at most {f.max}" if f.max is not None else ""


def fixed_record(r):
    out = [f"### Record {r.name}", "",
           f"{r.doc} {r.size} bytes.".strip(), "",
           "| offset | field | type | values | meaning |",
           "| --- | --- | --- | --- | --- |"]
    for f in r.fields:
        kind = f"{f.size} bytes" if f.type == "bytes" else f.type
        kind += ", atomic" if f.atomic else ""
        out.append(f"| {f.offset} | `{f.name}` | {kind} | {fixed_values(f)} "
                   f"| {cell(f.doc)}".replace("|  |", "| |").rstrip() + " |")
    return [*out, ""]


def tables(schema):
    out = ["## Messages", "",
           "| code | message | from | to | authority | payload "
           "| longest header |",
           "| --- | --- | --- | --- | --- | --- | --- |"]
    from .emit_c import header_max
    for m in schema.messages:
        out.append(
            f"| {m.code} | [{m.name}](#message-{m.name}) | "
            f"{', '.join(m.senders)} | {', '.join(m.receivers)} | "
            f"{authority(m)} | "
            f"{'' if m.payload == 'none' else m.payload + ' '}| "
            f"{header_max(schema, m)} |")
    out += ["", "The authority of a message is whose right its receiver "
            "demands before it changes anything:", "",
            "| authority | meaning |", "| --- | --- |"]
    out += [f"| {name} | {text} |" for name, text in AUTHORITIES.items()]
    out += ["", "Every message has these fields before its own:", ""]
    out += field_rows(schema.envelope, True)
    for m in schema.messages:
        out += [f"### Message {m.name}", ""]
        out += [m.doc, ""] if m.doc else []
        out += field_rows(m.fields, True) if m.fields else []
    out += ["## Records", "",
            "A record is an array of its fields in this order. Fields at "
            "the end that have their default value are left out.", ""]
    for r in schema.records:
        out += [f"### Record {r.name}", ""]
        out += [r.doc, ""] if r.doc else []
        out += field_rows(r.fields, False)
    if schema.fixed:
        out += ["## Fixed records", "",
                "A fixed record lies in shared memory, in a payload or in "
                "front of a frame: little-endian, each field at its offset. "
                "Gaps are zeros, which readers ignore.", ""]
    for r in schema.fixed:
        out += fixed_record(r)
    out += ["## Enums", ""]
    for e in schema.enums:
        out += [f"### Enum {e.name}", ""]
        out += [e.doc, ""] if e.doc else []
        out += ["| value | name | meaning |", "| --- | --- | --- |"]
        out += [f"| {v.value} | `{v.name}` | {cell(v.doc)}".rstrip() + " |"
                for v in e.values]
        out.append("")
    return "\n".join(out).rstrip() + "\n"


def rewrite(schema, path, check):
    """Put the tables between the markers of a document; or only compare."""
    with open(path, encoding="utf-8") as source:
        text = source.read()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        print(f"{path}:1: needs one '{BEGIN}' and one '{END}'",
              file=sys.stderr)
        return 1
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    made = f"{before}{BEGIN}\n\n{tables(schema)}\n{END}{after}"
    if made == text:
        return 0
    if check:
        print(f"{path}: the tables are out of date; "
              "python3 -m psgen docs brings them up to date",
              file=sys.stderr)
        return 1
    with open(path, "w", encoding="utf-8") as out:
        out.write(made)
    return 0
