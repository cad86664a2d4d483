# SPDX-License-Identifier: Apache-2.0
"""Daemons, and libraries, of the release before beside those of this one: a job
with Adam has the bits that it has among equals, by TCP and within a host. The
one before is built from its commit, where the history of this tree has it."""
import os
import re
import subprocess

import pytest
import trio as support
from trio import Job

# Protocol 1, the last commit before version 2.
COMMIT = "980ebd940f016aeed90bd41b0abe4a605f33e882"
VERSION = "0.1.0"
PRESENT = re.search(r"version: '([^']+)'",
                    (support.SOURCE / "meson.build").read_text()).group(1)
OLDER = support.BUILD / f"older-{COMMIT[:8]}"
TARGETS = ["daemons/psched/psched", "daemons/psserver/psserver",
           "daemons/psworker-agent/psworker-agent", "daemons/psctl/psctl",
           "tests/integration/integration_worker"]
ALL = ("sched", "ps0", "ps1", "node0", "node1")
COUNT = 300_000


def run(*words, **more):
    return subprocess.run(words, capture_output=True, check=False,
                          env={**os.environ, "CC": os.environ.get("CC", "cc")},
                          **more)


@pytest.fixture(scope="module")
def older():
    """Build folder of the release before."""
    source = OLDER / "source"
    build = OLDER / "build"
    if run("git", "-C", str(support.SOURCE), "cat-file", "-e",
           f"{COMMIT}^{{commit}}").returncode != 0:
        pytest.skip(f"the history of this tree has no commit {COMMIT[:8]}")
    if not source.exists():
        source.mkdir(parents=True)
        tree = run("git", "-C", str(support.SOURCE), "archive", COMMIT)
        assert tree.returncode == 0, tree.stderr
        assert run("tar", "-x", "-C", str(source),
                   input=tree.stdout).returncode == 0
    if not (build / "build.ninja").exists():
        done = run("meson", "setup", "-Dcuda=disabled", str(build), str(source))
        assert done.returncode == 0, done.stdout.decode()[-3000:]
    done = run("ninja", "-C", str(build), *TARGETS)
    assert done.returncode == 0, done.stdout.decode()[-3000:]
    return build


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
