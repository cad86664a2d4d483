#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counters of the emulated CUDA driver are read while the process runs.

    test_cuda_emu_stats.py LIBRARY
"""
import ctypes
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import cuda_emu_stats  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    os.environ["PSKV_EMU_STATS"] = folder
    os.environ["PSKV_EMU_DEVICES"] = "2"
    driver = ctypes.CDLL(sys.argv[1])
    context = ctypes.c_void_p()
    memory = ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    assert driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(8192)) == 0
    assert driver.cuMemcpyHtoD_v2(memory, bytes(4096), ctypes.c_size_t(4096)) == 0
    assert cuda_emu_stats.total(folder, "host_to_device") == 4096
    first, second = cuda_emu_stats.read_folder(folder)[os.getpid()]
    assert first["copies"] == 0 and second["copies"] == 1
    assert second["pageable"] == 4096 and second["memory_used"] == 8192
    assert driver.cuMemFree_v2(memory) == 0
    assert cuda_emu_stats.total(folder, "memory_used") == 0
