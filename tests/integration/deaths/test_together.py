# SPDX-License-Identifier: Apache-2.0
"""Deaths, stops and cuts of all daemons, lost packets and moves together, for a
minute, on three hosts that are network namespaces: three jobs have the bits of
undisturbed ones. `./dev soak together` does it for longer."""
import sys

import pytest
from trio import SOURCE

sys.path += [str(SOURCE / "tests" / folder) for folder in ("soak", "bench")]

import hosts  # noqa: E402
import together  # noqa: E402

SECONDS = 60
SEED = 29


def test_all_faults_together_change_no_bit(tmp):
    reason = hosts.missing()
    if reason is not None:
        pytest.skip(f"no hosts can be made here: {reason}")
    line = together.run(tmp, SECONDS, SEED)
    assert line["ok"], line
    assert min(line["rounds"].values()) > SECONDS / 5, line
    assert sum(line["faults"].values()) > SECONDS / 4, line
