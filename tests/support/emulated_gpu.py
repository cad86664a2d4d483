# SPDX-License-Identifier: Apache-2.0
"""Servers and agents on the emulated CUDA driver: arguments of trio()."""
import os

MODULE = os.environ.get("PSKV_TEST_CUDA_MODULE", "")
DRIVER = os.environ.get("PSKV_TEST_CUDA_DRIVER", "")
CUBLAS = os.environ.get("PSKV_TEST_CUBLAS", "")


def variables(**more):
    return {"PSKV_CUDA_DRIVER": DRIVER, "PSKV_CUBLAS": CUBLAS, **more}


def command(**more):
    """Words before a daemon's command."""
    return ["env"] + [f"{k}={v}" for k, v in variables(**more).items()]


def servers(state="mirrored", **more):
    return {"server_command": command(**more),
            "server_options": ["compute.device=cuda",
                               f"compute.state={state}",
                               f"compute.gpu_module={MODULE}"]}


def driver(devices, **more):
    """Variables of a worker, or of an agent, that sees a number of GPUs."""
    return variables(PSKV_EMU_DEVICES=devices, **more)


def node(trio, devices, servers=1, device="cuda", **more):
    """A trio with one agent that sees a number of GPUs."""
    return trio(servers=servers, agents=1,
                agent_command=command(PSKV_EMU_DEVICES=devices, **more),
                agent_options=[f"compute.device={device}",
                               f"compute.gpu_module={MODULE}"])
