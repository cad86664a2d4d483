# SPDX-License-Identifier: Apache-2.0
"""python3 -m pskv.torch SCRIPT ARGUMENTS...: runs an unmodified script of
torch.distributed with the backend 'pskv' registered, and with the variables of
init_method env:// under launchers that do not set them."""
import os
import runpy
import sys

import pskv.torch  # noqa: F401  pylint: disable=unused-import
from pskv.torch import _launch

if len(sys.argv) < 2:
    sys.exit("usage: python3 -m pskv.torch SCRIPT [ARGUMENT...]")
_launch.set_variables()
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
