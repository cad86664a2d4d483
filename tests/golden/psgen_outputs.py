# SPDX-License-Identifier: Apache-2.0
"""What psgen makes of tests/golden/psgen/small.toml is what it made before.

With --update the kept files are rewritten; read the difference before you
commit it.
"""

import difflib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "proto"))

from psgen import __main__ as psgen  # noqa: E402
from psgen import schema  # noqa: E402

FILES = {
    "header": "ps_msg.h",
    "source": "ps_msg.c",
    "fixed_header": "ps_fixed.h",
    "fixed_source": "ps_fixed.c",
    "samples": "ps_samples.c",
    "dict": "messages.dict",
    "tables": "tables.md",
}


def main():
    update = "--update" in sys.argv
    read = schema.load(HERE / "psgen" / "small.toml")
    print(f"1..{len(FILES)}")
    bad = 0
    for number, (what, name) in enumerate(FILES.items(), 1):
        path = HERE / "psgen" / f"{name}.golden"
        made = psgen.WRITERS[what](read)
        if update:
            path.write_text(made)
        kept = path.read_text() if path.exists() else ""
        if made == kept:
            print(f"ok {number} - {name}")
            continue
        bad += 1
        print(f"not ok {number} - {name}")
        for row in difflib.unified_diff(kept.splitlines(), made.splitlines(),
                                        "kept", "made", lineterm=""):
            print("#", row)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
