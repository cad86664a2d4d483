#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one bug of each kind in a copy of the server machine and checks that
the simulator's seeds find it. A simulator that finds nothing proves nothing.

    plant.py CC SOURCE_ROOT BUILD_ROOT [--verbose]
"""
import subprocess
import sys
import tempfile
from pathlib import Path

SEEDS = 60

# name -> [(file, what stands there, what is planted)]
PLANTS = {
    "counts requests instead of contributors": [
        ("lib/core/round.c",
         """    if (!ps_bits_set(&r->in, place)) {
        return false;
    }""",
         """    if (!ps_bits_set(&r->in, place)) {
        place = ps_bits_next_clear(&r->in, 0);
        ps_bits_set(&r->in, place);
    }"""),
        ("lib/core/shard_push.c",
         "            ps_round_has(&part->open->round, slot)));",
         "            ps_round_complete(&part->open->round)));"),
    ],
    "acknowledges before it has merged": [
        ("lib/core/shard_push.c",
         """bytes.buf != NULL ? &bytes : NULL,
                   m->ranks);""",
         """bytes.buf != NULL ? &bytes : NULL,
                   m->ranks);
    ps_shard_answer(st, slot, part, false, rec->round);"""),
    ],
    "adds in order of arrival": [
        ("lib/core/round.c",
         "        r->part[place] = *slice;",
         "        r->part[r->in.count - 1] = *slice;"),
    ],
}


def compile_planted(cc, source, build, scratch, changes):
    """The simulator with the changed files in front of the core's archive."""
    objects = []
    for name, old, new in changes:
        text = (source / name).read_text()
        if text.count(old) != 1:
            sys.exit(f"{name} no longer holds what is to be changed:\n{old}")
        planted = scratch / Path(name).name
        planted.write_text(text.replace(old, new))
        obj = planted.with_suffix(".o")
        subprocess.run(
            [cc, "-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-w",
             f"-I{source / 'lib'}", f"-I{source}", f"-I{build}",
             f"-I{build / 'proto'}", "-c", planted, "-o", obj], check=True)
        objects.append(obj)
    program = scratch / "sim_planted"
    archives = [build / name for name in (
        "tests/support/libworld.a", "lib/core/libcore.a",
        "proto/libproto.a", "proto/libps_msg.a", "lib/base/libbase.a")]
    archives += sorted((build / "lib/kernel").glob("lib*.a"))
    main = subprocess.run(
        [cc, "-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-w",
         f"-I{source / 'lib'}", f"-I{source}", f"-I{source / 'tests'}",
         f"-I{build}", f"-I{build / 'proto'}",
         source / "tests/sim/random_main.c", *objects, "-Wl,--start-group",
         *archives, "-Wl,--end-group", "-lmsgpackc", "-lm", "-o", program],
        check=False)
    if main.returncode != 0:
        sys.exit("the planted simulator does not build")
    return program


def main():
    cc, source, build = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    print("1.." + str(len(PLANTS)))
    bad = 0
    for number, (name, changes) in enumerate(PLANTS.items(), 1):
        with tempfile.TemporaryDirectory() as folder:
            program = compile_planted(cc, source, build, Path(folder), changes)
            run = subprocess.run(
                [program, "--seed", "1", "--count", str(SEEDS), "--jobs", "2"],
                capture_output=True, text=True, check=False)
        found = run.returncode != 0
        bad += not found
        print(f"{'ok' if found else 'not ok'} {number} - a server that {name} "
              "is found")
        for line in run.stdout.splitlines()[:3] + run.stdout.splitlines()[-1:]:
            print(f"# {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
