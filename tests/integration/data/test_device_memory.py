# SPDX-License-Identifier: Apache-2.0
"""Gradients in the memory of GPUs, here of the emulated driver: the agent sums
them there, with the bits of the CPU; what it cannot have it gets in copies; and
the end of a worker or of a GPU harms nobody else."""
import re

import pytest

from cuda_emu_stats import total
from emulated_gpu import DRIVER, MODULE, driver, node
from trio import Deadline, Job, WorkerError, wait_for

pytestmark = pytest.mark.skipif(not (MODULE and DRIVER),
                                reason="PSKV_TEST_CUDA_DRIVER not set")

COUNT = 300_007
SIZES = COUNT * 4, 5001 * 8, 17 * 4  # Bytes of each key.


def declare(job):
    return [job.key("a", "float32", COUNT), job.key("b", "float64", 5001),
            job.key("c", "int32", 17)]


def train(job, keys=None, rounds=3):
    """A hash of all results, the same for each worker."""
    keys = keys or declare(job)
    names = " ".join(str(k) for k in keys)
    results = job.tell(lambda rank: f"rounds mixed {rounds} {rank} 0 {names}")
    assert len({r[0] for r in results}) == 1, results
    return results[0][0]


def train_in_place(job, folder, keys, sizes, rounds=3):
    """Trains until the agent sums all rounds on GPUs: its answers for memory of
    other allocators come in their own time, and it alone runs kernels, which
    read whole packs of 16 bytes and count them in the folder."""
    want = len(job.workers) * rounds * sum(
        (size + 15) // 16 * 16 for size in sizes)
    hashes = []

    def is_in_place():
        before = total(folder, "kernel_read")
        hashes.append(train(job, keys, rounds))
        return total(folder, "kernel_read") - before == want

    wait_for(is_in_place, "rounds without copies")
    assert len(set(hashes)) == 1
    return hashes[0]


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
    bytes_each = 3 * sum(SIZES)
    read, to_host, to_device, between = counts(t.agents()[0])
    assert to_host == bytes_each
    assert to_device == devices * bytes_each
    assert read == (workers * bytes_each if workers > 1 else 0)
    assert between >= (workers - devices) * bytes_each


@pytest.mark.parametrize("workers,devices,servers,place", [
    (2, 1, 0, ""), (4, 2, 1, "inplace")])
def test_memory_of_other_allocators_is_used_in_place(
        trio, tmp_path, workers, devices, servers, place):
    t = node(trio, devices, servers, PSKV_EMU_STATS=tmp_path)
    want = hash_on_host(t, workers)
    with Job(t, workers, **driver(devices)) as job:
        job.tell(lambda rank: f"device {rank % devices} other {place}")
        assert train_in_place(job, tmp_path, declare(job), SIZES) == want
    t.await_empty()


def mapped(agent):
    """Memory of GPUs that the process maps."""
    with open(f"/proc/{agent.process.pid}/maps", encoding="ascii") as maps:
        return {line.split()[4] for line in maps if "memfd:cuda-emu " in line}


def test_memory_that_is_made_again_at_its_address_is_offered_again(
        trio, tmp_path):
    t = node(trio, 1, PSKV_EMU_STATS=tmp_path)
    want = hash_on_host(t, 2)
    agent = t.agents()[0]
    with Job(t, 2, PSKV_EMU_REUSE=1, **driver(1)) as job:
        job.tell("device 0 other")
        keys = declare(job)
        assert train_in_place(job, tmp_path, keys, SIZES) == want
        first = mapped(agent)
        job.tell("again")
        assert train_in_place(job, tmp_path, keys, SIZES) == want
        wait_for(lambda: len(first - mapped(agent)) == 2 * len(keys),
                 "the end of freed memory")
    t.await_empty()


def test_the_agent_keeps_a_bounded_number_of_allocations(trio):
    t = node(trio, 1, PSKV_EMU_SEED=0)
    with Job(t, 1, PSKV_EMU_SEED=0, **driver(1)) as job:
        keys = [job.key(f"k{i}", "int32", 17) for i in range(300)]
        job.tell("device 0 other")
        for half in keys[:150], keys[150:], keys[:150]:
            job.tell(f"rounds count 2 1 0 {' '.join(map(str, half))}")
            assert len(mapped(t.agents()[0])) < 256 + 20
        wait_for(lambda: len(mapped(t.agents()[0])) >= 256, "allocations")
    t.await_empty()


@pytest.mark.parametrize("place", ["", "other"])
def test_a_worker_dies_while_its_gradient_is_made(trio, tmp_path, place):
    t = node(trio, 1, PSKV_EMU_STATS=tmp_path)
    want = hash_on_host(t, 2)
    job = Job(t, 2, name="killed", PSKV_ON_LOSS="fail", **driver(1))
    job.tell(f"device 0 {place}")
    key = job.key("a", "float32", COUNT)
    train_in_place(job, tmp_path, [key], SIZES[:1], rounds=1)
    job[1].ask(f"device 0 {place} held")
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


@pytest.mark.parametrize("place", ["", "other"])
def test_memory_that_cannot_be_imported_is_copied(trio, place):
    t = node(trio, 1, PSKV_EMU_FAIL="import:1")
    want = hash_on_host(t, 2)
    with Job(t, 2, **driver(1)) as job:
        job.tell(f"device 0 {place}")
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


@pytest.mark.parametrize("place", ["", "other"])
def test_an_agent_without_a_gpu_gets_copies(trio, place):
    """Of memory that the program has not offered, its log says nothing."""
    t = node(trio, 1, device="cpu")
    want = hash_on_host(t, 2)
    with Job(t, 2, **driver(1)) as job:
        job.tell(f"device 0 {place}")
        keys = declare(job)
        wait_for(lambda: train(job, keys) == want and
                 "compute.device of the agent is cpu" in
                 " ".join(job[0].ask("detail")), "the reason")
    refused = "memory of a worker refused" in t.agents()[0].text()
    assert refused == (place == "")
    t.await_empty()


@pytest.mark.parametrize("place", ["", "other"])
def test_the_next_agent_gets_the_memory(trio, tmp_path, place):
    t = node(trio, 1, PSKV_EMU_STATS=tmp_path)
    with Job(t, 2, **driver(1)) as job:
        job.tell(f"device 0 {place}")
        key = job.key("a", "float32", COUNT)
        train_in_place(job, tmp_path, [key], SIZES[:1])
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
