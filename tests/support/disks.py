# SPDX-License-Identifier: Apache-2.0
"""Small file systems, to fill."""
import contextlib
import os
import subprocess

import pytest


@contextlib.contextmanager
def small_disk(folder, size):
    """A folder with room for `size` bytes; skips the test where none can be
    mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a file system of a known size")
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}",
                           "none", folder], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder):
    """Leaves no byte; returns the file, which gives the space back."""
    path = folder / "filler"
    with open(path, "wb", buffering=0) as out:
        with pytest.raises(OSError):
            while True:
                out.write(bytes(4096))
    return path
