# SPDX-License-Identifier: Apache-2.0
"""Counters of processes on the emulated CUDA driver, from the folder that
PSKV_EMU_STATS named (cuda_emu/control.h)."""
import struct
from pathlib import Path

FIELDS = ("host_to_device", "device_to_host", "device_to_device",
          "peer_to_device", "pageable", "kernel_read", "kernel_written",
          "copies", "launches", "operations", "memory_used", "memory_peak",
          "allocations", "streams", "events", "imports")
MAGIC = 0x31737461747375


def read_process(path):
    """A dict of counters for each device of one process."""
    data = path.read_bytes()
    magic, devices = struct.unpack_from("<2Q", data)
    assert magic == MAGIC, path
    size = 8 * len(FIELDS)
    return [dict(zip(FIELDS, struct.unpack_from(f"<{len(FIELDS)}Q", data, 16 + i * size)))
            for i in range(devices)]


def read_folder(folder):
    """Process -> counters of its devices."""
    return {int(path.stem): read_process(path)
            for path in sorted(Path(folder).glob("*.stats"))}


def total(folder, field):
    """Sum of a counter over all processes and devices."""
    return sum(device[field] for devices in read_folder(folder).values()
               for device in devices)
