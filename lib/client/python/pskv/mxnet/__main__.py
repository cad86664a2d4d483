# SPDX-License-Identifier: Apache-2.0
"""python3 -m pskv.mxnet SCRIPT ARGUMENTS...: runs an unmodified script for
MXNet's key-value stores."""
import os
import runpy
import sys

if len(sys.argv) < 2:
    sys.exit("usage: python3 -m pskv.mxnet SCRIPT [ARGUMENT...]")
del sys.argv[0]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
