# SPDX-License-Identifier: Apache-2.0
"""psgen refuses what is wrong in a schema, and says where.

Every case takes the small schema of tests/golden/psgen, makes one edit, and
expects one error on the line of that edit.
"""

import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "proto"))

from psgen import __main__ as psgen  # noqa: E402
from psgen import emit_docs, schema  # noqa: E402

SMALL = ROOT / "tests" / "golden" / "psgen" / "small.toml"
PROTOCOL = ROOT / "proto" / "messages.toml"

HEADER = '[[message]]\nname = "everything"'

# (what stands there, what is put in its place, the error); with a fourth
# member, the error is not on the line of the edit but where that stands.
CASES = [
    # Codes and ids are for ever.
    ("code = 2", "code = 1",
     "message everything: code 1 is used before"),
    ("code = 2", "code = 9", "message everything: code 9 is reserved"),
    ("code = 2", "code = 0",
     "message everything: 'code' must be from 1 to 255"),
    ("code = 2", "code = 256",
     "message everything: 'code' must be from 1 to 255"),
    ("code = 2", "code = true",
     "message everything: 'code' must be from 1 to 255"),
    ("{ id = 11,", "{ id = 10,",
     "message everything.b: id 10 is used before"),
    ("{ id = 11,", "{ id = 9,", "message everything.b: id 9 must ascend"),
    ("{ id = 10,", "{ id = 9,", "message everything.a: id 9 is reserved"),
    ("{ id = 8,", "{ id = 7,",
     "message everything.yes: 'id' must be from 8 to 63"),
    ("{ id = 43,", "{ id = 64,",
     "message everything.later_blob: 'id' must be from 8 to 63"),
    ("{ id = 1,", "{ id = 8,", "envelope.seq: 'id' must be from 1 to 7"),
    ("{ name = \"auto\", value = 2,", "{ name = \"auto\", value = 1,",
     "enum colour.auto: value 1 is reserved"),
    ("{ name = \"auto\", value = 2,", "{ name = \"auto\", value = 0,",
     "enum colour.auto: value 0 is used before"),
    ("{ name = \"auto\", value = 2,", "{ name = \"auto\", value = 256,",
     "enum colour.auto: 'value' must be from 0 to 255"),
    # Versions.
    ("since = 2, default = 11", "since = 3, default = 11",
     "message everything.later: since 3, but protocol is 2"),
    ("since = 2, default = 11", "since = 2",
     "message everything.later: a later field needs a default"),
    ("since = 2, default = 2 }", "since = 2 }",
     "record point.colour: a later field needs a default"),
    ("{ name = \"x\", type = \"i32\" }",
     "{ name = \"x\", type = \"i32\", default = 1 }",
     "record point.name: fields with a default come last, so that they can "
     "be left out", "{ name = \"name\", type = \"str\", max = 8"),
    ("{ name = \"x\", type = \"i32\" }",
     "{ name = \"x\", type = \"i32\", since = 2, default = 1 }", None),
    # Bounds.
    ("type = \"str\", max = 40,", "type = \"str\",",
     "message everything.text: a str needs a max"),
    ("type = \"bin\", max = 300", "type = \"bin\"",
     "message everything.blob: a bin needs a max"),
    ("of = \"i64\", max = 5", "of = \"i64\"",
     "message everything.numbers: a list needs a max"),
    ("of = \"i64\", max = 5", "of = \"i64\", max = 65536",
     "message everything.numbers: 'max' must be from 1 to 65535"),
    ("of = \"i64\", max = 5", "of = \"i64\", max = 0",
     "message everything.numbers: 'max' must be from 1 to 65535"),
    ("name = \"b\", type = \"u16\"", "name = \"b\", type = \"u16\", max = 3",
     "message everything.b: 'max' belongs to str, bin and list"),
    # Types.
    ("type = \"u16\" }", "type = \"u15\" }",
     "message everything.b: unknown type 'u15'"),
    ("of = \"i64\", max = 5", "of = \"str\", max = 5",
     "message everything.numbers: 'of' must be an integer type or a record"),
    ("of = \"point\", max = 3", "of = \"pint\", max = 3",
     "message everything.points: 'of' must be an integer type or a record"),
    ("type = \"u16\" }", "type = \"u16\", of = \"u8\" }",
     "message everything.b: 'of' belongs to lists"),
    ("type = \"u8\", enum = \"dtype\" }", "type = \"u8\", enum = \"dtyp\" }",
     "message everything.a: unknown enum 'dtyp'"),
    ("type = \"u8\", enum = \"dtype\" }", "type = \"u16\", enum = \"dtype\" }",
     "message everything.a: only u8 fields name an enum"),
    ("{ name = \"x\", type = \"i32\" }",
     "{ name = \"x\", type = \"list\", of = \"u8\", max = 3 }",
     "record point.x: a record cannot hold a list"),
    # Defaults.
    ("default = 7 }", "default = 4294967296 }",
     "message everything.c: default does not fit the field"),
    ("default = 7 }", "default = -1 }",
     "message everything.c: default does not fit the field"),
    ("default = 7 }", "default = \"7\" }",
     "message everything.c: default does not fit the field"),
    ("default = 7 }", "default = true }",
     "message everything.c: default does not fit the field"),
    ("since = 2, default = \"new\"", "since = 2, default = \"newer\"",
     "message everything.later_text: default does not fit the field"),
    ("since = 2, default = \"new\"", "since = 2, default = \"a\\u0000b\"",
     "message everything.later_text: default does not fit the field"),
    ("since = 2, default = []", "since = 2, default = [1]",
     "message everything.later_list: default does not fit the field"),
    ("since = 2, default = 2 }", "since = 2, default = 1 }",
     "record point.colour: default does not fit the field"),
    ("type = \"u64\", default = 0, doc", "type = \"u64\", doc",
     "envelope.seq: must be an integer with a default"),
    # Names.
    ("name = \"b\", type", "name = \"a\", type",
     "message everything: field: name 'a' is used before"),
    ("name = \"b\", type", "name = \"B\", type",
     "message everything: field: name must be lower_case words"),
    ("name = \"b\", type", "name = \"int\", type",
     "message everything: field: name 'int' is a word of C"),
    ("name = \"b\", type", "name = \"seq\", type",
     "message everything.seq: the envelope has a field of that name"),
    ("name = \"points\", type", "name = \"numbers_count\", type",
     "message everything.numbers_count: clashes with the count of 'numbers'"),
    ("name = \"dtype\"\n", "name = \"role\"\n",
     "enum: name 'role' is used before"),
    ("home = \"base/dtype.h\"", "home = \"core/dtype.h\"",
     "enum dtype: 'home' must be a header of base"),
    ("name = \"auto\",", "name = \"red\",",
     "enum colour: name 'red' is used before"),
    # Roles and payloads.
    ("from = [\"agent\", \"sched\"]", "from = [\"agent\", \"shed\"]",
     "message everything: 'from' names no role: 'shed'"),
    ("from = [\"agent\", \"sched\"]", "from = []",
     "message everything: 'from' must name roles"),
    ("from = [\"agent\", \"sched\"]", "from = [\"agent\", \"agent\"]",
     "message everything: 'from' names 'agent' twice"),
    ("payload = \"tensor\"", "payload = \"tenser\"",
     "message everything: payload must be one of none, tensor, placement"),
    # Whose right a message needs.
    ("authority = \"scheduler\"\n", "",
     "message: 'authority' is missing", "[[message]]\nname = \"seq\""),
    ("authority = \"scheduler\"", "authority = \"sched\"",
     "message seq: 'authority' must be one of none, session, user, place, "
     "scheduler, owner, member, addressee"),
    ("authority = \"scheduler\"", "authority = \"user\"",
     "message seq: members take only the scheduler's own from it: authority "
     "scheduler or session"),
    ("authority = [\"user\", \"scheduler\"]", "authority = [\"user\"]",
     "message everything: 'authority' must have one for each of 'from'"),
    ("authority = [\"user\", \"scheduler\"]",
     "authority = [\"owner\", \"scheduler\"]",
     "message everything: authority owner needs the fields gen, index, key"),
    ("authority = [\"user\", \"scheduler\"]",
     "authority = [\"member\", \"scheduler\"]",
     "message everything: authority member needs the fields gen"),
    ("name = \"b\", type = \"u16\"", "name = \"gen\", type = \"u16\"",
     "message everything.gen: must be u64, which names its object"),
    # Words nobody knows: a slip must not be taken for nothing.
    ("type = \"u16\" }", "type = \"u16\", sinse = 2 }",
     "message everything: field: unknown key 'sinse'"),
    ("payload = \"tensor\"", "playload = \"tensor\"",
     "message: unknown key 'playload'"),
    ("name = \"x\", type = \"i32\"", "name = \"x\"",
     "record point: field: 'type' is missing"),
    ("depth_max = 4", "depth_max = 5",
     "limits: 'depth_max' must be from 1 to 4"),
    # Messages that do not fit in a header.
    ("depth_max = 4", "depth_max = 3",
     "message everything: is 4 deep; depth_max is 3", HEADER),
    ("type = \"bin\", max = 300", "type = \"bin\", max = 9000",
     "message everything: may need 9252 bytes of header; header_max is 8192",
     HEADER),
    # Fixed records.
    ("type = \"i32\", min = -1", "type = \"u64\", min = 1",
     "record placement_part.whole: is not aligned at offset 4"),
    ("size = 64\n", "size = 63\n",
     "record placement_part: its 63 bytes are no multiple of its alignment, "
     "8"),
    ("size = 64\n", "size = 40\n",
     "record placement_part: 'size' must be from 48 to 65535"),
    ("type = \"bytes\", size = 5", "type = \"bytes\"",
     "record placement_part.text: 'size' must be from 1 to 65535"),
    ("type = \"i32\", min = -1", "type = \"i32\", size = 4",
     "record placement_part.whole: 'size' belongs to bytes"),
    ("type = \"i32\", min = -1", "type = \"str\"",
     "record placement_part.whole: unknown type 'str'"),
    ("type = \"u32\", const = 0x31474d50",
     "type = \"u16\", const = 0x31474d50",
     "record placement_part.magic: 'const' must be from 0 to 65535"),
    ("name = \"truth\", type = \"bool\"",
     "name = \"truth\", type = \"bool\", max = 1",
     "record placement_part.truth: 'max' belongs to integers"),
    ("name = \"truth\", type = \"bool\"",
     "name = \"truth\", type = \"bool\", atomic = true",
     "record placement_part.truth: only integers are atomic"),
    ("name = \"truth\", type = \"bool\"",
     "name = \"truth\", type = \"bool\", since = 2",
     "record placement_part: field: unknown key 'since'"),
    ("name = \"colour\", type = \"u8\", enum = \"colour\" },",
     "name = \"colour\", type = \"u8\", enum = \"color\" },",
     "record placement_part.colour: unknown enum 'color'"),
    ("name = \"shared\"\n", "name = \"point\"\n",
     "record: name 'point' is used before"),
    ("of = \"point\", max = 3", "of = \"shared\", max = 3",
     "message everything.points: 'of' must be an integer type or a record"),
    # TOML itself.
    ("{ id = 11,", "{ id = 11",
     "Unclosed inline table (at line 107, column 13)"),
]


class Refusals(unittest.TestCase):
    def refuse(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "s.toml"
            path.write_text(text)
            try:
                schema.load(path)
            except schema.SchemaError as error:
                return str(error).removeprefix(f"{folder}/s.toml:")
        return None

    def test_small_schema_is_good(self):
        self.assertIsNone(self.refuse(SMALL.read_text()))

    def test_every_edit_is_refused_where_it_stands(self):
        text = SMALL.read_text()
        for old, new, error, *where in CASES:
            with self.subTest(new=new, error=error):
                self.assertEqual(text.count(old), 1, "edits one place")
                edited = text.replace(old, new)
                line = text[: text.index(old)].count("\n") + 1
                found = self.refuse(edited)
                if error is None:
                    # Allowed here; the next field is the one out of order.
                    self.assertEqual(
                        found, f"{line + 1}: record point.name: later fields "
                               "of a record come last")
                    continue
                self.assertIsNotNone(found, "is refused")
                at, _, words = found.partition(": ")
                self.assertEqual(words, error)
                if where:
                    line = text[: text.index(where[0])].count("\n") + 1
                self.assertEqual(int(at), line)


class Documents(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name) / "doc.md"
        self.schema = schema.load(SMALL)

    def test_block_is_rewritten_and_then_up_to_date(self):
        self.path.write_text("before\n<!-- generated -->\nold\n"
                             "<!-- /generated -->\nafter\n")
        self.assertEqual(emit_docs.rewrite(self.schema, self.path, True), 1)
        self.assertIn("old", self.path.read_text())
        self.assertEqual(emit_docs.rewrite(self.schema, self.path, False), 0)
        text = self.path.read_text()
        self.assertTrue(text.startswith("before\n<!-- generated -->\n"))
        self.assertTrue(text.endswith("<!-- /generated -->\nafter\n"))
        self.assertNotIn("old", text)
        self.assertIn("| 2 | [everything](#message-everything) |", text)
        self.assertEqual(emit_docs.rewrite(self.schema, self.path, True), 0)

    def test_document_without_markers_is_left_alone(self):
        self.path.write_text("nothing here\n")
        self.assertEqual(emit_docs.rewrite(self.schema, self.path, False), 1)
        self.assertEqual(self.path.read_text(), "nothing here\n")


class Program(unittest.TestCase):
    def test_protocol_is_good_and_fits_its_headers(self):
        read = schema.load(PROTOCOL)
        for message in read.messages:
            self.assertLessEqual(schema.header_bound(read, message),
                                 read.header_max)

    def test_wrong_use_is_refused(self):
        self.assertEqual(psgen.main([]), 2)
        self.assertEqual(psgen.main(["colour", str(SMALL), "x"]), 2)

    def test_errors_end_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "out"
            self.assertEqual(
                psgen.main(["header", f"{folder}/none.toml", str(out)]), 1)
            self.assertFalse(out.exists())


if __name__ == "__main__":
    unittest.main()
