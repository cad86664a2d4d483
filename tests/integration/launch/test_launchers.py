# SPDX-License-Identifier: Apache-2.0
"""The same scripts under every launcher: pslaunch, torchrun, mpirun, variables
of srun and of Hydra, DMLC_* by hand. They end with the same bits."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import trio as harness
from python_job import DATA
from trio import PACKAGE, SOURCE

EXAMPLES = SOURCE / "docs" / "examples"
TORCH2 = pathlib.Path(os.environ.get("PSKV_TORCH2_PYTHON",
                                     harness.BUILD / "torch2/bin/python"))
MXNET = pathlib.Path(os.environ.get("PSKV_MXNET_PYTHON",
                                    harness.BUILD / "mxnet/bin/python"))
RANKS = 2
SERVERS = 2


def has_torch(python):
    return subprocess.run([python, "-c", "import torch.distributed"],
                          capture_output=True, check=False).returncode == 0


TORCH = next((str(p) for p in (os.environ.get("PSKV_TORCH_PYTHON"), TORCH2,
                               sys.executable)
              if p and pathlib.Path(p).exists() and has_torch(p)), None)

needs_torch = pytest.mark.skipif(TORCH is None, reason="there is no torch")
needs_data = pytest.mark.skipif(not DATA.exists(), reason="no data set")
needs_mxnet = pytest.mark.skipif(not MXNET.exists(), reason="no MXNet")

STORE = """
import numpy as np
import pskv

kv = pskv.create('dist_sync')
kv.init('w', np.zeros(3, 'float32'))
out = np.empty(3, 'float32')
kv.pushpull('w', np.full(3, 10.0 ** kv.rank, 'float32'), out=out)
kv.barrier()
print('result %d of %d: %s' % (kv.rank, kv.num_workers, out), flush=True)
kv.close()
"""

# The group is that of torch's env://; no variable of torch is set by hand.
GROUP = """
import os
import torch, torch.distributed as dist

dist.init_process_group('pskv')
t = torch.full((2,), 10.0 ** dist.get_rank())
dist.all_reduce(t)
print('result %d of %d: %s, %s of %s here' % (
    dist.get_rank(), dist.get_world_size(), t.tolist(),
    os.environ['LOCAL_RANK'], os.environ['LOCAL_WORLD_SIZE']), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


class Launchers:
    """Each starts a command and returns what its ranks have printed, from
    "result" or "accuracy" on."""

    def __init__(self, trio):
        self.trio = trio

    def env(self, **more):
        return harness.clean_env(
            PYTHONPATH=PACKAGE, OMP_NUM_THREADS=1,
            PYTHONDONTWRITEBYTECODE=1, PSKV_LIBRARY=harness.LIBRARY,
            OPENBLAS_NUM_THREADS=1, **more)

    def job(self, **more):
        return self.env(PSKV_SOCKET=self.trio.socket(0),
                        PSKV_NUM_SERVERS=SERVERS, **more)

    def results(self, *processes):
        found = []
        for process in processes:
            out, err = process.communicate(timeout=6 * harness.PATIENCE)
            assert process.returncode == 0, err
            found += re.findall(r"(?:result|accuracy).*", out)
        return sorted(found)

    def run(self, env, *command):
        return subprocess.Popen([str(c) for c in command], env=env, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def by_hand(self, command, *variables):
        return self.results(*[self.run(self.job(**v), *command)
                              for v in variables])

    def pslaunch(self, command):
        return self.results(self.run(
            self.env(), harness.program("pslaunch"), "-n", RANKS, "--socket",
            self.trio.socket(0), "-s", SERVERS, "--", *command))

    def torchrun(self, command):
        if TORCH is None:
            pytest.skip("there is no torch")
        with harness.reserve_port() as reserved:
            # Debian's torch 1.13.1 fails without -r and -t.
            return self.results(self.run(
                self.job(), TORCH, "-m", "torch.distributed.run",
                "--nproc_per_node", RANKS, "--master_addr", "127.0.0.1",
                "--master_port", reserved.getsockname()[1], "-r", 3, "-t", 3,
                "--no_python", *command))

    def mpirun(self, command):
        if shutil.which("mpirun") is None:
            pytest.skip("there is no mpirun")
        more = ["--oversubscribe"] + \
            ["--allow-run-as-root"] * (os.getuid() == 0)
        return self.results(self.run(self.job(), "mpirun", *more, "-n", RANKS,
                                     *command))

    def srun(self, command):
        return self.by_hand(command, *[
            {"SLURM_PROCID": r, "SLURM_NTASKS": RANKS, "SLURM_LOCALID": r}
            for r in range(RANKS)])

    def hydra(self, command):
        return self.by_hand(command, *[{"PMI_RANK": r, "PMI_SIZE": RANKS}
                                       for r in range(RANKS)])

    def dmlc(self, command):
        """As MXNet's launchers: the scheduler counts the workers."""
        return self.by_hand(command, *[
            {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": RANKS,
             "DMLC_NUM_SERVER": SERVERS, "DMLC_PS_ROOT_URI": "127.0.0.1",
             "DMLC_PS_ROOT_PORT": self.trio.port}] * RANKS)


NAMES = ["pslaunch", "torchrun", "mpirun", "srun", "hydra", "dmlc"]


@pytest.fixture
def launchers(trio):
    return Launchers(trio(servers=SERVERS, agents=1))


def assert_ends_alike(launchers, by_hand, command, lines):
    """A script prints the same under each program that is here and where
    variables are set as `by_hand` has them; scripts above meet all of these."""
    found = {}
    for name in ["pslaunch", "torchrun", "mpirun", by_hand]:
        try:
            found[name] = getattr(launchers, name)(command)
        except pytest.skip.Exception as e:
            print(name, e)
    print(found)
    assert len(found[by_hand]) == lines
    assert all(one == found[by_hand] for one in found.values()), found
    assert len(set(found[by_hand])) == 1


@pytest.mark.parametrize("name", NAMES)
def test_store_script(launchers, name):
    pytest.importorskip("numpy")
    assert getattr(launchers, name)([sys.executable, "-c", STORE]) == \
        [f"result {r} of 2: [11. 11. 11.]" for r in range(RANKS)]


POLICY = """
import json, subprocess, sys
import pskv

kv = pskv.create('dist_sync')
rows = json.loads(subprocess.check_output(sys.argv[1:]))['jobs']
print('result', *[j['on_loss'] for j in rows], flush=True)
kv.barrier()
kv.close()
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_job_fails_when_it_loses_a_rank_however_it_is_started(launchers,
                                                                name):
    ask = [harness.program("psctl"), "-e", f"127.0.0.1:{launchers.trio.port}",
           "-w", "json", "jobs"]
    assert getattr(launchers, name)(
        [sys.executable, "-c", POLICY, *ask]) == ["result fail"] * RANKS


@needs_torch
@pytest.mark.parametrize("name", NAMES)
def test_group_has_the_ranks_of_the_launcher(launchers, tmp, name):
    """Also under those that set no variable of torch."""
    script = tmp / "script.py"
    script.write_text(GROUP)
    assert getattr(launchers, name)([TORCH, "-m", "pskv.torch", script]) == \
        [f"result {r} of 2: [11.0, 11.0], {r} of 2 here" for r in range(RANKS)]


@needs_torch
@needs_data
def test_ddp_script_ends_alike(launchers):
    assert_ends_alike(launchers, "srun", [
        TORCH, "-m", "pskv.torch", EXAMPLES / "torch/ddp.py", "--backend",
        "pskv", "--images", 640, "--epochs", 1], lines=RANKS)


@needs_torch
@needs_data
def test_horovod_script_ends_alike(launchers, tmp):
    text = (EXAMPLES / "torch/horovod_mnist.py").read_text()
    script = tmp / "script.py"
    script.write_text(text.replace("import horovod.torch as hvd",
                                   "import pskv.torch as hvd"))
    assert_ends_alike(launchers, "hydra", [
        TORCH, script, "--images", 640, "--epochs", 1], lines=RANKS)


@needs_mxnet
@needs_data
def test_mxnet_script_ends_alike(launchers):
    """Rank 0 alone prints."""
    assert_ends_alike(launchers, "dmlc", [
        MXNET, "-m", "pskv.mxnet", EXAMPLES / "mxnet/gluon_dist.py",
        "--batches", 4], lines=1)
