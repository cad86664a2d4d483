# SPDX-License-Identifier: Apache-2.0
"""python3 -m psgen WHAT SCHEMA OUTPUT

WHAT is one of the outputs below; `docs` rewrites the block between the
markers of a document, and with --check only says whether it is out of date.
"""

import sys

from . import (emit_c, emit_docs, emit_fixed, emit_fuzz, emit_samples,
               schema)

WRITERS = {
    "header": emit_c.header,
    "source": emit_c.source,
    "fixed_header": emit_fixed.header,
    "fixed_source": emit_fixed.source,
    "samples": emit_samples.source,
    "dict": emit_fuzz.dictionary,
    "tables": emit_docs.tables,
}


def main(arguments):
    check = "--check" in arguments
    words = [a for a in arguments if a != "--check"]
    if len(words) != 3 or words[0] not in [*WRITERS, "docs"]:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    what, source, target = words
    try:
        read = schema.load(source)
    except schema.SchemaError as error:
        print(error, file=sys.stderr)
        return 1
    if what == "docs":
        return emit_docs.rewrite(read, target, check)
    text = WRITERS[what](read)
    with open(target, "w", encoding="utf-8") as out:
        out.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
