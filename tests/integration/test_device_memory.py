# SPDX-License-Identifier: Apache-2.0
"""Gradients in the memory of GPUs, here of the emulated driver: the agent sums
them there, with the bits of the CPU; what it cannot have it gets in copies; and
the end of a worker or of a GPU harms nobody else."""
import os
import re

import pytest

from trio import Deadline, Job, WorkerError, wait_for

MODULE = os.environ.get("PSKV_TEST_CUDA_MODULE", "")
DRIVER = os.environ.get("PSKV_TEST_CUDA_DRIVER", "")
CUBLAS = os.environ.get("PSKV_TEST_CUBLAS", "")

pytestmark = pytest.mark.skipif(not (MODULE and DRIVER),
                                reason="built without the emulated driver")

COUNT = 300_007


def driver(devices, **more):
    return {"PSKV_CUDA_DRIVER": DRIVER, "PSKV_CUBLAS": CUBLAS,
            "PSKV_EMU_DEVICES": devices, **more}


def node(trio, devices, servers=1, device="cuda", **more):
    env = driver(devices, **more)
    return trio(servers=servers, agents=1,
                agent_command=["env"] + [f"{k}={v}" for k, v in env.items()],
                agent_options=[f"compute.device={device}",
                               f"compute.gpu_module={MODULE}"])


def train(job, rounds=3):
    """A hash of all results, the same for each worker."""
    keys = [job.key("a", "float32", COUNT), job.key("b", "float64", 5001),
            job.key("c", "int32", 17)]
    names = " ".join(str(k) for k in keys)
    results = job.tell(lambda rank: f"rounds mixed {rounds} {rank} 0 {names}")
    assert len({r[0] for r in results}) == 1, results
    return results[0][0]


def hash_on_host(t, workers):
    with Job(t, workers, name="host") as job:
        return train(job)


def counts(agent):
    """Bytes that GPUs have read in sums, and bytes copied: to the host, to a
    GPU, between places of GPUs."""
    return [int(n) for n in re.search(
        r"memory of GPUs read (\d+) to host (\d+) to device (\d+) between (\d+)",
        agent.text()).groups()]


@pytest.mark.parametrize("workers,devices,servers,place", [
    (1, 1, 0, ""), (2, 1, 1, "inplace"), (4, 2, 0, "inplace"), (4, 2, 1, "")])
def test_bits_are_those_of_the_cpu(trio, workers, devices, servers, place):
    t = node(trio, devices, servers)
    want = hash_on_host(t, workers)
    with Job(t, workers, **driver(devices)) as job:
        job.tell(lambda rank: f"device {rank % devices} {place}")
        assert train(job) == want
    t.await_empty()
    t.stop()
    bytes_each = 3 * (COUNT * 4 + 5001 * 8 + 17 * 4)
    read, to_host, to_device, between = counts(t.agents()[0])
    assert to_host == bytes_each
    assert to_device == devices * bytes_each
    assert read == (workers * bytes_each if workers > 1 else 0)
    assert between >= (workers - devices) * bytes_each


def test_a_worker_dies_while_its_gradient_is_made(trio):
    t = node(trio, 1)
    want = hash_on_host(t, 2)
    job = Job(t, 2, name="killed", PSKV_ON_LOSS="fail", **driver(1))
    job[0].ask("device 0")
    job[1].ask("device 0 held")
    key = job.key("a", "float32", COUNT)
    job.say(f"rounds mixed 1 1 0 {key}")
    # Its operation is at the agent, and waits there for the stream.
    wait_for(lambda: t.ask("stall")["stalls"], "the open round")
    job[1].kill()
    with pytest.raises(WorkerError):
        job[0].hear()
    job[0].end()
    with Job(t, 2, name="next", **driver(1)) as after:
        after.tell("device 0")
        assert train(after) == want
    t.await_empty()


def test_memory_that_cannot_be_imported_is_copied(trio):
    t = node(trio, 1, PSKV_EMU_FAIL="import:1")
    want = hash_on_host(t, 2)
    with Job(t, 2, **driver(1)) as job:
        job.tell("device 0")
        assert train(job) == want
    assert "memory of a worker refused" in t.agents()[0].text()
    t.await_empty()


def test_a_sum_that_fails_is_made_of_copies(trio):
    t = node(trio, 1, PSKV_EMU_FAIL="launch:1")
    want = hash_on_host(t, 2)
    with Job(t, 2, **driver(1)) as job:
        job.tell("device 0")
        assert train(job) == want
    t.await_empty()


def test_an_agent_without_a_gpu_gets_copies(trio):
    t = node(trio, 1, device="cpu")
    want = hash_on_host(t, 2)
    with Job(t, 2, **driver(1)) as job:
        job.tell("device 0")
        assert train(job) == want
    assert "compute.device of the agent is cpu" in t.agents()[0].text()
    t.await_empty()


def test_the_next_agent_gets_the_memory(trio):
    t = node(trio, 1)
    with Job(t, 2, **driver(1)) as job:
        job.tell("device 0")
        key = job.key("a", "float32", COUNT)
        job.tell(f"rounds count 2 1 0 {key}")
        t.agents()[0].process.kill()
        t.agents()[0].process.wait()
        t.launch("node0").await_ready(Deadline())
        job.tell(f"rounds count 2 1 0 {key}")
    t.await_empty()
    t.stop()
    assert counts(t.agents()[0])[1:3] == [2 * COUNT * 4, 2 * COUNT * 4]


def test_a_lost_device_ends_no_daemon(trio):
    t = node(trio, 1, PSKV_EMU_FAIL="lost:1")
    want = hash_on_host(t, 2)
    job = Job(t, 2, name="lost", **driver(1))
    job.tell("device 0")
    key = job.key("a", "float32", COUNT)
    job.say(f"rounds mixed 50 1 0 {key}")
    texts = []
    for w in job:
        with pytest.raises(WorkerError) as e:
            w.hear()
        texts.append(str(e.value))
    assert any("could not be computed" in text for text in texts), texts
    agent = t.agents()[0]
    assert "a job on a GPU has failed: " in agent.text()
    job.close()
    assert hash_on_host(t, 2) == want
    t.await_empty()
