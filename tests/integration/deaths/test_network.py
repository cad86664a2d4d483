# SPDX-License-Identifier: Apache-2.0
"""Networks that lose packets and links that are down, between hosts that are
network namespaces: no member is taken for dead, and every bit is that of an
undisturbed run. `./dev soak network` has more of it, and for longer."""
import sys

import pytest
import trio as support
from trio import SOURCE

sys.path += [str(SOURCE / "tests" / folder) for folder in ("soak", "bench")]

import hosts  # noqa: E402
from network import Case  # noqa: E402

LOSS_S = 5
DOWN_S = 6
# Busy machines must not make the scheduler give up members.
PATIENT = ["heartbeat.dead_after=60s"]


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    reason = hosts.missing()
    if reason is not None:
        pytest.skip(f"no hosts can be made here: {reason}")


def run(case, folder):
    line = case.run(folder)
    assert line["ok"], line


@pytest.mark.parametrize("kind", ["sums", "adam"])
def test_lost_packets_change_no_bit(tmp, kind):
    run(Case("loss", kind, lambda h: h.lose(h.all, 0.2),
             lambda h: h.lose(h.all, 0), LOSS_S, after=1.0,
             limit=support.PATIENCE, options=PATIENT), tmp)


@pytest.mark.parametrize("kind", ["sums", "adam"])
def test_interrupted_link_changes_no_bit(tmp, kind):
    run(Case("down", kind, lambda h: h.link("ps0", False),
             lambda h: h.link("ps0", True), DOWN_S, after=1.0,
             limit=support.PATIENCE, options=PATIENT), tmp)
