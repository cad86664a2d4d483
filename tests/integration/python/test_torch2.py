# SPDX-License-Identifier: Apache-2.0
"""pskv.torch with torch 2: what torch 2 has beyond torch 1, each result against
that of gloo from the same script."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import tomllib

import pytest

import trio as harness
from trio import PACKAGE, SOURCE

SCRIPT = pathlib.Path(__file__).with_name("torch2_features.py")
CLIENTS = SCRIPT.with_name("torch2_clients.py")
PYTHON = pathlib.Path(os.environ.get("PSKV_TORCH2_PYTHON",
                                     harness.BUILD / "torch2/bin/python"))
RANKS = 4
FEATURES = re.findall(r"^@feature\ndef (\w+)", SCRIPT.read_text(), re.M) + [
    "the_world_made_again"]

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(),
    reason=f"no torch 2: {PYTHON} does not exist; ./dev test --all installs it")

# Prints what the ranks of two runs have written.
READ = """
import json, sys, torch
print(json.dumps([[torch.load(f"{sys.argv[1]}.{b}.{r}") for r in range(%d)]
                  for b in sys.argv[2:]]))
""" % RANKS


def run(*command, folders=()):
    return subprocess.run(
        [str(c) for c in command], text=True, check=False,
        env=harness.clean_env(
            PYTHONPATH=os.pathsep.join(map(str, [PACKAGE, *folders])),
            PYTHONDONTWRITEBYTECODE=1, PSKV_LIBRARY=harness.LIBRARY,
            OMP_NUM_THREADS=1, GLOO_SOCKET_IFNAME="lo"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        timeout=10 * harness.PATIENCE)


@pytest.fixture(scope="module")
def results():
    """Of each backend: what each rank has got, by feature."""
    import json
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pskv-test-"))
    for backend in "gloo", "pskv":
        done = run(harness.program("pslaunch"), "-n", RANKS, "-s", 2, "--",
                   PYTHON, SCRIPT, backend, folder / "got")
        assert done.returncode == 0, done.stderr
    read = run(PYTHON, "-c", READ, folder / "got", "gloo", "pskv")
    assert read.returncode == 0, read.stderr
    shutil.rmtree(folder)
    return json.loads(read.stdout)


@pytest.mark.parametrize("feature", FEATURES)
def test_feature_as_with_gloo(results, feature):
    gloo, ours = ([rank[feature] for rank in one] for one in results)
    for g, o in zip(gloo, ours):
        assert not isinstance(g, str), f"gloo: {g}"
        assert not isinstance(o, str), f"pskv: {o}"
    assert ours == gloo


def test_a_script_without_an_import_of_pskv(tmp):
    """torch finds the backend by the entry point of an installed wheel."""
    about = tmp / "pskv-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: pskv\nVersion: 0\n")
    points = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"][
        "entry-points"]["torch.backends"]
    (about / "entry_points.txt").write_text("[torch.backends]\n" + "".join(
        f"{name} = {place}\n" for name, place in points.items()))
    script = tmp / "script.py"
    script.write_text("""
import sys, torch, torch.distributed as dist
assert 'pskv.torch' not in sys.modules
dist.init_process_group('pskv')
t = torch.ones(2)
dist.all_reduce(t)
assert t.tolist() == [2.0, 2.0], t
dist.destroy_process_group()
""")
    done = run(harness.program("pslaunch"), "-n", 2, "-s", 1, "--", PYTHON,
               script, folders=[tmp])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("client", ["accelerate", "transformers"])
def test_client_ends_as_with_gloo(tmp, client):
    """Libraries above torch.distributed train to the same bits."""
    if run(PYTHON, "-c", f"import {client}").returncode != 0:
        pytest.skip(f"{PYTHON} has no {client}")
    ends = {}
    for backend in "gloo", "pskv":
        done = run(harness.program("pslaunch"), "-n", 2, "-s", 1, "--",
                   PYTHON, CLIENTS, client, backend, tmp / "got")
        assert done.returncode == 0, done.stderr
        ends[backend] = [(tmp / f"got.{backend}.{r}").read_text()
                         for r in range(2)]
    assert ends["pskv"] == ends["gloo"]
    assert ends["pskv"][0] == ends["pskv"][1]
