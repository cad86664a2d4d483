# SPDX-License-Identifier: Apache-2.0
"""A server that computes on a GPU, here one of the emulated driver: the same
bits as on the CPU, also if the device is lost on the way; and what a server
without one does."""
import subprocess

import numpy as np
import pytest

from emulated_gpu import DRIVER, MODULE
from emulated_gpu import servers as on_device
from trio import BUILD, Job, PATIENCE, WorkerError, program, wait_for

needs_driver = pytest.mark.skipif(not (MODULE and DRIVER),
                                  reason="PSKV_TEST_CUDA_DRIVER not set")
needs_module = pytest.mark.skipif(not MODULE, reason="built without the module")

COUNT = 200_003


def hash_of_training(trio, optimizer, **options):
    """A hash of all results of some rounds, the same for each worker; and the
    log of the server."""
    t = trio(servers=1, agents=2, **options)
    with Job(t, 4) as job:
        if optimizer is not None:
            job.tell(f"optimizer {optimizer}")
        keys = [job.key("a", "float32", COUNT), job.key("b", "float64", COUNT)]
        names = " ".join(str(k) for k in keys)
        for k, dtype in zip(keys, ("float32", "float64")):
            start = t.folder / dtype
            np.linspace(-1, 1, COUNT).astype(dtype).tofile(start)
            job.tell(f"init {k} src={start}")
        results = job.tell(lambda rank: f"rounds mixed 4 {rank} 0 {names}")
    assert len({r[0] for r in results}) == 1, results
    server = t.servers()[0]
    t.await_empty()
    t.stop()
    return results[0][0], server.text()


def device_counts(log):
    """Jobs that the device has computed, refused and failed at."""
    words = log.split("compute device cuda computed ")[1].split()
    return int(words[0]), int(words[2]), int(words[4])


@needs_driver
@pytest.mark.parametrize("optimizer", [
    None, "sgd learning_rate=0.1 momentum=0.9 wd=0.01",
    "adam learning_rate=0.01"])
def test_bits_are_those_of_the_cpu(trio, optimizer):
    want, _ = hash_of_training(trio, optimizer)
    got, log = hash_of_training(trio, optimizer, **on_device())
    assert got == want
    computed, _, failed = device_counts(log)
    assert computed > 0 and failed == 0


@needs_driver
def test_a_lost_device_changes_no_bit(trio):
    """Nor does one with little memory: copies of some arrays do not fit."""
    want, _ = hash_of_training(trio, "adam learning_rate=0.01")
    got, log = hash_of_training(trio, "adam learning_rate=0.01",
                                **on_device(PSKV_EMU_FAIL="lost:30"))
    assert got == want
    assert "the GPU has failed, the CPU computes from now on: " in log
    assert device_counts(log)[2] > 0
    got, log = hash_of_training(trio, "adam learning_rate=0.01",
                                **on_device(PSKV_EMU_MEMORY="14M"))
    assert got == want
    computed, _, failed = device_counts(log)
    assert computed > 0 and failed == 0


def await_gpu(t, server):
    """Its heartbeats say what psctl shows of its GPU."""
    def is_shown():
        n, = [n for n in t.ask("nodes")["nodes"] if n["name"] == server]
        return n["gpu_up"] > 0 and n["gpu_down"] > 0
    wait_for(is_shown, "copies of the GPU")
    n, = [n for n in t.ask("nodes")["nodes"] if n["name"] == server]
    assert n["gpu"] and 0 < n["gpu_held"] < n["gpu_memory"]
    heads, *rows = t.psctl("nodes")[1].splitlines()
    assert heads.split()[-4:] == ["GPU", "HELD", "UP/S", "DOWN/S"]
    assert [r.split()[-4:] for r in rows if r.startswith("agent")] == \
        [["-"] * 4] * 2


def moved_training(trio, **options):
    """Results of rounds before and after all partitions of a server have moved
    to the other."""
    t = trio(servers=2, agents=2, **options)
    with Job(t, 4) as job:
        keys = [job.key(name, "float32", COUNT) for name in "abcd"]
        start = t.folder / "start"
        np.linspace(-1, 1, COUNT).astype("f4").tofile(start)
        for k in keys:
            job.tell(f"init {k} src={start}")
        job.tell("optimizer adam learning_rate=0.01")
        names = " ".join(str(k) for k in keys)
        before = job.tell(lambda rank: f"rounds mixed 2 {rank} 0 {names}")
        moves = t.ask("--off", "ps1", "rebalance", "job")["moves"]
        assert sum(m["parts"] for m in moves) > 0
        after = job.tell(lambda rank: f"rounds mixed 2 {rank} 0 {names}")
        if options:
            await_gpu(t, "ps0")
    t.await_empty()
    t.stop()
    return before + after


@needs_driver
def test_states_that_stay_move_with_their_partition(trio):
    want = moved_training(trio)
    assert moved_training(trio, **on_device("device")) == want


@needs_driver
def test_a_lost_device_loses_states_that_stay(trio):
    """The job is told; the server goes on with others."""
    t = trio(servers=1, agents=1, **on_device("device",
                                              PSKV_EMU_FAIL="lost:40"))
    with Job(t, 2) as job:
        k = job.key("a", "float32", COUNT)
        start = t.folder / "start"
        np.zeros(COUNT, "f4").tofile(start)
        job.tell(f"init {k} src={start}")
        job.tell("optimizer adam learning_rate=0.01")
        job.say(lambda rank: f"rounds mixed 40 {rank} 0 {k}")
        for w in job:
            with pytest.raises(WorkerError, match="on a device that has "
                                                  "failed"):
                w.hear()


@needs_module
def test_auto_without_a_driver_takes_the_cpu(trio):
    t = trio(servers=1, agents=1,
             server_command=["env", "PSKV_CUDA_DRIVER=/nonexistent/libcuda.so"],
             server_options=["compute.device=auto",
                             f"compute.gpu_module={MODULE}"])
    text = t.servers()[0].text()
    assert text.count("compute device cpu: ") == 1
    assert "no CUDA driver: /nonexistent/libcuda.so: " in text


def test_cuda_without_a_module_ends_the_start(trio):
    t = trio(servers=0, agents=1)
    t.server_names = ["ps0"]
    t.server_options += ["compute.device=cuda",
                         "compute.gpu_module=/nonexistent/module.so"]
    daemon = t.launch("ps0")
    assert daemon.process.wait(PATIENCE) == 69
    assert "compute.device is cuda, and there is no GPU to use: " in \
        daemon.text()
    assert "/nonexistent/module.so: " in daemon.text()


LIBRARIES = {"module": MODULE,
             "libpsclient": str(BUILD / "lib/client/libpsclient.so.0")}


@needs_module
@pytest.mark.parametrize("name", ["psched", "psserver", "psworker-agent",
                                  "pslaunch", "psctl", *LIBRARIES])
def test_no_library_of_cuda_is_linked(name):
    path = LIBRARIES.get(name) or program(name)
    lines = subprocess.run(["readelf", "-d", path], capture_output=True,
                           text=True, check=True).stdout.splitlines()
    needed = [line for line in lines if "(NEEDED)" in line]
    assert name == "module" or any("libc.so" in line for line in needed)
    assert [line for line in needed
            if any(word in line for word in ("cuda", "cublas", "libnv"))] == []
