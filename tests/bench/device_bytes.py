# SPDX-License-Identifier: Apache-2.0
"""Bytes that cross PCIe for each byte of gradient of one worker, for workers on
GPUs of the emulated driver: the table of docs/gpu.md.

    PSKV_BUILD_DIR=build python3 tests/bench/device_bytes.py
"""
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests/support"))

import cuda_emu_stats  # noqa: E402
from trio import BUILD, Job, Trio  # noqa: E402

EMULATED = BUILD / "tests/support/cuda_emu"
MODULE = BUILD / "lib/kernel/cuda/libpskv-cuda.so"
COUNT = 1 << 18
ROUNDS = 2
CASES = [(1, 1), (2, 1), (8, 1), (2, 2), (8, 2), (8, 8)]
FIELDS = ("device_to_host", "host_to_device", "peer_to_device",
          "device_to_device")


def totals(folder, pids):
    processes = cuda_emu_stats.read_folder(folder)
    return {f: sum(d[f] for pid in pids for d in processes[pid])
            for f in FIELDS}


def run(folder, workers, devices, device):
    """Bytes of the agent and of the workers, without those by which a test
    fills and reads its arrays, for each byte of gradient."""
    stats = folder / "stats"
    stats.mkdir()
    env = {"PSKV_CUDA_DRIVER": str(EMULATED / "libcuda.so.1"),
           "PSKV_CUBLAS": str(EMULATED / "libcublas.so"),
           "PSKV_EMU_DEVICES": str(devices), "PSKV_EMU_STATS": str(stats),
           "PSKV_EMU_SEED": "0"}
    t = Trio(folder / "trio", servers=1, agents=1,
             agent_command=["env"] + [f"{k}={v}" for k, v in env.items()],
             agent_options=[f"compute.device={device}",
                            f"compute.gpu_module={MODULE}"])
    t.start()
    try:
        with Job(t, workers, **env) as job:
            job.tell(lambda rank: f"device {rank % devices}")
            key = job.key("a", "float32", COUNT)
            job.tell(f"rounds count {ROUNDS} 1 0 {key}")
            pids = [w.pid for w in job]
        agent = [t.agents()[0].pid] if device == "cuda" else []
        both = [totals(stats, agent), totals(stats, pids)]
    finally:
        t.stop()
    size = 4 * COUNT * ROUNDS
    for field in FIELDS[:2]:
        both[1][field] -= workers * size  # The test's own copies.
    return [{f: n / size for f, n in one.items()} for one in both]


def main():
    print("| workers | GPUs | to the host | to GPUs | from GPU to GPU "
          "| within a GPU | copied by workers: to the host | to GPUs |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for workers, devices in CASES:
        with tempfile.TemporaryDirectory(prefix="pskv-") as one, \
                tempfile.TemporaryDirectory(prefix="pskv-") as two:
            agent, rest = run(Path(one), workers, devices, "cuda")
            assert not any(rest.values()), rest
            _, staged = run(Path(two), workers, devices, "cpu")
        cells = [workers, devices] + [f"{agent[f]:.2f}" for f in FIELDS] + \
            [f"{staged[f]:.2f}" for f in FIELDS[:2]]
        print("| " + " | ".join(str(c) for c in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
