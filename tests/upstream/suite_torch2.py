# SPDX-License-Identifier: Apache-2.0
"""distributed_test.py of torch 2, as suite_torch.py has that of torch 1, in
build/torch2, or the interpreter that PSKV_TORCH2_PYTHON names."""
from pathlib import Path

from suite import REPOSITORY, environment_value
from suite_torch import Torch


class Torch2(Torch):
    name = "torch2"

    def python(self):
        build = Path(environment_value("PSKV_BUILD_DIR",
                                       REPOSITORY / "build"))
        return environment_value("PSKV_TORCH2_PYTHON", build.absolute() /
                                 "torch2" / "bin" / "python")


SUITE = Torch2
