# SPDX-License-Identifier: Apache-2.0
"""A server on the emulated CUDA driver: arguments of trio()."""
import os

MODULE = os.environ.get("PSKV_TEST_CUDA_MODULE", "")
DRIVER = os.environ.get("PSKV_TEST_CUDA_DRIVER", "")
CUBLAS = os.environ.get("PSKV_TEST_CUBLAS", "")


def command(**more):
    """Words before a daemon's command."""
    env = {"PSKV_CUDA_DRIVER": DRIVER, "PSKV_CUBLAS": CUBLAS, **more}
    return ["env"] + [f"{k}={v}" for k, v in env.items()]


def servers(state="mirrored", **more):
    return {"server_command": command(**more),
            "server_options": ["compute.device=cuda",
                               f"compute.state={state}",
                               f"compute.gpu_module={MODULE}"]}
