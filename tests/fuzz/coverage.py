#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Line coverage of the parsers by the corpora of their fuzz targets.

    coverage.py BUILD [--missed]

BUILD is compiled by clang with -fprofile-instr-generate and
-fcoverage-mapping. Prints the table of docs/testing.md; with --missed, the
functions that have lines without coverage, too. The end code is 1 if a parser
has less than 95 %."""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TREE = Path(__file__).resolve().parents[2]
LEAST = 95.0
# Parser -> its sources, each with the functions that read what comes from
# outside; "": all of them.
PARSERS = {
    "prefixes": {"proto/frame.c": "parse|check"},
    "headers": {"proto/scan.c": "",
                "proto/msg_codec.c": "decode$|get|find|set_default|expect|"
                "copy_bytes|alloc"},
    # Without those of the threads for I/O.
    "streams of frames": {"lib/net/conn_read.c": "^(?!submit|receive_task)"},
    "configuration": {"lib/conf/yaml.c": "^(?!ps_yaml_read)",
                      "lib/conf/value.c": "",
                      "lib/conf/option.c": "options_load|apply_[^fv]|add_(error|refusal|"
                      "unknown)|check_[pr]|convert|reject|is_section|split"},
    "descriptors": {"lib/net/local.c": "map$|map_r|sealing"},
    "rings": {"proto/ring.c": "pop|push|read|wake|awake|sleep|flag"},
    "certificates": {"lib/crypto/identity.c": "",
                     "lib/crypto/pki.c": "read_[cuhs]|describe|p256|time|"
                     "verify|is_host"},
    "enrolment": {"lib/crypto/enrolment.c": "read|check|text_of|fini|list|record|"
                  "hash",
                  "daemons/psctl/pki_limit.c": ""},
    "tokens": {"lib/crypto/token.c": "verify|decode|valid"},
    "states of an optimizer": {"lib/client/state_format.c": "get|chunk_of"},
    "encoded gradients": {"lib/kernel/codec.c": "check|decode|read"},
}
ROW = re.compile(r"^(\S+)\s+\d+\s+\d+\s+\S+\s+(\d+)\s+(\d+)\s+\S+")


def run_corpora(build, folder):
    """The programs, and one profile of all their runs."""
    programs = sorted((build / "tests/fuzz").glob("replay_*"))
    programs = [p for p in programs if p.is_file()]
    for program in programs:
        name = program.name.removeprefix("replay_")
        subprocess.run([program, TREE / "tests/fuzz/corpus" / name],
                       env={"LLVM_PROFILE_FILE": f"{folder}/{name}.profraw"},
                       stdout=subprocess.DEVNULL, check=True)
    profile = folder / "all.profdata"
    subprocess.run(["llvm-profdata-14", "merge", "-sparse", "-o", profile,
                    *sorted(folder.glob("*.profraw"))], check=True)
    return programs, profile


def functions(programs, profile, source, pattern):
    """(name, lines, missed lines) of the functions of a source."""
    objects = [word for p in programs[1:] for word in ("-object", p)]
    report = subprocess.run(
        ["llvm-cov-14", "report", "-show-functions", "-instr-profile", profile,
         programs[0], *objects, TREE / source],
        capture_output=True, text=True, check=True).stdout
    for line in report.splitlines():
        match = ROW.match(line)
        name = match and match[1].split(":")[-1]
        if match and name != "TOTAL" and re.search(pattern, name):
            yield name, int(match[2]), int(match[3])


def main():
    build = Path(sys.argv[1]).resolve()
    shows_missed = "--missed" in sys.argv[2:]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        programs, profile = run_corpora(build, Path(folder))
        print("| parser | sources | lines | covered |")
        print("| --- | --- | --- | --- |")
        for parser, sources in PARSERS.items():
            rows = [(source, *row) for source, pattern in sources.items()
                    for row in functions(programs, profile, source, pattern)]
            lines = sum(row[2] for row in rows)
            missed = sum(row[3] for row in rows)
            share = 100 * (lines - missed) / lines
            good = good and share >= LEAST
            print(f"| {parser} | {', '.join(f'`{s}`' for s in sources)} "
                  f"| {lines} | {share:.1f} % |", flush=True)
            for source, name, count, miss in rows:
                if shows_missed and miss:
                    print(f"    {source}: {name}: {miss} of {count}")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
