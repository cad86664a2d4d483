# SPDX-License-Identifier: Apache-2.0
"""The row of a GPU runs to its end on the emulated driver, and says so if there
is no GPU.

    test_bench_device.py BUILD"""
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.dont_write_bytecode = True

import peers  # noqa: E402
from cases import QUICK, Bench, row_22  # noqa: E402
from table import Book  # noqa: E402


def text_of_row():
    book = Book()
    bench = Bench(peers.Systems(Path(sys.argv[1])),
                  replace(QUICK, big=64 << 10, device=64 << 10, rounds=0,
                          device_peers=False, device_workers=(2,)), book, {})
    row_22(bench)
    assert not book.failed(), book.notes
    return book.text({22: "device"})


text = text_of_row()
for words in ("memory: copy on the device", "link: to the host",
              "in the GPU's memory: sum of 8 float32", "job, adam: GPU",
              "job, adam: GPU that keeps weights and states",
              "two in place: own kernel to cuBLAS",
              "pskv, one server, shared memory"):
    assert words in text, text
os.environ["PSKV_CUDA_DRIVER"] = "/nonexistent/libcuda.so"
text = text_of_row()
assert "bench_device: skipped: no GPU: " in text, text
assert "no CUDA driver: /nonexistent/libcuda.so" in text, text
