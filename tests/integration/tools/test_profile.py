# SPDX-License-Identifier: Apache-2.0
"""Recordings of what the servers of a job do, as files for Chrome's trace
viewer."""
import json
import os

import pytest

from python_job import finish, spawn

TEXT = """
import numpy as np, os, pskv, sys
folder = sys.argv[1]
kv = pskv.create('dist_sync')
if MODE == 'sgd':
    kv.set_optimizer('sgd', lr=1)
w = np.ones(5000, 'f')
kv.init('w', w)
kv.profile_servers()
for step in range(6):
    if step == 2:
        kv.barrier()
        kv.profile_servers('pause')
        kv.barrier()
    if step == 4:
        kv.barrier()
        kv.profile_servers()
        kv.barrier()
    kv.pushpull('w', w, out=w)
kv.barrier()
kv.profile_servers('stop')
kv.barrier()
kv.pushpull('w', w, out=w)
if kv.rank == 0:
    kv.save_server_profiles(os.path.join(folder, 'first'))
kv.barrier()
kv.profile_servers()
kv.barrier()
kv.profile_servers('stop')
if kv.rank == 1:
    kv.save_server_profiles(os.path.join(folder, 'second'))
    for wrong in lambda: kv.profile_servers('faster'), \\
            lambda: kv.save_server_profiles(folder + '/none/x'):
        try:
            wrong()
        except (ValueError, pskv.Error) as e:
            print(e)
kv.close()
"""


@pytest.mark.parametrize("mode,computed", [("sum", "merge"), ("sgd", "step")])
def test_each_server_has_a_timeline(trio, tmp, mode, computed):
    t = trio(servers=2, agents=2)
    text = f"MODE = {mode!r}" + TEXT
    folder = tmp / "profiles"
    folder.mkdir()
    said = finish([spawn(t, "job", rank, text, folder) for rank in (0, 1)])
    assert "the modes stop, run, pause, and not 'faster'" in said[1]
    assert "rank0_x: No such file or directory" in said[1]
    assert sorted(os.listdir(folder)) == [
        f"rank{i}_{name}" for i in (0, 1) for name in ("first", "second")]
    partitions = set()
    for i in (0, 1):
        first, second = (
            json.loads((folder / f"rank{i}_{name}").read_text())["traceEvents"]
            for name in ("first", "second"))
        assert not [e for e in second if e["ph"] == "X"]
        # An agent may still pull what init() has set.
        events = [e for e in first
                  if e["ph"] == "X" and e["name"] != "pull"]
        assert {e["args"]["round"] for e in events} == {1, 2, 5, 6}
        assert {e["args"]["key"] for e in events} == {"w"}
        assert {e["pid"] for e in events} == {i}
        of_kind = {}
        for e in events:
            of_kind.setdefault(e["name"], []).append(e)
        assert set(of_kind) == {"push", "gather", computed}
        assert len(of_kind["push"]) == 2 * len(of_kind["gather"])
        assert len(of_kind["gather"]) == len(of_kind[computed])
        partitions |= {e["args"]["partition"] for e in events}
        # In one row, no event begins before the one before it has ended.
        ends = {}
        for e in sorted(events, key=lambda e: e["ts"]):
            assert e["ts"] >= ends.get(e["tid"], 0) - 1e-3
            ends[e["tid"]] = e["ts"] + e["dur"]
    assert partitions == set(range(5))
