#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one bug at a time in a copy of the module for GPUs, and checks that the
emulated driver or the comparison of bits finds it, for the reason that the bug
gives.

    plant_device.py CC SOURCE_ROOT BUILD_ROOT KERNEL_SUITE MODULE
"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "sim"))

from plant import check_plants, planted_texts  # noqa: E402

LONG = "long_results_have_the_same_bits"
SUMS = "sums_match_the_model"
OTHER_BITS = r"differs from the model: cuda|not ok"

# "<file>: <its bug>" -> tests that find it, their output as a pattern, and
# [(file, correct text, text with the bug)].
BUGS = {
    "cuda/job: computes in a stream that waits for no event of the copies": (
        LONG, r"cuda_emu: race: .* of stream \d+ .* of stream \d+", [
            ("lib/kernel/cuda/job.c",
             "ps_cuda_count_copies(r->c, bytes, 0);",
             """static ps_cu_stream planted;
    if (planted == NULL) {
        (void)r->c->cu.stream_new(&planted, PS_CU_STREAM_INDEPENDENT);
    }"""),
            ("lib/kernel/cuda/job.c",
             """r->c->cu.to_device(to, s->host + at,
                                                          bytes, s->stream)""",
             "r->c->cu.to_device(to, s->host + at, bytes, planted)"),
        ]),
    "cuda/job: stores results before the device has computed them": (
        LONG, OTHER_BITS, [
            ("lib/kernel/cuda/job.c",
             'if (!has_succeeded(r, "wait", r->c->cu.wait(s->stream))) {',
             'if (!has_succeeded(r, "wait", 0)) {'),
        ]),
    "cuda/job: gives the device's memory back before the results are copied": (
        LONG, r"cuda_emu: .* of memory that \d+ queued operations? use", [
            ("lib/kernel/cuda/job.c",
             "copy_to_host(r, s);\n}",
             """copy_to_host(r, s) &&
           (s->device_size = 0,
            has_succeeded(r, "free", r->c->cu.free(s->device))) &&
           (s->device = 0, true);
}"""),
        ]),
    "cuda/job: fills pinned memory again that a piece still uses": (
        LONG, OTHER_BITS, [
            ("lib/kernel/cuda/job.c",
             "is_good = finish_piece(r, s, ret_done) && "
             "start_piece(r, s, first);",
             """struct ps_cuda_slot planted = *s;
        is_good = start_piece(r, s, first);
        if (is_good && planted.count != 0) {
            planted.device = s->device;
            planted.host = s->host;
            is_good = finish_piece(r, &planted, ret_done);
        }"""),
        ]),
    "cuda/plan: adds each source to the sum of those before it": (
        SUMS, OTHER_BITS, [
            ("lib/kernel/cuda/plan.c",
             "while (depth > 1 && levels[depth - 2] == levels[depth - 1]) {",
             "while (depth > 1) {"),
        ]),
    "cuda/job: adds sources in an order of arrival": (
        SUMS, OTHER_BITS, [
            ("lib/kernel/cuda/job.c",
             "k.src[i] = operand_at(r, s, i);",
             "k.src[(i + 1) % job->src_count] = operand_at(r, s, i);"),
        ]),
}


def build_module(cc, source, build, module, scratch, changes):
    """The module with objects of the changed files in place of its own."""
    folder = module.with_name(module.name + ".p")
    objects = {path.name: path for path in folder.glob("*.o")}
    for name, text in planted_texts(source, changes).items():
        planted = scratch / Path(name).name
        planted.write_text(text)
        obj = planted.with_suffix(".o")
        subprocess.run(
            [cc, "-std=gnu11", "-D_GNU_SOURCE", "-g", "-O1", "-w", "-fPIC",
             "-fvisibility=hidden", f"-I{source / 'lib'}", f"-I{source}",
             f"-I{build}", "-c", planted, "-o", obj], check=True)
        objects[planted.name + ".o"] = obj
    planted_module = scratch / module.name
    subprocess.run(
        [cc, "-shared", *objects.values(), build / "lib/base/libbase.a",
         "-lpthread", "-ldl", "-o", planted_module], check=True)
    return planted_module


def run_suite(suite, module, tests):
    return subprocess.run([suite, "emulated", module, tests],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", check=False)


def main():
    if sys.argv[1] == "--check":
        check_plants(Path(sys.argv[2]),
                     {name: bug[-1] for name, bug in BUGS.items()})
        return 0
    cc, *paths = sys.argv[1:]
    source, build, suite, module = map(Path, paths)
    check_plants(source, {name: bug[-1] for name, bug in BUGS.items()})
    print("1.." + str(len(BUGS)))
    bad = 0
    for number, (name, bug) in enumerate(BUGS.items(), 1):
        tests, pattern, changes = bug
        with tempfile.TemporaryDirectory() as folder:
            planted = build_module(cc, source, build, module, Path(folder),
                                   changes)
            run = run_suite(suite, planted, tests)
        found = run.returncode != 0 and re.search(pattern, run.stdout)
        bad += not found
        print(f"{'ok' if found else 'not ok'} {number} - found: {name}")
        said = [line for line in run.stdout.splitlines()
                if re.search(pattern, line)]
        for line in said[:1] if found else run.stdout.splitlines()[-5:]:
            print(f"# {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
