# SPDX-License-Identifier: Apache-2.0
"""Daemons, and libraries, of the release before beside those of this one: a job
with Adam has the bits that it has among equals, by TCP and within a host. The
one before is built from its commit, where the history of this tree has it."""
import re

import older as release
import pytest
import trio as support
from older import VERSION
from trio import Job, Worker, WorkerError

PRESENT = re.search(r"version: '([^']+)'",
                    (support.SOURCE / "meson.build").read_text()).group(1)
ALL = ("sched", "ps0", "ps1", "node0", "node1")
COUNT = 300_000


@pytest.fixture(scope="module")
def older():
    """Build folder of the release before."""
    why = release.missing()
    if why is not None:
        pytest.skip(why)
    return release.build()


def train(trio, build, old, same_host, library=support.BUILD):
    """Sums and steps of a job whose daemons `old` are of another build."""
    def options(name):
        if name == "sched":
            return [] if name in old else ["network.checksums=on"]
        found = [f"network.same_host={'auto' if same_host else 'off'}"]
        return found + ([] if name in old else ["network.checksums=on"])

    t = trio(servers=2, agents=2, builds={name: build for name in old},
             daemon_options=options)
    zero = t.folder / "zero"
    zero.write_bytes(bytes(4 * COUNT))
    with Job(t, 4, build=library, PSKV_PARTITION_BYTES=65536) as job:
        job[0].ask("optimizer adam learning_rate=0.01")
        keys = [job.key(f"w{i}", "float32", COUNT) for i in range(2)]
        for k in keys:
            job.tell(f"init {k} src={zero}")
        names = " ".join(str(k) for k in keys)
        seen = [job.tell(lambda rank, i=i: f"rounds mixed 4 {10 * i + rank} 0 "
                                           f"{names}") for i in range(4)]
        versions = {n["name"]: n["version"] for n in t.ask("nodes")["nodes"]
                    if n["role"] != "sched"}
    assert versions == {name: VERSION if name in old else PRESENT
                        for name in ALL if name != "sched"}
    for d in t.daemons.values():
        assert d.alive() and "malformed" not in d.text(), d.text()
    t.await_empty()
    return seen, t


@pytest.fixture(scope="module")
def alike():
    """The bits among equals, once."""
    return {}


@pytest.mark.parametrize("same_host", [True, False], ids=["local", "tcp"])
@pytest.mark.parametrize("old", [
    ("node0", "node1"), ("ps0", "ps1"), ("sched",), ("sched", "ps1", "node0"),
    ("ps0", "ps1", "node0", "node1")], ids="-".join)
def test_older_daemons_train_with_newer_ones(trio, older, alike, old,
                                             same_host):
    if not alike:
        alike["bits"] = train(trio, older, (), True)[0]
    assert train(trio, older, old, same_host)[0] == alike["bits"]


@pytest.mark.parametrize("old", [(), ("node0", "node1")],
                         ids=["older-library", "newer-library"])
def test_a_library_trains_with_agents_of_the_other_version(trio, older, alike,
                                                           old):
    if not alike:
        alike["bits"] = train(trio, older, (), True)[0]
    library = support.BUILD if old else older
    assert train(trio, older, old, True, library)[0] == alike["bits"]


def test_the_list_of_members_shows_their_versions(trio, older):
    t = trio(servers=1, agents=1, builds={"ps0": older})
    code, out, err = t.psctl("nodes")
    assert code == 0, err
    lines = {line.split()[1]: line.split() for line in out.splitlines()[1:]}
    column = out.splitlines()[0].split().index("VERSION")
    assert column > 0
    assert VERSION in lines["ps0"] and PRESENT in lines["node0"], out
    code, out, _ = t.psctl("doctor")
    assert code != 0
    assert f"has version {VERSION}, psched has {PRESENT}" in out, out


@pytest.mark.parametrize("old, text", [
    ("node0", "replicas: 2 needs an agent of version 0.2.0 or later, and the "
              "one on '{socket}' is older: upgrade it"),
    ("sched", "replicas: 2 needs a psched of version 0.2.0 or later, and the "
              "one of this cluster is older: upgrade it"),
    ("ps1", "replicas: 2 does not work with server ps1: it is of a version "
            "without copies; upgrade it")], ids=["agent", "psched", "server"])
def test_copies_are_refused_in_words_by_older_parties(trio, older, old, text):
    t = trio(servers=2, agents=1, builds={old: older})
    worker = Worker(t.socket(0), "job", 0, 1, PSKV_NUM_SERVERS=2,
                    PSKV_REPLICAS=2)
    with pytest.raises(WorkerError) as refused:
        worker.ask("open")
    assert text.format(socket=t.socket(0)) in str(refused.value)
    worker.kill()
    with Job(t, 1, name="other"):
        pass  # Without replicas all go on together.
