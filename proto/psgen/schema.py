# SPDX-License-Identifier: Apache-2.0
"""The schema of the wire protocol: read messages.toml, refuse what is wrong.

Everything a careless edit could break is refused here, before a line of C is
written: codes and ids used twice, ids out of order or of a retired field, a
later field without a default, a string or list without a bound, a message
whose greatest value does not fit in a header. Errors carry file and line.
"""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

INTEGERS = {
    # type: (least, greatest)
    "u8": (0, 2**8 - 1),
    "u16": (0, 2**16 - 1),
    "u32": (0, 2**32 - 1),
    "u64": (0, 2**64 - 1),
    "i32": (-(2**31), 2**31 - 1),
    "i64": (-(2**63), 2**63 - 1),
}
SCALARS = [*INTEGERS, "bool", "f64"]
# Bytes of the types of fixed records; also their alignment. `bytes` has a size.
FIXED_BYTES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "i32": 4, "i64": 8,
               "f64": 8, "bool": 1, "bytes": 1}
BOUNDED = ["str", "bin", "list"]
PAYLOADS = ["none", "tensor", "placement"]
# Whose right a message needs: name -> meaning.
AUTHORITIES = {
    "none": "Nothing changes: the receiver only shows what it says.",
    "session": "It is about the sender's own connection or session alone.",
    "user": "The rights of a user or token are looked up for the object.",
    "place": "The server named in the place of the job, with its epoch.",
    "scheduler": "The scheduler of this cluster.",
    "owner": "The owner of each partition that it names.",
    "member": "A member of the job that it names, and of the slot.",
    "addressee": "The addressee of the open request that it answers.",
}
# Fields by which a message names its object, with their types.
SUBJECT = {"gen": "u64", "slot": "u32", "key": "u32", "index": "u32"}

ID_MAX = 63  # One bit each in the decoder's mask of fields seen.
ENVELOPE_ID_MAX = 7  # Below the messages' own fields.
COUNT_MAX = 65535  # Elements of a list, bytes of a string or fixed record.
DEPTH_MAX = 4  # map > list > record > scalar

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*\Z")
C_KEYWORDS = set(
    "auto bool break case char const continue default do double else enum "
    "extern false float for goto if inline int long register restrict return "
    "short signed sizeof static struct switch true typedef union unsigned "
    "void volatile while".split()
)


class SchemaError(Exception):
    """Something in the schema is wrong; the text begins with file:line."""


@dataclass
class Value:
    name: str
    value: int
    doc: str
    line: int


@dataclass
class Enum:
    name: str
    values: list[Value]
    doc: str
    home: str | None  # Header that defines it, where not ps_msg.h.
    line: int


@dataclass
class Field:
    name: str
    type: str
    id: int  # 0 in records.
    since: int
    default: object  # None: required.
    max: int  # str, bin: bytes; list: elements.
    of: str | None  # list: integer type, or name of a record.
    record: "Record | None"  # list of records.
    enum: Enum | None
    doc: str
    line: int

    @property
    def required(self):
        return self.default is None


@dataclass
class Record:
    name: str
    fields: list[Field]
    doc: str
    line: int


@dataclass
class FixedField:
    name: str
    type: str
    offset: int
    size: int  # Bytes.
    const: int | None  # The only value.
    min: int | None  # Bounds that get checks; None: those of the type.
    max: int | None
    enum: Enum | None
    atomic: bool
    doc: str


@dataclass
class FixedRecord:
    name: str
    fields: list[FixedField]
    size: int
    align: int
    doc: str

    @property
    def atomic(self):
        """Both sides access single fields; nothing copies the record."""
        return any(f.atomic for f in self.fields)

    def rows(self):
        """Fields, and (offset, size) of the gaps between and behind them."""
        at = 0
        for f in self.fields:
            if f.offset > at:
                yield (at, f.offset - at)
            yield f
            at = f.offset + f.size
        if self.size > at:
            yield (at, self.size - at)


@dataclass
class Message:
    name: str
    code: int
    senders: list[str]
    receivers: list[str]
    payload: str
    fields: list[Field]  # Without the envelope's.
    doc: str
    line: int
    authority: dict[str, str]  # By role of the sender.

    def field(self, name):
        return next((f for f in self.fields if f.name == name), None)

    @property
    def parts(self):
        """The list of partitions that it names; None: there is none."""
        f = self.field("parts")
        names = [g.name for g in f.record.fields] if f and f.record else []
        return f if {"key", "index"} <= set(names) else None


@dataclass
class Schema:
    path: str
    protocol: int
    header_max: int
    depth_max: int
    envelope: list[Field]
    enums: list[Enum] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    fixed: list[FixedRecord] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)

    def all_fields(self, message):
        """The envelope's fields, then the message's own."""
        return self.envelope + message.fields


# ------------------------------------------------------------------ lines


class Place(int):
    """The line of a table's header, which also knows those of its keys."""

    def __init__(self, line):
        self.keys = {}  # key -> line
        self.items = []  # Lines of the inline tables in it.

    def of(self, key):
        return self.keys.get(key, self)


class Lines:
    """Where things stand in the file; tomllib does not say."""

    def __init__(self, text):
        self.sections = {}  # name -> [Place]
        self.top = current = Place(1)
        depth = 0
        for number, row in enumerate(text.splitlines(), 1):
            header = re.match(r"\s*\[\[?\s*([A-Za-z0-9_-]+)\s*\]\]?", row)
            if header and depth == 0:
                current = Place(number)
                self.sections.setdefault(header[1], []).append(current)
                continue
            key = re.match(r"\s*([A-Za-z0-9_-]+)\s*=", row)
            if key and depth == 0:
                current.keys.setdefault(key[1], number)
            for char in self._bare(row):
                if char == "{":
                    current.items.append(number)
                depth += (char in "[{") - (char in "]}")

    @staticmethod
    def _bare(row):
        """The row without strings and comment."""
        row = re.sub(r'"(\\.|[^"\\])*"|\'[^\']*\'', '""', row)
        return row.split("#", 1)[0]

    def section(self, kind, index):
        found = self.sections.get(kind, [])
        return found[index] if index < len(found) else self.top

    def item(self, kind, index, nth):
        place = self.section(kind, index)
        return Place(place.items[nth] if nth < len(place.items) else place)


# ----------------------------------------------------------------- reading


class Reader:
    def __init__(self, path, text):
        self.path = path
        self.lines = Lines(text)
        try:
            self.data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"at line (\d+)", str(error))
            self.fail(int(at[1]) if at else len(text.splitlines()), error)
        self.enums = {}
        self.records = {}
        self.fixed = {}

    def fail(self, line, text):
        raise SchemaError(f"{self.path}:{line}: {text}")

    # Tables

    def take(self, table, line, what, keys, required=()):
        """Refuse keys that mean nothing and the lack of ones that must be."""
        if not isinstance(table, dict):
            self.fail(line, f"{what} must be a table")
        for key in table:
            if key not in keys:
                self.fail(line.of(key), f"{what}: unknown key '{key}'")
        for key in required:
            if key not in table:
                self.fail(line, f"{what}: '{key}' is missing")

    def name(self, table, line, what, seen):
        name, line = table.get("name"), line.of("name")
        if not isinstance(name, str) or not NAME.match(name):
            self.fail(line, f"{what}: name must be lower_case words")
        if name in C_KEYWORDS:
            self.fail(line, f"{what}: name '{name}' is a word of C")
        if name in seen:
            self.fail(line, f"{what}: name '{name}' is used before")
        return name

    def integer(self, table, key, line, what, least, greatest, default=None):
        value = table.get(key, default)
        if type(value) is not int or not least <= value <= greatest:
            self.fail(line.of(key), f"{what}: '{key}' must be from {least} "
                                    f"to {greatest}")
        return value

    def doc(self, table, line, what):
        doc = table.get("doc", "")
        if not isinstance(doc, str) or "\n" in doc:
            self.fail(line.of("doc"),
                      f"{what}: 'doc' must be one line of text")
        return doc

    def tables(self, table, key, line, what):
        rows = table.get(key, [])
        if not isinstance(rows, list):
            self.fail(line.of(key), f"{what}: '{key}' must be a list")
        return rows

    def reserved(self, table, line, what):
        numbers = self.tables(table, "reserved", line, what)
        for number in numbers:
            if type(number) is not int:
                self.fail(line.of("reserved"),
                          f"{what}: 'reserved' must list integers")
        return numbers

    # The parts of the file

    def schema(self):
        data = self.data
        self.take(
            data,
            self.lines.top,
            "the schema",
            "protocol limits envelope enum record message reserved".split(),
            ["protocol"],
        )
        self.protocol = self.integer(data, "protocol", self.lines.top,
                                     "the schema", 1, 65535)
        limits = data.get("limits", {})
        line = self.lines.section("limits", 0)
        self.take(limits, line, "limits", ["header_max", "depth_max"])
        header_max = self.integer(
            limits, "header_max", line, "limits", 64, 2**24, 65536
        )
        depth_max = self.integer(
            limits, "depth_max", line, "limits", 1, DEPTH_MAX, DEPTH_MAX
        )
        for index, table in enumerate(data.get("enum", [])):
            self.read_enum(index, table)
        for index, table in enumerate(data.get("record", [])):
            self.read_record(index, table)
        line = self.lines.section("envelope", 0)
        envelope = data.get("envelope", {})
        self.take(envelope, line, "envelope", ["fields", "reserved"])
        schema = Schema(
            self.path, self.protocol, header_max, depth_max,
            self.fields("envelope", 0, envelope, line, "envelope", 1,
                        ENVELOPE_ID_MAX),
        )
        for f in schema.envelope:
            if f.type not in INTEGERS or f.default is None:
                self.fail(f.line, f"envelope.{f.name}: must be an integer "
                                  "with a default")
        schema.enums = list(self.enums.values())
        schema.records = list(self.records.values())
        schema.fixed = list(self.fixed.values())
        self.read_messages(schema)
        return schema

    def read_enum(self, index, table):
        line = self.lines.section("enum", index)
        self.take(table, line, "enum",
                  ["name", "doc", "home", "values", "reserved"],
                  ["name", "values"])
        name = self.name(table, line, "enum", self.enums)
        what = f"enum {name}"
        home = table.get("home")
        if home is not None and not re.match(r"base/[a-z0-9_]+\.h\Z",
                                             str(home)):
            self.fail(line.of("home"),
                      f"{what}: 'home' must be a header of base")
        retired = self.reserved(table, line, what)
        values = []
        for nth, row in enumerate(self.tables(table, "values", line, what)):
            at = self.lines.item("enum", index, nth)
            self.take(row, at, f"{what}: value", ["name", "value", "doc"],
                      ["name", "value"])
            # Values become PS_ENUM_VALUE, so words of C do no harm here.
            word = row["name"]
            if not isinstance(word, str) or not NAME.match(word):
                self.fail(at, f"{what}: name must be lower_case words")
            number = self.integer(row, "value", at, f"{what}.{word}", 0, 255)
            if word in [v.name for v in values]:
                self.fail(at, f"{what}: name '{word}' is used before")
            if number in [v.value for v in values]:
                self.fail(at, f"{what}.{word}: value {number} is used before")
            if number in retired:
                self.fail(at, f"{what}.{word}: value {number} is reserved")
            values.append(Value(word, number, self.doc(row, at, what), at))
        if not values:
            self.fail(line, f"{what}: has no values")
        self.enums[name] = Enum(name, values, self.doc(table, line, what),
                                home, line)

    def read_record(self, index, table):
        line = self.lines.section("record", index)
        if table.get("layout") == "fixed":
            self.read_fixed(index, table, line)
            return
        self.take(table, line, "record", ["name", "doc", "fields"],
                  ["name", "fields"])
        name = self.name(table, line, "record",
                         [*self.records, *self.fixed])
        what = f"record {name}"
        fields = self.fields("record", index, table, line, what, 0, 0)
        if not fields:
            self.fail(line, f"{what}: has no fields")
        for before, after in zip(fields, fields[1:]):
            if after.required and not before.required:
                self.fail(after.line, f"{what}.{after.name}: fields with a "
                                      "default come last, so that they can "
                                      "be left out")
        self.records[name] = Record(name, fields,
                                    self.doc(table, line, what), line)

    def read_fixed(self, index, table, line):
        self.take(table, line, "record",
                  ["name", "doc", "layout", "size", "fields"],
                  ["name", "fields"])
        name = self.name(table, line, "record",
                         [*self.records, *self.fixed])
        what = f"record {name}"
        fields, at = [], 0
        for nth, row in enumerate(self.tables(table, "fields", line, what)):
            here = self.lines.item("record", index, nth)
            f = self.fixed_field(row, here, what, fields, at)
            fields.append(f)
            at = f.offset + f.size
        if not fields:
            self.fail(line, f"{what}: has no fields")
        align = max(FIXED_BYTES[f.type] for f in fields)
        size = self.integer(table, "size", line, what, at, COUNT_MAX, at)
        if size % align != 0:
            self.fail(line.of("size"), f"{what}: its {size} bytes are no "
                                       f"multiple of its alignment, {align}")
        self.fixed[name] = FixedRecord(name, fields, size, align,
                                       self.doc(table, line, what))

    def fixed_field(self, row, at, what, before, offset):
        self.take(row, at, f"{what}: field",
                  "name type doc const min max enum size align atomic".split(),
                  ["name", "type"])
        name = self.name(row, at, f"{what}: field", [f.name for f in before])
        here = f"{what}.{name}"
        kind = row["type"]
        if kind not in FIXED_BYTES:
            self.fail(at, f"{here}: unknown type '{kind}'")
        size = FIXED_BYTES[kind]
        if kind == "bytes":
            size = self.integer(row, "size", at, here, 1, COUNT_MAX)
        elif "size" in row:
            self.fail(at, f"{here}: 'size' belongs to bytes")
        if "align" in row:
            align = self.integer(row, "align", at, here, 1, 4096)
            offset = (offset + align - 1) // align * align
        if offset % FIXED_BYTES[kind] != 0:
            self.fail(at, f"{here}: is not aligned at offset {offset}")
        bounds = {}
        for key in ("const", "min", "max"):
            bounds[key] = None
            if key in row:
                if kind not in INTEGERS:
                    self.fail(at, f"{here}: '{key}' belongs to integers")
                bounds[key] = self.integer(row, key, at, here,
                                           *INTEGERS[kind])
        enum = None
        if "enum" in row:
            enum = self.enums.get(row["enum"])
            if enum is None:
                self.fail(at, f"{here}: unknown enum '{row['enum']}'")
            if kind not in INTEGERS:
                self.fail(at, f"{here}: only integers name an enum")
        atomic = row.get("atomic", False)
        if type(atomic) is not bool or (atomic and kind not in INTEGERS):
            self.fail(at, f"{here}: only integers are atomic")
        return FixedField(name, kind, offset, size, bounds["const"],
                          bounds["min"], bounds["max"], enum, atomic,
                          self.doc(row, at, here))

    def read_messages(self, schema):
        retired = self.reserved(self.data, self.lines.top, "the schema")
        names, codes = set(), set()
        for index, table in enumerate(self.data.get("message", [])):
            line = self.lines.section("message", index)
            self.take(table, line, "message",
                      "name code from to authority payload doc fields "
                      "reserved".split(),
                      ["name", "code", "from", "to", "authority", "fields"])
            name = self.name(table, line, "message", names)
            what = f"message {name}"
            code = self.integer(table, "code", line, what, 1, 255)
            if code in codes:
                self.fail(line.of("code"),
                          f"{what}: code {code} is used before")
            if code in retired:
                self.fail(line.of("code"),
                          f"{what}: code {code} is reserved")
            payload = table.get("payload", "none")
            if payload not in PAYLOADS:
                self.fail(line.of("payload"), f"{what}: payload must be one "
                                              "of " + ", ".join(PAYLOADS))
            message = Message(
                name, code,
                self.roles(table, "from", line, what),
                self.roles(table, "to", line, what),
                payload,
                self.fields("message", index, table, line, what,
                            ENVELOPE_ID_MAX + 1, ID_MAX),
                self.doc(table, line, what), line, {},
            )
            message.authority = self.authority(table, line, what, message)
            shared = {f.name for f in schema.envelope}
            if message.fields and name in shared:
                # Both would be members of struct ps_msg.
                self.fail(line.of("name"),
                          f"{what}: the envelope has a field of that name, "
                          "so this message can have none")
            for f in message.fields:
                if f.name in shared:
                    self.fail(f.line, f"{what}.{f.name}: the envelope has a "
                                      "field of that name")
            names.add(name)
            codes.add(code)
            deepest = max((depth(f) for f in schema.all_fields(message)),
                          default=1)
            if deepest > schema.depth_max:
                self.fail(line, f"{what}: is {deepest} deep; depth_max is "
                                f"{schema.depth_max}")
            most = header_bound(schema, message)
            if most > schema.header_max:
                self.fail(line, f"{what}: may need {most} bytes of header; "
                                f"header_max is {schema.header_max}")
            schema.messages.append(message)
        if not schema.messages:
            self.fail(1, "the schema has no messages")

    def authority(self, table, line, what, message):
        """Whose right each sender needs; the message must name that object."""
        names, line = table["authority"], line.of("authority")
        if isinstance(names, str):
            names = [names] * len(message.senders)
        if not isinstance(names, list) or len(names) != len(message.senders):
            self.fail(line, f"{what}: 'authority' must have one for each of "
                            "'from'")
        has = {f.name for f in message.fields}
        named = {"gen", "slot"} | ({"key", "index"} & has
                                   if {"key", "index"} <= has else set())
        fields = [f for f in message.fields if f.name in named]
        if message.parts:
            fields += [f for f in message.parts.record.fields
                       if f.name in ("key", "index")]
        for f in fields:
            if f.type != SUBJECT[f.name]:
                self.fail(f.line, f"{what}.{f.name}: must be "
                                  f"{SUBJECT[f.name]}, which names its object")
        for role, name in zip(message.senders, names):
            if name not in AUTHORITIES:
                self.fail(line, f"{what}: 'authority' must be one of "
                                + ", ".join(AUTHORITIES))
            needs = {"owner": {"gen"}, "member": {"gen"},
                     "place": {"gen", "epoch"}}.get(name, set())
            if name == "member" and "server" in message.receivers and \
                    "sched" not in message.receivers:
                needs = needs | {"slot"}
            if name == "owner" and message.parts is None:
                needs = needs | {"key", "index"}
            if not needs <= has:
                self.fail(line, f"{what}: authority {name} needs the fields "
                                + ", ".join(sorted(needs)))
            if role == "sched" and name not in ("scheduler", "session") and \
                    {"server", "agent"} & set(message.receivers) and \
                    "ctl" not in message.receivers:
                self.fail(line, f"{what}: members take only the scheduler's "
                                "own from it: authority scheduler or session")
        return dict(zip(message.senders, names))

    def roles(self, table, key, line, what):
        names, line = table[key], line.of(key)
        if isinstance(names, str):
            names = [names]
        known = [v.name for v in self.enums["role"].values] \
            if "role" in self.enums else []
        if not isinstance(names, list) or not names:
            self.fail(line, f"{what}: '{key}' must name roles")
        for name in names:
            if name not in known:
                self.fail(line, f"{what}: '{key}' names no role: '{name}'")
            if names.count(name) > 1:
                self.fail(line, f"{what}: '{key}' names '{name}' twice")
        return names

    def fields(self, kind, index, table, line, what, id_least, id_most):
        fields = []
        retired = self.reserved(table, line, what)
        for nth, row in enumerate(self.tables(table, "fields", line, what)):
            at = self.lines.item(kind, index, nth)
            f = self.field(row, at, what, fields, id_least, id_most)
            if fields and id_least > 0 and f.id <= fields[-1].id:
                used = f.id in [g.id for g in fields]
                self.fail(at, f"{what}.{f.name}: id {f.id} " + (
                    "is used before" if used else "must ascend"))
            if f.id in retired and id_least > 0:
                self.fail(at, f"{what}.{f.name}: id {f.id} is reserved")
            if id_least == 0 and fields and f.since < fields[-1].since:
                self.fail(at, f"{what}.{f.name}: later fields of a record "
                              "come last")
            fields.append(f)
        return fields

    def field(self, row, at, what, before, id_least, id_most):
        own = ["id"] if id_least > 0 else []
        self.take(row, at, f"{what}: field",
                  own + "name type doc since default max of enum".split(),
                  own + ["name", "type"])
        name = self.name(row, at, f"{what}: field", [f.name for f in before])
        for other in before:
            if name in (f"{other.name}_count",) and other.type == "list":
                self.fail(at, f"{what}.{name}: clashes with the count of "
                              f"'{other.name}'")
        here = f"{what}.{name}"
        kind = row["type"]
        if kind not in SCALARS + BOUNDED:
            self.fail(at, f"{here}: unknown type '{kind}'")
        if id_least == 0 and kind == "list":
            self.fail(at, f"{here}: a record cannot hold a list")
        number = self.integer(row, "id", at, here, id_least, id_most) \
            if id_least > 0 else 0
        since = self.integer(row, "since", at, here, 1, 65535, 1)
        if since > self.protocol:
            self.fail(at, f"{here}: since {since}, but protocol is "
                          f"{self.protocol}")
        if since > 1 and "default" not in row:
            self.fail(at, f"{here}: a later field needs a default")
        bound = 0
        if kind in BOUNDED:
            if "max" not in row:
                self.fail(at, f"{here}: a {kind} needs a max")
            bound = self.integer(row, "max", at, here, 1, COUNT_MAX)
        elif "max" in row:
            self.fail(at, f"{here}: 'max' belongs to str, bin and list")
        of, record = row.get("of"), None
        if kind == "list":
            if of in self.records:
                record = self.records[of]
            elif of not in INTEGERS:
                self.fail(at, f"{here}: 'of' must be an integer type or a "
                              "record")
        elif of is not None:
            self.fail(at, f"{here}: 'of' belongs to lists")
        enum = None
        if "enum" in row:
            enum = self.enums.get(row["enum"])
            if enum is None:
                self.fail(at, f"{here}: unknown enum '{row['enum']}'")
            if kind != "u8":
                self.fail(at, f"{here}: only u8 fields name an enum")
        f = Field(name, kind, number, since, None, bound, of, record, enum,
                  self.doc(row, at, here), at)
        if "default" in row:
            f.default = self.default(f, row["default"], here)
        return f

    def default(self, f, value, here):
        if f.type in INTEGERS:
            least, greatest = INTEGERS[f.type]
            good = type(value) is int and least <= value <= greatest
            if good and f.enum:
                good = value in [v.value for v in f.enum.values]
        elif f.type == "bool":
            good = type(value) is bool
        elif f.type == "f64":
            good = type(value) in (int, float)
        elif f.type == "str":
            good = type(value) is str and "\0" not in value \
                and len(value.encode()) <= f.max
        else:
            # An empty list is the only one that can be had from nothing.
            good = value == [] if f.type == "list" else value == ""
        if not good:
            self.fail(f.line, f"{here}: default does not fit the field")
        return value


# ----------------------------------------------------------------- figures


def depth(f):
    """How deep a field makes its message: map > list > record > scalar."""
    return 2 + (f.type == "list") + (f.record is not None)


def scalar_bound(kind):
    """Most bytes that msgpack needs for a value."""
    return {"bool": 1, "u8": 2, "u16": 3, "u32": 5, "i32": 5}.get(kind, 9)


def field_bound(f):
    if f.type in ("str", "bin"):
        return 3 + f.max
    if f.type != "list":
        return scalar_bound(f.type)
    if f.record:
        each = 3 + sum(field_bound(g) for g in f.record.fields)
    else:
        each = scalar_bound(f.of)
    return 3 + f.max * each


def header_bound(schema, message):
    """Most bytes the header of a message can have."""
    fields = schema.all_fields(message)
    return 3 + sum(1 + field_bound(f) for f in fields)


def node_bound(schema, message):
    """Most msgpack values the header of a message can have."""
    count = 1
    for f in schema.all_fields(message):
        count += 2
        if f.type == "list":
            count += f.max * (1 + len(f.record.fields) if f.record else 1)
    return count


def load(path):
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path}:1: {error}") from None
    return Reader(str(path), text).schema()
